"""The style of figures: colours for light and dark screens, lines that stay distinguishable, names.

The same function makes the figure of the page, which `embedding` puts into it, and of a paper.
Texts in an SVG stay texts.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipoise.metrics import Metric

# Every colour of a figure on paper, and its replacement on a dark screen. The first eight are Okabe
# and Ito's, which readers with any colour vision can distinguish. Their black is a shade lighter:
# matplotlib writes no fill for black, so that it could not be replaced.
THEME = {
    "#0072b2": "#63b8ee",
    "#d55e00": "#ff9550",
    "#009e73": "#34cda0",
    "#cc79a7": "#eaa6cb",
    "#e69f00": "#f4bd49",
    "#56b4e9": "#9bd6fa",
    "#1a1a1a": "#f2f4f6",
    "#8c6d1f": "#cfb066",
    "#00785a": "#45d3a5",
    "#b4401c": "#ff9070",
    "#6b6b6b": "#aab2ba",
    "#1d2329": "#e4e8eb",
    "#e4e4e4": "#3a424b",
    "#777777": "#8f99a3",
    "#ffffff": "#1c2127",
}
COLOURS = tuple(THEME)[:8]
GAIN, LOSS, ALONE, INK, GRID, EDGE, PAPER = tuple(THEME)[8:]
DARK, FAINT = COLOURS[6], COLOURS[5]
IN_IMAGES = {
    COLOURS[0]: "#2e8fce",
    GAIN: "#179b76",
    LOSS: "#dd6a42",
    ALONE: "#868e96",
}  # of points drawn as an image, which no theme changes: visible on both backgrounds
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
LONGEST = 18  # characters of a name inside a figure; the middle of a longer one is left out
# Text is never read as mathematics, since a client may be called $x^2$.
STYLE: Any = {
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "axes.axisbelow": True,
    "axes.edgecolor": EDGE,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
    "svg.hashsalt": "equipoise",
    "text.parse_math": False,
    "text.usetex": False,
    "pdf.fonttype": 42,
    "figure.dpi": 100,
    "savefig.dpi": 200,
}
SIZE = (4.6, 3.3)
LEAST_POINTS = 5.0  # the smallest range of an axis in per cent
LEAST_SHARE = 0.1  # the smallest range of another axis, as a share of its largest value


SERIES = "series-"  # begins the id of the elements of a series; its number follows
STATIC_LEGEND = "static-legend"  # the id of a legend that the page replaces by buttons


@dataclass(frozen=True)
class Spot:
    """A value of a figure that a reader can point at.

    Attributes:
        axes: The axes in which it lies.
        x: Its position, in the units of the axes.
        y: Its position, in the units of the axes.
        text: What is shown of it.
        series: The name of its series; empty without one.
    """

    axes: Axes
    x: float
    y: float
    text: str
    series: str = ""


class Chart(Figure):
    """A figure whose series can be hidden and whose values can be pointed at, in a page.

    In a PNG or PDF it is a figure like any other.

    Attributes:
        series: Name -> colour of every series, in the order of the legend.
        markers: Name -> marker of every series, as matplotlib names it.
        spots: The values that a reader can point at.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.series: dict[str, str] = {}
        self.markers: dict[str, str] = {}
        self.spots: list[Spot] = []

    def add_series(self, name: str, colour: str, *artists: Artist, marker: str = "o") -> None:
        """Name a series and what is drawn of it, so that it can be hidden.

        Args:
            name: The name in the legend.
            colour: The colour in the legend.
            artists: Lines, points and texts of the series.
            marker: The marker in the legend.
        """
        self.series.setdefault(name, colour)
        self.markers.setdefault(name, marker if marker in MARKERS else "o")
        number = list(self.series).index(name)
        for artist in artists:
            artist.set_gid(f"{SERIES}{number}")

    def add_spots(
        self,
        axes: Axes,
        x: Sequence[float] | np.ndarray,
        y: Sequence[float] | np.ndarray,
        texts: Sequence[str],
        series: str = "",
    ) -> None:
        """Let a reader point at values; those that do not exist are left out."""
        for across, up, text in zip(x, y, texts, strict=True):
            if np.isfinite(across) and np.isfinite(up):
                self.spots.append(Spot(axes, float(across), float(up), text, series))


def new(height: float = SIZE[1]) -> tuple[Chart, Axes]:
    """Return an empty figure of a height in inches, and its axes."""
    figure = Chart(figsize=(SIZE[0], height), layout="constrained")
    return figure, figure.add_subplot()


def drawn(draw: Callable[[], Figure]) -> Figure:
    """Return a figure in the style of all figures."""
    with rc_context(STYLE):
        return draw()


def saved(figure: Figure, kind: str) -> bytes:
    """Return the file of a figure; the same figure always gives the same bytes.

    Args:
        figure: The figure.
        kind: "svg", "png" or "pdf".
    """
    out = io.BytesIO()
    with rc_context(STYLE), warnings.catch_warnings():
        # A browser finds a font for every script; a box in a PNG is no reason to stop.
        warnings.filterwarnings("ignore", "Glyph")
        figure.savefig(
            out,
            format=kind,
            metadata={"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind),
        )
    return out.getvalue()


def encoded(draw: Callable[[], Figure], kind: str) -> bytes:
    """Return the file of a figure that is drawn now; arguments as in `saved`."""
    return saved(drawn(draw), kind)


def widen(axes: Axes, least: float, direction: str = "y") -> None:
    """Give an axis at least a range, so that small differences look small.

    Args:
        axes: The axes, with everything drawn in them.
        least: The smallest range, in the unit of the axis.
        direction: "x" or "y".
    """
    limits = axes.get_xlim() if direction == "x" else axes.get_ylim()
    low, high = sorted(limits)
    missing = least - (high - low)
    if missing <= 0:
        return
    low, high = low - missing / 2, high + missing / 2
    if limits[0] > limits[1]:
        low, high = high, low
    if direction == "x":
        axes.set_xlim(low, high)
    else:
        axes.set_ylim(low, high)


def least_range(metric: Metric, values: Any) -> float:
    """Return the smallest range of an axis of a metric: five points, or a tenth of an error.

    Args:
        metric: The metric.
        values: The values that are shown, as the metric prints them.

    >>> from equipoise.metrics.registry import find
    >>> least_range(find("accuracy"), [80.1, 80.3]), least_range(find("rmse"), [3.9, 4.0])
    (5.0, 0.4)
    """
    if metric.unit == "%":
        return LEAST_POINTS
    finite = np.abs(np.asarray(values, dtype=float))
    finite = finite[np.isfinite(finite)]
    return LEAST_SHARE * float(finite.max()) if finite.size else 0.0


def mark_of(position: int) -> dict[str, Any]:
    """Return colour and marker of a series, which no other of up to 64 series has.

    Args:
        position: The position of the series among those of the figure.

    >>> mark_of(0), mark_of(8)
    ({'color': '#0072b2', 'marker': 'o'}, {'color': '#0072b2', 'marker': 's'})
    """
    count = len(COLOURS)
    return {
        "color": COLOURS[position % count],
        "marker": MARKERS[(position + position // count) % len(MARKERS)],
    }


def apart(position: int, points: int) -> dict[str, Any]:
    """Return the style of a line that is visible even where it coincides with others.

    It has its own colour and stroke, and marks at rounds of its own.

    Args:
        position: The position of the line among the lines of the figure.
        points: The number of points of the line.
    """
    step = max(1, points // 6)
    return {
        **mark_of(position),
        "linestyle": LINES[(position + position // len(COLOURS)) % len(LINES)],
        "markersize": 4,
        "markevery": (position % step, step) if points > 1 else None,
    }


def short(name: str) -> str:
    """Return a name that is short enough for a figure.

    >>> short("boston"), short("Hospital of Saint Mary, ward 3")
    ('boston', 'Hospital o… ward 3')
    """
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 8]}…{name[-7:]}"


def spread(desired: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions near the desired ones, in their order and at least `gap` apart.

    They lie between `low` and `high` if there is room.

    >>> spread([1.0, 1.0, 5.0], 1.0, 0.0, 5.0)
    [1.0, 2.0, 5.0]
    >>> spread([5.0, 5.0, 5.0], 1.0, 0.0, 5.0)
    [3.0, 4.0, 5.0]
    """
    order = sorted(range(len(desired)), key=lambda k: desired[k])
    places = [float(value) for value in desired]
    for before, now in zip([None, *order], order, strict=False):
        places[now] = max(places[now], low if before is None else places[before] + gap)
    for after, now in zip([None, *order[::-1]], order[::-1], strict=False):
        places[now] = min(places[now], high if after is None else places[after] - gap)
    return places


def name_ends(axes: Axes, ends: Sequence[tuple[str, float, float, str]]) -> None:
    """Write the name of every line to the right of its end; names do not overlap.

    Args:
        axes: The axes.
        ends: Name, x, y and colour of the end of every line.
    """
    ends = [end for end in ends if np.isfinite(end[2])]
    if not ends:
        return
    size = 8 if len(ends) <= 12 else 6.5
    low, high = axes.get_ylim()
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    gap = (high - low) * 1.2 * size / (72 * 0.72 * figure.get_figheight())
    places = spread([y for _, _, y, _ in ends], gap, low, high)
    for (name, x, y, colour), position in zip(ends, places, strict=True):
        text = axes.annotate(
            short(name),
            (x, y),
            (1.045, position),
            textcoords=axes.get_yaxis_transform(),
            va="center",
            fontsize=size,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.8,
                "shrinkA": 1,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )
        if isinstance(figure, Chart) and name in figure.series:
            figure.add_series(name, colour, text)
            if text.arrow_patch is not None:
                figure.add_series(name, colour, text.arrow_patch)
    axes.set_ylim(low, high)


def name_points(axes: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Write a name next to every point, where it covers no other name.

    Args:
        axes: The axes.
        points: Name, x and y of every point.
    """
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    width, height = 72 * 0.8 * figure.get_figwidth(), 72 * 0.72 * figure.get_figheight()
    marks = [
        ((x - left) / (right - left) * width, (y - low) / (high - low) * height)
        for _, x, y in points
    ]
    taken: list[_Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in marks]
    line = {"arrowstyle": "-", "color": EDGE, "linewidth": 0.6, "shrinkB": 3}
    for (name, x, y), mark in zip(points, marks, strict=True):
        text = short(name)
        offset, box = _free_place(mark, 4.4 * len(text), taken, (width, height))
        taken.append(box)
        axes.annotate(
            text,
            (x, y),
            offset,
            textcoords="offset points",
            va="center",
            fontsize=8,
            zorder=4,
            arrowprops=line if offset[1] else None,
        )


_Box = tuple[float, float, float, float]  # left, bottom, right, top


def _free_place(
    mark: tuple[float, float], wide: float, taken: Sequence[_Box], size: tuple[float, float]
) -> tuple[tuple[float, float], _Box]:
    """Return the best position for a name near a mark, as an offset from it and as a box.

    Places right of the mark come first. Overlaps and places outside the picture cost most.
    """
    best = None
    for lift in (0, 10, -10, 20, -20, 30, -30):
        for side in (7.0, -7 - wide):
            left = mark[0] + side
            middle = mark[1] + lift
            box = (left, middle - 5, left + wide, middle + 5)
            outside = box[0] < 0 or box[1] < 0 or box[2] > size[0] or box[3] > size[1]
            overlaps = sum(_overlap(box, other) for other in taken)
            cost = 10 * overlaps + 20 * outside + abs(lift) / 10
            if best is None or cost < best[0]:
                best = (cost, (side, float(lift)), box)
    assert best is not None
    return best[1], best[2]


def _overlap(first: _Box, second: _Box) -> bool:
    apart_in_x = first[2] <= second[0] or second[2] <= first[0]
    apart_in_y = first[3] <= second[1] or second[3] <= first[1]
    return not apart_in_x and not apart_in_y


def label(axes: Axes, x: str, y: str) -> None:
    """Write the titles of both axes."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def in_legend(name: str) -> str:
    """Return a name for a legend, from which matplotlib omits names with a leading underscore."""
    return f" {short(name)}" if name.startswith("_") else short(name)


def legend_below(figure: Figure, count: int) -> None:
    """Draw the legend of `count` entries below the picture, where it covers no point."""
    figure.set_figheight(SIZE[1] + 0.17 * -(-count // 3))
    figure.legend(loc="outside lower center", ncols=3).set_gid(STATIC_LEGEND)

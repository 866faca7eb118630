"""The style of figures: colours for light and dark screens, lines that stay distinguishable, names.

matplotlib and not plotly: the page then holds pictures of some ten kilobytes in place of a script
of four megabytes, opens at once on a phone, prints, and the same function makes the figure of a
paper. Texts in the SVG stay texts.
"""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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


def new(height: float = SIZE[1]) -> tuple[Figure, Axes]:
    """Return an empty figure of a height in inches, and its axes."""
    figure = Figure(figsize=(SIZE[0], height), layout="constrained")
    return figure, figure.add_subplot()


def encoded(draw: Callable[[], Figure], kind: str) -> bytes:
    """Return the file of a figure; the same figure always gives the same bytes.

    Args:
        draw: Draws the figure.
        kind: "svg", "png" or "pdf".
    """
    out = io.BytesIO()
    with rc_context(STYLE), warnings.catch_warnings():
        # A browser finds a font for every script; a box in a PNG is no reason to stop.
        warnings.filterwarnings("ignore", "Glyph")
        draw().savefig(
            out,
            format=kind,
            metadata={"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind),
        )
    return out.getvalue()


def data_uri(draw: Callable[[], Figure]) -> str:
    """Return a figure as the address of an image, which follows the choice of light or dark."""
    svg = themed(encoded(draw, "svg").decode())
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def themed(svg: str) -> str:
    """Return an SVG in which every colour is a variable, with values for light and dark."""
    # A text in an SVG holds no bare <, so that everything inside <...> is markup.
    named = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(?<=: )#[0-9a-f]{6}", _named, tag[0]), svg)
    light = ";".join(f"--c{colour[1:]}:{colour}" for colour in THEME)
    dark = ";".join(f"--c{colour[1:]}:{value}" for colour, value in THEME.items())
    style = f"<style>:root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}</style>"
    return re.sub(r"<svg[^>]*>", lambda tag: tag[0] + style, named, count=1)


def _named(colour: re.Match[str]) -> str:
    return f"var(--c{colour[0][1:]})" if colour[0] in THEME else colour[0]


def apart(place: int, points: int) -> dict[str, Any]:
    """Return the style of a line that is visible even where it coincides with others.

    It has its own colour and stroke, and marks at rounds of its own.

    Args:
        place: The position of the line among the lines of the figure.
        points: The number of points of the line.
    """
    step = max(1, points // 6)
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": LINES[(place + place // len(COLOURS)) % len(LINES)],
        "marker": MARKERS[(place + place // len(COLOURS)) % len(MARKERS)],
        "markersize": 4,
        "markevery": (place % step, step) if points > 1 else None,
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
    for (name, x, y, colour), place in zip(ends, places, strict=True):
        axes.annotate(
            short(name),
            (x, y),
            (1.045, place),
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
    """Return the best place for a name near a mark, as an offset from it and as a box.

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
    figure.legend(loc="outside lower center", ncols=3)

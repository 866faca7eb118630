"""How figures look: one style, colours for paper and for a dark screen, lines that stay apart where they coincide, names beside what they name.

matplotlib and not plotly: the page then holds pictures of some ten kilobytes in place of a script of four megabytes, opens at once on a
phone, prints, and the same function makes the figure of a paper. Texts in the SVG stay texts.
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

# Every colour of a figure on paper, and the one in its place on a dark screen. The first eight are Okabe and Ito's, which readers with any
# colour vision can tell apart; their black is a shade lighter, since matplotlib writes no fill for black and none could be put in its place.
THEME = {
    "#0072b2": "#63b8ee", "#d55e00": "#ff9550", "#009e73": "#34cda0", "#cc79a7": "#eaa6cb", "#e69f00": "#f4bd49", "#56b4e9": "#9bd6fa",
    "#1a1a1a": "#f2f4f6", "#8c6d1f": "#cfb066", "#00785a": "#45d3a5", "#b4401c": "#ff9070", "#6b6b6b": "#aab2ba",
    "#1d2329": "#e4e8eb", "#e4e4e4": "#3a424b", "#777777": "#8f99a3", "#ffffff": "#1c2127",
}  # fmt: skip
COLOURS = tuple(THEME)[:8]
GAIN, LOSS, ALONE, INK, GRID, EDGE, PAPER = tuple(THEME)[8:]
DARK, FAINT = COLOURS[6], COLOURS[5]
IN_IMAGES = {
    COLOURS[0]: "#2e8fce",
    GAIN: "#179b76",
    LOSS: "#dd6a42",
    ALONE: "#868e96",
}  # of points drawn as an image, which no theme reaches: seen on both grounds
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
LONGEST = 18  # signs of a name inside a figure; the middle of a longer one is left out
STYLE: Any = {
    "font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GRID, "axes.axisbelow": True,
    "axes.edgecolor": EDGE, "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK, "figure.facecolor": PAPER,
    "axes.facecolor": PAPER, "savefig.facecolor": PAPER, "legend.frameon": False, "legend.fontsize": 8, "svg.fonttype": "none",
    "svg.hashsalt": "equipoise", "text.parse_math": False, "text.usetex": False,  # a client may be called $x^2$
    "pdf.fonttype": 42, "figure.dpi": 100, "savefig.dpi": 200,
}  # fmt: skip
SIZE = (4.6, 3.3)


def new(height: float = SIZE[1]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(SIZE[0], height), layout="constrained")
    return figure, figure.add_subplot()


def encoded(draw: Callable[[], Figure], kind: str) -> bytes:
    """The file of a figure; the same figure always gives the same bytes."""
    out = io.BytesIO()
    with rc_context(STYLE), warnings.catch_warnings():
        # a browser finds a font for every script; a box in a PNG is no reason to stop
        warnings.filterwarnings("ignore", "Glyph")
        draw().savefig(
            out,
            format=kind,
            metadata={"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind),
        )
    return out.getvalue()


def data_uri(draw: Callable[[], Figure]) -> str:
    """An SVG that follows the reader's choice between light and dark, as it can stand in a page."""
    return (
        "data:image/svg+xml;base64,"
        + base64.b64encode(themed(encoded(draw, "svg").decode()).encode()).decode()
    )


def themed(svg: str) -> str:
    """The same picture with every colour behind a name; in SVG a text holds no bare <, so what is inside <...> is markup."""
    named = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(?<=: )#[0-9a-f]{6}", _named, tag[0]), svg)
    light, dark = (
        ";".join(f"--c{key[1:]}:{value}" for key, value in pairs)
        for pairs in (((key, key) for key in THEME), THEME.items())
    )
    style = f"<style>:root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}</style>"
    return re.sub(r"<svg[^>]*>", lambda tag: tag[0] + style, named, count=1)


def _named(colour: re.Match[str]) -> str:
    return f"var(--c{colour[0][1:]})" if colour[0] in THEME else colour[0]


def apart(place: int, points: int) -> dict[str, Any]:
    """How the line of this place is drawn, so that it is seen even where it coincides with others: colour, stroke, and marks at rounds of its own."""
    step = max(1, points // 6)
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": LINES[(place + place // len(COLOURS)) % len(LINES)],
        "marker": MARKERS[(place + place // len(COLOURS)) % len(MARKERS)],
        "markersize": 4,
        "markevery": (place % step, step) if points > 1 else None,
    }


def short(name: str) -> str:
    """
    >>> short("boston"), short("Hospital of Saint Mary, ward 3")
    ('boston', 'Hospital o… ward 3')
    """
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 8]}…{name[-7:]}"


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones, in their order, at least `gap` apart, and between low and high if there is room.

    >>> spread([1.0, 1.0, 5.0], 1.0, 0.0, 5.0)
    [1.0, 2.0, 5.0]
    >>> spread([5.0, 5.0, 5.0], 1.0, 0.0, 5.0)
    [3.0, 4.0, 5.0]
    """
    order = sorted(range(len(wanted)), key=lambda k: wanted[k])
    places = [float(value) for value in wanted]
    for before, now in zip([None, *order], order, strict=False):
        places[now] = max(places[now], low if before is None else places[before] + gap)
    for after, now in zip([None, *order[::-1]], order[::-1], strict=False):
        places[now] = min(places[now], high if after is None else places[after] - gap)
    return places


def name_ends(axes: Axes, ends: Sequence[tuple[str, float, float, str]]) -> None:
    """The name of every line to the right of its end (name, x, y, colour), pushed apart where ends coincide."""
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
            short(name), (x, y), (1.045, place), textcoords=axes.get_yaxis_transform(), va="center", fontsize=size, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)},
        )  # fmt: skip
    axes.set_ylim(low, high)


def name_points(axes: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """A name beside every point, where it covers no other name: right of it if there is room, else the nearest free place around it."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    width, height = 72 * 0.8 * figure.get_figwidth(), 72 * 0.72 * figure.get_figheight()
    marks = [
        ((x - left) / (right - left) * width, (y - low) / (high - low) * height)
        for _, x, y in points
    ]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in marks]
    for (name, x, y), (at_x, at_y) in zip(points, marks, strict=True):
        label = short(name)
        wide = 4.4 * len(label)
        choices = [
            (side, lift) for lift in (0, 10, -10, 20, -20, 30, -30) for side in (7, -7 - wide)
        ]

        def box(
            choice: tuple[float, float], x: float = at_x, y: float = at_y, wide: float = wide
        ) -> tuple[float, float, float, float]:
            return x + choice[0], y + choice[1] - 5, x + choice[0] + wide, y + choice[1] + 5

        def cost(
            choice: tuple[float, float], box: Callable[..., tuple[float, float, float, float]] = box
        ) -> float:
            a = box(choice)
            hits = sum(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for b in taken)
            return (
                10 * hits
                + 20 * (a[0] < 0 or a[2] > width or a[1] < 0 or a[3] > height)
                + abs(choice[1]) / 10
            )

        best = min(choices, key=cost)
        taken.append(box(best))
        axes.annotate(
            label, (x, y), best, textcoords="offset points", va="center", fontsize=8, zorder=4,
            arrowprops={"arrowstyle": "-", "color": EDGE, "linewidth": 0.6, "shrinkB": 3} if best[1] else None,
        )  # fmt: skip


def label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def in_legend(name: str) -> str:
    """matplotlib leaves out of a legend what begins with an underscore."""
    return f" {short(name)}" if name.startswith("_") else short(name)


def legend_below(figure: Figure, count: int) -> None:
    """Below the picture, where it covers no point."""
    figure.set_figheight(SIZE[1] + 0.17 * -(-count // 3))
    figure.legend(loc="outside lower center", ncols=3)

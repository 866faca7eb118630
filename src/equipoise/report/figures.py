"""The figures of a report, for the page (SVG) and for a paper (PNG, PDF): one way of drawing for both.

matplotlib and not plotly: the page then holds pictures of some ten kilobytes in place of a script of four megabytes, opens at once on a
phone, prints, and the same function makes the figure of a paper. Texts in the SVG stay texts.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from equipoise.metrics import Metric
from equipoise.report.curves import Curves

# Okabe and Ito's colours, which readers with any colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GAIN, LOSS, ALONE = "#00785A", "#B4401C", "#6b6b6b"
SINGLE_LINES = 20  # up to this many clients each has a line of its own; above, percentiles
NAMED_ROWS = 30  # up to this many rows of a heat map carry the client's name
MANY_POINTS = 300  # above, points are drawn as an image inside the picture
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e4e4e4", "axes.axisbelow": True,
    "axes.edgecolor": "#777777", "legend.frameon": False, "legend.fontsize": 8, "svg.fonttype": "none", "svg.hashsalt": "equipoise",
    "text.parse_math": False, "text.usetex": False,  # a client may be called $x^2$
    "pdf.fonttype": 42, "figure.dpi": 100, "savefig.dpi": 200,
}  # fmt: skip
SIZE = (4.6, 3.3)


def new(height: float = SIZE[1]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(SIZE[0], height), layout="constrained")
    return figure, figure.add_subplot()


def encoded(draw: Callable[[], Figure], kind: str) -> bytes:
    """The file of a figure; the same figure always gives the same bytes."""
    out = io.BytesIO()
    with rc_context(STYLE):
        draw().savefig(out, format=kind, metadata={"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind))
    return out.getvalue()


def data_uri(draw: Callable[[], Figure]) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(encoded(draw, "svg")).decode()


def learning(curves: Curves, alone: Curves | None, metric: Metric) -> Figure:
    """Mean over clients by round, every client where they are few, else the span of the middle 80 %."""
    figure, axes = new()
    values = curves.values * metric.scale
    if len(curves.clients) <= SINGLE_LINES:
        axes.plot(curves.rounds, values.T, color=COLOURS[5], linewidth=0.7, alpha=0.7)
        axes.plot([], [], color=COLOURS[5], linewidth=0.7, label="each client")
    else:
        low, high = np.nanpercentile(values, [10, 90], axis=0)
        axes.fill_between(curves.rounds, low, high, color=COLOURS[5], alpha=0.35, linewidth=0, label="middle 80 % of the clients")
    axes.plot(
        curves.rounds,
        curves.mean * metric.scale,
        color=COLOURS[0],
        linewidth=2,
        label="mean",
        marker="o" if len(curves.rounds) == 1 else None,
    )
    if alone is not None:
        axes.plot(alone.rounds, alone.mean * metric.scale, color=ALONE, linewidth=1.6, linestyle="--", label="mean of training alone")
    _label(axes, "round", metric.title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best")
    return figure


def learning_by_method(curves: Mapping[str, Sequence[Curves]], metric: Metric) -> Figure:
    """Mean over clients by round for every method; the band spans the seeds."""
    figure, axes = new()
    for place, (method, seeds) in enumerate(curves.items()):
        rounds = seeds[0].rounds
        means = np.stack([one.mean for one in seeds if one.rounds == rounds]) * metric.scale
        style = ("-", "--", "-.", ":")[place // len(COLOURS) % 4]
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(
            rounds, means.mean(0), style, color=colour, label=_in_legend(method), linewidth=1.6, marker="o" if len(rounds) == 1 else None
        )
        if len(means) > 1:
            axes.fill_between(rounds, means.min(0), means.max(0), color=colour, alpha=0.12, linewidth=0)
    _label(axes, "round", f"mean {metric.title}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, len(curves))
    return figure


def alone_against_together(alone: np.ndarray, together: np.ndarray, metric: Metric) -> Figure:
    """One point per client: above the diagonal it gains (below it, for errors)."""
    figure, axes = new()
    finite = np.isfinite(alone) & np.isfinite(together)
    a, t = alone[finite] * metric.scale, together[finite] * metric.scale
    gains = t < a if metric.lower_is_better else t > a
    for chosen, colour, marker, label in (
        (gains, GAIN, "o", "gains"),
        (~gains & (a != t), LOSS, "v", "loses"),
        (a == t, ALONE, "s", "equal"),
    ):
        if chosen.any():
            points = axes.scatter(
                a[chosen], t[chosen], s=26, color=colour, marker=marker, label=f"{label} ({chosen.sum()})", alpha=0.8, linewidths=0
            )
            points.set_rasterized(len(a) > MANY_POINTS)
    low, high = float(min(a.min(), t.min())), float(max(a.max(), t.max()))
    axes.axline((low, low), slope=1, color=ALONE, linewidth=1)
    margin = 0.05 * (high - low) or 1.0
    axes.set(xlim=(low - margin, high + margin), ylim=(low - margin, high + margin))
    _label(axes, f"alone: {metric.title}", f"together: {metric.title}")
    axes.legend(loc="best")
    return figure


def gains_by_method(gains: Mapping[str, np.ndarray], metric: Metric) -> Figure:
    """Every client's gain or loss, a row per method."""
    figure, axes = new(max(2.0, 0.9 + 0.36 * len(gains)))
    for place, values in enumerate(gains.values()):
        scaled = values * metric.scale
        spread = 0.26 * np.linspace(-1, 1, len(scaled)) if len(scaled) > 1 else np.zeros(1)
        colours = np.where(scaled < 0, LOSS, np.where(scaled > 0, GAIN, ALONE))
        points = axes.scatter(scaled, place + spread, s=12, c=colours, alpha=0.6, linewidths=0)
        points.set_rasterized(len(scaled) > MANY_POINTS)
        axes.plot([scaled.mean()] * 2, [place - 0.38, place + 0.38], color="black", linewidth=2)
    axes.axvline(0, color=ALONE, linewidth=1)
    axes.set_yticks(range(len(gains)), list(gains))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    _label(axes, f"gain over training alone ({metric.of_changes}); bar: mean", "")
    return figure


def plane(points: Mapping[str, Sequence[tuple[float, float]]], metric: Metric, path: Curves | None = None) -> Figure:
    """Average against standard deviation over clients: a method is a mark, its seeds are faint, `path` is the way there over rounds."""
    figure, axes = new()
    if path is not None and len(path.rounds) > 1:
        axes.plot(
            np.nanstd(path.values, axis=0) * metric.scale, path.mean * metric.scale, color=COLOURS[5], linewidth=1, label="over rounds"
        )
    for place, (method, found) in enumerate(points.items()):
        average, std = np.array(found).T * metric.scale
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        if len(found) > 1:
            axes.scatter(std, average, s=14, color=colour, marker=marker, alpha=0.35, linewidths=0)
        axes.scatter([std.mean()], [average.mean()], s=60, color=colour, marker=marker, label=_in_legend(method), zorder=3)
    _label(
        axes, f"standard deviation over clients{' (points)' if metric.unit == '%' else ''}: lower is more even", f"average {metric.title}"
    )
    _legend(figure, len(points) + (path is not None))
    return figure


def heat_map(curves: Curves, metric: Metric) -> Figure:
    """Every client in every measured round, clients sorted by where they ended."""
    order = np.argsort(np.nan_to_num(curves.values[:, -1], nan=-np.inf), kind="stable")[::-1]
    return _image(curves, order, metric.scale, metric.title, "viridis")


def weights(curves: Curves) -> Figure:
    """The share of the aggregate given to each client: stacked where clients are few, else a heat map."""
    if len(curves.clients) > len(COLOURS) + 4:
        order = np.argsort(curves.values.mean(1), kind="stable")[::-1]
        return _image(curves, order, 100.0, "weight in %", "cividis")
    figure, axes = new()
    shades = [*COLOURS, *(f"{0.35 + 0.15 * place:.2f}" for place in range(4))]
    rounds = curves.rounds if len(curves.rounds) > 1 else [curves.rounds[0], curves.rounds[0] + 1]
    shares = np.repeat(curves.values, 2, axis=1) if len(curves.rounds) == 1 else curves.values
    axes.stackplot(rounds, shares * 100, labels=list(map(_in_legend, curves.clients)), colors=shades, linewidth=0.3, edgecolor="white")
    axes.set(xlim=(rounds[0], rounds[-1]), ylim=(0, 100))
    _label(axes, "round", "weight in %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], names[::-1], loc="outside right upper", title="client", fontsize=7, title_fontsize=8)
    return figure


def _image(curves: Curves, order: np.ndarray, factor: float, name: str, colours: str) -> Figure:
    count = len(order)
    figure, axes = new(float(np.clip(1.2 + 0.14 * count, 2.2, 4.6)))
    first, last = curves.rounds[0] - 0.5, curves.rounds[-1] + 0.5
    picture = axes.imshow(
        curves.values[order] * factor, aspect="auto", cmap=colours, interpolation="nearest", extent=(first, last, count - 0.5, -0.5)
    )
    axes.grid(visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if count <= NAMED_ROWS:
        axes.set_yticks(range(count), [curves.clients[place] for place in order], fontsize=7)
    _label(axes, "round", "client" if count <= NAMED_ROWS else f"{count:,} clients, sorted")
    figure.colorbar(picture, ax=axes, label=name, fraction=0.06)
    return figure


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _in_legend(name: str) -> str:
    """matplotlib leaves out of a legend what begins with an underscore."""
    return f" {name}" if name.startswith("_") else name


def _legend(figure: Figure, count: int) -> None:
    """Below the picture, where it covers no point."""
    figure.set_figheight(SIZE[1] + 0.17 * -(-count // 3))
    figure.legend(loc="outside lower center", ncols=3)

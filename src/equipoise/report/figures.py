"""The drawing of each figure, the same for the page (SVG) and for a paper (PNG, PDF)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from equipoise.metrics import Metric
from equipoise.report.drawing import (
    ALONE,
    COLOURS,
    DARK,
    EDGE,
    FAINT,
    GAIN,
    IN_IMAGES,
    LOSS,
    MARKERS,
    PAPER,
    apart,
    in_legend,
    label,
    legend_below,
    name_ends,
    name_points,
    new,
    short,
)
from equipoise.runs.curves import History

SINGLE_LINES = 20  # up to this many clients each has a line of its own; above, percentiles
NAMED_ROWS = 30  # up to this many clients each has a row with its name
NAMED_POINTS = 10  # up to this many methods each point carries its name; above, a legend
MANY_POINTS = 300  # above, points are drawn as an image inside the picture
PANELS_IN_A_ROW = 3
MOST_STACKED = len(COLOURS) + 4  # up to this many clients weights are stacked
Point = tuple[float, float]  # average and standard deviation
End = tuple[str, float, float, str]  # name, x, y and colour of the end of a line

# verdict -> colour and marker
VERDICTS = {"gains": (GAIN, "o"), "loses": (LOSS, "v"), "equal": (ALONE, "s")}


def learning(history: History, alone: History | None, metric: Metric) -> Figure:
    """Draw the mean over clients by round.

    Few clients have a line each, with their names. Of many, a band spans the middle 80 %, and the
    two that ended lowest and highest have a line.

    Args:
        history: The values of the run.
        alone: The values of training alone, if they are known.
        metric: The metric of the values.
    """
    figure, axes = new()
    if len(history.clients) <= SINGLE_LINES:
        ends = _client_lines(axes, history, metric)
    else:
        ends = _client_band(axes, history, metric)
    single = "o" if len(history.rounds) == 1 else None
    mean = history.mean * metric.scale
    axes.plot(history.rounds, mean, color=DARK, linewidth=2.4, label="mean", marker=single)
    if alone is not None:
        axes.plot(
            alone.rounds,
            alone.mean * metric.scale,
            color=ALONE,
            linewidth=2,
            linestyle=(0, (4, 2)),
            label="mean of training alone",
            marker=single,
        )
    _label_rounds(axes, history, metric.title)
    name_ends(axes, ends)
    legend_below(figure, 3)
    return figure


def _client_lines(axes: Axes, history: History, metric: Metric) -> list[End]:
    """Draw a line for every client; return the ends of the lines."""
    rounds = history.rounds
    values = history.values * metric.scale
    ends: list[End] = []
    for position, (client, row) in enumerate(zip(history.clients, values, strict=True)):
        style = apart(position, len(rounds)) | {"linewidth": 0.9, "markersize": 3, "alpha": 0.85}
        axes.plot(rounds, row, **style)
        ends.append((client, rounds[-1], float(row[-1]), COLOURS[position % len(COLOURS)]))
    return ends


def _client_band(axes: Axes, history: History, metric: Metric) -> list[End]:
    """Draw a band and the extreme clients; return the ends of the lines."""
    rounds = history.rounds
    values = history.values * metric.scale
    low, high = np.nanpercentile(values, [10, 90], axis=0)
    title = "middle 80 % of the clients"
    axes.fill_between(rounds, low, high, color=FAINT, alpha=0.3, linewidth=0, label=title)
    last = values[:, -1]
    ended = np.nan_to_num(last, nan=float(np.nanmean(last)))
    ends: list[End] = []
    for word, row in (("lowest", int(ended.argmin())), ("highest", int(ended.argmax()))):
        axes.plot(rounds, values[row], color=FAINT, linewidth=1, linestyle="--")
        name = f"{word}: {short(history.clients[row])}"
        ends.append((name, rounds[-1], float(last[row]), FAINT))
    return ends


def _label_rounds(axes: Axes, history: History, title: str) -> None:
    x = "round; the last point is the final phase" if history.final_phase else "round"
    label(axes, x, title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def learning_by_method(histories: Mapping[str, Sequence[History]], metric: Metric) -> Figure:
    """Draw the mean over clients by round for every method; a band spans the seeds.

    Args:
        histories: Method -> values of each seed.
        metric: The metric of the values.
    """
    figure, axes = new(max(3.3, 1.0 + 0.17 * len(histories)))
    ends = []
    for position, (method, seeds) in enumerate(histories.items()):
        rounds = seeds[0].rounds
        means = np.stack([seed.mean for seed in seeds if seed.rounds == rounds]) * metric.scale
        style = apart(position, len(rounds))
        # The first line is the widest, so that its rims show below a later line.
        axes.plot(rounds, means.mean(0), **style, linewidth=max(1.2, 3.2 - 0.5 * position))
        if len(means) > 1:
            low = means.min(0)
            high = means.max(0)
            axes.fill_between(rounds, low, high, color=style["color"], alpha=0.1, linewidth=0)
        ends.append((method, rounds[-1], float(means.mean(0)[-1]), style["color"]))
    label(axes, "round", f"mean {metric.title}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    name_ends(axes, ends)
    return figure


def sweep(
    lines: Mapping[str, Sequence[tuple[Any, float, float, float]]],
    key: str,
    title: str,
    scale: float = 1.0,
) -> Figure:
    """Draw a measure against the values of a setting, one line per method.

    Args:
        lines: Method -> value of the setting, mean, and the ends of its interval over seeds.
        key: The setting, on the horizontal axis.
        title: The measure, on the vertical axis.
        scale: Factor from the numbers to the unit of the axis.
    """
    figure, axes = new(max(3.3, 1.0 + 0.17 * len(lines)))
    values = list(dict.fromkeys(point[0] for line in lines.values() for point in line))
    numeric = all(isinstance(value, (int, float)) for value in values)
    ends = []
    for position, (method, line) in enumerate(lines.items()):
        x = [float(point[0]) if numeric else float(values.index(point[0])) for point in line]
        means, low, high = np.array([point[1:] for point in line]).T * scale
        style = apart(position, len(x)) | {"marker": MARKERS[position % len(MARKERS)]}
        axes.plot(x, means, **style)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.1, linewidth=0)
        ends.append((method, x[-1], float(means[-1]), style["color"]))
    axes.set_xticks([float(value) for value in values] if numeric else range(len(values)))
    axes.set_xticklabels([str(value) for value in values])
    label(axes, key, title)
    name_ends(axes, ends)
    return figure


@dataclass(frozen=True)
class Mark:
    """One row of a figure of numbers.

    Attributes:
        name: The row.
        value: Our number; NaN without one.
        half: Half of its interval; NaN without one.
        printed: The published number; NaN without one.
    """

    name: str
    value: float
    half: float
    printed: float


def numbers_by_row(panels: Mapping[str, Sequence[Mark]], title: str) -> Figure:
    """Draw numbers with intervals next to published ones, a panel per condition.

    Args:
        panels: Condition -> rows, the same in every panel.
        title: The measure, on the horizontal axis.
    """
    names = [mark.name for mark in next(iter(panels.values()))]
    columns = min(len(panels), PANELS_IN_A_ROW)
    lines = math.ceil(len(panels) / columns)
    height = lines * (0.75 + 0.21 * len(names)) + 0.4
    figure = Figure(figsize=(1.9 + 2.4 * columns, height), layout="constrained")
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (condition, marks) in zip(grid.flat, panels.items(), strict=False):
        _number_rows(axes, marks)
        axes.set_title(short(condition), fontsize=9)
        axes.set_xlabel(title)
    grid[0, 0].set_yticks(range(len(names)), list(map(short, names)), fontsize=8)
    grid[0, 0].set_ylim(len(names) - 0.4, -0.6)
    ours, printed = grid[0, 0].get_legend_handles_labels()
    figure.legend(ours, printed, loc="outside lower center", ncols=2)
    return figure


def _number_rows(axes: Axes, marks: Sequence[Mark]) -> None:
    rows = np.arange(len(marks))
    values = np.array([mark.value for mark in marks])
    halves = np.nan_to_num([mark.half for mark in marks])
    printed = np.array([mark.printed for mark in marks])
    style: dict[str, Any] = {"fmt": "o", "markersize": 4, "capsize": 2, "color": COLOURS[0]}
    axes.errorbar(values, rows, xerr=halves, label="ours", **style)
    if np.isfinite(printed).any():
        hollow: dict[str, Any] = {"facecolors": "none", "edgecolors": COLOURS[1]}
        axes.scatter(printed, rows, s=26, marker="D", label="paper", **hollow)
    axes.grid(visible=False, axis="y")


def values_of_clients(values: Mapping[str, np.ndarray], title: str) -> Figure:
    """Draw the value of every client, a row per method, with the mean as a bar.

    Args:
        values: Row -> values of its clients.
        title: The measure, on the horizontal axis.
    """
    figure, axes = new(max(2.0, 0.9 + 0.36 * len(values)))
    for row, own in enumerate(values.values()):
        offsets = 0.26 * np.linspace(-1, 1, len(own)) if len(own) > 1 else np.zeros(1)
        axes.scatter(own, row + offsets, s=14, color=COLOURS[0], alpha=0.7, linewidths=0)
        mean = float(own.mean())
        axes.plot([mean, mean], [row - 0.38, row + 0.38], color=DARK, linewidth=2)
    axes.set_yticks(range(len(values)), list(map(short, values)))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    label(axes, f"{title}; bar: mean", "")
    return figure


def contributions(
    names: Sequence[str], alone: np.ndarray, values: np.ndarray, title: str, metric: Metric
) -> Figure:
    """Draw the contribution of each client against what it reaches alone.

    Args:
        names: The clients.
        alone: Their values of training alone.
        values: Their contributions, as the method values them.
        title: The name of the contributions, such as "reputation".
        metric: The metric of training alone.
    """
    figure, axes = new()
    x = alone * metric.scale
    axes.scatter(x, values, s=26, color=COLOURS[0], linewidths=0)
    axes.margins(0.15)
    label(axes, f"alone: {metric.title}", title.replace("_", " "))
    if len(names) <= NAMED_POINTS:
        name_points(axes, list(zip(names, map(float, x), map(float, values), strict=True)))
    return figure


def _verdicts(alone: np.ndarray, together: np.ndarray, metric: Metric) -> list[str]:
    better = together < alone if metric.lower_is_better else together > alone
    verdicts = np.where(better, "gains", "loses")
    verdicts[alone == together] = "equal"
    return [str(verdict) for verdict in verdicts]


def alone_to_together(
    clients: Sequence[str],
    alone: np.ndarray,
    together: np.ndarray,
    metric: Metric,
    spans: Mapping[str, tuple[float, float]] | None = None,
) -> Figure:
    """Draw a row for every client, from its value alone to its value together.

    Very many clients are points in a plane instead.

    Args:
        clients: The names, in the order of the rows.
        alone: The values of training alone.
        together: The values of the run.
        metric: The metric of the values.
        spans: Client -> interval of its value together.
    """
    if len(clients) > NAMED_ROWS:
        return alone_against_together(alone, together, metric)
    figure, axes = new(max(1.6, 1.1 + 0.2 * len(clients)))
    verdicts = _verdicts(alone, together, metric)
    spans = spans or {}
    for row, client in enumerate(clients):
        colour, marker = VERDICTS[verdicts[row]]
        if client in spans:
            ends = [metric.scale * end for end in spans[client]]
            axes.plot(ends, [row, row], color=colour, alpha=0.7, **_INTERVAL)
        before = alone[row] * metric.scale
        after = together[row] * metric.scale
        way: dict[str, Any] = {"linewidth": 2.6, "alpha": 0.45, "solid_capstyle": "butt"}
        axes.plot([before, after], [row, row], color=colour, **way)
        axes.scatter([after], [row], s=30, color=colour, marker=marker, zorder=3)
        on_top = 2 if before == after else 4
        axes.scatter([before], [row], zorder=on_top, **_RING)
    _row_legend(figure, axes, verdicts, bool(spans))
    axes.set_yticks(range(len(clients)), list(map(short, clients)), fontsize=7.5)
    axes.set_ylim(len(clients) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    direction = ", lower is better" if metric.lower_is_better else ""
    label(axes, f"{metric.title}{direction}", "")
    return figure


_RING: dict[str, Any] = {"s": 24, "facecolors": PAPER, "edgecolors": ALONE}
_INTERVAL: dict[str, Any] = {"linewidth": 0.8, "marker": "|", "markersize": 5}


def _row_legend(figure: Figure, axes: Axes, verdicts: Sequence[str], spans: bool) -> None:
    axes.scatter([], [], label="alone", **_RING)
    for word, (colour, marker) in VERDICTS.items():
        count = verdicts.count(word)
        if count:
            axes.scatter([], [], s=30, color=colour, marker=marker, label=f"{word} ({count})")
    if spans:
        axes.plot([], [], color=EDGE, label="95 % interval", **_INTERVAL)
    figure.legend(loc="outside lower center", ncols=4, handletextpad=0.4, columnspacing=1.2)


def alone_against_together(alone: np.ndarray, together: np.ndarray, metric: Metric) -> Figure:
    """Draw a point for every client: above the diagonal it gains (below it, for errors).

    Args:
        alone: The values of training alone.
        together: The values of the run.
        metric: The metric of the values.
    """
    figure, axes = new()
    finite = np.isfinite(alone) & np.isfinite(together)
    x = alone[finite] * metric.scale
    y = together[finite] * metric.scale
    verdicts = np.array(_verdicts(x, y, metric))
    many = len(x) > MANY_POINTS
    for word, (colour, marker) in VERDICTS.items():
        chosen = verdicts == word
        if not chosen.any():
            continue
        points = axes.scatter(
            x[chosen],
            y[chosen],
            s=26,
            color=IN_IMAGES[colour] if many else colour,
            marker=marker,
            label=f"{word} ({chosen.sum()})",
            alpha=0.8,
            linewidths=0,
        )
        points.set_rasterized(many)
    low = float(min(x.min(), y.min()))
    high = float(max(x.max(), y.max()))
    axes.axline((low, low), slope=1, color=ALONE, linewidth=1)
    margin = 0.05 * (high - low) or 1.0
    axes.set(xlim=(low - margin, high + margin), ylim=(low - margin, high + margin))
    label(axes, f"alone: {metric.title}", f"together: {metric.title}")
    axes.legend(loc="best")
    return figure


def gains_by_method(gains: Mapping[str, np.ndarray], metric: Metric) -> Figure:
    """Draw the gain or loss of every client, a row per method, with the number of those who lose.

    Args:
        gains: Method -> gains of its clients.
        metric: The metric of the gains.
    """
    figure, axes = new(max(2.0, 0.9 + 0.36 * len(gains)))
    for row, values in enumerate(gains.values()):
        _gain_points(axes, row, values * metric.scale)
        mean = values.mean() * metric.scale
        axes.plot([mean, mean], [row - 0.38, row + 0.38], color=DARK, linewidth=2)
        axes.annotate(
            f"{(values < 0).sum():,} of {len(values):,} lose",
            (1.02, row),
            xycoords=axes.get_yaxis_transform(),
            va="center",
            fontsize=7.5,
            annotation_clip=False,
        )
    axes.axvline(0, color=ALONE, linewidth=1)
    axes.set_yticks(range(len(gains)), list(map(short, gains)))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    label(axes, f"gain over training alone ({metric.of_changes}) → better; bar: mean", "")
    return figure


def _gain_points(axes: Axes, row: int, gains: np.ndarray) -> None:
    """Draw the gains of a method as points that are spread over the height of a row."""
    offsets = 0.26 * np.linspace(-1, 1, len(gains)) if len(gains) > 1 else np.zeros(1)
    many = len(gains) > MANY_POINTS
    groups = {"loses": gains < 0, "gains": gains > 0, "equal": gains == 0}
    for word, chosen in groups.items():
        colour, marker = VERDICTS[word]
        points = axes.scatter(
            gains[chosen],
            (row + offsets)[chosen],
            s=13,
            color=IN_IMAGES[colour] if many else colour,
            marker=marker,
            alpha=0.7,
            linewidths=0,
        )
        points.set_rasterized(many)


def plane(
    points: Mapping[str, Sequence[Point]], metric: Metric, path: History | None = None
) -> Figure:
    """Draw average against standard deviation over clients.

    Args:
        points: Method -> a point for each seed; the mean is a mark, the seeds are faint.
        metric: The metric of the values.
        path: The values by round, for a line from the first round to the end.
    """
    figure, axes = new()
    names = []
    if path is not None and len(path.rounds) > 1:
        start = _draw_path(axes, path, metric)
        names.append((f"round {path.rounds[0]}", *start))
    marks = []
    for position, (method, seeds) in enumerate(points.items()):
        average, std = np.array(seeds).T * metric.scale
        style: dict[str, Any] = {
            "color": COLOURS[position % len(COLOURS)],
            "marker": MARKERS[position % len(MARKERS)],
        }
        if len(seeds) > 1:
            axes.scatter(std, average, s=14, alpha=0.35, linewidths=0, **style)
        # The first mark is the largest, so that its rim shows below a later one.
        size = max(30, 120 - 22 * position)
        x = float(std.mean())
        y = float(average.mean())
        axes.scatter([x], [y], s=size, label=in_legend(method), zorder=3, **style)
        marks.append((method, x, y))
    axes.margins(0.12)
    _label_plane(axes, metric)
    named = [point for point in (*marks, *names) if np.isfinite(point[1:]).all()]
    if len(named) <= NAMED_POINTS:
        name_points(axes, named)
    else:
        legend_below(figure, len(points))
    return figure


def _draw_path(axes: Axes, path: History, metric: Metric) -> tuple[float, float]:
    """Draw the way over rounds with arrows; return its first point."""
    x = np.nanstd(path.values, axis=0) * metric.scale
    y = path.mean * metric.scale
    axes.plot(x, y, color=FAINT, linewidth=1.2, marker=".", markersize=4)
    for start in {0, len(x) // 2} - {len(x) - 1}:
        axes.annotate(
            "",
            (x[start + 1], y[start + 1]),
            (x[start], y[start]),
            arrowprops={"arrowstyle": "-|>", "color": FAINT, "linewidth": 1.2},
        )
    return float(x[0]), float(y[0])


def _label_plane(axes: Axes, metric: Metric) -> None:
    # The label of the y axis is turned, so that its right end is up.
    up = "←" if metric.lower_is_better else "→"
    unit = " (points)" if metric.unit == "%" else ""
    label(
        axes,
        f"more even ← standard deviation over clients{unit}",
        f"average {metric.title} {up} better",
    )
    height, text, side = (0.97, "↖ better", "top")
    if metric.lower_is_better:
        height, text, side = (0.03, "better ↙", "bottom")
    style: dict[str, Any] = {"fontsize": 8, "color": GAIN, "weight": "bold"}
    axes.text(0.02, height, text, transform=axes.transAxes, va=side, **style)


def heat_map(history: History, metric: Metric) -> Figure:
    """Draw every client in every measured round; the client that ended best is on top.

    Args:
        history: The values of the run.
        metric: The metric of the values; better values are brighter.
    """
    ended = history.values[:, -1] * (-1 if metric.lower_is_better else 1)
    order = np.argsort(np.nan_to_num(ended, nan=-np.inf), kind="stable")[::-1]
    colours = "viridis_r" if metric.lower_is_better else "viridis"
    return _image(history, order, metric.scale, metric.title, colours)


def weights(history: History) -> Figure:
    """Draw the share of the aggregate of each client: stacked if they are few, else a heat map."""
    if len(history.clients) > MOST_STACKED:
        order = np.argsort(history.values.mean(1), kind="stable")[::-1]
        return _image(history, order, 100.0, "weight in %", "cividis", lowest=0.0)
    figure, axes = new()
    rounds = history.rounds
    shares = history.values
    if len(rounds) == 1:  # a single round is drawn as wide as one
        rounds = [rounds[0], rounds[0] + 1]
        shares = np.repeat(shares, 2, axis=1)
    greys = [f"{0.35 + 0.15 * position:.2f}" for position in range(4)]
    axes.stackplot(
        rounds,
        shares * 100,
        labels=list(map(in_legend, history.clients)),
        colors=[*COLOURS, *greys],
        linewidth=0.3,
        edgecolor=PAPER,
    )
    axes.set(xlim=(rounds[0], rounds[-1]), ylim=(0, 100))
    label(axes, "round", "weight in %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, names = axes.get_legend_handles_labels()
    figure.legend(
        handles[::-1],
        names[::-1],
        loc="outside right upper",
        title="client",
        fontsize=7,
        title_fontsize=8,
    )
    return figure


def _image(
    history: History,
    order: np.ndarray,
    scale: float,
    title: str,
    colours: str,
    lowest: float | None = None,
) -> Figure:
    """Draw the values of all clients as an image.

    Args:
        history: The values.
        order: The rows, from top to bottom.
        scale: Factor from a value to what is shown.
        title: The title of the colour bar.
        colours: The name of the colour map.
        lowest: The value at the lower end of the colours; by default the smallest one.
    """
    count = len(order)
    figure, axes = new(float(np.clip(1.2 + 0.14 * count, 2.2, 4.6)))
    first = history.rounds[0] - 0.5
    last = history.rounds[-1] + 0.5
    picture = axes.imshow(
        history.values[order] * scale,
        aspect="auto",
        cmap=colours,
        interpolation="nearest",
        extent=(first, last, count - 0.5, -0.5),
        vmin=lowest,
    )
    axes.grid(visible=False)
    y = f"{count:,} clients, sorted"
    if count <= NAMED_ROWS:
        y = "client"
        axes.set_yticks(range(count), [short(history.clients[row]) for row in order], fontsize=7)
    label(axes, "round", y)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(picture, ax=axes, label=title, fraction=0.06)
    return figure

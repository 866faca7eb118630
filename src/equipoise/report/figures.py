"""The drawing of each figure, the same for the page (SVG) and for a paper (PNG, PDF)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from equipoise.metrics import Metric
from equipoise.report.cards import points as difference
from equipoise.report.cards import written
from equipoise.report.drawing import (
    ALONE,
    COLOURS,
    DARK,
    EDGE,
    FAINT,
    GAIN,
    IN_IMAGES,
    LOSS,
    PAPER,
    STATIC_LEGEND,
    Chart,
    apart,
    in_legend,
    label,
    least_range,
    legend_below,
    mark_of,
    name_ends,
    name_points,
    new,
    short,
    widen,
)
from equipoise.report.wording import title_of, unit_of_changes
from equipoise.runs.curves import History

SINGLE_LINES = 20  # up to this many clients each has a line of its own; above, percentiles
NAMED_ROWS = 30  # up to this many clients each has a row with its name
NAMED_POINTS = 10  # up to this many methods each point carries its name; above, a legend
MANY_POINTS = 300  # above, points are drawn as an image inside the picture
PANELS_IN_A_ROW = 3
MOST_WAY_POINTS = 8  # rounds that the line of a plane connects
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
        ends = _client_lines(figure, axes, history, metric)
    else:
        ends = _client_band(axes, history, metric)
    _mean_line(figure, axes, history, metric, "mean", {"color": DARK, "linewidth": 2.4})
    if alone is not None:
        style = {"color": ALONE, "linewidth": 2, "linestyle": (0, (4, 2))}
        _mean_line(figure, axes, alone, metric, "mean of training alone", style)
    _label_rounds(axes, history, title_of(metric))
    widen(axes, least_range(metric, history.values * metric.scale))
    name_ends(axes, ends)
    legend_below(figure, 3)
    return figure


def _mean_line(
    figure: Chart, axes: Axes, history: History, metric: Metric, name: str, style: dict[str, Any]
) -> None:
    marker = "o" if len(history.rounds) == 1 else None
    mean = history.mean * metric.scale
    (line,) = axes.plot(history.rounds, mean, label=name, marker=marker, **style)
    _add_line(figure, axes, name, line, history.rounds, history.mean, metric)


def _add_line(
    figure: Chart,
    axes: Axes,
    name: str,
    line: Line2D,
    rounds: Sequence[int],
    values: np.ndarray,
    metric: Metric,
) -> None:
    """Let a reader hide a line of values by round, and point at its values."""
    figure.add_series(name, str(line.get_color()), line, marker=str(line.get_marker()))
    texts = []
    for number, value in zip(rounds, values, strict=True):
        texts.append(f"{name}, round {number}: {written(float(value), metric)}")
    figure.add_spots(axes, rounds, values * metric.scale, texts, name)


def _client_lines(figure: Chart, axes: Axes, history: History, metric: Metric) -> list[End]:
    """Draw a line for every client; return the ends of the lines."""
    rounds = history.rounds
    ends: list[End] = []
    for position, (client, row) in enumerate(zip(history.clients, history.values, strict=True)):
        style = apart(position, len(rounds)) | {"linewidth": 0.9, "markersize": 3, "alpha": 0.85}
        (line,) = axes.plot(rounds, row * metric.scale, **style)
        _add_line(figure, axes, client, line, rounds, row, metric)
        last = float(row[-1]) * metric.scale
        ends.append((client, rounds[-1], last, COLOURS[position % len(COLOURS)]))
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


def learning_by_method(
    histories: Mapping[str, Sequence[History]], metric: Metric, measure: str = "mean"
) -> Figure:
    """Draw the mean over clients, or their spread, by round; a band spans the seeds.

    Args:
        histories: Method -> curve of each seed.
        metric: The metric of the values.
        measure: The name of the values before that of the metric, on the vertical axis.
    """
    figure, axes = new(max(3.3, 1.0 + 0.17 * len(histories)))
    ends = []
    shown = []
    for position, (method, seeds) in enumerate(histories.items()):
        rounds = seeds[0].rounds
        means = np.stack([seed.mean for seed in seeds if seed.rounds == rounds])
        mean = means.mean(0)
        style = apart(position, len(rounds))
        # The first line is the widest, so that its rims show below a later line.
        width = max(1.2, 3.2 - 0.5 * position)
        (line,) = axes.plot(rounds, mean * metric.scale, **style, linewidth=width)
        _add_line(figure, axes, method, line, rounds, mean, metric)
        if len(means) > 1:
            low, high = means.min(0) * metric.scale, means.max(0) * metric.scale
            band = axes.fill_between(
                rounds, low, high, color=style["color"], alpha=0.1, linewidth=0
            )
            figure.add_series(method, style["color"], band)
        shown.append(mean * metric.scale)
        ends.append((method, rounds[-1], float(shown[-1][-1]), style["color"]))
    label(axes, "round", f"{measure} {title_of(metric)}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    widen(axes, least_range(metric, np.concatenate(shown)))
    name_ends(axes, ends)
    return figure


def sweep(
    lines: Mapping[str, Sequence[tuple[Any, float, float, float]]],
    key: str,
    title: str,
    scale: float = 1.0,
    least: float = 0.0,
) -> Figure:
    """Draw a measure against the values of a setting, one line per method.

    Args:
        lines: Method -> value of the setting, mean, and the ends of its interval over seeds.
        key: The setting, on the horizontal axis.
        title: The measure, on the vertical axis.
        scale: Factor from the numbers to the unit of the axis.
        least: The smallest range of the vertical axis.
    """
    figure, axes = new(max(3.3, 1.0 + 0.17 * len(lines)))
    values = list(dict.fromkeys(point[0] for line in lines.values() for point in line))
    numeric = all(isinstance(value, (int, float)) for value in values)
    ends = []
    for position, (method, line) in enumerate(lines.items()):
        x = [float(point[0]) if numeric else float(values.index(point[0])) for point in line]
        means, low, high = np.array([point[1:] for point in line]).T * scale
        style = apart(position, len(x))
        (drawn,) = axes.plot(x, means, **style)
        band = axes.fill_between(x, low, high, color=style["color"], alpha=0.1, linewidth=0)
        figure.add_series(method, style["color"], drawn, band, marker=style["marker"])
        texts = [
            f"{method}, {key}={point[0]}: {mean:.4g}"
            for point, mean in zip(line, means, strict=True)
        ]
        figure.add_spots(axes, x, means, texts, method)
        ends.append((method, x[-1], float(means[-1]), style["color"]))
    axes.set_xticks([float(value) for value in values] if numeric else range(len(values)))
    axes.set_xticklabels([str(value) for value in values])
    label(axes, key, title)
    widen(axes, least)
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
    texts = []
    for name, value, contribution in zip(names, alone, values, strict=True):
        texts.append(f"{name}: {contribution:.4g}, alone {written(float(value), metric)}")
    figure.add_spots(axes, x, values, texts)
    label(axes, f"alone: {title_of(metric)}", title.replace("_", " "))
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
        return alone_against_together(alone, together, metric, clients)
    figure, axes = new(max(2.6, 1.1 + 0.2 * len(clients)))
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
        text = (
            f"{client}: {written(float(together[row]), metric)} together, "
            f"{written(float(alone[row]), metric)} alone"
        )
        figure.add_spots(axes, [after], [row], [text])
    widen(axes, least_range(metric, [*alone * metric.scale, *together * metric.scale]), "x")
    _row_legend(figure, axes, verdicts, bool(spans))
    axes.set_yticks(range(len(clients)), list(map(short, clients)), fontsize=7.5)
    axes.set_ylim(len(clients) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    direction = ", lower is better" if metric.lower_is_better else ""
    label(axes, f"{title_of(metric)}{direction}", "")
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


def alone_against_together(
    alone: np.ndarray, together: np.ndarray, metric: Metric, clients: Sequence[str] = ()
) -> Figure:
    """Draw a point for every client: above the diagonal it gains (below it, for errors).

    Args:
        alone: The values of training alone.
        together: The values of the run.
        metric: The metric of the values.
        clients: The names of the clients, if a reader can point at them.
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
    for direction in "xy":
        widen(axes, least_range(metric, [low, high]), direction)
    names = np.asarray(clients if clients else [""] * len(alone))[finite]
    texts = []
    for name, before, after in zip(names, alone[finite], together[finite], strict=True):
        values = f"{written(float(after), metric)} together, {written(float(before), metric)} alone"
        texts.append(f"{name}: {values}" if name else values)
    figure.add_spots(axes, x, y, texts)
    label(axes, f"alone: {title_of(metric)}", f"together: {title_of(metric)}")
    axes.legend(loc="best")
    return figure


@dataclass(frozen=True)
class ClientGain:
    """The gain of one client in one run; `run` names the seed if there are several."""

    client: str
    gain: float
    run: str = ""

    @property
    def name(self) -> str:
        """The client, with its run if there are several."""
        return f"{self.client}, {self.run}" if self.run else self.client


Gains = Mapping[str, Sequence[ClientGain]]  # by method


def gains_by_method(gains: Gains, metric: Metric, methods: Sequence[str] = ()) -> Figure:
    """Draw the gain or loss of every client with every method.

    A few clients have a row each, with their names, and a mark for every method. Of many clients,
    or of several seeds, every method has a row with a point for each client; those who lose and
    gain most are named.

    Args:
        gains: Method -> gains of its clients.
        metric: The metric of the gains.
        methods: All methods in the order of the other figures, in which a method has the same
            colour; by default those with gains.
    """
    names = {gain.name for own in gains.values() for gain in own}
    several_seeds = any(gain.run for own in gains.values() for gain in own)
    if len(names) <= NAMED_ROWS and not several_seeds:
        return _gains_by_client(gains, metric, methods or list(gains))
    return _gains_in_rows(gains, metric)


def _gains_by_client(gains: Gains, metric: Metric, methods: Sequence[str]) -> Figure:
    """Draw a row for every client, the most harmed first, with a mark for every method."""
    lowest: dict[str, float] = {}
    for own in gains.values():
        for gain in own:
            lowest[gain.client] = min(gain.gain, lowest.get(gain.client, math.inf))
    clients = sorted(lowest, key=lambda client: lowest[client])
    row_of = {client: row for row, client in enumerate(clients)}
    figure, axes = new(max(3.3, 1.2 + 0.22 * len(clients)))
    height = 0.5 / max(1, len(gains))
    for position, (method, own) in enumerate(gains.items()):
        # Marks of several methods stand above each other, so that equal ones are visible.
        shift = height * (position - (len(gains) - 1) / 2)
        rows = np.array([row_of[gain.client] for gain in own]) + shift
        values = np.array([gain.gain for gain in own]) * metric.scale
        style = mark_of(methods.index(method))
        marks = axes.scatter(
            values, rows, s=22, linewidths=0, label=in_legend(method), zorder=3, **style
        )
        figure.add_series(method, style["color"], marks, marker=style["marker"])
        figure.add_spots(axes, values, rows, _gain_texts(method, own, metric), method)
    axes.set_yticks(range(len(clients)), list(map(short, clients)), fontsize=7.5)
    axes.set_ylim(len(clients) - 0.4, -0.6)
    _finish_gains(axes, metric, "")
    legend = figure.legend(loc="outside lower center", ncols=3, handletextpad=0.2)
    legend.set_gid(STATIC_LEGEND)
    return figure


def _gain_texts(method: str, gains: Sequence[ClientGain], metric: Metric) -> list[str]:
    texts = []
    for gain in gains:
        sign = "+" if gain.gain > 0 else ""
        texts.append(f"{method}, {gain.name}: {sign}{difference(gain.gain, metric)}")
    return texts


def _finish_gains(axes: Axes, metric: Metric, remark: str) -> None:
    """Draw the line of no gain, and label the axis."""
    axes.axvline(0, color=ALONE, linewidth=1)
    axes.grid(visible=False, axis="y")
    # An error has no scale of its own: then the gains themselves fill the axis.
    widen(axes, least_range(metric, [0.0]), "x")
    label(axes, f"gain over training alone ({unit_of_changes(metric)}) → better{remark}", "")


def _gains_in_rows(gains: Gains, metric: Metric) -> Figure:
    """Draw a row for every method, with a point for each client and a bar at the mean."""
    figure, axes = new(max(3.3, 0.9 + 0.6 * len(gains)))
    for row, (method, own) in enumerate(gains.items()):
        ordered = sorted(own, key=lambda gain: gain.gain)
        values = np.array([gain.gain for gain in ordered]) * metric.scale
        heights = row + _offsets(len(ordered))
        _gain_points(axes, heights, values)
        figure.add_spots(axes, values, heights, _gain_texts(method, ordered, metric))
        mean = float(values.mean())
        axes.plot([mean, mean], [row - 0.38, row + 0.38], color=DARK, linewidth=2)
        _name_extremes(axes, ordered, values, heights)
        axes.annotate(
            f"{(values < 0).sum():,} of {len(values):,} lose",
            (1.02, row),
            xycoords=axes.get_yaxis_transform(),
            va="center",
            fontsize=7.5,
            annotation_clip=False,
        )
    axes.set_yticks(range(len(gains)), list(map(short, gains)))
    axes.invert_yaxis()
    axes.margins(x=0.12)
    _finish_gains(axes, metric, "; bar: mean")
    return figure


def _offsets(count: int) -> np.ndarray:
    """Return how far points of a row stand above and below it."""
    return 0.3 * np.linspace(-1, 1, count) if count > 1 else np.zeros(1)


def _name_extremes(
    axes: Axes, gains: Sequence[ClientGain], values: np.ndarray, heights: np.ndarray
) -> None:
    """Write the names of the clients that lose most and gain most next to their points."""
    ends = {0: ("right", -4)}
    if len(gains) > 1:
        ends[len(gains) - 1] = ("left", 4)
    for position, (side, offset) in ends.items():
        axes.annotate(
            short(gains[position].name),
            (values[position], heights[position]),
            (offset, 0),
            textcoords="offset points",
            ha=side,
            va="center",
            fontsize=7,
        )


def _gain_points(axes: Axes, heights: np.ndarray, gains: np.ndarray) -> None:
    """Draw the gains of a method as points, with colour and shape of gains and losses."""
    many = len(gains) > MANY_POINTS
    groups = {"loses": gains < 0, "gains": gains > 0, "equal": gains == 0}
    for word, chosen in groups.items():
        colour, marker = VERDICTS[word]
        points = axes.scatter(
            gains[chosen],
            heights[chosen],
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
        names = _draw_path(figure, axes, path, metric)
    marks = []
    for position, (method, seeds) in enumerate(points.items()):
        average, std = np.array(seeds).T * metric.scale
        style = mark_of(position)
        if len(seeds) > 1:
            faint = axes.scatter(std, average, s=14, alpha=0.35, linewidths=0, **style)
            figure.add_series(method, style["color"], faint, marker=style["marker"])
        # The first mark is the largest, so that its rim shows below a later one.
        size = max(30, 120 - 22 * position)
        x = float(std.mean())
        y = float(average.mean())
        mark = axes.scatter([x], [y], s=size, label=in_legend(method), zorder=3, **style)
        figure.add_series(method, style["color"], mark, marker=style["marker"])
        text = _plane_text(method, y / metric.scale, x / metric.scale, metric)
        figure.add_spots(axes, [x], [y], [text], method)
        marks.append((method, x, y))
    axes.margins(0.12)
    widen(axes, least_range(metric, [y for _, _, y in marks]), "y")
    widen(axes, least_range(metric, [y for _, _, y in marks]), "x")
    _label_plane(axes, metric)
    named = [point for point in (*marks, *names) if np.isfinite(point[1:]).all()]
    if len(named) <= NAMED_POINTS:
        name_points(axes, named)
    else:
        legend_below(figure, len(points))
    return figure


def _plane_text(name: str, average: float, std: float, metric: Metric) -> str:
    return (
        f"{name}: average {written(average, metric)}, standard deviation {difference(std, metric)}"
    )


def _draw_path(
    figure: Chart, axes: Axes, path: History, metric: Metric
) -> list[tuple[str, float, float]]:
    """Draw the way over rounds with arrows; return the names of some rounds and their points.

    The line of many rounds would be a tangle. It then connects some of them, closer to each other
    at the start, where most happens; the others are faint points.
    """
    stds = np.nanstd(path.values, axis=0)
    x = stds * metric.scale
    y = path.mean * metric.scale
    chosen = _way_points(len(x))
    style: dict[str, Any] = {"color": FAINT, "linewidths": 0}
    axes.scatter(x, y, s=8, alpha=0.45, **style)
    axes.plot(x[chosen], y[chosen], color=FAINT, linewidth=1.2, marker=".", markersize=5)
    for start, end in itertools.pairwise(chosen):
        if start in (chosen[0], chosen[len(chosen) // 2]):
            axes.annotate(
                "",
                (x[end], y[end]),
                (x[start], y[start]),
                arrowprops={"arrowstyle": "-|>", "color": FAINT, "linewidth": 1.2},
            )
    texts = []
    for number, mean, std in zip(path.rounds, path.mean, stds, strict=True):
        texts.append(_plane_text(f"round {number}", float(mean), float(std), metric))
    figure.add_spots(axes, x, y, texts)
    named = [chosen[0]]
    if len(chosen) < len(x):
        named = [chosen[0], chosen[len(chosen) // 2]]
    return [(f"round {path.rounds[point]}", float(x[point]), float(y[point])) for point in named]


def _way_points(count: int) -> list[int]:
    """Return the positions that a line connects: all of a few, else some.

    >>> _way_points(4), _way_points(100)
    ([0, 1, 2, 3], [0, 1, 3, 6, 13, 26, 51, 99])
    """
    if count <= MOST_WAY_POINTS:
        return list(range(count))
    positions = np.geomspace(1, count, MOST_WAY_POINTS).round().astype(int) - 1
    return [int(position) for position in np.unique(positions)]


def _label_plane(axes: Axes, metric: Metric) -> None:
    # The label of the y axis is turned, so that its right end is up.
    up = "←" if metric.lower_is_better else "→"
    unit = " (points)" if metric.unit == "%" else ""
    label(
        axes,
        f"more even ← standard deviation over clients{unit}",
        f"average {title_of(metric)} {up} better",
    )
    # Above the picture, where it covers no name of a point.
    text = "better ↙" if metric.lower_is_better else "↖ better"
    style: dict[str, Any] = {"fontsize": 8, "color": GAIN, "weight": "bold"}
    axes.text(0.0, 1.01, text, transform=axes.transAxes, va="bottom", **style)


def heat_map(history: History, metric: Metric) -> Figure:
    """Draw every client in every measured round; the client that ended best is on top.

    Args:
        history: The values of the run.
        metric: The metric of the values; better values are brighter.
    """
    ended = history.values[:, -1] * (-1 if metric.lower_is_better else 1)
    order = np.argsort(np.nan_to_num(ended, nan=-np.inf), kind="stable")[::-1]
    colours = "viridis_r" if metric.lower_is_better else "viridis"
    shown = history.values * metric.scale
    least = least_range(metric, shown)
    finite = shown[np.isfinite(shown)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    missing = max(0.0, least - (high - low)) / 2
    return _image(
        history,
        order,
        metric.scale,
        title_of(metric),
        colours,
        (low - missing, high + missing),
        lambda value: written(value, metric),
    )


def weights(history: History) -> Figure:
    """Draw the share of the aggregate of each client: stacked if they are few, else a heat map."""
    if len(history.clients) > MOST_STACKED:
        order = np.argsort(history.values.mean(1), kind="stable")[::-1]
        most = 100 * float(history.values.max())
        return _image(history, order, 100.0, "weight in %", "cividis", (0.0, most), _write_weight)
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
    middles = (np.cumsum(shares, axis=0) - shares / 2) * 100
    for client, middle, own in zip(history.clients, middles, shares, strict=True):
        texts = []
        for number, share in zip(rounds, own, strict=True):
            texts.append(f"{client}, round {number}: {_write_weight(float(share))}")
        figure.add_spots(axes, rounds, middle, texts)
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


def _write_weight(share: float) -> str:
    return f"{100 * share:.1f} %"


def _image(
    history: History,
    order: np.ndarray,
    scale: float,
    title: str,
    colours: str,
    limits: tuple[float, float],
    write: Callable[[float], str],
) -> Figure:
    """Draw the values of all clients as an image.

    Args:
        history: The values.
        order: The rows, from top to bottom.
        scale: Factor from a value to what is shown.
        title: The title of the colour bar.
        colours: The name of the colour map.
        limits: The values at the ends of the colours.
        write: Returns a value as text.
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
        vmin=limits[0],
        vmax=limits[1],
    )
    for row, source in enumerate(order):
        values = history.values[source]
        texts = []
        for number, value in zip(history.rounds, values, strict=True):
            texts.append(f"{history.clients[source]}, round {number}: {write(float(value))}")
        known = np.where(np.isfinite(values), float(row), np.nan)
        figure.add_spots(axes, history.rounds, known, texts)
    axes.grid(visible=False)
    y = f"{count:,} clients, sorted"
    if count <= NAMED_ROWS:
        y = "client"
        axes.set_yticks(range(count), [short(history.clients[row]) for row in order], fontsize=7)
    label(axes, "round", y)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(picture, ax=axes, label=title, fraction=0.06)
    return figure

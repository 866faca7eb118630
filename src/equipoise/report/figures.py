"""The figures of a report, for the page (SVG) and for a paper (PNG, PDF): one way of drawing for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from equipoise.metrics import Metric
from equipoise.report.curves import Curves
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

SINGLE_LINES = 20  # up to this many clients each has a line of its own; above, percentiles
NAMED_ROWS = 30  # up to this many clients each has a row with its name
NAMED_POINTS = 10  # up to this many methods each point carries its name; above, a legend
MANY_POINTS = 300  # above, points are drawn as an image inside the picture


def learning(curves: Curves, alone: Curves | None, metric: Metric) -> Figure:
    """Mean over clients by round; every client by name where they are few, else the span of the middle 80 % and the two who ended last and first."""
    figure, axes = new()
    values, mean = curves.values * metric.scale, curves.mean * metric.scale
    rounds, last = curves.rounds, len(curves.rounds) - 1
    ends = []
    if len(curves.clients) <= SINGLE_LINES:
        for place, (client, row) in enumerate(zip(curves.clients, values, strict=True)):
            axes.plot(
                rounds,
                row,
                **apart(place, len(rounds)) | {"linewidth": 0.9, "markersize": 3, "alpha": 0.85},
            )
            ends.append((client, rounds[-1], float(row[-1]), COLOURS[place % len(COLOURS)]))
    else:
        low, high = np.nanpercentile(values, [10, 90], axis=0)
        axes.fill_between(
            rounds,
            low,
            high,
            color=FAINT,
            alpha=0.3,
            linewidth=0,
            label="middle 80 % of the clients",
        )
        ended = np.nan_to_num(values[:, last], nan=float(np.nanmean(values[:, last])))
        for word, place in (("lowest", int(ended.argmin())), ("highest", int(ended.argmax()))):
            axes.plot(rounds, values[place], color=FAINT, linewidth=1, linestyle="--")
            ends.append(
                (
                    f"{word}: {short(curves.clients[place])}",
                    rounds[-1],
                    float(values[place, last]),
                    FAINT,
                )
            )
    single = "o" if len(rounds) == 1 else None
    axes.plot(rounds, mean, color=DARK, linewidth=2.4, label="mean", marker=single)
    if alone is not None:
        axes.plot(
            alone.rounds, alone.mean * metric.scale, color=ALONE, linewidth=2, linestyle=(0, (4, 2)), label="mean of training alone", marker=single
        )  # fmt: skip
    label(axes, "round", metric.title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    name_ends(axes, ends)
    legend_below(figure, 3)
    return figure


def learning_by_method(curves: Mapping[str, Sequence[Curves]], metric: Metric) -> Figure:
    """Mean over clients by round for every method, named at its end; the band spans the seeds."""
    figure, axes = new(max(3.3, 1.0 + 0.17 * len(curves)))
    ends = []
    for place, (method, seeds) in enumerate(curves.items()):
        rounds = seeds[0].rounds
        means = np.stack([one.mean for one in seeds if one.rounds == rounds]) * metric.scale
        look = apart(place, len(rounds))
        # The first is the widest, so that a later line on top of it leaves its rims.
        axes.plot(rounds, means.mean(0), **look, linewidth=max(1.2, 3.2 - 0.5 * place))
        if len(means) > 1:
            axes.fill_between(
                rounds, means.min(0), means.max(0), color=look["color"], alpha=0.1, linewidth=0
            )
        ends.append((method, rounds[-1], float(means.mean(0)[-1]), look["color"]))
    label(axes, "round", f"mean {metric.title}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    name_ends(axes, ends)
    return figure


def alone_to_together(
    clients: Sequence[str],
    alone: np.ndarray,
    together: np.ndarray,
    metric: Metric,
    spans: Mapping[str, tuple[float, float]] | None = None,
) -> Figure:
    """From what a client reaches alone to what it has together, a row each, in the given order; `spans`: client -> where together may be."""
    if len(clients) > NAMED_ROWS:
        return alone_against_together(alone, together, metric)
    figure, axes = new(max(1.6, 1.1 + 0.2 * len(clients)))
    a, t = alone * metric.scale, together * metric.scale
    better = t < a if metric.lower_is_better else t > a
    for place, client in enumerate(clients):
        colour = ALONE if a[place] == t[place] else GAIN if better[place] else LOSS
        if spans and client in spans:
            low, high = (metric.scale * end for end in spans[client])
            axes.plot(
                [low, high],
                [place, place],
                color=colour,
                linewidth=0.8,
                marker="|",
                markersize=5,
                alpha=0.7,
            )
        axes.plot(
            [a[place], t[place]],
            [place, place],
            color=colour,
            linewidth=2.6,
            alpha=0.45,
            solid_capstyle="butt",
        )
        axes.scatter(
            [t[place]],
            [place],
            s=30,
            color=colour,
            marker="o" if better[place] else "v" if a[place] != t[place] else "s",
            zorder=3,
        )
        axes.scatter(
            [a[place]],
            [place],
            s=24,
            facecolors=PAPER,
            edgecolors=ALONE,
            zorder=4 if a[place] != t[place] else 2,
        )
    axes.scatter([], [], s=24, facecolors=PAPER, edgecolors=ALONE, label="alone")
    for colour, marker, word, chosen in (
        (GAIN, "o", "gains", better),
        (LOSS, "v", "loses", ~better & (a != t)),
        (ALONE, "s", "equal", a == t),
    ):
        if chosen.any():
            axes.scatter(
                [], [], s=30, color=colour, marker=marker, label=f"{word} ({chosen.sum()})"
            )
    if spans:
        axes.plot(
            [], [], color=EDGE, linewidth=0.8, marker="|", markersize=5, label="95 % interval"
        )
    axes.set_yticks(range(len(clients)), list(map(short, clients)), fontsize=7.5)
    axes.set_ylim(len(clients) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    label(axes, f"{metric.title}{', lower is better' if metric.lower_is_better else ''}", "")
    figure.legend(loc="outside lower center", ncols=4, handletextpad=0.4, columnspacing=1.2)
    return figure


def alone_against_together(alone: np.ndarray, together: np.ndarray, metric: Metric) -> Figure:
    """One point per client: above the diagonal it gains (below it, for errors)."""
    figure, axes = new()
    finite = np.isfinite(alone) & np.isfinite(together)
    a, t = alone[finite] * metric.scale, together[finite] * metric.scale
    gains = t < a if metric.lower_is_better else t > a
    for chosen, colour, marker, word in (
        (gains, GAIN, "o", "gains"),
        (~gains & (a != t), LOSS, "v", "loses"),
        (a == t, ALONE, "s", "equal"),
    ):
        if chosen.any():
            colour = IN_IMAGES[colour] if len(a) > MANY_POINTS else colour
            points = axes.scatter(
                a[chosen],
                t[chosen],
                s=26,
                color=colour,
                marker=marker,
                label=f"{word} ({chosen.sum()})",
                alpha=0.8,
                linewidths=0,
            )
            points.set_rasterized(len(a) > MANY_POINTS)
    low, high = float(min(a.min(), t.min())), float(max(a.max(), t.max()))
    axes.axline((low, low), slope=1, color=ALONE, linewidth=1)
    margin = 0.05 * (high - low) or 1.0
    axes.set(xlim=(low - margin, high + margin), ylim=(low - margin, high + margin))
    label(axes, f"alone: {metric.title}", f"together: {metric.title}")
    axes.legend(loc="best")
    return figure


def gains_by_method(gains: Mapping[str, np.ndarray], metric: Metric) -> Figure:
    """Every client's gain or loss, a row per method, with the number of those who lose at its end."""
    figure, axes = new(max(2.0, 0.9 + 0.36 * len(gains)))
    for place, values in enumerate(gains.values()):
        scaled = values * metric.scale
        rows = 0.26 * np.linspace(-1, 1, len(scaled)) if len(scaled) > 1 else np.zeros(1)
        for chosen, colour, marker in (
            (scaled < 0, LOSS, "v"),
            (scaled > 0, GAIN, "o"),
            (scaled == 0, ALONE, "s"),
        ):
            colour = IN_IMAGES[colour] if len(scaled) > MANY_POINTS else colour
            points = axes.scatter(
                scaled[chosen],
                (place + rows)[chosen],
                s=13,
                color=colour,
                marker=marker,
                alpha=0.7,
                linewidths=0,
            )
            points.set_rasterized(len(scaled) > MANY_POINTS)
        axes.plot([scaled.mean()] * 2, [place - 0.38, place + 0.38], color=DARK, linewidth=2)
        count = f"{(values < 0).sum():,} of {len(values):,} lose"
        axes.annotate(
            count,
            (1.02, place),
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


def plane(
    points: Mapping[str, Sequence[tuple[float, float]]], metric: Metric, path: Curves | None = None
) -> Figure:
    """Average against standard deviation over clients: a method is a mark, its seeds are faint, `path` is the way there over rounds."""
    figure, axes = new()
    if path is not None and len(path.rounds) > 1:
        x, y = np.nanstd(path.values, axis=0) * metric.scale, path.mean * metric.scale
        axes.plot(x, y, color=FAINT, linewidth=1.2, marker=".", markersize=4)
        for start in {0, len(x) // 2} - {len(x) - 1}:  # which way it went
            axes.annotate(
                "",
                (x[start + 1], y[start + 1]),
                (x[start], y[start]),
                arrowprops={"arrowstyle": "-|>", "color": FAINT, "linewidth": 1.2},
            )
    named = []
    for place, (method, found) in enumerate(points.items()):
        average, std = np.array(found).T * metric.scale
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        if len(found) > 1:
            axes.scatter(std, average, s=14, color=colour, marker=marker, alpha=0.35, linewidths=0)
        # The first is the largest, so that a later one on top of it leaves its rim.
        size = max(30, 120 - 22 * place)
        axes.scatter(
            [std.mean()],
            [average.mean()],
            s=size,
            color=colour,
            marker=marker,
            label=in_legend(method),
            zorder=3,
        )
        named.append((method, float(std.mean()), float(average.mean())))
    axes.margins(0.12)
    if path is not None and len(path.rounds) > 1:
        named.append((f"round {path.rounds[0]}", float(x[0]), float(y[0])))
    up = "←" if metric.lower_is_better else "→"  # the text is turned to the left: its right is up
    label(
        axes,
        f"more even ← standard deviation over clients{' (points)' if metric.unit == '%' else ''}",
        f"average {metric.title} {up} better",
    )
    at = (
        (0.02, 0.03, "better ↙", "bottom")
        if metric.lower_is_better
        else (0.02, 0.97, "↖ better", "top")
    )
    axes.text(*at[:3], transform=axes.transAxes, va=at[3], fontsize=8, color=GAIN, weight="bold")
    named = [point for point in named if np.isfinite(point[1:]).all()]
    if len(named) <= NAMED_POINTS:
        name_points(axes, named)
    else:
        legend_below(figure, len(points))
    return figure


def heat_map(curves: Curves, metric: Metric) -> Figure:
    """Every client in every measured round, clients sorted by where they ended, the best on top and bright."""
    ended = curves.values[:, -1] * (-1 if metric.lower_is_better else 1)
    order = np.argsort(np.nan_to_num(ended, nan=-np.inf), kind="stable")[::-1]
    return _image(
        curves,
        order,
        metric.scale,
        metric.title,
        "viridis_r" if metric.lower_is_better else "viridis",
    )


def weights(curves: Curves) -> Figure:
    """The share of the aggregate given to each client: stacked where clients are few, else a heat map."""
    if len(curves.clients) > len(COLOURS) + 4:
        order = np.argsort(curves.values.mean(1), kind="stable")[::-1]
        return _image(curves, order, 100.0, "weight in %", "cividis", lowest=0.0)
    figure, axes = new()
    shades = [*COLOURS, *(f"{0.35 + 0.15 * place:.2f}" for place in range(4))]
    rounds = curves.rounds if len(curves.rounds) > 1 else [curves.rounds[0], curves.rounds[0] + 1]
    shares = np.repeat(curves.values, 2, axis=1) if len(curves.rounds) == 1 else curves.values
    axes.stackplot(
        rounds,
        shares * 100,
        labels=list(map(in_legend, curves.clients)),
        colors=shades,
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
    curves: Curves,
    order: np.ndarray,
    factor: float,
    name: str,
    colours: str,
    lowest: float | None = None,
) -> Figure:
    count = len(order)
    figure, axes = new(float(np.clip(1.2 + 0.14 * count, 2.2, 4.6)))
    first, last = curves.rounds[0] - 0.5, curves.rounds[-1] + 0.5
    picture = axes.imshow(
        curves.values[order] * factor,
        aspect="auto",
        cmap=colours,
        interpolation="nearest",
        extent=(first, last, count - 0.5, -0.5),
        vmin=lowest,
    )
    axes.grid(visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if count <= NAMED_ROWS:
        axes.set_yticks(range(count), [short(curves.clients[place]) for place in order], fontsize=7)
    label(axes, "round", "client" if count <= NAMED_ROWS else f"{count:,} clients, sorted")
    figure.colorbar(picture, ax=axes, label=name, fraction=0.06)
    return figure

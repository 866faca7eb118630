"""The pictures of an audit: labels by client, sizes, a map of the clients, divergence against size (Figure 1a of FedAKD's paper)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

from equipoise.auditing.divergence import chance
from equipoise.auditing.findings import Findings
from equipoise.report.drawing import COLOURS, IN_IMAGES, new
from equipoise.report.figures import MANY_POINTS
from equipoise.report.pictures import Picture

NAMED = 30  # up to this many clients or classes carry their names on an axis; bubbles, too, are for so few
LABELLED = 50  # up to this many clients are named beside their point, as far as there is room
LONGEST = 14


def pictures(found: Findings) -> dict[str, tuple[str, str, Callable[[], Figure]]]:
    """Name -> title, a sentence for someone who cannot see it, and the figure."""
    rows = found.clients
    sizes = [row.samples for row in rows]
    far = max(rows, key=lambda row: row.kl if row.kl is not None else -1.0)
    odd = max(rows, key=lambda row: row.label_distance)
    most = (
        f"The farthest is {far.client} with {far.kl:.2f} nats."
        if far.kl is not None
        else "No client has enough samples to tell."
    )
    return {
        "labels": (
            "Labels by client",
            f"How many samples of each label a client has. The farthest from the whole is {odd.client}: {100 * odd.label_distance:.0f} % of its samples would have to change their label.",
            partial(labels, found),
        ),
        "sizes": (
            "Sizes",
            f"Training samples by client, from {min(sizes):,} to {max(sizes):,}.",
            partial(by_size, found),
        ),
        "map": (
            "Map of the clients",
            "The mean of each client's features along the two directions in which all samples vary most; the cross is the mean of all. Larger points have more samples.",
            partial(chart, found),
        ),
        "kl": (
            "Divergence against size",
            f"Gaussian KL of each client's features to the whole; the line is what a client of that size shows if nothing differs. {most}",
            partial(kl_against_size, found),
        ),
    }


def shown(found: Findings) -> dict[str, Picture]:
    """The pictures as a report shows them, the verdict with the first."""
    made = {
        f"audit-{name}": Picture(title, text, draw)
        for name, (title, text, draw) in pictures(found).items()
    }
    first = next(iter(made))
    return {**made, first: replace(made[first], text=f"{found.text} {made[first].text}")}


def labels(found: Findings) -> Figure:
    """Bubbles where clients and classes are few, else an image of label shares."""
    counts, clients, classes = found.counts, len(found.clients), found.counts.shape[1]
    height = float(np.clip(1.1 + 0.2 * classes, 2.4, 4.8))
    figure, axes = new(height)
    names = [_short(row.client) for row in found.clients]
    if clients <= NAMED and classes <= NAMED:
        wide = max(4.6, 1.6 + 0.24 * clients)
        figure.set_figwidth(wide)
        # the largest bubble nearly fills the cell between its neighbours; areas are in points squared
        cell = min((wide - 1.4) / clients, (height - 0.8) / classes) * 72 * 0.9
        cell = min(cell, 26)  # of two labels, say: the bubbles need not fill the page
        where, label = np.nonzero(counts)
        axes.scatter(
            where,
            label,
            s=counts[where, label] / counts.max() * cell**2,
            color=COLOURS[0],
            alpha=0.75,
            linewidth=0,
        )
        axes.set(xlim=(-0.6, clients - 0.4), ylim=(-0.7, classes - 0.3))
        axes.set_xlabel("client")
    else:
        figure.set_figwidth(6.2)
        shares = counts / np.maximum(counts.sum(1), 1)[:, None]
        order = np.lexsort((-shares.max(1), shares.argmax(1)))
        picture = axes.imshow(
            100 * shares[order].T,
            aspect="auto",
            cmap="viridis",
            interpolation="nearest",
            origin="lower",
        )
        axes.grid(visible=False)
        figure.colorbar(picture, ax=axes, label="% of the client's samples", fraction=0.05)
        names = [names[place] for place in order]
        axes.set_xlabel(
            "client" if clients <= NAMED else f"{clients:,} clients, by their most frequent label"
        )
    if clients <= NAMED:
        axes.set_xticks(range(clients), names, rotation=_turned(names), fontsize=7)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if classes <= NAMED:
        axes.set_yticks(range(classes), [_short(name) for name in found.classes], fontsize=7)
    axes.set_ylabel("label")
    return figure


def by_size(found: Findings) -> Figure:
    """Bars from the largest to the smallest client."""
    order = sorted(found.clients, key=lambda row: -row.samples)
    sizes = np.array([row.samples for row in order])
    figure, axes = new()
    if len(order) <= 2 * NAMED:
        figure.set_figwidth(max(4.6, 1.2 + 0.13 * len(order)))
        axes.bar(range(len(order)), sizes, color=COLOURS[0])
        axes.set_xlim(-0.6, len(order) - 0.4)
        names = [_short(row.client) for row in order]
        axes.set_xticks(range(len(order)), names, rotation=_turned(names), fontsize=7)
        axes.set_xlabel("client")
    else:
        axes.fill_between(
            np.arange(1, len(order) + 1), sizes, step="mid", color=COLOURS[0], linewidth=0
        )
        axes.set_xlabel(f"{len(order):,} clients, from the largest to the smallest")
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("training samples")
    axes.set_ylim(bottom=0)
    return figure


def chart(found: Findings) -> Figure:
    """A map of the clients."""
    figure, axes = new()
    places, sizes = (
        np.array([row.place for row in found.clients]),
        np.array([row.samples for row in found.clients]),
    )
    few = len(places) <= LABELLED
    area = (
        (20 + 160 * sizes / max(1, sizes.max())) if few else (4 + 40 * sizes / max(1, sizes.max()))
    )
    axes.scatter(
        places[:, 0],
        places[:, 1],
        s=area,
        color=_colour(len(places)),
        alpha=0.6,
        linewidth=0,
        rasterized=len(places) > MANY_POINTS,
    )
    axes.scatter([0], [0], marker="+", s=90, color=COLOURS[1], linewidth=1.6, zorder=3)
    axes.set_xlabel("mean along direction 1, in deviations of all samples")
    axes.set_ylabel("direction 2")
    axes.margins(0.12)
    if few:
        cross = np.zeros((1, 2))
        _name(
            axes,
            places,
            [row.client for row in found.clients],
            np.argsort(-(places**2).sum(1)),
            np.sqrt(area) / 2,
            cross,
            5.0,
        )
    return figure


def kl_against_size(found: Findings) -> Figure:
    """Figure 1a of the paper, with what chance alone would show."""
    rows = [row for row in found.clients if row.kl is not None]
    figure, axes = new()
    axes.set_xlabel("training samples")
    axes.set_ylabel("KL to the whole in nats")
    if not rows:
        axes.text(
            0.5, 0.5, "no client has enough samples to tell", ha="center", transform=axes.transAxes
        )
        return figure
    points = np.array([(row.samples, row.kl) for row in rows], np.float64)
    spread = points[:, 0].max() / max(1.0, points[:, 0].min())
    if spread > 5:
        axes.set_xscale("log")
    axes.scatter(points[:, 0], points[:, 1], s=22 if len(rows) <= LABELLED else 8, color=_colour(len(rows)), alpha=0.7, linewidth=0, rasterized=len(rows) > MANY_POINTS, label="clients")  # fmt: skip
    low, high = points[:, 0].min() / 1.1, points[:, 0].max() * 1.1
    sizes = np.unique(np.geomspace(max(found.dimensions, low), high, 60).astype(int))
    line = np.array([(n, chance(int(n), found.dimensions)) for n in sizes])
    axes.plot(line[:, 0], line[:, 1], color=COLOURS[1], linewidth=1.2, label="by chance alone")
    axes.set_ylim(bottom=0)
    axes.margins(y=0.12)
    if spread > 5:
        # 20, 50, 100: powers of ten alone are too few
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if spread < 200 else (1,)))
        axes.xaxis.set_major_formatter(lambda value, place: f"{value:,.0f}")
        axes.xaxis.set_minor_locator(NullLocator())
    figure.set_figheight(3.5)
    figure.legend(loc="outside lower center", ncols=2)
    if len(rows) <= LABELLED:
        along = np.geomspace(sizes[0], sizes[-1], 300)
        line = np.stack([along, np.interp(along, line[:, 0], line[:, 1])], axis=1)
        _name(
            axes,
            points,
            [row.client for row in rows],
            np.argsort(-points[:, 1]),
            np.full(len(rows), 3.0),
            line,
            1.5,
        )
    return figure


def _name(
    axes: Axes,
    points: np.ndarray,
    names: Sequence[str],
    order: np.ndarray,
    radii: np.ndarray,
    free: np.ndarray,
    around: float,
) -> None:
    """Names beside points, in this order, where they cover neither another name, a point nor what lies `around` the places of `free`;
    what finds no room stays unnamed."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    scale = figure.dpi / 72
    at = axes.transData.transform(points)
    kept = [
        *zip(at, radii, strict=True),
        *((place, around) for place in axes.transData.transform(free)),
    ]
    taken = [
        Bbox.from_bounds(x - r * scale, y - r * scale, 2 * r * scale, 2 * r * scale)
        for (x, y), r in kept
    ]
    inside = axes.get_window_extent()
    for place in order:
        gap = radii[place] + 2
        for dx, dy, across, along in (
            (gap, 0, "left", "center"),
            (-gap, 0, "right", "center"),
            (0, gap, "center", "bottom"),
            (0, -gap, "center", "top"),
        ):
            text = axes.annotate(
                _short(names[place]),
                points[place],
                (dx, dy),
                textcoords="offset points",
                ha=across,
                va=along,
                fontsize=7,
            )
            box = text.get_window_extent(canvas.get_renderer())
            clear = not any(box.overlaps(other) for k, other in enumerate(taken) if k != place)
            if (
                clear
                and inside.x0 <= box.x0
                and box.x1 <= inside.x1
                and inside.y0 <= box.y0
                and box.y1 <= inside.y1
            ):
                taken.append(box)
                break
            text.remove()


def _turned(names: Sequence[str]) -> int:
    """Names on an axis stand upright where they would run into each other."""
    return 90 if sum(len(name) + 2 for name in names) > 64 else 0


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _colour(points: int) -> str:
    """Of points: an image inside a picture cannot follow the page into the dark, so it has a colour for both."""
    return IN_IMAGES[COLOURS[0]] if points > MANY_POINTS else COLOURS[0]

"""Pictures of an audit: labels, sizes, a map of clients, divergence against size.

The last one is Figure 1a of FedAKD's paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox, BboxBase

from equipoise.auditing.divergence import chance
from equipoise.auditing.findings import Findings
from equipoise.report.drawing import COLOURS, IN_IMAGES, new
from equipoise.report.figures import MANY_POINTS
from equipoise.report.pictures import Picture

NAMED = 30  # clients or classes with names on an axis, and with bubbles
LABELLED = 50  # clients whose points are labelled, as far as there is room
LONGEST = 14  # letters of a name


def pictures(findings: Findings) -> dict[str, tuple[str, str, Callable[[], Figure]]]:
    """Return the pictures: name -> title, alternative text, function that draws the figure."""
    rows = findings.clients
    sizes = [row.samples for row in rows]
    farthest = max(rows, key=lambda row: row.kl if row.kl is not None else -1.0)
    other_labels = max(rows, key=lambda row: row.label_distance)
    divergence = "No client has enough samples."
    if farthest.kl is not None:
        divergence = f"The farthest is {farthest.client} with {farthest.kl:.2f} nats."
    return {
        "labels": (
            "Labels by client",
            "Samples of each label by client. The farthest from all data is "
            f"{other_labels.client}: {100 * other_labels.label_distance:.0f} % of its samples "
            "would have to change their label.",
            partial(labels, findings),
        ),
        "sizes": (
            "Sizes",
            f"Training samples by client, from {min(sizes):,} to {max(sizes):,}.",
            partial(by_size, findings),
        ),
        "map": (
            "Map of the clients",
            "The mean of each client's features along the two directions in which all samples "
            "vary most; the cross is the mean of all. Larger points have more samples.",
            partial(chart, findings),
        ),
        "kl": (
            "Divergence against size",
            "Gaussian KL of each client's features to all data; the line is the value of a client "
            f"of that size if nothing differs. {divergence}",
            partial(kl_against_size, findings),
        ),
    }


def shown(findings: Findings) -> dict[str, Picture]:
    """Return the pictures of a report, with the verdict in the text of the first."""
    by_name: dict[str, Picture] = {}
    for name, (title, text, draw) in pictures(findings).items():
        if not by_name:
            text = f"{findings.text} {text}"
        by_name[f"audit-{name}"] = Picture(title, text, draw)
    return by_name


def labels(findings: Findings) -> Figure:
    """Return bubbles where clients and classes are few, else an image of label shares."""
    clients, classes = findings.counts.shape
    height = float(np.clip(1.1 + 0.2 * classes, 2.4, 4.8))
    figure, axes = new(height)
    order = np.arange(clients)
    if clients <= NAMED and classes <= NAMED:
        _draw_bubbles(figure, axes, findings.counts, height)
    else:
        order = _draw_shares(figure, axes, findings.counts)
    if clients <= NAMED:
        names = [_short(findings.clients[client].client) for client in order]
        axes.set_xticks(range(clients), names, rotation=rotation_of(names), fontsize=7)
        axes.set_xlabel("client")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(f"{clients:,} clients, by their most frequent label")
    if classes <= NAMED:
        axes.set_yticks(range(classes), [_short(name) for name in findings.classes], fontsize=7)
    axes.set_ylabel("label")
    return figure


def _draw_bubbles(figure: Figure, axes: Axes, counts: np.ndarray, height: float) -> None:
    """Draw a bubble for each client and class, with an area in proportion to the samples."""
    clients, classes = counts.shape
    width = max(4.6, 1.6 + 0.24 * clients)
    figure.set_figwidth(width)
    # The largest bubble nearly fills a cell of the grid, but not more than 26 points.
    cell = min((width - 1.4) / clients, (height - 0.8) / classes) * 72 * 0.9
    diameter = min(cell, 26)
    client, label = np.nonzero(counts)
    axes.scatter(
        client,
        label,
        s=counts[client, label] / counts.max() * diameter**2,
        color=COLOURS[0],
        alpha=0.75,
        linewidth=0,
    )
    axes.set(xlim=(-0.6, clients - 0.4), ylim=(-0.7, classes - 0.3))


def _draw_shares(figure: Figure, axes: Axes, counts: np.ndarray) -> np.ndarray:
    """Draw label shares as an image, and return the order of the clients in it."""
    figure.set_figwidth(6.2)
    shares = counts / np.maximum(counts.sum(1), 1)[:, None]
    order = np.lexsort((-shares.max(1), shares.argmax(1)))
    image = axes.imshow(
        100 * shares[order].T,
        aspect="auto",
        cmap="viridis",
        interpolation="nearest",
        origin="lower",
    )
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes, label="% of the client's samples", fraction=0.05)
    return order


def by_size(findings: Findings) -> Figure:
    """Return bars from the largest to the smallest client."""
    order = sorted(findings.clients, key=lambda row: -row.samples)
    sizes = np.array([row.samples for row in order])
    figure, axes = new()
    if len(order) <= 2 * NAMED:
        figure.set_figwidth(max(4.6, 1.2 + 0.13 * len(order)))
        axes.bar(range(len(order)), sizes, color=COLOURS[0])
        axes.set_xlim(-0.6, len(order) - 0.4)
        names = [_short(row.client) for row in order]
        axes.set_xticks(range(len(order)), names, rotation=rotation_of(names), fontsize=7)
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


def chart(findings: Findings) -> Figure:
    """Return a map of the clients."""
    figure, axes = new()
    points = np.array([row.place for row in findings.clients])
    sizes = np.array([row.samples for row in findings.clients])
    relative_sizes = sizes / max(1, sizes.max())
    are_labelled = len(points) <= LABELLED
    areas = 20 + 160 * relative_sizes if are_labelled else 4 + 40 * relative_sizes
    axes.scatter(
        points[:, 0],
        points[:, 1],
        s=areas,
        color=_colour(len(points)),
        alpha=0.6,
        linewidth=0,
        rasterized=len(points) > MANY_POINTS,
    )
    axes.scatter([0], [0], marker="+", s=90, color=COLOURS[1], linewidth=1.6, zorder=3)
    axes.set_xlabel("mean along direction 1, in deviations of all samples")
    axes.set_ylabel("direction 2")
    axes.margins(0.12)
    if are_labelled:
        cross = np.zeros((1, 2))
        label_points(
            axes,
            points,
            [row.client for row in findings.clients],
            np.argsort(-(points**2).sum(1)),
            np.sqrt(areas) / 2,
            cross,
            5.0,
        )
    return figure


def kl_against_size(findings: Findings) -> Figure:
    """Return Figure 1a of the paper, with the value by chance."""
    rows = [row for row in findings.clients if row.kl is not None]
    figure, axes = new()
    axes.set_xlabel("training samples")
    axes.set_ylabel("KL to all data in nats")
    if not rows:
        message = "no client has enough samples"
        axes.text(0.5, 0.5, message, ha="center", transform=axes.transAxes)
        return figure
    points = np.array([(row.samples, row.kl) for row in rows], np.float64)
    spread = points[:, 0].max() / max(1.0, points[:, 0].min())
    if spread > 5:
        axes.set_xscale("log")
    axes.scatter(
        points[:, 0],
        points[:, 1],
        s=22 if len(rows) <= LABELLED else 8,
        color=_colour(len(rows)),
        alpha=0.7,
        linewidth=0,
        rasterized=len(rows) > MANY_POINTS,
        label="clients",
    )
    low = points[:, 0].min() / 1.1
    high = points[:, 0].max() * 1.1
    sizes = np.unique(np.geomspace(max(findings.dimensions, low), high, 60).astype(int))
    line = np.array([(n, chance(int(n), findings.dimensions)) for n in sizes])
    axes.plot(line[:, 0], line[:, 1], color=COLOURS[1], linewidth=1.2, label="by chance alone")
    axes.set_ylim(bottom=0)
    axes.margins(y=0.12)
    if spread > 5:
        # Ticks at 20, 50, 100: powers of ten alone are too few.
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if spread < 200 else (1,)))
        axes.xaxis.set_major_formatter(lambda value, position: f"{value:,.0f}")
        axes.xaxis.set_minor_locator(NullLocator())
    figure.set_figheight(3.5)
    figure.legend(loc="outside lower center", ncols=2)
    if len(rows) <= LABELLED:
        along = np.geomspace(sizes[0], sizes[-1], 300)
        line = np.stack([along, np.interp(along, line[:, 0], line[:, 1])], axis=1)
        label_points(
            axes,
            points,
            [row.client for row in rows],
            np.argsort(-points[:, 1]),
            np.full(len(rows), 3.0),
            line,
            1.5,
        )
    return figure


def label_points(
    axes: Axes,
    points: np.ndarray,
    names: Sequence[str],
    order: np.ndarray,
    radii: np.ndarray,
    obstacles: np.ndarray,
    clearance: float,
) -> None:
    """Write names next to points where there is room; others stay without a name.

    A name covers no other name, no point and no obstacle.

    Args:
        axes: The axes.
        points: The points, in data coordinates.
        names: Their names.
        order: The order in which points are labelled.
        radii: The radius of each point, in typographic points.
        obstacles: Further positions that must not be covered, in data coordinates.
        clearance: The radius around an obstacle, in typographic points.
    """
    figure = axes.figure
    assert isinstance(figure, Figure)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    scale = figure.dpi / 72
    taken = []
    for position, radius in zip(axes.transData.transform(points), radii, strict=True):
        taken.append(_square(position, radius * scale))
    for position in axes.transData.transform(obstacles):
        taken.append(_square(position, clearance * scale))
    inside = axes.get_window_extent()
    for index in order:
        for offset, horizontal, vertical in _label_offsets(radii[index] + 2):
            text = axes.annotate(
                _short(names[index]),
                points[index],
                offset,
                textcoords="offset points",
                ha=horizontal,
                va=vertical,
                fontsize=7,
            )
            box = text.get_window_extent(canvas.get_renderer())
            others = [other for k, other in enumerate(taken) if k != index]
            if _contains(inside, box) and not any(box.overlaps(other) for other in others):
                taken.append(box)
                break
            text.remove()


def _square(centre: np.ndarray, half: float) -> Bbox:
    x, y = centre
    return Bbox.from_bounds(x - half, y - half, 2 * half, 2 * half)


def _label_offsets(gap: float) -> list[tuple[tuple[float, float], str, str]]:
    """Return the positions of a label relative to its point, with its alignment."""
    return [
        ((gap, 0), "left", "center"),
        ((-gap, 0), "right", "center"),
        ((0, gap), "center", "bottom"),
        ((0, -gap), "center", "top"),
    ]


def _contains(outer: BboxBase, inner: BboxBase) -> bool:
    horizontal = outer.x0 <= inner.x0 and inner.x1 <= outer.x1
    vertical = outer.y0 <= inner.y0 and inner.y1 <= outer.y1
    return horizontal and vertical


def rotation_of(names: Sequence[str]) -> int:
    """Return the rotation of names on an axis: upright where they would overlap."""
    return 90 if sum(len(name) + 2 for name in names) > 64 else 0


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _colour(points: int) -> str:
    """Return the colour of points; a rasterised image needs one for light and dark pages."""
    return IN_IMAGES[COLOURS[0]] if points > MANY_POINTS else COLOURS[0]

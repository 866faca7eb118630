"""Clusters of clients: k-means with a seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from equipoise.validation.arrays import Numbers, float64

RESTARTS = 10
MOST_STEPS = 300  # of one restart; it ends as soon as no point changes its group


def clusters(points: Numbers, k: int, seed: int = 0) -> list[int]:
    """Return the cluster of each point: the best of ten seeded starts of k-means.

    Clusters are numbered in order of appearance. There are fewer than k if points coincide. Centres
    start far apart (k-means++, Arthur and Vassilvitskii, 2007).

    Args:
        points: One point per row.
        k: The number of clusters at most.
        seed: The seed of the starts.

    >>> clusters([[0.0, 1.0], [9.0, 9.0], [0.0, 1.2], [9.1, 9.0]], k=2)
    [0, 1, 0, 1]
    """
    rows = float64(points)
    if rows.ndim != 2 or len(rows) == 0 or not np.isfinite(rows).all():
        raise ValueError(
            f"clusters: expected one row of finite numbers per point, got shape {rows.shape}; "
            "leave out points that have none"
        )
    if k < 1:
        raise ValueError(f"clusters: expected at least one group, got {k}")
    draw = np.random.Generator(np.random.PCG64(seed))
    starts = [_settled(rows, _far_apart(rows, k, draw)) for _ in range(RESTARTS)]
    _, groups = min(starts, key=lambda result: result[0])  # The first of equal ones.
    names: dict[int, int] = {}
    return [names.setdefault(group, len(names)) for group in groups.tolist()]


def _far_apart(rows: NDArray[np.float64], k: int, draw: np.random.Generator) -> NDArray[np.float64]:
    """Return up to k points, drawn in proportion to their squared distance to earlier ones."""
    chosen = [int(draw.integers(len(rows)))]
    while len(chosen) < k:
        nearest = _distances(rows, rows[chosen]).min(1)
        nearest[chosen] = 0
        if not nearest.any():
            break
        chosen.append(int(draw.choice(len(rows), p=nearest / nearest.sum())))
    return rows[chosen]


def _settled(
    rows: NDArray[np.float64], centres: NDArray[np.float64]
) -> tuple[float, NDArray[np.int64]]:
    """Return the squared distances to the nearest centres, summed, and the converged clusters."""
    groups = np.full(len(rows), -1)
    for _ in range(MOST_STEPS):
        nearest = _distances(rows, centres).argmin(1)
        if (nearest == groups).all():
            break
        groups = nearest
        centres = np.stack([rows[groups == group].mean(0) for group in np.unique(groups)])
        groups = np.unique(groups, return_inverse=True)[
            1
        ]  # a group that lost all its points is gone
    return float(_distances(rows, centres).min(1).sum()), groups


def _distances(rows: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    squares: NDArray[np.float64] = np.square(rows[:, None] - centres[None]).sum(2)
    return squares

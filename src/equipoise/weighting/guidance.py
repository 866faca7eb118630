"""Directions along which all losses fall and become more equal (FedMDFG)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from equipoise.weighting.simplex import min_norm

# A shorter gradient has no direction; nor has a shorter guide, or a shorter common direction in
# units of the gradients' mean length.
STILL = 1e-6


@dataclass(frozen=True)
class Direction:
    """A direction of descent, as coefficients of the gradients."""

    rows: np.ndarray
    shares: np.ndarray
    scale: float  # how much longer it is than the shortest point among the rows' means
    guided: bool  # whether the last row is the guide towards equal losses


def evenness(losses: np.ndarray) -> float:
    """Return the cosine between losses and equal losses.

    >>> round(evenness(np.array([2.0, 2.0, 2.0])), 12), round(evenness(np.array([0.0, 3.0])), 4)
    (1.0, 0.7071)
    """
    norm = np.linalg.norm(losses)
    return float(losses.sum() / math.sqrt(len(losses)) / norm) if norm > 0 else 1.0


def descent(
    products: np.ndarray,
    lengths: np.ndarray,
    live: np.ndarray,
    losses: np.ndarray,
    theta: float,
    force: bool = False,
) -> Direction | None:
    """Return the shortest point in the convex hull of the rows, or None if its length is about 0.

    It is scaled to the length of the mean gradient. Rows are the `live` gradients scaled to their
    mean length, those of absent clients as they are and, if losses differ from equal ones by more
    than the angle `theta` or by `force`, their guide.

    Args:
        products: Inner products of this round's gradients, then of those of absent clients.
        lengths: The lengths of this round's gradients.
        live: The positions of gradients that are not 0.
        losses: The losses of this round's clients.
        theta: The tolerated angle in radians.
        force: Use the guide whatever the angle.

    >>> lengths, live, losses = np.array([1.0, 2.0]), np.array([0, 1]), np.array([1.0, 1.0])
    >>> direction = descent(np.diag([1.0, 4.0]), lengths, live, losses, theta=0.1)
    >>> direction.shares.round(6).tolist(), direction.guided
    ([0.75, 0.375], False)
    """
    mean = lengths[live].mean()
    rows = np.eye(len(products))[[*live, *range(len(lengths), len(products))]]
    rows[: len(live)] *= (mean / lengths[live])[:, None]
    equal = np.full(len(live), len(live) ** -0.5)
    unit = losses[live] / np.linalg.norm(losses[live]) if losses[live].any() else equal
    guide = (equal @ unit) * unit - equal  # along -sum_i guide_i g_i losses become more equal
    guided = bool(
        np.linalg.norm(guide) > STILL
        and (math.acos(min(1.0, evenness(losses[live]))) > theta or force)
    )
    if guided:
        rows = np.vstack([rows, guide / np.linalg.norm(guide) @ rows[: len(live)]])
    shares = min_norm(rows @ products @ rows.T) @ rows
    average = rows[: len(live)].mean(0)
    length = math.sqrt(max(0.0, shares @ products @ shares))
    target = math.sqrt(max(0.0, average @ products @ average))
    if length <= STILL * mean:
        return None
    scale = max(1.0, target / length)
    # A large scale would turn rounding errors into an increase of some client's loss.
    while (rows @ products @ shares * scale).min() < -STILL and scale > 1:
        scale = scale / 2 if scale > 2 else 1.0
    return Direction(rows, shares * scale, scale, guided)

"""Speed of learning curves.

Curves have one value per round from round 1; NaN marks a round without evaluation.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from equipoise.metrics.undefined import undefined
from equipoise.validation.arrays import Array, vector

SHORTEST_STRETCH = 10  # points that the noise is estimated from, if the curve has so many
# correlations of neighbouring points that are distinguished; beyond the last, noise and trend look
# alike
CANDIDATES = tuple(np.linspace(0, 0.9, 19).tolist())


def rounds_to(curve: ArrayLike, target: float, lower_is_better: bool = False) -> int | None:
    """Return the first round that reaches the target, or None (KDIA, Table 4).

    >>> rounds_to([0.2, 0.5, 0.4, 0.5], target=0.5), rounds_to([0.2, 0.5], target=0.6)
    (2, None)
    >>> rounds_to([1.9, 1.4, 1.2], target=1.4, lower_is_better=True)
    2
    """
    x = vector(curve, "curve")
    if np.isnan(target):
        raise ValueError(
            "expected a number as target, got NaN; take a target that a baseline reached"
        )
    reached = np.flatnonzero(x <= target if lower_is_better else x >= target)
    return int(reached[0]) + 1 if len(reached) else None


def speed_up(
    curve: ArrayLike,
    baseline: ArrayLike,
    target: float | None = None,
    lower_is_better: bool = False,
) -> float | None:
    """Return the rounds of the baseline over the rounds of this curve to a target.

    None if either never reaches it. Use raw curves of the same data, partition and seed (KDIA,
    Table 4).

    Args:
        curve: The curve of the method.
        baseline: The curve of the baseline.
        target: The target; the best value of the baseline by default.
        lower_is_better: True for errors.

    >>> speed_up(curve=[0.3, 0.6, 0.7], baseline=[0.1, 0.2, 0.3, 0.6])
    2.0
    """
    if target is None:
        target = best_and_last(baseline, lower_is_better)["best"]
        if np.isnan(target):
            return None
    slow, fast = (
        rounds_to(baseline, target, lower_is_better),
        rounds_to(curve, target, lower_is_better),
    )
    return None if slow is None or fast is None else slow / fast


def best_and_last(
    curve: ArrayLike, lower_is_better: bool = False, window: int = 10
) -> dict[str, float]:
    """Return the best value with its round, the last value, and the mean of the last `window`.

    The best value on test data is selected by looking at them: use it to compare with papers that
    print it, and rely on `last`.

    >>> best_and_last([0.2, 0.8, 0.6], window=2)
    {'best': 0.8, 'best_round': 2, 'last': 0.6, 'last_mean': 0.7}
    """
    if window < 1:
        raise ValueError(f"expected a window of at least 1 round, got {window}")
    x = vector(curve, "curve")
    if not len(x) or np.isnan(x).all():
        return dict.fromkeys(
            ("best", "best_round", "last", "last_mean"),
            undefined("best and last are undefined: no round was measured"),
        )
    at = int(np.nanargmin(x) if lower_is_better else np.nanargmax(x))
    return {
        "best": float(x[at]),
        "best_round": at + 1,
        "last": float(x[-1]),
        "last_mean": float(x[-window:].mean()),
    }


def rise_at_the_end(
    curve: ArrayLike, rounds: ArrayLike, points: int, level: float = 0.95
) -> tuple[float, float]:
    """Return the rise of a straight line through the last points, and how far noise alone lifts it.

    The noise is an autoregressive process of order one around a quadratic trend, estimated from
    the second half of the curve (ten points at least). Its correlation from point to point is
    taken one standard error above the estimate: the estimate from a short curve is poor, and one
    that is too small makes a random walk look like a rise.

    Args:
        curve: One value per measured round, finite; higher is better.
        rounds: The rounds in which they were measured.
        points: How many of the last points the line goes through.
        level: The share of flat curves whose rise is below the limit.

    Returns:
        The rise over the last points, and the limit that noise alone passes in `1 - level` of all
        flat curves at most.

    >>> rounds = list(range(1, 21))
    >>> rise, limit = rise_at_the_end([0.02 * n for n in rounds], rounds, points=4)
    >>> round(rise, 3), round(limit, 3)
    (0.06, 0.0)
    """
    from scipy.special import stdtrit

    values, at = vector(curve, "curve"), vector(rounds, "rounds")
    stretch = min(len(values), max(SHORTEST_STRETCH, len(values) // 2, points))
    values, at = values[-stretch:], at[-stretch:]
    line = np.zeros(stretch)
    centred = at[-points:] - at[-points:].mean()
    line[-points:] = centred / (centred @ centred) * (at[-1] - at[-points])
    rise = float(line @ values)

    off_trend = _off_trend(stretch)
    residual = off_trend @ values
    squares = float(residual @ residual)
    # what is left of a curve without noise is rounding
    if squares <= stretch * (1e-12 * float(np.abs(values).max())) ** 2:
        return rise, 0.0
    observed = float(residual[1:] @ residual[:-1]) / squares
    correlation = _correlated(_correlation_of(observed, stretch), stretch)
    remaining = off_trend @ correlation
    freedom = np.trace(remaining) ** 2 / np.trace(remaining @ remaining)
    variance = squares / np.trace(remaining)
    error = math.sqrt(variance * float(line @ correlation @ line))
    return rise, float(stdtrit(freedom, level)) * error


def _correlation_of(observed: float, count: int) -> float:
    """Return the correlation of neighbours that explains residuals, plus one standard error."""
    return float(np.interp(observed + 1 / math.sqrt(count), _seen_in_residuals(count), CANDIDATES))


@lru_cache(maxsize=64)
def _seen_in_residuals(count: int) -> tuple[float, ...]:
    """Return the correlation that residuals show for each candidate.

    It is smaller, because a trend was removed.
    """
    off_trend = _off_trend(count)
    expected = []
    for candidate in CANDIDATES:
        residual = off_trend @ _correlated(candidate, count) @ off_trend
        expected.append(float(np.trace(residual, offset=1) / np.trace(residual)))
    return tuple(expected)


def _off_trend(count: int) -> Array:
    """Return the matrix that removes a quadratic trend from so many points."""
    trend, _ = np.linalg.qr(np.vander(np.linspace(-1, 1, count), 3))
    matrix: Array = np.eye(count) - trend @ trend.T
    return matrix


def _correlated(correlation: float, count: int) -> Array:
    """Return the correlation matrix of an autoregressive process of order one."""
    positions = np.arange(count)
    matrix: Array = correlation ** np.abs(positions[:, None] - positions[None, :])
    return matrix

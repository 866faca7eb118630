"""Convergence of a run: a mean that still improves at the end says that more rounds would help."""

from __future__ import annotations

import math

import numpy as np

from equipoise.metrics.convergence import rise_at_the_end
from equipoise.metrics.registry import Metric
from equipoise.runs.curves import Curve

FEWEST = 8  # measured rounds that a statement needs
NOTEWORTHY = 0.005  # a smaller rise, as a share of the level, does not count
MOST_POINTS = 200  # longer curves are averaged in blocks


def still_rising(curve: Curve, lower_is_better: bool = False) -> tuple[int, float] | None:
    """Return from which round on, and by how much, training still improved at its end.

    The rise is that of a straight line through the last fifth of the measured rounds (four points
    at least). It counts if it is more than noise gives in 5 % of flat curves, where the noise may
    be correlated from round to round (`metrics.convergence.rise_at_the_end`), and more than 0.5 %
    of the level. The final phase of a method is left out.

    Returns:
        The first of the rounds looked at and the rise over them; None if training had converged.

    >>> steps = tuple(range(1, 21))
    >>> start, rise = still_rising(Curve(steps, tuple(0.02 * n for n in steps)))
    >>> start, round(rise, 3)
    (17, 0.06)
    >>> still_rising(Curve(steps, tuple(0.8 - 0.5**n for n in steps)))
    """
    training = curve.training()
    means = np.array(training.means) * (-1 if lower_is_better else 1)
    if len(means) < FEWEST or not np.isfinite(means).all():
        return None
    rounds = np.array(training.rounds, dtype=np.float64)
    last = max(4, math.ceil(len(means) / 5))
    start = int(rounds[-last])
    # The estimate of the noise takes cubic time.
    block = math.ceil(len(means) / MOST_POINTS)
    if block > 1:
        means = _in_blocks(means, block)
        rounds = _in_blocks(rounds, block)
        last = math.ceil(len(means) / 5)
    rise, noise = rise_at_the_end(means, rounds, last)
    if rise <= max(noise, NOTEWORTHY * abs(float(means[-1]))):
        return None
    return start, rise


def _in_blocks(values: np.ndarray, size: int) -> np.ndarray:
    """Return means of blocks of neighbours; the oldest values that fill no block are left out."""
    whole = values[len(values) % size :]
    return np.asarray(whole.reshape(-1, size).mean(1))


def not_converged(curve: Curve, metric: Metric) -> str:
    """Return a sentence if training had not converged; empty if it had.

    >>> from equipoise.metrics.registry import find
    >>> steps = tuple(range(1, 21))
    >>> not_converged(Curve(steps, tuple(0.02 * n for n in steps)), find("accuracy"))
    ... # doctest: +NORMALIZE_WHITESPACE
    'not converged: mean accuracy still got better by 6.0 points in rounds 17 to 20;
    more rounds would give other numbers'
    """
    rising = still_rising(curve, metric.lower_is_better)
    if rising is None:
        return ""
    start, rise = rising
    amount = f"{metric.scale * rise:.1f} points" if metric.unit == "%" else f"{rise:.4g}"
    last = curve.training().rounds[-1]
    return (
        f"not converged: mean {metric.name} still got better by {amount} in rounds {start} to "
        f"{last}; more rounds would give other numbers"
    )

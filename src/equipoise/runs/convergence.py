"""Whether training was over when a run ended: a curve that still rises says that more rounds would give other numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from equipoise.metrics.convergence import rise_at_the_end
from equipoise.metrics.registry import Metric
from equipoise.runs.run import Run

FEWEST = 8  # measured rounds below which nothing is said
NOTEWORTHY = 0.005  # of the level: a smaller rise is none
MOST_POINTS = 200  # of a curve that is looked at point by point


class Curve(NamedTuple):
    """The mean over clients by measured round, of the model that clients end up using, on test data."""

    rounds: tuple[int, ...]
    means: tuple[float, ...]


def mean_curve(run: Run, metric: str | None = None, model: str | None = None) -> Curve:
    """Rounds in which some client has no value of its own are kept; one in which a model had diverged is NaN."""
    what = {
        "metric": metric or run.main_metric,
        "model": model or run.main_model,
        "split": run.main_split,
    }
    by_round: dict[int, list[float]] = {}
    for number, value in run.columns("round", "value", phase="received", **what):
        by_round.setdefault(number, []).append(math.nan if value is None else value)
    return Curve(tuple(by_round), tuple(float(np.mean(values)) for values in by_round.values()))


def best_of(curve: Curve, metric: Metric) -> float:
    """The round with the best mean; NaN without any. Chosen with the test data in view, so no result."""
    means = np.array(curve.means)
    if not len(means) or np.isnan(means).all():
        return math.nan
    return float(
        curve.rounds[int(np.nanargmin(means) if metric.lower_is_better else np.nanargmax(means))]
    )


def rounds_to(curve: Curve, target: float, metric: Metric) -> float:
    """The first measured round whose mean is at the target or beyond; NaN if none is."""
    reached = (
        n
        for n, mean in zip(*curve, strict=True)
        if (mean <= target if metric.lower_is_better else mean >= target)
    )
    return float(next(reached, math.nan))


def still_rising(curve: Curve, lower_is_better: bool = False) -> tuple[int, float] | None:
    """Return from which round on, and by how much, a curve still gets better at its end, or None.

    The rise is that of a straight line through the last fifth of the measured rounds (four points
    at least). It counts if it is more than noise gives in 5 % of flat curves, where the noise may
    be correlated from round to round (`metrics.convergence.rise_at_the_end`), and more than 0.5 %
    of the level.

    >>> steps = tuple(range(1, 21))
    >>> start, rise = still_rising(Curve(steps, tuple(0.02 * n for n in steps)))
    >>> start, round(rise, 3)
    (17, 0.06)
    >>> still_rising(Curve(steps, tuple(0.8 - 0.5**n for n in steps)))
    """
    means = np.array(curve.means) * (-1 if lower_is_better else 1)
    if len(means) < FEWEST or not np.isfinite(means).all():
        return None
    rounds = np.array(curve.rounds, dtype=np.float64)
    last = max(4, math.ceil(len(means) / 5))
    start = int(rounds[-last])
    # Very long curves are averaged in blocks: the estimate of the noise takes cubic time.
    block = math.ceil(len(means) / MOST_POINTS)
    if block > 1:
        means, rounds = _in_blocks(means, block), _in_blocks(rounds, block)
        last = math.ceil(len(means) / 5)
    rise, noise = rise_at_the_end(means, rounds, last)
    if rise <= max(noise, NOTEWORTHY * abs(float(means[-1]))):
        return None
    return start, rise


def _in_blocks(values: np.ndarray, size: int) -> np.ndarray:
    """Means of so many neighbours each; the oldest that fill no block are left out."""
    kept = values[len(values) % size :]
    means: np.ndarray = kept.reshape(-1, size).mean(1)
    return means


def average(curves: Sequence[Curve]) -> Curve:
    """The mean of several seeds' curves, of those measured in the same rounds as the first."""
    same = [curve.means for curve in curves if curve.rounds == curves[0].rounds]
    return Curve(curves[0].rounds, tuple(np.mean(same, axis=0).tolist()))


def in_words(rising: tuple[int, float], last: int, metric: Metric) -> str:
    """
    >>> from equipoise.metrics.registry import find
    >>> in_words((17, 0.021), 20, find("accuracy"))
    'not converged: mean accuracy still got better by 2.1 points in rounds 17 to 20; more rounds would give other numbers'
    """
    amount = f"{metric.scale * rising[1]:.1f} points" if metric.unit == "%" else f"{rising[1]:.4g}"
    return f"not converged: mean {metric.name} still got better by {amount} in rounds {rising[0]} to {last}; more rounds would give other numbers"

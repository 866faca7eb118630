"""Convergence of a run: whether more rounds, or fewer, would help."""

from __future__ import annotations

import math

import numpy as np

from equipoise.metrics.convergence import rise_at_the_end
from equipoise.metrics.registry import Metric
from equipoise.runs.curves import Curve

FEWEST = 8  # measured rounds that a statement needs
NOTEWORTHY = 0.005  # a smaller rise, as a share of the level, does not count
MOST_POINTS = 200  # longer curves are averaged in blocks
NOTEWORTHY_FALL = 0.01  # a smaller fall after the peak, as a share of its level, does not count
NOISE = 3.0  # a fall counts if it is so many times the noise of the smoothed curve


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


def fall_after_peak(curve: Curve, lower_is_better: bool = False) -> tuple[int, float, float] | None:
    """Return where the mean was best, if it got worse from there to the end.

    The curve is smoothed by means of neighbouring rounds, a tenth of all. The fall counts if it is
    more than 1 % of the level and more than three times the noise that is left after smoothing.

    Args:
        curve: The mean by round, on validation data.
        lower_is_better: True for errors and losses.

    Returns:
        The best round, the smoothed mean there and at the end; None without such a fall.

    >>> steps = tuple(range(1, 21))
    >>> peak = fall_after_peak(Curve(steps, tuple(0.8 - 0.002 * (n - 8) ** 2 for n in steps)))
    >>> peak[0], round(peak[1], 2), round(peak[2], 2)
    (8, 0.8, 0.56)
    >>> fall_after_peak(Curve(steps, tuple(0.02 * n for n in steps)))
    """
    training = curve.training()
    means = np.array(training.means) * (-1 if lower_is_better else 1)
    if len(means) < FEWEST or not np.isfinite(means).all():
        return None
    width = 1 + 2 * (len(means) // 20)  # odd, so that a window has a middle
    half = width // 2
    padded = np.pad(means, half, mode="edge")
    smooth = np.convolve(padded, np.full(width, 1 / width), mode="valid")
    best = int(smooth.argmax())
    end = float(means[-width:].mean())
    fall = float(smooth[best]) - end
    noise = float(np.std(np.diff(means))) / math.sqrt(2 * width)
    level = abs(float(smooth[best]))
    if best == len(means) - 1 or fall <= max(NOISE * noise, NOTEWORTHY_FALL * level):
        return None
    sign = -1 if lower_is_better else 1
    return training.rounds[best], sign * float(smooth[best]), sign * end

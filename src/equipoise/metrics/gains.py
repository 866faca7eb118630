"""The gain of one client, together against alone, with an exact test and an interval.

A gain counts as significant if the test says so, never because an interval of another kind excludes
zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from equipoise.validation.arrays import Array, vectors

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Gain:
    """The improvement of a client by the federation over training alone; positive is better."""

    value: float
    # over other test sets of the same size; None where there is none
    low: float | None
    high: float | None
    p: float | None  # two-sided, of no difference; None where no test exists

    @property
    def clear(self) -> bool:
        """True if the gain or loss is significant, given a finite test set."""
        return self.p is not None and self.p < SIGNIFICANT


def mcnemar(gained: int, lost: int) -> float:
    """Return the two-sided p-value of McNemar's exact test.

    Args:
        gained: Test samples that only the model trained together has right.
        lost: Test samples that only the model trained alone has right.

    >>> mcnemar(4, 0), mcnemar(6, 0), mcnemar(3, 3)
    (0.125, 0.03125, 1.0)
    """
    from scipy.special import bdtr

    if gained < 0 or lost < 0:
        raise ValueError(f"expected counts of at least 0, got {gained} and {lost}")
    fewer, both = min(gained, lost), gained + lost
    return min(1.0, 2 * float(bdtr(fewer, both, 0.5))) if both else 1.0


def gain_from_counts(alone: int, together: int, total: int, level: float = 0.95) -> Gain:
    """Return the gain in accuracy of one client from its numbers of correct samples.

    Which samples both models have right is unknown. Test and interval are those of
    `gain_from_samples` for the pairs with the most samples that one model has right and the other
    wrong. So they claim nothing that the real pairs would not show, and say less than those would
    if both models fail on the same samples.

    Args:
        alone: Correct samples of the model trained alone.
        together: Correct samples of the model trained together.
        total: Test samples of the client.
        level: Level of the interval.

    Raises:
        ValueError: A count is below 0 or above the total, or the total is below 1.

    >>> gain = gain_from_counts(alone=26, together=30, total=30)
    >>> round(gain.value, 3), gain.p, gain.clear
    (0.133, 0.125, False)
    >>> gain_from_counts(alone=40, together=58, total=60).clear
    True
    """
    if not (0 <= alone <= total and 0 <= together <= total and total >= 1):
        raise ValueError(
            f"expected counts from 0 to the total, and a total of at least 1, got {alone}, "
            f"{together} of {total}"
        )
    _check_level(level)
    # p and the width of the interval grow with the number of such samples
    lost = min(alone, total - together)
    return _of_pairs(together - alone + lost, lost, total, level)


def gain_from_samples(
    alone: ArrayLike, together: ArrayLike, lower_is_better: bool = False, level: float = 0.95
) -> Gain:
    """Return the mean gain of one client from one number per test sample and model.

    For zeros and ones (wrong and right) the test is McNemar's exact one, and the interval combines
    Clopper and Pearson's limits of both kinds of discordant samples (Newcombe's way). For other
    numbers, such as squared errors, test and interval are those of the paired t test on
    differences by sample; fewer than two samples, or differences that are all the same, have none.

    Args:
        alone: One number per test sample, of the model trained alone.
        together: The same samples in the same order, of the model trained together.
        lower_is_better: Whether the numbers are errors.
        level: Level of the interval.

    >>> gain = gain_from_samples([1] * 24 + [0] * 6, [1] * 30)
    >>> round(gain.value, 3), gain.p
    (0.2, 0.03125)
    >>> errors = gain_from_samples([0.9, 0.8, 0.7, 0.9], [0.5, 0.6, 0.2, 0.6], lower_is_better=True)
    >>> round(errors.value, 3), round(errors.p, 4)
    (0.35, 0.0123)
    """
    a, t = vectors(alone, together, ("alone", "together"))
    _check_level(level)
    if not len(a) or not (np.isfinite(a).all() and np.isfinite(t).all()):
        raise ValueError("expected at least one test sample, and finite numbers only")
    better = a - t if lower_is_better else t - a
    if np.isin(np.concatenate([a, t]), (0, 1)).all():
        return _of_pairs(int((better > 0).sum()), int((better < 0).sum()), len(a), level)
    return _paired_t(better, level)


def gain_in(metric: str, alone: float, together: float, total: int) -> Gain | None:
    """Return the gain of one client with its test, from what runs keep; None if there is no test.

    Runs keep no value per test sample. From an accuracy and the size of the test set follows the
    number of correct samples; from AUROC, an error or a loss nothing that could be tested.

    >>> gain_in("accuracy", 0.5, 0.75, total=100).clear, gain_in("auroc", 0.5, 0.75, total=100)
    (True, None)
    """
    counts = [value * total for value in (alone, together)]
    if metric != "accuracy" or total < 1 or not np.isfinite(counts).all():
        return None
    right_alone, right_together = (round(count) for count in counts)
    # an accuracy of other samples than these
    if (
        max(
            abs(count - whole)
            for count, whole in zip(counts, (right_alone, right_together), strict=True)
        )
        > 1e-3
    ):
        return None
    return gain_from_counts(right_alone, right_together, total)


def _of_pairs(gained: int, lost: int, total: int, level: float) -> Gain:
    value = (gained - lost) / total
    (low_gained, high_gained), (low_lost, high_lost) = (
        clopper_pearson(count, total, level) for count in (gained, lost)
    )
    # A sample cannot be gained and lost, so the two shares vary against each other.
    free = (total - gained) * (total - lost)
    against = math.sqrt(gained * lost / free) if free else 1.0
    share_gained, share_lost = gained / total, lost / total

    def reach(first: float, second: float) -> float:
        return math.sqrt(first**2 + second**2 + 2 * against * first * second)

    low = value - reach(share_gained - low_gained, high_lost - share_lost)
    high = value + reach(high_gained - share_gained, share_lost - low_lost)
    gain = Gain(value, max(-1.0, low), min(1.0, high), mcnemar(gained, lost))
    return _agreeing(gain, level)


def _paired_t(better: Array, level: float) -> Gain:
    from scipy.special import stdtr, stdtrit

    value, count = float(better.mean()), len(better)
    if not better.any():
        return Gain(0.0, None, None, 1.0)
    if count < 2 or np.ptp(better) <= 1e-12 * np.abs(better).max():
        return Gain(value, None, None, None)
    error = float(better.std(ddof=1)) / math.sqrt(count)
    reach = float(stdtrit(count - 1, (1 + level) / 2)) * error
    p = 2 * float(stdtr(count - 1, -abs(value) / error))
    return Gain(value, value - reach, value + reach, p)


def _agreeing(gain: Gain, level: float) -> Gain:
    """Return a gain whose interval excludes zero exactly if the test does.

    A test that excludes the other sign also bounds the interval at zero.
    """
    assert gain.low is not None and gain.high is not None and gain.p is not None
    low, high = gain.low, gain.high
    significant = gain.p < 1 - level
    if significant and gain.value > 0:
        low = max(low, 0.0)
    elif significant:
        high = min(high, 0.0)
    else:
        low, high = min(low, 0.0), max(high, 0.0)
    return Gain(gain.value, low, high, gain.p)


def clopper_pearson(count: int, total: int, level: float) -> tuple[float, float]:
    """Return the exact interval of a share: it covers the truth at least as often as the level.

    Args:
        count: The number of samples that have something.
        total: The number of all samples, at least 1.
        level: The level, such as 0.95.
    """
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = float(betaincinv(count, total - count + 1, tail)) if count else 0.0
    high = float(betaincinv(count + 1, total - count, 1 - tail)) if count < total else 1.0
    return low, high


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level: expected a share between 0 and 1 such as 0.95, got {level:g}")

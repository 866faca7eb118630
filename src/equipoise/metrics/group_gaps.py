"""Differences between groups of samples, with intervals that are valid for any counts.

The rate of a group (its accuracy, selection rate, sensitivity or false positive rate) is a number
of samples out of the group's. Limits of Clopper and Pearson (Biometrika 1934) hold for all groups
at once, since their level is raised (Šidák, J. Am. Stat. Assoc. 1967; Bonferroni for groups that
share samples). If they hold, the true gap lies between the smallest and the largest gap of rates
within their limits. So an interval covers the truth in at least 95 % of test sets, also with a
handful of samples, and in more than that for most rates
(`tests/metrics/test_group_gap_coverage.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from equipoise.metrics.diagnostic_intervals import Limits
from equipoise.metrics.gains import clopper_pearson
from equipoise.metrics.score_histograms import FOUND, NEGATIVES, POSITIVES, Counts, first_bin

LEVEL = 0.95
ONE_GROUP = "fewer than two groups with such samples"
NO_SAMPLES = "no such samples"


class Rate(NamedTuple):
    """A number of samples out of a total, such as the positive ones that a model finds."""

    cases: int
    total: int


class Estimate(NamedTuple):
    """A value of a test set, with its interval over other test sets like it."""

    value: float
    limits: Limits


UNDEFINED = float("nan")


def rates_of(table: Counts, percent: int) -> dict[str, Rate]:
    """Return the rates of a group from the histogram of its scores.

    Args:
        table: The histogram, shape (classes, 4, bins).
        percent: The score in whole per cent from which on the second of two classes counts as
            predicted. With more classes the most likely one is predicted, and only the accuracy
            is a rate.

    Returns:
        Accuracy, and of two classes selection rate, sensitivity, specificity and false positive
        rate.

    >>> from equipoise.metrics.score_histograms import counted
    >>> table = counted([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], [0, 1, 0])
    >>> rates_of(table, 50)["accuracy"], rates_of(table, 50)["specificity"]
    (Rate(cases=2, total=3), Rate(cases=1, total=2))
    """
    samples = int(table[:, POSITIVES].sum())
    if len(table) != 2:
        return {"accuracy": Rate(int(table[:, FOUND].sum()), samples)}
    first = first_bin(percent, table.shape[-1])
    positives, negatives = table[1, POSITIVES], table[1, NEGATIVES]
    true, false = int(positives[first:].sum()), int(negatives[first:].sum())
    cleared = int(negatives[:first].sum())
    return {
        "accuracy": Rate(true + cleared, samples),
        "selection_rate": Rate(true + false, samples),
        "sensitivity": Rate(true, int(positives.sum())),
        "specificity": Rate(cleared, int(negatives.sum())),
        "false_positive_rate": Rate(false, int(negatives.sum())),
    }


def estimated(rate: Rate) -> Estimate:
    """Return a rate with its exact interval.

    >>> rate = estimated(Rate(8, 10))
    >>> rate.value, round(rate.limits.low, 3), round(rate.limits.high, 3)
    (0.8, 0.444, 0.975)
    """
    if not rate.total:
        return Estimate(UNDEFINED, Limits(reason=NO_SAMPLES))
    return Estimate(rate.cases / rate.total, Limits(*clopper_pearson(*rate, LEVEL)))


def largest_gap(rates: Sequence[Rate]) -> Estimate:
    """Return the largest difference between the rates of two groups.

    Args:
        rates: The rates of groups that share no sample; those without samples do not count.

    >>> gap = largest_gap([Rate(18, 20), Rate(2, 20), Rate(0, 0)])
    >>> round(gap.value, 2), round(gap.limits.low, 2), round(gap.limits.high, 2)
    (0.8, 0.3, 0.98)
    """
    return largest_of_gaps([rates])


def largest_of_gaps(kinds: Sequence[Sequence[Rate]]) -> Estimate:
    """Return the largest gap of several kinds of rates of the same groups.

    The gap in equalised odds is that of sensitivities and false positive rates. Both are rates
    of different samples, the positive and the negative ones.

    Args:
        kinds: For each kind the rates of groups.
    """
    defined = [[rate for rate in rates if rate.total] for rates in kinds]
    defined = [rates for rates in defined if len(rates) > 1]
    if not defined:
        return Estimate(UNDEFINED, Limits(reason=ONE_GROUP))
    level = LEVEL ** (1 / sum(map(len, defined)))
    gaps = [_gap(rates, level) for rates in defined]
    values, lows, highs = zip(*gaps, strict=True)
    return Estimate(max(values), Limits(max(lows), max(highs)))


def _gap(rates: Sequence[Rate], level: float) -> tuple[float, float, float]:
    """Return the largest difference of rates, and its least and largest within their limits."""
    shares = [rate.cases / rate.total for rate in rates]
    low, high = np.array([clopper_pearson(*rate, level) for rate in rates]).T
    least = max(0.0, float(low.max() - high.min()))
    reach = high[:, None] - low[None, :]
    np.fill_diagonal(reach, 0.0)  # a group has no gap to itself
    return max(shares) - min(shares), least, float(reach.max())


def lowest(rates: Sequence[Rate], share_samples: bool = False) -> tuple[int | None, Estimate]:
    """Return the position of the lowest rate, and that rate with an interval of the lowest one.

    Args:
        rates: The rates of groups; those without samples do not count.
        share_samples: True if a sample may be in several groups, such as women and the old.

    >>> lowest([Rate(18, 20), Rate(0, 0), Rate(7, 10)])[0]
    2
    """
    defined = [position for position, rate in enumerate(rates) if rate.total]
    if not defined:
        return None, Estimate(UNDEFINED, Limits(reason=NO_SAMPLES))
    worst = min(defined, key=lambda position: rates[position].cases / rates[position].total)
    level = LEVEL ** (1 / len(defined))
    if share_samples:
        level = 1 - (1 - LEVEL) / len(defined)
    limits = [clopper_pearson(*rates[position], level) for position in defined]
    value = rates[worst].cases / rates[worst].total
    low = min(limit[0] for limit in limits)
    high = min(limit[1] for limit in limits)
    return worst, Estimate(value, Limits(low, high))

"""95 % intervals of clinical metrics over other test sets, from histograms of scores.

The other test sets have as many samples of each class. Each interval was chosen by simulation: over
30 to 1,000 samples and 5 to 50 % positives it covers the true value in 93 to 97 % of test sets,
averaged over score distributions (`tests/metrics/test_interval_coverage.py`). Where no interval
does, none is given, and `reason` says why.

    - AUROC: variance of DeLong et al. (Biometrics 1988) on the log odds scale, Student's t by Welch
      and Satterthwaite.
    - AUPRC: variance by the infinitesimal jackknife on the log odds scale, Student's t.
    - Balanced accuracy: Wilson intervals of each class's recall, combined as by Zou and Donner
      (Stat. Med. 2008).
    - Sensitivity at 90 % specificity: the same of the Wilson interval and the sensitivities at the
      lowest and the highest threshold that could have the specificity; with
      many equal scores, from the lower to the upper limit of these two.
    - Calibration error: none. It is above 0 for a perfectly calibrated model, too, so no interval
      around it covers the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from equipoise.metrics.score_histograms import (
    FALSE_ALARMS,
    FOUND,
    NEGATIVES,
    POSITIVES,
    ROUNDED,
    Counts,
)
from equipoise.validation.arrays import Array, float64

# Fewest test samples of each class: below, simulated coverage leaves 93 to 97 %.
FEWEST_RANKED = 20
FEWEST_RATE = 10
FEWEST_NEGATIVES = 50  # for a threshold that clears 90 % of them
QUANTILE = 1.959963984540054  # of the normal distribution, for 95 %
# Weight of one imagined placement value of 1/2. Without it, few misranked samples give a variance
# near 0.
PRIOR_WEIGHT = 0.1

FEW = "fewer than {} test samples of a class"
MANY_CLASSES = "more than two classes"
COARSE = "scores were counted in whole per cent"
PERFECT = "all samples ranked right"
UNDEFINED = "undefined"
BIASED = "above 0 for a calibrated model too"


@dataclass(frozen=True)
class Limits:
    """The limits of an interval, or the reason why there is none."""

    low: float | None = None
    high: float | None = None
    reason: str = ""


def limits_of(measure: str, table: Counts, value: float) -> Limits:
    """Return the 95 % interval of a clinical measure over other test sets like this one.

    Args:
        measure: one of `score_histograms.MEASURES`.
        table: the histogram of the test set's scores, shape (classes, 4, bins).
        value: the measure on that test set.

    Returns:
        The interval, or the reason why there is none.

    >>> from equipoise.metrics.score_histograms import counted
    >>> limits_of("calibration_error", counted([[0.2, 0.8]] * 30, [1] * 30), 0.2).reason
    'above 0 for a calibrated model too'
    """
    if np.isnan(value):
        return Limits(reason=UNDEFINED)
    if measure == "calibration_error":
        return Limits(reason=BIASED)
    if measure == "balanced_accuracy":
        occurring = table[table[:, POSITIVES].any(-1)]
        if len(table) == 2 and len(occurring) < 2:  # the rate of one class only
            return Limits(reason=FEW.format(FEWEST_RATE))
        return mean_of_rates(occurring[:, FOUND].sum(-1), occurring[:, POSITIVES].sum(-1))
    if len(table) > 2:
        return Limits(reason=MANY_CLASSES)
    if table.shape[-1] == ROUNDED:
        return Limits(reason=COARSE)
    interval = {
        "auroc": auroc_limits,
        "auprc": auprc_limits,
        "sensitivity_at_specificity": sensitivity_limits,
    }[measure]
    return interval(table[1, POSITIVES], table[1, NEGATIVES], value)


def wilson(share: ArrayLike, count: ArrayLike, quantile: float = QUANTILE) -> tuple[Array, Array]:
    """Return Wilson's interval of a share of `count` samples.

    >>> [round(float(end), 4) for end in wilson(0.8, 10)]
    [0.4902, 0.9433]
    """
    p, n = float64(share), float64(count)
    centre = p + quantile**2 / (2 * n)
    half = quantile * np.sqrt(p * (1 - p) / n + quantile**2 / (4 * n**2))
    scale = 1 + quantile**2 / n
    return (centre - half) / scale, (centre + half) / scale


def mean_of_rates(recognised: ArrayLike, totals: ArrayLike) -> Limits:
    """Return the interval of the plain mean of several classes' recalls.

    Args:
        recognised: The number of samples of each class that were recognised.
        totals: The number of samples of each class.

    Returns:
        The interval, or the reason why there is none.
    """
    right, n = float64(recognised), float64(totals)
    if n.min(initial=np.inf) < FEWEST_RATE:
        return Limits(reason=FEW.format(FEWEST_RATE))
    share = right / n
    low, high = wilson(share, n)
    mean = float(share.mean())
    below = float(np.sqrt(((share - low) ** 2).sum())) / len(n)
    above = float(np.sqrt(((high - share) ** 2).sum())) / len(n)
    return Limits(max(0.0, mean - below), min(1.0, mean + above))


def auroc_limits(positives: Array, negatives: Array, value: float) -> Limits:
    """Return the interval of an AUROC.

    Args:
        positives: histogram of the positive samples, by rising score.
        negatives: histogram of the negative samples, by rising score.
        value: the AUROC of the scores.

    Returns:
        The interval, or the reason why there is none.
    """
    from scipy.special import stdtrit

    p, n = float64(positives), float64(negatives)
    m, k = float(p.sum()), float(n.sum())
    if reason := _too_few(m, k, value):
        return Limits(reason=reason)
    # Placement values: the share of the other class that a sample is ranked right against.
    above_negatives = (np.cumsum(n) - n / 2) / k
    below_positives = 1 - (np.cumsum(p) - p / 2) / m
    prior = PRIOR_WEIGHT * (value - 0.5) ** 2
    of_positives = _variance(above_negatives, p, prior) / m
    of_negatives = _variance(below_positives, n, prior) / k
    variance = of_positives + of_negatives
    freedom = variance**2 / (of_positives**2 / (m - 1) + of_negatives**2 / (k - 1))
    return _on_log_odds(value, variance, float(stdtrit(freedom, 0.975)))


def auprc_limits(positives: Array, negatives: Array, value: float) -> Limits:
    """Return the interval of an AUPRC (average precision) at this share of positives.

    Args:
        positives: histogram of the positive samples, by rising score.
        negatives: histogram of the negative samples, by rising score.
        value: the AUPRC of the scores.

    Returns:
        The interval, or the reason why there is none.
    """
    from scipy.special import stdtrit

    # From the highest score down, without empty bins.
    filled = (float64(positives) + float64(negatives)) > 0
    p, n = float64(positives)[filled][::-1], float64(negatives)[filled][::-1]
    m, k = float(p.sum()), float(n.sum())
    if reason := _too_few(m, k, value):
        return Limits(reason=reason)
    true, false = np.cumsum(p), np.cumsum(n)
    precision = true / (true + false)
    area = float(precision @ p / m)
    # The derivative of the area by the weight of one sample: it raises or lowers the precision at
    # its own score and at every lower one.
    squared = (true + false) ** 2
    raises = np.cumsum((p * false / squared)[::-1])[::-1]
    lowers = np.cumsum((p * true / squared)[::-1])[::-1]
    of_positive = (precision - area + raises) / m
    of_negative = -lowers / m
    variance = m * _variance(of_positive, p) + k * _variance(of_negative, n)
    return _on_log_odds(value, variance, float(stdtrit(m - 1, 0.975)))


def sensitivity_limits(positives: Array, negatives: Array, value: float) -> Limits:
    """Return the interval of the sensitivity at 90 % specificity.

    The threshold is itself an estimate.

    Args:
        positives: Histogram of the positive samples, by rising score.
        negatives: Histogram of the negative samples, by rising score.
        value: The sensitivity at the threshold with 90 % specificity on these negatives.

    Returns:
        The interval, or the reason why there is none.
    """
    from scipy.special import bdtrik

    p, n = float64(positives)[::-1], float64(negatives)[::-1]
    m, k = float(p.sum()), float(n.sum())
    if m < FEWEST_RANKED:
        return Limits(reason=FEW.format(FEWEST_RANKED))
    if k < FEWEST_NEGATIVES:
        return Limits(reason=f"fewer than {FEWEST_NEGATIVES} negative test samples")
    true, false = np.cumsum(p), np.cumsum(n)

    def sensitivity(false_alarms: float) -> float:
        """Return the sensitivity at a number of false positives."""
        return float(np.where(false <= false_alarms, true, 0).max() / m)

    # The true threshold has a binomial number of false alarms among these negatives.
    fewest, most = (int(np.ceil(bdtrik(q, k, FALSE_ALARMS))) for q in (0.025, 0.975))
    low, high = (float(end) for end in wilson(value, m))
    below = _variation(value - sensitivity(max(0, fewest)), m)
    above = _variation(sensitivity(most) - value, m)
    lowest = value - float(np.sqrt((value - low) ** 2 + below))
    highest = value + float(np.sqrt((high - value) ** 2 + above))
    near = (false > fewest) & (false - n <= most)
    if n[near].max(initial=0.0) > (most - fewest) / 2:
        # Many equal scores: the threshold of another test set lies above or below all of them.
        lowest = min(lowest, float(wilson(sensitivity(max(0, fewest)), m)[0]))
        highest = max(highest, float(wilson(sensitivity(most), m)[1]))
    return Limits(max(0.0, lowest), min(1.0, highest))


def _variation(change: float, count: float) -> float:
    """Return a squared change of the sensitivity, less the variation of positives in between."""
    change = max(0.0, change)
    return max(0.0, change**2 - change * (1 - change) / count)


def _variance(values: Array, counts: Array, prior: float = 0.0) -> float:
    """Return the sample variance of values that occur `counts` times.

    `prior` is added to the sum of squares.
    """
    count = float(counts.sum())
    mean = float(values @ counts / count)
    return (float((values - mean) ** 2 @ counts) + prior) / (count - 1)


def _too_few(positives: float, negatives: float, value: float) -> str:
    if min(positives, negatives) < FEWEST_RANKED:
        return FEW.format(FEWEST_RANKED)
    return PERFECT if not 0 < value < 1 else ""


def _on_log_odds(value: float, variance: float, quantile: float) -> Limits:
    half = quantile * np.sqrt(variance) / (value * (1 - value))
    odds = np.log(value / (1 - value))
    low, high = (1 / (1 + np.exp(-(odds + end))) for end in (-half, half))
    return Limits(float(low), float(high))

"""Histograms of a model's scores by class, and the clinical metrics that follow from them.

A client sends a histogram instead of scores. It is an array (classes, 4, bins). For every class it
counts, by the score of that class, the samples of the class (POSITIVES), all others (NEGATIVES),
and those of both for which the model predicted the class (FOUND, MISTAKEN).

Bins have edges at every whole per cent, so that a threshold in whole per cent is exact. Below 12 %
and above 88 % there are further edges at equal steps of the log odds, because the scores of a
confident model concentrate near 0 and 1. Histograms of older versions have 101 bins, with scores
rounded to whole per cent; every function takes both.

The metrics are those of `metrics.clinical` with samples in one bin counted as ties: `resolution`
bounds the difference to the metrics of the scores. With two classes they are those of the second
class, with more classes the plain mean over the classes that occur.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.metrics.performance import classified
from equipoise.validation.arrays import Array, float64

POSITIVES, NEGATIVES, FOUND, MISTAKEN = range(4)
MEASURES = (
    "auroc",
    "auprc",
    "balanced_accuracy",
    "sensitivity_at_specificity",
    "calibration_error",
)
CONFIDENCES = 15  # bins of the calibration error, as in `clinical.calibration_error`
FALSE_ALARMS = 0.1  # share of negatives allowed, as in `clinical.sensitivity_at_specificity`
ROUNDED = 101  # bins of older versions: scores rounded to whole per cent
Counts = NDArray[np.int64]


def _inner_edges() -> Array:
    """Return the edges between bins, rising; a score that equals an edge lies above it."""
    log_odds = np.concatenate([np.arange(20, 100) / 10, np.arange(40, 141) / 4])
    near_0 = 1 / (1 + np.exp(log_odds))
    # Near 1, double precision ends at log odds of 35; near 0, scores of e to the power -700 still
    # differ.
    tiny = np.exp(-35 * 1.02 ** np.arange(1, 151))
    return np.sort(np.concatenate([tiny, near_0, np.arange(1, 100) / 100, 1 - near_0]))


EDGES = _inner_edges()
BINS = len(EDGES) + 1


def counted(probabilities: ArrayLike, labels: ArrayLike) -> Counts:
    """Count the samples of a test set by class and score.

    Args:
        probabilities: scores from 0 to 1, shape (samples, classes).
        labels: the class of each sample.

    Returns:
        The histogram, shape (classes, 4, bins).

    Raises:
        ValueError: if a score is not a number from 0 to 1.

    >>> table = counted([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], [0, 1, 0])
    >>> table.shape == (2, 4, BINS), table[1].sum(-1).tolist()
    (True, [1, 2, 1, 1])
    >>> at_threshold(table[1, POSITIVES], table[1, NEGATIVES], 60)["specificity"]
    0.5
    """
    p, y = classified(probabilities, labels, "probabilities")
    # Rounding may leave a probability a little above 1; NaN is in no range.
    if not ((p >= 0) & (p <= 1 + 1e-9)).all():
        raise ValueError("probabilities: expected numbers from 0 to 1; take softmax(logits)")
    bins = np.searchsorted(EDGES, p, side="right")
    predicted = p.argmax(1)
    table = np.zeros((p.shape[1], 4, BINS), np.int64)
    for c in range(p.shape[1]):
        own, named = y == c, predicted == c
        rows = {
            POSITIVES: own,
            NEGATIVES: ~own,
            FOUND: own & named,
            MISTAKEN: ~own & named,
        }
        for row, chosen in rows.items():
            table[c, row] = np.bincount(bins[chosen, c], minlength=BINS)
    return table


@cache
def limits(bins: int) -> tuple[Array, Array]:
    """Return the lowest and the highest score of every bin of a histogram with this many bins."""
    if bins == ROUNDED:
        half = np.arange(1, ROUNDED) / 100 - 0.005
        return np.append(0.0, half), np.append(half, 1.0)
    if bins != BINS:
        raise ValueError(f"expected a histogram with {BINS} or {ROUNDED} bins, got {bins}")
    return np.append(0.0, EDGES), np.append(EDGES, 1.0)


@cache
def scores(bins: int) -> Array:
    """Return the score that stands for every bin of a histogram with this many bins."""
    if bins == ROUNDED:
        return np.arange(ROUNDED) / 100
    low, high = limits(bins)
    return (low + high) / 2


def first_bin(percent: int, bins: int) -> int:
    """Return the first bin whose scores reach a threshold in whole per cent."""
    if bins == ROUNDED:
        return percent
    return int(np.searchsorted(limits(bins)[0], percent / 100))


def total(table: Counts) -> int:
    """Return the number of counted samples."""
    return int(table[0, [POSITIVES, NEGATIVES]].sum())


def fault(table: Any, classes: int, samples: int | None = None, bins: int = BINS) -> str | None:
    """Return what is wrong with a received histogram, or None if it is valid."""
    counts = np.asarray(table)
    if counts.shape != (classes, 4, bins) or counts.dtype.kind not in "iu" or (counts < 0).any():
        return (
            f"expected counts of shape ({classes}, 4, {bins}), "
            f"got {counts.dtype} of shape {counts.shape}"
        )
    sums = counts.sum(-1)
    whole = sums[:, POSITIVES] + sums[:, NEGATIVES]
    alike = (
        whole.min() == whole.max() == sums[:, POSITIVES].sum() == sums[:, [FOUND, MISTAKEN]].sum()
    )
    fits = (counts[:, FOUND] <= counts[:, POSITIVES]).all() and (
        counts[:, MISTAKEN] <= counts[:, NEGATIVES]
    ).all()
    if not alike or not fits or (samples is not None and whole.max() != samples):
        return f"its counts contradict each other, or the {samples} samples they are of"
    return None


def measures(table: ArrayLike) -> dict[str, float]:
    """Return the metrics of a histogram; NaN where one does not exist.

    >>> found = measures(counted([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.5, 0.5]], [0, 1, 0, 1]))
    >>> {name: round(value, 4) for name, value in found.items() if name != "calibration_error"}
    {'auroc': 0.75, 'auprc': 0.8333, 'balanced_accuracy': 0.5, 'sensitivity_at_specificity': 0.5}
    """
    n = float64(table)
    ranked = _ranked_classes(n)
    recalls = [
        float(n[c, FOUND].sum() / n[c, POSITIVES].sum())
        for c in range(len(n))
        if n[c, POSITIVES].any()
    ]
    return {
        "auroc": _mean([_auroc(p, q) for p, q in ranked]),
        "auprc": _mean([_auprc(p, q) for p, q in ranked]),
        "balanced_accuracy": _mean(recalls),
        "sensitivity_at_specificity": _mean([_sensitivity(p, q) for p, q in ranked]),
        "calibration_error": _calibration_error(n),
    }


def resolution(table: ArrayLike) -> dict[str, float]:
    """Return for every metric a bound of its distance from the metric of the scores.

    Within a bin the order of samples is unknown. For most data the difference is far smaller.

    >>> resolution(counted([[0.299, 0.701], [0.298, 0.702]], [1, 0]))["auroc"]
    0.5
    """
    n = float64(table)
    ranked = _ranked_classes(n)
    return {
        "auroc": _mean([float(p @ q / (2 * p.sum() * q.sum())) for p, q in ranked]),
        "auprc": _mean([_auprc_resolution(p, q) for p, q in ranked]),
        "balanced_accuracy": 0.0,
        "sensitivity_at_specificity": _mean([_sensitivity_resolution(p, q) for p, q in ranked]),
        "calibration_error": _calibration_resolution(n),
    }


def pooled(tables: Sequence[Counts]) -> Counts:
    """Return one histogram of the samples of several.

    If one is of an older version, the result is as coarse as that.
    """
    bins = {table.shape[-1] for table in tables}
    if len(bins) > 1:
        tables = [_rounded(table) for table in tables]
    return np.asarray(np.sum(tables, axis=0), dtype=np.int64)


def majority(table: Counts) -> float:
    """Return the share of the most frequent class: the accuracy of always predicting it."""
    return float(table[:, POSITIVES].sum(-1).max() / total(table)) if total(table) else float("nan")


def roc(positives: ArrayLike, negatives: ArrayLike) -> tuple[Array, Array]:
    """Return 1 - specificity and sensitivity as the threshold falls from above 1 to 0.

    >>> x, y = roc(*counted([[0.5, 0.5], [0, 1]], [0, 1])[1, :2])
    >>> x[[0, 1, -1]].tolist(), y[[0, 1, -1]].tolist()
    ([0.0, 0.0, 1.0], [0.0, 1.0, 1.0])
    """
    rates = [
        np.append(0.0, _falling(float64(n))) / max(1.0, float(float64(n).sum()))
        for n in (negatives, positives)
    ]
    return rates[0], rates[1]


def calibration(
    positives: ArrayLike, negatives: ArrayLike, groups: int = 10
) -> list[tuple[float, float, int]]:
    """Return mean score, share of positives and number of samples for every tenth that occurs."""
    p, n = float64(positives), float64(negatives)
    score = scores(len(p))
    group = np.minimum((score * groups + 1e-9).astype(np.int64), groups - 1)
    points = []
    for g in range(groups):
        here = group == g
        count = float((p + n)[here].sum())
        if count:
            mean = float(((p + n) * score)[here].sum() / count)
            points.append((mean, float(p[here].sum() / count), int(count)))
    return points


def at_threshold(positives: ArrayLike, negatives: ArrayLike, percent: int) -> dict[str, float]:
    """Return sensitivity, specificity, PPV and NPV of calling samples positive from a score on.

    Exact, but for histograms of older versions, where a score of 49.5 % counts as 50 %.

    Args:
        positives: histogram of the samples that have the class.
        negatives: histogram of all others.
        percent: the threshold on the score, a whole number from 0 to 100.

    Returns:
        The four shares; NaN where no sample is called so.
    """
    p, n = float64(positives), float64(negatives)
    first = first_bin(percent, len(p))
    true, false = float(p[first:].sum()), float(n[first:].sum())
    missed, cleared = float(p[:first].sum()), float(n[:first].sum())
    ratios = {
        "sensitivity": (true, true + missed),
        "specificity": (cleared, cleared + false),
        "ppv": (true, true + false),
        "npv": (cleared, cleared + missed),
    }
    return {name: part / whole if whole else float("nan") for name, (part, whole) in ratios.items()}


def _ranked_classes(n: Array) -> list[tuple[Array, Array]]:
    """Return positives and negatives of the classes that a ranking measure averages over."""
    chosen = [1] if len(n) == 2 else range(len(n))
    pairs = [(n[c, POSITIVES], n[c, NEGATIVES]) for c in chosen]
    return [(p, q) for p, q in pairs if p.any() and q.any()]


def _falling(counts: Array) -> Array:
    """Return how many samples have at least a score, from the highest score down."""
    return np.asarray(np.cumsum(counts[::-1]), dtype=np.float64)


def _auroc(positives: Array, negatives: Array) -> float:
    false = _falling(negatives)
    below = false[-1] - false + negatives[::-1] / 2
    return float(positives[::-1] @ below / (positives.sum() * false[-1]))


def _auprc(positives: Array, negatives: Array) -> float:
    true, false = _falling(positives), _falling(negatives)
    precision = true / np.maximum(true + false, 1)
    return float(precision @ positives[::-1] / true[-1])


def _sensitivity(positives: Array, negatives: Array) -> float:
    true, false = _falling(positives), _falling(negatives)
    # (1 - 0.9) * 10 is a little below 1 in floating point.
    allowed = (FALSE_ALARMS + 1e-9) * false[-1]
    return float(np.where(false <= allowed, true, 0).max() / true[-1])


def _auprc_resolution(positives: Array, negatives: Array) -> float:
    """Return the bound for AUPRC: positives of a bin before or after its negatives."""
    from scipy.special import digamma

    true, false = _falling(positives), _falling(negatives)
    own, other = positives[::-1], negatives[::-1]

    def area(negatives_before: Array) -> float:
        """Return the average precision with so many negatives before each positive."""
        # The sum over j = 1 ... own of t / (t + before), where t = true - own + j.
        first, last = true - own + negatives_before + 1, true + negatives_before + 1
        return float((own - negatives_before * (digamma(last) - digamma(first))).sum() / true[-1])

    value = _auprc(positives, negatives)
    return max(area(false - other) - value, value - area(false), 0.0)


def _sensitivity_resolution(positives: Array, negatives: Array) -> float:
    """Return the bound for sensitivity: a threshold within a bin finds all positives at best."""
    true, false = _falling(positives), _falling(negatives)
    allowed = (FALSE_ALARMS + 1e-9) * false[-1]
    best = np.where(false - negatives[::-1] <= allowed, true, 0).max() / true[-1]
    return float(best) - _sensitivity(positives, negatives)


def _confidence_groups(bins: int) -> NDArray[np.int64]:
    """Return the group of confidence that every bin belongs to."""
    score = scores(bins)
    group = np.ceil(score * CONFIDENCES - 1e-9).astype(np.int64) - 1
    return np.asarray(np.clip(group, 0, CONFIDENCES - 1), dtype=np.int64)


def _calibration_error(n: Array) -> float:
    """Return |accuracy - confidence| of the predicted class, averaged over groups."""
    right = n[:, FOUND].sum(0)
    named = right + n[:, MISTAKEN].sum(0)
    if not named.any():
        return float("nan")
    gap = right - named * scores(n.shape[-1])
    by_group = np.bincount(_confidence_groups(n.shape[-1]), weights=gap)
    return float(np.abs(by_group).sum() / named.sum())


def _calibration_resolution(n: Array) -> float:
    """Return the bound for the calibration error.

    It is half of a bin for the confidence, and twice the gap of samples that may belong to the next
    group.
    """
    low, high = limits(n.shape[-1])
    score = scores(n.shape[-1])
    right = n[:, FOUND].sum(0)
    named = right + n[:, MISTAKEN].sum(0)
    if not named.any():
        return float("nan")
    half = np.maximum(score - low, high - score)
    straddles = np.floor(low * CONFIDENCES + 1e-9) < np.ceil(high * CONFIDENCES - 1e-9) - 1
    gap = right * (1 - low) + (named - right) * high
    return float((named @ half + 2 * gap[straddles].sum()) / named.sum())


def _rounded(table: Counts) -> Counts:
    """Return a histogram in the 101 bins of older versions, by the score of each bin."""
    if table.shape[-1] == ROUNDED:
        return table
    percent = np.rint(100 * scores(table.shape[-1])).astype(np.int64)
    return np.stack([table[..., percent == k].sum(-1) for k in range(ROUNDED)], axis=-1)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")

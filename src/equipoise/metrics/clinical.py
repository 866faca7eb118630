"""Clinical metrics from probabilities and labels.

`probabilities` is (samples,), the probability of class 1 (for the ranking metrics AUROC, AUPRC and
sensitivity, any score of it), or (samples, classes). With `logits=True` the ranking metrics take
the outputs of a network, (samples, classes), which tell apart confident samples that have a
probability of 1 after rounding. With two classes the metric is that of class
1, the positive one; with more it is the plain mean over classes of "this class against the rest"
(macro). A class that does not occur among the labels has no such value: it is left out of the mean
with a `PartialMetric` warning, and where nothing is left the result is NaN with an
`UndefinedMetric` warning. Both are common under label skew: compare such means between methods on
one client, not between clients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.metrics.performance import classified, hits, log_odds
from equipoise.metrics.undefined import PartialMetric, undefined
from equipoise.validation.arrays import Array, float64, vector

Labels = NDArray[np.int64]


def auroc(probabilities: ArrayLike, labels: ArrayLike, *, logits: bool = False) -> float:
    """Return the area under the ROC curve.

    It is the probability that a positive is scored above a negative, where ties count half.

    >>> auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.75
    """

    def area(scores: Array, positive: NDArray[np.bool_]) -> float:
        """Return the area of one class."""
        true, false = _counts_by_threshold(scores, positive)
        return float((true[1:] + true[:-1]) @ np.diff(false) / (2 * true[-1] * false[-1]))

    return _against_the_rest("AUROC", area, probabilities, labels, logits)


def auprc(probabilities: ArrayLike, labels: ArrayLike, *, logits: bool = False) -> float:
    """Return the area under the precision-recall curve as average precision.

    There is no interpolation. A random score has the share of positives.

    >>> round(auprc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]), 4)
    0.8333
    """

    def area(scores: Array, positive: NDArray[np.bool_]) -> float:
        """Return the area of one class."""
        true, false = _counts_by_threshold(scores, positive)
        precision = true[1:] / (true[1:] + false[1:])
        return float(precision @ np.diff(true) / true[-1])

    return _against_the_rest("AUPRC", area, probabilities, labels, logits)


def sensitivity_at_specificity(
    probabilities: ArrayLike,
    labels: ArrayLike,
    specificity: float = 0.9,
    *,
    logits: bool = False,
) -> float:
    """Return the largest sensitivity of a threshold with at least this specificity.

    The threshold is chosen on the same samples, so the value is too high on a small test set.

    >>> sensitivity_at_specificity([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.5
    """
    if not 0 <= specificity <= 1:
        raise ValueError(f"specificity: expected a share from 0 to 1, got {specificity:g}")

    def sensitivity_of_class(scores: Array, positive: NDArray[np.bool_]) -> float:
        """Return the sensitivity of one class."""
        true, false = _counts_by_threshold(scores, positive)
        # (1 - 0.9) * 10 is a little below 1 in floating point
        allowed = (1 - specificity + 1e-9) * false[-1]
        return float(true[false <= allowed].max() / true[-1])

    return _against_the_rest(
        "sensitivity at a specificity", sensitivity_of_class, probabilities, labels, logits
    )


def balanced_accuracy(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean recall over the classes that occur, also with two classes.

    >>> balanced_accuracy([0.2, 0.3, 0.9, 0.1], [0, 0, 1, 1])
    0.75
    """
    p, y = _by_class(probabilities, labels)
    present = np.unique(y)
    if not len(present):
        return undefined("balanced accuracy is undefined: there are no samples")
    _tell_left_out("balanced accuracy", set(range(p.shape[1])) - set(present.tolist()), p.shape[1])
    right = hits(p, y)
    return float(np.mean([right[y == c].mean() for c in present]))


def f1(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return F1 = 2 TP / (2 TP + FP + FN).

    A class that is neither labelled nor predicted is left out; one that is only predicted counts 0.

    >>> f1([0.2, 0.6, 0.9, 0.1], [0, 0, 1, 1])
    0.5
    """
    p, y = _by_class(probabilities, labels)
    predicted = np.where(np.isnan(p).any(1), -1, p.argmax(1))
    classes = [1] if p.shape[1] == 2 else range(p.shape[1])
    involved = {c: int((y == c).sum() + (predicted == c).sum()) for c in classes}
    scores = [
        2 * int(((y == c) & (predicted == c)).sum()) / count
        for c, count in involved.items()
        if count
    ]
    if not scores:
        return undefined("F1 is undefined: no sample is positive and none is called so")
    _tell_left_out("F1", {c for c, count in involved.items() if not count}, p.shape[1])
    return float(np.mean(scores))


def calibration_error(probabilities: ArrayLike, labels: ArrayLike, bins: int = 15) -> float:
    """Return the expected calibration error (Guo et al., ICML 2017, Eq. 3).

    It is |accuracy - confidence| averaged over equal bins of the confidence of the predicted class.
    With few samples per bin it is above zero for a perfect model, too.

    >>> round(calibration_error([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 0]), 4)
    0.15
    """
    if bins < 1:
        raise ValueError(f"bins: expected at least 1, got {bins}")
    p, y = _by_class(probabilities, labels)
    if not len(y):
        return undefined("calibration error is undefined: there are no samples")
    if np.isnan(p).any():
        return undefined(
            "calibration error is undefined: some probabilities are NaN; the model has diverged"
        )
    confidence = p.max(1)
    of_bin = np.clip(np.ceil(confidence * bins) - 1, 0, bins - 1).astype(int)
    gap = np.bincount(of_bin, weights=hits(p, y) - confidence)
    return float(np.abs(gap).sum() / len(y))


def _by_class(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Array, Labels]:
    """Return probabilities as (samples, classes).

    They are checked, because logits would silently give wrong numbers.
    """
    p = float64(probabilities)
    if p.ndim == 1 or p.shape[1:] == (1,):
        p = np.stack([1 - vector(p), vector(p)], axis=1)
    p, y = classified(p, labels, "probabilities")
    known = p[~np.isnan(p).any(1)]
    if p.shape[1] < 2 or (known < 0).any() or (np.abs(known.sum(1) - 1) > 1e-3).any():
        raise ValueError(
            "probabilities: expected numbers from 0 to 1, each row summing to one over two "
            "classes or more; take softmax(logits)"
        )
    return p, y


def _against_the_rest(
    name: str,
    measure: Callable[[Array, NDArray[np.bool_]], float],
    probabilities: ArrayLike,
    labels: ArrayLike,
    logits: bool,
) -> float:
    ranking = float64(probabilities)
    if logits:
        p, y = classified(log_odds(ranking), labels, "logits")
    elif ranking.ndim == 1:  # only the order counts, so any score of class 1 will do
        p, y = classified(np.stack([-ranking, ranking], axis=1), labels, "probabilities")
    else:
        p, y = _by_class(ranking, labels)
    if np.isnan(p).any():
        return undefined(f"{name} is undefined: some probabilities are NaN; the model has diverged")
    classes = [1] if p.shape[1] == 2 else range(p.shape[1])
    usable = [c for c in classes if 0 < (y == c).sum() < len(y)]
    if not usable:
        return undefined(
            f"{name} is undefined: it needs samples of two classes, the {len(y)} labels have "
            f"{np.unique(y).tolist()}"
        )
    _tell_left_out(name, set(classes) - set(usable), p.shape[1])
    return float(np.mean([measure(p[:, c], y == c) for c in usable]))


def _tell_left_out(name: str, left_out: set[int], classes: int) -> None:
    if left_out:
        text = (
            f"{name}: classes {sorted(left_out)} do not occur, so the mean is over the other "
            f"{classes - len(left_out)}"
        )
        warnings.warn(text, PartialMetric, stacklevel=3)


def _counts_by_threshold(scores: Array, positive: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return true and false positives as the threshold falls past each distinct score."""
    order = np.argsort(-scores, kind="stable")
    last_of_ties = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    true = np.cumsum(positive[order])[last_of_ties].astype(np.float64)
    return np.append(0.0, true), np.append(0.0, last_of_ties + 1 - true)

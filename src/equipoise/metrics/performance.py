"""Performance of one model on one test set, from outputs and targets."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray

from equipoise.metrics.undefined import undefined
from equipoise.validation.arrays import Array, float64, vector, vectors


def accuracy(logits: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of samples whose largest logit is that of their label.

    A row without a finite largest logit is no prediction and counts as wrong.

    >>> accuracy([[2, 1], [0, 3], [1, 0]], [0, 1, 1])
    0.6666666666666666
    """
    z, y = classified(logits, labels, "logits")
    return (
        float(np.mean(hits(z, y)))
        if len(y)
        else undefined("accuracy is undefined: there are no samples")
    )


def hits(scores: Array, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return True for each row that is largest at its label.

    No row of a diverged model is; a row that masks other classes by -inf may be.
    """
    return np.asarray(
        (scores.argmax(1) == labels) & np.isfinite(scores.max(1, initial=-np.inf)), dtype=np.bool_
    )


def log_loss(logits: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean cross-entropy in nats.

    >>> round(log_loss([[0, 0], [0, 0]], [0, 1]), 6)
    0.693147
    """
    z, y = classified(logits, labels, "logits")
    if not len(y):
        return undefined("log loss is undefined: there are no samples")
    if not np.isfinite(z.max(1)).all():
        return undefined(
            "log loss is undefined: some logits are NaN or infinite; the model has diverged"
        )
    # torch's own: the bits of a run that is resumed are those it began with
    return float(F.cross_entropy(torch.tensor(z), torch.tensor(y)))


def softmax(logits: ArrayLike) -> Array:
    """Return logits, one row per sample, as probabilities.

    >>> softmax([[0, 0], [1000, 0]]).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    z = float64(logits)
    e = np.exp(z - z.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True), dtype=np.float64)


def log_odds(logits: ArrayLike) -> Array:
    """Return the log odds of each class against all others, one row per sample.

    They order samples as probabilities do, but keep apart what rounding makes 1: double precision
    has no probabilities between 1 - 1e-16 and 1. Rows without a finite largest logit are NaN.

    >>> log_odds([[0, 0], [0, 50], [0, 60]]).tolist()
    [[0.0, 0.0], [-50.0, 50.0], [-60.0, 60.0]]
    """
    z = float64(logits)
    largest = z.max(-1, keepdims=True, initial=-np.inf)
    z = np.where(np.isfinite(largest), z, np.nan)
    rows, top = np.arange(len(z)), z.argmax(-1)
    exponentials = np.exp(z - largest)
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = z - largest - np.log(exponentials.sum(-1, keepdims=True) - exponentials)
        # For the largest logit that difference loses all digits.
        others = z.copy()
        others[rows, top] = -np.inf
        second = others.max(-1, keepdims=True)
        rest = np.where(np.isfinite(second), np.exp(others - second), 0.0).sum(-1)
        odds[rows, top] = z[rows, top] - second[:, 0] - np.log(rest)
    odds[rows[np.isneginf(second[:, 0])], top[np.isneginf(second[:, 0])]] = np.inf
    return np.where(np.isnan(z), np.nan, np.clip(odds, -1e308, 1e308))


def squared_error(outputs: ArrayLike, targets: ArrayLike) -> float:
    """Return the mean squared error.

    >>> squared_error([1, 2, 3], [1, 2, 5])
    1.3333333333333333
    """
    y, t = vectors(outputs, targets, ("outputs", "targets"))
    return (
        float(np.mean((y - t) ** 2))
        if len(y)
        else undefined("the squared error is undefined: there are no samples")
    )


def rmse(outputs: ArrayLike, targets: ArrayLike) -> float:
    """Return the root of the mean squared error over the whole set.

    A mean of batch values would be another number.

    >>> rmse([1, 2, 3], [1, 2, 5])
    1.1547005383792515
    """
    return float(np.sqrt(squared_error(outputs, targets)))


def mae(outputs: ArrayLike, targets: ArrayLike) -> float:
    """Return the mean absolute error.

    >>> mae([[1], [2], [3]], [1, 2, 6])
    1.0
    """
    y, t = vectors(outputs, targets, ("outputs", "targets"))
    return (
        float(np.mean(np.abs(y - t)))
        if len(y)
        else undefined("MAE is undefined: there are no samples")
    )


def classified(scores: ArrayLike, labels: ArrayLike, name: str) -> tuple[Array, NDArray[np.int64]]:
    """Return checked rows of one score per class, and labels that fit them."""
    z, y = float64(scores), vector(labels, "labels")
    if z.ndim != 2 or len(z) != len(y):
        raise ValueError(
            f"{name}: expected shape (samples, classes) with {len(y)} rows, one per label, got "
            f"{z.shape}"
        )
    whole = y.astype(np.int64)
    if len(y) and not ((whole == y).all() and whole.min() >= 0 and whole.max() < z.shape[1]):
        wrong = sorted(set(y.tolist()) - set(range(z.shape[1])))
        raise ValueError(
            f"labels: expected whole numbers from 0 to {z.shape[1] - 1}, got {wrong[:5]}; give "
            "one column per class"
        )
    return z, whole

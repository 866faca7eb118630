"""Offsets of outputs that fit one client's mix of labels, or the level of its targets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.metrics.survival_likelihood import intervals_of
from equipoise.task import Task
from equipoise.validation.arrays import Numbers, float64, tensor

# step in any entry: far from the optimum the quadratic model of the loss promises too much
LONGEST = 2.0
STEPS, CLOSE = 200, 1e-9
ROUNDING = 1e-10  # of a loss that is a sum over samples
BISECTIONS = 100
EXTREME = 700.0  # logits beyond which exp overflows


def offsets(outputs: Numbers, y: Numbers, rho: float, task: Task) -> NDArray[np.float64]:
    """Return `class_offsets`, `hazard_offsets` or `mean_offset`, as the task requires.

    Args:
        outputs: The outputs of a model (samples, outputs).
        y: The targets.
        rho: The penalty, positive.
        task: The task; see `has_offsets`.
    """
    if task.classifies:
        return class_offsets(outputs, y, rho)
    if task.survives:
        return hazard_offsets(outputs, y, rho)
    return mean_offset(outputs, y, rho)


def has_offsets(task: Task) -> bool:
    """Return False for a Cox model, in which a constant that is added to all risks cancels."""
    return not task.survives or task.outputs > 1


def class_offsets(logits: Numbers, y: Numbers, rho: float = 1.0) -> NDArray[np.float64]:
    """Return argmin over b of sum_i CE(logits_i + b, y_i) + rho/2 |b|^2; zeros without samples.

    It takes damped Newton steps in float64. At the optimum sum_i p_ic + rho b_c = n_c: the
    probabilities of a class add up to its count, except for the pull to 0. With rho > 0 the loss is
    strictly convex, so a class without samples has a finite offset, too.

    Args:
        logits: Logits (samples, classes).
        y: The labels.
        rho: The penalty, positive.

    Raises:
        ValueError: If shapes do not fit or rho is not positive.

    >>> b = class_offsets([[0.0, 0.0]] * 4, [0, 0, 0, 1])
    >>> p = 1 / (1 + np.exp(b[1] - b[0]))
    >>> (4 * np.array([p, 1 - p]) + b).round(9)
    array([3., 1.])
    """
    scores, labels = float64(logits), float64(y).astype(np.int64)
    if scores.ndim != 2 or labels.shape != scores.shape[:1] or not rho > 0:
        raise ValueError(
            f"expected logits (n, classes), n labels and rho above 0; got shapes {scores.shape}, "
            f"{labels.shape} and rho {rho}"
        )
    counts, b = (
        np.bincount(labels, minlength=scores.shape[1]).astype(np.float64),
        np.zeros(scores.shape[1]),
    )
    value, p = _loss(scores, labels, b, rho)
    for _ in range(STEPS):
        gradient = p.sum(0) - counts + rho * b
        if np.abs(gradient).max(initial=0) <= CLOSE:
            break
        step = -np.linalg.solve(np.diag(p.sum(0) + rho) - p.T @ p, gradient)
        step *= min(1.0, LONGEST / np.abs(step).max())
        tried, after = _loss(scores, labels, b + step, rho)
        # too far: a step that is short enough lowers a convex loss
        while tried > value + ROUNDING * (1 + abs(value)):
            step /= 2
            tried, after = _loss(scores, labels, b + step, rho)
        b, value, p = b + step, tried, after
    return b


def mean_offset(predictions: Numbers, y: Numbers, rho: float = 1.0) -> NDArray[np.float64]:
    """Return argmin over b of sum_i (predictions_i + b - y_i)^2 / 2 + rho/2 b^2.

    This is the mean residual, pulled to 0; it is 0 without samples.

    >>> mean_offset([[1.0], [2.0]], [3.0, 3.0])
    array([1.])
    """
    gaps = float64(y) - float64(predictions).reshape(-1)
    return np.array([gaps.sum() / (len(gaps) + rho)])


def hazard_offsets(logits: Numbers, y: Numbers, rho: float = 1.0) -> NDArray[np.float64]:
    """Return one offset per interval that fits the hazards to the observed events.

    It minimises the negative log-likelihood of discrete times, plus rho/2 |b|^2. Intervals are
    independent: of the patients at risk in interval k, sum_i sigmoid(logit_ik + b_k) + rho b_k is
    the number of events. The left side rises with b_k, which is therefore found by bisection.

    Args:
        logits: Logits of the hazard (patients, intervals).
        y: Times as shares of the horizon, negative where censored.
        rho: The penalty, positive.

    >>> b = hazard_offsets(np.zeros((4, 2)), [0.3, -1.0, -1.0, -1.0])
    >>> (4 / (1 + np.exp(-b[0])) + b[0]).round(6), (3 / (1 + np.exp(-b[1])) + b[1]).round(6)
    (np.float64(1.0), np.float64(0.0))
    """
    scores = float64(logits)
    has_event, survived = intervals_of(tensor(y), scores.shape[1])
    at_risk = (has_event | survived).numpy()
    events = has_event.numpy().sum(0)
    # At the solution |b_k| is at most the number of patients at risk, divided by rho.
    high = at_risk.sum(0) / rho
    low = -high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        hazards = 1 / (1 + np.exp(-np.clip(scores + middle, -EXTREME, EXTREME)))
        is_above = (hazards * at_risk).sum(0) + rho * middle > events
        low, high = np.where(is_above, low, middle), np.where(is_above, middle, high)
    offset: NDArray[np.float64] = (low + high) / 2
    return offset


def _loss(
    logits: NDArray[Any], y: NDArray[Any], b: NDArray[Any], rho: float
) -> tuple[float, NDArray[np.float64]]:
    """Return the penalised loss and the probabilities of all classes."""
    moved = logits + b
    moved = moved - moved.max(1, keepdims=True) if len(moved) else moved
    total = np.log(np.exp(moved).sum(1, keepdims=True))
    return float((total[:, 0] - moved[np.arange(len(y)), y]).sum() + rho / 2 * b @ b), np.exp(
        moved - total
    )

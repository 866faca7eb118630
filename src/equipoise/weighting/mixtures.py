"""Weights of experts in a mixture, by the likelihood of a client's validation labels (Poise).

Throughout, `q[i, j]` is the probability that expert j gives to the label of sample i.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, count, takewhile
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.metrics.survival_likelihood import patient_likelihoods
from equipoise.task import Task
from equipoise.validation.arrays import Numbers, float64, tensor
from equipoise.weighting.shares import softmax

EM_STEPS = 200
NEVER_ZERO = 1e-12
GRID_POINTS = 500  # at most
SMALLEST_VARIANCE = 1e-12  # of an expert's errors, in units of the target's own variance
ON_THE_SIMPLEX = 1e-6  # how far from it numbers may lie by rounding


def chances(outputs: Numbers, y: Numbers, task: Task) -> NDArray[np.float64]:
    """Return q from the outputs of the experts; never 0.

    Args:
        outputs: An array (samples, experts, outputs).
        y: The targets.
        task: The task. For classes q is a probability, for numbers a density, and in survival
            analysis the likelihood of a patient.

    >>> task = Task("classification", (1,), 2)
    >>> chances([[[0.0, 0.0], [0.0, np.log(3)]]], [1], task)
    array([[0.5 , 0.75]])
    """
    rate = {
        "classification": label_chances,
        "regression": number_chances,
        "survival": survival_chances,
    }[task.kind]
    columns = [rate(expert, y) for expert in float64(outputs).swapaxes(0, 1)]
    return np.stack(columns, 1) + NEVER_ZERO


def label_chances(logits: Numbers, y: Numbers) -> NDArray[np.float64]:
    """Return the probability that softmax(logits) gives to each label.

    >>> label_chances([[0.0, 0.0], [0.0, np.log(3)]], [0, 1])
    array([0.5 , 0.75])
    """
    scores = float64(logits)
    shares = np.exp(scores - scores.max(1, keepdims=True)) if len(scores) else scores
    probabilities: NDArray[np.float64] = shares[
        np.arange(len(scores)), float64(y).astype(np.int64)
    ] / shares.sum(1)
    return probabilities


def number_chances(predictions: Numbers, y: Numbers) -> NDArray[np.float64]:
    """Return the density of each target under a Gaussian around its prediction.

    Its variance is that of the errors.

    >>> number_chances([[0.0], [0.0]], [1.0, -1.0]).round(4)
    array([0.242, 0.242])
    """
    errors = (float64(predictions).reshape(-1) - float64(y)) ** 2
    variance = max(float(errors.mean()), SMALLEST_VARIANCE) if len(errors) else 1.0
    density: NDArray[np.float64] = np.exp(-errors / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    return density


def survival_chances(outputs: Numbers, y: Numbers) -> NDArray[np.float64]:
    """Return the likelihood of each patient's time; see `patient_likelihoods`.

    >>> survival_chances([[0.0, 0.0]], [0.7])  # survives the first of two intervals, not the second
    array([0.25])
    """
    scores = tensor(float64(outputs))
    likelihoods: NDArray[np.float64] = patient_likelihoods(scores, tensor(y)).numpy()
    return likelihoods


def grid_steps(experts: int) -> int:
    """Return the number of steps of the finest grid of weights with at most 500 points.

    >>> [(experts, grid_steps(experts), len(simplex_grid(experts))) for experts in (1, 2, 4, 6)]
    [(1, 1, 1), (2, 499, 500), (4, 12, 455), (6, 6, 462)]
    """
    finer = takewhile(
        lambda steps: experts > 1 and comb(steps + experts - 1, steps) <= GRID_POINTS, count(2)
    )
    return max(finer, default=1)


def simplex_grid(
    experts: int, steps: int | None = None, inside: float = 0.05
) -> NDArray[np.float64]:
    """Return all weights in steps of 1 / `steps`, one per row.

    Args:
        experts: The number of experts.
        steps: The number of steps; by default that of the finest grid with at most 500 points.
        inside: How far points are pulled inside, so that no expert has weight 0.

    >>> simplex_grid(2, 2)
    array([[0.025, 0.975],
           [0.5  , 0.5  ],
           [0.975, 0.025]])
    >>> len(simplex_grid(4, 5))
    56
    """
    steps = steps or grid_steps(experts)
    # Stars and bars: the gaps between the places of J - 1 bars among steps + J - 1.
    bars = np.array(
        [
            (-1, *positions, steps + experts - 1)
            for positions in combinations(range(steps + experts - 1), experts - 1)
        ]
    )
    grid: NDArray[np.float64] = (1 - inside) * (
        np.diff(bars, axis=1) - 1
    ) / steps + inside / experts
    return grid


def log_likelihoods(q: Numbers, grid: NDArray[Any]) -> NDArray[np.float64]:
    """Return sum_i log sum_j w_j q_ij for each point w of a grid; tables of clients add.

    >>> log_likelihoods([[0.5, 0.1], [0.5, 0.9]], np.array([[1.0, 0.0], [0.0, 1.0]])).round(3)
    array([-1.386, -2.408])
    """
    likelihoods: NDArray[np.float64] = np.log(float64(q).reshape(-1, grid.shape[1]) @ grid.T).sum(0)
    return likelihoods


def posterior_mean(logs: NDArray[Any], grid: NDArray[Any]) -> NDArray[np.float64]:
    """Return the mean of a grid's points, each weighed by its likelihood.

    >>> posterior_mean(np.log([1.0, 3.0]), np.array([[1.0, 0.0], [0.0, 1.0]]))
    array([0.25, 0.75])
    """
    mean: NDArray[np.float64] = softmax(logs) @ grid
    return mean


def evidence(q: NDArray[Any], pooled: bool = False, least: int = 1) -> NDArray[np.float64]:
    """Return the evidence of a client about its experts.

    It is the mean of its posterior over the grid, or its whole table; zeros if it has too few
    samples.

    Args:
        q: The probabilities of the labels.
        pooled: Return the whole table.
        least: The number of samples below which the evidence is 0.

    >>> evidence(np.array([[0.9, 0.1]] * 3)).round(2)
    array([0.76, 0.24])
    """
    grid = simplex_grid(q.shape[1])
    logs = log_likelihoods(q, grid)
    summary = logs if pooled else posterior_mean(logs, grid)
    return summary if len(q) >= least else np.zeros_like(summary)


def agreed(
    evidence: Sequence[tuple[NDArray[Any], int]], pooled: bool = False
) -> NDArray[np.float64]:
    """Return the prior of the clients.

    It is the mean of their posterior means, or the posterior mean of all samples as one set.
    Evidence that is no posterior, or about another number of experts than most, does not count. If
    none counts, the prior is uniform.

    Args:
        evidence: The result of `evidence` at each client and its number of experts.
        pooled: True if the evidence is tables.

    >>> agreed([(np.array([0.2, 0.8]), 2), (np.array([0.4, 0.6]), 2), (np.array([9.0, 9.0]), 2)])
    array([0.3, 0.7])
    """
    experts = Counter(number for _, number in evidence).most_common(1)[0][0]
    if pooled:
        return _pooled_posterior(evidence, experts)
    means = []
    for client, _ in evidence:
        if client.shape == (experts,) and on_simplex(client):
            means.append(client)
    if not means:
        return np.full(experts, 1 / experts)
    mean: NDArray[np.float64] = np.mean(means, axis=0)
    return mean


def _pooled_posterior(
    evidence: Sequence[tuple[NDArray[Any], int]], experts: int
) -> NDArray[np.float64]:
    """Return the posterior mean of all clients' samples, whose log-likelihoods add up."""
    grid = simplex_grid(experts)
    total = np.zeros(len(grid))
    for client, _ in evidence:
        if client.shape == grid.shape[:1]:
            total = total + client
    return posterior_mean(total, grid)


def on_simplex(weights: Numbers) -> bool:
    """Return True if numbers are weights: none negative, with sum 1.

    >>> on_simplex([0.25, 0.75]), on_simplex([0.0, 0.0]), on_simplex([-0.5, 1.5])
    (True, False, False)
    """
    values = float64(weights)
    return bool(
        np.isfinite(values).all()
        and (values >= -ON_THE_SIMPLEX).all()
        and abs(values.sum() - 1) <= ON_THE_SIMPLEX
    )


def mixture_weights(
    q: Numbers, prior: Numbers, kappa: float, steps: int = EM_STEPS
) -> NDArray[np.float64]:
    """Return the weights with the highest likelihood times prior, by EM from the prior.

    The prior is a Dirichlet distribution around `prior`, worth `kappa` samples. Without samples,
    with a large kappa, or if all experts agree, the result is the prior.

    Args:
        q: The probabilities of the labels.
        prior: The mean of the prior.
        kappa: The strength of the prior in samples.
        steps: The largest number of steps.

    >>> mixture_weights([[0.9, 0.1], [0.8, 0.2]], [0.5, 0.5], kappa=2.0).round(3)
    array([0.717, 0.283])
    >>> mixture_weights(np.empty((0, 2)), [0.4, 0.6], kappa=0.0)
    array([0.4, 0.6])
    """
    start = float64(prior)
    likelihoods, w = float64(q).reshape(-1, len(start)), start
    for _ in range(steps if len(likelihoods) else 0):
        r = w * likelihoods
        r /= r.sum(1, keepdims=True)
        w = (r.sum(0) + kappa * start) / (len(likelihoods) + kappa)
    return w

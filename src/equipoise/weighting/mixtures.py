"""How much each of several experts counts in a mixture of their probabilities, by the likelihood of a client's own validation labels.

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

from equipoise.validation.arrays import Numbers, float64
from equipoise.weighting.shares import softmax

EM_STEPS = 200
NEVER_ZERO = 1e-12
GRID_POINTS = 500  # at most
SMALLEST_VARIANCE = 1e-12  # of an expert's errors, in units of the target's own variance
ON_THE_SIMPLEX = 1e-6  # how far from it numbers may lie by rounding


def chances(outputs: Numbers, y: Numbers, classifies: bool) -> NDArray[np.float64]:
    """q from what the experts say (samples, experts, outputs): the probability of each label, or the density of each number; never 0.

    >>> chances([[[0.0, 0.0], [0.0, np.log(3)]]], [1], classifies=True)
    array([[0.5 , 0.75]])
    """
    rate = label_chances if classifies else number_chances
    return np.stack([rate(one, y) for one in float64(outputs).swapaxes(0, 1)], 1) + NEVER_ZERO


def label_chances(logits: Numbers, y: Numbers) -> NDArray[np.float64]:
    """The probability that softmax(logits) gives to each sample's label.

    >>> label_chances([[0.0, 0.0], [0.0, np.log(3)]], [0, 1])
    array([0.5 , 0.75])
    """
    given = float64(logits)
    shares = np.exp(given - given.max(1, keepdims=True)) if len(given) else given
    found: NDArray[np.float64] = shares[
        np.arange(len(given)), float64(y).astype(np.int64)
    ] / shares.sum(1)
    return found


def number_chances(predictions: Numbers, y: Numbers) -> NDArray[np.float64]:
    """The density of each sample's number under a Gaussian around its prediction, of the variance that these errors have.

    >>> number_chances([[0.0], [0.0]], [1.0, -1.0]).round(4)
    array([0.242, 0.242])
    """
    errors = (float64(predictions).reshape(-1) - float64(y)) ** 2
    variance = max(float(errors.mean()), SMALLEST_VARIANCE) if len(errors) else 1.0
    density: NDArray[np.float64] = np.exp(-errors / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    return density


def grid_steps(experts: int) -> int:
    """Of the finest grid of weights with at most 500 points.

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
    """All weights in steps of 1 / `steps`, one per row, then pulled inside by so much: no expert is ever without a say.

    Without `steps` it is the finest grid with at most 500 points.

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
            (-1, *places, steps + experts - 1)
            for places in combinations(range(steps + experts - 1), experts - 1)
        ]
    )
    grid: NDArray[np.float64] = (1 - inside) * (
        np.diff(bars, axis=1) - 1
    ) / steps + inside / experts
    return grid


def log_likelihoods(q: Numbers, grid: NDArray[Any]) -> NDArray[np.float64]:
    """sum_i log sum_j w_j q_ij for each point w of a grid; tables of several clients add.

    >>> log_likelihoods([[0.5, 0.1], [0.5, 0.9]], np.array([[1.0, 0.0], [0.0, 1.0]])).round(3)
    array([-1.386, -2.408])
    """
    found: NDArray[np.float64] = np.log(float64(q).reshape(-1, grid.shape[1]) @ grid.T).sum(0)
    return found


def posterior_mean(logs: NDArray[Any], grid: NDArray[Any]) -> NDArray[np.float64]:
    """The mean of a grid's points, each weighed by its likelihood.

    >>> posterior_mean(np.log([1.0, 3.0]), np.array([[1.0, 0.0], [0.0, 1.0]]))
    array([0.25, 0.75])
    """
    mean: NDArray[np.float64] = softmax(logs) @ grid
    return mean


def evidence(q: NDArray[Any], pooled: bool = False, least: int = 1) -> NDArray[np.float64]:
    """What a client says of its experts: the mean of its posterior over the grid, or its whole table; zeros if it has too few samples.

    >>> evidence(np.array([[0.9, 0.1]] * 3)).round(2)
    array([0.76, 0.24])
    """
    grid = simplex_grid(q.shape[1])
    logs = log_likelihoods(q, grid)
    said = logs if pooled else posterior_mean(logs, grid)
    return said if len(q) >= least else np.zeros_like(said)


def agreed(said: Sequence[tuple[NDArray[Any], int]], pooled: bool = False) -> NDArray[np.float64]:
    """The clients' prior from what each says (`evidence`) of how many experts: the mean of their posterior means, or the posterior mean of
    all samples as one set. What is no posterior, or of another number of experts than most have, does not count; if none does, all weigh alike.

    >>> agreed([(np.array([0.2, 0.8]), 2), (np.array([0.4, 0.6]), 2), (np.array([9.0, 9.0]), 2)])
    array([0.3, 0.7])
    """
    experts = Counter(number for _, number in said).most_common(1)[0][0]
    if pooled:
        grid = simplex_grid(experts)
        return posterior_mean(
            sum((one for one, _ in said if one.shape == grid.shape[:1]), np.zeros(len(grid))), grid
        )
    counted = [one for one, _ in said if one.shape == (experts,) and on_simplex(one)]
    mean: NDArray[np.float64] = np.mean(counted or [np.full(experts, 1 / experts)], axis=0)
    return mean


def on_simplex(weights: Numbers) -> bool:
    """Whether numbers are weights: none negative, of sum 1.

    >>> on_simplex([0.25, 0.75]), on_simplex([0.0, 0.0]), on_simplex([-0.5, 1.5])
    (True, False, False)
    """
    given = float64(weights)
    return bool(
        np.isfinite(given).all()
        and (given >= -ON_THE_SIMPLEX).all()
        and abs(given.sum() - 1) <= ON_THE_SIMPLEX
    )


def mixture_weights(
    q: Numbers, prior: Numbers, kappa: float, steps: int = EM_STEPS
) -> NDArray[np.float64]:
    """The weights with the highest likelihood times prior (Dirichlet, `kappa` samples' worth around `prior`), by EM from the prior.

    Without samples, with a large kappa, or with experts that all say the same it is the prior.

    >>> mixture_weights([[0.9, 0.1], [0.8, 0.2]], [0.5, 0.5], kappa=2.0).round(3)
    array([0.717, 0.283])
    >>> mixture_weights(np.empty((0, 2)), [0.4, 0.6], kappa=0.0)
    array([0.4, 0.6])
    """
    start = float64(prior)
    given, w = float64(q).reshape(-1, len(start)), start
    for _ in range(steps if len(given) else 0):
        r = w * given
        r /= r.sum(1, keepdims=True)
        w = (r.sum(0) + kappa * start) / (len(given) + kappa)
    return w

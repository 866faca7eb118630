"""How much each of several experts counts in a mixture of their probabilities, by the likelihood of a client's own validation labels.

Throughout, `q[i, j]` is the probability that expert j gives to the label of sample i.
"""

from __future__ import annotations

from itertools import combinations, count, takewhile
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.losses.arrays import Numbers, float64
from equipoise.weighting.shares import softmax

EM_STEPS = 200
GRID_POINTS = 500  # at most
ON_THE_SIMPLEX = 1e-6  # how far from it numbers may lie by rounding


def grid_steps(experts: int) -> int:
    """Of the finest grid of weights with at most 500 points.

    >>> [(experts, grid_steps(experts), len(simplex_grid(experts))) for experts in (1, 2, 4, 6)]
    [(1, 1, 1), (2, 499, 500), (4, 12, 455), (6, 6, 462)]
    """
    finer = takewhile(lambda steps: experts > 1 and comb(steps + experts - 1, steps) <= GRID_POINTS, count(2))
    return max(finer, default=1)


def simplex_grid(experts: int, steps: int | None = None, inside: float = 0.05) -> NDArray[np.float64]:
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
    bars = np.array([(-1, *places, steps + experts - 1) for places in combinations(range(steps + experts - 1), experts - 1)])
    grid: NDArray[np.float64] = (1 - inside) * (np.diff(bars, axis=1) - 1) / steps + inside / experts
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


def on_simplex(weights: Numbers) -> bool:
    """Whether numbers are weights: none negative, of sum 1.

    >>> on_simplex([0.25, 0.75]), on_simplex([0.0, 0.0]), on_simplex([-0.5, 1.5])
    (True, False, False)
    """
    given = float64(weights)
    return bool(np.isfinite(given).all() and (given >= -ON_THE_SIMPLEX).all() and abs(given.sum() - 1) <= ON_THE_SIMPLEX)


def mixture_weights(q: Numbers, prior: Numbers, kappa: float, steps: int = EM_STEPS) -> NDArray[np.float64]:
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

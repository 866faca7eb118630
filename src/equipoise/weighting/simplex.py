"""Points on the simplex of weights: minimum-norm ones for conflict-aware weights, nearest ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.validation.arrays import Array, Numbers, Values, float64, like, vector

# Below this eigenvalue of the cosine matrix the minimiser may not be unique; adding it picks the
# most even one.
RIDGE = 1e-10


def min_norm(gram: Values) -> Values:
    """Return the weights on the simplex that minimise w' G w (FedEquilibria, Eq. 1).

    Non-negative least squares finds them exactly in finitely many steps: for u = s w the best s
    leaves q / (1 + q), which grows with q = w' G w, so the direction of u is that of w. A Gram
    matrix of zeros, or one that is not finite, gives uniform weights.

    Args:
        gram: The matrix G of inner products.

    >>> min_norm([[1.0, 0.0], [0.0, 4.0]]).round(12)
    array([0.8, 0.2])
    """
    matrix = _symmetric(gram)
    if not np.isfinite(matrix).all():
        return like(_shares(np.ones(len(matrix))), gram)
    norms = np.sqrt(np.maximum(np.diag(matrix), 0))
    if not norms.all():  # a vector of zeros is the shortest there is
        return like(_shares(norms == 0), gram)
    # Solved for v = w * norms, with cosines in place of dot products: vectors of very different
    # length lose no digits.
    functional = norms.min() / norms
    rows = np.vstack([_factor(cosines(matrix)), functional])
    point = _non_negative(rows, maxiter=10 * len(rows))
    return like(_shares(point * functional), gram)


def cosines(gram: Values) -> Values:
    """Return the Gram matrix of the same vectors scaled to length 1.

    A vector of zeros has cosine 0 with all others.

    >>> cosines([[4.0, 3.0, 0.0], [3.0, 9.0, 0.0], [0.0, 0.0, 0.0]])
    array([[1. , 0.5, 0. ],
           [0.5, 1. , 0. ],
           [0. , 0. , 1. ]])
    """
    matrix = _symmetric(gram)
    norms = np.sqrt(np.maximum(np.diag(matrix), 0))
    norms[norms == 0] = 1
    scaled = matrix / np.outer(norms, norms)
    np.fill_diagonal(scaled, 1)
    return like(scaled, gram)


def min_norm_box(gram: Values, lower: Numbers, upper: Numbers) -> Values:
    """Return the weights of `min_norm` with lower <= w <= upper for every weight (FedMGDA+).

    It is solved as the least-distance problem of Lawson and Hanson, chapter 23: the shortest x = R
    w under linear inequalities is read off the residual of one non-negative least-squares problem.

    Args:
        gram: The matrix of inner products.
        lower: The lower limits.
        upper: The upper limits.

    >>> min_norm_box([[1.0, 0.0], [0.0, 4.0]], [0.0, 0.4], [1.0, 1.0]).round(9)
    array([0.6, 0.4])
    """
    matrix = _symmetric(gram)
    size = len(matrix)
    low, high = (np.broadcast_to(float64(bound), (size,)).clip(0, 1) for bound in (lower, upper))
    if (low > high).any() or low.sum() > 1 + 1e-12 or high.sum() < 1 - 1e-12:
        raise ValueError(f"no weights that sum to 1 lie between {low} and {high}; widen the bounds")
    scale = np.trace(matrix) / size
    usable = np.isfinite(scale) and scale > 0
    factor = _factor(matrix / scale if usable else np.eye(size))
    identity, ones = np.eye(size), np.ones((1, size))
    constraints = np.vstack([identity, -identity, ones, -ones]) @ np.linalg.inv(factor)
    limits = np.concatenate([low, -high, [1, -1]])
    rows = np.vstack([constraints.T, limits])
    point = _non_negative(rows, maxiter=100 * size)
    residual = rows @ point - _last_one(size + 1)
    weights = np.linalg.solve(factor, -residual[:-1] / residual[-1])
    return like(np.clip(weights, low, high), gram)


def _non_negative(rows: Array, maxiter: int) -> Array:
    """Return the non-negative point whose image under `rows` is nearest to the last unit vector."""
    # Importing scipy.optimize takes as long as a third of torch; few methods need it.
    from scipy.optimize import nnls

    point, _ = nnls(rows, _last_one(len(rows)), maxiter=maxiter)
    return np.asarray(point)


def _symmetric(gram: Numbers) -> NDArray[np.float64]:
    matrix = float64(gram)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise ValueError(
            f"a Gram matrix is square, one row and column per client; got shape {matrix.shape}"
        )
    if np.isfinite(matrix).all() and np.abs(matrix - matrix.T).max() > 1e-4 * np.abs(matrix).max():
        raise ValueError(
            "a Gram matrix is symmetric, this one is not; pass the dot products of all pairs of "
            "vectors"
        )
    symmetric: NDArray[np.float64] = (matrix + matrix.T) / 2
    return symmetric


def _factor(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return R with R' R = matrix.

    The matrix is positive semi-definite up to rounding and scaled to a mean diagonal of 1.
    """
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(values, 0)
    if values[0] < RIDGE:
        values += RIDGE
    factor: NDArray[np.float64] = np.sqrt(values)[:, None] * vectors.T
    return factor


def _last_one(size: int) -> NDArray[np.float64]:
    unit = np.zeros(size)
    unit[-1] = 1
    return unit


def _shares(amounts: NDArray[Any]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = amounts / amounts.sum()
    return shares


def projected(values: Numbers) -> Array:
    """Return the nearest point of the simplex.

    John Duchi, Shai Shalev-Shwartz, Yoram Singer and Tushar Chandra. Efficient Projections onto
    the l1-Ball for Learning in High Dimensions. ICML 2008, Figure 1.

    Args:
        values: Finite numbers, at least one.

    >>> projected([0.5, 0.9]).round(3).tolist(), projected([3.0, 0.2]).tolist()
    ([0.3, 0.7], [1.0, 0.0])
    """
    v = vector(values)
    descending = np.sort(v)[::-1]
    excess = (np.cumsum(descending) - 1) / np.arange(1, len(v) + 1)
    last = np.flatnonzero(descending > excess)[-1]
    return np.asarray(np.maximum(v - excess[last], 0.0))

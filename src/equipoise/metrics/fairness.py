"""Distribution of accuracy over clients: how even it is, and how it follows contribution.

docs/fairness.md explains when each metric misleads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from equipoise.metrics.undefined import undefined, what_is_missing
from equipoise.validation.arrays import is_constant, ranks, vector, vectors


def spread(values: ArrayLike, lower_is_better: bool = False) -> dict[str, float]:
    """Return mean, standard deviation, extremes and the mean of the worst tenth of clients.

    The standard deviation divides by the number of clients, as in FedEquilibria's tables (FedHEAL
    divides by one less). The worst tenth is rounded up to whole clients, so with ten clients or
    fewer it is the worst one (Li et al., ICLR 2020).

    >>> {name: round(value, 4) for name, value in spread([1, 2, 3, 4]).items()}
    {'mean': 2.5, 'std': 1.118, 'min': 1.0, 'max': 4.0, 'worst_decile': 1.0}
    """
    x = vector(values)
    if reason := what_is_missing(x):
        return dict.fromkeys(
            ("mean", "std", "min", "max", "worst_decile"),
            undefined(f"spread is undefined: {reason}"),
        )
    from_worst = np.sort(x)[::-1] if lower_is_better else np.sort(x)
    tenth = from_worst[: -(-len(x) // 10)]
    return {
        "mean": float(x.mean()),
        "std": float(x.std()),
        "min": float(x.min()),
        "max": float(x.max()),
        "worst_decile": float(tenth.mean()),
    }


def collaborative_fairness(alone: ArrayLike, together: ArrayLike, rank: bool = False) -> float:
    """Return 100 times the correlation of the clients' values alone and together.

    This is CF of FedAKD, section 4.5, after CFFL, in [-100, 100]. It is NaN, with an
    `UndefinedMetric` warning, for fewer than two clients or where either vector is constant: one
    global model on one test set has no CF.

    Args:
        alone: The value of each client alone.
        together: The value of each client in the federation.
        rank: Use Spearman's correlation instead of Pearson's.

    >>> round(collaborative_fairness([0.5, 0.6, 0.7, 0.8], [0.70, 0.72, 0.71, 0.75]), 2)
    83.67
    >>> round(collaborative_fairness([0.5, 0.6, 0.7, 0.8], [0.70, 0.72, 0.71, 0.75], rank=True), 2)
    80.0
    """
    s, p = vectors(alone, together)
    if reason := what_is_missing(s, p):
        return undefined(f"collaborative fairness is undefined: {reason}")
    if len(s) < 2:
        return undefined(
            "collaborative fairness is undefined: a correlation needs two clients, there is one"
        )
    for name, x in (("alone", s), ("together", p)):
        if is_constant(x):
            return undefined(
                f"collaborative fairness is undefined: all clients have the same value {x[0]:g} "
                f"in `{name}`"
            )
    if rank:
        s, p = ranks(s), ranks(p)
    # Dividing by the range first keeps the squares of tiny differences from vanishing.
    ds, dp = (s - s.mean()) / np.ptp(s), (p - p.mean()) / np.ptp(p)
    return float(100 * np.clip(ds @ dp / np.sqrt((ds @ ds) * (dp @ dp)), -1, 1))


def angle(values: ArrayLike) -> float:
    """Return the angle in radians between the accuracies and equal accuracies; 0 is even.

    See FedFV and FedMDFG. It is arccos(a·1 / (|a| sqrt(K))), computed as the equal arctan(std /
    mean), which does not lose small angles.

    >>> round(angle([0.9, 0.8, 0.7]), 4), angle([0.5, 0.5])
    (0.1017, 0.0)
    """
    x = vector(values)
    if reason := what_is_missing(x):
        return undefined(f"the angle is undefined: {reason}")
    if not x.any():
        return undefined(
            "the angle is undefined: all values are 0, and a zero vector has no direction"
        )
    return float(np.arctan2(x.std(), x.mean()))


def gini(values: ArrayLike) -> float:
    """Return the Gini coefficient: 0 is even, (K-1)/K if one client has all.

    It is the mean absolute difference of two clients over twice the mean.

    >>> gini([1, 1, 1]), gini([0, 0, 0, 8])
    (0.0, 0.75)
    """
    x = np.sort(vector(values))
    if reason := _why_no_shares(x):
        return undefined(f"the Gini coefficient is undefined: {reason}")
    count = len(x)
    positions = 2 * np.arange(1, count + 1) - count - 1
    return float(positions @ x / (count * x.sum()))


def jain(values: ArrayLike) -> float:
    """Return Jain's index (sum x)^2 / (K sum x^2): 1 is even, 1/K if one client has all.

    See Jain, Chiu and Hawe, 1984.

    >>> jain([1, 1, 1]), jain([0, 0, 0, 8])
    (1.0, 0.25)
    """
    x = vector(values)
    if reason := _why_no_shares(x):
        return undefined(f"Jain's index is undefined: {reason}")
    x = x / x.max()
    return float(x.sum() ** 2 / (len(x) * (x @ x)))


def effective_clients(weights: ArrayLike) -> float:
    """Return the number of equally weighted clients that would be as concentrated.

    It is 1 / sum w^2 for weights that sum to one.

    >>> effective_clients([1, 1, 1, 1]), effective_clients([1, 0, 0, 0])
    (4.0, 1.0)
    """
    return len(vector(weights)) * jain(weights)


def _why_no_shares(x: np.ndarray) -> str:
    """Return why amounts cannot be compared as shares of a whole, or "".

    Negative amounts are an error.
    """
    if reason := what_is_missing(x):
        return reason
    if x.min() < 0:
        raise ValueError(
            f"expected amounts of at least 0, got {x.min():g}; gains and losses have no Gini or "
            "Jain: use negative_transfer"
        )
    return "" if x.any() else "all values are 0, so nobody has any share"

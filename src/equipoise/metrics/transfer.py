"""Negative transfer: clients that are worse off for having joined."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from equipoise.metrics.undefined import undefined, what_is_missing
from equipoise.validation.arrays import vectors


def negative_transfer(
    alone: ArrayLike, together: ArrayLike, lower_is_better: bool = False
) -> dict[str, float]:
    """Return the change against training alone over clients (FedeKD, section 4.2).

    A positive change is an improvement, whatever the direction of the metric: for an error such as
    RMSE (`lower_is_better`) it is alone minus together, the opposite of the paper's sign. So the
    worst is always the minimum, and `p10` is the tail of the clients that are harmed most.

    Args:
        alone: One value per client, of training alone.
        together: The same clients in the same order.
        lower_is_better: Whether the values are errors.

    Returns:
        `average`, `worst`, `p10` and `p90` of the change (percentiles interpolate linearly), and
        `harmed`, the share of clients with a negative change.

    >>> change = negative_transfer(alone=[0.8, 0.7, 0.9, 0.6], together=[0.9, 0.7, 0.8, 0.8])
    >>> {name: round(value, 3) for name, value in change.items()}
    {'average': 0.05, 'worst': -0.1, 'p10': -0.07, 'p90': 0.17, 'harmed': 0.25}
    >>> negative_transfer(alone=[5.0, 5.0], together=[4.0, 7.0], lower_is_better=True)["worst"]
    -2.0
    """
    a, t = vectors(alone, together)
    if reason := what_is_missing(a, t):
        return dict.fromkeys(
            ("average", "worst", "p10", "p90", "harmed"),
            undefined(f"negative transfer is undefined: {reason}"),
        )
    change = a - t if lower_is_better else t - a
    return {
        "average": float(change.mean()),
        "worst": float(change.min()),
        "p10": float(np.percentile(change, 10)),
        "p90": float(np.percentile(change, 90)),
        "harmed": float(np.mean(change < 0)),
    }

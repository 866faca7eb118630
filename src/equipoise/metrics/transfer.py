"""Negative transfer: clients that are worse off by joining."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from equipoise.metrics.undefined import undefined, what_is_missing
from equipoise.validation.arrays import vectors


def negative_transfer(
    alone: ArrayLike, together: ArrayLike, lower_is_better: bool = False
) -> dict[str, float]:
    """Return the change against local training over clients (FedeKD, section 4.2).

    The result has average, worst, p10, p90 and the share of harmed clients. The sign is the
    paper's: for accuracy a harmed client has a negative change and the worst is the minimum; for an
    error such as RMSE a harmed client has a positive change and the worst is the maximum.
    Percentiles interpolate linearly. `harmed` is in [0, 1]; a client that neither gains nor loses
    is not harmed.

    Args:
        alone: The value of each client alone.
        together: The value of each client in the federation.
        lower_is_better: True for errors.

    >>> change = negative_transfer(alone=[0.8, 0.7, 0.9, 0.6], together=[0.9, 0.7, 0.8, 0.8])
    >>> {name: round(value, 3) for name, value in change.items()}
    {'average': 0.05, 'worst': -0.1, 'p10': -0.07, 'p90': 0.17, 'harmed': 0.25}
    """
    a, t = vectors(alone, together)
    if reason := what_is_missing(a, t):
        return dict.fromkeys(
            ("average", "worst", "p10", "p90", "harmed"),
            undefined(f"negative transfer is undefined: {reason}"),
        )
    change = t - a
    return {
        "average": float(change.mean()),
        "worst": float(change.max() if lower_is_better else change.min()),
        "p10": float(np.percentile(change, 10)),
        "p90": float(np.percentile(change, 90)),
        "harmed": float(np.mean(change > 0 if lower_is_better else change < 0)),
    }

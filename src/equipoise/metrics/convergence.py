"""How fast a learning curve gets there. Curves have one value per round, the first being round 1; NaN marks a round not measured."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from equipoise.metrics.undefined import undefined
from equipoise.validation.arrays import vector


def rounds_to(curve: ArrayLike, target: float, lower_is_better: bool = False) -> int | None:
    """The first round, counted from 1, that reaches the target or passes it; None if none does (KDIA, Table 4).

    >>> rounds_to([0.2, 0.5, 0.4, 0.5], target=0.5), rounds_to([0.2, 0.5], target=0.6)
    (2, None)
    >>> rounds_to([1.9, 1.4, 1.2], target=1.4, lower_is_better=True)
    2
    """
    x = vector(curve, "curve")
    if np.isnan(target):
        raise ValueError(
            "expected a number as target, got NaN; take a target that a baseline reached"
        )
    reached = np.flatnonzero(x <= target if lower_is_better else x >= target)
    return int(reached[0]) + 1 if len(reached) else None


def speed_up(
    curve: ArrayLike,
    baseline: ArrayLike,
    target: float | None = None,
    lower_is_better: bool = False,
) -> float | None:
    """Rounds the baseline needs to the target over rounds this curve needs; the target is the baseline's best unless given.

    None if either never reaches it. Use raw curves of the same data, partition and seed (KDIA, Table 4).

    >>> speed_up(curve=[0.3, 0.6, 0.7], baseline=[0.1, 0.2, 0.3, 0.6])
    2.0
    """
    if target is None:
        target = best_and_last(baseline, lower_is_better)["best"]
        if np.isnan(target):
            return None
    slow, fast = (
        rounds_to(baseline, target, lower_is_better),
        rounds_to(curve, target, lower_is_better),
    )
    return None if slow is None or fast is None else slow / fast


def best_and_last(
    curve: ArrayLike, lower_is_better: bool = False, window: int = 10
) -> dict[str, float]:
    """The best value with its round, the last value, and the mean of the last `window` values.

    Measured on test data the best is chosen with the answers in view: compare it with papers that print it, trust `last`.

    >>> best_and_last([0.2, 0.8, 0.6], window=2)
    {'best': 0.8, 'best_round': 2, 'last': 0.6, 'last_mean': 0.7}
    """
    if window < 1:
        raise ValueError(f"expected a window of at least 1 round, got {window}")
    x = vector(curve, "curve")
    if not len(x) or np.isnan(x).all():
        return dict.fromkeys(
            ("best", "best_round", "last", "last_mean"),
            undefined("best and last are undefined: no round was measured"),
        )
    at = int(np.nanargmin(x) if lower_is_better else np.nanargmax(x))
    return {
        "best": float(x[at]),
        "best_round": at + 1,
        "last": float(x[-1]),
        "last_mean": float(x[-window:].mean()),
    }

"""Weights of clients from numbers that the server has about them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.validation.arrays import Numbers, Values, float64, like

KINDS = ("geometric", "arithmetic", "interval", "count", "size")


def trifreqs(gaps: Values, counts: Numbers, sizes: Numbers, kind: str = "geometric") -> Values:
    """Return the teacher weights of KDIA (Eq. 5-9).

    The normalisers of the three frequencies cancel, so the geometric mean is a softmax of (-gap +
    ln count + ln size) / 3: no gap is too long for it, and a client never seen (count 0) has weight
    0 whatever its gap.

    Args:
        gaps: Rounds since each client was last seen.
        counts: The number of rounds in which each was seen.
        sizes: The data sizes.
        kind: "geometric", or one of the paper's alternatives: one frequency alone, or the
            arithmetic mean of the three.

    >>> trifreqs([0, 3, 7], [2, 2, 0], [50, 50, 50]).round(4)
    array([0.7311, 0.2689, 0.    ])
    """
    if kind not in KINDS:
        raise ValueError(
            f"unknown kind of weights {kind!r}; it has to be one of {', '.join(KINDS)}"
        )
    gap, count, size = float64(gaps), _amounts(counts, "counts"), _amounts(sizes, "sizes")
    if gap.ndim != 1 or not gap.shape == count.shape == size.shape:
        raise ValueError(
            f"gaps, counts and sizes need one number per client; got shapes {gap.shape}, "
            f"{count.shape}, {size.shape}"
        )
    seen = (count > 0) & (size > 0)
    if not np.isfinite(gap[seen] if kind == "geometric" else gap).all() or not seen.any():
        raise ValueError(
            f"gaps have to be finite and some client has to have been seen; got gaps {gap}, "
            f"counts {count}, sizes {size}"
        )
    if kind == "geometric":
        scores = np.full(len(gap), -np.inf)
        scores[seen] = (-gap[seen] + np.log(count[seen]) + np.log(size[seen])) / 3
        return like(softmax(scores), gaps)
    frequencies = {
        "interval": softmax(-gap),
        "count": count / count.sum(),
        "size": size / size.sum(),
    }
    frequencies["arithmetic"] = np.mean(list(frequencies.values()), axis=0)
    return like(frequencies[kind], gaps)


def drift_shares(norms: Values) -> Values:
    """Return each client's share of the update norms (FedEquilibria, Eq. 2).

    Uniform if no client moved; 0 for a norm that is not finite.

    >>> drift_shares([1.0, 3.0])
    array([0.25, 0.75])
    """
    values = float64(norms)
    finite = np.isfinite(values)
    if not finite.any() or (values[finite] < 0).any():
        raise ValueError(
            f"update norms are not negative, and at least one has to be finite; got {values}"
        )
    lengths = np.where(finite, values, 0)
    amounts = lengths / lengths.max() if lengths.any() else finite
    return like(amounts / amounts.sum(), norms)


def hybrid(conflict: Values, drift: Numbers, t: float) -> Values:
    """Return t times the conflict-aware weights plus 1 - t times the drift shares (Eq. 3).

    >>> hybrid([1.0, 0.0], [0.5, 0.5], t=0.8)
    array([0.9, 0.1])
    """
    if not 0 <= t <= 1:
        raise ValueError(f"t has to lie between 0 (drift alone) and 1 (conflict alone); got {t}")
    first, second = _amounts(conflict, "conflict"), _amounts(drift, "drift")
    if first.shape != second.shape:
        raise ValueError(
            f"conflict and drift need one weight per client; got shapes {first.shape} and "
            f"{second.shape}"
        )
    mixed = t * first / first.sum() + (1 - t) * second / second.sum()
    return like(mixed / mixed.sum(), conflict)


def softmax(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Return exp(score) as shares of their sum; a score of minus infinity gives exactly 0."""
    amounts = np.exp(scores - scores.max())
    shares: NDArray[np.float64] = amounts / amounts.sum()
    return shares


def _amounts(values: Numbers, name: str) -> NDArray[np.float64]:
    amounts = float64(values)
    if not np.isfinite(amounts).all() or (amounts < 0).any() or not amounts.any():
        raise ValueError(
            f"{name} have to be finite, none negative and at least one positive; got {amounts}"
        )
    return amounts

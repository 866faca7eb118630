"""What all measures share: turning input into float64 arrays, and saying why a number is undefined."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


class UndefinedMetric(UserWarning):
    """The measure has no value for this input; NaN was returned, and the message says why."""


class PartialMetric(UserWarning):
    """The measure could be taken of a part of the input only; the message says which."""


def undefined(reason: str) -> float:
    """NaN, with the reason as a warning: a missing number must never pass for a zero."""
    warnings.warn(reason, UndefinedMetric, stacklevel=3)
    return float("nan")


def array(values: ArrayLike) -> Array:
    """Any array, list or torch tensor as float64."""
    tensor: Any = values
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu().double().numpy()
    return np.asarray(tensor, dtype=np.float64)


def vector(values: ArrayLike, name: str = "values") -> Array:
    """One number per client (or round, or seed); a column of shape (N, 1) counts as such.

    >>> vector([[1], [2]]).tolist()
    [1.0, 2.0]
    """
    result = array(values)
    if result.ndim == 2 and result.shape[1] == 1:
        result = result[:, 0]
    if result.ndim != 1:
        raise ValueError(f"{name}: expected one number per entry (shape (N,)), got shape {result.shape}; pass a flat vector")
    return result


def vectors(first: ArrayLike, second: ArrayLike, names: tuple[str, str] = ("alone", "together")) -> tuple[Array, Array]:
    """Two vectors whose entries belong together."""
    a, b = vector(first, names[0]), vector(second, names[1])
    if len(a) != len(b):
        raise ValueError(
            f"expected {names[0]} and {names[1]} of equal length, got {len(a)} and {len(b)}; list the same entries in the same order"
        )
    return a, b


def what_is_missing(*rows: Array) -> str:
    """Why a measure over all entries cannot be taken: there are none, or some are not finite. Empty if it can.

    >>> what_is_missing(np.array([1.0, np.nan]))
    'the values at places [1] are not finite; leave those out, and say so'
    """
    if len(rows[0]) == 0:
        return "there are no values"
    bad = np.flatnonzero(~np.all(np.isfinite(rows), axis=0))
    return f"the values at places {bad.tolist()} are not finite; leave those out, and say so" if len(bad) else ""


def is_constant(values: Array) -> bool:
    """Equal up to rounding: the mean of equal numbers is not always that number, so a variance would be noise, not zero."""
    return bool(np.ptp(values) <= 1e-12 * np.max(np.abs(values)))


def ranks(values: ArrayLike) -> Array:
    """Ranks from 1 for the smallest; equal values share the mean of their ranks.

    >>> ranks([10, 30, 10, 20]).tolist()
    [1.5, 4.0, 1.5, 3.0]
    """
    _, place, count = np.unique(vector(values), return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place], dtype=np.float64)

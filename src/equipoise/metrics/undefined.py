"""Numbers that do not exist: NaN, with the reason."""

from __future__ import annotations

import warnings

import numpy as np

from equipoise.validation.arrays import Array


class UndefinedMetric(UserWarning):
    """The measure has no value for this input; NaN was returned, and the message says why."""


class PartialMetric(UserWarning):
    """The measure could be taken of a part of the input only; the message says which."""


def undefined(reason: str) -> float:
    """NaN, with the reason as a warning: a missing number must never pass for a zero."""
    warnings.warn(reason, UndefinedMetric, stacklevel=3)
    return float("nan")


def what_is_missing(*rows: Array) -> str:
    """Why a measure over all entries cannot be taken: there are none, or some are not finite. Empty if it can.

    >>> what_is_missing(np.array([1.0, np.nan]))
    'the values at positions [1] are not finite; leave those out, and say so'
    """
    if len(rows[0]) == 0:
        return "there are no values"
    bad = np.flatnonzero(~np.all(np.isfinite(rows), axis=0))
    return (
        f"the values at positions {bad.tolist()} are not finite; leave those out, and say so"
        if len(bad)
        else ""
    )

"""Numbers that do not exist: NaN, with the reason."""

from __future__ import annotations

import warnings

import numpy as np

from equipoise.validation.arrays import Array


class UndefinedMetric(UserWarning):
    """Warning that a metric has no value for an input, with the reason; NaN was returned."""


class PartialMetric(UserWarning):
    """Warning that a metric was computed from a part of the input only, with the reason."""


def undefined(reason: str) -> float:
    """Return NaN, with the reason as a warning: a missing number must never pass for a zero."""
    warnings.warn(reason, UndefinedMetric, stacklevel=3)
    return float("nan")


def what_is_missing(*rows: Array) -> str:
    """Return why a metric over all entries has no value, or "": no entries, or not finite ones.

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

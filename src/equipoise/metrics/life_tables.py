"""Life tables of two risk groups: what a client sends in place of times and risks.

A life table is an array (groups, 2, bins). For patients with a lower and a higher risk, it counts
by time the events (EVENTS) and the patients who were censored (CENSORED). Every bin but the last
is one per cent of the horizon; the last one holds all later times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.metrics.survival import risk_scores, time_and_event
from equipoise.validation.arrays import Array

EVENTS, CENSORED = range(2)
GROUPS = ("lower risk", "higher risk")
PERCENT = 100
BINS = PERCENT + 1
Counts = NDArray[np.int64]


def counted(outputs: ArrayLike, targets: ArrayLike) -> Counts:
    """Count patients by risk group, time, and event or censoring.

    Patients whose risk is above the median of these patients are the second group.

    Args:
        outputs: The outputs of a survival model.
        targets: Times as shares of the horizon, negative where censored.

    >>> table = counted([[1.0], [2.0], [3.0], [4.0]], [0.5, -0.25, 0.005, 2.0])
    >>> table.sum(-1).tolist(), int(table[1, EVENTS, 0]), int(table[1, EVENTS, -1])
    ([[1, 1], [2, 0]], 1, 1)
    """
    risks = risk_scores(outputs)
    time, event = time_and_event(targets)
    bins = np.minimum(np.floor(time * PERCENT), PERCENT).astype(np.int64)
    has_higher_risk = risks > np.median(risks)
    table = np.zeros((len(GROUPS), 2, BINS), np.int64)
    for group, members in enumerate((~has_higher_risk, has_higher_risk)):
        table[group, EVENTS] = np.bincount(bins[members & event], minlength=BINS)
        table[group, CENSORED] = np.bincount(bins[members & ~event], minlength=BINS)
    return table


def survival(table: Counts) -> tuple[Array, Array]:
    """Return the Kaplan-Meier curve of one group.

    Within a bin, events come before censoring.

    Args:
        table: The counts of one group (2, bins).

    Returns:
        Times in shares of the horizon, from 0 to 1, and the probability to survive each.

    >>> times, values = survival(counted([[1.0], [1.0]], [0.5, -0.6])[0])
    >>> len(times), values[[50, 51, -1]].tolist()
    (101, [1.0, 0.5, 0.5])
    """
    leaving = table.sum(0)
    at_risk = leaving.sum() - np.append(0, np.cumsum(leaving)[:-1])
    shares = np.zeros(BINS)
    np.divide(table[EVENTS], at_risk, out=shares, where=at_risk > 0)
    values = np.append(1.0, np.cumprod(1 - shares[:PERCENT]))
    return np.arange(BINS) / PERCENT, values


def pooled(tables: Sequence[Counts]) -> Counts:
    """Return the life table of several clients together."""
    return np.asarray(np.sum(tables, axis=0))


def total(table: Counts) -> int:
    """Return the number of counted patients."""
    return int(table.sum())


def fault(table: Any) -> str | None:
    """Return the fault in a received life table, or None if it is valid."""
    counts = np.asarray(table)
    expected = (len(GROUPS), 2, BINS)
    if counts.shape != expected or counts.dtype.kind not in "iu" or (counts < 0).any():
        return f"expected counts of shape {expected}, got {counts.dtype} of shape {counts.shape}"
    return None

"""Comparison of methods: paired tests over seeds, corrected for their number, and ranks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from equipoise.metrics.undefined import PartialMetric, undefined
from equipoise.validation.arrays import Array, ranks, vector, vectors
from equipoise.validation.names import nearest

FEWEST_SEEDS = 5
TOO_FEW = "too few seeds"


@dataclass(frozen=True)
class PairedTest:
    """A method against the baseline over the seeds that both have.

    Attributes:
        difference: The mean difference.
        seeds: The number of seeds.
        p: The p-value, or None.
        adjusted: The p-value adjusted for the number of tests, or None.
        note: The reason why there is no p-value.
    """

    difference: float  # mean of method minus baseline
    seeds: int
    p: float | None
    adjusted: float | None  # p after Holm's correction over all methods compared
    note: str = ""


def paired_p(method: ArrayLike, baseline: ArrayLike) -> tuple[float | None, str]:
    """Return the two-sided p-value of the paired t test over seeds, or None and the reason.

    Student's t and not Wilcoxon's signed ranks: with five seeds the latter cannot go below p =
    1/16, and the compared values are averages over clients, for which near-normal differences are
    reasonable. Below five seeds neither is meaningful. Seeds where either value is NaN are left
    out.

    >>> p, reason = paired_p([0.82, 0.81, 0.84, 0.83, 0.82], [0.80, 0.80, 0.81, 0.82, 0.80])
    >>> round(p, 4), reason
    (0.0086, '')
    >>> paired_p([0.82, 0.81], [0.80, 0.80])
    (None, 'too few seeds')
    """
    from scipy.special import stdtr

    a, b = _known_pairs(method, baseline)
    if len(a) < FEWEST_SEEDS:
        return None, TOO_FEW
    change, rounding = a - b, 1e-12 * max(np.abs(a).max(), np.abs(b).max())
    if np.abs(change).max() <= rounding:
        return 1.0, "identical in every seed"
    if np.ptp(change) <= rounding:
        return None, "the same difference in every seed: do the seeds reach the runs?"
    t = change.mean() / (change.std(ddof=1) / np.sqrt(len(change)))
    return float(2 * stdtr(len(change) - 1, -abs(t))), ""


def holm(p_values: ArrayLike) -> Array:
    """Return Holm's adjusted p-values in the same order, which hold for all tests at once.

    See Holm, 1979.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = vector(p_values, "p_values")
    if not np.all((p >= 0) & (p <= 1)):
        raise ValueError("p_values: expected numbers from 0 to 1; leave out tests without one")
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1)
    return adjusted


def against_baseline(results: Mapping[str, ArrayLike], baseline: str) -> dict[str, PairedTest]:
    """Return the test of every other method against the baseline.

    Args:
        results: One value per seed for each method, in the same order; NaN where a run is missing.
        baseline: The name of the baseline.

    >>> table = {"fedavg": [0.80, 0.80, 0.81, 0.82, 0.80], "fedakd": [0.82, 0.81, 0.84, 0.83, 0.82]}
    >>> result = against_baseline(table, baseline="fedavg")["fedakd"]
    >>> round(result.difference, 3), round(result.adjusted, 4)
    (0.018, 0.0086)
    """
    if baseline not in results:
        raise nearest("baseline", baseline, sorted(results))
    others = [name for name in results if name != baseline]
    tests = {name: paired_p(results[name], results[baseline]) for name in others}
    tested = {name: p for name, (p, _) in tests.items() if p is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())).tolist(), strict=True))
    compared = {}
    for name in others:
        a, b = _known_pairs(results[name], results[baseline])
        difference = float(np.mean(a - b)) if len(a) else float("nan")
        p, note = tests[name]
        compared[name] = PairedTest(difference, len(a), p, adjusted.get(name), note)
    return compared


def average_ranks(
    results: Mapping[str, ArrayLike], lower_is_better: bool = False
) -> dict[str, float]:
    """Return the mean rank of each method over columns (seeds, data sets), where 1 is best.

    Ties share a rank. Columns with a missing value are left out.

    >>> average_ranks({"a": [0.9, 0.8], "b": [0.7, 0.8], "c": [0.8, 0.1]})
    {'a': 1.25, 'b': 2.25, 'c': 2.5}
    """
    if not results:
        return {}
    rows = [vector(values, name) for name, values in results.items()]
    if len({len(row) for row in rows}) > 1:
        raise ValueError(
            "expected one value per column for every method, got lengths "
            f"{ {n: len(r) for n, r in zip(results, rows, strict=True)} }"
        )
    table = np.stack(rows)
    whole = ~np.isnan(table).any(0)
    if not whole.any():
        return dict.fromkeys(
            results, undefined("average ranks are undefined: no column has a value of every method")
        )
    if not whole.all():
        warnings.warn(
            f"average ranks leave out columns {np.flatnonzero(~whole).tolist()}: not every method "
            "has a value",
            PartialMetric,
            stacklevel=2,
        )
    sign = 1 if lower_is_better else -1
    placed = np.stack([ranks(sign * column) for column in table[:, whole].T])
    return dict(zip(results, placed.mean(0).tolist(), strict=True))


def _known_pairs(method: ArrayLike, baseline: ArrayLike) -> tuple[Array, Array]:
    a, b = vectors(method, baseline, ("method", "baseline"))
    known = ~(np.isnan(a) | np.isnan(b))
    return a[known], b[known]

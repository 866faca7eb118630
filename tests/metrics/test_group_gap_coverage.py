"""Intervals of gaps between groups cover the truth in at least 95 % of test sets, however small
these are.

Two groups are checked exactly, by summing the probabilities of all outcomes; more groups and
equalised odds by simulation, with a tolerance of four standard errors.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import binom

from equipoise.metrics.group_gaps import Estimate, Rate, largest_gap, largest_of_gaps, lowest

SHARES = (0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99)
TESTS = 2000


def covers(estimate: Estimate, truth: float) -> bool:
    low, high = estimate.limits.low, estimate.limits.high
    assert low is not None and high is not None
    return low - 1e-12 <= truth <= high + 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 5), (3, 3), (6, 6), (10, 14), (20, 20)])
def test_the_gap_of_two_groups_is_covered_exactly(first: int, second: int) -> None:
    gaps = {}
    for a, b in product(range(first + 1), range(second + 1)):
        gaps[a, b] = largest_gap([Rate(a, first), Rate(b, second)])
    for p, q in product(SHARES, SHARES):
        coverage = 0.0
        for (a, b), gap in gaps.items():
            chance = binom.pmf(a, first, p) * binom.pmf(b, second, q)
            coverage += chance * covers(gap, abs(p - q))
        assert coverage >= 0.95, (p, q, coverage)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(3, 3, 4), (10, 12, 40), (5, 10, 20, 80), (15,) * 6])
@pytest.mark.parametrize("spread", [0.0, 0.1, 0.6])
def test_the_gap_and_the_worst_of_several_groups_are_covered(
    sizes: tuple[int, ...], spread: float
) -> None:
    rng = np.random.default_rng(0)
    rates = np.linspace(0.2, 0.2 + spread, len(sizes))
    gap_covered = 0
    worst_covered = 0
    for _ in range(TESTS):
        drawn = [Rate(int(rng.binomial(n, p)), n) for n, p in zip(sizes, rates, strict=True)]
        gap_covered += covers(largest_gap(drawn), spread)
        worst_covered += covers(lowest(drawn)[1], 0.2)
    floor = 0.95 - 4 * np.sqrt(0.95 * 0.05 / TESTS)
    assert gap_covered / TESTS >= floor and worst_covered / TESTS >= floor


@pytest.mark.slow
@pytest.mark.parametrize("positives", [(2, 3), (10, 10), (30, 60)])
def test_equalised_odds_are_covered(positives: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    sensitivity = (0.9, 0.7)
    false_alarms = (0.3, 0.05)
    covered = 0
    for _ in range(TESTS):
        found = [
            Rate(int(rng.binomial(n, p)), n) for n, p in zip(positives, sensitivity, strict=True)
        ]
        false = [
            Rate(int(rng.binomial(2 * n, p)), 2 * n)
            for n, p in zip(positives, false_alarms, strict=True)
        ]
        covered += covers(largest_of_gaps([found, false]), 0.25)
    assert covered / TESTS >= 0.95 - 4 * np.sqrt(0.95 * 0.05 / TESTS)

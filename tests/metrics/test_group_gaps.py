"""Gaps between groups: rates by hand, intervals of groups that differ clearly or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from equipoise.metrics.group_gaps import (
    Rate,
    estimated,
    largest_gap,
    largest_of_gaps,
    lowest,
    rates_of,
)
from equipoise.metrics.score_histograms import counted


@pytest.mark.parametrize("percent", [1, 30, 50, 77, 99])
def test_rates_are_those_of_the_scores(percent: int) -> None:
    rng = np.random.default_rng(percent)
    score = rng.random(200)
    sick = rng.random(200) < score
    table = counted(np.stack([1 - score, score], axis=1), sick.astype(int))
    called = score >= percent / 100
    assert rates_of(table, percent) == {
        "accuracy": Rate(int((called == sick).sum()), 200),
        "selection_rate": Rate(int(called.sum()), 200),
        "sensitivity": Rate(int((called & sick).sum()), int(sick.sum())),
        "specificity": Rate(int((~called & ~sick).sum()), int((~sick).sum())),
        "false_positive_rate": Rate(int((called & ~sick).sum()), int((~sick).sum())),
    }


def test_of_more_classes_only_the_accuracy_is_a_rate() -> None:
    table = counted([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.5, 0.4, 0.1]], [0, 2, 1])
    assert rates_of(table, 50) == {"accuracy": Rate(2, 3)}


@pytest.mark.parametrize("rate", [Rate(0, 10), Rate(10, 10), Rate(3, 17)])
def test_the_interval_of_a_rate_is_exact(rate: Rate) -> None:
    limits = estimated(rate).limits
    exact = binomtest(rate.cases, rate.total).proportion_ci(0.95, "exact")
    assert (limits.low, limits.high) == pytest.approx((exact.low, exact.high))


def test_the_gap_is_that_of_the_two_groups_furthest_apart() -> None:
    gap = largest_gap([Rate(19, 20), Rate(10, 20), Rate(5, 20), Rate(0, 0)])
    assert gap.value == pytest.approx(0.7)
    assert gap.limits.low is not None and 0 < gap.limits.low < 0.7 < gap.limits.high <= 1


def test_equalised_odds_take_the_larger_gap_and_are_wider_than_each() -> None:
    sensitivity = [Rate(18, 20), Rate(10, 20)]
    false_alarms = [Rate(2, 30), Rate(5, 30)]
    odds = largest_of_gaps([sensitivity, false_alarms])
    alone = largest_gap(sensitivity)
    assert odds.value == alone.value == pytest.approx(0.4)
    assert odds.limits.low <= alone.limits.low and odds.limits.high >= alone.limits.high


def test_one_group_has_no_gap() -> None:
    gap = largest_gap([Rate(3, 10), Rate(0, 0)])
    assert np.isnan(gap.value) and "two groups" in gap.limits.reason


def test_the_lowest_rate_is_named_and_covered() -> None:
    position, estimate = lowest([Rate(0, 0), Rate(8, 10), Rate(30, 60)])
    assert position == 2 and estimate.value == 0.5
    assert estimate.limits.low < 0.5 < estimate.limits.high
    _, shared = lowest([Rate(0, 0), Rate(8, 10), Rate(30, 60)], share_samples=True)
    assert shared.limits.low < estimate.limits.low

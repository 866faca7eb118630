"""The gain of one client: exact tests against scipy's, and simulations of what they promise."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from scipy import stats

from equipoise.metrics import Gain, gain_from_counts, gain_from_samples, mcnemar
from equipoise.metrics.gains import gain_in


@pytest.mark.parametrize(
    ("gained", "lost"), [(4, 0), (0, 6), (3, 3), (20, 10), (0, 0), (1, 0), (300, 250)]
)
def test_mcnemar_is_the_binomial_test_of_discordant_samples(gained: int, lost: int) -> None:
    both = gained + lost
    expected = stats.binomtest(gained, both, 0.5).pvalue if both else 1.0
    assert mcnemar(gained, lost) == pytest.approx(expected)


def test_thirty_of_thirty_against_twenty_six_is_not_told_from_luck() -> None:
    gain = gain_from_counts(alone=26, together=30, total=30)
    assert gain.p == pytest.approx(0.125) and not gain.clear
    assert gain.low is not None and gain.low <= 0 < 4 / 30 < (gain.high or 0)


def test_counts_never_say_more_than_any_pairs_that_agree_with_them() -> None:
    total = 12
    for alone, together in itertools.product(range(total + 1), repeat=2):
        claimed = gain_from_counts(alone, together, total)
        for lost in range(max(0, alone - together), min(alone, total - together) + 1):
            gained = together - alone + lost
            assert (claimed.p or 0) >= mcnemar(gained, lost) - 1e-12
        mirrored = gain_from_counts(together, alone, total)
        assert mirrored.p == pytest.approx(claimed.p)
        assert mirrored.high == pytest.approx(-(claimed.low or 0.0), abs=1e-12)


def test_samples_of_zero_and_one_are_tested_as_pairs() -> None:
    alone, together = [1] * 20 + [0] * 10, [1] * 19 + [0] + [1] * 9 + [0]
    gain = gain_from_samples(alone, together)
    assert gain.p == pytest.approx(stats.binomtest(9, 10, 0.5).pvalue)
    assert gain.value == pytest.approx(8 / 30) and gain.clear
    assert gain_from_samples(alone, together, lower_is_better=True).value == pytest.approx(-8 / 30)
    counts = gain_from_counts(sum(alone), sum(together), 30)
    assert (counts.p or 0) > (gain.p or 1), "what pairs add"


def test_errors_are_tested_by_their_differences() -> None:
    rng = np.random.default_rng(1)
    alone = rng.gamma(2, size=40)
    together = alone - 0.1 + 0.3 * rng.normal(size=40)
    gain = gain_from_samples(alone, together, lower_is_better=True)
    reference = stats.ttest_rel(alone, together)
    assert gain.p == pytest.approx(reference.pvalue)
    interval = reference.confidence_interval(0.95)
    assert (gain.low, gain.high) == (pytest.approx(interval.low), pytest.approx(interval.high))


def test_errors_without_a_spread_have_no_test() -> None:
    assert gain_from_samples([0.5, 0.25], [0.5, 0.25]) == Gain(0.0, None, None, 1.0)
    assert gain_from_samples([0.5, 0.25], [1.5, 1.25]).p is None
    assert gain_from_samples([0.5], [0.25]).p is None


@pytest.mark.parametrize("counts", [(-1, 3, 5), (6, 3, 5), (3, 6, 5), (0, 0, 0)])
def test_counts_that_cannot_be_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="from 0 to the total"):
        gain_from_counts(*counts)


def test_other_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="level"):
        gain_from_counts(1, 2, 3, level=1.0)
    with pytest.raises(ValueError, match="finite"):
        gain_from_samples([float("nan")], [1.0])
    with pytest.raises(ValueError, match="at least one"):
        gain_from_samples([], [])
    with pytest.raises(ValueError, match="at least 0"):
        mcnemar(-1, 2)


def test_what_runs_keep_gives_a_test_for_accuracies_of_whole_counts_only() -> None:
    assert gain_in("accuracy", 26 / 30, 1.0, 30) == gain_from_counts(26, 30, 30)
    assert gain_in("balanced_accuracy", 26 / 30, 1.0, 30) is None
    assert gain_in("accuracy", 26 / 30, 1.0, 31) is None, "not an accuracy of 31 samples"
    assert gain_in("accuracy", float("nan"), 1.0, 30) is None
    assert gain_in("accuracy", 0.5, 1.0, 0) is None


def shares(alone: float, together: float, kind: str) -> np.ndarray:
    """Of samples that both have right, only together, only alone, and neither."""
    least, most = max(0.0, alone + together - 1), min(alone, together)
    both = {"against": least, "independent": alone * together, "alike": 0.8 * most}[kind]
    both = max(least, both)
    cells = np.clip([both, together - both, alone - both, 1 - alone - together + both], 0, 1)
    return cells / cells.sum()


@functools.cache
def from_counts(alone: int, together: int, total: int) -> Gain:
    return gain_from_counts(alone, together, total)


@functools.cache
def from_pairs(gained: int, lost: int, total: int) -> Gain:
    alone = np.zeros(total)
    together = np.zeros(total)
    together[:gained] = 1
    alone[gained : gained + lost] = 1
    return gain_from_samples(alone, together)


def simulate(total: int, alone: float, change: float, kind: str, repeats: int) -> list[float]:
    """Share of clear changes and of intervals that hold the truth: from counts, then from pairs."""
    rng = np.random.default_rng([total, int(1000 * alone), int(1000 * (1 + change))])
    drawn = rng.multinomial(total, shares(alone, alone + change, kind), repeats).tolist()
    found = []
    for gains in (
        [from_counts(both + lost, both + gained, total) for both, gained, lost, _ in drawn],
        [from_pairs(gained, lost, total) for _, gained, lost, _ in drawn],
    ):
        found.append(float(np.mean([gain.clear for gain in gains])))
        held = [(g.low or 0) - 1e-9 <= change <= (g.high or 0) + 1e-9 for g in gains]
        found.append(float(np.mean(held)))
    return found


def check(total: int, alone: float, kind: str, changes: list[float], repeats: int) -> None:
    # three standard errors of a simulated share
    slack = 3 * np.sqrt(0.05 * 0.95 / repeats)
    for change in changes:
        if not 0 < alone + change < 1:
            continue
        clear, held, clear_pairs, held_pairs = simulate(total, alone, change, kind, repeats)
        where = f"{total} samples, {alone} alone, change {change}, {kind}"
        assert min(held, held_pairs) >= 0.93 - slack, where
        if change == 0:
            assert max(clear, clear_pairs) <= 0.05 + slack, where


@pytest.mark.parametrize("kind", ["against", "independent", "alike"])
@pytest.mark.parametrize("total", [30, 200])
def test_luck_is_rarely_taken_for_a_gain_and_intervals_hold(total: int, kind: str) -> None:
    for alone in (0.5, 0.9, 0.97):
        check(total, alone, kind, [0, -0.1], 400)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["against", "independent", "alike"])
@pytest.mark.parametrize("total", [30, 50, 100, 300, 1000])
def test_luck_is_rarely_taken_for_a_gain_in_many_settings(total: int, kind: str) -> None:
    for alone in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97):
        check(total, alone, kind, [0, 0.02, -0.05, -0.2, 0.2], 10_000)

"""Intervals, paired tests and ranks against scipy, closed forms and simulation."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from scipy import stats

from equipoise.metrics import (
    PartialMetric,
    UndefinedMetric,
    accuracy_variance,
    against_baseline,
    average_ranks,
    between_client_variance,
    bootstrap,
    bootstrap_counts,
    collaborative_fairness,
    each_over_seeds,
    holm,
    negative_transfer,
    over_seeds,
    paired_p,
    spread,
)
from equipoise.metrics.intervals import percentile_interval
from equipoise.streams import stream

FEDAVG = [0.80, 0.80, 0.81, 0.82, 0.80]
FEDAKD = [0.82, 0.81, 0.84, 0.83, 0.82]


def mean(*rows: np.ndarray) -> dict[str, float]:
    return {"mean": float(np.mean(rows[-1]))}


def gain(alone: np.ndarray, together: np.ndarray) -> dict[str, float]:
    return {"gain": float(np.mean(together - alone))}


def test_seed_interval_is_students() -> None:
    result = over_seeds(FEDAKD, level=0.9)
    low, high = stats.t.interval(0.9, 4, np.mean(FEDAKD), stats.sem(FEDAKD))
    assert (result.low, result.high, result.std) == pytest.approx(
        (low, high, np.std(FEDAKD, ddof=1))
    )


def test_undefined_seeds_are_counted_not_averaged() -> None:
    result = over_seeds([80.0, np.nan, 90.0])
    assert (result.value, result.count, result.undefined) == (85.0, 2, 1)
    assert over_seeds([0.5]).low is None
    with pytest.warns(UndefinedMetric, match="no seed"):
        assert np.isnan(over_seeds([np.nan]).value)
    with pytest.raises(ValueError, match="got 95"):
        over_seeds(FEDAKD, level=95)


def test_each_entry_of_a_mapping_gets_its_interval() -> None:
    rows = [negative_transfer([0.5, 0.6], [0.6, after]) for after in (0.5, 0.7)]
    assert each_over_seeds(rows)["harmed"].value == 0.25
    assert each_over_seeds([]) == {}


def test_bootstrap_of_a_mean_has_the_binomial_standard_error() -> None:
    correct = [[1] * 80 + [0] * 20, [1] * 45 + [0] * 5]
    error = np.sqrt(0.8 * 0.2 / 100 + 0.9 * 0.1 / 50) / 2
    for result in (
        bootstrap(mean, correct, seed=1, draws=4000)["mean"],
        bootstrap_counts(mean, [80, 45], totals=[100, 50], seed=1, draws=4000)["mean"],
    ):
        assert result.value == pytest.approx(0.85)
        assert result.std == pytest.approx(error, rel=0.05)
        assert (result.low, result.high) == pytest.approx(
            (0.85 - 1.96 * error, 0.85 + 1.96 * error), abs=0.006
        )


def test_bootstrap_of_real_valued_samples_has_the_classical_standard_error() -> None:
    errors = stream(3, "errors").normal(size=(2, 400)) ** 2
    result = bootstrap(mean, errors, seed=1, draws=3000)["mean"]
    assert result.value == pytest.approx(errors.mean())
    assert result.std == pytest.approx(np.sqrt((errors.var(1) / 400).sum()) / 2, rel=0.06)


def test_pairs_are_drawn_together() -> None:
    alone = [[1, 0] * 20, [0, 1] * 30]
    assert bootstrap(gain, alone, alone, seed=1)["gain"].std == 0
    independent = bootstrap_counts(gain, [20, 30], [20, 30], totals=[40, 60], seed=1)["gain"]
    assert (independent.std or 0) > 0.05


def test_bootstrap_repeats_with_its_seed_and_differs_with_another() -> None:
    correct = [[1, 0, 1, 1, 0, 1, 0]] * 3
    assert bootstrap(mean, correct, seed=1) == bootstrap(mean, correct, seed=1)
    assert bootstrap(mean, correct, seed=1) != bootstrap(mean, correct, seed=2)
    first, again, other = (
        bootstrap_counts(mean, [4, 5], totals=[7, 9], seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_thousand_draws_unless_said_otherwise() -> None:
    usual, same, other = (
        bootstrap_counts(mean, [4, 5], totals=[7, 9], seed=1, **more)
        for more in ({}, {"draws": 1000}, {"draws": 1001})
    )
    assert usual == same != other


def test_draws_without_a_value_are_counted() -> None:
    def cf(alone: np.ndarray, together: np.ndarray) -> dict[str, float]:
        return {"cf": collaborative_fairness(alone, together)}

    alone, together = [[1, 0], [1, 1]], [[1, 0], [1, 1]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no warning for single draws
        result = bootstrap(cf, alone, together, seed=1, draws=400)["cf"]
    assert result.value == pytest.approx(100)
    # a quarter of the draws make both clients perfect
    assert result.undefined == pytest.approx(100, abs=30)
    assert result.count + result.undefined == 400
    with pytest.warns(UndefinedMetric, match="same value"):
        assert bootstrap(cf, alone, [[1, 0], [1, 0]], seed=1, draws=10)["cf"].low is None


def test_bootstrap_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"got \[2, 1\] clients"):
        bootstrap(gain, [[1], [0]], [[1]], seed=1)
    with pytest.raises(ValueError, match="at least one"):
        bootstrap(mean, [], seed=1)
    with pytest.raises(ValueError, match=r"place 1, got \[1, 2\]"):
        bootstrap(gain, [[1], [0, 1]], [[1], [1]], seed=1)
    with pytest.raises(ValueError, match=r"place 0, got \[0\]"):
        bootstrap(mean, [[]], seed=1)
    with pytest.raises(ValueError, match="draws"):
        bootstrap(mean, [[1]], seed=1, draws=0)
    for right, total in ((0.8, 10), (11, 10), (0, 0)):
        with pytest.raises(ValueError, match="whole counts"):
            bootstrap_counts(mean, [right], totals=[total], seed=1)


def test_debiased_variance_finds_the_true_one() -> None:
    """Clients of known accuracies, measured again and again on 100 samples: the raw variance is too
    large on average.
    """
    truth, tests = np.linspace(0.6, 0.9, 6), 100
    measured = stream(1, "clients").binomial(tests, truth, (4000, 6)) / tests
    results = [between_client_variance(a, accuracy_variance(a, [tests] * 6)) for a in measured]
    raw, debiased = (np.mean([r[name] for r in results]) for name in ("raw", "debiased"))
    assert debiased == pytest.approx(truth.var(), rel=0.02)
    assert raw > 1.1 * truth.var()


def test_debiased_variance_is_never_negative_and_none_for_one_client() -> None:
    assert between_client_variance([0.5, 0.5], [0.01, 0.01])["debiased"] == 0
    assert between_client_variance([0.5], [0.01]) == {"raw": 0, "sampling": 0, "debiased": 0}
    with pytest.raises(ValueError, match="got -1"):
        between_client_variance([0.5], [-1])
    with pytest.warns(UndefinedMetric, match=r"positions \[0\]"):
        assert np.isnan(
            between_client_variance([1.0, 0.5], accuracy_variance([1.0, 0.5], [1, 10]))["raw"]
        )
    with pytest.raises(ValueError, match="percentages"):
        accuracy_variance([85], [10])


def test_paired_p_is_the_paired_t_test() -> None:
    assert paired_p(FEDAKD, FEDAVG)[0] == pytest.approx(stats.ttest_rel(FEDAKD, FEDAVG).pvalue)
    assert paired_p(FEDAVG, FEDAKD)[0] == pytest.approx(paired_p(FEDAKD, FEDAVG)[0])


def test_five_seeds_are_enough_to_decide() -> None:
    """Wilcoxon's signed ranks, the other choice, give 1/16 for any five gains."""
    better = [0.82, 0.81, 0.84, 0.83, 0.82]
    assert (
        paired_p(better, np.subtract(better, [0.02, 0.01, 0.03, 0.015, 0.025]))[0]
        < 0.05
        < stats.wilcoxon(better).pvalue
    )


def test_without_a_p_value_there_is_a_reason() -> None:
    assert paired_p(FEDAKD[:4], FEDAVG[:4]) == (None, "too few seeds")
    assert paired_p([*FEDAKD[:4], np.nan], FEDAVG) == (None, "too few seeds")
    assert paired_p(FEDAVG, FEDAVG) == (1.0, "identical in every seed")
    p, reason = paired_p(np.array(FEDAVG) + 0.1, FEDAVG)
    assert p is None and "same difference" in reason
    for scale in (1e6, 1e-6):  # what is rounding follows the size of the numbers
        values = scale * np.array(FEDAVG)
        assert paired_p(values * (1 + 1e-13), values) == (1.0, "identical in every seed")
        assert paired_p(values * (1 + 1e-9 * np.arange(5)), values)[0] is not None


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.02, 0.03, 0.005]) == pytest.approx([0.03, 0.04, 0.04, 0.02])
    assert holm([0.6, 0.7]).tolist() == [1, 1]
    assert holm([]).tolist() == []
    assert holm([0.04]).tolist() == [0.04]
    with pytest.raises(ValueError, match="from 0 to 1"):
        holm([np.nan])


def test_correction_counts_only_methods_that_were_tested() -> None:
    worse = [0.79, 0.80, 0.79, 0.81, 0.80]
    results = {
        "fedavg": FEDAVG,
        "fedakd": FEDAKD,
        "worse": worse,
        "short": [0.9, 0.9, np.nan, np.nan, np.nan],
    }
    compared = against_baseline(results, "fedavg")
    assert list(compared) == ["fedakd", "worse", "short"]
    assert compared["fedakd"].adjusted == pytest.approx(2 * stats.ttest_rel(FEDAKD, FEDAVG).pvalue)
    assert compared["worse"].difference < 0 < compared["fedakd"].difference
    short = compared["short"]
    assert (short.seeds, short.p, short.adjusted, short.note) == (2, None, None, "too few seeds")
    assert short.difference == pytest.approx(0.1)
    with pytest.raises(ValueError, match="'fedavgg'; did you mean 'fedavg'"):
        against_baseline(results, "fedavgg")


def test_ranks_turn_round_and_skip_gaps() -> None:
    results = {"a": [0.9, 0.8, np.nan], "b": [0.7, 0.9, 0.1]}
    with pytest.warns(PartialMetric, match=r"columns \[2\]"):
        assert average_ranks(results) == {"a": 1.5, "b": 1.5}
    assert average_ranks({"a": [1, 1], "b": [2, 3]}, lower_is_better=True) == {"a": 1, "b": 2}
    assert average_ranks({"a": [1, 1], "b": [2, 3]}) == {"a": 2, "b": 1}
    assert average_ranks({}) == {}
    with pytest.warns(UndefinedMetric):
        assert np.isnan(average_ranks({"a": [np.nan], "b": [1]})["a"])
    with pytest.raises(ValueError, match="'a': 1, 'b': 2"):
        average_ranks({"a": [1], "b": [1, 2]})


def test_ninety_five_per_cent_unless_said_otherwise() -> None:
    low, high = stats.t.interval(0.95, 4, np.mean(FEDAKD), stats.sem(FEDAKD))
    for result in (over_seeds(FEDAKD), each_over_seeds([{"a": value} for value in FEDAKD])["a"]):
        assert (result.low, result.high, result.count, result.undefined) == pytest.approx(
            (low, high, 5, 0)
        )
    narrow = each_over_seeds([{"a": value} for value in FEDAKD], level=0.5)["a"]
    assert narrow == over_seeds(FEDAKD, 0.5) and (narrow.high or 0) < high
    two, single = over_seeds([1.0, 3.0]), over_seeds([2.0, np.nan, np.nan])
    assert (
        two.low is not None
        and two.std == pytest.approx(np.sqrt(2))
        and (single.std, single.count, single.undefined) == (None, 1, 2)
    )
    correct = [[1, 0, 1, 1, 0, 1]] * 3
    assert (
        bootstrap(mean, correct, seed=1)
        == bootstrap(mean, correct, seed=1, level=0.95, draws=1000)
        != bootstrap(mean, correct, seed=1, level=0.9)
    )
    assert bootstrap_counts(mean, [4], totals=[9], seed=1) == bootstrap_counts(
        mean, [4], totals=[9], seed=1, level=0.95
    )
    assert bootstrap(mean, correct, seed=1)["mean"].count == 1000


@pytest.mark.parametrize("level", [0, 1, -0.5, 95])
def test_levels_are_shares_between_0_and_1(level: float) -> None:
    for door in (
        lambda: over_seeds([1, 2], level),
        lambda: bootstrap(mean, [[1, 0]], seed=1, level=level),
        lambda: bootstrap_counts(mean, [1], totals=[2], seed=1, level=level),
    ):
        with pytest.raises(ValueError, match="level: expected a share between 0 and 1"):
            door()


def test_two_draws_are_the_fewest() -> None:
    for draws in (1, 0):
        for door in (
            lambda n=draws: bootstrap(mean, [[1, 0]], seed=1, draws=n),
            lambda n=draws: bootstrap_counts(mean, [1], totals=[2], seed=1, draws=n),
        ):
            with pytest.raises(
                ValueError,
                match=f"draws: expected at least 2, and 1000 for a usable interval, got {draws}",
            ):
                door()
    assert bootstrap(mean, [[1, 0]], seed=1, draws=2)["mean"].count == 2


def test_percentiles_by_hand() -> None:
    drawn = np.append(np.arange(101.0), [np.nan] * 3)
    found = percentile_interval(7.0, drawn, 0.9)
    assert (found.value, found.low, found.high, found.count, found.undefined) == pytest.approx(
        (7, 5, 95, 101, 3)
    )
    assert found.std == pytest.approx(np.std(np.arange(101), ddof=1))
    assert percentile_interval(np.nan, drawn, 0.9).low is None
    one, two = (
        percentile_interval(7.0, np.array([1.0, np.nan]), 0.9),
        percentile_interval(7.0, np.array([1.0, 3.0]), 0.5),
    )
    assert (one.low, one.high, one.std, one.count, one.undefined) == (None, None, None, 1, 1)
    assert (two.low, two.high) == (1.5, 2.5)


def test_counts_at_their_bounds_and_draws_of_each_model_are_its_own() -> None:
    for right in (0, 3):
        found = bootstrap_counts(mean, [right], totals=[3], seed=1)["mean"]
        assert (found.value, found.low, found.high) == (right / 3,) * 3
    for right, total in ((-1, 3), (4, 3), (1.5, 3), (0, 0.5)):
        with pytest.raises(ValueError, match="whole counts from 0 to each client"):
            bootstrap_counts(mean, [right], totals=[total], seed=1)
    both = bootstrap_counts(gain, [40, 20], [40, 20], totals=[80, 50], seed=1)["gain"]
    wanted = np.sqrt(2 * (0.25 / 80 + 0.24 / 50)) / 2  # two independent draws of both clients
    assert both.value == 0 and both.std == pytest.approx(wanted, rel=0.1)


def test_a_clients_samples_are_drawn_with_replacement() -> None:
    values = [[0.0, 1.0, 2.0, 7.0], [1.0, 1.0, 4.0]]
    found = bootstrap(mean, values, seed=3, draws=4000)["mean"]
    assert found.value == pytest.approx((2.5 + 2) / 2)
    assert found.std == pytest.approx(
        np.sqrt(np.var(values[0]) / 4 + np.var(values[1]) / 3) / 2, rel=0.05
    )


@pytest.mark.parametrize(("accuracies", "totals", "fine"), [([0.0, 1.0], [1, 2], True), ([-0.1], [5], False), ([1.1], [5], False), ([0.5], [0], False)])  # fmt: skip
def test_accuracies_and_totals_at_their_bounds(
    accuracies: list[float], totals: list[int], fine: bool
) -> None:
    if fine:
        np.testing.assert_array_equal(accuracy_variance(accuracies, totals), [np.nan, 0.0])
    else:
        with pytest.raises(ValueError, match="divide percentages by 100"):
            accuracy_variance(accuracies, totals)
    assert accuracy_variance([0.5, 0.2], [2, 5]).tolist() == pytest.approx([0.25, 0.04])


def test_paired_tests_at_their_bounds() -> None:
    a = np.array([0.8, 0.8, 0.81, 0.82, 0.8])
    assert paired_p(a + 1e-14, a) == (1.0, "identical in every seed"), "up to rounding"
    p, reason = paired_p(a + 0.1 + 1e-14 * np.arange(5), a)
    assert p is None and "do the seeds reach the runs" in reason
    tiny, noted = paired_p(a + 1e-9 * np.array([1, 2, 1, 3, 1]), a)
    assert (
        tiny
        == pytest.approx(stats.ttest_rel(a + 1e-9 * np.array([1, 2, 1, 3, 1]), a).pvalue, rel=1e-3)
        and noted == ""
    )
    assert holm([0.0, 1.0]).tolist() == [0, 1]
    for wrong in (-0.01, 1.01):
        with pytest.raises(
            ValueError, match="expected numbers from 0 to 1; leave out tests without one"
        ):
            holm([wrong])
    nobody = against_baseline({"a": [np.nan, 1.0], "b": [1.0, np.nan]}, "a")["b"]
    assert np.isnan(nobody.difference) and nobody.seeds == 0
    identical = against_baseline({"a": FEDAVG, "b": FEDAVG}, "a")["b"]
    assert (identical.difference, identical.p, identical.adjusted, identical.note) == (
        0,
        1.0,
        1.0,
        "identical in every seed",
    )


def test_extremes_over_clients_get_no_percentile_interval_and_the_reason() -> None:
    found = bootstrap_counts(negative_transfer, [20, 30], [25, 31], totals=[40, 40], seed=1)
    for name in ("worst", "p10", "p90", "harmed"):
        assert (found[name].low, found[name].high) == (None, None) and found[name].note
    assert found["average"].low is not None and not found["average"].note
    spreads = bootstrap(spread, [[1, 0, 1], [1, 1, 0, 0]], seed=1)
    assert {name for name, one in spreads.items() if one.low is None} == {
        "std",
        "min",
        "max",
        "worst_decile",
    }


def test_an_extreme_over_seeds_needs_three_and_is_wider_by_half_a_step() -> None:
    two = over_seeds([0.5, 0.6], extreme_step=0.1)
    assert (two.value, two.low, two.high) == (pytest.approx(0.55), None, None)
    assert "three seeds" in two.note
    plain, wide = over_seeds([0.5, 0.6, 0.6]), over_seeds([0.5, 0.6, 0.6], extreme_step=0.1)
    assert wide.low == pytest.approx(plain.low - 0.05)
    assert wide.high == pytest.approx(plain.high + 0.05)
    assert over_seeds([0.5, 0.6, 0.6], extreme_step=0.0) == plain


def covered(clients: int, total: int, spread_of_clients: float, seeds: int, repeats: int) -> float:
    """The least share of intervals over seeds that hold the expected worst, p10 and p90."""
    rng = np.random.default_rng([clients, total, seeds])

    def extremes(rows: int) -> np.ndarray:
        level = np.clip(rng.normal(0.85, spread_of_clients, (rows, clients)), 0.02, 0.98)
        measured = rng.binomial(total, level) / total
        return np.stack([measured.min(1), *np.percentile(measured, [10, 90], axis=1)])

    truth = extremes(40_000).mean(1)
    held = np.zeros(3)
    for _ in range(repeats):
        for place, values in enumerate(extremes(seeds)):
            one = over_seeds(values, extreme_step=1 / total)
            held[place] += one.low - 1e-12 <= truth[place] <= one.high + 1e-12
    return float(held.min() / repeats)


def test_intervals_of_extremes_over_seeds_hold() -> None:
    for setting in ((10, 30, 0.05, 3), (50, 30, 0.0, 5)):
        assert covered(*setting, repeats=300) >= 0.93 - 3 * math.sqrt(0.07 * 0.93 / 300)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("clients", [5, 10, 50])
def test_intervals_of_extremes_over_seeds_hold_in_many_settings(clients: int, seeds: int) -> None:
    for total, between in ((30, 0.0), (30, 0.05), (200, 0.0), (200, 0.05)):
        share = covered(clients, total, between, seeds, repeats=3000)
        assert share >= 0.93 - 2 * math.sqrt(0.07 * 0.93 / 3000), (total, between)

"""Verdicts on constructed tables with known answers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from equipoise.study.claims import parse_claim
from equipoise.study.statistics import Difference, Prior, fit_prior, holm, moderated
from equipoise.study.verdicts import FAILS, HOLDS, OPEN, Sample, judge

ROWS = ["a", "b", "c", "d", "e"]


def table(values, variance=0.0, fixed_test=False):
    """(row, condition) -> list of values by seed, as samples of the measure `average`."""
    rng = np.random.default_rng(0)
    samples = {}
    for (row, condition), numbers in values.items():
        draws = {
            seed: number + rng.normal(0, np.sqrt(variance), 500)
            for seed, number in enumerate(numbers)
        }
        samples[row, condition, "average"] = Sample(
            dict(enumerate(numbers)), draws, fixed_test=fixed_test
        )
    return samples


def decision(text, samples, conditions=("x",), rows=ROWS, **options):
    claim = parse_claim(text, rows, conditions)
    return judge([claim], samples, rows, conditions, **options)[0]


def noisy(rng, means, seeds=3, noise=0.01):
    """One table of one condition: a common effect of the seed, and noise of its own."""
    common = rng.normal(0, 0.05, seeds)
    return table(
        {(row, "x"): mean + common + rng.normal(0, noise, seeds) for row, mean in means.items()}
    )


def test_a_clear_lead_over_every_other_holds_with_three_seeds():
    samples = noisy(np.random.default_rng(0), {"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.75, "e": 0.6})
    assert decision("a.average > every other.average", samples).decision == HOLDS
    assert decision("b.average > every other.average", samples).decision == FAILS
    assert decision("e.average < every other.average", samples).decision == HOLDS


def test_one_close_opponent_leaves_the_claim_open():
    samples = noisy(np.random.default_rng(1), {"a": 0.9, "b": 0.899, "c": 0.7, "d": 0.7, "e": 0.6})
    verdict = decision("a.average > every other.average", samples)
    assert verdict.decision == OPEN
    assert verdict.detectable > 0.001


def test_a_claim_about_every_condition_fails_if_one_condition_contradicts_it():
    rng = np.random.default_rng(2)
    means = {("a", "x"): 0.9, ("b", "x"): 0.7, ("a", "y"): 0.6, ("b", "y"): 0.8}
    samples = table({key: mean + rng.normal(0, 0.005, 4) for key, mean in means.items()})
    conditions = ("x", "y")
    assert decision("a.average > b.average", samples, conditions).decision == FAILS
    assert decision("a.average > b.average at x", samples, conditions).decision == HOLDS


def test_a_number_and_an_offset_are_compared_with():
    rng = np.random.default_rng(3)
    samples = noisy(rng, {"a": 0.5, "b": 0.4}, seeds=8, noise=0.002)
    rows = ["a", "b"]
    assert decision("a.average > b.average + 0.05", samples, rows=rows).decision == HOLDS
    assert decision("a.average > b.average + 0.15", samples, rows=rows).decision == FAILS
    values = table({("a", "x"): 0.02 + rng.normal(0, 0.003, 8)})
    assert decision("a.average >= -0.01", values, rows=rows).decision == HOLDS
    assert decision("a.average >= 0.05", values, rows=rows).decision == FAILS


def test_one_seed_alone_cannot_tell_but_borrows_noise_from_other_conditions():
    lone = table({("a", "x"): [0.9], ("b", "x"): [0.5]})
    verdict = decision("a.average > b.average", lone)
    assert verdict.decision == OPEN
    assert "seed" in verdict.reason
    rng = np.random.default_rng(4)
    values = {("a", "x"): [0.9], ("b", "x"): [0.5]}
    for condition in "yzuvw":
        values["a", condition] = 0.8 + rng.normal(0, 0.01, 3)
        values["b", condition] = 0.6 + rng.normal(0, 0.01, 3)
    conditions = tuple("xyzuvw")
    claims = [parse_claim("a.average > b.average", ROWS, conditions)]
    verdict = judge(claims, table(values), ROWS, conditions)[0]
    assert verdict.decision == HOLDS


def test_small_test_sets_widen_what_identical_seeds_suggest():
    values = {("a", "x"): [0.80, 0.801, 0.799], ("b", "x"): [0.78, 0.781, 0.7795]}
    assert decision("a.average > b.average", table(values, variance=1e-6)).decision == HOLDS
    assert decision("a.average > b.average", table(values, variance=0.01)).decision == OPEN
    fixed = table(values, variance=1e-4, fixed_test=True)
    assert decision("a.average > b.average", fixed).decision == OPEN


def test_missing_rows_and_diverged_values_leave_a_claim_open_with_the_reason():
    samples = table({("a", "x"): [0.9, 0.9, 0.9], ("b", "x"): [np.nan, np.nan, np.nan]})
    verdict = decision("a.average > b.average", samples)
    assert (verdict.decision, "b has no average" in verdict.reason) == (OPEN, True)


def test_other_models_of_the_same_method_are_no_opponents():
    rows = ["kdia.global", "kdia.teacher", "fedavg"]
    rng = np.random.default_rng(5)
    means = {"kdia.global": 0.99, "kdia.teacher": 0.9, "fedavg": 0.5}
    samples = table({(row, "x"): mean + rng.normal(0, 0.01, 5) for row, mean in means.items()})
    verdict = decision("kdia.teacher.average > every other.average", samples, rows=rows)
    assert [test.right for test in verdict.tests] == ["fedavg"]
    assert verdict.decision == HOLDS


def test_every_other_leaves_out_rows_that_cannot_have_the_measure():
    samples = noisy(np.random.default_rng(9), {"a": 0.9, "b": 0.6, "c": 0.6, "d": 0.6})
    verdict = decision("a.average > every other.average", samples)
    assert "e has no average" in verdict.reason
    verdict = decision("a.average > every other.average", samples, without={("e", "average")})
    assert verdict.decision == HOLDS


OTHER_TABLES = [(2, 0.0), (2, 0.4), (2, 1.0), (3, 0.0), (3, 1.0), (10, 0.0), (10, 0.4), (10, 1.0)]


@pytest.mark.parametrize(
    ("seeds", "spread"),
    [(3, 0.4), *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHER_TABLES)],
)
@pytest.mark.thorough
def test_wrong_decisions_over_a_thousand_tables_stay_within_the_level(seeds, spread):
    """Under equal means no decision is right; `spread` varies the noise between methods."""
    rng = np.random.default_rng([seeds, int(10 * spread)])
    rows = [f"m{number}" for number in range(8)]
    texts = [f"{row}.average > {other}.average" for row, other in itertools.pairwise(rows)]
    texts.append("m0.average > every other.average")
    claims = [parse_claim(text, rows, ["x"]) for text in texts]
    wrong = 0
    for _ in range(1000):
        noise = 0.01 * np.exp(rng.normal(0, spread, len(rows)))
        common = rng.normal(0, 0.05, seeds)
        samples = table(
            {
                (row, "x"): 0.7 + common + s * rng.normal(size=seeds)
                for row, s in zip(rows, noise, strict=True)
            }
        )
        verdicts = judge(claims, samples, rows, ["x"])
        wrong += any(verdict.decision != OPEN for verdict in verdicts)
    assert wrong <= 65  # 50 expected at most; 65 is two standard errors more


def test_without_a_prior_the_test_is_the_paired_t_test_of_scipy():
    rng = np.random.default_rng(6)
    values = rng.normal(0.3, 1, 7)
    difference = moderated(values, Prior(float("nan"), 0.0))
    expected = stats.ttest_1samp(values, 0, alternative="greater").pvalue
    assert difference.p_above() == pytest.approx(expected)
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert difference.interval() == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("freedom", [2, 6])
@pytest.mark.parametrize("of_test", [0.1, 1.0, 3.0])
def test_errors_of_seeds_and_of_a_shared_test_set_keep_every_level(freedom, of_test):
    """Three seeds without or with a prior; the correction for many claims needs small levels."""
    rng = np.random.default_rng([freedom, int(10 * of_test)])
    repetitions = 4000
    p_values = []
    for _ in range(repetitions):
        mean = rng.normal(0, of_test) + rng.normal()
        estimated = np.sqrt(rng.chisquare(freedom) / freedom)
        p_values.append(Difference(mean, estimated, freedom, of_test).p_above())
    for level in (0.05, 0.005):
        share = np.mean(np.array(p_values) < level)
        assert share <= level + 2.5 * np.sqrt(level / repetitions)
    assert np.mean(np.array(p_values) < 0.05) > 0.01  # not far too careful either


def test_a_difference_with_one_kind_of_error_has_its_own_test():
    t_test = Difference(0.3, 0.1, 4)
    nearly = Difference(0.3, 0.1, 4, 1e-7)
    assert nearly.p_above() == pytest.approx(t_test.p_above(), rel=1e-3)
    assert nearly.interval() == pytest.approx(t_test.interval(), rel=1e-3)
    assert nearly.detectable(0.001) == pytest.approx(t_test.detectable(0.001), rel=1e-3)
    normal = Difference(0.3, 0.0, 4, 0.1)
    assert normal.p_above() == pytest.approx(stats.norm.sf(3))
    assert Difference(0.3, 1e-7, 4, 0.1).p_above() == pytest.approx(stats.norm.sf(3), rel=1e-3)
    low, high = normal.interval()
    assert (high - low) / 2 == pytest.approx(0.1 * stats.norm.isf(0.025))


def test_variances_that_are_alike_are_worth_many_degrees_of_freedom():
    rng = np.random.default_rng(7)
    alike = fit_prior(0.5 * rng.chisquare(2, 200) / 2, [2] * 200)
    assert alike.variance == pytest.approx(0.5, rel=0.2)
    assert alike.freedom > 4
    apart = fit_prior(np.exp(rng.normal(0, 3, 200)), [2] * 200)
    assert apart.freedom < 1


def test_the_smallest_detectable_difference_is_found_in_four_of_five_studies():
    rng = np.random.default_rng(8)
    error = 1 / np.sqrt(12)
    reference = moderated(rng.normal(0, 1, 12), Prior(1.0, 1e6))
    assert reference.error == pytest.approx(error, rel=1e-3)
    size = reference.detectable(0.025)
    found = 0
    for _ in range(2000):
        found += moderated(rng.normal(size, 1, 12), Prior(1.0, 1e6)).p_above() < 0.025
    assert found / 2000 == pytest.approx(0.8, abs=0.03)


def test_holm_agrees_with_its_definition():
    p_values = [0.04, 0.01, 0.5, 0.012]
    assert holm(p_values) == pytest.approx([0.08, 0.04, 0.5, 0.04])


def test_a_claim_that_needs_a_refused_row_stays_open_and_counts_as_seen():
    samples = noisy(np.random.default_rng(0), {"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.75})
    claim = "a.average > every other.average"
    verdict = decision(claim, samples, refused={("e", "x")})
    assert (verdict.decision, verdict.seen) == (OPEN, True)
    assert verdict.reason == "e refuses its settings at x"
    alone = decision("e.average > 0.5", {}, refused={("e", "x")})
    assert (alone.decision, alone.seen) == (OPEN, True)
    assert not decision("e.average > 0.5", {}).seen


def test_a_row_that_is_beaten_fails_whatever_another_row_refuses():
    samples = noisy(np.random.default_rng(0), {"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.75})
    verdict = decision("b.average > every other.average", samples, refused={("e", "x")})
    assert verdict.decision == FAILS


def judged(texts, samples, rows=ROWS, conditions=("x",)):
    claims = [parse_claim(text, rows, conditions) for text in texts]
    return judge(claims, samples, rows, conditions)


def test_one_comparison_in_several_claims_and_conditions_is_one_variance():
    numbers = {"a": [0.8, 0.83, 0.79], "b": [0.7, 0.72, 0.74]}
    samples = table({(row, name): numbers[row] for row in "ab" for name in "xy"})
    alone = judged(["a.average > b.average"], samples)[0]
    mirrored = judged(["a.average > b.average", "b.average > a.average"], samples)[0]
    twice = judged(["a.average > b.average"], samples, conditions=("x", "y"))[0]
    for verdict in (alone, mirrored, twice):
        assert {test.difference.freedom for test in verdict.tests} == {2}


def test_differences_of_rows_say_nothing_about_the_noise_of_a_row_against_a_number():
    """Seeds move both rows together, so that their difference has less noise than each of them."""
    rng = np.random.default_rng(10)
    values = {}
    for condition in "xyzw":
        common = rng.normal(0, 0.1, 3)
        for row in "ab":
            values[row, condition] = 0.7 + common + rng.normal(0, 0.01, 3)
    texts = ["a.average > b.average", "a.average > 0.6 at x"]
    _, level = judged(texts, table(values), conditions=tuple("xyzw"))
    expected = stats.sem(values["a", "x"])
    assert level.tests[0].difference.error == pytest.approx(expected)
    assert level.tests[0].difference.freedom == 2


def test_equal_differences_in_all_seeds_decide_nothing_but_claims_about_steps():
    rounds = {"a": [3, 4], "b": [2, 3]}
    for measure, decided in (("rounds_to_target", OPEN), ("steps", HOLDS)):
        samples = {
            (row, "x", measure): Sample(dict(enumerate(numbers)), {})
            for row, numbers in rounds.items()
        }
        verdict = decision(f"a.{measure} > b.{measure}", samples)
        assert verdict.decision == decided
        assert ("equal differences" in verdict.reason) == (decided == OPEN)


def test_differences_that_are_equal_but_for_rounding_decide_nothing():
    samples = table({("a", "x"): [0.8, 0.9, 0.7], ("b", "x"): [0.7, 0.8, 0.6]})
    without = {key: Sample(sample.values, {}) for key, sample in samples.items()}
    verdict = decision("a.average > b.average", without)
    assert (verdict.decision, verdict.p) == (OPEN, 1)
    assert "equal differences" in verdict.reason


def test_a_condition_with_one_seed_so_far_is_named():
    values = {("a", "x"): [0.8, 0.9, 0.7], ("b", "x"): [0.7, 0.85, 0.6]}
    values |= {("a", "y"): [0.8], ("b", "y"): [0.7]}
    lone = {key: Sample(sample.values, {}) for key, sample in table(values).items()}
    reason = decision("a.average > b.average", lone, ("x", "y")).reason
    assert "one seed at y says nothing" in reason


def test_the_smallest_detectable_difference_is_unknown_if_that_of_one_comparison_is():
    numbers = {"a": [0.9, 0.8, 0.85], "b": [0.7, 0.72, 0.74], "c": [0.6, 0.66, 0.61]}
    for missing in "bc":
        known = {(row, "x"): values for row, values in numbers.items() if row != missing}
        claim = "a.average > every other.average"
        verdict = decision(claim, table(known), rows=["a", "b", "c"])
        assert np.isnan(verdict.detectable)


def test_a_variance_that_is_hardly_known_gives_no_interval():
    difference = Difference(0.1, 0.05, 0.2)
    assert np.isnan(difference.interval()).all()
    assert np.isnan(difference.detectable(0.025))
    assert difference.p_above() < 0.5


def test_a_claim_about_some_conditions_is_judged_by_those_that_are_run():
    rng = np.random.default_rng(11)
    samples = table(
        {
            (row, "x"): level + rng.normal(0, 0.01, 5)
            for row, level in zip("ab", (0.9, 0.5), strict=True)
        }
    )
    claim = parse_claim("a.average > b.average at x, y", ROWS, ("x", "y"))
    assert judge([claim], samples, ROWS, ("x",))[0].decision == HOLDS
    claim = parse_claim("a.average > b.average at y", ROWS, ("x", "y"))
    verdict = judge([claim], samples, ROWS, ("x",))[0]
    assert (verdict.decision, verdict.seen) == (OPEN, False)


def test_rows_without_a_common_seed_are_not_called_a_single_seed():
    samples = {
        ("a", "x", "average"): Sample({0: 0.9}, {}),
        ("b", "x", "average"): Sample({1: 0.5, 2: 0.4}, {}),
    }
    assert "no seed in common" in decision("a.average > b.average", samples).reason


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["mirrored", "copies", "levels"])
def test_claims_that_share_their_data_stay_within_the_level(case):
    """Two seeds, where a variance that counts twice makes most wrong decisions."""
    texts = {
        "mirrored": ["a.average > b.average", "b.average > a.average"],
        "copies": ["a.average > b.average", "a.average > c.average", "a.average > d.average"],
        "levels": [f"a.average > b.average at {name}" for name in "yzw"] + ["a.average > 0.7 at x"],
    }[case]
    conditions = tuple("xyzw") if case == "levels" else ("x",)
    rng = np.random.default_rng(12)
    wrong = 0
    for _ in range(1000):
        values = {}
        for condition in conditions:
            common = rng.normal(0, 0.05, 2)
            for row in "abcd":
                copied = case == "copies" and row in "cd"
                own = values["b", condition] if copied else 0.7 + common + rng.normal(0, 0.01, 2)
                values[row, condition] = own
        verdicts = judged(texts, table(values), list("abcd"), conditions)
        wrong += any(verdict.decision != OPEN for verdict in verdicts)
    assert wrong <= 65

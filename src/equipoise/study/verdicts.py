"""Verdicts on claims: holds, does not hold, or cannot be told.

A claim is split into single comparisons: one per condition and opponent. Each is a moderated
paired t-test over seeds (`study.statistics`). A claim *holds* if all its comparisons are
significant in its direction (an intersection-union test needs no further correction). It *does
not hold* if any comparison is significant in the other direction, corrected for the number of
comparisons. Both decisions together are corrected for the number of claims of the study (Holm).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from equipoise.study.claims import EVERY_OTHER, Claim, Quantity
from equipoise.study.statistics import Difference, Prior, fit_prior, holm, moderated

HOLDS: Literal["holds"] = "holds"
FAILS: Literal["does not hold"] = "does not hold"
OPEN: Literal["cannot be told"] = "cannot be told"
LEVEL = 0.05
EXACT = ("steps", "megabytes")
"""Measures without noise: equal differences in all seeds decide a claim about them."""

Key = tuple[str, str, str]
"""Row, condition and measure."""


@dataclass(frozen=True)
class Sample:
    """The values of one measure of one row under one condition.

    Attributes:
        values: Seed -> value.
        draws: Seed -> what the value could have been with other test samples of the same number;
            seeds without an estimate are absent.
        undefined: Seeds whose run has no value: its model diverged, or the measure does not
            exist there. Leaving them out could favour a row, so that a claim about it stays open.
        fixed_test: True if all seeds are tested on the same samples.
    """

    values: Mapping[int, float]
    draws: Mapping[int, np.ndarray] = field(compare=False)
    undefined: Sequence[int] = ()
    fixed_test: bool = False


@dataclass(frozen=True)
class Test:
    """One comparison that a claim rests on.

    Attributes:
        condition: Condition of the comparison.
        left: Row that the claim is about.
        right: Row that it is compared with; None for a number.
        difference: Left minus right, less the offset of the claim, in the direction of the claim:
            positive supports it.
        seeds: Number of seeds that both rows have.
        p_holds: One-sided p-value for the claim.
        p_fails: One-sided p-value against it.
        detectable: Smallest true difference that the comparison could have detected.
    """

    __test__ = False  # not a test case of pytest

    condition: str
    left: str
    right: str | None
    difference: Difference
    seeds: int
    p_holds: float
    p_fails: float
    detectable: float


@dataclass(frozen=True)
class Verdict:
    """A decision about a claim with the tests that it rests on.

    Attributes:
        claim: The claim.
        decision: `HOLDS`, `FAILS` or `OPEN`.
        p: p-value of the decision, corrected for the number of claims.
        tests: The comparisons of the claim, in the order of conditions and rows.
        reason: Why nothing can be told, if there is more to say than "not significant".
        seen: True if at least one of its comparisons has been run, or can never be run because a
            method refuses its settings.
    """

    claim: Claim
    decision: str
    p: float
    tests: tuple[Test, ...]
    reason: str = ""
    seen: bool = True

    @property
    def detectable(self) -> float:
        """The smallest true difference that all comparisons could have detected; NaN if unknown."""
        values = [test.detectable for test in self.tests]
        if not values or any(math.isnan(value) for value in values):
            return math.nan
        return max(values)


def judge(
    claims: Sequence[Claim],
    samples: Mapping[Key, Sample],
    rows: Sequence[str],
    conditions: Sequence[str],
    level: float = LEVEL,
    without: Collection[tuple[str, str]] = (),
    refused: Collection[tuple[str, str]] = (),
) -> list[Verdict]:
    """Return the verdicts on all claims of one study.

    Args:
        claims: The claims; their number is corrected for.
        samples: (row, condition, measure) -> values by seed. Missing entries make a claim open.
        rows: All rows; those of one method share the part of their name before the first point.
        conditions: The conditions that are run. A claim about some of its conditions is judged by
            those that are among them.
        level: Probability of any wrong decision in the whole study.
        without: Rows and measures that cannot have a value, such as training alone and its own
            change; `every other` leaves them out.
        refused: Rows and conditions whose method refuses its settings there. They will never have
            values, so that a claim that needs them stays open.
    """
    paired = {}
    for claim in claims:
        compared = [row for row in rows if (row, claim.left.measure) not in without]
        paired[claim] = _paired(claim, samples, compared, conditions, refused)
    priors = _priors(paired)
    alpha = level / (2 * max(1, len(claims)))
    tested: dict[Claim, list[Test]] = {}
    for claim, pairs in paired.items():
        prior = priors[_kind(claim)]
        tested[claim] = [_test(pair, prior, alpha) for pair in pairs]
    adjusted = holm([_p_value(tested[claim]) for claim in claims])
    return [
        _decide(claim, tested[claim], paired[claim], p, level)
        for claim, p in zip(claims, adjusted, strict=True)
    ]


@dataclass(frozen=True)
class _Pair:
    """The differences of one comparison by seed."""

    condition: str
    left: str
    right: str | None
    differences: tuple[float, ...]
    test_variance: float
    missing: str = ""
    fixed_test: bool = False
    seen: bool = True  # both rows have been run, or one of them never will be
    refused: bool = False
    exact: bool = False


def opponents(claim: Claim, rows: Sequence[str]) -> list[str | None]:
    """Return the rows that a claim compares its left side with; None stands for a number."""
    if claim.right is None:
        return [None]
    if claim.right.row != EVERY_OTHER:
        return [claim.right.row]
    method = _method_of(claim.left.row)
    return [row for row in rows if _method_of(row) != method]


def conditions_of(claim: Claim, run: Sequence[str]) -> Sequence[str]:
    """Return the conditions that a claim is judged by.

    Args:
        claim: The claim.
        run: The conditions that are run. If the claim is about none of them, its own are returned.
    """
    if not claim.conditions:
        return run
    return [name for name in claim.conditions if name in run] or claim.conditions


def _method_of(row: str) -> str:
    return row.partition(".")[0]


def _paired(
    claim: Claim,
    samples: Mapping[Key, Sample],
    rows: Sequence[str],
    conditions: Sequence[str],
    refused: Collection[tuple[str, str]],
) -> list[_Pair]:
    pairs = []
    for condition in conditions_of(claim, conditions):
        for opponent in opponents(claim, rows):
            compared = (claim.left.row, opponent)
            refusing = [row for row in compared if row and (row, condition) in refused]
            if refusing:
                pairs.append(_refused_pair(claim, condition, opponent, refusing[0]))
            else:
                pairs.append(_pair(claim, samples, condition, opponent))
    return pairs


def _refused_pair(claim: Claim, condition: str, opponent: str | None, refusing: str) -> _Pair:
    reason = f"{refusing} refuses its settings at {condition}"
    return _Pair(condition, claim.left.row, opponent, (), 0.0, reason, refused=True)


def _pair(
    claim: Claim, samples: Mapping[Key, Sample], condition: str, opponent: str | None
) -> _Pair:
    left, missing = _sample(samples, claim.left, claim.left.row, condition)
    right = None
    if opponent is not None and claim.right is not None and not missing:
        right, missing = _sample(samples, claim.right, opponent, condition)
    if left is None or missing:
        seen = _seen(claim, samples, condition, opponent)
        return _Pair(condition, claim.left.row, opponent, (), 0.0, missing, seen=seen)
    sign = 1.0 if claim.greater else -1.0
    seeds = [seed for seed in left.values if right is None or seed in right.values]
    differences = []
    variances = []
    for seed in seeds:
        other = claim.offset
        if right is not None:
            other += right.values[seed]
        differences.append(sign * (left.values[seed] - other))
        variances.append(_test_variance(left, right, seed))
    test_variance = sum(variances) / len(variances) if variances else 0.0
    return _Pair(
        condition,
        claim.left.row,
        opponent,
        tuple(differences),
        test_variance,
        fixed_test=left.fixed_test,
        exact=all(column in EXACT for column in claim.columns),
    )


def _test_variance(left: Sample, right: Sample | None, seed: int) -> float:
    """Return the variance of one seed's difference that finite test sets alone bring about.

    Errors of two models on the same samples are positively correlated as a rule. Their correlation
    is not known from stored values. Their draws are independent, so this is an upper bound.
    """
    drawn = [row.draws[seed] for row in (left, right) if row is not None and seed in row.draws]
    if not drawn:
        return 0.0
    differences = drawn[0] - drawn[1] if len(drawn) == 2 else drawn[0]
    finite = differences[np.isfinite(differences)]
    return float(finite.var(ddof=1)) if len(finite) > 1 else 0.0


def _seen(
    claim: Claim, samples: Mapping[Key, Sample], condition: str, opponent: str | None
) -> bool:
    """Return True if both rows of a comparison have been run."""
    keys = [(claim.left.row, condition, claim.left.column)]
    if opponent is not None and claim.right is not None:
        keys.append((opponent, condition, claim.right.column))
    return all(key in samples for key in keys)


def _sample(
    samples: Mapping[Key, Sample], quantity: Quantity, row: str, condition: str
) -> tuple[Sample | None, str]:
    """Return the values of a row, or why they cannot be compared."""
    sample = samples.get((row, condition, quantity.column))
    if sample is None or not (sample.values or sample.undefined):
        return None, f"{row} has no {quantity.column} at {condition}"
    undefined = [*sample.undefined]
    undefined += [seed for seed, value in sample.values.items() if not math.isfinite(value)]
    if undefined:
        seeds = ", ".join(map(str, sorted(undefined)))
        return None, f"{row} has no {quantity.column} at {condition} with seed {seeds}"
    return sample, ""


def _kind(claim: Claim) -> tuple[str, ...]:
    """Return the kind of a claim's differences, whose variances resemble each other.

    Differences of two rows lack the part of the seed that both share. Those of a row and a number
    have it, so that they are of another kind.
    """
    if claim.right is None:
        return (claim.left.column,)
    return claim.left.column, claim.right.column


def _priors(paired: Mapping[Claim, Sequence[_Pair]]) -> dict[tuple[str, ...], Prior]:
    """Return one prior for each kind of differences, from every distinct comparison."""
    spreads: dict[tuple[str, ...], dict[tuple[float, ...], float]] = {}
    for claim, pairs in paired.items():
        own = spreads.setdefault(_kind(claim), {})
        for pair in pairs:
            if len(pair.differences) > 1:
                deviations = _deviations(pair.differences)
                squares = sum(value**2 for value in deviations)
                own[deviations] = squares / (len(deviations) - 1)
    priors = {}
    for kind, own in spreads.items():
        freedoms = [len(deviations) - 1 for deviations in own]
        priors[kind] = fit_prior(list(own.values()), freedoms)
    return priors


def _deviations(differences: Sequence[float]) -> tuple[float, ...]:
    """Return the deviations from the mean, equal for the same comparison the other way round.

    The same variance must not count twice: a > b and b > a, or one run under two names, would look
    like two variances that agree.
    """
    mean = sum(differences) / len(differences)
    deviations = [round(value - mean, 12) for value in differences]
    sign = next((math.copysign(1.0, value) for value in deviations if value), 1.0)
    return tuple(sign * value + 0.0 for value in deviations)


def _test(pair: _Pair, prior: Prior, alpha: float) -> Test:
    difference = moderated(pair.differences, prior, pair.test_variance, pair.fixed_test, pair.exact)
    return Test(
        pair.condition,
        pair.left,
        pair.right,
        difference,
        len(pair.differences),
        difference.p_above(),
        difference.p_below(),
        difference.detectable(alpha),
    )


def _p_value(tests: Sequence[Test]) -> float:
    """Return the two-sided p-value of a claim: for either decision."""
    if not tests:
        return 1.0
    p_holds = max(test.p_holds for test in tests)
    p_fails = min(1.0, len(tests) * min(test.p_fails for test in tests))
    return min(1.0, 2 * min(p_holds, p_fails))


def _decide(
    claim: Claim, tests: Sequence[Test], pairs: Sequence[_Pair], p: float, level: float
) -> Verdict:
    if p <= level:
        fails = len(tests) * min(test.p_fails for test in tests)
        holds = max(test.p_holds for test in tests)
        return Verdict(claim, HOLDS if holds < fails else FAILS, p, tuple(tests))
    seen = any(pair.seen for pair in pairs)
    return Verdict(claim, OPEN, p, tuple(tests), _reason(tests, pairs), seen)


def _reason(tests: Sequence[Test], pairs: Sequence[_Pair]) -> str:
    # Refusals first: what has not been run may be run later.
    reasons = [pair.missing for pair in pairs if pair.refused]
    reasons += [pair.missing for pair in pairs if pair.missing]
    if reasons:
        return reasons[0]
    if any(not test.seeds for test in tests):
        return "the rows have no seed in common yet"
    single = [test for test in tests if test.difference.freedom <= 0]
    if single and len(single) == len(tests):
        return "one seed says nothing about the noise of training"
    if single:
        return f"one seed at {single[0].condition} says nothing about the noise of training"
    if any(not test.difference.known for test in tests):
        return "equal differences in all seeds say nothing about the noise"
    return ""

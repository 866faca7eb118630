"""Tests of differences over few seeds.

A published table has three to ten seeds. A paired t-test with two degrees of freedom decides
nothing once it is corrected for the number of claims. All differences of a table are of one kind,
so their variances are estimated together: each is shrunk towards the table's typical variance, as
far as the variances resemble each other (moderated t-test: Smyth, 2004, Statistical Applications
in Genetics and Molecular Biology 3(1), article 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import optimize, special, stats

POWER = 0.8
ROUNDING = 1e-9
GRID = 2001
"""Points at which the distribution of an estimated variance is evaluated."""


@dataclass(frozen=True)
class Prior:
    """The typical variance of a table's differences.

    Attributes:
        variance: The variance of one seed's difference.
        freedom: Degrees of freedom that it is worth: 0 if nothing is known, and never more than
            the variances that it was estimated from have together.
    """

    variance: float
    freedom: float


@dataclass(frozen=True)
class Difference:
    """A mean difference over seeds with its moderated standard error.

    The error of the seeds is estimated, that of a test set that all seeds share is known from its
    size. Their sum is neither normal nor a t variable. Its tails are those of the normal
    distribution, averaged over what the estimated variance may truly be. Without an error of the
    test set this is the t-test. Degrees of freedom for the sum (Welch and Satterthwaite) would
    decide too often: where the estimate is small by chance, they are largest.

    Attributes:
        mean: The mean.
        seed_error: Its standard error over seeds; NaN if it cannot be estimated.
        freedom: Degrees of freedom of `seed_error`; 0 if it cannot be estimated.
        test_error: Its standard error because all seeds share one test set.
        exact: True for numbers without noise, such as numbers of training steps. Of all others
            equal differences in a few seeds do not mean that there is no noise.
    """

    mean: float
    seed_error: float
    freedom: float
    test_error: float = 0.0
    exact: bool = False

    @property
    def error(self) -> float:
        """The standard error."""
        return math.hypot(self.seed_error, self.test_error)

    @property
    def known(self) -> bool:
        """True if the difference can be tested."""
        has_error = math.isfinite(self.error) and (self.error > 0 or self.exact)
        return self.freedom > 0 and math.isfinite(self.mean) and has_error

    def p_above(self, threshold: float = 0.0) -> float:
        """Return the one-sided p-value against "the true difference is at most `threshold`"."""
        if not self.known:
            return 1.0
        if self.error == 0:
            return 0.0 if self.mean > threshold else 1.0
        return self._tail(self.mean - threshold)

    def p_below(self, threshold: float = 0.0) -> float:
        """Return the one-sided p-value against "the true difference is at least `threshold`"."""
        return replace(self, mean=-self.mean).p_above(-threshold)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the confidence interval of the true difference; NaN if it is unknown."""
        if not self._has_tails:
            return math.nan, math.nan
        half = self._quantile(0.5 - level / 2)
        return self.mean - half, self.mean + half

    def detectable(self, alpha: float) -> float:
        """Return the smallest true difference that a one-sided test finds in 80 % of studies."""
        if not self._has_tails:
            return math.nan
        return self._quantile(alpha) + self._quantile(1 - POWER)

    @property
    def _has_tails(self) -> bool:
        """True if quantiles are of use: below one degree of freedom they are beyond all measure."""
        return self.known and self.freedom >= 1

    def _tail(self, distance: float) -> float:
        """Return the probability of an error above a distance."""
        if self.test_error == 0:
            return float(stats.t.sf(distance / self.seed_error, self.freedom))
        if self.seed_error == 0:
            return float(special.ndtr(-distance / self.test_error))
        errors, weights = self._possible_errors
        return float(weights @ special.ndtr(-distance / errors))

    def _quantile(self, tail: float) -> float:
        """Return the distance above which an error is with a probability below one half."""
        if self.error == 0:
            return 0.0
        if self.test_error == 0:
            return float(stats.t.isf(tail, self.freedom)) * self.seed_error
        highest = self.error
        while self._tail(highest) > tail:
            highest *= 2
        return float(optimize.brentq(lambda distance: self._tail(distance) - tail, 0, highest))

    @cached_property
    def _possible_errors(self) -> tuple[np.ndarray, np.ndarray]:
        """Standard errors with what the variance over seeds may truly be, and their weights."""
        of_variance = stats.chi2(self.freedom)
        logarithms = np.linspace(
            math.log(max(of_variance.ppf(1e-13), 1e-300)), math.log(of_variance.isf(1e-13)), GRID
        )
        draws = np.exp(logarithms)
        weights = of_variance.pdf(draws) * draws
        errors = np.hypot(self.seed_error * np.sqrt(self.freedom / draws), self.test_error)
        return errors, weights / weights.sum()


def fit_prior(variances: Sequence[float], freedoms: Sequence[float]) -> Prior:
    """Estimate the distribution of a table's variances by the moments of their logarithms.

    With few variances the estimate is uncertain, and too many degrees of freedom would make tests
    decide too often. So the spread of the variances is taken at its upper 80 % bound, their level
    is at least their mean, and comparisons that share rows count as half as many. Simulated tables
    stay within their level also where methods differ in noise (`tests/study/test_verdicts.py`).

    Args:
        variances: Sample variances of the differences.
        freedoms: Their degrees of freedom, all positive.

    Returns:
        The prior; with fewer than two positive variances one that is worth nothing.
    """
    pairs = [(v, f) for v, f in zip(variances, freedoms, strict=True) if v > 0 and f > 0]
    if len(pairs) < 2:
        return Prior(math.nan, 0.0)
    values = np.array([v for v, _ in pairs])
    half = np.array([f for _, f in pairs]) / 2
    centred = np.log(values) - special.digamma(half) + np.log(half)
    independent = max(1.0, (len(pairs) - 1) / 2)
    bound = float(centred.var(ddof=1)) * independent / float(stats.chi2.ppf(0.2, independent))
    excess = bound - float(special.polygamma(1, half).mean())
    most = float(2 * half.sum())
    if excess <= 0:
        return Prior(max(math.exp(float(centred.mean())), float(values.mean())), most)
    half_prior = _inverse_trigamma(excess)
    shift = float(special.digamma(half_prior)) - math.log(half_prior)
    level = math.exp(float(centred.mean()) + shift)
    return Prior(max(level, float(values.mean())), min(2 * half_prior, most))


def moderated(
    differences: Sequence[float],
    prior: Prior,
    test_variance: float = 0.0,
    fixed_test: bool = False,
    exact: bool = False,
) -> Difference:
    """Return the mean of paired differences with a standard error shrunk towards the prior.

    Args:
        differences: One difference per seed.
        prior: From `fit_prior` over all differences of the table.
        test_variance: Variance of one seed's difference that finite test sets alone bring about.
        fixed_test: True if all seeds share one test set. Its sampling error is then the same in
            every seed and is added; otherwise the spread over seeds contains it, and the noise is
            taken to be at least as large.
        exact: True for numbers without noise.
    """
    values = np.asarray(differences, dtype=np.float64)
    mean = float(values.mean()) if len(values) else math.nan
    own_freedom = len(values) - 1
    own_variance = float(values.var(ddof=1)) if own_freedom > 0 else 0.0
    if own_freedom > 0 and np.ptp(values) <= ROUNDING * np.abs(values).max():
        own_variance = 0.0  # Equal numbers differ by rounding.
    freedom = own_freedom + prior.freedom
    if freedom <= 0 or not math.isfinite(mean):
        return Difference(mean, math.nan, 0.0, exact=exact)
    if prior.freedom > 0:
        variance = (own_freedom * own_variance + prior.freedom * prior.variance) / freedom
    else:
        variance = own_variance
    if fixed_test:
        seed_error = math.sqrt(variance / len(values))
        return Difference(mean, seed_error, freedom, math.sqrt(test_variance), exact)
    seed_error = math.sqrt(max(variance, test_variance) / len(values))
    return Difference(mean, seed_error, freedom, exact=exact)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number by Holm's step-down procedure.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for position, index in enumerate(order):
        corrected = min(1.0, (len(p_values) - position) * p_values[index])
        largest = max(largest, corrected)
        adjusted[index] = largest
    return adjusted


def _inverse_trigamma(value: float) -> float:
    """Solve trigamma(x) = value by Newton's method on 1 / trigamma (Smyth, 2004, appendix)."""
    if value > 1e7:
        return 1 / math.sqrt(value)
    if value < 1e-6:
        return 1 / value
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, x))
        x += step
        if -step / x < 1e-8:
            break
    return x

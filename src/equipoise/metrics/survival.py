"""Metrics of survival analysis: concordance, Brier score, and curves of survival.

A target is the time of the event, or minus the time of censoring; see `task.Task`. Metrics that
weigh by the inverse probability of censoring (IPCW) estimate that probability from the evaluated
patients themselves, as Graf et al. (1999) and Uno et al. (2011) do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from equipoise.metrics.survival_likelihood import survival_loss
from equipoise.metrics.undefined import undefined
from equipoise.validation.arrays import Array, float64, vector

Flags = NDArray[np.bool_]
GRID = 100  # times at which the integrated Brier score is evaluated
FIRST, LAST = 10, 90  # percentiles of the observed times between which it is integrated


@dataclass(frozen=True)
class SurvivalCurves:
    """The estimated probability to survive each of some times, one row per patient.

    Attributes:
        times: The times, rising.
        values: The probabilities (patients, times).
        is_linear: True to interpolate between times, from 1 at time 0; False for a step at each.
    """

    times: Array
    values: Array
    is_linear: bool = False

    def at(self, times: ArrayLike) -> Array:
        """Return the probabilities at other times; after the last time they stay the same."""
        points = vector(times, "times")
        if self.is_linear:
            known = np.append(0.0, self.times)
            rows = [np.interp(points, known, np.append(1.0, row)) for row in self.values]
            return np.array(rows).reshape(len(self.values), len(points))
        start = np.ones((len(self.values), 1))
        steps = np.concatenate([start, self.values], axis=1)
        return np.asarray(steps[:, np.searchsorted(self.times, points, side="right")])


@dataclass(frozen=True)
class Baseline:
    """The baseline of a Cox model: the cumulative hazard of a patient with a reference risk.

    Attributes:
        times: The times of events, rising.
        hazard: The cumulative hazard at these times.
        log_risk: The log risk of the reference patient.
    """

    times: Array
    hazard: Array
    log_risk: float

    def curves(self, outputs: ArrayLike) -> SurvivalCurves:
        """Return the curves of patients by their log risks (patients, 1)."""
        with np.errstate(over="ignore", invalid="ignore"):
            factors = np.exp(vector(outputs, "log risks") - self.log_risk)
            return SurvivalCurves(self.times, np.exp(-np.outer(factors, self.hazard)))


def time_and_event(targets: ArrayLike) -> tuple[Array, Flags]:
    """Return the times, and True where the event was observed.

    >>> time_and_event([3.0, -2.0, -0.0])
    (array([3., 2., 0.]), array([ True, False, False]))
    """
    values = vector(targets, "targets")
    return np.abs(values), ~np.signbit(values)


def signed_times(time: ArrayLike, event: ArrayLike) -> Array:
    """Return targets: the time of the event, or minus the time of censoring.

    >>> signed_times([3, 2, 0], [1, 0, 0]).tolist()
    [3.0, -2.0, -0.0]
    """
    times = float64(time)
    return np.asarray(np.where(np.asarray(event, bool), times, -times))


def breslow_baseline(outputs: ArrayLike, targets: ArrayLike) -> Baseline:
    """Return the baseline of a Cox model by Breslow's estimator.

    Args:
        outputs: The log risks (patients, 1) of the patients that it is estimated from.
        targets: Their times, negative where censored.

    >>> breslow_baseline([[0.0], [0.0]], [1.0, 2.0]).hazard.tolist()
    [0.5, 1.5]
    """
    risks = vector(outputs, "log risks")
    time, event = time_and_event(targets)
    reference = float(risks.max()) if len(risks) else 0.0
    factors = np.exp(risks - reference)
    times = np.unique(time[event])
    steps = [(event & (time == t)).sum() / factors[time >= t].sum() for t in times]
    return Baseline(times, np.cumsum(steps), reference)


def hazard_curves(outputs: ArrayLike, horizon: float) -> SurvivalCurves:
    """Return the curves of a model with logistic hazards in intervals of equal length.

    Within an interval the density is constant, so that a curve is a line.

    Args:
        outputs: Logits of the hazards (patients, intervals).
        horizon: The end of the last interval.
    """
    logits = float64(outputs)
    # log(1 - sigmoid(z)) = -log(1 + e^z)
    values = np.exp(-np.cumsum(np.logaddexp(0.0, logits), axis=1))
    ends = horizon * np.arange(1, logits.shape[1] + 1) / logits.shape[1]
    return SurvivalCurves(ends, values, is_linear=True)


def risk_scores(outputs: ArrayLike) -> Array:
    """Return one number per patient that is larger for an earlier expected event.

    It is the log risk of a Cox model, or minus the mean survival over the intervals.
    """
    values = float64(outputs)
    if values.ndim == 1 or values.shape[1] == 1:
        return vector(values, "log risks")
    return np.asarray(-hazard_curves(values, 1.0).values.mean(axis=1))


def c_index(outputs: ArrayLike, targets: ArrayLike) -> float:
    """Return Harrell's concordance index.

    Of all pairs in which one patient is known to have the event first, it is the share in which
    that patient has the higher risk; equal risks count one half. A patient who is censored at the
    time of another's event counts as surviving it.

    >>> c_index([[3.0], [1.0], [2.0]], [1.0, 2.0, -3.0])
    0.6666666666666666
    """
    time, event = time_and_event(targets)
    return _concordance(risk_scores(outputs), time, event, np.ones(len(time)))


def c_index_error(outputs: ArrayLike, targets: ArrayLike) -> float:
    """Return the standard error of Harrell's concordance index over these patients.

    The infinitesimal jackknife of Therneau and Watson (2015): a patient's influence is the sum of
    its pairs' deviations from the index. The index plus and minus 1.96 errors is an interval at 95
    per cent. Where all pairs are in order the error is 0, and says nothing.

    >>> round(c_index_error([[3.0], [1.0], [2.0]], [1.0, 2.0, -3.0]), 3)
    0.272
    """
    time, event = time_and_event(targets)
    risks = risk_scores(outputs)
    index = c_index(outputs, targets)
    if np.isnan(index):
        return index
    influence = np.zeros(len(time))
    pairs = 0
    for patient in np.flatnonzero(event):
        later = np.flatnonzero((time > time[patient]) | ((time == time[patient]) & ~event))
        scores = (risks[later] < risks[patient]) + 0.5 * (risks[later] == risks[patient])
        influence[later] += scores - index
        influence[patient] += (scores - index).sum()
        pairs += len(later)
    return float(np.sqrt((influence**2).sum()) / pairs)


def c_index_ipcw(outputs: ArrayLike, targets: ArrayLike) -> float:
    """Return the concordance index of Uno et al. (2011), which does not depend on censoring.

    Pairs are weighted by 1 / G(t)^2 at the time t of the first event, with G the probability to be
    uncensored. Events at which G is 0 are left out.
    """
    time, event = time_and_event(targets)
    uncensored = censoring_curve(targets).at(time)[0]
    weights = np.zeros(len(time))
    np.divide(1.0, uncensored**2, out=weights, where=uncensored > 0)
    return _concordance(risk_scores(outputs), time, event, weights)


def _concordance(risks: Array, time: Array, event: Flags, weights: Array) -> float:
    """Return the weighted share of pairs with the higher risk at the earlier event."""
    if not np.isfinite(risks).all():
        return undefined("concordance is undefined: some risks are not finite; the model diverged")
    in_order = pairs = 0.0
    for patient in np.flatnonzero(event):
        is_later = (time > time[patient]) | ((time == time[patient]) & ~event)
        others = risks[is_later]
        lower = (others < risks[patient]).sum() + 0.5 * (others == risks[patient]).sum()
        in_order += weights[patient] * float(lower)
        pairs += weights[patient] * len(others)
    if not pairs:
        return undefined("concordance is undefined: no patient is known to have an event first")
    return float(in_order / pairs)


def kaplan_meier(targets: ArrayLike) -> SurvivalCurves:
    """Return the Kaplan-Meier curve of some patients, one row.

    >>> kaplan_meier([1.0, -1.0, 2.0]).values.round(3).tolist()
    [[0.667, 0.0]]
    """
    time, event = time_and_event(targets)
    times = np.unique(time)
    factors = [1 - (event & (time == t)).sum() / (time >= t).sum() for t in times]
    return SurvivalCurves(times, float64(np.cumprod(factors))[None, :])


def censoring_curve(targets: ArrayLike) -> SurvivalCurves:
    """Return the Kaplan-Meier curve of being uncensored; at equal times events come first."""
    time, event = time_and_event(targets)
    times = np.unique(time)
    factors = []
    for t in times:
        at_risk = int((time > t).sum() + ((time == t) & ~event).sum())
        censored = int(((time == t) & ~event).sum())
        factors.append(1 - censored / at_risk if at_risk else 1.0)
    return SurvivalCurves(times, float64(np.cumprod(factors))[None, :])


def brier_scores(curves: SurvivalCurves, targets: ArrayLike, times: ArrayLike) -> Array:
    """Return the Brier score at some times, weighted for censoring (Graf et al., 1999).

    Args:
        curves: The estimated survival of the patients.
        targets: Their times, negative where censored.
        times: The times at which survival is judged.
    """
    time, event = time_and_event(targets)
    points = vector(times, "times")
    estimated = curves.at(points)
    uncensored = censoring_curve(targets)
    at_own_time = uncensored.at(time)[0]
    scores = []
    for number, (point, at_point) in enumerate(zip(points, uncensored.at(points)[0], strict=True)):
        had_event = (time <= point) & event & (at_own_time > 0)
        survives = time > point
        column = estimated[:, number]
        total = (column[had_event] ** 2 / at_own_time[had_event]).sum()
        if at_point > 0:
            total += ((1 - column[survives]) ** 2).sum() / at_point
        scores.append(total / len(time))
    return np.array(scores)


def integrated_brier(curves: SurvivalCurves, targets: ArrayLike) -> float:
    """Return the mean Brier score between the 10th and the 90th percentile of the observed times.

    It is integrated over 100 times by the trapezoidal rule.

    Args:
        curves: The estimated survival of the patients.
        targets: Their times, negative where censored.
    """
    time, event = time_and_event(targets)
    if not event.any():
        return undefined("the Brier score is undefined: no event was observed")
    if not np.isfinite(curves.values).all():
        return undefined("the Brier score is undefined: some survival is not finite")
    start, end = np.percentile(time, [FIRST, LAST])
    if end <= start:
        return undefined("the Brier score is undefined: nearly all patients have the same time")
    points = np.linspace(start, end, GRID)
    scores = brier_scores(curves, targets, points)
    trapezoids = (scores[1:] + scores[:-1]) / 2 * np.diff(points)
    return float(trapezoids.sum() / (end - start))


def negative_log_likelihood(outputs: ArrayLike, targets: ArrayLike) -> float:
    """Return the loss of training per patient; targets are shares of the horizon."""
    values = torch.tensor(float64(outputs))
    if not len(values):
        return undefined("the loss is undefined: there are no patients")
    if not bool(torch.isfinite(values).all()):
        return undefined("the loss is undefined: some outputs are not finite; the model diverged")
    return float(survival_loss(values, torch.tensor(vector(targets, "targets"))))

"""Survival metrics and likelihoods, held to scikit-survival, lifelines and plain definitions.

`survival_reference.json` has the values of both packages; `experiments/survival_reference.py`
writes it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.losses.registry import REGISTRY, default_of
from equipoise.metrics import UndefinedMetric, registry, survival
from equipoise.metrics.survival_likelihood import cox, logistic_hazard
from equipoise.task import Task

REFERENCE = json.loads(Path(__file__).with_name("survival_reference.json").read_text())
CASES = REFERENCE["cases"]


def sample(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(case["risk"])[:, None], survival.signed_times(case["time"], case["event"])


@pytest.mark.parametrize("case", CASES)
def test_concordance_is_that_of_scikit_survival_and_lifelines(case: dict[str, Any]) -> None:
    risk, target = sample(case)
    assert survival.c_index(risk, target) == pytest.approx(case["harrell_sksurv"], abs=1e-12)
    assert survival.c_index(risk, target) == pytest.approx(case["harrell_lifelines"], abs=1e-12)
    assert survival.c_index_ipcw(risk, target) == pytest.approx(case["ipcw"], abs=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_curves_and_brier_scores_are_those_of_scikit_survival(case: dict[str, Any]) -> None:
    risk, target = sample(case)
    curves = survival.breslow_baseline(risk, target).curves(risk)
    assert curves.at(case["points"])[:3].tolist() == [pytest.approx(row) for row in case["breslow"]]
    scores = survival.brier_scores(curves, target, case["points"])
    assert scores.tolist() == pytest.approx(case["brier"], abs=1e-12)
    assert survival.integrated_brier(curves, target) == pytest.approx(
        case["integrated_brier"], abs=1e-7
    )


@pytest.mark.parametrize("case", CASES)
def test_kaplan_meier_is_that_of_lifelines(case: dict[str, Any]) -> None:
    _, target = sample(case)
    values = survival.kaplan_meier(target).at(case["points"])[0]
    assert values.tolist() == pytest.approx(case["kaplan_meier"], abs=1e-12)


def plain_cox(risk: list[float], time: list[float], event: list[int]) -> float:
    """Return Breslow's negative log partial likelihood per patient, by its definition."""
    total = 0.0
    for i in range(len(time)):
        if event[i]:
            risk_set = [math.exp(risk[j]) for j in range(len(time)) if time[j] >= time[i]]
            total += math.log(sum(risk_set)) - risk[i]
    return total / len(time)


@pytest.mark.parametrize("case", CASES)
def test_the_cox_loss_is_breslows_partial_likelihood(case: dict[str, Any]) -> None:
    risk, target = sample(case)
    value = cox(torch.tensor(risk), torch.tensor(target))
    assert float(value) == pytest.approx(plain_cox(case["risk"], case["time"], case["event"]))


def test_the_gradient_of_the_cox_loss_is_that_of_differences() -> None:
    risk, target = (torch.tensor(values) for values in sample(CASES[1]))
    assert torch.autograd.gradcheck(lambda r: cox(r, target), risk.clone().requires_grad_())


def test_a_batch_without_an_event_has_no_cox_loss_and_no_gradient() -> None:
    risk = torch.tensor([[1.0], [50.0]], requires_grad=True)
    value = cox(risk, torch.tensor([-3.0, -0.0]))
    value.backward()
    assert value.item() == 0.0 and risk.grad is not None and not risk.grad.any()


def test_large_log_risks_do_not_overflow() -> None:
    value = cox(torch.tensor([[500.0], [-500.0], [0.0]]), torch.tensor([1.0, 2.0, 3.0]))
    assert float(value) == pytest.approx(500 / 3)


def plain_hazard(logits: list[float], time: float, event: bool) -> float:
    """Return the loss of one patient: survived intervals, and the one with the event."""
    total = 0.0
    for k, logit in enumerate(logits):
        start, end = k / len(logits), (k + 1) / len(logits)
        hazard = 1 / (1 + math.exp(-logit))
        has_event = event and (start < time <= end or (k == 0 and time == 0))
        is_survived = (not event and end <= time) or (event and end < time)
        if has_event:
            total -= math.log(hazard)
        elif is_survived:
            total -= math.log(1 - hazard)
    return total


def test_the_logistic_hazard_is_the_likelihood_of_intervals() -> None:
    rng = np.random.default_rng(0)
    times = [0.0, 0.1, 0.25, 0.3, 0.5, 0.75, 0.99, 1.0]
    for event in (True, False):
        logits = rng.normal(size=(len(times), 4))
        targets = survival.signed_times(times, [event] * len(times))
        expected = [
            plain_hazard(row, t, event) for row, t in zip(logits.tolist(), times, strict=True)
        ]
        value = logistic_hazard(torch.tensor(logits), torch.tensor(targets))
        assert float(value) == pytest.approx(np.mean(expected))


def test_an_event_after_the_horizon_counts_as_survival_of_all_intervals() -> None:
    logits = torch.zeros(1, 4)
    assert float(logistic_hazard(logits, torch.tensor([1.5]))) == pytest.approx(4 * math.log(2))


def test_curves_of_hazards_multiply_survival_and_are_lines_between_intervals() -> None:
    curves = survival.hazard_curves([[0.0, 0.0]], horizon=10.0)
    assert curves.at([0.0, 2.5, 5.0, 7.5, 10.0, 99.0])[0].tolist() == pytest.approx(
        [1.0, 0.75, 0.5, 0.375, 0.25, 0.25]
    )


def test_risks_of_hazards_order_patients_by_survival() -> None:
    early, late = [3.0, -3.0], [-3.0, 3.0]
    assert survival.c_index([early, late], [1.0, 2.0]) == 1.0


@pytest.mark.parametrize(
    ("metric", "targets"),
    [
        (survival.c_index, [-1.0, -2.0]),
        (survival.c_index, [-1.0, 2.0]),
        (survival.c_index_ipcw, [-1.0, -2.0]),
    ],
)
def test_concordance_without_comparable_pairs_is_undefined(
    metric: Any, targets: list[float]
) -> None:
    with pytest.warns(UndefinedMetric):
        assert math.isnan(metric([[0.0], [1.0]], targets))


def test_a_diverged_model_has_no_concordance() -> None:
    with pytest.warns(UndefinedMetric, match="diverged"):
        assert math.isnan(survival.c_index([[math.nan], [1.0]], [1.0, 2.0]))


def test_the_brier_score_without_events_is_undefined() -> None:
    curves = survival.SurvivalCurves(np.array([1.0]), np.ones((3, 1)))
    with pytest.warns(UndefinedMetric):
        assert math.isnan(survival.integrated_brier(curves, [-1.0, -2.0, -3.0]))


def test_censoring_at_time_0_is_kept_apart_from_an_event_at_time_0() -> None:
    time, event = survival.time_and_event(survival.signed_times([0.0, 0.0], [0, 1]))
    assert time.tolist() == [0.0, 0.0] and event.tolist() == [False, True]


def test_metrics_and_losses_of_survival_fit_survival_only() -> None:
    cox_task, hazards = Task("survival", (3,), 1), Task("survival", (3,), 20)
    names = [metric.name for metric in registry.METRICS if metric.fits(cox_task)]
    assert names == ["loss", "c_index", "c_index_ipcw", "c_index_error", "integrated_brier"]
    assert registry.measured(cox_task) == ("c_index", "loss")
    for other in (Task("classification", (3,), 2), Task("regression", (3,), 1)):
        assert not registry.find("c_index").fits(other)
        assert not REGISTRY.find("cox").fits(other)
    assert REGISTRY.find("cox").fits(cox_task) and not REGISTRY.find("cox").fits(hazards)
    assert REGISTRY.find("logistic_hazard").fits(hazards)
    assert not REGISTRY.find("logistic_hazard").fits(cox_task)
    outputs, targets = torch.randn(6, 1), torch.tensor([1.0, -0.5, 0.2, -0.1, 0.9, 0.3])
    assert torch.equal(default_of(cox_task)(outputs, targets), cox(outputs, targets))


def test_accuracy_is_refused_for_survival_with_what_fits() -> None:
    with pytest.raises(
        ValueError, match=r"accuracy needs classes, but the task is survival.*c_index"
    ):
        registry.check(Task("survival", (3,), 1), ["accuracy"])


def simulated(rng: np.random.Generator, patients: int) -> tuple[np.ndarray, np.ndarray]:
    """Return risks and targets; the risk explains a part of the time, and a third is censored."""
    risk = rng.normal(size=patients)
    time = rng.exponential(np.exp(-0.8 * risk))
    censored = rng.exponential(2.0, size=patients)
    return risk[:, None], np.where(time <= censored, time, -censored)


@pytest.mark.parametrize("patients", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_intervals_of_the_concordance_cover_the_true_one(patients: int) -> None:
    rng = np.random.default_rng(patients)
    true = survival.c_index(*simulated(rng, 3_000))
    covered = 0
    for _ in range(400):
        risk, target = simulated(rng, patients)
        error = survival.c_index_error(risk, target)
        covered += abs(survival.c_index(risk, target) - true) <= 1.96 * error
    assert 0.92 <= covered / 400 <= 0.98


def test_the_error_of_the_concordance_is_that_of_an_exact_jackknife() -> None:
    risk, target = simulated(np.random.default_rng(1), 300)
    left_out = [survival.c_index(np.delete(risk, i, 0), np.delete(target, i)) for i in range(300)]
    exact = np.sqrt(299 / 300 * ((left_out - np.mean(left_out)) ** 2).sum())
    assert survival.c_index_error(risk, target) == pytest.approx(exact, rel=0.03)

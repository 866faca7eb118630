"""Poise on survival: likelihoods of patients, offsets of hazards, mixed probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.losses import hazard_offsets
from equipoise.methods.poise import Poise
from equipoise.runs import Run
from equipoise.weighting import mixture_weights
from equipoise.weighting.mixtures import survival_chances
from tests.helpers.problems import client_states, server_state

INTERVALS = 4
END = 3


def hospital(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return patients whose hazard rises with the first input; about half are censored."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(100, 3)).astype(np.float32)
    death = draw.exponential(np.exp(-x[:, 0]))
    censoring = draw.exponential(1.0, 100)
    return x, np.stack([np.minimum(death, censoring), death <= censoring], axis=1)


def experiment(intervals: int = 0, **changes: Any) -> eq.Experiment:
    data: dict[str, Any] = {"split": (0.6, 0.2, 0.2), "partition": "natural"}
    if intervals:
        data["intervals"] = intervals
    config: dict[str, Any] = {
        "data": data,
        "model": {"name": "mlp", "hidden": [4]},
        "method": Poise(**changes),
        "training": {"lr": 0.05, "batch": 32},
        "rounds": 2,
        "keep": 100,
        "seed": 3,
        "workers": 0,
    }
    sites = {f"site{k}": hospital(k) for k in range(3)}
    return eq.Experiment(**config, dataset=eq.from_sites(sites, kind="survival"))


def survival(hazard_logits: np.ndarray) -> np.ndarray:
    """Return the probability to survive each interval, in a loop."""
    rows = []
    for row in hazard_logits:
        alive, columns = 1.0, []
        for logit in row:
            alive *= 1 - 1 / (1 + np.exp(-logit))
            columns.append(alive)
        rows.append(columns)
    return np.array(rows)


def test_the_likelihood_of_a_patient_is_the_product_over_intervals() -> None:
    logits = np.random.default_rng(0).normal(size=(5, INTERVALS))
    targets = np.array([0.1, 0.6, -0.6, -0.1, -1.0])  # negative: censored
    alive = survival(logits)
    hazards = 1 / (1 + np.exp(-logits))
    expected = [hazards[0, 0], alive[1, 1] * hazards[1, 2], alive[2, 1], 1.0, alive[4, 3]]
    np.testing.assert_allclose(survival_chances(logits, targets), expected)


def test_the_likelihood_of_a_cox_model_is_the_chance_to_be_the_next_in_the_risk_set() -> None:
    risks = np.log([[3.0], [2.0], [1.0], [4.0]])
    times = np.array([0.2, 0.5, -0.9, 0.5])
    expected = [3 / 10, 2 / 7, 1.0, 4 / 7]
    np.testing.assert_allclose(survival_chances(risks, times), expected)


def test_offsets_of_hazards_balance_the_events_of_patients_at_risk() -> None:
    draw = np.random.default_rng(1)
    logits = draw.normal(size=(60, INTERVALS))
    times = draw.uniform(0.01, 1, 60) * np.where(draw.random(60) < 0.5, 1, -1)
    b = hazard_offsets(logits, times, rho=0.5)
    hazards = 1 / (1 + np.exp(-(logits + b)))
    for k in range(INTERVALS):
        begin, end = k / INTERVALS, (k + 1) / INTERVALS
        died = (times > begin) & (times <= end)
        survived = (times > end) | (-times >= end)
        assert hazards[died | survived, k].sum() + 0.5 * b[k] == pytest.approx(died.sum(), abs=1e-6)
    assert np.abs(hazard_offsets(logits, times, rho=1e9)).max() < 1e-6
    assert not hazard_offsets(np.zeros((0, INTERVALS)), np.zeros(0)).any()


@pytest.mark.parametrize("intervals", [0, INTERVALS])
def test_weights_follow_from_the_experts_and_the_mixture_is_theirs(
    intervals: int, tmp_path: Path
) -> None:
    config = experiment(intervals, fold=False)
    run: Run = eq.run(config, tmp_path / "run")
    federation = eq.data.federate(config.data, config.seed, config.dataset)
    prior = server_state(run, END).prior.numpy()
    for place, client in enumerate(run.clients):
        net = run.model("personal", client, experiment=config)
        # A constant that is added to all log risks changes nothing, so a Cox model has no offsets.
        expected = ["alone", "global", "offsets", "tuned"] if intervals else [
            "alone", "global", "tuned",
        ]  # fmt: skip
        assert net.head.names == expected
        positions = np.array(federation.validation[place])
        x, y = federation.x[positions], federation.y[positions].numpy()
        with torch.no_grad():
            experts = net.head.experts(net.features(x)).double().numpy()
            served = net(x).double().numpy()
        q = np.stack([survival_chances(experts[:, j], y) for j in range(len(expected))], 1) + 1e-12
        w = client_states(run, END)[client]["weights"].numpy()
        np.testing.assert_allclose(w, mixture_weights(q, prior, 10.0), atol=1e-5)
        each = [experts[:, j] for j in range(len(expected))]
        if intervals:
            mixed = sum(share * survival(one) for share, one in zip(w, each, strict=True))
            np.testing.assert_allclose(survival(served), mixed, atol=1e-5)
        else:
            mixed = sum(share * one for share, one in zip(w, each, strict=True))
            np.testing.assert_allclose(served, mixed, atol=1e-5)


@pytest.mark.parametrize("intervals", [0, INTERVALS])
def test_with_validation_data_trained_on_every_client_has_a_finite_model(
    intervals: int, tmp_path: Path
) -> None:
    run = eq.run(experiment(intervals), tmp_path / "run")
    assert not run.rejected() and set(run.final("c_index")) == set(run.clients)
    assert all(np.isfinite(value) for value in run.final("loss").values())

"""Poise against its equations written out by hand: rounds, judging, carry, prior, weights and
mixture.
"""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

import equipoise as eq
from equipoise import simulate
from equipoise.methods.poise import Poise
from equipoise.runs import Run
from equipoise.streams import torch_stream
from tests.helpers.images import NETWORKS, SEED, at, bench, net_of
from tests.helpers.plain import assert_near
from tests.helpers.problems import client_states, server_state
from tests.helpers.runs import settings, sites

ROUNDS, HELD_OUT, BATCH, RATE, MOMENTUM = 4, 2, 5, 0.05, 0.5
LEAST_EPOCHS, LEAST_STEPS = 2, 40
MANY = {"ada": 90, "bo": 80, "cy": 100}
SKEW = {"ada": [0], "bo": [0, 1], "cy": [1, 2]}


@dataclass
class Hospital:
    """A client of the reference, with everything that it remembers."""

    name: str
    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    alone: nn.Module
    judged: nn.Module | None = None
    tuned: nn.Module | None = None
    has_trained: bool = False
    saved_epochs: int | None = None  # None: L is still trained
    offsets: np.ndarray = field(default_factory=lambda: np.zeros(3))
    q: np.ndarray = field(default_factory=lambda: np.zeros((0, 4)))

    @property
    def everything(self) -> tuple[Tensor, Tensor]:
        first, second = self.train, self.validation
        return torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]])

    def data(self) -> tuple[Tensor, Tensor]:
        return self.train if self.judged is None else self.everything


def trained(
    start: nn.Module,
    data: tuple[Tensor, Tensor],
    name: str,
    round: int,
    epochs: int = 1,
    purpose: str = "batches",
) -> list[nn.Module]:
    """The model after each epoch of plain gradient descent."""
    net = copy.deepcopy(start)
    order = torch_stream(SEED, "client", round, name, purpose)
    path = []
    for _ in range(epochs):
        for places in torch.randperm(len(data[1]), generator=order).split(BATCH):
            net.zero_grad()
            nn.functional.cross_entropy(net(data[0][places]), data[1][places]).backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= RATE * parameter.grad  # type: ignore[operator]
        path.append(copy.deepcopy(net))
    return path


def mean_of(nets: list[nn.Module], shares: list[float] | None = None) -> nn.Module:
    shares = shares or [1 / len(nets)] * len(nets)
    mean = copy.deepcopy(nets[0])
    states = [net.state_dict() for net in nets]
    mean.load_state_dict(
        {
            key: sum(
                share * state[key].double() for share, state in zip(shares, states, strict=True)
            )
            for key in states[0]
        }
    )
    return mean


def moved(net: nn.Module, towards: nn.Module, origin: nn.Module) -> nn.Module:
    """net + (towards - origin)."""
    return mean_of([net, towards, origin], [1.0, 1.0, -1.0])


def tuned(
    start: nn.Module, data: tuple[Tensor, Tensor], name: str, round: int, saved_epochs: int
) -> nn.Module:
    epochs = max(LEAST_EPOCHS, math.ceil(LEAST_STEPS / math.ceil(len(data[1]) / BATCH)))
    epochs += saved_epochs
    path = trained(start, data, name, round, epochs, "tune")
    return mean_of(path[epochs // 2 :])


def scores(net: nn.Module, x: Tensor) -> np.ndarray:
    with torch.no_grad():
        values: np.ndarray = net(x).double().numpy()
    return values


def probabilities(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max(1, keepdims=True))
    values: np.ndarray = shares / shares.sum(1, keepdims=True)
    return values


def fitted_offsets(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    def loss(b: np.ndarray) -> float:
        p = probabilities(logits + b)
        return float(-np.log(p[np.arange(len(y)), y]).sum() + b @ b / 2)

    best: np.ndarray = minimize(loss, np.zeros(logits.shape[1]), tol=1e-10).x
    return best


def expert_probabilities(own: Hospital, shared: nn.Module, x: Tensor) -> list[np.ndarray]:
    assert own.tuned is not None
    of_shared = scores(shared, x)
    logits = [scores(own.alone, x), of_shared, of_shared + own.offsets, scores(own.tuned, x)]
    return [probabilities(one) for one in logits]


def make_experts(
    own: Hospital, shared: nn.Module, start: nn.Module, data: tuple[Tensor, Tensor], round: int
) -> None:
    own.offsets = fitted_offsets(scores(shared, data[0]), data[1].numpy())
    own.tuned = tuned(start, data, own.name, round, own.saved_epochs or 0)


def judge(own: Hospital, shared: nn.Module, round: int) -> None:
    own.judged = shared
    make_experts(own, shared, shared, own.train, round)
    x, y = own.validation
    experts = expert_probabilities(own, shared, x)
    own.q = np.stack([p[np.arange(len(y)), y.numpy()] + 1e-12 for p in experts], 1)


def posterior_mean(q: np.ndarray) -> np.ndarray:
    """Over weights in steps of 1/12, pulled inside."""
    grid = [
        0.95 * np.array([a, b, c, 12 - a - b - c]) / 12 + 0.05 / 4
        for a, b, c in itertools.product(range(13), repeat=3)
        if a + b + c <= 12
    ]
    logs = np.array([np.log(q @ w).sum() for w in grid])
    likelihoods = np.exp(logs - logs.max())
    mean: np.ndarray = sum(p * w for p, w in zip(likelihoods, grid, strict=True)) / sum(likelihoods)
    return mean


def weights(q: np.ndarray, prior: np.ndarray, kappa: float = 10.0) -> np.ndarray:
    w = prior
    for _ in range(200):
        shares = w * q / (w * q).sum(1, keepdims=True)
        w = (shares.sum(0) + kappa * prior) / (len(q) + kappa)
    return w


def training_loss(net: nn.Module, own: Hospital) -> float:
    x, y = own.train
    with torch.no_grad():
        return float(nn.functional.cross_entropy(net(x), y))


def train_round(own: Hospital, shared: nn.Module, round: int) -> nn.Module:
    """Judge if it is time, train L unless it was given up, and return the upload."""
    if round > HELD_OUT and own.judged is None and own.has_trained:
        judge(own, shared, round)
        if posterior_mean(own.q)[0] < 1 / 4:
            own.saved_epochs = 0
    if own.saved_epochs is None:
        own.alone = trained(own.alone, own.data(), own.name, round)[-1]
        own.has_trained = True
    else:
        own.saved_epochs += 1
    return trained(shared, own.data(), own.name, round)[-1]


def follow(run: Run, hospitals: dict[str, Hospital], shared: nn.Module) -> nn.Module:
    """Repeat all rounds, and return the global model."""
    velocity = copy.deepcopy(shared)
    for parameter in velocity.parameters():
        parameter.data.zero_()
    for round, record in enumerate(run.rounds(), 1):
        joined = [hospitals[name] for name in record["joined"]]
        sizes = [len(own.train[1]) for own in joined]
        uploads = [train_round(own, shared, round) for own in joined]
        mean = mean_of(uploads, [size / sum(sizes) for size in sizes])
        velocity = mean_of([velocity, shared, mean], [MOMENTUM, 1.0, -1.0])
        shared = mean_of([shared, velocity], [1.0, -1.0])
    return shared


@pytest.mark.parametrize("cohort", [3, 2])
def test_a_run_follows_the_equations(cohort: int, tmp_path: Path) -> None:
    method = Poise(
        hold=HELD_OUT / ROUNDS,
        momentum=MOMENTUM,
        tune_epochs=LEAST_EPOCHS,
        tune_steps=LEAST_STEPS,
    )
    changes: dict[str, Any] = {"participation": {"number": cohort}, "rounds": ROUNDS, "keep": 100}
    data = dict(sites(MANY, SKEW))
    config = settings(method, models={"model": NETWORKS["mlp"]}, **changes)
    config["training"] = {"lr": RATE, "batch": BATCH, "epochs": 1}
    experiment = eq.Experiment(**config, dataset=eq.from_sites(data))
    run = simulate.run(experiment, tmp_path / "run")

    workbench, _ = bench(method, on=data, **changes)
    hospitals = {}
    for name in MANY:
        client = at(workbench, name)
        train = client.train.x, client.train.y
        validation = client.validation.x, client.validation.y
        hospitals[name] = Hospital(name, train, validation, net_of(workbench))
    shared = net_of(workbench)
    shared = follow(run, hospitals, shared)
    assert_near(server_state(run, ROUNDS).model, shared.state_dict(), 1e-5)

    judged_early = {name for name, own in hospitals.items() if own.judged is not None}
    joined = [set(row["joined"]) for row in run.rounds()]
    new = joined[HELD_OUT] - joined[0] - joined[1]
    assert judged_early == joined[HELD_OUT] - new | joined[HELD_OUT + 1]
    assert any(own.saved_epochs for own in hospitals.values())
    kept = {}
    for name, own in hospitals.items():
        if own.judged is None:
            judge(own, shared, ROUNDS + 1)
        assert own.judged is not None and own.tuned is not None
        is_worse = training_loss(shared, own) > training_loss(own.judged, own)
        kept[name] = own.judged if is_worse else shared
        start = moved(kept[name], own.tuned, own.judged)
        make_experts(own, kept[name], start, own.everything, ROUNDS + 1)
    prior = np.mean([posterior_mean(own.q) for own in hospitals.values()], axis=0)
    np.testing.assert_allclose(server_state(run, ROUNDS + 1).prior, prior, atol=1e-4)

    for name, own in hospitals.items():
        state = client_states(run, ROUNDS + 1)[name]
        assert_near(state["local"], own.alone.state_dict(), 1e-5)
        assert own.tuned is not None
        assert_near(state["tuned"], own.tuned.state_dict(), 1e-4)
        w = weights(own.q, prior)
        if own.saved_epochs is not None:
            w = np.array([0.0, *w[1:]]) / sum(w[1:])
        np.testing.assert_allclose(state["weights"], w, atol=1e-3)
        x = torch.cat([own.everything[0], torch.randn(20, *own.train[0].shape[1:])])
        experts = expert_probabilities(own, kept[name], x)
        mixture = sum(share * p for share, p in zip(w, experts, strict=True))
        served = run.model("personal", name, experiment=experiment)
        np.testing.assert_allclose(np.exp(scores(served, x)), mixture, atol=2e-3)

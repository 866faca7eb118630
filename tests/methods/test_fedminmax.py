"""FedMinMax: Algorithm 1 as a plain loop of full gradient steps, the projection, and what it
reduces to.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import equipoise as eq
from equipoise.data import federate
from equipoise.runs import read_result
from equipoise.storage.checkpoint import load_server
from equipoise.weighting.simplex import projected
from tests.helpers.group_sites import columns, experiment, finished, write_sites

WHOLE = {"lr": 0.3, "batch": 1000, "epochs": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sites = {"east": columns("east", 120, 0.2), "north": columns("north", 90, 0.4)}
    return write_sites(tmp_path_factory.mktemp("hospitals"), sites)


def test_whole_rounds_are_those_of_a_plain_loop(tmp_path: Path, folder: Path) -> None:
    rounds, eta = 3, 0.7
    method = {"name": "fedminmax", "eta_mu": eta}
    run = finished(tmp_path / "run", folder, method=method, rounds=rounds, training=WHOLE)
    start = finished(tmp_path / "start", folder, rounds=1, training={"lr": 1e-30})
    net = start.model("global").double()
    federation = federate(eq.DataConfig(**experiment(folder)["data"]), run.config["seed"])
    assert federation.groups is not None
    x, y = federation.x.double(), federation.y
    sex = np.array(federation.groups.names_of("sex"))
    clients = [np.array(rows) for rows in federation.train]
    every = np.concatenate(clients)
    names = ["f", "m"]
    rho = np.array([(sex[every] == name).mean() for name in names])
    mu = rho.copy()
    for _ in range(rounds):
        weight = mu / rho
        risks = np.zeros(2)
        for index, name in enumerate(names):
            rows = every[sex[every] == name]
            with torch.no_grad():
                risks[index] = float(torch.nn.functional.cross_entropy(net(x[rows]), y[rows]))
        total = {key: torch.zeros_like(value) for key, value in net.state_dict().items()}
        for rows in clients:
            net.zero_grad()
            losses = torch.nn.functional.cross_entropy(net(x[rows]), y[rows], reduction="none")
            own = torch.tensor([weight[names.index(name)] for name in sex[rows]])
            (own * losses).mean().backward()
            for key, parameter in net.named_parameters():
                stepped = parameter.data - WHOLE["lr"] * parameter.grad
                total[key] += stepped * (len(rows) / len(every))
        net.load_state_dict(total)
        mu = projected(mu + eta * risks)
    state = load_server(run.store)
    assert state.groups == names and state.rho.tolist() == pytest.approx(rho.tolist())
    assert state.mu.tolist() == pytest.approx(mu.tolist(), abs=1e-5)
    for key, value in run.model("global").state_dict().items():
        assert torch.allclose(value.double(), net.state_dict()[key], atol=2e-5)
    assert not np.allclose(mu, rho, atol=1e-3)


@pytest.mark.parametrize("values", [[0.2, 0.3, 0.9], [5.0, -1.0], [-3.0, -3.1, -9.0], [0.4]])
def test_the_projection_is_the_nearest_point(values: list[float]) -> None:
    point = projected(values)
    assert point.min() >= 0 and point.sum() == pytest.approx(1)
    best = minimize(
        lambda w: ((w - np.array(values)) ** 2).sum(),
        np.full(len(values), 1 / len(values)),
        bounds=[(0, 1)] * len(values),
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        method="SLSQP",
    )
    assert point == pytest.approx(best.x, abs=1e-4)


@pytest.mark.parametrize("reason", ["no step", "no groups"])
def test_without_a_step_or_groups_it_is_fedavg(tmp_path: Path, folder: Path, reason: str) -> None:
    groups = ["sex"] if reason == "no step" else []
    method = {"name": "fedminmax", "eta_mu": 0.0 if reason == "no step" else 0.5}
    plain = finished(tmp_path / "plain", folder, data={"groups": groups})
    own = finished(tmp_path / "own", folder, data={"groups": groups}, method=method)
    for key, value in plain.model("global").state_dict().items():
        assert torch.equal(value, own.model("global").state_dict()[key])


def test_the_worst_group_gains_weight_and_poise_finishes_it(tmp_path: Path, folder: Path) -> None:
    method = {"name": "fedminmax", "eta_mu": 0.5, "finish": "poise"}
    run = finished(tmp_path / "run", folder, method=method, rounds=8)
    state = load_server(run.store)
    assert state.mu.sum() == pytest.approx(1) and read_result(run).main_model == "personal"
    women = state.groups.index("f")
    assert state.mu[women] > state.rho[women], "women are few, and their disease is another one"


def test_a_group_without_samples_in_a_round_keeps_its_weight() -> None:
    from equipoise.methods.fedminmax import FedMinMax
    from equipoise.records import State
    from tests.helpers.digits import replies

    state = State(groups=["f", "m", "x"], mu=torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64))
    ups = replies(
        [[0.0]] * 2, groups=[["f", "m"], ["m"]], risks=[[1.0, 2.0], [4.0]], sizes=[[10, 10], [20]]
    )
    risks = FedMinMax()._global_risks(state, ups)
    assert risks.tolist() == pytest.approx([1.0, 100 / 30, 110 / 40])

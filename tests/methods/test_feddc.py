"""FedDC: its rounds against torch.optim, its reductions to FedAvg and FedProx, drifts, controls and
refusals.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.composition import IncompatibleComposition, compose
from equipoise.method import Ups
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.feddc import FedDC
from equipoise.methods.fedprox import FedProx
from equipoise.records import Down
from tests.helpers.images import (
    NETWORKS,
    at,
    bench,
    net_of,
    own,
    passes_of,
    plain_fit,
    play,
    shared,
)
from tests.helpers.plain import assert_equal, assert_near
from tests.helpers.problems import scalar, server_of, server_state, weight
from tests.helpers.runs import sites

H, A = (1.0, 3.0), (-2.0, 2.0)


@pytest.mark.parametrize(
    ("network", "grad_correction"),
    [("mlp", True), ("cnn", True), ("dropout", True), ("mlp", False)],
)
def test_rounds_match_a_plain_loop_with_torch_optim(
    tmp_path: Path, network: str, grad_correction: bool
) -> None:
    """The three terms written out for autograd; some clients absent, a decaying rate; the server in
    float64.
    """
    alpha, training = 0.4, {"lr": 0.05, "batch": 5, "epochs": 1, "lr_decay": 0.8}
    method = FedDC(alpha=alpha, grad_correction=grad_correction)
    run = play(method, tmp_path / "run", network, participation={"number": 3}, training=training)
    workbench, _ = bench("feddc", network)
    sizes = server_of(workbench).sizes
    names = [name for name, _ in net_of(workbench).named_parameters()]
    w = {name: value.double() for name, value in workbench.initial("model").items()}
    zero = {name: torch.zeros_like(w[name]) for name in names}
    drifts, controls, control = (
        {client: dict(zero) for client in sizes},
        {client: dict(zero) for client in sizes},
        dict(zero),
    )
    for row in run.rounds():
        models, changes, lr = [], [], 0.05 * 0.8 ** (row["round"] - 1)
        for client in row["joined"]:
            omega = len(sizes) * sizes[client] / sum(sizes.values())
            net = net_of(
                workbench,
                {
                    name: value.to(workbench.initial("model")[name].dtype)
                    for name, value in w.items()
                },
            )  # type: ignore[arg-type]
            received = {
                name: parameter.detach().clone() for name, parameter in net.named_parameters()
            }

            def objective(
                z: Any,
                y: Any,
                net: Any = net,
                client: str = client,
                omega: float = omega,
                received: Any = received,
            ) -> torch.Tensor:
                loss = torch.nn.functional.cross_entropy(z, y)
                for name, parameter in net.named_parameters():
                    loss = (
                        loss
                        + alpha
                        / omega
                        / 2
                        * (parameter - (received[name] - drifts[client][name])).square().sum()
                    )
                    if grad_correction:
                        correction = control[name] / omega - controls[client][name]  # noqa: B023
                        loss = loss + (parameter * correction).sum()
                return loss

            steps = plain_fit(
                net,
                at(workbench, client).train,
                torch.optim.SGD(net.parameters(), lr=lr),
                client,
                row["round"],
                objective,
            )
            change = {}
            for name, parameter in net.named_parameters():
                moved = (parameter.detach() - received[name]).double()
                drifts[client][name] = drifts[client][name] + moved
                new = controls[client][name] - control[name] / omega - moved / (steps * lr)
                change[name] = omega * (new - controls[client][name])
                controls[client][name] = new
            changes.append(change)
            models.append(
                {name: value.detach().clone().double() for name, value in net.state_dict().items()}
            )
        control = {
            name: control[name] + sum(change[name] for change in changes) / len(sizes)
            for name in names
        }
        mean = {name: torch.stack([model[name] for model in models]).mean(0) for name in w}
        everyone = {
            name: sum(drift[name] for drift in drifts.values()) / len(sizes) for name in names
        }
        w = {name: mean[name] + everyone[name] if name in names else mean[name] for name in w}
        found = {
            name: value
            for name, value in shared(run, row["round"]).items()
            if value.is_floating_point()
        }
        assert_near(found, {name: w[name] for name in found}, 2e-4)
        if grad_correction:
            assert_near(server_state(run, row["round"]).control, control, 5e-4)
    for client, drift in own(run, "drift").items():
        assert_near(drift, drifts[client], 2e-4)


def first_replies(method: Any, network: str, **changes: Any) -> dict[str, Any]:
    workbench, _ = bench("fedavg", network, **changes)
    server = server_of(workbench)
    state = method.start(server)
    return {
        client: method.client(at(workbench, client), method.deliver(server, state, client))
        for client in server.ids
    }


@pytest.mark.parametrize("network", NETWORKS)
def test_without_pull_and_correction_clients_train_as_in_fedavg(network: str) -> None:
    plain, same = (
        first_replies(FedAvg(), network),
        first_replies(FedDC(alpha=0, grad_correction=False), network),
    )
    assert set(plain) == set(same) and len(plain) == 4
    for client, up in plain.items():
        assert_equal(up.model, same[client].model)


def test_without_pull_and_correction_they_do_so_in_every_round(tmp_path: Path) -> None:
    run = play(FedDC(alpha=0, grad_correction=False), tmp_path / "run", "cnn")
    workbench, _ = bench("fedavg", "cnn")
    for round in (1, 2, 3):
        received = shared(run, round - 1)
        ends = {
            client: FedAvg().client(at(workbench, client, round), Down(model=received)).model  # type: ignore[union-attr]
            for client in run.clients
        }
        before = own(run, "drift", round - 1) if round > 1 else {}
        assert set(own(run, "drift", round)) == set(run.clients)
        for client, drift in own(run, "drift", round).items():
            step = ends[client] - received  # type: ignore[operator]
            assert_equal(drift, before[client] + step if before else step)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_first_round_is_fedprox_at_every_client(network: str) -> None:
    replies = first_replies(FedDC(alpha=0.5), network)
    workbench, _ = bench("fedavg", network)
    sizes = server_of(workbench).sizes
    for client, up in replies.items():
        mu = 0.5 / (sizes[client] / (sum(sizes.values()) / len(sizes)))
        assert_equal(
            up.model,
            FedProx(mu=mu)
            .client(at(workbench, client), Down(model=workbench.initial("model")))
            .model,
        )


def test_drifts_add_up_and_the_server_adds_their_mean(tmp_path: Path) -> None:
    """Full participation: h_i = sum of all moves, and the new model is the mean of models and
    drifts together.
    """
    run = play("feddc", tmp_path / "run", "cnn")
    workbench, method = bench("feddc", "cnn")
    drifts: dict[str, Any] = {}
    controls: dict[str, Any] = {}
    for round in (1, 2, 3):
        server, before = server_of(workbench), server_state(run, round - 1)
        ends = {}
        for client in run.clients:
            state = (
                {}
                if round == 1
                else {
                    "drift": own(run, "drift", round - 1)[client],
                    "control": own(run, "control", round - 1)[client],
                }
            )
            worker = at(workbench, client, round, state)
            ends[client] = method.client(worker, method.deliver(server, before, client)).model
            step = ends[client] - before.model
            drifts[client] = drifts[client] + step if client in drifts else step
            controls[client] = worker.state["control"]
        for client, drift in own(run, "drift", round).items():
            assert_near(drift, drifts[client])
        new = shared(run, round)
        mean = {
            n: sum(ends[c][n].double() + drifts[c][n].double() for c in ends) / len(ends)
            for n in drifts["ada"]
        }
        assert_near({name: new[name] for name in mean}, mean, 1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"participation": {"number": 2}},
        {"faults": {"script": [{"round": 2, "client": "ada", "kind": "nan"}]}},
    ],
)
def test_the_servers_control_and_drift_are_means_over_all_clients(
    tmp_path: Path, changes: dict
) -> None:
    run = play("feddc", tmp_path / "run", "cnn", rounds=4, **changes)
    sizes = dict(zip(run.clients, run.store.meta("sizes")["train"], strict=True))
    mean_size = sum(sizes.values()) / len(sizes)
    for round in range(1, 5):
        state, drifts, controls = (
            server_state(run, round),
            own(run, "drift", round),
            own(run, "control", round),
        )
        assert state.drift.norm() > 0 and state.control.norm() > 0
        assert_near(
            state.drift,
            {n: sum(d[n].double() for d in drifts.values()) / len(sizes) for n in state.drift},
            1e-6,
        )
        weighed = {
            n: sum(sizes[k] / mean_size * c[n].double() for k, c in controls.items()) / len(sizes)
            for n in state.control
        }
        assert_near(state.control, weighed, 1e-5)


def test_identical_clients_have_the_servers_control_and_nothing_to_correct(tmp_path: Path) -> None:
    same = {"h": (3.0, 3.0, 3.0), "a": (2.0, 2.0, 2.0), "rounds": 4}
    run, free = (
        scalar("feddc", tmp_path / "a", **same),
        scalar(FedDC(grad_correction=False), tmp_path / "b", **same),
    )
    for round in range(1, 5):
        for control in own(run, "control", round).values():
            assert_near(control, dict(server_state(run, round).control), 1e-5)
        assert weight(run, round) == pytest.approx(weight(free, round), abs=1e-5)
    assert "control" not in server_state(free)


def test_two_quadratics_meet_at_the_true_optimum_where_fedavg_does_not(tmp_path: Path) -> None:
    optimum = np.dot(H, A) / np.sum(H)
    assert weight(scalar(FedDC(), tmp_path / "dc", H, A, rounds=40)) == pytest.approx(
        optimum, abs=1e-3
    )
    assert abs(weight(scalar("fedavg", tmp_path / "avg", H, A, rounds=10)) - optimum) > 0.3


def test_a_client_that_took_no_step_moves_no_control() -> None:
    """A single sample and a batch norm that cannot take it: dividing by no steps would poison the
    server.
    """
    normed = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    workbench, method = bench("feddc", models={"model": normed}, on=sites({"ada": 24, "bo": 1}))
    server = server_of(workbench)
    state = method.start(server)
    up = method.client(at(workbench, "bo"), method.deliver(server, state, "bo"))
    assert up.control.norm() == 0
    assert_equal(up.model, workbench.initial("model"))
    assert (
        method.client(at(workbench, "ada"), method.deliver(server, state, "ada")).control.norm() > 0
    )


def test_drift_and_control_never_touch_buffers() -> None:
    replies = first_replies(FedDC(), "cnn")
    workbench, method = bench("feddc", "cnn")
    server = server_of(workbench)
    state, ups = method.start(server), Ups(list(replies.items()))
    new = method.update(server, state, ups, method.weights(server, state, ups))
    assert not (set(new.drift) | set(new.control)) & new.model.untrained
    for name in new.model.untrained:
        values = torch.stack([up.model[name].double() for up in replies.values()])
        expected = values.mean(0) if state.model[name].is_floating_point() else values.amax(0)
        torch.testing.assert_close(new.model[name].double(), expected, rtol=1e-6, atol=1e-7)


def test_it_costs_one_training_and_carries_two_trees(tmp_path: Path) -> None:
    assert passes_of("feddc", tmp_path / "run", epochs=2) == {"client gradient": 2}
    assert set(first_replies(FedDC(), "mlp")["ada"]) == {"model", "control"}
    assert set(first_replies(FedDC(grad_correction=False), "mlp")["ada"]) == {"model"}


@pytest.mark.parametrize(
    "training", [{"momentum": 0.9}, {"weight_decay": 1e-4}, {"optimiser": "adam"}, {"clip": 1.0}]
)
def test_anything_but_plain_sgd_is_refused(training: dict) -> None:
    with pytest.raises(
        ValueError, match=r"FedDC needs plain sgd.*update divided by the learning rate"
    ):
        eq.Experiment(method="feddc", training=training)


def test_without_gradient_correction_any_optimiser_is_accepted() -> None:
    method = {"name": "feddc", "grad_correction": False}
    experiment = eq.Experiment(method=method, training={"optimiser": "adam"})
    assert experiment.build_method().needs == ()


def test_other_weights_and_a_negative_alpha_are_refused() -> None:
    with pytest.raises(IncompatibleComposition, match="derived for its own weights"):
        compose(FedDC(), weights=FedAvg())
    with pytest.raises(ValueError, match=r"alpha.*greater than or equal to 0.*got -1"):
        eq.Experiment(method={"name": "feddc", "alpha": -1})


def test_a_pull_too_strong_for_the_learning_rate_is_told_before_round_1(
    caplog: pytest.LogCaptureFixture,
) -> None:
    workbench, _ = bench("feddc", training={"lr": 0.5, "batch": 5})
    sizes = server_of(workbench).sizes
    limit = min(sizes.values()) / (sum(sizes.values()) / len(sizes)) / 0.5
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        FedDC(alpha=0.99 * limit).start(server_of(workbench))
        assert not caplog.messages
        FedDC(alpha=1.01 * limit).start(server_of(workbench))
    assert "expected below 1; lower method.alpha" in caplog.messages[0]

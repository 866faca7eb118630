"""FedDyn: its rounds against torch.optim, the mean of all duals, the true optimum of quadratics,
and the warning under Adam.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.composition import IncompatibleComposition, compose
from equipoise.method import Ups
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.feddyn import FedDyn
from equipoise.records import State, Up
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
from tests.helpers.problems import scalar, server_of, server_state, trained, weight
from tests.helpers.runs import sites

H, A = (1.0, 3.0), (-2.0, 2.0)


@pytest.mark.parametrize(
    ("network", "by_size", "clip"),
    [("mlp", True, 0.3), ("cnn", False, 10.0), ("dropout", False, 0.0)],
)
def test_rounds_match_a_plain_loop_with_torch_optim(
    tmp_path: Path, network: str, by_size: bool, clip: float
) -> None:
    """Algorithm 1 with the objective written out for autograd, some clients absent, in float64 at
    the server.
    """
    alpha = 0.3
    run = play(
        FedDyn(alpha=alpha, by_size=by_size, clip=clip),
        tmp_path / "run",
        network,
        participation={"number": 3},
    )
    workbench, _ = bench("feddyn", network)
    sizes = server_of(workbench).sizes
    names = [name for name, _ in net_of(workbench).named_parameters()]
    w = {name: value.double() for name, value in workbench.initial("model").items()}
    duals = {client: {name: torch.zeros_like(w[name]) for name in names} for client in run.clients}
    h = {name: torch.zeros_like(w[name]) for name in names}
    for row in run.rounds():
        models: list[dict[str, torch.Tensor]] = []
        for client in row["joined"]:
            net, dual = (
                net_of(
                    workbench,
                    {
                        name: value.to(workbench.initial("model")[name].dtype)
                        for name, value in w.items()
                    },
                ),
                duals[client],
            )  # type: ignore[arg-type]
            received = {
                name: parameter.detach().clone() for name, parameter in net.named_parameters()
            }
            a = alpha * np.mean(list(sizes.values())) / sizes[client] if by_size else alpha

            def objective(
                z: Any,
                y: Any,
                net: Any = net,
                dual: Any = dual,
                received: Any = received,
                a: float = a,
            ) -> torch.Tensor:
                loss = torch.nn.functional.cross_entropy(z, y)
                for name, parameter in net.named_parameters():
                    loss = (
                        loss
                        - (dual[name] * parameter).sum()
                        + a / 2 * (parameter - received[name]).square().sum()
                    )
                return loss

            def clipped(net: Any = net) -> None:
                if clip:
                    torch.nn.utils.clip_grad_norm_(net.parameters(), clip)

            plain_fit(
                net,
                at(workbench, client).train,
                torch.optim.SGD(net.parameters(), lr=0.05),
                client,
                row["round"],
                objective,
                change=clipped,
            )
            for name, parameter in net.named_parameters():
                dual[name] = dual[name] - a * (parameter.detach() - received[name]).double()
            models.append(
                {name: value.detach().clone() for name, value in net.state_dict().items()}
            )
        mean = {name: torch.stack([model[name].double() for model in models]).mean(0) for name in w}
        for name in names:
            h[name] = h[name] - alpha / 4 * sum(model[name].double() - w[name] for model in models)
        w = {name: mean[name] - h[name] / alpha if name in names else mean[name] for name in w}
        found = {
            name: value
            for name, value in shared(run, row["round"]).items()
            if value.is_floating_point()
        }
        assert_near(found, {name: w[name] for name in found}, 2e-4)
        assert_near(server_state(run, row["round"]).h, h, 2e-5)
    for client, dual in own(run, "dual").items():
        assert_near(dual, duals[client], 2e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"participation": {"number": 2}},
        {"faults": {"script": [{"round": 2, "client": "ada", "kind": "nan"}]}},
    ],
)
def test_h_is_the_mean_of_all_duals_under_any_participation(tmp_path: Path, changes: dict) -> None:
    run = trained(FedDyn(alpha=0.1), tmp_path / "run", rounds=4, **changes)
    for round in range(1, 5):
        h, duals = server_state(run, round).h, own(run, "dual", round)
        assert h.norm() > 0
        assert_near(
            h,
            {
                name: sum(dual[name].double() for dual in duals.values()) / len(run.clients)
                for name in h
            },
            1e-6,
        )


@pytest.mark.parametrize("alpha", [1e-4, 0.01, 5.0])
@pytest.mark.parametrize("network", NETWORKS)
def test_one_client_overshoots_by_its_own_step_for_every_alpha(
    tmp_path: Path, alpha: float, network: str
) -> None:
    """w^1 = w_1 + (w_1 - w^0) of the first round."""
    workbench, method = bench(FedDyn(alpha=alpha), network, sites({"ada": 20}))
    server = server_of(workbench)
    state = method.start(server)
    up = method.client(at(workbench, "ada"), method.deliver(server, state, "ada"))
    ups = Ups([("ada", up)])
    new, w0 = (
        method.update(server, state, ups, method.weights(server, state, ups)).model,
        state.model,
    )
    assert_near(new.params, {name: 2 * up.model[name] - w0[name] for name in new.trained})
    assert_equal(new.rest, up.model.rest)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_first_step_of_the_first_round_is_that_of_fedavg(network: str) -> None:
    workbench, _ = bench("feddyn", network, training={"lr": 0.1, "batch": 100})
    server, methods = server_of(workbench), (FedAvg(), FedDyn(alpha=7.0, clip=0))
    ups = [
        method.client(at(workbench, "ada"), method.deliver(server, method.start(server), "ada"))
        for method in methods
    ]
    assert_equal(ups[0].model, ups[1].model)


def test_clients_that_send_the_model_back_move_it_by_h_alone() -> None:
    workbench, method = bench(FedDyn(alpha=0.5), "cnn")
    server = server_of(workbench)
    state = method.start(server)
    ups = Ups([(client, Up(model=state.model)) for client in server.ids])
    weights = method.weights(server, state, ups)
    assert_equal(method.update(server, state, ups, weights).model, state.model)
    h = 0.01 * state.model
    moved: State = method.update(server, state.with_(h=h), ups, weights)
    assert_equal(moved.h, h)
    assert_near(moved.model.params, {name: state.model[name] - h[name] / 0.5 for name in h})


@pytest.mark.thorough
def test_two_quadratics_meet_at_the_true_optimum_where_fedavg_does_not(tmp_path: Path) -> None:
    optimum = np.dot(H, A) / np.sum(H)
    training = {"steps": 40}
    found = weight(scalar(FedDyn(alpha=1.0), tmp_path / "dyn", H, A, rounds=40, training=training))
    assert found == pytest.approx(optimum, abs=1e-4)
    averaged = weight(scalar("fedavg", tmp_path / "avg", H, A, rounds=10, training=training))
    assert abs(averaged - optimum) > 0.3


def test_the_experiments_own_clip_goes_first() -> None:
    found = []
    for clip, training in ((1e-3, {}), (10.0, {"clip": 1e-3}), (0.0, {"clip": 1e-3}), (0.0, {})):
        workbench, method = bench(FedDyn(clip=clip), training={"lr": 0.1, "batch": 5, **training})
        server = server_of(workbench)
        found.append(
            method.client(
                at(workbench, "ada"), method.deliver(server, method.start(server), "ada")
            ).model
        )
    assert_equal(found[0], found[1])
    assert_equal(found[0], found[2])
    assert not torch.equal(found[0]["head.weight"], found[3]["head.weight"])


def test_adam_runs_with_a_warning_and_sgd_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        assert play("feddyn", tmp_path / "sgd").status == "finished"
        assert not caplog.messages
        assert (
            play("feddyn", tmp_path / "adam", training={"optimiser": "adam", "lr": 1e-3}).status
            == "finished"
        )
    assert len(caplog.messages) == 1
    assert (
        "adam updates hardly shrink" in caplog.messages[0]
        and "training.optimiser=sgd" in caplog.messages[0]
    )


def test_it_costs_one_training_and_sends_one_model(tmp_path: Path) -> None:
    assert passes_of("feddyn", tmp_path / "run", epochs=2) == {"client gradient": 2}
    workbench, method = bench("feddyn")
    server = server_of(workbench)
    assert set(
        method.client(at(workbench, "ada"), method.deliver(server, method.start(server), "ada"))
    ) == {"model"}


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match=r"alpha.*greater than 0.*got 0"):
        eq.Experiment(method={"name": "feddyn", "alpha": 0})
    with pytest.raises(IncompatibleComposition, match="derived for its own weights"):
        compose(FedDyn(), weights=FedAvg())

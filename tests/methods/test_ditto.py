"""Ditto: FedAvg's global model bit for bit, personal models against torch.optim, and the preset
that is not Ditto.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.method import Ups
from equipoise.methods.ditto import Ditto
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.streams import torch_stream
from equipoise.training.workbench import Workbench
from equipoise.tree import Tree
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
from tests.helpers.problems import scalar, weight
from tests.helpers.runs import sites


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("pull", [0.0, 3.0])
def test_the_global_model_is_that_of_uniform_fedavg_for_any_pull(
    tmp_path: Path, network: str, pull: float
) -> None:
    changes = {"participation": {"number": 3}}
    plain = play({"name": "fedavg", "average": "uniform"}, tmp_path / "plain", network, **changes)
    pulled = play(Ditto(pull=pull), tmp_path / "pulled", network, **changes)
    for round in (1, 2, 3):
        assert_equal(shared(plain, round), shared(pulled, round))


def test_by_size_it_is_that_of_fedavg(tmp_path: Path) -> None:
    assert_equal(
        shared(play("fedavg", tmp_path / "a", "cnn")),
        shared(play(Ditto(average="size"), tmp_path / "b", "cnn")),
    )


@pytest.mark.parametrize("network", NETWORKS)
def test_without_a_pull_the_personal_models_are_those_of_standalone(
    tmp_path: Path, network: str
) -> None:
    changes = {"participation": {"number": 3}}
    alone, joint = (
        play("standalone", tmp_path / "a", network, **changes),
        play(Ditto(pull=0), tmp_path / "b", network, **changes),
    )
    trained = own(joint, "personal")
    assert len(trained) >= 3
    for client, tree in trained.items():
        assert_equal(tree, own(alone, "local")[client])


@pytest.mark.parametrize("network", NETWORKS)
def test_personal_models_match_a_plain_loop_with_torch_optim(tmp_path: Path, network: str) -> None:
    """Gradient of the loss plus pull (v - w), written into .grad by hand, with momentum: over all
    rounds and the client's own batches.
    """
    pull, training = 0.8, {"lr": 0.05, "batch": 5, "epochs": 2, "momentum": 0.5, "lr_decay": 0.7}
    run = play(Ditto(pull=pull), tmp_path / "run", network, training=training)
    workbench, _ = bench("ditto", network, training=training)
    for client in run.clients:
        net = net_of(workbench)
        parameters = dict(net.named_parameters())
        for round in (1, 2, 3):
            anchor = shared(run, round - 1)

            def pulled(parameters: Any = parameters, anchor: Any = anchor) -> None:
                for name, parameter in parameters.items():
                    parameter.grad += pull * (parameter.detach() - anchor[name])

            optimiser = torch.optim.SGD(
                net.parameters(), lr=0.05 * 0.7 ** (round - 1), momentum=0.5
            )
            plain_fit(
                net, at(workbench, client).train, optimiser, client, round, epochs=2, change=pulled
            )
        assert_near(own(run, "personal")[client], dict(net.state_dict()), 1e-4)


@pytest.mark.thorough
def test_the_personal_quadratic_settles_between_its_optimum_and_the_global_model(
    tmp_path: Path,
) -> None:
    """h/2 (v - a)^2 + pull/2 (v - w)^2 is least at (h a + pull w) / (h + pull)."""
    h, a, pull = (1.0, 3.0), (-2.0, 2.0), 0.5
    run = scalar(Ditto(pull=pull), tmp_path / "run", h, a, rounds=80)
    w = weight(run)
    for place, tree in enumerate(own(run, "personal").values()):
        assert float(tree["features.weight"]) == pytest.approx(
            (h[place] * a[place] + pull * w) / (h[place] + pull), abs=1e-4
        )


def test_the_first_step_feels_no_pull() -> None:
    workbench, _ = bench("ditto", "cnn", training={"lr": 0.1, "batch": 100})
    found = []
    for pull in (0.0, 1e3):
        client = at(workbench, "ada")
        Ditto(pull=pull).client(client, Down(model=workbench.initial("model")))
        found.append(client.state["personal"])
    assert_equal(*found)


def test_absent_clients_keep_their_personal_models(tmp_path: Path) -> None:
    run = play(
        "ditto",
        tmp_path / "run",
        faults={"script": [{"round": 2, "client": "ada", "kind": "drop"}]},
    )
    before, after = own(run, "personal", 1), own(run, "personal", 2)
    assert_equal(before["ada"], after["ada"])
    assert not torch.equal(before["bo"]["head.weight"], after["bo"]["head.weight"])


def test_only_the_global_copy_is_uploaded_and_the_personal_model_is_the_main_one(
    tmp_path: Path,
) -> None:
    workbench, method = bench("ditto")
    assert set(method.client(at(workbench, "ada"), Down(model=workbench.initial("model")))) == {
        "model"
    }
    run = play("ditto", tmp_path / "run", participation={"number": 1}, rounds=1)
    assert (set(run.models()), run.main_model) == ({"personal", "global"}, "personal")
    (asked,) = run.rounds()[0]["joined"]
    for client in run.clients:  # a client never asked uses the global model
        equal = torch.equal(
            run.model("personal", client=client).head.weight, run.model("global").head.weight
        )
        assert equal == (client != asked)


def test_it_costs_two_trainings(tmp_path: Path) -> None:
    assert passes_of("ditto", tmp_path / "run", epochs=2) == {"client gradient": 4}
    assert passes_of(Ditto(preset="gfedplat"), tmp_path / "platform", epochs=2) == {
        "client gradient": 2
    }


def test_regression_runs_too(tmp_path: Path) -> None:
    assert scalar("ditto", tmp_path / "run", (1.0, 3.0), (-2.0, 2.0), rounds=2).status == "finished"


def test_the_platforms_client_takes_two_steps_with_one_gradient() -> None:
    pull, lr = 0.7, 0.2
    training = {"lr": lr, "batch": 6, "epochs": 1}
    workbench, method = bench(Ditto(pull=pull, preset="gfedplat"), training=training)
    client = at(workbench, "ada")
    up = method.client(client, Down(model=workbench.initial("model")))
    net = net_of(workbench)
    start = [parameter.detach().clone() for parameter in net.parameters()]
    for places in torch.randperm(
        len(client.train), generator=torch_stream(7, "client", 1, "ada", "batches")
    ).split(6):
        net.zero_grad()
        torch.nn.functional.cross_entropy(
            net(client.train.x[places]), client.train.y[places]
        ).backward()
        with torch.no_grad():
            for parameter, before in zip(net.parameters(), start, strict=True):
                parameter -= lr * parameter.grad
                parameter -= lr * (parameter.grad + pull * (parameter - before))
    assert_near(up.model, dict(net.state_dict()))
    assert not client.state


def server_for(workbench: Workbench) -> Server:
    return Server(workbench, list("abcde"), dict.fromkeys("abcde", 3), rounds=2, round=1)


def test_the_platforms_server_moves_reply_by_reply() -> None:
    workbench, method = bench(Ditto(preset="gfedplat"))
    server, state = server_for(workbench), State(model=Tree({"w": torch.tensor([1.0, -2.0])}))
    replies = [torch.tensor([3.0, 0.0]), torch.tensor([-1.0, 5.0]), torch.tensor([2.0, 2.0])]
    ups = Ups(
        [
            (client, Up(model=Tree({"w": reply})))
            for client, reply in zip("ace", replies, strict=True)
        ]
    )
    w = np.array([1.0, -2.0])
    for reply in replies:
        w += (reply.numpy() - w) / 5
    found = method.update(server, state, ups, method.weights(server, state, ups)).model["w"]
    np.testing.assert_allclose(found, w, rtol=1e-6)


def test_the_platforms_preset_serves_the_global_model_and_needs_plain_sgd(tmp_path: Path) -> None:
    assert play(Ditto(preset="gfedplat"), tmp_path / "run").models() == ["global"]
    with pytest.raises(ValueError, match="Ditto needs plain sgd"):
        eq.Experiment(method={"name": "ditto", "preset": "gfedplat"}, training={"momentum": 0.9})
    eq.Experiment(method="ditto", training={"momentum": 0.9})


def test_a_negative_pull_is_refused() -> None:
    with pytest.raises(ValueError, match=r"pull.*greater than or equal to 0.*got -1"):
        eq.Experiment(method={"name": "ditto", "pull": -1})


def test_a_client_with_one_sample_is_served(tmp_path: Path) -> None:
    run = play("ditto", tmp_path / "run", "cnn", on=sites({"ada": 24, "bo": 1}))
    assert run.status == "finished" and not run.rejected()

"""FedAS: alignment and training against torch.optim, the Fisher trace against a plain loop, FedPer
as its reduction, its weights.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.client import Client, ClientState
from equipoise.composition import compose
from equipoise.method import Method, Ups
from equipoise.methods.fedas import FedAS
from equipoise.methods.fedavg import FedAvg
from equipoise.models.network import Network
from equipoise.records import Down, State, Up
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
from tests.helpers.problems import server_of
from tests.helpers.runs import sites


@dataclass(frozen=True)
class FedPer(Method):
    """A shared base and a head of each client's own, nothing else."""

    def client(self, client: Client, down: Down) -> Up:
        head = {
            name: value
            for name, value in client.state.get("personal", client.load(None).tree()).items()
            if name.startswith("head")
        }
        model = client.load(Tree({**down.model, **head}, "model", down.model.untrained))
        client.fit(model)
        client.state["personal"] = model
        return Up(model=model)


@pytest.mark.parametrize("network", NETWORKS)
def test_without_alignment_it_is_fedper_weighed_by_fisher_traces(
    tmp_path: Path, network: str
) -> None:
    changes = {"participation": {"number": 3}}
    whole = play(FedAS(align_lr=0), tmp_path / "a", network, **changes)
    parts = play(compose(FedPer(), weights=FedAS(align_lr=0)), tmp_path / "b", network, **changes)
    assert [row["share"] for row in whole.weights()] == [row["share"] for row in parts.weights()]
    assert_equal(shared(whole), shared(parts))
    personal = own(parts, "personal")
    for client, tree in own(whole, "personal").items():
        assert_equal(tree, personal[client])
    heads = [tree["head.weight"] for tree in personal.values()]
    assert not torch.equal(heads[0], heads[1]), "heads are not personal"


@pytest.mark.parametrize("network", NETWORKS)
def test_a_clients_part_matches_a_plain_loop_with_torch_optim(network: str) -> None:
    """Prototypes class by class, alignment by plain SGD of the base alone in batches of 16, then
    the experiment's own optimiser.
    """
    training = {
        "lr": 0.05,
        "batch": 5,
        "epochs": 2,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 1e-2,
        "clip": 0.5,
    }
    workbench, _ = bench("fedas", network, sites({"ada": 60, "bo": 20}), training=training)
    initial = workbench.initial("model")
    old, received = initial + 0.2 * initial, initial + -0.1 * initial
    client = at(workbench, "ada", 2, {"personal": old})
    up = FedAS(align_lr=0.3).client(client, Down(model=received))
    samples, before, net = client.train, net_of(workbench, old).eval(), net_of(workbench, received)
    with torch.no_grad():
        features = before.features(samples.x).flatten(1)  # type: ignore[operator]
    prototypes = {
        c: torch.stack(
            [z for z, y in zip(features, samples.y.tolist(), strict=True) if y == c]
        ).mean(0)
        for c in set(samples.y.tolist())
    }

    def alignment(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        parts = [
            nn.functional.mse_loss(
                z[y == c].flatten(1), prototypes[c].expand(int((y == c).sum()), -1)
            )
            for c in y.unique().tolist()
        ]
        return torch.stack(parts).sum()

    base: Any = net.features
    assert len(samples) > 32 and len(prototypes) == 3
    plain_fit(
        base,
        samples,
        torch.optim.SGD(base.parameters(), lr=0.3),
        "ada",
        2,
        alignment,
        batch=16,
        purpose="alignment",
    )
    assert not torch.equal(next(base.parameters()), received[next(iter(received.trained))]), (
        "nothing was aligned"
    )
    net.head.load_state_dict(before.head.state_dict())  # type: ignore[union-attr, operator, arg-type]
    optimiser = torch.optim.SGD(
        net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2
    )
    plain_fit(
        net,
        samples,
        optimiser,
        "ada",
        2,
        epochs=2,
        change=lambda: nn.utils.clip_grad_norm_(net.parameters(), 0.5),
    )
    assert_near(up.model, dict(net.state_dict()), 2e-4)
    assert_equal(up.model, client.state["personal"])


@pytest.mark.parametrize("fim", ["sum", "mean"])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_trace_equals_a_plain_loop(network: str, fim: Any) -> None:
    workbench, _ = bench("fedas", network)
    client = at(workbench, "ada")
    net = net_of(workbench).eval()
    total, batches = 0.0, 0
    for start in range(0, len(client.train), 5):
        net.zero_grad()
        scores = net(client.train.x[start : start + 5]).log_softmax(1)
        (
            -sum(
                scores[place, y]
                for place, y in enumerate(client.train.y[start : start + 5].tolist())
            )
            / len(scores)
        ).backward()
        total += sum(
            float(value**2)
            for parameter in net.parameters()
            for value in parameter.grad.flatten().double()
        )  # type: ignore[union-attr]
        batches += 1
    found = FedAS(fim=fim).after(client, None, workbench.initial("model")).trace
    assert found == pytest.approx(total if fim == "sum" else total / batches, rel=1e-5)


def test_the_trace_measures_the_uploaded_model_and_leaves_it_alone() -> None:
    workbench, method = bench("fedas", "cnn")
    client, initial = at(workbench, "ada"), workbench.initial("model")
    other = initial + 0.5 * initial
    assert (
        method.after(client, other, initial).trace == method.after(client, initial, initial).trace
    )
    assert (
        method.after(client, initial, other).trace != method.after(client, initial, initial).trace
    )
    kept = {name: value.clone() for name, value in initial.items()}
    method.after(client, initial, initial)
    assert_equal(initial, kept)


def convolutional() -> Network:
    """A convolution without batch norm, and dropout in the head: features in training are features
    in evaluation.
    """
    return Network(
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Dropout(0.4), nn.Linear(108, 3)),
    )


@pytest.mark.parametrize("network", [NETWORKS["mlp"], convolutional], ids=["mlp", "convolution"])
def test_features_equal_to_their_prototypes_move_nothing(network: Any) -> None:
    """Equal samples within each class, and a received base that is the client's own: the alignment
    has nothing to do, whatever its rate.
    """
    x, y = np.random.default_rng(0).standard_normal((3, 1, 8, 8)).astype(np.float32), np.arange(3)
    places = np.array([0, 1, 2, 2, 1, 0, 0, 1])
    data = {"ada": (x[places], y[places]), "bo": (x[places], y[places])}
    whole = {"split": (1.0, 0.0, 0.0), "partition": "natural", "duplicates": "separate"}
    workbench, _ = bench("fedas", models={"model": network}, on=data, data=whole)
    initial = workbench.initial("model")
    client = at(workbench, "ada", state={"personal": initial})
    ends = [
        FedAS(align_lr=rate).client(client_of(client), Down(model=initial)).model
        for rate in (0.0, 1.0)
    ]
    assert_equal(*ends)
    elsewhere = Down(model=initial + 0.1 * initial)
    aligned, plain = (
        FedAS(align_lr=rate).client(client_of(client), elsewhere).model for rate in (1.0, 0.0)
    )
    assert (aligned - plain).norm() > 1e-3, "the alignment has no effect at all"


def client_of(client: Client) -> Client:
    found = copy.copy(client)
    found.state = ClientState(client.state)
    return found


@pytest.mark.parametrize("network", NETWORKS)
def test_what_the_server_sent_is_not_changed_by_the_alignment(network: str) -> None:
    workbench, method = bench("fedas", network)
    down = Down(model=workbench.initial("model").clone())
    kept = down.model.clone()
    first = method.client(at(workbench, "ada"), down).model
    method.client(at(workbench, "bo"), down)
    assert_equal(down.model, kept)
    assert_equal(method.client(at(workbench, "ada"), down).model, first)


def test_the_alignment_trains_the_base_alone_and_its_buffers_come_along() -> None:
    """The received head plays no part, and of the client's old model only head and features do."""
    workbench, _ = bench("fedas", "cnn")
    initial = workbench.initial("model")
    other_head = Tree(
        {name: value + 1 if name.startswith("head") else value for name, value in initial.items()},
        "model",
        initial.untrained,
    )
    ups = [
        FedAS().client(at(workbench, "ada", state={"personal": initial}), Down(model=tree)).model
        for tree in (initial, other_head)
    ]
    assert_equal(*ups)
    buffers = Tree(
        {
            n: v + 1 if n in initial.untrained and v.is_floating_point() else v
            for n, v in initial.items()
        },
        "model",
        initial.untrained,
    )
    moved = (
        FedAS().client(at(workbench, "ada", state={"personal": initial}), Down(model=buffers)).model
    )
    name = next(name for name in initial if name.endswith("running_mean"))
    assert not torch.equal(moved[name], ups[0][name])


def replies(traces: list[float]) -> Ups:
    return Ups(
        [
            (client, Up(trace=trace))
            for client, trace in zip(("ada", "bo", "cy", "di"), traces, strict=True)
        ]
    )


def test_weights_are_shares_of_the_traces_and_sizes_where_there_are_none() -> None:
    workbench, method = bench("fedas")
    server = server_of(workbench)
    assert method.weights(server, State(), replies([1.0, 3.0, 0.0, 4.0])).shares.tolist() == [
        1,
        3,
        0,
        4,
    ]
    assert len(set(method.weights(server, State(), replies([2.0] * 4)).shares)) == 1
    sizes = [server.sizes[client] for client in ("ada", "bo", "cy", "di")]
    assert method.weights(server, State(), replies([0.0] * 4)).shares.tolist() == sizes
    assert len(set(sizes)) > 1


def test_a_client_without_classes_or_data_is_served(tmp_path: Path) -> None:
    run = play(
        "fedas", tmp_path / "run", "cnn", on=sites({"ada": 24, "bo": 1}, labels={"ada": [1]})
    )
    assert run.status == "finished" and not run.rejected()


def test_a_base_without_parameters_is_not_aligned(tmp_path: Path) -> None:
    linear = {"models": {"model": {"name": "mlp", "hidden": []}}}
    assert_equal(
        shared(play(FedAS(), tmp_path / "a", **linear)),
        shared(play(FedAS(align_lr=0), tmp_path / "b", **linear)),
    )


def test_cost(tmp_path: Path) -> None:
    """F + T + E T + T: prototypes, alignment, training, trace."""
    assert passes_of("fedas", tmp_path / "a", epochs=3) == {
        "client gradient": 1 + 3 + 1,
        "client forward": 1,
    }
    assert passes_of(FedAS(align_lr=0), tmp_path / "b", epochs=3) == {"client gradient": 3 + 1}
    assert passes_of(compose(FedAvg(), weights=FedAS()), tmp_path / "c", epochs=3) == {
        "client gradient": 3 + 1
    }


def test_the_personal_model_is_the_main_one(tmp_path: Path) -> None:
    run = play("fedas", tmp_path / "run", participation={"number": 2}, rounds=1)
    assert (set(run.models()), run.main_model) == ({"personal", "global"}, "personal")
    for client in run.clients:
        equal = torch.equal(
            run.model("personal", client=client).head.weight, run.model("global").head.weight
        )
        assert equal == (client not in run.rounds()[0]["joined"])


def test_regression_is_refused_before_round_1_also_in_a_composition(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    data = {
        name: (
            draw.standard_normal((20, 4)).astype(np.float32),
            draw.standard_normal(20).astype(np.float32),
        )
        for name in "ab"
    }

    def wanted(method: Any) -> eq.Experiment:
        return eq.Experiment(
            method=method,
            dataset=eq.from_sites(data, kind="regression"),
            data={"partition": "natural"},
            rounds=1,
            workers=0,
        )

    for method in (
        "fedas",
        {"name": "fedavg", "weights": {"name": "fedas"}},
    ):  # a need of any part is one of the whole
        with pytest.raises(ValueError, match="FedAS works on classes, but the task is regression"):
            eq.run(wanted(method), tmp_path / "run")


def test_a_negative_rate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"align_lr.*greater than or equal to 0.*got -1"):
        eq.Experiment(method={"name": "fedas", "align_lr": -1})

"""FedProto: its reduction to FedAvg, its prototypes by brute force, and a plain reference of its
rounds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise import methods
from equipoise.client import Client
from equipoise.losses.terms import Batch
from equipoise.method import Ups
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedproto import FedProto, prototype_distance
from equipoise.models import Outputs
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.storage.checkpoint import load_server
from tests.helpers.counting import counted
from tests.helpers.digits import (
    NETWORKS,
    batches_of,
    bench_for,
    few,
    finished,
    plain_epoch,
    plain_net,
    samples_of,
)
from tests.helpers.plain import assert_near, plain_mean, same


@pytest.mark.parametrize("network", NETWORKS)
def test_without_prototypes_it_is_fedavg(tmp_path: Path, network: str) -> None:
    plain = finished("fedavg", tmp_path / "fedavg", network).model
    off = finished(FedProto(lambda_proto=0), tmp_path / "off", network)
    assert same(off.model, plain) and set(off) == {"model"}
    assert not same(finished(FedProto(), tmp_path / "on", network).model, plain)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_first_round_is_fedavg(tmp_path: Path, network: str) -> None:
    assert same(
        *(
            finished(name, tmp_path / name, network, rounds=1).model
            for name in ("fedproto", "fedavg")
        )
    )


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_rounds_match_a_plain_reference(tmp_path: Path, network: str) -> None:
    weight, rounds = 4.0, 3
    data = {"name": "digits", "partition": "dirichlet:0.1", "clients": 3, "samples": 240}
    run = eq.run(
        few(FedProto(lambda_proto=weight), network, rounds=rounds, data=data), tmp_path / "run"
    )
    bench = bench_for(network=network, data=data)
    shared: Any = bench.initial("model")
    prototypes: dict[int, torch.Tensor] = {}
    for number in range(1, rounds + 1):
        uploads, sizes, own, before = [], [], [], dict(prototypes)
        for client in run.clients:
            x, y = samples_of(bench, client)
            net = plain_net(bench, shared)

            def distance(
                features: Any, logits: Any, places: Any, y: Any = y, known: Any = before
            ) -> Any:
                total, flat = 0.0, features.flatten(1)
                for z, label in zip(flat, y[places].tolist(), strict=True):
                    total = total + ((z - known[label]) ** 2).sum() if label in known else total
                return weight * total / flat.numel()

            plain_epoch(net, x, y, batches_of(client, number), distance)
            net.eval()
            with torch.no_grad():
                features = net.features(x).flatten(1)
            own.append(
                {
                    label: features[y == label].sum(0) / int((y == label).sum())
                    for label in set(y.tolist())
                }
            )
            uploads.append(net.state_dict())
            sizes.append(len(y))
        shared = plain_mean(uploads, sizes)
        for label in {label for one in own for label in one}:
            having = [one[label] for one in own if label in one]
            prototypes[label] = sum(having) / len(having)  # type: ignore[assignment]
    assert any(len(one) < len(prototypes) for one in own), (
        "some client lacks a class that another has"
    )
    state = load_server(run.store)
    assert_near(state.model, shared, 2e-5)
    assert state.known.nonzero().flatten().tolist() == sorted(prototypes)
    for label, wanted in prototypes.items():
        torch.testing.assert_close(state.prototypes[label].double(), wanted, rtol=0, atol=2e-4)


def reply(prototypes: dict[int, list[float]]) -> Up:
    rows, present = torch.zeros(3, 2), torch.zeros(3)
    for label, row in prototypes.items():
        rows[label], present[label] = torch.tensor(row), 1
    return Up(prototypes=rows, present=present)


def observed(state: State, *replies: dict[int, list[float]]) -> State:
    server = Server(bench_for(), ["0", "1", "2"], {"0": 1, "1": 50, "2": 7}, rounds=9)
    return FedProto().observe(
        server, state, Ups([(str(k), reply(one)) for k, one in enumerate(replies)])
    )


def test_clients_count_alike_whatever_their_sizes_and_an_absent_class_keeps_its_own() -> None:
    state = observed(State(), {0: [1, 2]}, {0: [3, 4], 1: [5, 5]})
    assert state.prototypes.tolist() == [[2, 3], [5, 5], [0, 0]] and state.known.tolist() == [
        True,
        True,
        False,
    ]
    state = observed(state, {2: [7, 8]}, {0: [9, 9]})
    assert state.prototypes.tolist() == [[9, 9], [5, 5], [7, 8]] and state.known.all()
    assert observed(state, {}, {}).prototypes.tolist() == state.prototypes.tolist(), (
        "nobody has any class: all stay"
    )
    alone = observed(State(), {0: [1, 2]}, {1: [3, 4]}, {2: [5, 6]})
    assert alone.prototypes.tolist() == [[1, 2], [3, 4], [5, 6]], (
        "one client per class: its own prototype"
    )


def test_a_prototype_of_zeros_that_a_client_has_is_no_missing_one() -> None:
    state = observed(State(), {0: [0, 0]}, {0: [2, 2]})
    assert state.prototypes[0].tolist() == [1, 1] and state.known.tolist() == [True, False, False]


def test_the_distance_is_a_mean_over_samples_and_dimensions() -> None:
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(4, 2, 3, generator=draw, dtype=torch.float64, requires_grad=True)
    prototypes, labels = (
        torch.randn(3, 6, generator=draw, dtype=torch.float64),
        torch.tensor([0, 1, 2, 1]),
    )
    batch = Batch(torch.zeros(4), labels, torch.arange(4), lambda a, b: a)
    outputs = Outputs(None, features, features)  # type: ignore[arg-type]
    value = prototype_distance(prototypes, torch.tensor([True, True, False]))(outputs, batch)
    wanted = (
        sum(
            float(((features[i].detach().flatten() - prototypes[labels[i]]) ** 2).sum())
            for i in (0, 1, 3)
        )
        / 24
    )
    assert value.item() == pytest.approx(wanted, rel=1e-12)
    value.backward()
    assert features.grad is not None and not features.grad[2].any() and features.grad[3].any()
    exact = Outputs(None, prototypes[labels].view(4, 2, 3), features)  # type: ignore[arg-type]
    assert float(prototype_distance(prototypes, torch.ones(3, dtype=torch.bool))(exact, batch)) == 0


def test_features_move_towards_their_prototypes() -> None:
    bench = bench_for(network="mlp")
    start = bench.initial("model")
    client = Client(bench, "0", 2, 3, {})
    target = client.features(client.load(start)).mean(0) + 1
    down = Down(
        model=start,
        prototypes=target.expand(10, -1).clone(),
        known=torch.ones(10, dtype=torch.bool),
    )
    gaps = []
    for method in (FedAvg(), FedProto(lambda_proto=2.0)):
        uploaded = method.client(Client(bench, "0", 2, 3, {}), down).model
        gaps.append(float((client.features(client.load(uploaded)) - target).square().mean()))
    assert gaps[1] < 0.9 * gaps[0]


def test_every_client_sends_the_same_entries_and_zeros_for_classes_it_lacks() -> None:
    bench = bench_for(
        data={"name": "digits", "partition": "dirichlet:0.1", "clients": 3, "samples": 240}
    )
    lacking = 0
    for place in ("0", "1", "2"):
        client = Client(bench, place, 1, 3, {})
        up = FedProto().after(client, None, bench.initial("model"))
        assert up.prototypes.shape == (10, 8) and up.present.shape == (10,)
        have = {int(y) for y in client.train.y}
        assert {label for label in range(10) if up.present[label]} == have
        assert not up.prototypes[[label for label in range(10) if label not in have]].any()
        lacking += len(have) < 10
    assert lacking


def test_what_it_costs(tmp_path: Path) -> None:
    for weight in (1.0, 0.0):
        with counted() as passes:
            run = eq.run(
                few(FedProto(lambda_proto=weight), training={"epochs": 2}), tmp_path / str(weight)
            )
        samples = sum(run.store.meta("sizes")["train"])
        assert passes == {
            ("client", "gradient"): 3 * 2 * samples,
            **({("client", "forward"): 3 * samples} if weight else {}),
        }


def test_regression_and_bad_parameters_are_refused(tmp_path: Path) -> None:
    sites = {name: (np.ones((9, 3), np.float32), np.arange(9, dtype=np.float32)) for name in "ab"}
    with pytest.raises(ValueError, match="FedProto works on classes, but the task is regression"):
        eq.run(
            few(
                "fedproto",
                "mlp",
                dataset=eq.from_sites(sites, kind="regression"),
                data={"partition": "natural"},
            ),
            tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="method.lambda_proto"):
        methods.make("fedproto", {"lambda_proto": -1})


def test_what_is_served(tmp_path: Path) -> None:
    run = eq.run(few("fedproto", "mlp", rounds=2, evaluation={"every": 1}), tmp_path / "run")
    assert run.models() == ["global"] and run.main_model == "global"
    assert same(run.model("global").state_dict(), load_server(run.store).model)

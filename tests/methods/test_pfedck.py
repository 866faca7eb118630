"""pFedCK: its reductions to Standalone and FedAvg, mutual learning against torch.optim, and
clusters written out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import equipoise as eq
from equipoise.composition import IncompatibleComposition, compose
from equipoise.method import Ups
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.pfedck import PFedCK
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.storage.checkpoint import load_server
from equipoise.streams import number, torch_stream
from equipoise.tree import Tree
from tests.helpers.images import NETWORKS, SEED, at, bench, net_of, own, passes_of, play, shared
from tests.helpers.plain import assert_equal, assert_near
from tests.helpers.problems import scalar, server_of, server_state
from tests.helpers.runs import sites

FREE = {"lambda_p": 0.0, "lambda_f": 0.0}


@pytest.mark.parametrize("network", NETWORKS)
def test_without_mutual_learning_personal_models_are_those_of_standalone(
    tmp_path: Path, network: str
) -> None:
    changes = {"participation": {"number": 3}}
    alone, joint = (
        play("standalone", tmp_path / "a", network, **changes),
        play(PFedCK(**FREE), tmp_path / "b", network, **changes),
    )
    trained = own(joint, "personal")
    assert len(trained) >= 3
    for client, tree in trained.items():
        assert_equal(tree, own(alone, "local")[client])


@pytest.mark.parametrize("network", NETWORKS)
def test_one_cluster_without_mutual_learning_is_fedavg(tmp_path: Path, network: str) -> None:
    plain, one = (
        play("fedavg", tmp_path / "a", network),
        play(PFedCK(**FREE, clusters=1), tmp_path / "b", network),
    )
    models = load_server(one.store).models
    for client in one.clients:
        assert_equal(models[client], shared(plain))


@pytest.mark.parametrize("network", NETWORKS)
def test_both_models_match_a_plain_loop_with_two_torch_optimisers(network: str) -> None:
    """Both losses from the logits before either step; in a second round, where the models differ;
    dropout as if each were alone.
    """
    method = PFedCK(lambda_p=0.7, lambda_f=1.3, temperature=2.0)
    workbench, _ = bench("pfedck", network)
    initial = workbench.initial("model")
    client = at(workbench, "ada", 2, {"personal": initial + 0.3 * initial})
    up = method.client(client, Down(model=initial))
    nets = [net_of(workbench), net_of(workbench, initial + 0.3 * initial)]
    steps = [torch.optim.SGD(net.parameters(), lr=0.05) for net in nets]
    samples, order = client.train, torch_stream(SEED, "client", 2, "ada", "batches")
    with torch.random.fork_rng():
        torch.manual_seed(number(SEED, "client", 2, "ada", "batches torch"))
        drawn = [torch.get_rng_state(), torch.get_rng_state()]
        for places in torch.randperm(len(samples), generator=order).split(5):
            features = []
            for place, net in enumerate(nets):
                net.train()
                torch.set_rng_state(drawn[place])
                features.append(net.features(samples.x[places]))
                drawn[place] = torch.get_rng_state()
            logits = [net.head(z) for net, z in zip(nets, features, strict=True)]
            for me, other in ((0, 1), (1, 0)):
                steps[me].zero_grad()
                target = (logits[other].detach() / 2).softmax(1)
                loss = functional.cross_entropy(logits[me], samples.y[places])
                loss = loss + 0.7 * 4 * functional.kl_div(
                    (logits[me] / 2).log_softmax(1), target, reduction="batchmean"
                )
                loss = loss + 1.3 * functional.mse_loss(features[me], features[other].detach())
                loss.backward()
            for step in steps:
                step.step()
    assert_near(up.model, dict(nets[0].state_dict()), 1e-5)
    assert_near(client.state["personal"], dict(nets[1].state_dict()), 1e-5)
    assert set(up) == {"model"}


@pytest.mark.parametrize("network", NETWORKS)
def test_equal_models_teach_each_other_nothing(network: str) -> None:
    workbench, _ = bench("pfedck", network)
    found = []
    for strength in (0.0, 5.0):
        client = at(workbench, "ada")
        up = PFedCK(lambda_p=strength, lambda_f=strength).client(
            client, Down(model=workbench.initial("model"))
        )
        assert_equal(up.model, client.state["personal"])
        found.append(up.model)
    assert_equal(*found)


@pytest.mark.thorough
def test_each_part_of_mutual_learning_has_an_effect(tmp_path: Path) -> None:
    variants = [
        PFedCK(),
        PFedCK(lambda_p=0),
        PFedCK(lambda_f=0),
        PFedCK(temperature=3),
        PFedCK(clusters=1),
        PFedCK(cluster_mean="models"),
    ]
    found = [
        own(play(method, tmp_path / str(place)), "personal")["ada"]["head.weight"]
        for place, method in enumerate(variants)
    ]
    assert all(not torch.equal(a, b) for place, a in enumerate(found) for b in found[:place])


def server_for(ids: list[str], sizes: dict[str, int] | None = None) -> tuple[Server, State]:
    workbench, method = bench("pfedck")
    server = Server(workbench, ids, sizes or dict.fromkeys(ids, 1), rounds=3, round=1)
    return server, method.start(server)


def moved(server: Server, state: State, steps: dict[str, Tree]) -> Ups:
    initial = server.initial()
    return Ups(
        [
            (client, Up(model=state.models.get(client, initial) + step))
            for client, step in steps.items()
        ]
    )


def directions(server: Server, seed: int = 0) -> tuple[Tree, Tree]:
    draw = torch.Generator().manual_seed(seed)
    flat = [torch.randn(server.initial().count(), generator=draw) for _ in range(2)]
    return server.initial().params.with_flat(flat[0]), server.initial().params.with_flat(flat[1])


def test_opposite_updates_part_whatever_their_length() -> None:
    ids = ["a", "b", "c", "d", "e"]
    server, state = server_for(ids)
    one, _ = directions(server)
    lengths = {"a": 1.0, "b": -0.1, "c": 3.0, "d": -20.0, "e": 0.5}
    method = PFedCK(clusters=2)
    for scale in (1.0, 0.01):
        ups = moved(
            server, state, {client: scale * length * one for client, length in lengths.items()}
        )
        found = method.update(server, state, ups, method.weights(server, state, ups)).clusters
        assert found == {"a": 0, "b": 1, "c": 0, "d": 1, "e": 0}


@pytest.mark.parametrize("kind", ["steps", "models"])
def test_a_cluster_is_averaged_by_size_from_where_its_members_stood(kind: Any) -> None:
    """Two rounds written out in float64: in the second, members of one cluster stand at different
    models.
    """
    ids, sizes = ["a", "b", "c", "d"], {"a": 1, "b": 2, "c": 5, "d": 3}
    server, state = server_for(ids, sizes)
    one, two = directions(server)
    method = PFedCK(clusters=2, cluster_mean=kind)
    stood = {client: server.initial().flat() for client in ids}
    rounds = [
        {"a": 0.1 * one, "b": 0.2 * one, "c": 0.1 * two, "d": 0.3 * two},
        {"a": 0.2 * two, "b": 0.1 * one, "c": 0.3 * one, "d": 0.1 * two},
    ]
    for steps, groups in zip(rounds, (["ab", "cd"], ["ad", "bc"]), strict=True):
        ups = moved(server, state, steps)
        ends = {client: stood[client] + steps[client].flat() for client in ids}
        state = method.update(server, state, ups, method.weights(server, state, ups))
        assert state.clusters == {
            client: place for place, group in enumerate(groups) for client in group
        }
        for group in groups:
            total = sum(sizes[client] for client in group)
            step = sum(sizes[client] * steps[client].flat() for client in group) / total
            mean = sum(sizes[client] * ends[client] for client in group) / total
            for client in group:
                stood[client] = stood[client] + step if kind == "steps" else mean
                torch.testing.assert_close(
                    state.models[client].flat(), stood[client], rtol=1e-5, atol=1e-6
                )


def test_a_client_that_did_not_move_keeps_its_model_and_so_do_the_absent() -> None:
    server, state = server_for(["a", "b", "c", "d"])
    one, two = directions(server)
    method = PFedCK(clusters=2)
    ups = moved(server, state, {"a": one, "b": 0 * one, "c": two})
    new = method.update(server, state, ups, method.weights(server, state, ups))
    assert set(new.clusters) == {"a", "c"} and set(new.models) == {"a", "c"}
    for client in ("b", "d"):
        assert_equal(method.deliver(server, new, client).model, server.initial())
    nobody = moved(server, state, {"a": 0 * one, "b": 0 * one})
    still = method.update(server, state, nobody, method.weights(server, state, nobody))
    assert still.clusters == {} and len(still.models) == 0


def test_clusters_go_by_name_and_not_by_place() -> None:
    ids = [f"client {place}" for place in range(12)]
    server, state = server_for(ids)
    draw = torch.Generator().manual_seed(2)
    steps = {
        client: server.initial().params.with_flat(
            torch.randn(server.initial().count(), generator=draw)
        )
        for client in ids
    }
    method, found = PFedCK(clusters=4), []
    for order in (ids, ids[::-1], ids[6:] + ids[:6]):
        ups = moved(server, state, {client: steps[client] for client in order})
        found.append(method.update(server, state, ups, method.weights(server, state, ups)).clusters)
    assert found[0] == found[1] == found[2]
    assert max(found[0].values()) == 3


def test_buffers_of_a_cluster_are_averaged(tmp_path: Path) -> None:
    run = play(PFedCK(clusters=2), tmp_path / "run", "cnn", rounds=1)
    workbench, _ = bench("pfedck", "cnn")
    state = load_server(run.store)
    sizes = server_of(workbench).sizes
    name = next(name for name in workbench.initial("model") if name.endswith("running_mean"))
    ends = {
        client: PFedCK()
        .client(at(workbench, client), Down(model=workbench.initial("model")))
        .model[name]
        for client in run.clients
    }
    for client, group in state.clusters.items():
        members = [other for other, its in state.clusters.items() if its == group]
        mean = sum(sizes[other] * ends[other].double() for other in members) / sum(
            sizes[other] for other in members
        )
        torch.testing.assert_close(state.models[client][name].double(), mean, rtol=1e-5, atol=1e-6)
    assert len(set(state.clusters.values())) == 2


def test_it_costs_two_trainings(tmp_path: Path) -> None:
    assert passes_of("pfedck", tmp_path / "run", epochs=2) == {"client gradient": 4}


def test_the_personal_model_is_the_main_one(tmp_path: Path) -> None:
    run = play("pfedck", tmp_path / "run", participation={"number": 2}, rounds=1)
    assert (set(run.models()), run.main_model) == ({"personal", "interactive"}, "personal")
    for client in run.clients:
        if client not in run.rounds()[0]["joined"]:
            nets = [run.model(name, client=client) for name in ("personal", "interactive")]
            assert_equal(nets[0].state_dict(), nets[1].state_dict())


def test_regression_learns_from_squared_differences(tmp_path: Path) -> None:
    assert (
        scalar("pfedck", tmp_path / "run", (1.0, 3.0), (-2.0, 2.0), rounds=2).status == "finished"
    )
    own_, other = torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [1.0]])
    assert float(PFedCK().prediction_gap(own_, other)) == 2.5


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match=r"clusters.*greater than or equal to 1.*got 0"):
        eq.Experiment(method={"name": "pfedck", "clusters": 0})
    with pytest.raises(IncompatibleComposition, match="derived for its own weights"):
        compose(PFedCK(), weights=FedAvg())


def test_more_clusters_than_clients(tmp_path: Path) -> None:
    run = play(PFedCK(clusters=9), tmp_path / "run", on=sites({"ada": 20, "bo": 13}))
    assert server_state(run).clusters == {"ada": 0, "bo": 1}

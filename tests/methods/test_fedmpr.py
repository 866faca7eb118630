"""FedMPR: its reduction to FedAvg, exact pruning, and a plain reference of dropout, noise and
weight decay.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import equipoise as eq
from equipoise import methods
from equipoise.client import Client
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedmpr import FedMPR, pruned
from equipoise.records import Down
from equipoise.storage.checkpoint import load_server
from equipoise.streams import number
from equipoise.task import Task
from equipoise.tree import Tree
from tests.helpers.counting import counted
from tests.helpers.digits import NETWORKS, SEED, batches_of, bench_for, few, finished
from tests.helpers.plain import assert_near, plain_mean, same

OFF = FedMPR(rho=0, dropout=0, noise=0, weight_decay=0)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    "training", [{}, {"optimiser": "adam", "lr": 0.01, "weight_decay": 1e-3}], ids=["sgd", "adam"]
)
def test_with_everything_off_it_is_fedavg(
    tmp_path: Path, network: str, training: dict[str, Any]
) -> None:
    changes = {"training": training, "rounds": 2}
    assert same(
        finished(OFF, tmp_path / "off", network, **changes).model,
        finished("fedavg", tmp_path / "avg", network, **changes).model,
    )


def test_every_part_matters(tmp_path: Path) -> None:
    """Guards the reduction above: no option is without effect."""
    options = [{}, {"rho": 0.1}, {"dropout": 0.1}, {"noise": 0.1}, {"weight_decay": 0.1}]
    off = {"rho": 0, "dropout": 0, "noise": 0, "weight_decay": 0}
    found = [
        finished(FedMPR(**{**off, **one}), tmp_path / str(place), rounds=1).model
        for place, one in enumerate(options)
    ]
    assert all(not same(a, b) for place, a in enumerate(found) for b in found[:place])


@pytest.mark.parametrize("rho", [0.1, 0.29, 0.75])
@pytest.mark.parametrize("network", NETWORKS)
def test_an_upload_has_as_many_zeros_as_asked_and_no_others(network: str, rho: float) -> None:
    bench = bench_for("fedmpr", network)
    down = Down(model=bench.initial("model"))
    whole, up = (
        FedMPR(rho=share).client(Client(bench, "1", 1, 3, {}), down).model for share in (0.0, rho)
    )
    weights = {name for name in whole.trained if whole[name].ndim >= 2}
    assert weights and weights != set(whole)
    ranked = sorted(abs(value) for name in weights for value in whole[name].flatten().tolist())
    count = int(np.floor(np.round(rho * len(ranked), 9)))
    assert count > 1
    assert sum(int((up[name] == 0).sum()) for name in weights) == count and not any(
        (whole[name] == 0).any() for name in weights
    )
    for name in whole:
        kept = up[name] != 0 if name in weights else torch.ones_like(whole[name], dtype=torch.bool)
        assert torch.equal(up[name][kept], whole[name][kept]), (
            "what is kept is unchanged: biases, batch norm and statistics too"
        )
        if name in weights:
            assert (whole[name].abs()[~kept] <= ranked[count - 1]).all() and (
                whole[name].abs()[kept] >= ranked[count - 1]
            ).all()
    assert same(pruned(up, rho), up), "pruning again changes nothing"
    assert up.model == whole.model and up.untrained == whole.untrained and list(up) == list(whole)


def test_ties_and_shares_that_are_not_exact_in_floating_point() -> None:
    ones = Tree({"a": torch.ones(5, 10), "b": -torch.ones(25, 2), "bias": torch.zeros(4)})
    for rho, count in ((0.29, 29), (0.07, 7), (0.999, 99), (0.0, 0), (0.009, 0)):
        found = pruned(ones, rho)
        assert sum(int((found[name] == 0).sum()) for name in ("a", "b")) == count
        assert same(pruned(found, rho), found)
    flat = Tree({"bias": torch.tensor([0.1, 0.2])})
    assert same(pruned(flat, 0.9), flat), "a model without matrices has nothing to prune"
    already = Tree({"w": torch.tensor([[0.0, 0.0, 0.0, 1.0]])})
    assert same(pruned(already, 0.5), already)


def plain_upload(
    method: FedMPR, network: str, client: str, decay: float
) -> dict[str, torch.Tensor]:
    """Round 1 of a client before pruning: torch's own SGD on the bare network, with noise and
    dropout written out layer by layer.
    """
    bench = bench_for("fedavg", network)
    net, train = bench.take("model").net, Client(bench, client, 1, 3, {}).train
    x, y = train.x, train.y
    steps, order = (
        torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=decay),
        batches_of(client, 1),
    )
    net.train()
    torch.manual_seed(number(SEED, "client", 1, client, "batches torch"))
    for places in torch.split(torch.randperm(len(y), generator=order), 32):
        z = x[places]
        for layer in net.features:
            z = layer(z)
            if isinstance(layer, nn.ReLU):
                z = z + method.noise * torch.randn_like(z)
        logits = net.head(functional.dropout(z, method.dropout, training=True))
        steps.zero_grad()
        functional.cross_entropy(logits, y[places]).backward()
        steps.step()
    return {name: entry.detach().clone() for name, entry in net.state_dict().items()}


@pytest.mark.parametrize("network", NETWORKS)
def test_training_matches_a_plain_reference(tmp_path: Path, network: str) -> None:
    method = FedMPR(rho=0.2, dropout=0.3, noise=0.5, weight_decay=0.02)
    run = eq.run(few(method, network, rounds=1, training={"weight_decay": 0.01}), tmp_path / "run")
    uploads = []
    for client in run.clients:
        upload = plain_upload(method, network, client, decay=0.03)
        weights = [name for name, entry in upload.items() if entry.ndim >= 2]
        ranked = np.sort(
            np.concatenate([upload[name].abs().reshape(-1).numpy() for name in weights])
        )
        threshold = ranked[int(0.2 * len(ranked))]  # the smallest that is kept
        uploads.append(
            {
                name: entry * (entry.abs() >= threshold) if name in weights else entry
                for name, entry in upload.items()
            }
        )
    assert_near(
        load_server(run.store).model, plain_mean(uploads, run.store.meta("sizes")["train"]), 2e-6
    )


@pytest.mark.parametrize("network", NETWORKS)
def test_the_network_keeps_its_names_and_its_start_and_is_bare_outside_training(
    network: str,
) -> None:
    bare, noisy = bench_for("fedavg", network), bench_for(FedMPR(noise=3.0, dropout=0.9), network)
    assert same(bare.initial("model"), noisy.initial("model")) and list(
        bare.initial("model")
    ) == list(noisy.initial("model"))
    x = Client(bare, "0", 1, 1, {}).train.x
    nets = [bench.take("model").net for bench in (bare, noisy)]
    with torch.no_grad():
        assert torch.equal(*(net.eval()(x) for net in nets))
        assert not torch.allclose(*(net.train()(x) for net in nets), atol=0.1)


def test_noise_has_the_deviation_asked_for_and_dropout_keeps_the_mean() -> None:
    method = FedMPR(noise=0.25, dropout=0.4)
    factory = method.models(
        Task("classification", (4,), 2),
        {"model": lambda: nn.Sequential(nn.ReLU(), nn.Linear(4, 1, bias=False))},
    )["model"]
    net = factory().train()
    nn.init.constant_(net[1].weight, 1.0)
    torch.manual_seed(0)
    x = torch.full((100_000, 4), 2.0)
    noise = net[0](x) - 2
    assert abs(float(noise.mean())) < 0.003 and float(noise.std()) == pytest.approx(0.25, rel=0.01)
    outputs = net[1](x).detach().flatten()
    assert float(outputs.mean()) == pytest.approx(8.0, rel=0.01)
    assert sorted(set(outputs.round(decimals=3).tolist())) == pytest.approx(
        [8 / 0.6 * k / 4 for k in range(5)], abs=2e-3
    )


def test_dropout_stands_before_the_last_linear_layer_even_of_a_deep_head() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    FedMPR().models(Task("classification", (4,), 2), {"model": lambda: net})["model"]()
    assert [len(layer._forward_pre_hooks) for layer in net] == [0, 0, 0, 0, 1]
    assert [len(layer._forward_hooks) for layer in net] == [0, 1, 0, 1, 0]


def test_what_it_costs(tmp_path: Path) -> None:
    with counted() as passes:
        run = eq.run(few("fedmpr", training={"epochs": 2}), tmp_path / "run")
    assert passes == {("client", "gradient"): 3 * 2 * sum(run.store.meta("sizes")["train"])}


@pytest.mark.parametrize(
    ("name", "value"),
    [("rho", 1.0), ("rho", -0.1), ("dropout", 1.0), ("noise", -1.0), ("weight_decay", -1.0)],
)
def test_bad_parameters_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"method.{name}"):
        methods.make("fedmpr", {name: value})


def test_a_network_without_places_for_hooks_is_refused_before_round_1(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nn.ReLU, but the model has none; set noise=0"):
        eq.run(few("fedmpr", model={"name": "mlp", "hidden": []}), tmp_path / "run")
    assert not (tmp_path / "run").exists()

    def without_linear() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 10, 8), nn.ReLU(), nn.Flatten())

    with pytest.raises(ValueError, match=r"nn.Linear, but the model has none; set dropout=0"):
        eq.run(few("fedmpr", model=without_linear), tmp_path / "run")
    finished(FedMPR(dropout=0), tmp_path / "conv", model=without_linear, rounds=1)
    finished(FedMPR(noise=0), tmp_path / "linear", model={"name": "mlp", "hidden": []}, rounds=1)


def test_regression_and_another_weight_rule(tmp_path: Path) -> None:
    draw = np.random.Generator(np.random.PCG64(0))
    sites = {
        name: (
            draw.standard_normal((20, 3)).astype(np.float32),
            draw.standard_normal(20).astype(np.float32),
        )
        for name in "ab"
    }
    method = eq.compose(FedMPR(), weights=FedAvg(average="uniform"))
    run = eq.run(
        few(
            method,
            "mlp",
            dataset=eq.from_sites(sites, kind="regression"),
            data={"partition": "natural"},
        ),
        tmp_path / "run",
    )
    assert {row["share"] for row in run.weights()} == {0.5}


def test_what_is_served(tmp_path: Path) -> None:
    run = eq.run(few("fedmpr", "mlp", rounds=2, evaluation={"every": 1}), tmp_path / "run")
    assert run.models() == ["global"] and run.main_model == "global"
    net = run.model("global")
    assert same(net.state_dict(), load_server(run.store).model) and not net.training
    x = torch.rand(5, 1, 8, 8)
    assert torch.equal(net(x), net(x))

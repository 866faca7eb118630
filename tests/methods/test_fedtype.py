"""FedType: training alone where nothing is taught back, both stages against plain loops, and what
leaves a client.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor, nn

import equipoise as eq
from equipoise.losses.conformal import Conformal, calibrated
from equipoise.losses.terms import Batch, supervised
from equipoise.methods.fedtype import FedType
from equipoise.models import Outputs, build
from equipoise.records import Down
from equipoise.streams import number, torch_stream
from equipoise.task import Task
from tests.helpers.counting import counted
from tests.helpers.digits import refused
from tests.helpers.images import NETWORKS, SEED, at, bench, net_of, own, play, shared
from tests.helpers.plain import assert_equal, assert_near
from tests.helpers.runs import played, settings, sites

SIZES = {"ada": 60, "bo": 40, "cy": 50}
DATA = sites(SIZES)
UNLIKE: dict[str, Any] = {
    "models": {"private": {"name": "mlp", "hidden": [7]}, "proxy": {"name": "mlp", "hidden": [4]}}
}
# room to calibrate on
HALF: dict[str, Any] = {"data": {"split": (0.5, 0.4, 0.1), "partition": "natural"}}


@pytest.mark.parametrize("network", NETWORKS)
def test_as_released_the_private_models_are_those_of_training_alone(
    tmp_path: Path, network: str
) -> None:
    changes = {**HALF, "participation": {"number": 2}}
    alone = play("standalone", tmp_path / "alone", network, on=DATA, **changes)
    released = play(
        FedType(rank_loss="released"), tmp_path / "released", network, on=DATA, **changes
    )
    assert len(own(released, "private")) >= 2
    assert set(own(released, "private")) == set(own(alone, "local")) == set(alone.clients)
    for client, tree in own(released, "private").items():
        assert_equal(tree, own(alone, "local")[client])


@pytest.mark.parametrize(
    "config", [settings("fedtype"), settings("fedtype", "cnn")], ids=["mlp", "cnn"]
)
def test_the_settings_of_the_contract_let_it_act(tmp_path: Path, config: dict[str, Any]) -> None:
    taught = played(config, tmp_path / "taught")
    released = played(
        {**config, "method": {**config["method"], "rank_loss": "released"}}, tmp_path / "released"
    )
    assert any(
        not torch.equal(tree["head.weight"], own(released, "private")[client]["head.weight"])
        for client, tree in own(taught, "private").items()
    )


def test_as_released_several_epochs_are_labels_alone_too() -> None:
    workbench, _ = bench(
        FedType(), "cnn", on=DATA, **HALF, training={"lr": 0.05, "batch": 5, "epochs": 2}
    )
    client = at(workbench, "ada")
    FedType(rank_loss="released").client(client, Down(model=workbench.initial("proxy")))
    plain = client.load(None, model="private")
    for purpose in ("batches", "batches 1"):
        client.fit(plain, supervised, purpose=purpose, epochs=1)
    assert_equal(client.state["private"], plain.tree())


def brute_sets(logits: np.ndarray, found: Conformal) -> np.ndarray:
    result = np.zeros(logits.shape, bool)
    for i, row in enumerate(logits):
        chances, total, size = softmax(row / found.temperature), 0.0, 1
        order = sorted(range(len(row)), key=lambda k: (-chances[k], k))
        for rank, k in enumerate(order, 1):
            total += chances[k]
            size += total + found.penalty * max(0, rank - found.k_reg) <= found.threshold
        result[i, order[:size]] = True
    return result


def brute_ranking(own_sets: np.ndarray, sets: np.ndarray, logits: Tensor) -> Tensor:
    """kappa times the ranking loss, pair by pair."""
    agreed, total = [], torch.zeros((), dtype=logits.dtype)
    for f, g, z in zip(own_sets, sets, logits, strict=True):
        agreed.append((f & g).sum() / ((f | g).sum() if f.sum() <= g.sum() else g.sum()))
        pairs = [(a, b) for a in np.flatnonzero(g) for b in np.flatnonzero(~g)]
        for a, b in pairs:
            total = total + (z[b] - z[a]).clamp(min=0) / len(pairs) / len(logits)
    return float(np.mean(agreed)) * total


def plain_epoch(
    net: nn.Module, client: Any, sgd: torch.optim.Optimizer, purpose: str, loss: Any
) -> None:
    order = torch_stream(SEED, "client", 1, client.id, purpose)
    net.train()
    with torch.random.fork_rng():
        torch.manual_seed(number(SEED, "client", 1, client.id, f"{purpose} torch"))
        for places in torch.randperm(len(client.train), generator=order).split(5):
            sgd.zero_grad()
            loss(net(client.train.x[places]), places).backward()
            sgd.step()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_a_client_matches_plain_loops(network: str, mu: float) -> None:
    """Two epochs of both stages in turn, with momentum: private by labels and ranking, proxy by
    labels, private model and pull.
    """
    training = {"lr": 0.05, "batch": 5, "epochs": 2, "momentum": 0.5}
    models = {"models": {"private": NETWORKS[network], "proxy": {"name": "mlp", "hidden": [5]}}}
    method = FedType(mu=mu, alpha=0.7, penalty_private=0.05, penalty_proxy=0.1, k_reg=1)
    workbench, _ = bench(method, on=DATA, **HALF, training=training, **models)
    client = at(workbench, "ada")
    start = workbench.initial("proxy")
    found = method.client(client, Down(model=start)).model
    private = copy.deepcopy(workbench.take("private").net).to(memory_format=torch.contiguous_format)
    private.load_state_dict(dict(workbench.initial("private")))
    proxy = copy.deepcopy(workbench.take("proxy").net)
    proxy.load_state_dict(dict(start))
    x, y, calibration = client.train.x, client.train.y, client.validation
    with torch.no_grad():
        mine = calibrated(private.eval()(calibration.x), calibration.y, 0.7, 1, 0.05)
        theirs = calibrated(proxy.eval()(calibration.x), calibration.y, 0.7, 1, 0.1)
    steps = [torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.5) for net in (private, proxy)]
    ranked = []
    for epoch in range(2):
        with torch.no_grad():
            answers = proxy.eval()(x)

        def back(logits: Tensor, places: Tensor, answers: Tensor = answers) -> Tensor:
            own_sets, sets = (
                brute_sets(z.detach().double().numpy(), one)
                for z, one in ((logits, mine), (answers[places], theirs))
            )
            term = brute_ranking(own_sets, sets, logits)
            ranked.append(float(term.detach()))
            return nn.functional.cross_entropy(logits, y[places]) + term

        plain_epoch(private, client, steps[0], f"batches {epoch}" if epoch else "batches", back)
        with torch.no_grad():
            target = private.eval()(x).softmax(1)

        def forth(logits: Tensor, places: Tensor, target: Tensor = target) -> Tensor:
            p, q = target[places], logits.log_softmax(1)
            pull = sum(((own - start[name]) ** 2).sum() for name, own in proxy.named_parameters())
            return (
                nn.functional.cross_entropy(logits, y[places])
                + (p * (p.log() - q)).sum() / len(p)
                + mu / 2 * pull
            )

        plain_epoch(proxy, client, steps[1], f"proxy {epoch}", forth)
    assert max(ranked) > 0
    assert_near(client.state["private"], dict(private.state_dict()), 5e-5)
    assert_near(found, dict(proxy.state_dict()), 5e-5)


def test_ranking_reaches_the_private_model_and_not_the_proxy() -> None:
    workbench, method = bench(FedType(), on=DATA, **HALF, **UNLIKE)
    private, proxy = (
        at(workbench, "ada").load(None, model="private"),
        at(workbench, "ada").load(None, model="proxy"),
    )
    x, y = (part[:7] for part in (at(workbench, "ada").train.x, at(workbench, "ada").train.y))
    narrow = Conformal(threshold=0.0)
    batch = Batch(x, y, torch.arange(7), workbench.supervise)
    for rank_loss in ("intended", "released"):
        outputs: Outputs = private(x)
        outputs.logits.retain_grad()
        value = FedType(rank_loss=rank_loss).ranking(proxy, Conformal(), narrow)(outputs, batch)
        if rank_loss == "intended":
            value.backward()
            assert outputs.logits.grad is not None and outputs.logits.grad.abs().sum() > 0
            assert all(parameter.grad is None for parameter in proxy.net.parameters())
        else:
            # in-set minus out-of-set logits of the proxy: a constant
            assert not value.requires_grad and float(value) > 0
    assert method.rank_loss == "intended"


def test_few_calibration_samples_teach_nothing_back(tmp_path: Path) -> None:
    """With fewer than ten, sets hold all classes, so that there is nothing to rank."""
    small = {"data": {"split": (0.8, 0.1, 0.1), "partition": "natural"}, **UNLIKE}
    alone = play({"name": "standalone", "model": "private"}, tmp_path / "alone", on=DATA, **small)
    joint = play(FedType(alpha=0.7), tmp_path / "joint", on=DATA, **small)
    for client, tree in own(joint, "private").items():
        assert_near(tree, own(alone, "local")[client], 1e-6)
    trained = play(FedType(alpha=0.7, calibration="train"), tmp_path / "trained", on=DATA, **small)
    assert any(
        (tree - own(alone, "local")[client]).norm() > 1e-4
        for client, tree in own(trained, "private").items()
    )


def test_proxies_are_averaged_all_alike_and_nothing_else_leaves(tmp_path: Path) -> None:
    run = play(FedType(), tmp_path / "run", on=DATA, **HALF, **UNLIKE)
    assert {row["share"] for row in run.weights()} == {1 / 3}
    proxy = build({"name": "mlp", "hidden": [4]}, Task("classification", (1, 8, 8), 3))
    numbers = sum(parameter.numel() for parameter in proxy.parameters())
    assert all(row["bytes_up"] == row["bytes_down"] == 3 * 4 * numbers for row in run.rounds())
    assert (set(run.models()), run.main_model) == ({"proxy", "personal"}, "personal")
    assert torch.equal(run.model("proxy").head.weight, shared(run)["head.weight"])


def test_the_private_optimiser_is_kept_where_training_says_so(tmp_path: Path) -> None:
    changes = {
        **HALF,
        "training": {"lr": 0.05, "batch": 5, "momentum": 0.9, "keep_optimiser": True},
    }
    alone = play("standalone", tmp_path / "alone", "cnn", on=DATA, **changes)
    released = play(FedType(rank_loss="released"), tmp_path / "released", "cnn", on=DATA, **changes)
    assert set(own(released, "private")) == set(own(alone, "local")) == set(alone.clients)
    for client, tree in own(released, "private").items():
        assert_equal(tree, own(alone, "local")[client])


def test_a_number_of_steps_is_that_of_each_stage(tmp_path: Path) -> None:
    changes = {**HALF, "training": {"lr": 0.05, "batch": 5, "steps": 3}}
    alone = play("standalone", tmp_path / "alone", on=DATA, **changes)
    released = play(FedType(rank_loss="released"), tmp_path / "released", on=DATA, **changes)
    assert [row["steps"] for row in released.rounds()] == [3 * 2 * 3] * 3
    assert set(own(released, "private")) == set(own(alone, "local")) == set(alone.clients)
    for client, tree in own(released, "private").items():
        assert_equal(tree, own(alone, "local")[client])


def test_the_sets_that_are_calibrated() -> None:
    workbench, _ = bench(FedType(), on=DATA, **HALF)
    client = at(workbench, "ada")
    model, seen = client.load(None, model="proxy"), client.validation
    logits = net_of(workbench).eval()(seen.x).detach()
    for method, rule in (
        (FedType(alpha=0.2), "converged"),
        (FedType(alpha=0.2, rank_loss="released"), "released"),
    ):
        found, expected = (
            method.calibrated_sets(client, model, 0.5),
            calibrated(logits, seen.y, 0.2, 2, 0.5, rule),
        )
        assert found.k_reg == 2  # of three classes
        assert (found.temperature, found.threshold) == (
            pytest.approx(expected.temperature),
            pytest.approx(expected.threshold),
        )


def test_what_it_costs(tmp_path: Path) -> None:
    rounds, epochs = 2, 3
    with counted() as passes:
        run = play(
            FedType(),
            tmp_path / "run",
            on=DATA,
            rounds=rounds,
            **HALF,
            training={"lr": 0.05, "batch": 5, "epochs": epochs},
        )
    sizes = run.store.meta("sizes")
    train, validation = sum(sizes["train"]), sum(sizes["validation"])
    assert passes == {
        ("client", "gradient"): rounds * epochs * 2 * train,
        ("client", "forward"): rounds * (epochs * 2 * train + 2 * validation),
    }


def test_bad_input_is_refused_before_round_1(tmp_path: Path) -> None:
    numbers = {name: (x, y.astype(np.float32)) for name, (x, y) in sites().items()}
    wanted = eq.Experiment(
        method="fedtype",
        model="mlp",
        data={"partition": "natural"},
        dataset=eq.from_sites(numbers, kind="regression"),
    )
    assert "FedType works on classes" in refused(wanted, tmp_path / "run")
    for name, value in (
        ("alpha", 0),
        ("alpha", 1),
        ("k_reg", 0),
        ("penalty_proxy", -1),
        ("mu", -1),
        ("rank_loss", "x"),
        ("calibration", "test"),
    ):
        assert f"method.{name}" in refused(
            lambda name=name, value=value: eq.Experiment(method={"name": "fedtype", name: value}),
            tmp_path / "run",
        )

"""FedSAC: importance, submodels and their mean against plain loops; uniform FedAvg without
differences; what is dropped stays dropped.
"""

from __future__ import annotations

import itertools
import math
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
from equipoise.methods.fedsac import FedSAC
from equipoise.models.network import Network
from equipoise.models.units import unit_counts, with_units
from equipoise.records import Down, PerClient, State, Up
from equipoise.server import Server
from equipoise.storage.checkpoint import load_server
from equipoise.tree import Tree
from tests.helpers.counting import counted
from tests.helpers.digits import refused, updates
from tests.helpers.images import NETWORKS, at, bench, net_of, plain_fit, play, shared
from tests.helpers.plain import assert_equal, assert_near
from tests.helpers.problems import server_state
from tests.helpers.runs import sites

QUICK = {"alone": 2}
BY_HAND = {  # entries with a row per hidden unit, written out for the networks of these tests
    "mlp": [(6, ["features.1.weight", "features.1.bias"])],
    "dropout": [(10, ["features.1.weight", "features.1.bias"])],
    "cnn": [
        (
            4,
            [
                "features.0.weight",
                "features.0.bias",
                *(f"features.1.{key}" for key in ("weight", "bias", "running_mean", "running_var")),
            ],
        ),
        (
            8,
            [
                "features.4.weight",
                "features.4.bias",
                *(f"features.5.{key}" for key in ("weight", "bias", "running_mean", "running_var")),
            ],
        ),
        (6, ["features.9.weight", "features.9.bias"]),
    ],
}


def unequal() -> Any:
    """Sites of which one has wrong labels and one a single class: alone they do worse than the
    others.
    """
    data = sites(labels={"di": [1]})
    data["cy"] = (data["cy"][0], 2 - data["cy"][1])
    return data


def bought(
    importance: np.ndarray, budget: float, counts: list[int], descending: bool = False
) -> list[bool]:
    """The longest run of units in order whose importance fits the budget, and the first of each
    layer.
    """
    order = sorted(
        range(len(importance)),
        key=lambda unit: (-importance[unit] if descending else importance[unit], unit),
    )
    kept, spent = set(), 0.0
    for unit in order:
        spent += importance[unit]
        if spent > budget + 1e-7:
            break
        kept.add(unit)
    start = 0
    for count in counts:
        kept.add(min(range(start, start + count), key=order.index))
        start += count
    return [unit in kept for unit in range(len(importance))]


def rows_of(network: str, kept: list[bool]) -> dict[str, np.ndarray]:
    found, start = {}, 0
    for count, names in BY_HAND[network]:
        found |= {name: np.array(kept[start : start + count]) for name in names}
        start += count
    return found


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    "changes",
    [{}, {"training": {"lr": 0.05, "batch": 5, "epochs": 2, "momentum": 0.9, "clip": 0.5}}],
)
def test_without_differences_it_is_uniform_fedavg(
    tmp_path: Path, network: str, changes: dict[str, Any]
) -> None:
    plain = play(
        {"name": "fedavg", "average": "uniform"},
        tmp_path / "a",
        network,
        participation={"number": 3},
        **changes,
    )
    own = play(
        FedSAC(beta=0, **QUICK), tmp_path / "b", network, participation={"number": 3}, **changes
    )
    for round in (1, 2, 3):
        assert_equal(shared(plain, round), shared(own, round))


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("order", ["ascending", "descending"])
# The plain reference is kept in one piece, so it exceeds the complexity limit.
def test_a_run_is_that_of_a_plain_loop(tmp_path: Path, network: str, order: Any) -> None:  # noqa: C901
    """Reputations, importance, what each client is sent and trains, and the mean, over five rounds
    of three clients.
    """
    method = FedSAC(beta=4.0, order=order, every=2, alone=8)
    training = {"lr": 0.1, "batch": 5, "momentum": 0.5}
    with updates(FedSAC) as seen:
        run = play(
            method,
            tmp_path / "run",
            network,
            on=unequal(),
            rounds=5,
            participation={"number": 3},
            training=training,
        )
    workbench, _ = bench(method, network, on=unequal())
    federation = workbench.federation
    assert federation is not None
    index = torch.from_numpy(np.array(federation.server_validation))
    x, y = federation.x[index], federation.y[index]

    contributions = {}
    for client in run.clients:
        net = net_of(workbench)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
        plain_fit(net, at(workbench, client).train, optimiser, client, 0, epochs=8, purpose="alone")
        with torch.no_grad():
            contributions[client] = float((net.eval()(x).argmax(1) == y).double().mean())
    top = max(math.exp(4 * c) for c in contributions.values())
    reputation = {client: 100 * math.exp(4 * c) / top for client, c in contributions.items()}
    assert len(set(reputation.values())) > 1 and max(reputation.values()) == 100

    def loss(tree: Any) -> float:
        net = net_of(workbench, tree).double().eval()
        with torch.no_grad():
            return float(nn.functional.cross_entropy(net(x.double()), y))

    counts = [count for count, _ in BY_HAND[network]]
    importance = np.zeros(0)
    partial = 0
    for round, one in enumerate(seen, 1):
        old = one.state.model
        for client in one.ups.ids:
            assert one.state.reputation[client] == pytest.approx(reputation[client], rel=1e-9)
        if round in (1, 3, 5):
            gains = []
            for unit in range(sum(counts)):
                rows = rows_of(network, [other != unit for other in range(sum(counts))])
                zeroed = {name: entry.clone() for name, entry in old.items()}
                for name, keep in rows.items():
                    zeroed[name][torch.from_numpy(~keep)] = 0
                gains.append(max(0.0, loss(Tree(zeroed, "model", old.untrained)) - loss(old)))
            importance = 100 * np.array(gains) / sum(gains)
        np.testing.assert_allclose(one.state.importance.numpy(), importance, rtol=1e-3, atol=1e-3)
        exact = one.state.importance.numpy()
        assert exact.sum() == pytest.approx(100, abs=1e-9)
        kept = {
            client: bought(exact, reputation[client], counts, order == "descending")
            for client in one.ups.ids
        }
        partial += sum(not all(one) for one in kept.values())
        for client, up in zip(one.ups.ids, one.ups, strict=True):
            rows = rows_of(network, kept[client])
            masks = {name: torch.from_numpy(keep) for name, keep in rows.items()}
            start = {name: entry.clone() for name, entry in old.items()}
            for name, keep in masks.items():
                start[name][~keep] = 0
            net = net_of(workbench, Tree(start, "model", old.untrained))
            parameters = dict(net.named_parameters())

            def masked(parameters: Any = parameters, masks: Any = masks) -> None:
                for name, keep in masks.items():
                    if name in parameters:
                        parameters[name].grad[~keep] = 0

            optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
            plain_fit(net, at(workbench, client).train, optimiser, client, round, change=masked)
            assert_near(up.model, dict(net.state_dict()), 1e-4)
            for name, keep in masks.items():
                assert not up.model[name][~keep].any(), name
        everyone = {client: rows_of(network, kept[client]) for client in one.ups.ids}
        for name in old:
            values = {
                client: up.model[name].double()
                for client, up in zip(one.ups.ids, one.ups, strict=True)
            }
            if not old[name].is_floating_point():
                assert torch.equal(one.new.model[name], max(up.model[name] for up in one.ups))
                continue
            expected = torch.stack(list(values.values())).mean(0)
            for row in range(len(old[name])) if name in next(iter(everyone.values())) else ():
                holders = [client for client in values if everyone[client][name][row]]
                expected[row] = (
                    torch.stack([values[c][row] for c in holders]).mean(0)
                    if holders
                    else old[name][row].double()
                )
                if len(holders) == 1:
                    assert torch.equal(one.new.model[name][row], values[holders[0]][row].float()), (
                        "copied from its only holder"
                    )
            torch.testing.assert_close(one.new.model[name].double(), expected, rtol=1e-6, atol=1e-7)
    assert partial > 2, "some clients had submodels"
    assert isinstance(load_server(run.store).reputation, PerClient)


def prepared(
    method: FedSAC, network: str, importance: list[float] | None = None, **reputation: float
) -> tuple[Server, State]:
    workbench, _ = bench(method, network)
    server = Server(workbench, list(reputation), dict.fromkeys(reputation, 5), 3, 1)
    state = method.start(server)
    given = (
        state.importance if importance is None else torch.tensor(importance, dtype=torch.float64)
    )
    return server, state.with_(importance=given, reputation=PerClient().put(reputation))


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_submodels_are_nested_and_the_best_client_has_the_whole_model(
    network: str, order: Any
) -> None:
    method = FedSAC(order=order)
    draw = np.random.default_rng(0)
    for _ in range(20):
        server, state = prepared(method, network, a=0.0)
        raw = draw.exponential(1, len(state.importance)) * (
            draw.random(len(state.importance)) < 0.7
        )
        state = state.with_(importance=torch.from_numpy(100 * raw / raw.sum()))
        budgets = {
            str(place): value
            for place, value in enumerate([0.0, *sorted(draw.uniform(0, 100, 6)), 100.0])
        }
        state = state.with_(reputation=PerClient().put(budgets))
        kept = [method.bought_units(server, state, client) for client in budgets]
        assert all(bool((small <= large).all()) for small, large in itertools.pairwise(kept))
        assert kept[-1].all(), "rounding of the sum takes nothing from the best"
        assert_equal(method.deliver(server, state, "7").model, state.model)
        first = torch.split(kept[0], unit_counts(state.units, state.model))
        assert all(int(layer.sum()) >= 1 for layer in first)


def test_the_least_important_units_are_bought_first_and_a_layer_keeps_the_first_in_the_order() -> (
    None
):
    importance = [40.0, 5.0, 30.0, 10.0, 15.0, 0.0]
    for order, budget, expected in (
        ("ascending", 30.0, [False, True, False, True, True, True]),
        ("ascending", 29.9, [False, True, False, True, False, True]),
        ("descending", 70.0, [True, False, True, False, False, False]),
        ("descending", 0.0, [True, False, False, False, False, False]),
        ("ascending", 0.0, [False, False, False, False, False, True]),
    ):
        method = FedSAC(order=order)  # type: ignore[arg-type]
        server, state = prepared(method, "mlp", importance, a=budget)
        assert method.bought_units(server, state, "a").tolist() == expected
    counts = [2, 1, 2]
    state = State(
        importance=torch.tensor([1.0, 2, 3, 50, 44]),
        reputation=PerClient().put({"a": 1.0}),
        units={},
        model=state.model,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("equipoise.methods.fedsac.unit_counts", lambda units, tree: counts)
        assert FedSAC().bought_units(server, state, "a").tolist() == [
            True,
            False,
            True,
            False,
            True,
        ]


def test_a_unit_that_nobody_has_stays_and_one_of_one_holder_is_copied() -> None:
    method = FedSAC()
    server, state = prepared(method, "cnn", a=100.0, b=20.0, c=20.0)
    draw = torch.Generator().manual_seed(0)
    importance = torch.rand(len(state.importance), generator=draw, dtype=torch.float64)
    state = state.with_(importance=100 * importance / importance.sum())
    for asked in (["a", "b", "c"], ["b", "c"]):
        uploads, kept = {}, {client: method.bought_units(server, state, client) for client in asked}
        for client in asked:
            moved = Tree(
                {
                    name: torch.randn(entry.shape, generator=draw)
                    if entry.is_floating_point()
                    else entry + 5
                    for name, entry in state.model.items()
                },
                "model",
                state.model.untrained,
            )
            uploads[client] = with_units(moved, state.units, kept[client])
        ups = Ups([(client, Up(model=tree)) for client, tree in uploads.items()])
        new = method.update(server, state, ups, method.weights(server, state, ups)).model
        only = rows_of("cnn", (~kept["b"]).tolist())  # b and c have the same units
        for name, lacking in only.items():
            assert torch.equal(
                new[name][lacking], (uploads["a"] if "a" in asked else state.model)[name][lacking]
            ), name
        whole = torch.stack([tree["head.weight"].double() for tree in uploads.values()]).mean(0)
        torch.testing.assert_close(new["head.weight"].double(), whole, rtol=1e-6, atol=1e-7)
        assert int(new["features.1.num_batches_tracked"]) == 5


def smooth() -> Network:
    """Without ReLU, whose gradient at 0 is 0: here units that are dropped would come back if
    nothing held them.
    """
    convolution = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten()]
    return Network(nn.Sequential(*convolution, nn.Linear(144, 6), nn.LeakyReLU()), nn.Linear(6, 3))


@pytest.mark.parametrize(
    "model",
    # With a width of 2, torch 2.13 corrupts memory in a convolution on some CPUs without AVX-512.
    [smooth, NETWORKS["cnn"], {"name": "resnet10", "width": 8}],
    ids=["smooth", "cnn", "resnet10"],
)
@pytest.mark.parametrize(
    "training",
    [
        {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
        {"optimiser": "adam", "weight_decay": 0.1},
        {"optimiser": "adamw", "weight_decay": 0.1, "clip": 0.1},
    ],
)
def test_what_is_dropped_stays_zero_whatever_the_optimiser(
    model: Any, training: dict[str, Any]
) -> None:
    method = FedSAC()
    workbench, _ = bench(
        method, models={"model": model}, training={"lr": 0.1, "batch": 4, "epochs": 2, **training}
    )
    server = Server(workbench, ["ada"], {"ada": 5}, 3, 1)
    state = method.start(server).with_(reputation=PerClient().put({"ada": 40.0}))
    # Weights and statistics as after some training: nothing is 0 or 1 by chance.
    moved = {
        name: entry + 0.3 if entry.is_floating_point() else entry
        for name, entry in state.model.items()
    }
    state = state.with_(model=Tree(moved, "model", state.model.untrained))
    counts, kept = unit_counts(state.units, state.model), method.bought_units(server, state, "ada")
    assert 0 < kept.sum() < len(kept)
    up = method.client(at(workbench, "ada"), method.deliver(server, state, "ada"))
    for names, rows in zip(state.units.values(), torch.split(kept, counts), strict=True):
        for name in names:
            assert not up.model[name][~rows].any(), name
            assert (up.model[name][rows] != state.model[name][rows]).any(), name
    assert not torch.equal(up.model["head.weight"], state.model["head.weight"])


def test_importance_is_uniform_if_no_unit_matters_and_harmful_units_are_free(
    tmp_path: Path,
) -> None:
    with updates(FedSAC) as seen:
        dead = Network(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU()), nn.Linear(4, 3))
        nn.init.constant_(dead.features[1].bias, -1e3)
        play(FedSAC(**QUICK), tmp_path / "run", models={"model": dead}, rounds=1)
    assert seen[0].state.importance.tolist() == [25.0] * 4
    method = FedSAC()
    server, state = prepared(method, "mlp", a=100.0)
    given = iter([1.0, 0.5, 2.0, 1.0, float("nan"), 4.0, float("inf")])
    server.loss = lambda model: next(given)  # type: ignore[method-assign]
    assert method.importance(server, state).tolist() == [0.0, 25.0, 0.0, 0.0, 75.0, 0.0]


def test_what_it_costs(tmp_path: Path) -> None:
    with counted() as passes:
        run = play(
            FedSAC(beta=0, every=2),
            tmp_path / "run",
            rounds=3,
            training={"lr": 0.05, "batch": 5, "epochs": 2},
        )
    sizes = {part: sum(count) for part, count in run.store.meta("sizes").items()}
    units = 6
    assert passes == {
        ("client", "gradient"): 2
        * 3
        * 2
        * sizes["train"],  # alone as much as in all rounds, and then those
        ("server", "forward"): (4 + 2 * (units + 1))
        * sizes["validation"],  # contributions once, importance in rounds 1 and 3
    }


def test_training_alone_lasts_as_long_as_the_federation() -> None:
    for training, rounds, alone, steps in (
        ({"epochs": 2}, 3, None, 6 * 4),
        ({"steps": 5}, 3, None, 15),
        ({"steps": 5}, 3, 1, 4),
    ):
        workbench, _ = bench("fedsac", training={"lr": 0.1, "batch": 5, **training})
        client = at(workbench, "ada", 0)
        assert client.rounds == rounds
        FedSAC(alone=alone).train_alone(client, Down())
        assert client.steps == steps, training  # 16 samples are four batches


def test_contributions_are_accuracies_of_models_trained_alone_sent_once() -> None:
    workbench, _ = bench("fedsac")
    up = FedSAC(alone=1).train_alone(at(workbench, "ada", 0), Down())
    assert set(up) == {"model"}
    method = FedSAC(beta=2.0)
    server, state = prepared(method, "mlp", a=0.0, b=0.0, c=0.0)
    accuracies = iter([0.5, 0.6, 0.1])
    server.accuracy = lambda model: next(accuracies)  # type: ignore[method-assign]

    class Everyone:
        def run(self, step: Any) -> Ups:
            assert step == method.train_alone
            return Ups([(client, Up(model=server.initial())) for client in "abc"])

    found = method.setup(server, state, Everyone()).reputation  # type: ignore[arg-type]
    np.testing.assert_allclose(
        [found[c] for c in "abc"], [100 * math.exp(-0.2), 100, 100 * math.exp(-1.0)]
    )


def test_each_client_serves_its_submodel(tmp_path: Path) -> None:
    run = play(FedSAC(alone=16), tmp_path / "run", "cnn", on=unequal())
    state = load_server(run.store)
    assert (run.models(), run.main_model) == (["submodel"], "submodel")
    sizes = set()
    for client in run.clients:
        kept = bought(state.importance.numpy(), state.reputation[client], [4, 8, 6])
        served = run.model("submodel", client=client).state_dict()
        for name, rows in rows_of("cnn", kept).items():
            assert not served[name][~rows].any() and torch.equal(
                served[name][rows], state.model[name][rows]
            )
        sizes.add(sum(kept))
    assert max(sizes) == 18 > min(sizes)


def test_a_middle_round_alone(tmp_path: Path) -> None:
    with counted() as passes:
        run = play(FedSAC(mid_round=2, alone=16), tmp_path / "run", "cnn", on=unequal())
    plain = play({"name": "fedavg", "average": "uniform"}, tmp_path / "plain", "cnn", on=unequal())
    assert_equal(shared(run, 1), shared(plain, 1))
    assert not torch.equal(shared(run, 2)["head.weight"], shared(plain, 2)["head.weight"])
    assert passes["server", "forward"] == (4 + 19) * sum(run.store.meta("sizes")["validation"])
    assert_equal(run.model("submodel", client="di").state_dict(), server_state(run).model)


def test_what_it_cannot_do_is_refused_before_round_1(tmp_path: Path) -> None:
    for wrong in ({"beta": -1}, {"order": "random"}, {"every": 0}, {"alone": 0}, {"mid_round": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            eq.Experiment(method={"name": "fedsac", **wrong})
    digits = {"name": "digits", "clients": 3}
    assert "FedSAC measures models on validation data at the server, and there are none" in refused(
        lambda: eq.Experiment(data={**digits, "split": (0.8, 0.0, 0.2)}, method="fedsac"),
        tmp_path / "none",
    )
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert "the model has no linear or convolutional layer" in refused(
        lambda: eq.Experiment(data=digits, method="fedsac", model=flat), tmp_path / "flat"
    )
    with pytest.raises(IncompatibleComposition, match="derived for its own weights"):
        compose(FedSAC(), weights=FedAvg())

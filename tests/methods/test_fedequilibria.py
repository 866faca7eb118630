"""FedEquilibria: a plain reference of its weights, its ablations, invariances, edge cases and large
cohorts.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.client import Client
from equipoise.composition import compose
from equipoise.data import federate
from equipoise.data.federation import Parts
from equipoise.experiment.build import prepare
from equipoise.method import Ups, Weights
from equipoise.methods.fedequilibria import FedEquilibria
from equipoise.records import State, Up, read, write
from equipoise.tree import FileTensors, Tree

LINEAR = {"name": "mlp", "hidden": []}
SERVER: Any = None  # the weight rule asks nothing of the server


def experiment(method: Any, **changes: Any) -> eq.Experiment:
    settings = {
        "data": {"name": "digits", "partition": "dirichlet:0.5", "clients": 4},
        "model": LINEAR,
        "rounds": 2,
        "workers": 0,
        "seed": 5,
    }
    return eq.Experiment(**{**settings, "evaluation": {"every": 0}, **changes, "method": method})


def client_of(wanted: eq.Experiment, id: str = "0", empty: bool = False) -> Client:
    federation = federate(wanted.data, wanted.seed, wanted.dataset)
    if empty:
        parts = [
            np.empty(0, np.int64) if name == id else part
            for name, part in zip(federation.ids, federation.train, strict=True)
        ]
        federation = replace(federation, train=Parts.of(parts))
    return Client(
        prepare(wanted, federation.task, federation.ids, federation)[0], id, 1, wanted.rounds, {}
    )


def same(first: Tree, second: Tree) -> bool:
    return set(first) == set(second) and all(
        torch.equal(first[name], second[name]) for name in first
    )


def vectors(*rows: list[float], **more: list[float]) -> Ups:
    """Replies with these Fisher vectors, l2 lengths and equal drift; `more` overrides."""
    given = {
        "length": [float(np.linalg.norm(row)) for row in rows],
        "drift": [1.0] * len(rows),
        **more,
    }
    return Ups(
        [
            (
                str(k),
                Up(
                    fisher=Tree({"w": torch.tensor(row)}),
                    **{key: value[k] for key, value in given.items()},
                ),
            )
            for k, row in enumerate(rows)
        ]
    )


def weights(method: FedEquilibria, ups: Ups) -> np.ndarray:
    return method.weights(SERVER, State(), ups).shares


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[State, Ups, Weights, State]]:
    """Every update of a run: state, replies, weights, new state."""
    found: list[tuple[State, Ups, Weights, State]] = []
    original = FedEquilibria.update

    def update(self: FedEquilibria, server: Any, state: State, ups: Ups, given: Weights) -> State:
        found.append((state, ups, given, original(self, server, state, ups, given)))
        return found[-1][3]

    monkeypatch.setattr(FedEquilibria, "update", update)
    return found


def plain_fisher(client: Client, model: Tree) -> list[float]:
    """Softmax regression: squared (probability - label) * input of each sample, averaged; weights
    first, then biases.
    """
    w, b = model["head.weight"].tolist(), model["head.bias"].tolist()
    total_w, total_b = np.zeros((len(b), len(w[0]))), np.zeros(len(b))
    for x, y in zip(client.train.x.flatten(1).tolist(), client.train.y.tolist(), strict=True):
        logits = [
            sum(a * c for a, c in zip(row, x, strict=True)) + bias
            for row, bias in zip(w, b, strict=True)
        ]
        amounts = [np.exp(one - max(logits)) for one in logits]
        for label, amount in enumerate(amounts):
            slope = amount / sum(amounts) - (label == y)
            total_b[label] += slope**2
            total_w[label] += (slope * np.array(x)) ** 2
    return [*(total_w / len(client.train)).ravel(), *(total_b / len(client.train))]


def plain_min_norm(rows: list[np.ndarray]) -> np.ndarray:
    """The best of all supports: on each, the stationary point of the norm among weights that sum to
    1.
    """
    best, shortest = np.zeros(len(rows)), np.inf
    for support in itertools.chain.from_iterable(
        itertools.combinations(range(len(rows)), size) for size in range(1, len(rows) + 1)
    ):
        gram = np.array([[rows[i] @ rows[j] for j in support] for i in support])
        bordered = np.block(
            [[gram, np.ones((len(support), 1))], [np.ones((1, len(support))), np.zeros((1, 1))]]
        )
        point = np.linalg.solve(bordered, [0.0] * len(support) + [1.0])[:-1]
        length = float(
            np.linalg.norm(sum(p * rows[i] for p, i in zip(point, support, strict=True)))
        )
        if (point >= 0).all() and length < shortest:
            best, shortest = np.zeros(len(rows)), length
            best[list(support)] = point
    return best


@pytest.mark.parametrize(
    "method",
    [
        FedEquilibria(),
        FedEquilibria(t=0.3, fim_norm="none"),
        FedEquilibria(t=0.5, fim_norm="l1"),
        FedEquilibria(ablation="moo_g"),
        FedEquilibria(ablation="moo_g", fim_norm="none"),
        FedEquilibria(ablation="moo_f"),
        FedEquilibria(ablation="dist"),
    ],
    ids=str,
)
def test_rounds_match_a_plain_reference(
    tmp_path: Path, seen: list[Any], method: FedEquilibria
) -> None:
    wanted = experiment(method)
    eq.run(wanted, out=tmp_path / "run")
    assert len(seen) == 2
    for state, ups, given, new in seen:
        drifts = [
            np.array(
                [
                    a - b
                    for a, b in zip(
                        state.model.flat().tolist(), up.model.flat().tolist(), strict=True
                    )
                ]
            )
            for up in ups
        ]
        if method.ablation == "moo_g":
            rows = drifts
        else:
            rows = [
                np.array(plain_fisher(client_of(wanted, id), up.model))
                for id, up in zip(ups.ids, ups, strict=True)
            ]
        lengths = {
            "l2": [np.sqrt((r**2).sum()) for r in rows],
            "l1": [np.abs(r).sum() for r in rows],
            "none": [1.0] * len(rows),
        }[method.fim_norm]
        conflict = plain_min_norm([row / length for row, length in zip(rows, lengths, strict=True)])
        distances = np.array([np.sqrt((d**2).sum()) for d in drifts])
        t = {"none": method.t, "dist": 0.0}.get(method.ablation, 1.0)
        expected = t * conflict + (1 - t) * distances / distances.sum()
        np.testing.assert_allclose(given.shares / given.shares.sum(), expected, atol=1e-4)
        stepped = state.model.flat().numpy() - sum(
            w * d for w, d in zip(given.shares, drifts, strict=True)
        )  # Eq. 4
        np.testing.assert_allclose(new.model.flat().numpy(), stepped, atol=1e-6)


def test_the_ends_of_t_are_the_ablations(tmp_path: Path, seen: list[Any]) -> None:
    variants = [
        FedEquilibria(t=1.0),
        FedEquilibria(ablation="moo_f"),
        FedEquilibria(t=0.0),
        FedEquilibria(ablation="dist"),
        FedEquilibria(),
    ]
    for place, method in enumerate(variants):
        eq.run(experiment(method), out=tmp_path / str(place))
    last = [new.model for _, _, _, new in seen[1::2]]
    assert same(last[0], last[1]) and same(last[2], last[3])
    assert not same(last[0], last[2]) and not same(last[0], last[4]) and not same(last[2], last[4])


@pytest.mark.parametrize(
    ("method", "sent"),
    [
        (FedEquilibria(), {"fisher"}),
        (FedEquilibria(t=0.0), set()),
        (FedEquilibria(ablation="moo_g"), set()),
    ],
)
def test_a_fisher_profile_is_sent_only_where_it_is_needed(
    tmp_path: Path, seen: list[Any], method: FedEquilibria, sent: set[str]
) -> None:
    eq.run(experiment(method, rounds=1), out=tmp_path / "run")
    assert {name for name, value in seen[0][1][0].items() if isinstance(value, Tree)} == sent | {
        "model"
    }


def test_two_clients_have_the_closed_form() -> None:
    a, b = np.array([1.0, 2.0, 0.5]), np.array([2.0, 1.0, 1.0])
    expected = np.clip((b - a) @ b / ((a - b) @ (a - b)), 0, 1)
    found = weights(
        FedEquilibria(t=1.0, fim_norm="none"), vectors(a.tolist(), b.tolist(), length=[1.0, 1.0])
    )
    np.testing.assert_allclose(found, [expected, 1 - expected], atol=1e-9)


def test_disjoint_profiles_weigh_by_inverse_squared_length() -> None:
    found = weights(
        FedEquilibria(t=1.0, fim_norm="none"), vectors([1.0, 0.0], [0.0, 3.0], length=[1.0, 1.0])
    )
    np.testing.assert_allclose(found, [0.9, 0.1], atol=1e-9)


def test_the_literal_rule_lets_a_short_profile_take_all_and_scaling_prevents_it() -> None:
    rows = [1.0, 1.0, 0.0], [9.0, 9.0, 1.0], [9.0, 8.0, 0.0]
    np.testing.assert_allclose(
        weights(FedEquilibria(t=1.0, fim_norm="none"), vectors(*map(list, rows), length=[1.0] * 3)),
        [1, 0, 0],
        atol=1e-9,
    )
    assert weights(FedEquilibria(t=1.0), vectors(*map(list, rows))).max() < 0.9


def test_the_scale_of_profiles_does_not_matter() -> None:
    rows = np.random.default_rng(0).lognormal(0, 1, (5, 30)).astype(np.float32)
    one = rows * np.array([[1, 1, 1000, 1, 1]], np.float32).T
    literal = {"length": [1.0] * 5}
    for method, first, second in [
        (FedEquilibria(), vectors(*rows.tolist()), vectors(*(1e-6 * rows).tolist())),
        (FedEquilibria(), vectors(*rows.tolist()), vectors(*one.tolist())),
        (
            FedEquilibria(fim_norm="none"),
            vectors(*rows.tolist(), **literal),
            vectors(*(1e-6 * rows).tolist(), **literal),
        ),
    ]:
        np.testing.assert_allclose(weights(method, first), weights(method, second), atol=1e-6)
    grown = weights(FedEquilibria(fim_norm="none"), vectors(*one.tolist(), **literal))
    assert (
        grown[2]
        <= weights(FedEquilibria(fim_norm="none"), vectors(*rows.tolist(), **literal))[2] + 1e-9
    )


def test_weights_are_shares() -> None:
    rows = np.random.default_rng(1).lognormal(0, 2, (7, 20)).astype(np.float32).tolist()
    found = weights(FedEquilibria(t=0.4), vectors(*rows, drift=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    assert (found >= 0).all() and abs(found.sum() - 1) < 1e-12


def test_one_client_has_all_weight() -> None:
    assert weights(FedEquilibria(), vectors([1.0, 2.0])).tolist() == [1.0]


def test_a_profile_of_zeros_counts_by_its_drift_alone() -> None:
    found = weights(
        FedEquilibria(t=0.5), vectors([1.0, 0.0], [0.0, 0.0], [0.0, 1.0], drift=[1.0, 2.0, 1.0])
    )
    np.testing.assert_allclose(found, [0.375, 0.25, 0.375], atol=1e-9)


def test_without_any_profile_or_drift_weights_are_equal() -> None:
    np.testing.assert_allclose(
        weights(FedEquilibria(), vectors([0.0], [0.0], drift=[0.0, 0.0])), [0.5, 0.5]
    )


def test_a_client_without_data_has_no_profile() -> None:
    client = client_of(experiment("fedequilibria"), empty=True)
    tree = client.initial("model")
    up = FedEquilibria(fim_norm="none").after(client, tree, tree)
    assert (
        up.length == 0 and up.drift == 0 and up.fisher.norm() == 0 and set(up.fisher) == set(tree)
    )


def test_a_missing_client_has_no_weight(tmp_path: Path, seen: list[Any]) -> None:
    run = eq.run(
        experiment(
            "fedequilibria", faults={"script": [{"round": 2, "client": "1", "kind": "drop"}]}
        ),
        out=tmp_path / "run",
    )
    assert [len(given.shares) for _, _, given, _ in seen] == [4, 3]
    assert {row["client"] for row in run.weights() if row["round"] == 2} == {"0", "2", "3"}


def test_buffers_take_the_same_weights_and_profiles_cover_batch_norm(
    tmp_path: Path, seen: list[Any]
) -> None:
    eq.run(
        experiment("fedequilibria", model={"name": "cnn", "width": 2, "hidden": 4}, rounds=1),
        out=tmp_path / "run",
    )
    _, ups, given, new = seen[0]
    buffer = next(name for name in new.model if name.endswith("running_var"))
    expected = sum(w * up.model[buffer].double() for w, up in zip(given.shares, ups, strict=True))
    torch.testing.assert_close(new.model[buffer].double(), expected, rtol=0, atol=1e-6)
    assert set(ups[0].fisher) == set(new.model.trained) and buffer not in ups[0].fisher
    assert all(float(ups[0].fisher[name].sum()) > 0 for name in ups[0].fisher)


def test_the_batch_approximation_is_exact_for_single_samples() -> None:
    one = client_of(experiment("fedequilibria", training={"batch": 1}))
    many = client_of(experiment("fedequilibria"))
    tree = one.initial("model")
    exact, single, batched = (
        method.after(client, tree, tree).fisher.flat()
        for method, client in (
            (FedEquilibria(), many),
            (FedEquilibria(fisher="batch"), one),
            (FedEquilibria(fisher="batch"), many),
        )
    )
    torch.testing.assert_close(exact, single, rtol=1e-5, atol=1e-9)
    assert batched.sum() < 0.5 * exact.sum()


def test_labels_of_the_model_are_drawn_from_a_stream() -> None:
    client = client_of(experiment("fedequilibria"))
    tree = client.initial("model")
    first, again = (
        FedEquilibria(labels="model").after(client, tree, tree).fisher for _ in range(2)
    )
    assert same(first, again) and not same(first, FedEquilibria().after(client, tree, tree).fisher)


def test_regression_has_a_profile_too(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 3)).astype(np.float32)
    data = eq.from_arrays(x, x @ np.array([1.0, -2.0, 0.5]) + 0.1, kind="regression")
    wanted = experiment(FedEquilibria(), data={"partition": "iid", "clients": 2}, dataset=data)
    client = client_of(wanted)
    tree = client.initial("model")
    found = FedEquilibria().after(client, tree, tree).fisher
    residuals = client.predict(client.load(tree)).squeeze(1) - client.train.y
    torch.testing.assert_close(found["head.bias"], (2 * residuals).square().mean().reshape(1))
    torch.testing.assert_close(
        found["head.weight"],
        (2 * residuals[:, None] * client.train.x).square().mean(0, keepdim=True),
    )
    assert eq.run(wanted, out=tmp_path / "run").final().keys() == {"0", "1"}


def test_as_the_weight_rule_of_another_method(tmp_path: Path) -> None:
    """FedProx with mu = 0 trains as FedEquilibria does: the composition has the same weights."""
    own = eq.run(experiment("fedequilibria"), out=tmp_path / "own")
    guest = eq.run(
        experiment(compose(eq.methods.make("fedprox", {"mu": 0.0}), weights=FedEquilibria())),
        out=tmp_path / "guest",
    )
    assert own.weights() == guest.weights()
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            own.model().state_dict().values(), guest.model().state_dict().values(), strict=True
        )
    )


def test_replies_through_files_change_no_bit(tmp_path: Path, seen: list[Any]) -> None:
    settings = {
        "data": {"name": "digits", "partition": "iid", "clients": 12},
        "model": {"name": "mlp", "hidden": [300]},
        "rounds": 1,
    }
    for folder, memory in (("held", 512), ("spooled", 1)):
        eq.run(experiment(FedEquilibria(), **settings, memory=memory), out=tmp_path / folder)
    assert isinstance(seen[1][1][0].fisher._tensors, FileTensors) and not isinstance(
        seen[0][1][0].fisher._tensors, FileTensors
    )
    assert same(seen[0][3].model, seen[1][3].model)


@pytest.mark.thorough
def test_a_thousand_clients_are_weighed_from_files(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    places: list[tuple[str, Up]] = []
    for k in range(1000):
        profile = Tree(
            {
                "a": torch.rand(20, 20, generator=draw).pow(8),
                "b": torch.rand(100, generator=draw).pow(8),
            }
        )
        write(Up(fisher=profile, length=profile.norm(), drift=1.0), tmp_path / f"{k}.safetensors")
        places.append((str(k), read(tmp_path / f"{k}.safetensors")))
    found = weights(FedEquilibria(t=1.0), Ups(places))
    rows = torch.stack([up.fisher.flat() / up.length for _, up in places]).numpy()
    # Karush-Kuhn-Tucker: nobody's product is below the squared norm, and equal where weight is
    products = rows @ (rows.T @ found)
    assert abs(found.sum() - 1) < 1e-9 and (found >= 0).all() and (found > 0).sum() > 10
    assert (
        products.min() >= found @ products - 1e-9
        and np.abs(products[found > 0] - found @ products).max() < 1e-9
    )

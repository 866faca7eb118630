"""CoRe-Fed: a plain reference of its rounds in every reading, its ablations and refusals."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.client import Client
from equipoise.composition import IncompatibleComposition, compose
from equipoise.data import federate
from equipoise.data.federation import Parts
from equipoise.experiment.build import prepare
from equipoise.losses import embedding_gap
from equipoise.method import Method, Ups, Weights
from equipoise.methods.corefed import CoReFed, gradient_rate
from equipoise.methods.fedequilibria import FedEquilibria
from equipoise.methods.fedprox import FedProx
from equipoise.records import Down, State
from equipoise.runs.run import Run
from equipoise.streams import torch_stream
from equipoise.tree import Tree
from tests.helpers.runs import config, stopped

ColumnReport = list[tuple[list[list[str]], State, Ups, Weights, State]]
SEED, LR, DECAY, BATCH = 2, 0.1, 0.8, 32
SMALL = {"name": "mlp", "hidden": [6]}


def experiment(method: Any, **changes: Any) -> eq.Experiment:
    data = {"name": "digits", "partition": "dirichlet:0.5", "clients": 6, "split": (0.3, 0.1, 0.6)}
    settings = {
        "data": data,
        "model": SMALL,
        "rounds": 5,
        "workers": 0,
        "seed": SEED,
        "participation": {"number": 2},
    }
    training = {"lr": LR, "lr_decay": DECAY, "batch": BATCH}
    return eq.Experiment(
        **{
            **settings,
            "evaluation": {"every": 0},
            "training": training,
            **changes,
            "method": method,
        }
    )


def client_of(wanted: eq.Experiment, id: str = "0", empty: bool = False, number: int = 1) -> Client:
    federation = federate(wanted.data, wanted.seed)
    if empty:
        parts = [
            np.empty(0, np.int64) if name == id else part
            for name, part in zip(federation.ids, federation.train, strict=True)
        ]
        federation = replace(federation, train=Parts.of(parts))
    return Client(
        prepare(wanted, federation.task, federation.ids, federation)[0],
        id,
        number,
        wanted.rounds,
        {},
    )


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> ColumnReport:
    """Every update of a run: clients of earlier rounds, state, replies, weights, new state."""
    found: ColumnReport = []
    original = CoReFed.update

    def update(self: CoReFed, server: Any, state: State, ups: Ups, weights: Weights) -> State:
        new = original(self, server, state, ups, weights)
        found.append(([list(ids) for ids in server.joined], state, ups, weights, new))
        return new

    monkeypatch.setattr(CoReFed, "update", update)
    return found


def same(first: Any, second: Any) -> bool:
    return set(first) == set(second) and all(
        torch.equal(first[name], second[name]) for name in first
    )


def trained(run: Run) -> dict[str, torch.Tensor]:
    return dict(run.model("global").state_dict())


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(
        sum(x * y for x, y in zip(a, b, strict=True))
        / max(np.sqrt((a**2).sum()) * np.sqrt((b**2).sum()), 1e-12)
    )


def plain_features(client: Client, model: Tree) -> list[np.ndarray]:
    """The hidden layer's activations, sample by sample."""
    w, b = model["features.1.weight"].double().numpy(), model["features.1.bias"].double().numpy()
    return [np.maximum(w @ x + b, 0) for x in client.train.x.flatten(1).double().numpy()]


def plain_embedding(client: Client, model: Tree) -> np.ndarray:
    rows = plain_features(client, model)
    return np.asarray(sum(row / max(np.sqrt((row**2).sum()), 1e-12) for row in rows) / len(rows))


def plain_frequency(joined: list[list[str]], id: str) -> tuple[float, int]:
    """How often of late, and the window: M distinct clients so far over the cohort's size, rounded
    down.
    """
    distinct = len({client for ids in joined for client in ids})
    window = max(1, math.floor(distinct / len(joined[-1])))
    return sum(id in ids for ids in joined[max(0, len(joined) - window) :]) / window, window


def plain_scores(
    method: CoReFed, joined: list[list[str]], embeddings: dict[str, np.ndarray]
) -> dict[str, float]:
    """Numerators of Eq. 11 for everyone in `embeddings`."""
    common = np.mean([embeddings[id] for id in joined[-1]], axis=0)
    scores = {}
    for id, z in embeddings.items():
        frequency, window = plain_frequency(joined, id)
        drawn = z + method.beta * (cosine(z, common) * common - z)
        scores[id] = (1 / max(frequency, 1 / window)) ** method.gamma / (
            1 + math.exp(-method.k * cosine(drawn, common))
        )
    return scores


@pytest.mark.parametrize(
    "method", [CoReFed(), CoReFed(gamma=2.0, k=0.5, beta=0.2), CoReFed(k=8.0, beta=1.0)], ids=str
)
def test_rounds_match_a_plain_reference(
    tmp_path: Path, seen: ColumnReport, method: CoReFed
) -> None:
    wanted = experiment(method)
    eq.run(wanted, out=tmp_path / "run")
    assert len(seen) == 5
    frequencies = set()
    for earlier, state, ups, weights, new in seen:
        joined = [*earlier, ups.ids]
        embeddings = {
            id: plain_embedding(client_of(wanted, id), up.model)
            for id, up in zip(ups.ids, ups, strict=True)
        }
        scores = plain_scores(method, joined, embeddings)
        frequencies |= {plain_frequency(joined, id)[0] for id in ups.ids}
        np.testing.assert_allclose(
            weights.shares, [scores[id] / sum(scores.values()) for id in ups.ids], atol=1e-5
        )
        steps = [(state.model.flat() - up.model.flat()).numpy() for up in ups]
        stepped = state.model.flat().numpy() - sum(
            w * step for w, step in zip(weights.shares, steps, strict=True)
        )  # Eq. 13
        np.testing.assert_allclose(new.model.flat().numpy(), stepped, atol=1e-6)
        # Eq. 6, without the positive in the denominator
        for id, up in zip(ups.ids, ups, strict=True):
            common = np.mean(list(embeddings.values()), axis=0)
            others = sum(
                math.exp(cosine(embeddings[id], z) / 0.07)
                for other, z in embeddings.items()
                if other != id
            )
            assert new.contrast[id] == pytest.approx(
                -math.log(math.exp(cosine(embeddings[id], common) / 0.07) / others), abs=1e-3
            )
            np.testing.assert_allclose(up.embedding.numpy(), embeddings[id], atol=1e-5)
    assert len(frequencies) > 1


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_reuse_matches_a_plain_reference(
    tmp_path: Path, seen: ColumnReport, optimiser: str
) -> None:
    method = CoReFed(reuse="window", gamma=1.5)
    training = {"optimiser": optimiser, "lr": LR, "lr_decay": DECAY, "batch": BATCH}
    eq.run(experiment(method, rounds=6, training=training), out=tmp_path / "run")
    rates = [LR * DECAY**t if optimiser == "sgd" else 1.0 for t in range(6)]
    gradients: dict[str, tuple[int, np.ndarray, np.ndarray]] = {}
    reused = []
    for t, (earlier, state, ups, _, new) in enumerate(seen):
        joined = [*earlier, ups.ids]
        for id, up in zip(ups.ids, ups, strict=True):
            gradients[id] = (
                t,
                (state.model.flat() - up.model.flat()).numpy() / rates[t],
                up.embedding.double().numpy(),
            )
        window = plain_frequency(joined, ups.ids[0])[1]
        among = {id: z for id, (last, _, z) in gradients.items() if t - last <= window}
        scores = plain_scores(method, joined, among)
        step = sum(scores[id] / sum(scores.values()) * gradients[id][1] for id in among)
        np.testing.assert_allclose(
            new.model.flat().numpy(), state.model.flat().numpy() - rates[t] * step, atol=1e-5
        )
        reused.append(len(among) - len(ups))
    assert (
        reused[0] == 0 and max(reused) >= 2 and any(count + 2 < len(gradients) for count in reused)
    )


def test_a_client_just_outside_the_counting_window_is_still_reused(
    seen: ColumnReport, tmp_path: Path
) -> None:
    """One of two clients per round, then always the other: the absent one's frequency is 0 and
    counts as 1 / window.
    """
    drops = [{"round": t, "client": "1", "kind": "drop"} for t in (2, 3, 4, 5)]
    data = {"name": "digits", "partition": "iid", "clients": 2, "split": (0.3, 0.1, 0.6)}
    eq.run(
        experiment(CoReFed(reuse="window"), data=data, participation={}, faults={"script": drops}),
        out=tmp_path / "run",
    )
    sums = [float(weights.shares.sum()) for _, _, _, weights, _ in seen]
    assert [len(ups) for _, _, ups, _, _ in seen] == [2, 1, 1, 1, 1]
    # Windows of 1, 2, 2, ... rounds: client 1 was last seen in round 1, so it counts in rounds 2
    # and 3 and no more.
    assert (
        sums[0] == pytest.approx(1)
        and sums[1] < 0.8
        and sums[2] < 0.8
        and sums[3] == sums[4] == pytest.approx(1)
    )


def test_weights_of_reused_clients_are_recorded_too(seen: ColumnReport, tmp_path: Path) -> None:
    run = eq.run(experiment(CoReFed(reuse="window", gamma=1.5)), out=tmp_path / "run")
    rows, extra = run.weights(), 0
    for row in run.rounds():
        shares = {one["client"]: one["share"] for one in rows if one["round"] == row["round"]}
        assert sum(shares.values()) == pytest.approx(1)
        assert set(row["joined"]) <= set(shares)
        extra += len(set(shares) - set(row["joined"]))
    assert extra > 0


def test_with_everyone_present_reuse_changes_no_bit(tmp_path: Path) -> None:
    runs = [
        eq.run(experiment(m, participation={}, rounds=2), out=tmp_path / m.reuse)
        for m in (CoReFed(), CoReFed(reuse="window"))
    ]
    assert same(trained(runs[0]), trained(runs[1]))


def test_buffers_follow_the_present_clients(tmp_path: Path, seen: ColumnReport) -> None:
    eq.run(
        experiment(
            CoReFed(reuse="window"), model={"name": "cnn", "width": 2, "hidden": 4}, rounds=2
        ),
        out=tmp_path / "run",
    )
    _, _, ups, weights, new = seen[1]
    buffer = next(name for name in new.model if name.endswith("running_mean"))
    mean = (
        sum(w * up.model[buffer].double() for w, up in zip(weights.shares, ups, strict=True))
        / weights.shares.sum()
    )
    torch.testing.assert_close(new.model[buffer].double(), mean, rtol=0, atol=1e-6)
    assert weights.shares.sum() < 0.9


def test_literal_re_fed_is_refused_as_fedavg_by_another_name() -> None:
    with pytest.raises(ValueError, match=r"equals FedAvg.*rep='client'"):
        CoReFed(ablation="re_fed", rep="literal")


def test_re_fed_weighs_as_fedavg_and_trains_otherwise(tmp_path: Path) -> None:
    plain = eq.run(experiment("fedavg"), out=tmp_path / "plain")
    re_fed = eq.run(experiment(CoReFed(ablation="re_fed")), out=tmp_path / "re_fed")
    assert not same(trained(plain), trained(re_fed))
    assert plain.weights() == re_fed.weights()


def test_by_default_the_representation_losses_take_part_in_training(tmp_path: Path) -> None:
    default = eq.run(experiment(CoReFed()), out=tmp_path / "default")
    literal = eq.run(experiment(CoReFed(rep="literal")), out=tmp_path / "literal")
    assert not same(trained(default), trained(literal))


def test_a_run_begun_under_the_old_default_goes_on_with_it(tmp_path: Path) -> None:
    """A run's file names only the parameters that were given.

    Older runs have no number of defaults.
    """
    literal = {"name": "corefed", "rep": "literal"}
    whole = eq.run(eq.Experiment(**config(tmp_path, literal)), out=tmp_path / "whole")
    folder = stopped(tmp_path, literal)
    file = folder / "experiment.yaml"
    assert "  rep: literal\n" in file.read_text()
    file.write_text(file.read_text().replace("  rep: literal\n", ""))
    with sqlite3.connect(folder / "run.db") as db:
        db.execute("delete from meta where key = 'defaults'")
    db.close()
    resumed = eq.resume(folder)
    assert resumed.config["method"]["rep"] == "literal"
    assert same(trained(resumed), trained(whole))


def test_a_new_run_goes_on_with_the_new_default(tmp_path: Path) -> None:
    run = eq.run(experiment("corefed"), out=tmp_path / "run")
    assert "rep" not in run.config["method"]


def test_without_gamma_and_k_it_is_the_plain_mean(tmp_path: Path, seen: ColumnReport) -> None:
    run = eq.run(experiment(CoReFed(gamma=0, k=0)), out=tmp_path / "run")
    assert len(seen) == run.last_round
    for _, _, ups, _, new in seen:
        torch.testing.assert_close(new.model.flat(), ups.stack("model").mean(0), rtol=0, atol=1e-7)


def test_co_fed_has_no_losses_and_weighs_by_participation_and_the_plain_cosine(
    tmp_path: Path, seen: ColumnReport
) -> None:
    method = CoReFed(ablation="co_fed", gamma=2.0, k=0.5, rep="client")
    own = eq.run(experiment(method), out=tmp_path / "run")
    for earlier, _, ups, weights, _ in seen:
        rates = np.array([plain_frequency([*earlier, ups.ids], id)[0] for id in ups.ids])
        embeddings = ups.stack("embedding").double().numpy()
        alignment = np.array([cosine(one, embeddings.mean(0)) for one in embeddings])
        shares = rates**-2 / (1 + np.exp(-0.5 * alignment))
        np.testing.assert_allclose(weights.shares, shares / shares.sum(), atol=1e-6)
    # Section 4.3 leaves out contrast and distillation, and keeps the aggregation.
    literal = CoReFed(gamma=2.0, k=0.5, rep="literal", beta=0.0)
    other = eq.run(experiment(literal), out=tmp_path / "literal")
    assert same(trained(own), trained(other))


def test_released_uses_the_received_model_the_first_batch_and_the_first_client(
    tmp_path: Path, seen: ColumnReport
) -> None:
    wanted = experiment(CoReFed(preset="released"), participation={"number": 3})
    eq.run(wanted, out=tmp_path / "run")
    for _, state, ups, weights, _ in seen:
        means = [
            np.mean(plain_features(client_of(wanted, id), state.model)[:BATCH], axis=0)
            for id in ups.ids
        ]
        scores = np.array([1 / (1 + math.exp(-2 * cosine(mean, means[0]))) for mean in means])
        np.testing.assert_allclose(weights.shares, scores / scores.sum(), atol=1e-6)
    other = eq.run(
        experiment(CoReFed(preset="released", gamma=3.0, beta=0.9), participation={"number": 3}),
        out=tmp_path / "other",
    )
    assert same(dict(seen[4][4].model), trained(other))  # neither reaches its weights


def test_the_client_reading_begins_in_the_second_round(tmp_path: Path, seen: ColumnReport) -> None:
    variants = [
        CoReFed(rep="literal"),
        CoReFed(rep="client", lambda_con=0, lambda_kd=0),
        CoReFed(rep="client"),
        CoReFed(rep="client", lambda_con=0),
    ]
    for place, method in enumerate([*variants, CoReFed(rep="client", include_positive=True)]):
        eq.run(experiment(method, rounds=2), out=tmp_path / str(place))
    first, second = [new.model for *_, new in seen[::2]], [new.model for *_, new in seen[1::2]]
    assert all(same(first[0], other) for other in first[1:])
    assert same(second[0], second[1])
    assert all(not same(a, b) for place, a in enumerate(second[1:]) for b in second[1:][:place])


def test_local_training_of_the_client_reading_matches_a_plain_reference() -> None:
    method = CoReFed(rep="client", lambda_con=0.3, lambda_kd=0.7, beta=0.4)
    client = client_of(experiment(method), number=3)
    draw = torch.Generator().manual_seed(0)
    cohort = {id: torch.rand(6, generator=draw) for id in ("0", "4", "5")}
    start = client.initial("model")
    up = method.client(client, Down(model=start, cohort=cohort))
    w1, b1, w2, b2 = (start[name].double().clone().requires_grad_() for name in start)
    x, y = client.train.x.flatten(1).double(), client.train.y
    common = (cohort["0"].double() + cohort["4"].double() + cohort["5"].double()) / 3
    order = torch.randperm(len(y), generator=torch_stream(SEED, "client", 3, "0", "batches"))
    for places in (order[start : start + BATCH] for start in range(0, len(y), BATCH)):
        hidden = (x[places] @ w1.T + b1).clamp(min=0)
        logits = hidden @ w2.T + b2
        z = torch.zeros(6, dtype=torch.float64)
        for row in hidden:
            z = z + row / row.norm().clamp(min=1e-12) / len(hidden)
        near, far = (
            torch.cosine_similarity(z, other.double(), dim=0) / 0.07
            for other in (cohort["4"], cohort["5"])
        )
        contrast = (
            -torch.cosine_similarity(z, common, dim=0) / 0.07 + (near.exp() + far.exp()).log()
        )
        target = (z + 0.4 * (torch.cosine_similarity(z, common, dim=0) * common - z)).detach()
        right = torch.stack(
            [row.log_softmax(0)[label] for row, label in zip(logits, y[places], strict=True)]
        )
        loss = -right.mean() + 0.3 * contrast + 0.7 * ((z - target) ** 2).sum()
        slopes = torch.autograd.grad(loss, (w1, b1, w2, b2))
        with torch.no_grad():
            for parameter, slope in zip((w1, b1, w2, b2), slopes, strict=True):
                parameter -= LR * DECAY**2 * slope
    for name, expected in zip(start, (w1, b1, w2, b2), strict=True):
        torch.testing.assert_close(up.model[name].double(), expected.detach(), rtol=0, atol=2e-4)


def test_slope_of_embedding_distillation() -> None:
    z, common = (
        torch.tensor([0.6, 0.2], dtype=torch.float64, requires_grad=True),
        torch.tensor([0.5, 0.5], dtype=torch.float64),
    )
    embedding_gap(z, common, 0.3).backward()  # type: ignore[no-untyped-call]
    aligned = cosine(z.detach().numpy(), common.numpy())
    torch.testing.assert_close(z.grad, 2 * 0.3 * (z.detach() - aligned * common))


def test_one_client_alone(tmp_path: Path, seen: ColumnReport) -> None:
    eq.run(
        experiment(CoReFed(rep="client"), participation={"number": 1}, rounds=3),
        out=tmp_path / "run",
    )
    assert len(seen) == 3
    for _, _, ups, weights, new in seen:
        assert weights.shares.tolist() == [1.0] and list(new.contrast.values()) == [0.0]
        assert same(new.model, ups[0].model)


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_a_client_without_data_has_an_embedding_of_zeros(preset: Any) -> None:
    client = client_of(experiment("corefed"), empty=True)
    tree = client.initial("model")
    assert CoReFed(preset=preset).after(client, tree, tree).embedding.tolist() == [0.0] * 6


def test_as_the_weight_rule_of_another_method(tmp_path: Path) -> None:
    """FedProx with mu = 0 trains as CoRe-Fed does by its equations: the composition must give the
    same weights.
    """
    own = eq.run(experiment(CoReFed(rep="literal")), out=tmp_path / "own")
    guest = eq.run(experiment(compose(FedProx(mu=0), weights=CoReFed())), out=tmp_path / "guest")
    assert own.weights() == guest.weights() and same(trained(own), trained(guest))
    compose(CoReFed(rep="client"), weights=FedEquilibria())


@pytest.mark.parametrize(
    ("base", "rule"),
    [(FedProx(), CoReFed(reuse="window")), (CoReFed(reuse="window"), FedEquilibria())],
)
def test_reuse_is_not_taken_apart(base: Method, rule: Method) -> None:
    with pytest.raises(IncompatibleComposition):
        compose(base, weights=rule)


@pytest.mark.parametrize(
    "options",
    [
        {"reuse": "window", "ablation": "co_fed"},
        {"reuse": "window", "ablation": "re_fed"},
        {"reuse": "window", "preset": "released"},
    ],
)
def test_contradictions_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="drop one of them"):
        CoReFed(**options)


@pytest.mark.parametrize(
    "method", [CoReFed(rep="client"), CoReFed(reuse="window")], ids=["client", "window"]
)
def test_everything_it_sends_can_travel(tmp_path: Path, method: CoReFed) -> None:
    here = eq.run(experiment(method), out=tmp_path / "here")
    there = eq.run(experiment(method), out=tmp_path / "there", transport="loopback")
    assert same(trained(here), trained(there))


@pytest.mark.parametrize(("optimiser", "rate"), [("sgd", 0.25), ("adam", 1.0)])
def test_a_step_is_divided_by_the_rate_of_plain_sgd_only(optimiser: str, rate: float) -> None:
    """Adam's steps are no multiple of a gradient."""
    server: Any = SimpleNamespace(lr=0.25, training=SimpleNamespace(optimiser=optimiser))
    assert gradient_rate(server) == rate

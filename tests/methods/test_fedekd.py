"""FedeKD: local training without distillation, a plain reference of its rounds, what is uploaded,
and its options.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.client import Client
from equipoise.data import federate
from equipoise.experiment.build import prepare
from equipoise.losses.terms import Batch
from equipoise.methods.fedekd import FedeKD
from equipoise.models import Model, Outputs
from equipoise.records import Down, size, tensors_of
from equipoise.runs.run import Run
from equipoise.streams import torch_stream
from equipoise.training.workbench import Workbench
from equipoise.transports.inprocess import InProcess
from equipoise.tree import Tree

LINEAR = {"name": "mlp", "hidden": []}
TWO = {"private": {"name": "mlp", "hidden": [12, 6]}, "proxy": {"name": "mlp", "hidden": [5]}}
SEED, LR, BATCH = 4, 0.05, 32


def experiment(method: Any, **changes: Any) -> eq.Experiment:
    settings = {
        "data": {"name": "digits", "partition": "dirichlet:0.3", "clients": 3},
        "models": TWO,
        "rounds": 2,
        "workers": 0,
        "seed": SEED,
    }
    return eq.Experiment(
        **{
            **settings,
            "evaluation": {"every": 0},
            "training": {"lr": LR, "batch": BATCH},
            **changes,
            "method": method,
        }
    )


def bench_of(wanted: eq.Experiment) -> Workbench:
    federation = federate(wanted.data, wanted.seed, wanted.dataset)
    return prepare(wanted, federation.task, federation.ids, federation)[0]


def entries(
    run: Run, model: str, client: str | None = None, experiment: Any = None
) -> dict[str, Tensor]:
    return dict(run.model(model, client=client, experiment=experiment).state_dict())


def same(first: Any, second: Any) -> bool:
    return set(first) == set(second) and all(
        torch.equal(first[name], second[name]) for name in first
    )


def regression() -> eq.Dataset:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, 4)).astype(np.float32)
    return eq.from_arrays(
        x,
        np.tanh(x @ np.array([1.0, -1.0, 0.5, 0.2])) + 0.1 * draw.normal(size=120),
        kind="regression",
    )


@pytest.mark.parametrize(
    ("training", "participation"),
    [
        ({"optimiser": "adam", "lr": 0.01}, {}),
        ({"lr": 0.05, "momentum": 0.9, "epochs": 2}, {"number": 2}),
        ({"lr": 0.1, "steps": 3}, {}),
    ],
    ids=["adam", "momentum", "steps"],
)
@pytest.mark.thorough
def test_without_distillation_it_is_local_training(
    tmp_path: Path, training: dict[str, Any], participation: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {"participation": participation, "rounds": 3}
    kept = {**training, "keep_optimiser": True}
    alone = eq.run(
        experiment({"name": "standalone", "model": "private"}, training=kept, **settings),
        out=tmp_path / "alone",
    )
    joint = eq.run(
        experiment(FedeKD(lambda_kd=0), training=kept, **settings), out=tmp_path / "joint"
    )
    taught = eq.run(experiment(FedeKD(), training=kept, **settings), out=tmp_path / "taught")
    reset = eq.run(
        experiment(FedeKD(lambda_kd=0), training=training, **settings), out=tmp_path / "reset"
    )

    def equal(run: Run) -> list[bool]:
        return [
            same(entries(alone, "personal", client), entries(run, "personal", client))
            for client in alone.clients
        ]

    assert all(equal(joint)) and not any(equal(taught))
    assert all(equal(reset)) == ("steps" in training)  # plain sgd has nothing to forget


def test_local_training_is_also_matched_by_a_network_with_batch_norm(tmp_path: Path) -> None:
    models = {"private": {"name": "cnn", "width": 2, "hidden": 4}, "proxy": TWO["proxy"]}
    alone = eq.run(
        experiment({"name": "standalone", "model": "private"}, models=models, rounds=1),
        out=tmp_path / "alone",
    )
    joint = eq.run(experiment(FedeKD(lambda_kd=0), models=models, rounds=1), out=tmp_path / "joint")
    assert all(
        same(entries(alone, "personal", client), entries(joint, "personal", client))
        for client in alone.clients
    )


def test_only_the_proxy_is_uploaded(tmp_path: Path) -> None:
    sent: list[tuple[str, Any]] = []

    class Recording(InProcess):
        def exchange(self, requests: Any, deadline: float | None = None) -> Any:
            replies = super().exchange(requests, deadline)
            for request, reply in zip(requests, replies, strict=True):
                if request.step in ("client", "backward"):
                    sent.append((request.step, reply.up))
            return replies

    wanted = experiment(FedeKD(energy="feat", projection="fit", proxy_start="own"))
    eq.run(wanted, out=tmp_path / "run", transport=Recording)
    bench = bench_of(wanted)
    proxy, private = bench.initial("proxy"), bench.initial("private")
    assert Counter(step for step, _ in sent) == {"client": 6, "backward": 6}
    for step, up in sent:
        trees = [value for _, value in tensors_of(up)]
        assert all(
            isinstance(tree, Tree) and tree.model == "proxy" and set(tree) == set(proxy)
            for tree in trees
        )
        assert len(trees) == (step == "client")
        assert size(up) == (proxy.bytes() if step == "client" else 0) < private.bytes()


def test_proxies_of_clients_of_very_different_size_count_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, Any]] = []
    original = FedeKD.update

    def update(self: FedeKD, server: Any, state: Any, ups: Any, weights: Any) -> Any:
        new = original(self, server, state, ups, weights)
        seen.append((ups, new))
        return new

    monkeypatch.setattr(FedeKD, "update", update)
    wanted = experiment(FedeKD(), rounds=1)
    eq.run(wanted, out=tmp_path / "run")
    sizes = [len(part) for part in federate(wanted.data, wanted.seed).train]
    assert max(sizes) > 1.5 * min(sizes)
    ups, new = seen[0]
    torch.testing.assert_close(new.model.flat(), ups.stack("model").mean(0), rtol=0, atol=1e-7)


def softmax(logits: np.ndarray) -> np.ndarray:
    amounts = np.exp(logits - logits.max())
    return np.asarray(amounts / amounts.sum())


def plain_energy(
    kind: str, f: np.ndarray, g: np.ndarray, projected: np.ndarray, features: np.ndarray
) -> float:
    """One sample's energy, from private outputs f, proxy outputs g, projected private features and
    proxy features.
    """
    p, q = softmax(f), softmax(g)
    entropy = [-sum(a * np.log(a) for a in chances) for chances in (p, q)]
    kl = [sum(a * np.log(a / b) for a, b in zip(*pair, strict=True)) for pair in ((p, q), (q, p))]
    top = sorted(g)
    values: dict[str, float] = {
        "kl": (kl[0] + kl[1]) / 2 / (sum(entropy) + 1e-8),
        "sqerr": sum((a - b) ** 2 for a, b in zip(f, g, strict=True)) / 2,
        "entropy": entropy[1],
        "margin": top[-2] - top[-1] if len(top) > 1 else 0.0,
        "lse": -np.log(sum(np.exp(one) for one in g)),
        "feat": float(np.sqrt(sum((a - b) ** 2 for a, b in zip(projected, features, strict=True)))),
    }
    return values.get(kind, 0.0)


def plain_trust(kind: str, energies: list[float], beta: float) -> list[float]:
    if kind in ("none", "constant_half"):
        return [1.0 if kind == "none" else 0.5] * len(energies)
    mean = sum(energies) / len(energies)
    spread = (sum((e - mean) ** 2 for e in energies) / len(energies)) ** 0.5
    return [1 / (1 + np.exp(beta * (e - mean) / (spread + 1e-8))) for e in energies]


class PlainLinear:
    """outputs = w x + b, trained by SGD on slopes with respect to the outputs."""

    def __init__(self, tree: Tree) -> None:
        self.w, self.b = (
            tree["head.weight"].double().numpy().copy(),
            tree["head.bias"].double().numpy().copy(),
        )

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.w @ x + self.b)

    def step(self, x: np.ndarray, slopes: list[np.ndarray]) -> None:
        self.w -= (
            LR * sum(np.outer(slope, one) for slope, one in zip(slopes, x, strict=True)) / len(x)
        )
        self.b -= LR * sum(slopes) / len(x)


def batches(samples: int, number: int, client: str, purpose: str) -> list[np.ndarray]:
    order = torch.randperm(
        samples, generator=torch_stream(SEED, "client", number, client, purpose)
    ).numpy()
    return [order[start : start + BATCH] for start in range(0, samples, BATCH)]


CASES = [
    (kind, False)
    for kind in ("kl", "sqerr", "entropy", "margin", "lse", "feat", "none", "constant_half")
]
CASES += [(kind, True) for kind in ("sqerr", "feat", "none", "constant_half")]


@pytest.mark.parametrize(("kind", "numbers"), CASES)
@pytest.mark.quick_cases("kl", "feat", "True")
def test_rounds_match_a_plain_reference(tmp_path: Path, kind: str, numbers: bool) -> None:
    as_they_are = {
        "centre": 0.0,
        "scale": 1.0,
    }  # targets that the plain reference takes without a last step
    data: dict[str, Any] = (
        {"data": {"partition": "iid", "clients": 2, "schema": as_they_are}, "dataset": regression()}
        if numbers
        else {}
    )
    default = kind == ("sqerr" if numbers else "kl")
    method = FedeKD(lambda_kd=0.8, beta=1.5, energy="auto" if default else kind)  # type: ignore[arg-type]
    wanted = experiment(method, models={"private": LINEAR, "proxy": LINEAR}, **data)
    run, bench = eq.run(wanted, out=tmp_path / "run"), bench_of(wanted)
    size = bench.initial("proxy")["head.weight"].shape[1]
    projection = (
        torch.randn(size, size, generator=torch_stream(SEED, "fedekd projection", size, size))
        .double()
        .numpy()
        / size**0.5
    )
    # the slope of either loss is a difference of links
    link = (lambda z: z) if numbers else softmax
    scale = 2.0 if numbers else 1.0
    privates = {client: PlainLinear(bench.initial("private")) for client in run.clients}
    common = bench.initial("proxy")
    shared = PlainLinear(common)
    for number in (1, 2):
        uploads = []
        for client in run.clients:
            samples = Client(bench, client, number, 2, {}).train
            x, proxy = samples.x.flatten(1).double().numpy(), PlainLinear(common)
            proxy.w, proxy.b = shared.w.copy(), shared.b.copy()
            for places in batches(len(x), number, client, "forward"):
                proxy.step(
                    x[places],
                    [scale * (link(proxy(one)) - link(privates[client](one))) for one in x[places]],
                )
            uploads.append(proxy)
        shared.w, shared.b = (
            np.mean([one.w for one in uploads], axis=0),
            np.mean([one.b for one in uploads], axis=0),
        )
        for client in run.clients:
            samples, private = Client(bench, client, number, 2, {}).train, privates[client]
            x, y = samples.x.flatten(1).double().numpy(), samples.y.numpy()
            for places in batches(len(x), number, client, "batches"):
                energies = [
                    plain_energy(kind, private(one), shared(one), one @ projection, one)
                    for one in x[places]
                ]
                slopes = []
                for one, label, trust in zip(
                    x[places], y[places], plain_trust(kind, energies, 1.5), strict=True
                ):
                    truth = np.array([label]) if numbers else np.eye(10)[label]
                    own = link(private(one))
                    slopes.append(scale * (own - truth + 0.8 * trust * (own - link(shared(one)))))
                private.step(x[places], slopes)
    np.testing.assert_allclose(
        entries(run, "proxy", experiment=wanted)["head.weight"].numpy(), shared.w, atol=2e-5
    )
    for client in run.clients:
        np.testing.assert_allclose(
            entries(run, "personal", client, wanted)["head.weight"].numpy(),
            privates[client].w,
            atol=2e-5,
        )


def test_gradient_of_the_distillation_alone() -> None:
    """Eq. 5: weight / batch * trust * (p - q), and nothing reaches the proxy."""
    bench = bench_of(experiment(FedeKD()))
    client = Client(bench, "0", 1, 2, {})
    private, proxy = client.load(None, model="private"), client.load(None, model="proxy")
    loss = FedeKD().gated_distillation(client, private, proxy)
    places = torch.arange(6)
    x, y = client.train.at(places)
    logits = (3 * private(x).logits).detach().requires_grad_()
    loss(
        Outputs(private, torch.zeros(6, 1), logits), Batch(x, y, places, bench.supervise)
    ).backward()  # type: ignore[no-untyped-call]
    p, q = logits.detach().double().softmax(1), proxy(x).logits.detach().double().softmax(1)
    energies = [
        plain_energy("kl", a, b, a, b)
        for a, b in zip(p.log().numpy(), q.log().numpy(), strict=True)
    ]
    expected = torch.tensor(plain_trust("kl", energies, 1.0))[:, None] * (p - q) / 6
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad.double(), expected, rtol=0, atol=1e-6)
    assert all(parameter.grad is None for parameter in proxy.net.parameters())


def test_a_single_sample_is_trusted_by_one_half() -> None:
    bench = bench_of(experiment(FedeKD()))
    client = Client(bench, "0", 1, 2, {})
    private, proxy = client.load(None, model="private"), client.load(None, model="proxy")
    x, y = client.train.at(torch.tensor([3]))
    batch = Batch(x, y, torch.tensor([3]), bench.supervise)
    gated, full = (
        FedeKD(energy=kind).gated_distillation(client, private, proxy)(private(x), batch)
        for kind in ("kl", "none")
    )
    torch.testing.assert_close(2 * gated, full)


def test_clients_may_have_private_models_of_their_own(tmp_path: Path) -> None:
    models = {
        "private": {**TWO["private"], "clients": {"1": {"name": "cnn", "width": 2, "hidden": 4}}},
        "proxy": TWO["proxy"],
    }
    run = eq.run(experiment(FedeKD(energy="feat"), models=models), out=tmp_path / "run")
    shapes = {client: len(entries(run, "personal", client)) for client in run.clients}
    assert shapes["0"] == shapes["2"] == 6 < shapes["1"]
    start = bench_of(experiment(FedeKD(), models=models)).initial("private@1")
    assert not same(start, entries(run, "personal", "1"))
    assert set(entries(run, "proxy")) == set(bench_of(experiment(FedeKD())).initial("proxy"))


def test_frozen_models_are_asked_once_per_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: Counter[tuple[str, bool]] = Counter()
    original = Model.__call__

    def call(self: Model, x: Tensor) -> Outputs:
        passes[self.name, self.net.training] += 1
        return original(self, x)

    monkeypatch.setattr(Model, "__call__", call)
    wanted = experiment(
        FedeKD(forward_epochs=3, backward_epochs=2), rounds=1, evaluation={"every": 0, "splits": []}
    )
    run = eq.run(wanted, out=tmp_path / "run")
    sizes = [len(part) for part in federate(wanted.data, wanted.seed).train]
    asked, steps = sum(-(-n // 256) for n in sizes), sum(-(-n // BATCH) for n in sizes)
    assert passes == {
        ("private", False): asked,
        ("proxy", False): asked,
        ("proxy", True): 3 * steps,
        ("private", True): 2 * steps,
    }
    assert run.rounds()[0]["steps"] == 5 * steps


def test_warm_up_comes_once(tmp_path: Path) -> None:
    wanted = experiment(
        FedeKD(warmup_epochs=2), training={"lr": LR, "batch": BATCH, "optimiser": "adam"}
    )
    run = eq.run(wanted, out=tmp_path / "run")
    steps = sum(-(-len(part) // BATCH) for part in federate(wanted.data, wanted.seed).train)
    assert [row["steps"] for row in run.rounds()] == [4 * steps, 2 * steps]


def test_teachers_of_random_inputs_agree_with_cached_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = FedeKD(energy="feat")
    cached = eq.run(experiment(method), out=tmp_path / "cached")
    monkeypatch.setattr(Client, "random_inputs", property(lambda self: True))
    asked = eq.run(experiment(method), out=tmp_path / "asked")
    for client in cached.clients:
        first, second = entries(cached, "personal", client), entries(asked, "personal", client)
        for name in first:
            torch.testing.assert_close(first[name], second[name], rtol=0, atol=1e-5)


@pytest.mark.thorough
def test_every_option_matters(tmp_path: Path) -> None:
    variants = [
        FedeKD(),
        FedeKD(lambda_kd=2),
        FedeKD(beta=3),
        FedeKD(proxy_labels=1),
        FedeKD(proxy_start="own"),
        FedeKD(warmup_epochs=1),
    ]
    variants += [
        FedeKD(energy="entropy"),
        FedeKD(energy="entropy", rated="private"),
        FedeKD(energy="feat"),
        FedeKD(energy="feat", projection="fit"),
    ]
    found = [
        entries(eq.run(experiment(method), out=tmp_path / str(place)), "personal", "0")
        for place, method in enumerate(variants)
    ]
    assert all(not same(a, b) for place, a in enumerate(found) for b in found[:place])


def test_zero_beta_is_constant_half(tmp_path: Path) -> None:
    runs = [
        eq.run(experiment(method), out=tmp_path / str(place))
        for place, method in enumerate([FedeKD(beta=0), FedeKD(energy="constant_half")])
    ]
    assert same(entries(runs[0], "personal", "1"), entries(runs[1], "personal", "1"))


def test_a_client_that_is_missing_keeps_its_private_model(tmp_path: Path) -> None:
    drops = [{"round": number, "client": "2", "kind": "drop"} for number in (1, 2)]
    wanted = experiment(FedeKD(), faults={"script": drops})
    run = eq.run(wanted, out=tmp_path / "run")
    start = bench_of(wanted).initial("private")
    assert same(start, entries(run, "personal", "2")) and not same(
        start, entries(run, "personal", "1")
    )


def test_the_projection_is_the_least_squares_of_the_forward_stage() -> None:
    bench = bench_of(experiment(FedeKD()))
    client, method = Client(bench, "0", 1, 2, {}), FedeKD(energy="feat", projection="fit")
    up = method.client(client, Down(model=bench.initial("proxy")))
    own, shared = (
        client.features(client.load(None, model="private")).double(),
        client.features(client.load(up.model)).double(),
    )
    residual = own @ client.state["_projection"].double() - shared
    assert float((own.T @ residual).abs().max()) < 1e-3 * float((own.T @ shared).abs().max())


def test_one_client_alone_gets_its_own_proxy_back(tmp_path: Path) -> None:
    wanted = experiment(
        FedeKD(), data={"name": "digits", "partition": "iid", "clients": 1}, rounds=1
    )
    run = eq.run(wanted, out=tmp_path / "run")
    bench = bench_of(wanted)
    up = FedeKD().client(Client(bench, "0", 1, 1, {}), Down(model=bench.initial("proxy")))
    assert same(up.model, entries(run, "proxy"))


def test_with_a_single_model_both_have_its_architecture(tmp_path: Path) -> None:
    run = eq.run(experiment("fedekd", models={}, model=LINEAR), out=tmp_path / "run")
    assert set(entries(run, "proxy")) == set(entries(run, "personal", "0"))


def test_regression_refuses_energies_of_classes(tmp_path: Path) -> None:
    wanted = experiment(
        FedeKD(energy="kl"), data={"partition": "iid", "clients": 2}, dataset=regression()
    )
    with pytest.raises(ValueError, match="energy='kl' needs classes"):
        eq.run(wanted, out=tmp_path / "run")


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="no model 'proxy'"):
        eq.run(experiment(FedeKD(), models={"private": LINEAR}), out=tmp_path / "run")

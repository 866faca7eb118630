"""KDIA: the teacher's average, two extra losses and the generator, with plain references."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import nn
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.client import Client
from equipoise.composition import compose
from equipoise.data import federate
from equipoise.experiment.build import prepare
from equipoise.losses.terms import Batch
from equipoise.method import Ups, Weights
from equipoise.methods import make
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.kdia import KDIA, diversity_loss, heads, label_pool
from equipoise.models import Generator, Model, Network, Outputs, build
from equipoise.records import Down, State, Up
from equipoise.runs.run import Run
from equipoise.server import Server
from equipoise.storage.checkpoint import load_server
from equipoise.streams import torch_stream
from equipoise.task import Task
from equipoise.training.workbench import Workbench
from equipoise.tree import Tree

MLP = {"name": "mlp", "hidden": [8]}
CNN = {"name": "cnn", "width": 4, "hidden": 8}
SMALL = KDIA(gen_steps=3, gen_batch=8, gen_batches=2)
PLAIN = KDIA(lambda_kd=0, lambda_gen=0)


def experiment(method: Any, **changes: Any) -> eq.Experiment:
    data = {"name": "digits", "partition": "dirichlet:0.5", "clients": 5}
    settings = {
        "data": data,
        "model": MLP,
        "rounds": 3,
        "workers": 0,
        "seed": 3,
        "participation": {"number": 2},
    }
    return eq.Experiment(**{**settings, "evaluation": {"every": 0}, **changes, "method": method})


def bench_for(method: Any = SMALL, **changes: Any) -> Workbench:
    wanted = experiment(method, **changes)
    federation = federate(wanted.data, wanted.seed)
    return prepare(wanted, federation.task, federation.ids, federation)[0]


def entries(run: Run, model: str) -> dict[str, torch.Tensor]:
    return dict(run.model(model).state_dict())


def same(first: Any, second: Any) -> bool:
    return set(first) == set(second) and all(
        torch.equal(first[name], second[name]) for name in first
    )


def near(first: Any, second: Any, tolerance: float = 1e-6) -> bool:
    return set(first) == set(second) and all(
        np.allclose(first[name], second[name], rtol=0, atol=tolerance) for name in first
    )


def moved(tree: Tree, seed: int) -> Tree:
    """Another model of the same kind."""
    generator = torch.Generator().manual_seed(seed)
    return tree + Tree(
        {name: torch.randn(tree[name].shape, generator=generator) / 4 for name in tree.trained}
    )


def averaged(trees: list[Any], weights: list[float]) -> dict[str, np.ndarray]:
    return {
        name: sum(w * tree[name].double().numpy() for w, tree in zip(weights, trees, strict=True))
        / sum(weights)
        for name in trees[0]
    }


def test_teacher_and_student_match_a_plain_reference(tmp_path: Path) -> None:
    run = eq.run(experiment(SMALL, rounds=4), out=tmp_path / "run")
    joined = [row["joined"] for row in run.rounds()]
    state = load_server(run.store)
    sizes = dict(zip(run.clients, run.store.meta("sizes")["train"], strict=True))
    never = [client for client in run.clients if not any(client in ids for ids in joined)]
    # each in a file of its own
    assert set(state.last) == set(run.clients) - set(never) and not state.last.changed
    scores = []
    for client in state.last:  # with t counted from 0, as in the paper
        times = [t for t, ids in enumerate(joined) if client in ids]
        scores.append((math.exp(-(3 - times[-1])) * len(times) * sizes[client]) ** (1 / 3))
    models = [state.last[client] for client in state.last]
    assert len(set(scores)) > 2
    assert near(entries(run, "teacher"), averaged(models, scores))
    assert near(
        entries(run, "global"),
        averaged(
            [state.last[client] for client in joined[-1]], [sizes[client] for client in joined[-1]]
        ),
    )
    assert not near(entries(run, "teacher"), entries(run, "global"), 1e-3)


def test_a_client_that_was_not_asked_keeps_its_last_model(tmp_path: Path) -> None:
    runs = [
        eq.run(experiment(SMALL, rounds=rounds), out=tmp_path / str(rounds)) for rounds in (2, 3)
    ]
    before, after = (load_server(run.store).last for run in runs)
    asked = runs[1].rounds()[-1]["joined"]
    assert set(before) - set(asked)
    for client in before:
        assert same(before[client], after[client]) == (client not in asked)


def observed(
    method: KDIA, sizes: dict[str, int], joined: list[list[str]]
) -> tuple[Server, State, Ups]:
    """The state after the last of these rounds, in which client k always uploads the k-th model."""
    bench = bench_for(method)
    server = Server(bench, list(sizes), sizes, rounds=9)
    state = method.start(server)
    for number, ids in enumerate(joined, 1):
        server.round = number
        ups = Ups(
            [(client, Up(model=moved(bench.initial("model"), int(client)))) for client in ids]
        )
        state = method.observe(server, state, ups)
        server.joined.append(ids)
    server.joined.pop()
    return server, state, ups


def uploaded(server: Server, client: str) -> Tree:
    return moved(server.initial("model"), int(client))


def test_everyone_in_every_round_counts_by_the_cube_root_of_its_size() -> None:
    server, state, _ = observed(PLAIN, {"0": 8, "1": 27, "2": 125}, [["0", "1", "2"]] * 2)
    assert near(state.teacher, averaged([uploaded(server, client) for client in "012"], [2, 3, 5]))


@pytest.mark.parametrize("asked", [["0", "2"], ["1"]])
def test_equal_sizes_make_the_first_teacher_the_student(asked: list[str]) -> None:
    server, state, ups = observed(PLAIN, {"0": 40, "1": 40, "2": 40}, [asked])
    student = PLAIN.update(server, state, ups, PLAIN.weights(server, state, ups)).model
    assert near(state.teacher, student)


def test_three_rounds_away_cost_a_factor_e() -> None:
    server, state, _ = observed(PLAIN, {"0": 40, "1": 40, "2": 40}, [["0"], ["2"], ["2"], ["1"]])
    weights = [1, math.e, (math.e**2 * 2) ** (1 / 3)]
    assert near(state.teacher, averaged([uploaded(server, client) for client in "012"], weights))


INTERVAL = [math.exp(-1), 1, math.exp(-2)]
ARITHMETIC = [
    a / sum(INTERVAL) + b / 3 + c / 100
    for a, b, c in zip(INTERVAL, [1, 2, 0], [10, 30, 60], strict=True)
]
KINDS = {"interval": INTERVAL, "count": [1, 2, 0], "size": [10, 30, 60], "arithmetic": ARITHMETIC}


@pytest.mark.parametrize(("kind", "weights"), KINDS.items())
def test_other_teacher_weights_take_the_initial_model_for_clients_never_seen(
    kind: Any, weights: list[float]
) -> None:
    method = KDIA(lambda_kd=0, lambda_gen=0, teacher_weights=kind)
    server, state, _ = observed(method, {"0": 10, "1": 30, "2": 60}, [["0", "1"], ["1"]])
    assert near(
        state.teacher,
        averaged([uploaded(server, "0"), uploaded(server, "1"), server.initial("model")], weights),
    )


def test_without_both_losses_the_student_is_fedavg(tmp_path: Path) -> None:
    runs = [
        eq.run(experiment(method, model=CNN), out=tmp_path / name)
        for name, method in (("a", FedAvg()), ("b", PLAIN))
    ]
    assert same(entries(runs[0], "global"), entries(runs[1], "global"))
    assert set(runs[1].models()) == {"global", "teacher"}


def test_beside_another_method_it_serves_the_teacher_and_changes_nothing(tmp_path: Path) -> None:
    plain = eq.run(experiment(PLAIN, model=CNN), out=tmp_path / "plain")
    beside = eq.run(
        experiment(compose(FedAvg(), companion=KDIA()), model=CNN), out=tmp_path / "beside"
    )
    assert same(entries(beside, "global"), entries(plain, "global"))
    assert same(entries(beside, "teacher"), entries(plain, "teacher"))
    assert set(load_server(beside.store)["@kdia"]) == {
        "last",
        "teacher",
    }  # and no generator is trained or sent


@pytest.mark.thorough
def test_every_part_matters(tmp_path: Path) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"lambda_kd": 0},
        {"lambda_gen": 0},
        {"temperature": 5},
        {"tau_squared": True},
        {"labels": "real"},
    ]
    options += [
        {"kd_direction": "student_teacher"},
        {"teacher_weights": "size"},
        {"diversity": 0},
        {"out_act": "relu"},
        {"noise": 7},
    ]
    methods = [
        KDIA(**{"gen_steps": 3, "gen_batch": 8, "gen_batches": 2, **option}) for option in options
    ]
    found = [
        entries(eq.run(experiment(method, rounds=2), out=tmp_path / str(place)), "global")
        for place, method in enumerate(methods)
    ]
    assert all(not same(a, b) for place, a in enumerate(found) for b in found[:place])


def batch_of(client: Client, count: int) -> Batch:
    x, y = client.train.at(torch.arange(count))
    return Batch(x, y, torch.arange(count), client._bench.supervise)


@pytest.mark.parametrize("direction", ["teacher_student", "student_teacher"])
def test_distillation_has_no_factor_and_the_direction_asked_for_and_is_nothing_from_itself(
    direction: Any,
) -> None:
    client = Client(bench_for(), "0", 1, 3, {})
    teacher, student = (
        client.load(moved(client.initial("model"), 1)),
        client.load(moved(client.initial("model"), 2)),
    )
    batch = batch_of(client, 6)
    method = KDIA(kd_direction=direction, temperature=2.0)
    value = method.distilled(client.teacher(teacher))(student(batch.x), batch)
    expected = 0.0
    for row in batch.x:
        p, q = (
            [math.exp(z / 2) for z in model.net(row[None]).detach()[0].double()]
            for model in (teacher, student)
        )
        p, q = ([z / sum(one) for z in one] for one in (p, q))
        first, second = (p, q) if direction == "teacher_student" else (q, p)
        expected += sum(a * math.log(a / b) for a, b in zip(first, second, strict=True)) / len(
            batch.x
        )
    assert value.item() == pytest.approx(expected, rel=1e-4)
    squared = KDIA(kd_direction=direction, tau_squared=True).distilled(client.teacher(teacher))(
        student(batch.x), batch
    )
    assert squared.item() == pytest.approx(4 * expected, rel=1e-4)
    outputs = student(batch.x)
    same_logits = method.distilled(outputs.logits.detach())(outputs, batch)
    (gradient,) = torch.autograd.grad(same_logits, outputs.logits)
    assert same_logits.item() == 0 and not gradient.any()


@pytest.mark.parametrize("model", [MLP, CNN])
def test_generated_features_train_the_head_alone(model: Any) -> None:
    client = Client(bench_for(model=model), "0", 1, 3, {})
    student = client.load(None)
    batch = batch_of(client, 6)
    before = student.tree()
    KDIA()._generated(client, client.load(None, model="generator"))(
        Outputs(student, batch.x, batch.x), batch
    ).backward()
    reached = {name for name, parameter in student.trained.items() if parameter.grad is not None}
    assert reached == {name for name in student.trained if name.startswith("head.")}
    assert same(student.tree(), before)


def test_generated_features_leave_batch_norm_statistics_of_a_head_alone() -> None:
    network = Network(
        nn.Flatten(), nn.Sequential(nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))
    )
    client = Client(bench_for(model=network), "0", 1, 3, {})
    student = client.load(None)
    student.net.train()
    before = student.tree()
    batch = batch_of(client, 6)
    KDIA()._generated(client, client.load(None, model="generator"))(
        Outputs(student, batch.x, batch.x), batch
    )
    assert same(student.tree(), before)
    assert all(module.training for module in student.net.modules())


@pytest.mark.parametrize("training", [{"epochs": 2, "batch": 32}, {"steps": 3, "batch": 512}])
def test_a_client_matches_a_plain_reference(training: dict[str, int]) -> None:
    """Cross-entropy, distillation and generated features on a linear model, by hand in float64.

    The second case is a small client.
    """
    bench = bench_for(model={"name": "mlp", "hidden": []}, training=training)
    first = bench.initial("model")
    down = Down(model=first, teacher=moved(first, 1), generator=bench.initial("generator"))
    client = Client(bench, "1", 2, 3, {})
    up = KDIA(lambda_kd=0.7, lambda_gen=0.3).client(client, down)

    x, y = client.train.x.flatten(1).double().numpy(), client.train.y.numpy()
    streams = {
        purpose: torch_stream(3, "client", 2, "1", purpose)
        for purpose in ("batches", "kdia noise", "kdia labels")
    }
    epochs, size = (2 if "epochs" in training else 3), training["batch"]
    assert (len(y) < size) == ("steps" in training)
    labels = label_pool(len(y), 10, epochs, len(y) < size, streams["kdia labels"]).numpy()
    generator = bench.take("generator").net.eval()
    w, b = (first[f"head.{part}"].double().numpy().copy() for part in ("weight", "bias"))
    teacher = [down.teacher[f"head.{part}"].double().numpy() for part in ("weight", "bias")]
    for epoch in range(epochs):
        order = torch.randperm(len(y), generator=streams["batches"]).numpy()
        for start in range(0, len(y), size):
            places = order[start : start + size]
            wanted = labels[epoch][start : start + size]
            with torch.no_grad():
                made = (
                    generator(
                        torch.randn(len(places), 100, generator=streams["kdia noise"]),
                        torch.from_numpy(wanted),
                    )
                    .double()
                    .numpy()
                )
            slopes = []
            for place, label, features in zip(places, wanted, made, strict=True):
                own, target = w @ x[place] + b, teacher[0] @ x[place] + teacher[1]
                distilled = (softmax(own / 2) - softmax(target / 2)) / 2
                slopes.append((softmax(own) - np.eye(10)[y[place]] + 0.7 * distilled, x[place]))
                slopes.append((0.3 * (softmax(w @ features + b) - np.eye(10)[label]), features))
            w = w - 0.1 * sum(np.outer(slope, values) for slope, values in slopes) / len(places)
            b = b - 0.1 * sum(slope for slope, _ in slopes) / len(places)
    np.testing.assert_allclose(up.model["head.weight"], w, atol=3e-6)
    np.testing.assert_allclose(up.model["head.bias"], b, atol=3e-6)


def test_a_large_client_shuffles_one_pool_and_a_small_one_draws_anew() -> None:
    large = label_pool(40, 10, 3, False, torch.Generator().manual_seed(0))
    assert large.shape == (3, 40)
    assert all(torch.equal(row.sort().values, large[0].sort().values) for row in large)
    assert not torch.equal(large[0], large[1])
    small = label_pool(40, 10, 3, True, torch.Generator().manual_seed(0))
    assert torch.equal(
        small.flatten(), torch.randint(10, (120,), generator=torch.Generator().manual_seed(0))
    )  # slices of one pool
    assert all(
        label_pool(0, 10, 2, small, torch.Generator()).shape == (2, 0) for small in (True, False)
    )


@pytest.mark.parametrize("more", [0, 1])
def test_a_client_is_small_below_the_batch_size(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(Client(bench_for(), "0", 1, 3, {}).train)
    client = Client(bench_for(training={"batch": size + more}), "0", 1, 3, {})
    asked = []
    monkeypatch.setattr("equipoise.methods.kdia.label_pool", lambda *given: asked.append(given[3]))
    KDIA()._generated(client, client.load(None, model="generator"))
    assert asked == [more == 1]


def test_labels_of_the_real_batch_give_features_of_its_classes() -> None:
    client = Client(bench_for(), "0", 1, 3, {})
    batch, student = batch_of(client, 6), client.load(None)
    generator = client.load(None, model="generator")
    value = KDIA(labels="real")._generated(client, generator)(
        Outputs(student, batch.x, batch.x), batch
    )
    noise = torch.randn(6, 100, generator=torch_stream(3, "client", 1, "0", "kdia noise"))
    head = cast(Network, student.net).head
    assert value.item() == cross_entropy(head(generator.net.eval()(noise, batch.y)), batch.y).item()


def test_diversity_is_a_ratio_of_means() -> None:
    generator = torch.Generator().manual_seed(0)
    noise, features = (
        torch.randn(6, 3, generator=generator),
        torch.rand(6, 2, 4, generator=generator),
    )
    far = [abs(float(noise[k][i] - noise[k + 3][i])) for k in range(3) for i in range(3)]
    apart = [
        abs(float(a - b))
        for k in range(3)
        for a, b in zip(features[k].flatten(), features[k + 3].flatten(), strict=True)
    ]
    assert float(diversity_loss(noise, features)) == pytest.approx(
        (sum(far) / 9) / (sum(apart) / 24), rel=1e-4
    )
    assert float(diversity_loss(noise, torch.ones(6, 2))) == pytest.approx(1e5)


@pytest.mark.parametrize(
    "head",
    [
        nn.Linear(5, 4),
        nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 4)),
    ],
)
def test_heads_answer_together(head: nn.Module) -> None:
    model = Model(Network(nn.Identity(), head), "model")
    trees = [moved(model.tree(), seed) for seed in range(3)]
    features = torch.rand(7, 5)
    expected = torch.zeros(7, 4)
    for tree, share in zip(trees, [0.2, 0.5, 0.3], strict=True):
        own = copy.deepcopy(head).eval()
        own.load_state_dict({name.removeprefix("head."): tensor for name, tensor in tree.items()})
        expected += share * own(features).detach()
    torch.testing.assert_close(heads(model, trees, np.array([2.0, 5.0, 3.0]))(features), expected)


def test_the_generator_matches_a_plain_reference() -> None:
    """Three steps of Adam on Eq. 3-4, head by head and in float64."""
    method = KDIA(gen_steps=3, gen_batch=8, gen_batches=2, gen_lr=0.01)
    server, state, ups = observed(method, {"0": 10, "1": 30, "2": 60}, [["0", "2"]])
    done = method.update(server, state, ups, Weights(np.array([1.0, 3.0])))
    streams = {
        purpose: torch_stream(3, "server", 1, purpose) for purpose in ("kdia noise", "kdia labels")
    }
    labels = label_pool(16, 10, 2, False, streams["kdia labels"]).flatten()
    net = cast(Generator, copy.deepcopy(server._bench.take("generator").net)).double().train()
    memory = {
        name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in net.named_parameters()
    }
    for step in range(1, 4):
        z, y = (
            torch.randn(8, 100, generator=streams["kdia noise"]).double(),
            labels[8 * (step - 1) : 8 * step],
        )
        made = net(z, y)
        each = [
            made @ up.model["head.weight"].double().T + up.model["head.bias"].double() for up in ups
        ]
        logits = 0.25 * each[0] + 0.75 * each[1]
        spread = (made[:4] - made[4:]).abs().mean() / (z[:4] - z[4:]).abs().mean()
        loss = -torch.stack(
            [row[label] - row.logsumexp(0) for row, label in zip(logits, y, strict=True)]
        ).mean() + 1 / (spread + 1e-5)
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for (name, p), g in zip(net.named_parameters(), gradients, strict=True):
                g = g + 1e-5 * p
                memory[name] = (
                    0.9 * memory[name][0] + 0.1 * g,
                    0.999 * memory[name][1] + 0.001 * g**2,
                )
                mean, square = (
                    memory[name][0] / (1 - 0.9**step),
                    memory[name][1] / (1 - 0.999**step),
                )
                p -= 0.01 * mean / (square.sqrt() + 1e-8)
    z, y = torch.randn(32, 100, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 10
    # What batch norm takes away (biases before it) moves by rounding alone, so what the two make is
    # compared.
    trees = (done.generator, server.initial("generator"))
    trained, untrained = (
        server._bench.take("generator", tree).net.train()(z, y).detach() for tree in trees
    )
    torch.testing.assert_close(trained, net(z.double(), y).float(), atol=2e-4, rtol=0)
    assert (trained - untrained).abs().max() > 0.02


@pytest.mark.parametrize("model", [MLP, CNN, {"name": "moon_cnn"}])
def test_a_trained_generator_makes_what_the_heads_recognise(model: Any) -> None:
    """Flat features and maps; the uploaded heads stay as they were."""
    data = {"name": "digits", "partition": "iid", "clients": 2, "image_size": 16}
    method = KDIA(gen_steps=30, diversity=0, gen_batch=32)
    bench = bench_for(method, model=model, data=data)
    server = Server(bench, ["0", "1"], {"0": 5, "1": 9}, rounds=2, round=1)
    ups = Ups(
        [(client, Up(model=moved(bench.initial("model"), int(client)))) for client in ("0", "1")]
    )
    before = [up.model.clone() for up in ups]
    state = method.update(server, method.start(server), ups, Weights(np.array([5.0, 9.0])))
    assert all(same(up.model, tree) for up, tree in zip(ups, before, strict=True))
    answer, labels = (
        heads(server.load(before[0]), before, np.array([5.0, 9.0])),
        torch.arange(60) % 10,
    )
    losses = []
    for tree in (bench.initial("generator"), state.generator):
        made = bench.take("generator", tree).net.train()(
            torch.randn(60, 100, generator=torch.Generator().manual_seed(0)), labels
        )
        losses.append(cross_entropy(answer(made), labels).item())
    assert losses[1] < 0.85 * losses[0]


@pytest.mark.parametrize(
    ("options", "steps"),
    [({"preset": "quick"}, 50), ({"preset": "quick", "gen_steps": 7}, 7), ({}, 2000)],
)
def test_presets_bound_the_steps_of_the_generator(
    options: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        Server,
        "minimise",
        staticmethod(lambda tensors, loss, steps, **more: asked.append((steps, more))),
    )
    method = KDIA(**options)
    server, state, ups = observed(method, {"0": 10, "1": 30}, [["0", "1"]])
    method.update(server, state, ups, Weights(np.ones(2)))
    assert asked == [(steps, {"lr": 1e-3, "weight_decay": 1e-5})]


def test_the_papers_generator() -> None:
    task = Task("classification", (3, 32, 32), 10)
    generator = KDIA().models(task, {"model": lambda: build("moon_cnn", task)})["generator"]()
    assert sum(p.numel() for p in generator.parameters()) == 890_724
    made = generator(torch.randn(4, 100), torch.arange(4))
    assert made.shape == (4, 16, 5, 5) and made.min() > 0 and made.max() < 1


def test_another_weight_rule_may_weigh_its_replies(tmp_path: Path) -> None:
    run = eq.run(
        experiment(compose(SMALL, weights=FedAvg(average="uniform")), rounds=1),
        out=tmp_path / "run",
    )
    assert near(
        entries(run, "global"), averaged(list(load_server(run.store).last.values()), [1, 1])
    )


def test_the_generator_goes_on_from_the_last_round(tmp_path: Path) -> None:
    method = KDIA(gen_steps=5, gen_batch=8, gen_batches=2)
    runs = [
        eq.run(experiment(method, rounds=rounds), out=tmp_path / str(rounds)) for rounds in (1, 2)
    ]
    first, second = (load_server(run.store).generator for run in runs)
    assert 0 < (second - first).norm() < (second - bench_for(method).initial("generator")).norm()


def test_what_cannot_be_generated_is_refused() -> None:
    with pytest.raises(ValueError, match="regression"):
        KDIA(lambda_gen=0).check(Task("regression", (3,), 1))
    PLAIN.check(Task("regression", (3,), 1))
    with pytest.raises(ValueError, match="lambda_gen=0"):
        bench_for(model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    with pytest.raises(ValueError, match="gen_batch"):
        make("kdia", {"gen_batch": 7})

"""FedAKD: exact reductions, the selection of samples, and a plain reference of its rounds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.client import Client
from equipoise.composition import compose
from equipoise.data import federate
from equipoise.experiment.build import prepare
from equipoise.losses import distillation_loss
from equipoise.method import Ups
from equipoise.methods.fedakd import FedAKD
from equipoise.methods.fedavg import FedAvg
from equipoise.records import Down, State, Up
from equipoise.runs.run import Run
from equipoise.server import Server
from equipoise.streams import torch_stream
from equipoise.task import Task
from equipoise.training.workbench import Workbench
from equipoise.tree import Tree

CNN = {"name": "cnn", "width": 4, "hidden": 8}  # has batch norm
LINEAR = {"name": "mlp", "hidden": []}


def experiment(method: Any, **changes: Any) -> eq.Experiment:
    settings = {
        "data": {"name": "digits", "partition": "dirichlet:0.5", "clients": 3},
        "model": CNN,
        "rounds": 2,
        "workers": 0,
        "seed": 3,
    }
    return eq.Experiment(**{**settings, "evaluation": {"every": 0}, **changes, "method": method})


def bench_for(method: Any = "fedavg", **changes: Any) -> Workbench:
    wanted = experiment(method, **changes)
    federation = federate(wanted.data, wanted.seed)
    return prepare(wanted, federation.task, federation.ids, federation)[0]


def entries(run: Run, model: str, client: str | None = None) -> dict[str, torch.Tensor]:
    return dict(run.model(model, client=client).state_dict())


def same(first: Any, second: Any) -> bool:
    return set(first) == set(second) and all(
        torch.equal(first[name], second[name]) for name in first
    )


@pytest.mark.parametrize(("beta", "participation"), [(0.0, {}), (2.0, {"fraction": 0.5})])
def test_without_alpha_the_personal_models_are_those_of_standalone(
    tmp_path: Path, beta: float, participation: dict[str, float]
) -> None:
    changes = {"participation": participation, "rounds": 3}
    alone = eq.run(experiment("standalone", **changes), out=tmp_path / "alone")
    joint = eq.run(experiment(FedAKD(alpha=0, beta=beta), **changes), out=tmp_path / "joint")
    trained = {client for row in joint.rounds() for client in row["joined"]}
    assert trained
    for client in trained:
        assert same(entries(alone, "personal", client), entries(joint, "personal", client))


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_all_data_without_beta_is_fedavg(tmp_path: Path, alpha: float) -> None:
    plain = eq.run(experiment("fedavg"), out=tmp_path / "plain")
    taught = eq.run(
        experiment(FedAKD(alpha=alpha, beta=0, teach_on="all")), out=tmp_path / "taught"
    )
    assert same(entries(plain, "global"), entries(taught, "global"))


@pytest.mark.thorough
def test_every_part_matters(tmp_path: Path) -> None:
    """Guards the reductions above: no option is without effect."""
    variants = [
        FedAKD(),
        FedAKD(alpha=0),
        FedAKD(beta=0),
        FedAKD(temperature=3),
        FedAKD(teach_on="all"),
        FedAKD(average="correct"),
    ]
    variants += [FedAKD(personal="copy"), FedAKD(personal="copy_train")]
    found = [
        entries(eq.run(experiment(method), out=tmp_path / str(place)), "global")
        for place, method in enumerate(variants)
    ]
    assert all(not same(a, b) for place, a in enumerate(found) for b in found[:place])


def reference_step(
    w: np.ndarray,
    b: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    teacher: np.ndarray,
    weight: float,
    lr: float,
) -> None:
    """One step of SGD on CE + weight * KL(teacher || student) of a linear softmax model, sample by
    sample, in place.
    """
    gradient_w, gradient_b = np.zeros_like(w), np.zeros_like(b)
    for sample, label, target in zip(x, y, teacher, strict=True):
        chances = softmax(w @ sample + b)
        slope = chances - np.eye(len(b))[label] + weight * (chances - softmax(target))
        gradient_w += np.outer(slope, sample) / len(x)
        gradient_b += slope / len(x)
    w -= lr * gradient_w
    b -= lr * gradient_b


def softmax(logits: np.ndarray) -> np.ndarray:
    amounts = np.exp(logits - logits.max())
    return np.asarray(amounts / amounts.sum())


def reference_fit(
    model: tuple[np.ndarray, np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    teacher: np.ndarray,
    weight: float,
    order: torch.Generator,
) -> None:
    for places in np.array_split(
        torch.randperm(len(y), generator=order).numpy(), range(32, len(y), 32)
    ):
        reference_step(*model, x[places], y[places], teacher[places], weight, lr=0.1)


def test_rounds_match_a_plain_reference(tmp_path: Path) -> None:
    alpha, beta = 0.7, 1.3
    method = FedAKD(alpha=alpha, beta=beta)
    run = eq.run(experiment(method, model=LINEAR), out=tmp_path / "run")
    bench = bench_for(model=LINEAR)
    first = bench.initial("model")
    shared = [first["head.weight"].double().numpy(), first["head.bias"].double().numpy()]
    personal = {client: [part.copy() for part in shared] for client in run.clients}
    for number in (1, 2):
        uploads, sizes = [], []
        for client in run.clients:
            samples = Client(bench, client, number, 2, {}).train
            x, y = samples.x.flatten(1).double().numpy(), samples.y.numpy()
            order = [torch_stream(3, "client", number, client, "batches") for _ in range(2)]
            own, copy = personal[client], [part.copy() for part in shared]
            reference_fit((own[0], own[1]), x, y, x @ shared[0].T + shared[1], alpha, order[0])
            logits = x @ own[0].T + own[1]
            right = np.array(
                [int(np.argmax(row)) == label for row, label in zip(logits, y, strict=True)]
            )
            assert 0 < right.sum() < len(y)
            reference_fit((copy[0], copy[1]), x[right], y[right], logits[right], beta, order[1])
            uploads.append(copy)
            sizes.append(len(y))
        shared = [
            sum(n * upload[part] for n, upload in zip(sizes, uploads, strict=True)) / sum(sizes)
            for part in (0, 1)
        ]
    for client in run.clients:
        np.testing.assert_allclose(
            entries(run, "personal", client)["head.weight"], personal[client][0], atol=2e-6
        )
    np.testing.assert_allclose(entries(run, "global")["head.weight"], shared[0], atol=2e-6)
    np.testing.assert_allclose(entries(run, "global")["head.bias"], shared[1], atol=2e-6)


def test_distillation_from_itself_is_nothing_and_otherwise_cross_entropy_less_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    teacher = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    student = teacher.clone().requires_grad_()
    loss = distillation_loss(student, teacher)
    loss.backward()
    assert loss.item() == 0
    assert student.grad is not None and not student.grad.any()
    other = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    chances = teacher.softmax(1)
    cross_entropy = -(chances * other.log_softmax(1)).sum(1).mean()
    entropy = -(chances * chances.log()).sum(1).mean()
    assert float(distillation_loss(other, teacher)) == pytest.approx(float(cross_entropy - entropy))
    assert float(distillation_loss(other, teacher)) > 0


def test_gradient_of_the_binary_logistic_case() -> None:
    """Eq. 30: the mean of (sigma(x'w) - sigma(x'w0)) x."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(9, 3, generator=generator, dtype=torch.float64)
    w0 = torch.randn(3, generator=generator, dtype=torch.float64)
    w = torch.randn(3, generator=generator, dtype=torch.float64).requires_grad_()
    zero = torch.zeros(9, dtype=torch.float64)
    distillation_loss(torch.stack([zero, x @ w], 1), torch.stack([zero, x @ w0], 1)).backward()
    expected = ((torch.sigmoid(x @ w.detach()) - torch.sigmoid(x @ w0))[:, None] * x).mean(0)
    torch.testing.assert_close(w.grad, expected, rtol=1e-13, atol=1e-15)


def test_as_many_samples_count_as_the_personal_model_gets_right() -> None:
    bench, method = bench_for(), FedAKD(average="correct")
    client = Client(bench, "1", 1, 2, {})
    up = method.client(client, Down(model=bench.initial("model")))
    net = client.load(client.state["local"]).net.eval()
    right = sum(
        int(net(x[None]).argmax()) == int(y)
        for x, y in zip(client.train.x, client.train.y, strict=True)
    )
    assert 0 < up.correct < len(client.train)
    assert up.correct == right


def test_selection_does_not_depend_on_the_batch_size() -> None:
    counts = []
    for batch in (7, 64):
        bench = bench_for(training={"batch": batch})
        counts.append(
            FedAKD(average="correct", personal="copy")
            .client(Client(bench, "1", 1, 2, {}), Down(model=bench.initial("model")))
            .correct
        )
    assert counts[0] == counts[1] > 0


def always_wrong() -> Workbench:
    """A federation whose every label differs from what the initial model answers."""
    bench = bench_for()
    federation = bench.federation
    assert federation is not None
    with torch.no_grad():
        answers = bench.take("model").net.eval()(federation.x).argmax(1)
    bench.federation = dataclasses.replace(federation, y=(answers + 1) % 10)
    return bench


def test_a_client_that_gets_nothing_right_sends_the_model_back_as_it_came() -> None:
    bench = always_wrong()
    up = FedAKD(personal="copy", average="correct").client(
        Client(bench, "0", 1, 2, {}), Down(model=bench.initial("model"))
    )
    assert up.correct == 0
    assert same(up.model, bench.initial("model"))


def server_for(bench: Workbench, sizes: dict[str, int]) -> Server:
    return Server(bench, list(sizes), sizes, rounds=2, round=1)


def replies(trees: list[Tree], correct: list[int]) -> Ups:
    return Ups(
        [
            (str(k), Up(model=tree, correct=count))
            for k, (tree, count) in enumerate(zip(trees, correct, strict=True))
        ]
    )


def test_weights_by_correct_samples() -> None:
    bench = bench_for()
    tree = bench.initial("model")
    server, method = server_for(bench, {"0": 10, "1": 30, "2": 70}), FedAKD(average="correct")
    state = State(model=tree)
    assert method.weights(server, state, replies([tree] * 3, [4, 0, 6])).shares.tolist() == [
        4,
        0,
        6,
    ]
    # half of each client's samples
    alike = replies([tree, tree + tree, tree + 2 * tree], [5, 15, 35])
    by_correct, by_size = (
        one.update(server, state, alike, one.weights(server, state, alike)).model
        for one in (method, FedAKD())
    )
    assert all(torch.allclose(by_correct[name], by_size[name], rtol=1e-6) for name in by_size)


def test_nobody_right_keeps_the_global_model() -> None:
    bench = bench_for()
    tree, method = bench.initial("model"), FedAKD(average="correct")
    server, state, ups = (
        server_for(bench, {"0": 10, "1": 30, "2": 70}),
        State(model=tree),
        replies([tree, tree + tree, tree], [0, 0, 0]),
    )
    assert same(method.update(server, state, ups, method.weights(server, state, ups)).model, tree)


def test_a_teacher_is_never_changed() -> None:
    """Parameters and batch-norm statistics of the frozen model stay, in both directions."""
    bench, method = bench_for(), FedAKD()
    client, down = Client(bench, "2", 1, 2, {}), Down(model=bench.initial("model"))
    shared = client.load(down.model)
    local = method.personal_model(client, down, shared)
    assert same(shared.tree(), down.model)
    assert not same(local.tree(), down.model)
    whole = Client(bench, "2", 1, 2, {})
    method.client(whole, down)
    assert same(whole.state["local"], local.tree())


def test_only_the_copy_of_the_global_model_is_uploaded() -> None:
    bench = bench_for()
    client = Client(bench, "2", 1, 2, {})
    up = FedAKD().client(client, Down(model=bench.initial("model")))
    assert set(up) == {"model"}
    assert not same(up.model, client.state["local"])


def test_single_distillation_has_no_personal_model_of_its_own(tmp_path: Path) -> None:
    run = eq.run(experiment(FedAKD(personal="copy")), out=tmp_path / "run")
    assert all(
        same(entries(run, "personal", client), entries(run, "global")) for client in run.clients
    )


def test_the_other_reading_trains_the_copy_on_the_own_data() -> None:
    bench, down = bench_for(), Down(model=bench_for().initial("model"))
    client = Client(bench, "0", 1, 2, {"local": 0 * down.model})
    FedAKD(personal="copy_train").client(client, down)
    assert same(client.state["local"], FedAvg().client(Client(bench, "0", 1, 2, {}), down).model)


def test_test_samples_never_reach_training() -> None:
    bench, method = bench_for(), FedAKD()
    down, uploads = Down(model=bench.initial("model")), []
    federation = bench.federation
    assert federation is not None
    x, y = federation.x.clone(), federation.y.clone()
    held_out = np.concatenate([*federation.test, *federation.validation])
    x[held_out], y[held_out] = torch.nan, 0
    for data in (federation, dataclasses.replace(federation, x=x, y=y)):
        bench.federation = data
        client = Client(bench, "1", 1, 2, {})
        uploads.append((method.client(client, down).model, client.state["local"]))
    assert same(uploads[0][0], uploads[1][0]) and same(uploads[0][1], uploads[1][1])


def test_random_inputs_are_answered_by_the_teacher_itself() -> None:
    """In the first step teacher and student are equal, so distillation adds exactly nothing, unless
    answers belong to other inputs.
    """
    data = {"name": "digits", "partition": "iid", "clients": 2, "augment": ["flip"]}
    bench = bench_for(data=data, model=LINEAR, training={"steps": 1})
    personal = []
    for alpha in (0.0, 5.0):
        client = Client(bench, "0", 1, 2, {})
        assert client.random_inputs
        FedAKD(alpha=alpha).client(client, Down(model=bench.initial("model")))
        personal.append(client.state["local"])
    assert same(*personal)
    assert not same(personal[0], bench.initial("model"))


def test_a_client_never_asked_uses_the_global_model(tmp_path: Path) -> None:
    run = eq.run(experiment(FedAKD(), participation={"number": 1}, rounds=1), out=tmp_path / "run")
    (asked,) = run.rounds()[0]["joined"]
    for client in run.clients:
        assert same(entries(run, "personal", client), entries(run, "global")) == (client != asked)


def test_one_client_alone(tmp_path: Path) -> None:
    run = eq.run(
        experiment(FedAKD(), data={"name": "digits", "partition": "iid", "clients": 1}),
        out=tmp_path / "run",
    )
    assert set(run.models()) == {"personal", "global"}
    assert run.main_model == "personal"


def test_regression_needs_all_samples() -> None:
    task = Task("regression", (3,), 1)
    for method in (FedAKD(), FedAKD(teach_on="all", average="correct")):
        with pytest.raises(ValueError, match='teach_on="all"'):
            method.check(task)
    FedAKD(teach_on="all").check(task)


def test_another_weight_rule_may_weigh_its_replies(tmp_path: Path) -> None:
    method = compose(FedAKD(average="correct"), weights=FedAvg(average="uniform"))
    run = eq.run(experiment(method, rounds=1), out=tmp_path / "run")
    assert [row["share"] for row in run.weights()] == pytest.approx([1 / 3] * 3)


def test_weights_by_correct_samples_need_their_counts() -> None:
    bench = bench_for()
    ups = Ups([("0", Up(model=bench.initial("model")))])
    with pytest.raises(ValueError, match='set average="size"'):
        FedAKD(average="correct").weights(server_for(bench, {"0": 10}), State(), ups)


ROTATED = {
    "data": {"name": "digits", "partition": "dirichlet:0.5", "clients": 4},
    "model": {"name": "mlp", "hidden": [8]},
    "workers": 0,
    "seed": 5,
    "rounds": 3,
}


def _global(run: Any) -> dict[str, torch.Tensor]:
    return dict(run.model("global").state_dict())


def test_in_the_order_of_the_code_the_global_model_is_fedavgs_without_distillation(
    tmp_path: Path,
) -> None:
    rotated = eq.run(
        {**ROTATED, "method": {"name": "fedakd", "order": "code", "beta": 0.0, "teach_on": "all"}},
        tmp_path / "code",
    )
    plain = eq.run({**ROTATED, "method": "fedavg"}, tmp_path / "fedavg")
    assert all(torch.equal(value, _global(plain)[name]) for name, value in _global(rotated).items())


def test_in_the_order_of_the_code_personal_models_are_standalones_without_distillation(
    tmp_path: Path,
) -> None:
    rotated = eq.run(
        {**ROTATED, "method": {"name": "fedakd", "order": "code", "alpha": 0.0}}, tmp_path / "code"
    )
    alone = eq.run({**ROTATED, "method": "standalone"}, tmp_path / "alone")
    for client in rotated.clients:
        mine, theirs = (
            dict(run.model("personal", client).state_dict()) for run in (rotated, alone)
        )
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.thorough
def test_the_order_of_the_code_teaches_first_on_all_samples_then_on_those_that_were_right_after_learning(
    tmp_path: Path,
) -> None:
    both = {
        order: eq.run(
            {**ROTATED, "method": {"name": "fedakd", "order": order, "beta": 2.0}}, tmp_path / order
        )
        for order in ("paper", "code")
    }
    assert any(
        not torch.equal(value, _global(both["paper"])[name])
        for name, value in _global(both["code"]).items()
    )
    once = {**ROTATED, "rounds": 1}
    first = {
        on: eq.run(
            {**once, "method": {"name": "fedakd", "order": "code", "teach_on": on}},
            tmp_path / f"first {on}",
        )
        for on in ("all", "correct")
    }
    second = {
        on: eq.run(
            {**ROTATED, "rounds": 2, "method": {"name": "fedakd", "order": "code", "teach_on": on}},
            tmp_path / f"second {on}",
        )
        for on in ("all", "correct")
    }
    assert all(
        torch.equal(value, _global(first["all"])[name])
        for name, value in _global(first["correct"]).items()
    )
    assert any(
        not torch.equal(value, _global(second["all"])[name])
        for name, value in _global(second["correct"]).items()
    )

"""The workbench and the server by themselves: which network is built, provided and evaluated, and
how.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.data.samples import Samples
from equipoise.models import Network
from equipoise.server import Server, ServerData
from equipoise.streams import Turn, default_generator, number, torch_stream
from equipoise.task import Task
from equipoise.training import Training
from equipoise.training.workbench import Workbench, factories, one_thread, prefers_channels_last

TASK, VALUES = Task("classification", (4,), 3), Task("regression", (4,), 1)


def net(hidden: int = 5, outputs: int = 3) -> Network:
    return Network(nn.Sequential(nn.Linear(4, hidden), nn.ReLU()), nn.Linear(hidden, outputs))


def bench(task: Task = TASK, **more: Any) -> Workbench:
    return Workbench(
        task,
        more.pop("architectures", {"model": net, "private": net}),
        Training(**more.pop("training", {})),
        seed=3,
        **more,
    )


def samples(count: int) -> Samples:
    x, y = torch.arange(4.0 * count).reshape(count, 4) / 10, torch.arange(count) % 3
    return Samples(
        torch.arange(count), lambda positions: x[positions], lambda positions: y[positions]
    )


def test_a_client_with_an_architecture_of_its_own_has_that_of_this_model_only() -> None:
    shop = bench(overrides={"model": {"bo": lambda: net(2)}})
    assert [shop.key("model", who) for who in ("ada", "bo", None)] == [
        "model",
        "model@bo",
        "model",
    ] and shop.key("private", "bo") == "private"
    assert shop.initial("model@bo")["head.weight"].shape == (3, 2) and shop.initial("model")[
        "head.weight"
    ].shape == (3, 5)
    for wrong in ("teacher", "model@ada", "private@bo"):
        with pytest.raises(
            KeyError, match=rf"no model '{wrong}': this experiment has \['model', 'private'\]"
        ):
            shop.take(wrong)


def test_networks_are_built_once_and_lent_again() -> None:
    built: list[int] = []

    def counted() -> Network:
        built.append(1)
        return net()

    shop = bench(architectures={"model": counted})
    assert shop.initial("model") is shop.initial("model") and len(built) == 1
    with shop.lending():
        first = shop.take("model")
        with shop.lending():
            second = shop.take("model")
            second.net(torch.ones(1, 4)).sum().backward()
        assert len(built) == 2 and second.net.head.weight.grad is None
        assert shop.take("model") is second, (
            "what was taken inside came back, what was taken before is still lent"
        )
    assert shop._lent == [] and {id(one) for one in shop._free["model"]} == {id(first), id(second)}
    with pytest.raises(ZeroDivisionError), shop.lending():
        shop.take("model")
        raise ZeroDivisionError
    assert len(shop._free["model"]) == 2 and len(built) == 2
    other = shop.without_data
    assert other.federation is None and other._free is shop._free and other.position == {}


def test_a_lent_network_holds_the_tree_or_the_initial_weights() -> None:
    shop = bench()
    start = shop.initial("model")
    with shop.lending():
        model = shop.take("model", start * 2)
        assert torch.equal(model.tree()["head.weight"], 2 * start["head.weight"])
    with shop.lending():
        assert torch.equal(shop.take("model").tree()["head.weight"], start["head.weight"])
    with default_generator(3, "initial model"):
        assert torch.equal(net().head.weight.detach(), start["head.weight"])


class Noisy(nn.Module):
    """Not a network of samples: it asks for two arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        return noise


@pytest.mark.parametrize(
    ("made", "single"),
    [
        (lambda: net(), True),
        (lambda: nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), False),
        (lambda: nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)).eval(), False),
        (lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.BatchNorm1d(1), nn.Flatten()), True),
        (Noisy, True),
    ],
)
def test_who_takes_a_batch_of_one(made: Any, single: bool) -> None:
    shop = bench(architectures={"model": made})
    model = shop.take("model")
    assert model.takes_single is single
    statistics = [
        value
        for name, value in model.tree().items()
        if name.endswith(("running_mean", "num_batches_tracked"))
    ]
    assert not any(value.any() for value in statistics), "the trial left no trace"


def test_the_tasks_own_loss() -> None:
    logits, y = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 3.0]]), torch.tensor([0, 1])
    assert torch.equal(bench().supervise(logits, y), F.cross_entropy(logits, y))
    p = logits.softmax(1)[torch.arange(2), y]
    focal = bench(training={"loss": "focal", "focal_gamma": 1.5}).supervise(logits, y)
    torch.testing.assert_close(focal, (-((1 - p) ** 1.5) * p.log()).mean())
    numbers = bench(VALUES, training={"loss": "focal"}).supervise(
        torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 2.0])
    )
    assert numbers.item() == 2.0


@pytest.mark.parametrize("count", [0, 1, 300])
def test_outputs_are_of_all_samples_in_order_and_in_evaluation_mode(count: int) -> None:
    shop = bench(
        architectures={
            "model": lambda: Network(
                nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5)), nn.Linear(5, 3)
            )
        }
    )
    model, some = shop.take("model"), samples(count)
    model.net.train()
    logits, features = (
        shop.outputs(model, some),
        shop.outputs(model, some, lambda x: -x, features=True),
    )
    assert not model.net.training and not logits.requires_grad and not features.requires_grad
    assert logits.shape == (count, 3) and features.shape == (count, 5)
    torch.testing.assert_close(logits, model.net(some.x).detach())
    torch.testing.assert_close(features, model.net.features(-some.x).detach())


@pytest.mark.parametrize(
    ("made", "shape", "last"),
    [
        (nn.Conv2d(1, 2, 3), (1, 8, 8), True),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), (1, 8, 8), False),
        (nn.Conv2d(1, 2, 3), (8, 8), False),
        (nn.Conv1d(1, 2, 3), (1, 8, 8), False),
    ],
)
def test_convolutions_over_images_prefer_channels_last(
    made: nn.Module, shape: tuple[int, ...], last: bool
) -> None:
    assert prefers_channels_last(made, Task("classification", shape, 2)) is last


def test_specifications_become_networks() -> None:
    own = nn.Linear(4, 3)
    made = {
        name: build()
        for name, build in factories(
            {"own": own, "called": net, "named": {"name": "mlp", "hidden": [7]}}, TASK
        ).items()
    }
    assert made["own"].features is not own and torch.equal(made["own"].features.weight, own.weight)
    assert made["called"].head.in_features == 5 and made["named"].head.in_features == 7


def test_one_thread_and_the_callers_setting_comes_back() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(ZeroDivisionError), one_thread():
            assert torch.get_num_threads() == 1
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# The server.


def server(**more: Any) -> Server:
    return Server(
        bench(training={"lr": 0.8, "lr_decay": 0.5}), ["ada"], {"ada": 3}, **{"rounds": 3, **more}
    )


def test_the_server_knows_its_round() -> None:
    assert [server(round=number).lr for number in (0, 1, 2, 3, 5)] == [0.8, 0.8, 0.4, 0.2, 0.2]
    fresh = server()
    assert (fresh.round, fresh.attempt, fresh.joined, fresh.main) == (0, 0, [], "model")
    assert (fresh.device, fresh.task, fresh.training.lr) == ("cpu", TASK, 0.8)
    assert server(round=2).seed("x") == number(3, "server", 2, "x")
    assert server(round=2, attempt=1).seed("x") == number(3, "server", 2, "attempt 1", "x")
    assert (
        server(round=2).stream("x").initial_seed()
        == torch_stream(3, "server", 2, "x").initial_seed()
    )


def test_the_servers_models_are_those_named_or_the_main_one() -> None:
    shop = Workbench(TASK, {"model": net, "other": lambda: net(2)}, Training(), 3)
    for main, width in (("model", 5), ("other", 2)):
        one = Server(shop, [], {}, 1, main=main)
        assert (
            one.initial()["head.weight"].shape == one.load(None).net.head.weight.shape == (3, width)
        )
        assert (
            one.initial("other")["head.weight"].shape
            == one.load(None, "other").net.head.weight.shape
            == (3, 2)
        )
        doubled = one.load(shop.initial("other") * 2, "model")
        assert doubled.name == "other" and torch.equal(
            doubled.tree()["head.weight"], 2 * shop.initial("other")["head.weight"]
        )


def test_the_server_measures_on_its_own_data_or_on_others() -> None:
    judged = server(data=ServerData(validation=samples(7)))
    model = judged.load(None)
    logits = model.net.eval()(samples(7).x).detach()
    torch.testing.assert_close(judged.predict(model), logits)
    assert len(judged.predict(model, samples(2))) == 2
    assert judged.loss(model) == pytest.approx(F.cross_entropy(logits, samples(7).y).item())
    assert judged.accuracy(model) == pytest.approx(
        float(np.mean(logits.argmax(1).numpy() == samples(7).y.numpy()))
    )
    with pytest.raises(RuntimeError, match=r"needs = \(.validation.,\)"):
        _ = server().validation
    assert len(server().predict(model, samples(2))) == 2, (
        "without data of its own it measures on what it is given"
    )


# Streams and tasks.


def test_users_who_take_turns_go_on_where_they_stopped() -> None:
    with default_generator(1, "dropout"):
        wanted = torch.rand(4)
    with default_generator(1, "dropout"):
        first, second = Turn(), Turn()
        drawn: dict[int, list[Tensor]] = {0: [], 1: []}
        for _ in range(2):
            for place, turn in enumerate((first, second)):
                with turn:
                    drawn[place].append(torch.rand(2))
    assert torch.equal(torch.cat(drawn[0]), wanted) and torch.equal(torch.cat(drawn[1]), wanted)


def test_a_task_of_plain_data() -> None:
    given = {"kind": "regression", "shape": [2, 3], "outputs": 1, "class_names": []}
    old = Task.of(given)
    assert (
        old == Task("regression", (2, 3), 1)
        and (old.centre, old.scale, old.class_names) == (0.0, 1.0, ())
        and not old.classifies
    )
    new = Task.of({**given, "centre": 5.0, "scale": 2.0})
    assert (new.centre, new.scale) == (5.0, 2.0) and new == old, "two seeds have one task"
    named = Task.of(
        {"kind": "classification", "shape": [4], "outputs": 2, "class_names": ["no", "yes"]}
    )
    assert (
        named.classifies
        and named.class_names == ("no", "yes")
        and (named.centre, named.scale) == (0.0, 1.0)
    )

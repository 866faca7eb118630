"""Small networks are trained without autograd, with the bits of autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.client import Client
from equipoise.losses.registry import squared_error
from equipoise.losses.terms import Batch, supervised, term
from equipoise.models import Model, Outputs, build, wrap
from equipoise.task import Task
from equipoise.training.direct import DirectNetwork, loss_gradient
from tests.helpers.plain import assert_equal
from tests.helpers.problems import bench_of
from tests.helpers.runs import settings

IMAGES = Task("classification", (1, 4, 4), 3)


def by_autograd(outputs: Outputs, batch: Batch) -> Tensor:
    """The supervised loss as a term that the direct kernels do not know."""
    return batch.supervise(outputs.logits, batch.y)


def client_of(
    model: Any, columns: int | tuple[int, ...], classes: int, rows: int, **training: Any
) -> Client:
    shape = (columns,) if isinstance(columns, int) else columns
    draw = np.random.default_rng(sum(shape) + rows)
    x = draw.normal(size=(rows, *shape)).astype(np.float32)
    y = draw.integers(0, classes, rows)
    y[:classes] = np.arange(classes)
    config = settings(
        "fedavg",
        data={"split": (1.0, 0.0, 0.0), "partition": "natural"},
        models={"model": model},
        training=training,
    )
    return Client(bench_of(config, {"ada": (x, y)})[0], "ada", 1, 3, {})


OPTIMISERS = [
    {"lr": 0.1},
    {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    {"lr": 0.01, "optimiser": "adam"},
    {"lr": 0.01, "optimiser": "adamw", "weight_decay": 0.1, "clip": 0.5},
]


@pytest.mark.parametrize("training", OPTIMISERS)
@pytest.mark.parametrize("batch", [1, 7, 13, 32])
@pytest.mark.parametrize(
    ("columns", "hidden", "classes"), [(30, [200, 200], 2), (13, [64], 2), (5, [7, 3, 9], 4)]
)
def test_a_fit_has_the_bits_of_autograd(
    columns: int, hidden: list[int], classes: int, batch: int, training: dict[str, Any]
) -> None:
    model = {"name": "mlp", "hidden": hidden}
    client = client_of(model, columns, classes, 60, batch=batch, epochs=2, **training)
    assert_bits_of_autograd(client)


def assert_bits_of_autograd(client: Client) -> None:
    ends = []
    for loss in (supervised, term(by_autograd)):
        trained = client.load(None)
        if loss is supervised:
            assert DirectNetwork.of(trained) is not None
        fitted = client.fit(trained, loss)
        ends.append((trained.tree(), fitted))
    assert_equal(ends[0][0], ends[1][0])
    assert (ends[0][1].loss, ends[0][1].steps) == (ends[1][1].loss, ends[1][1].steps)
    for name, state in ends[1][1].memory.items():
        for slot, value in state.items():
            assert torch.equal(ends[0][1].memory[name][slot], value)


@pytest.mark.parametrize("training", OPTIMISERS[:3])
@pytest.mark.parametrize("batch", [1, 7, 16])
@pytest.mark.parametrize(
    ("model", "shape"),
    [("lenet", (1, 28, 28)), ("lenet", (3, 17, 19)), ("fedave_mnist", (1, 9, 8))],
)
def test_a_fit_of_convolutions_has_the_bits_of_autograd(
    model: str, shape: tuple[int, ...], batch: int, training: dict[str, Any]
) -> None:
    assert_bits_of_autograd(client_of(model, shape, 3, 18, batch=batch, **training))


def test_a_gradient_hook_sees_what_autograd_computes() -> None:
    client = client_of({"name": "mlp", "hidden": [6]}, 4, 3, 20, batch=5, lr=0.1)
    seen: list[list[Tensor]] = []
    for loss in (supervised, term(by_autograd)):
        seen.append([])

        def halve(name: str, gradient: Tensor) -> Tensor:
            seen[-1].append(gradient.clone())
            return gradient / 2

        client.fit(client.load(None), loss, gradient=halve)
    assert len(seen[0]) == len(seen[1]) > 0
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))


def convolution(**options: Any) -> nn.Sequential:
    """Return a convolution of 4x4 images and a linear layer."""
    block = (nn.Conv2d(1, 2, 3, **options), nn.MaxPool2d(2), nn.ReLU())
    return nn.Sequential(*block, nn.Flatten(), nn.Linear(8, 3))


def network(name: str) -> Model:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3))
    nets: dict[str, nn.Module] = {
        "mlp": build("mlp", IMAGES),
        "own": wrap(flat),
        "batch norm": build("cnn", IMAGES),
        "convolution": wrap(convolution(padding=1)),
        "convolution with reflection": wrap(convolution(padding=1, padding_mode="reflect")),
        "convolution with a padding by name": wrap(convolution(padding="same")),
        "convolution without bias": wrap(convolution(padding=1, bias=False)),
        "dropout": wrap(nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Dropout(), nn.Linear(5, 3))),
        "no bias": wrap(nn.Sequential(nn.Flatten(), nn.Linear(16, 3, bias=False))),
        "two layers without ReLU": wrap(nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 3))),
        "ReLU at the end": wrap(nn.Sequential(nn.Linear(16, 3), nn.ReLU())),
    }  # fmt: skip
    return Model(nets[name], "model")


@pytest.mark.parametrize("name", ["mlp", "own", "convolution"])
def test_networks_of_known_layers_need_no_autograd(name: str) -> None:
    assert DirectNetwork.of(network(name)) is not None


@pytest.mark.parametrize(
    "name",
    [
        "batch norm",
        "convolution with reflection",
        "convolution with a padding by name",
        "convolution without bias",
        "dropout",
        "no bias",
        "two layers without ReLU",
        "ReLU at the end",
    ],
)
def test_other_networks_need_it(name: str) -> None:
    assert DirectNetwork.of(network(name)) is None


def test_hooks_need_it() -> None:
    model = network("mlp")
    handle = model.net.features[1].register_forward_hook(lambda *_: None)  # type: ignore[index, union-attr]
    assert DirectNetwork.of(model) is None
    handle.remove()
    handle = model.net.head.weight.register_hook(lambda gradient: gradient)  # type: ignore[union-attr]
    assert DirectNetwork.of(model) is None
    handle.remove()
    assert DirectNetwork.of(model) is not None


def test_frozen_parameters_need_it() -> None:
    net = build("mlp", IMAGES)
    net.head.bias.requires_grad_(False)  # type: ignore[union-attr]
    assert DirectNetwork.of(Model(net, "model")) is None


def test_images_without_a_flatten_are_not_flattened() -> None:
    """Linear layers act on the last dimension of what they are given."""
    layer = DirectNetwork.of(Model(wrap(nn.Linear(4, 3)), "model"))
    assert layer is not None
    assert layer.fits(torch.zeros(5, 4)) and not layer.fits(torch.zeros(5, 1, 4, 4))


def test_a_run_of_another_loss_trains_as_before(tmp_path: Any) -> None:
    run = eq.run(
        {
            "data": {"name": "digits", "clients": 2, "samples": 60},
            "training": {"loss": "focal"},
            "rounds": 1,
            "workers": 0,
        },
        tmp_path / "run",
    )
    assert run.status == "finished"


@pytest.mark.parametrize("rows", [1, 7, 32])
def test_the_squared_error_has_the_gradients_of_autograd(rows: int) -> None:
    model = Model(build("mlp", Task("regression", (13,), 1)), "model")
    dense = DirectNetwork.of(model)
    loss = loss_gradient(squared_error)
    assert dense is not None and loss is not None
    x, y = torch.randn(rows, 13), torch.randn(rows)
    value = squared_error(model(x).logits, y)
    expected = torch.autograd.grad(value, dense.parameters)
    with torch.no_grad():
        direct_value, gradients = dense.gradients(x, y, loss)
    assert direct_value.item() == value.item()
    assert all(torch.equal(one, other) for one, other in zip(gradients, expected, strict=True))

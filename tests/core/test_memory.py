"""An optimiser whose state was saved and read back continues without a difference.

Every built-in model is compared with torch.optim.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equipoise as eq
from equipoise.client import Client
from equipoise.data import federate
from equipoise.experiment.build import prepare
from equipoise.losses.terms import supervised
from equipoise.models import names
from equipoise.records import Record, read, write
from equipoise.tree import Tree

# with less, Adam takes whole steps along gradients that are nothing but rounding (a bias in front
# of a batch norm)
EPS = 1e-3
OPTIMISERS: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "sgd": ({"momentum": 0.9, "lr": 0.02}, lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9)),
    "adam": (
        {"optimiser": "adam", "lr": 0.001, "eps": EPS},
        lambda p: torch.optim.Adam(p, lr=0.001, eps=EPS),
    ),
    "adamw": (
        {"optimiser": "adamw", "lr": 0.001, "weight_decay": 0.1, "eps": EPS},
        lambda p: torch.optim.AdamW(p, lr=0.001, weight_decay=0.1, eps=EPS),
    ),
}
SHAPES = dict.fromkeys(
    ("corefed_cnn", "fedave_cifar", "moon_cnn", "private_cnn", "proxy_cnn", "resnet10", "resnet12"),
    (3, 32, 32),
)
SHAPES |= {"gru": (6, 4), "mlp": (1, 8, 8), "cnn": (1, 8, 8)}
SAMPLES, BATCH, STEPS = 8, 4, 3


class Dropped(nn.Module):
    """A convolution, batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.4), nn.Flatten()
        )
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


def at_work(model: Any, training: dict[str, Any]) -> Client:
    shape = SHAPES.get(model, (1, 28, 28)) if isinstance(model, str) else (1, 8, 8)
    draw = np.random.Generator(np.random.PCG64(3))
    x = draw.standard_normal((SAMPLES, *shape)).astype(np.float32)
    if model == "gru":  # row 0: sex, postal code, number of events
        x[:, 0] = np.stack(
            [
                draw.integers(0, 2, SAMPLES),
                draw.integers(0, 5, SAMPLES),
                draw.integers(1, 6, SAMPLES),
                np.zeros(SAMPLES),
            ],
            1,
        )
        x[:, 1:, 0] = draw.integers(0, 5, (SAMPLES, 5))
    data = eq.from_arrays(x, np.arange(SAMPLES) % 3)
    wanted = eq.Experiment(
        dataset=data,
        data={"partition": "iid", "clients": 1, "split": (1.0, 0.0, 0.0)},
        model=model,
        training={"batch": BATCH, "steps": STEPS, **training},
        workers=0,
    )
    federation = federate(wanted.data, wanted.seed, wanted.dataset)
    return Client(prepare(wanted, federation.task, federation.ids, federation)[0], "0", 1, 1, {})


def twice(client: Client, tmp_path: Path, **options: Any) -> dict[str, Tensor]:
    """Two fits, with the model and the memory saved to a file and read back in between."""
    model = client.load(None)
    done = client.fit(model, purpose="first", **options)
    write(Record(model=model, memory=done.memory), tmp_path / "between.safetensors")
    saved = read(tmp_path / "between.safetensors", lazy=False)
    model = client.load(saved.model)
    client.fit(model, purpose="second", memory=saved.memory, **options)
    return dict(model.tree())


def by_torch(
    client: Client,
    optimiser: Callable[..., torch.optim.Optimizer],
    hook: Callable[[str, Tensor], Tensor] | None,
) -> dict[str, Tensor]:
    """The same steps in one uninterrupted training: a plain loop with torch's own optimiser, which
    pairs entries and not memory.
    """
    net = client._bench._factory("model")()
    net.load_state_dict(dict(client.initial("model")))
    net = _as_trained(net, client)
    steps = optimiser([p for p in net.parameters() if p.requires_grad])
    x, y = client.train.x, client.train.y
    net.train()
    for purpose in ("first", "second"):
        order, left = client.stream(purpose), STEPS
        torch.manual_seed(client.seed(f"{purpose} torch"))
        while left:
            for chosen in torch.split(torch.randperm(len(y), generator=order), BATCH)[:left]:
                steps.zero_grad()
                F.cross_entropy(net(x[chosen]), y[chosen]).backward()
                for name, p in net.named_parameters() if hook else ():
                    p.grad = hook(name, p.grad) if hook else None
                steps.step()
                left -= 1
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def _as_trained(net: nn.Module, client: Client) -> nn.Module:
    """In the layout that our convolutions use: their gradients then agree, but for what the kernels
    of a step round.
    """
    images = len(client.task.shape) == 3 and any(
        isinstance(part, nn.Conv2d) for part in net.modules()
    )
    return net.to(memory_format=torch.channels_last) if images else net


def assert_as_torch(found: dict[str, Tensor], expected: dict[str, Tensor], start: Tree) -> None:
    """Apart by no more than a hundredth of the way that was gone, over all trained entries together
    and within each large one.
    """
    apart = {name: float((found[name] - expected[name]).double().norm()) for name in start.trained}
    gone = {name: float((expected[name] - start[name]).double().norm()) for name in start.trained}
    assert sum(gone.values()) > 0
    assert np.linalg.norm(list(apart.values())) < 0.01 * np.linalg.norm(list(gone.values())), (
        apart,
        gone,
    )


def _models_and_optimisers() -> list[Any]:
    """Every model with every optimiser; large ones are thorough with one optimiser, else slow."""
    cases = []
    for model in [*names(), "dropout"]:
        for optimiser in OPTIMISERS:
            marks: Any = ()
            if model.startswith("resnet"):
                marks = pytest.mark.thorough if optimiser == "adam" else pytest.mark.slow
            cases.append(pytest.param(model, optimiser, marks=marks))
    return cases


@pytest.mark.parametrize(("model", "optimiser"), _models_and_optimisers())
def test_fit_save_load_fit_is_one_uninterrupted_training(
    model: str, optimiser: str, tmp_path: Path
) -> None:
    training, reference = OPTIMISERS[optimiser]
    client = at_work(Dropped() if model == "dropout" else model, training)
    assert_as_torch(
        twice(client, tmp_path), by_torch(client, reference, None), client.initial("model")
    )


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("order", ["gradient first", "own first"])
def test_a_hook_may_add_in_any_order(order: str, optimiser: str, tmp_path: Path) -> None:
    """A tree's entries are contiguous and gradients of convolutions are not: whichever stands first
    decides the layout of their sum.
    """
    training, reference = OPTIMISERS[optimiser]
    client = at_work("cnn", training)
    z = client.initial("model").apply(
        lambda tensor: torch.linspace(-0.3, 0.3, tensor.numel()).reshape(tensor.shape)
    )
    hooks: dict[str, Callable[[str, Tensor], Tensor]] = {
        "gradient first": lambda name, g: g + z[name],
        "own first": lambda name, g: z[name] + g,
    }
    assert_as_torch(
        twice(client, tmp_path, gradient=hooks[order]),
        by_torch(client, reference, hooks[order]),
        client.initial("model"),
    )


def test_fedekd_on_convolutions_trains_its_private_model_as_torch_does(tmp_path: Path) -> None:
    """Three rounds of FedeKD without distillation equal one run of Adam over the same batches."""
    draw = np.random.Generator(np.random.PCG64(0))
    x = draw.standard_normal((24, 1, 8, 8)).astype(np.float32)
    data = eq.from_sites({"a": (x[:12], np.arange(12) % 3), "b": (x[12:], np.arange(12) % 3)})
    wanted = eq.Experiment(
        dataset=data,
        data={"partition": "natural", "split": (1.0, 0.0, 0.0)},
        model={"name": "cnn", "width": 3, "hidden": 5},
        method={"name": "fedekd", "lambda_kd": 0},
        training={"optimiser": "adam", "lr": 0.001, "eps": EPS, "batch": 5, "keep_optimiser": True},
        rounds=3,
        workers=0,
        evaluation={"splits": ["train"]},
    )
    run = eq.run(wanted, tmp_path / "run")
    federation = federate(wanted.data, wanted.seed, wanted.dataset)
    bench, _ = prepare(wanted, federation.task, federation.ids, federation)
    for who in ("a", "b"):
        net = bench._factory("private")()
        net.load_state_dict(dict(bench.initial("private")))
        net = net.to(memory_format=torch.channels_last)
        adam = torch.optim.Adam(net.parameters(), lr=0.001, eps=EPS)
        net.train()
        for number in (1, 2, 3):
            client = Client(bench, who, number, 3, {})
            order = client.stream("batches")
            for chosen in torch.split(torch.randperm(12, generator=order), 5):
                adam.zero_grad()
                F.cross_entropy(net(client.train.x[chosen]), client.train.y[chosen]).backward()
                adam.step()
        found = run.model("personal", client=who, experiment=wanted).state_dict()
        assert_as_torch(dict(found), net.state_dict(), bench.initial("private"))


def test_several_models_draw_the_dropout_that_each_would_draw_alone() -> None:
    client = at_work(Dropped(), {"lr": 0.1})
    alone = client.load(None)
    client.fit(alone)
    first, second = client.load(None), client.load(None)
    client.fit([first, second], [supervised, supervised])
    for together in (first, second):
        assert all(torch.equal(alone.tree()[name], together.tree()[name]) for name in alone.tree())

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from equipoise.models import Network, build, describe, names, wrap
from equipoise.task import Task

TASK = Task("classification", (4,), 3)


class Plain(nn.Module):
    def __init__(self, width: int = 5):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, width), nn.Linear(width, 3)

    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)))


class Split(nn.Module):
    def __init__(self, task):
        super().__init__()
        self.features, self.head = nn.Linear(*task.shape, 6), nn.Linear(6, task.outputs)

    def forward(self, x):
        return self.head(self.features(x))


class Between(Split):
    def forward(self, x):
        return self.head(torch.tanh(self.features(x)))


class Folded(Split):
    def __init__(self, task):
        super().__init__(task)
        self.features = nn.Unflatten(1, (2, 2))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


class Extra(Split):
    def __init__(self, task):
        super().__init__(task)
        self.scale = nn.Parameter(torch.ones(()))


@pytest.fixture
def own(monkeypatch):
    module = ModuleType("own_models")
    for one in (Plain, Split, Between, Folded, Extra):
        setattr(module, one.__name__, one)
    module.instance = Plain()
    module.number = lambda: 3
    module.wrong_size = lambda: nn.Linear(4, 2)
    module.other_inputs = lambda: nn.Linear(9, 3)
    monkeypatch.setitem(sys.modules, "own_models", module)


SHAPES = ((3, 16, 16), (5, 4), (12,))  # an image, a history, a row


def _builds(name, shape):
    try:
        build(name, Task("classification", shape, 2))
    except ValueError:
        return False
    return True


def test_names_and_descriptions():
    assert {"mlp", "cnn", "resnet10", "gru"} <= set(names())
    for name in names():
        described = describe(name)
        assert described["name"] == name and described["summary"].endswith(".")
        assert described["options"] is not None and any(_builds(name, shape) for shape in SHAPES)
    assert describe("resnet10")["options"] == {"width": 64, "bottleneck": 0}


@pytest.mark.parametrize("hidden", [[8], (8,)])
def test_options_as_written_in_a_file(hidden):
    assert build({"name": "mlp", "hidden": hidden}, TASK).head.in_features == 8


def test_no_hidden_layer_is_a_linear_model():
    assert [name for name, _ in build({"name": "mlp", "hidden": []}, TASK).named_parameters()] == [
        "head.weight",
        "head.bias",
    ]


def test_the_specification_is_not_changed():
    spec = {"name": "mlp", "hidden": [8]}
    build(spec, TASK)
    assert spec == {"name": "mlp", "hidden": [8]}


@pytest.mark.parametrize(
    "spec, message",
    [
        ("mlpp", "did you mean 'mlp'"),
        ({"name": "resnet1"}, "did you mean 'resnet1[02]'"),
        ({"hidden": [3]}, "unknown model ''"),
        ({"name": "mlp", "hiden": [3]}, "did you mean 'hidden'"),
        ({"name": "lenet", "width": 3}, "Known: none"),
        ({"name": "mlp", "hidden": [0]}, r"hidden.0 = 0.*defaults"),
        ({"name": "mlp", "hidden": 8}, "hidden = 8"),
        ({"name": "mlp", "hidden": [2.5]}, "hidden.0 = 2.5"),
        ({"name": "moon_cnn", "split": "maps"}, "'map' or 'projection'"),
        ({"name": "corefed_cnn", "dropout": [0.2, 1.5]}, r"dropout.1 = 1.5"),
        ("own_models:Plane", "did you mean 'Plain'"),
        ("own_modells:Plain", "cannot import 'own_modells'"),
        ("own_models:instance", "a class or a function"),
        ("own_models:number", "made a int, not a torch.nn.Module"),
        ("own_models:wrong_size", r"\(1, 3\) outputs .* it gave \(1, 2\)"),
        ("own_models:other_inputs", "it gave an error"),
        ("own_models:Between", r"not head\(features\(x\)\)"),
        ("own_models:Folded", r"not head\(features\(x\)\)"),
        ("own_models:Extra", "scale"),
    ],
)
def test_refused_with_the_way_out(own, spec, message):
    with pytest.raises(ValueError, match=f"(?i){message}"):
        build(spec, TASK)


def test_own_class_without_split(own):
    model = build("own_models:Plain", TASK)
    assert isinstance(model, Network) and isinstance(model.head, nn.Identity)
    assert [name for name, _ in model.named_parameters()] == [
        f"features.{part}" for part in ("inner.weight", "inner.bias", "outer.weight", "outer.bias")
    ]


def test_own_class_with_options(own):
    assert build({"name": "own_models:Plain", "width": 9}, TASK).features.inner.out_features == 9


def test_own_class_with_split_receives_the_task(own):
    model = build("own_models:Split", TASK)
    assert [name for name, _ in model.named_parameters()] == [
        "features.weight",
        "features.bias",
        "head.weight",
        "head.bias",
    ]


def test_wrap_keeps_a_network_and_shares_parameters():
    network = Network(nn.Linear(2, 2), nn.Linear(2, 1))
    assert wrap(network) is network
    module = Plain()
    assert wrap(module).features is module


def test_trying_a_model_changes_neither_mode_nor_statistics(own):
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    module[1].eval()
    sys.modules["own_models"].ready = lambda: module
    assert build("own_models:ready", TASK).features is module
    assert module.training and not module[1].training and int(module[1].num_batches_tracked) == 0


ABSURD = [
    {"name": "mlp", "hidden": [1] * 200_000},
    {"name": "mlp", "hidden": [10**6, 10**6]},
    {"name": "mlp", "hidden": [2**63]},
    {"name": "cnn", "width": 10**6},
    {"name": "cnn", "hidden": 2**62},
]


@pytest.mark.parametrize("spec", ABSURD, ids=lambda spec: spec["name"])
def test_a_network_of_absurd_size_is_refused_before_memory_is_taken(spec) -> None:
    # Memory for these would not be there: whoever asked for it would be killed, or get another
    # error.
    with pytest.raises(
        ValueError, match="expected at most .* raise the limit with .*EQUIPOISE_MAX"
    ):
        build(spec, Task("classification", (1, 8, 8), 3))


def test_an_absurd_task_is_refused_too() -> None:
    with pytest.raises(ValueError, match="EQUIPOISE_MAX_PARAMETERS"):
        build("mlp", Task("classification", (10**7,), 3))
    with pytest.raises(ValueError, match="EQUIPOISE_MAX_PARAMETERS"):
        build("mlp", Task("classification", (3,), 10**8))


def test_limits_can_be_raised_and_lowered(monkeypatch) -> None:
    spec = {"name": "mlp", "hidden": [1] * 1001}
    with pytest.raises(ValueError, match="at most 1,000 layers in hidden, got 1,001"):
        build(spec, TASK)
    monkeypatch.setenv("EQUIPOISE_MAX_LAYERS", "1001")
    build(spec, TASK)
    monkeypatch.setenv("EQUIPOISE_MAX_PARAMETERS", "100000")
    with pytest.raises(ValueError, match="at most 100,000 parameters"):
        build({"name": "mlp", "hidden": [8000, 10]}, TASK)
    monkeypatch.setenv("EQUIPOISE_MAX_PARAMETERS", "many")
    with pytest.raises(ValueError, match="EQUIPOISE_MAX_PARAMETERS: expected a whole number"):
        build({"name": "mlp", "hidden": [8]}, TASK)


def test_counting_a_network_draws_no_random_numbers() -> None:
    spec, task = {"name": "mlp", "hidden": [6000, 6000]}, TASK
    torch.manual_seed(1)
    first = build(spec, task).state_dict()
    torch.manual_seed(1)
    features = nn.Sequential(nn.Flatten(), nn.Linear(4, 6000))
    assert torch.equal(first["features.1.weight"], features[1].weight)

"""Pieces of models at their edges: what a tree must have to fit, what a network passes on, and
numbers that no parameter count shows.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from equipoise.models import Generator, Mixture, Network, build, wrap
from equipoise.models.gru import _looked_up
from equipoise.models.listing import SHAPES, _size, listed
from equipoise.models.model import Model, mismatch
from equipoise.models.network import InUnit, Prepared, evaluating, in_unit, shape_after
from equipoise.models.registry import chosen, describe
from equipoise.models.resnet import Residual
from equipoise.streams import default_generator
from equipoise.task import Task
from equipoise.tree import Tree

GREY, ROW = Task("classification", (1, 28, 28), 10), Task("classification", (4,), 3)


# Trees and models.


def tree(**changes: Any) -> Tree:
    entries = {
        "w": torch.zeros(2, 3),
        "b": torch.zeros(2),
        "mean": torch.zeros(1),
        "n": torch.tensor(0),
    }
    return Tree(
        {name: value for name, value in {**entries, **changes}.items() if value is not None},
        "net",
        ["mean", "n"],
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (tree(), None),
        (tree().params, None),
        (tree().rest, None),
        (tree(b=None), "expected the entries of 'net'; missing ['b'], unknown none"),
        (tree(mean=None), "expected the entries of 'net'; missing none, unknown none"),
        (tree(x=torch.zeros(1)), "expected the entries of 'net'; missing none, unknown ['x']"),
        (
            Tree({name: torch.zeros(1) for name in "edcba"}),
            "missing ['w'], unknown ['a', 'c', 'd']",
        ),
        (tree(b=torch.zeros(3)), "b: expected shape (2,), got (3,)"),
        (
            tree(b=torch.zeros(2, dtype=torch.float64)),
            "b: expected torch.float32, got torch.float64",
        ),
    ],
)
def test_how_a_tree_differs_from_what_its_model_has(given: Tree, reason: str | None) -> None:
    found = mismatch(given, tree())
    assert found is None if reason is None else found is not None and found.endswith(reason)


def test_a_model_gives_and_takes_copies() -> None:
    net = Network(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), nn.Linear(2, 3))
    net.head.bias.requires_grad_(False)
    model = Model(net, "mine")
    assert set(model.trained) == {
        "features.0.weight",
        "features.0.bias",
        "features.1.weight",
        "features.1.bias",
        "head.weight",
    }
    assert model.untrained == {
        "features.1.running_mean",
        "features.1.running_var",
        "features.1.num_batches_tracked",
        "head.bias",
    }
    assert model.takes_single and model.name == "mine"
    before = model.tree()
    assert (
        before.model == "mine"
        and before.untrained == model.untrained
        and not any(one.requires_grad for one in before.values())
    )
    nn.init.zeros_(net.head.weight)
    assert (
        before["head.weight"].any()
        and model.put(before) is model
        and torch.equal(net.head.weight.detach(), before["head.weight"])
    )
    x = torch.ones(2, 4)
    outputs = model(x)
    assert outputs.model is model and outputs.peers == () and outputs.features.shape == (2, 2)
    assert torch.equal(outputs.logits, net.head(outputs.features))
    with pytest.raises(
        ValueError,
        match="a tree of 'other' does not fit the model 'mine': expected the entries of 'mine'",
    ):
        model.put(Tree({"w": torch.zeros(1)}, "other"))


# Networks.


def test_numbers_come_out_in_their_own_unit() -> None:
    net = Network(nn.Identity(), nn.Linear(1, 1, bias=False))
    nn.init.constant_(net.head.weight, 2.0)
    moved = in_unit(net, Task("regression", (1,), 1, centre=10.0, scale=3.0))
    assert moved(torch.tensor([[1.0], [-1.0]])).tolist() == [[16.0], [4.0]]
    assert isinstance(moved, Network) and moved.features is net.features
    assert list(InUnit(1.0, 2.0).state_dict()) == ["centre", "scale"], "an exported file holds them"
    for task in (
        Task("regression", (1,), 1),
        Task("classification", (1,), 2, centre=10.0, scale=3.0),
    ):
        assert in_unit(net, task) is net
    for task in (Task("regression", (1,), 1, centre=1.0), Task("regression", (1,), 1, scale=2.0)):
        assert in_unit(net, task) is not net


def test_a_prepared_network_sees_the_methods_inputs() -> None:
    prepared = Prepared(lambda x: x + 1, nn.Linear(1, 1, bias=False))
    nn.init.constant_(prepared.net.weight, 5.0)
    assert prepared(torch.ones(1, 1)).item() == 10


class Parts(nn.Module):
    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


@pytest.mark.parametrize(
    "parts",
    [
        {"features": nn.Linear(2, 2)},
        {"head": nn.Linear(2, 2)},
        {"features": nn.Linear(2, 2), "head": 3},
        {},
    ],
)
def test_a_module_without_both_parts_is_features_as_a_whole(parts: dict[str, Any]) -> None:
    module = Parts(**parts)
    assert wrap(module).features is module and isinstance(wrap(module).head, nn.Identity)


def test_weights_outside_of_both_parts_would_be_lost() -> None:
    both = {"features": nn.Linear(2, 2), "head": nn.Linear(2, 1)}
    assert wrap(Parts(**both)).head is both["head"]
    with pytest.raises(
        ValueError,
        match="Parts has `features` and `head`, but also scale.weight, scale.bias outside of them",
    ):
        wrap(Parts(**both, scale=nn.Linear(1, 1)))


def test_evaluation_ends_with_its_block_also_after_an_error() -> None:
    net = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval())
    with pytest.raises(ZeroDivisionError), evaluating(net):
        assert not net.training and not net[0].training
        raise ZeroDivisionError
    assert net.training and net[0].training and not net[1].training


# Models by name.


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((1, 16, 16), "cnn"),
        ((1, 16, 15), "mlp"),
        ((1, 15, 16), "mlp"),
        ((99, 8, 8), "mlp"),
        ((3, 99, 99), "cnn"),
        ((40, 40), "mlp"),
    ],
)
def test_the_model_that_the_data_call_for(shape: tuple[int, ...], name: str) -> None:
    assert chosen(shape) == name
    assert type(build("auto", Task("classification", shape, 2)).features[1]) is type(
        build(name, Task("classification", shape, 2)).features[1]
    )


def test_models_are_described_with_their_inputs_sizes_and_options() -> None:
    # the others take long to build
    rows = {row["name"]: row for row in listed(["mlp", "cnn", "lenet", "gru"])}
    assert list(rows) == ["mlp", "cnn", "lenet", "gru"]
    assert {name: rows[name]["inputs"] for name in ("mlp", "cnn", "gru")} == {
        "mlp": "anything",
        "cnn": "images",
        "gru": "histories",
    }
    assert rows["lenet"]["parameters"]["1x28x28"] == 44_426 and set(rows["cnn"]["parameters"]) == {
        "1x28x28",
        "3x32x32",
    }
    assert rows["mlp"]["parameters"]["row of 30"] == 30 * 200 + 200 + 200 * 200 + 200 + 2010
    assert rows["mlp"]["options"] == {"hidden": (200, 200)} and rows["lenet"]["summary"].startswith(
        "LeNet with ReLU"
    )
    assert SHAPES["history"] == (21, 4) and SHAPES["row of 30"] == (30,)


def test_asking_for_a_size_draws_no_random_number() -> None:
    before = torch.random.get_rng_state()
    assert (
        _size("mlp", (2,)) == 2 * 200 + 200 + 200 * 200 + 200 + 2010 and _size("cnn", (2,)) is None
    )
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"name": "gru", "dropout": 1.0}, "dropout = 1.0"),
        ({"name": "gru", "dropout": -0.1}, "dropout = -0.1"),
        ({"name": "gru", "codes": 0}, "codes = 0"),
        ({"name": "gru", "hidden": "6"}, "hidden = '6'"),
        ({"name": "gru", "hidden": True}, "hidden = True"),
        ({"name": "gru", "embedding": 10**15}, "model 'gru': "),
        ("autoo", "did you mean 'auto'"),
    ],
)
def test_options_out_of_bounds_are_refused(spec: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build(spec, Task("classification", (5, 4), 2))
    assert build(
        {"name": "gru", "dropout": 0, "codes": 1, "hidden": 1}, Task("classification", (2, 4), 2)
    )
    with pytest.raises(ValueError, match="unknown model 'autoo'"):
        describe("autoo")


def takes_task(task: Any = None) -> nn.Module:
    return nn.Linear(4, 3 if task is not None else 2)


def takes_default(other: int = 3) -> nn.Module:
    return nn.Linear(4, other)


def takes_any(given: Any) -> nn.Module:
    return nn.Linear(4, given.outputs)


def takes_keyword(*, task: Any = None) -> nn.Module:
    return nn.Linear(4, 3 if task is None else 2)


def takes_both(features: int, task: Any = None) -> nn.Module:
    return nn.Linear(4, features)


def counts(task: Any) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Flatten(0))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("takes_task", {}),
        ("takes_default", {}),
        ("takes_any", {}),
        ("takes_keyword", {}),
        ("takes_both", {"features": 3}),
    ],
)
def test_who_is_given_the_task(name: str, options: dict[str, Any]) -> None:
    assert build({"name": f"{__name__}:{name}", **options}, ROW)(torch.zeros(2, 4)).shape == (2, 3)


def test_outputs_of_another_shape_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"has to give \(1, 3\) outputs for one sample of shape \(4,\); it gave \(3,\)",
    ):
        build(f"{__name__}:counts", ROW)
    with pytest.raises(ValueError, match="cannot be made with the options {'width': 3}"):
        build({"name": f"{__name__}:takes_any", "width": 3}, ROW)


# What no parameter count shows.


def test_a_residual_adds_its_shortcut() -> None:
    for block, x in (
        (Residual(2, 2, 1), torch.randn(3, 2, 4, 4)),
        (Residual(2, 4, 2), torch.randn(3, 2, 4, 4)),
        (Residual(2, 2, 2), torch.randn(3, 2, 5, 5)),
    ):
        block.eval()
        assert torch.equal(block(x), torch.relu(block.body(x) + block.shortcut(x)))
    assert isinstance(Residual(2, 2, 1).shortcut, nn.Identity)
    assert not isinstance(Residual(2, 4, 1).shortcut, nn.Identity) and not isinstance(
        Residual(2, 2, 2).shortcut, nn.Identity
    )


@pytest.mark.parametrize("name", ["private_cnn", "proxy_cnn"])
def test_fedekds_networks_pool_twice_and_then_to_four_pixels(name: str) -> None:
    features = build(name, GREY).features
    place = next(k for k, layer in enumerate(features) if isinstance(layer, nn.AdaptiveAvgPool2d))
    assert shape_after(features[:place], (1, 28, 28))[1:] == (7, 7) and shape_after(
        features[: place + 1], (1, 28, 28)
    )[1:] == (4, 4)
    assert isinstance(features[place - 1], nn.ReLU)


def test_shares_that_are_dropped() -> None:
    def shares(spec: Any, task: Task) -> list[float]:
        return [layer.p for layer in build(spec, task).modules() if isinstance(layer, nn.Dropout)]

    colour, history = Task("classification", (3, 32, 32), 10), Task("classification", (5, 4), 2)
    assert shares("corefed_cnn", colour) == [0.2, 0.5] and shares(
        {"name": "corefed_cnn", "dropout": [0.1, 0.3]}, colour
    ) == [0.1, 0.3]
    usual, own = (
        build({"name": "gru", "hidden": 4}, history),
        build({"name": "gru", "hidden": 4, "dropout": 0.1}, history),
    )
    assert (
        usual.head[0].p,
        usual.features.gru.dropout,
        own.head[0].p,
        own.features.gru.dropout,
    ) == (0.3, 0.3, 0.1, 0.1)


def test_tables_of_a_history_have_a_row_for_what_is_unknown() -> None:
    history = build(
        {"name": "gru", "codes": 9, "postals": 4, "sexes": 2, "embedding": 5, "hidden": 7},
        Task("classification", (5, 4), 2),
    ).features
    sizes = {name: tuple(getattr(history, name).weight.shape) for name in ("code", "postal", "sex")}
    assert (
        sizes == {"code": (11, 5), "postal": (5, 16), "sex": (3, 8)} and history.size == 14 + 8 + 16
    )
    found = _looked_up(history.sex, torch.tensor([-3.0, 0.0, 1.9, 2.0, 99.0]))
    assert torch.equal(found, history.sex.weight[[0, 0, 1, 2, 2]])
    defaults = build("gru", Task("classification", (5, 4), 2)).features
    assert [
        defaults.code.num_embeddings,
        defaults.postal.num_embeddings,
        defaults.sex.num_embeddings,
    ] == [1002, 51, 3]


@pytest.mark.parametrize(("shape", "steps"), [((6, 2, 2), 1), ((6, 8, 8), 7), ((6, 9, 9), 3), ((6, 16, 4), 3), ((6, 17, 4), 4), ((6,), 3), ((6, 1, 1), 3)])  # fmt: skip
def test_a_generator_grows_by_one_up_to_eight_pixels_and_doubles_beyond(
    shape: tuple[int, ...], steps: int
) -> None:
    generator = Generator(shape, 4, noise=3)
    layers = [
        layer for layer in generator.layers if isinstance(layer, (nn.ConvTranspose2d, nn.Linear))
    ]
    norms = [
        layer for layer in generator.layers if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d))
    ]
    slopes = [layer.negative_slope for layer in generator.layers if isinstance(layer, nn.LeakyReLU)]
    assert len(layers) == steps and len(norms) == steps - 1 and slopes == [0.2] * (steps - 1)
    assert layers[0].weight.shape[0 if shape[1:] and max(shape[1:]) > 1 else 1] == 3 + 4
    if shape[1:] in ((), (1, 1)):
        assert [layer.out_features for layer in layers] == [512, 256, 6]
    else:
        assert all(layer.bias is None for layer in layers)
    assert generator(torch.zeros(2, 3), torch.tensor([0, 3])).shape == (2, *shape)
    assert Generator((6,), 4).noise == 100 and generator.label.weight.shape == (4, 4)


def test_experts_count_alike_unless_weighed() -> None:
    with default_generator(0, "experts"):
        nets = {"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)}
    mixture = Mixture(nets, {"a": "a", "b": "b"}, None, {}, ROW)
    assert mixture.head.weights.tolist() == [0.5, 0.5] and not mixture.head.offsets.any()
    x = torch.ones(2, 4)
    torch.testing.assert_close(
        mixture(x).exp(), (nets["a"](x).softmax(1) + nets["b"](x).softmax(1)) / 2
    )
    assert mixture.head.names == ["a", "b"] and mixture.head.sources == [0, 1]

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from equipoise.losses import fisher_diagonal
from equipoise.losses.fisher import _stacked, squares_by_loop, squares_by_vmap, summed_loss
from equipoise.losses.fisher_hooks import squares_by_hooks
from equipoise.models import build
from equipoise.streams import default_generator, torch_stream
from equipoise.task import Task


def made(factory, shape, count=7, outputs=3):
    """A model in float64 with lively batch-norm statistics, inputs and labels."""
    with default_generator(0, "fisher"):
        model = factory().double()
        for layer in model.modules():
            if (
                isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
                and layer.running_mean is not None
            ):
                layer.running_mean.normal_()
                layer.running_var.uniform_(0.5, 2)
                if layer.affine:
                    nn.init.normal_(layer.weight)
    x = torch.randn(count, *shape, generator=torch_stream(0, "x"), dtype=torch.float64)
    return model, x, torch.arange(count) % outputs


def plain(model, x, y):
    """One sample after the other, with autograd's own gradients."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    names, parameters = zip(
        *((name, one) for name, one in model.named_parameters() if one.requires_grad), strict=True
    )
    total = {name: torch.zeros_like(one) for name, one in zip(names, parameters, strict=True)}
    for place in range(len(x)):
        outputs = model(x[place : place + 1])
        loss = (
            (outputs[0, 0] - y[place]) ** 2
            if y.is_floating_point()
            else -torch.log_softmax(outputs, 1)[0, y[place]]
        )
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for name, gradient in zip(names, gradients, strict=True):
            total[name] = total[name] + (0 if gradient is None else gradient.detach() ** 2 / len(x))
    for part, training in modes:
        part.training = training
    return total


def by_hooks(model, x, y, batch=3):
    parameters = {name: one.detach() for name, one in model.named_parameters() if one.requires_grad}
    return squares_by_hooks(
        model,
        parameters,
        summed_loss,
        zip(torch.split(x, batch), torch.split(y, batch), strict=True),
    )


def assert_equal(found, expected):
    assert list(found) == list(expected)
    for name, one in expected.items():
        torch.testing.assert_close(
            found[name],
            one,
            rtol=1e-6,
            atol=1e-12 * float(one.max()),
            msg=lambda text, name=name: f"{name}: {text}",
        )


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = (
            nn.Conv2d(2, 2, 3, padding=1),
            nn.Conv2d(2, 2, 1),
            nn.Linear(2, 3),
        )
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        made = self.first(x)
        made += self.second(x)
        return self.head(functional.relu(made, inplace=True).mean((2, 3)))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class Tied(Twice):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(4, 4)
        self.other.weight = self.layer.weight

    def forward(self, x):
        return self.head(torch.tanh(self.other(torch.tanh(self.layer(x)))))


class WeightOutside(Twice):
    def forward(self, x):
        return self.head(
            torch.tanh(functional.linear(torch.tanh(self.layer(x)), self.layer.weight))
        )


class Doubling(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class DataDependent(Twice):
    def forward(self, x):
        return self.head(
            functional.layer_norm(self.layer(x), (4,))
            if float(x.sum()) > 0
            else self.layer(x.abs())
        )


class Coupled(Twice):
    def forward(self, x):
        made = self.layer(x)
        return self.head(made - made.mean(0) if len(x) > 1 else made)


def sequence(*layers):
    return lambda: nn.Sequential(*(layer() for layer in layers))


def network(spec, shape):
    return lambda: build(spec, Task("classification", shape, 3))


HOOKED = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "mlp": (network({"name": "mlp", "hidden": [5]}, (4,)), (4,)),
    "on sequences": (
        sequence(lambda: nn.Linear(4, 5), nn.Tanh, lambda: nn.Flatten(1), lambda: nn.Linear(10, 3)),
        (2, 4),
    ),
    "batch norm 1d": (
        sequence(
            lambda: nn.Linear(4, 5), lambda: nn.BatchNorm1d(5), nn.ReLU, lambda: nn.Linear(5, 3)
        ),
        (4,),
    ),
    "convolutions": (
        sequence(
            lambda: nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
            lambda: nn.BatchNorm2d(3),
            lambda: nn.ReLU(inplace=True),
            lambda: nn.Conv2d(3, 2, 2, bias=False),
            nn.Flatten,
            lambda: nn.Linear(18, 3),
        ),
        (2, 7, 6),
    ),
    "one position": (
        sequence(lambda: nn.Conv2d(2, 4, 3), nn.Flatten, lambda: nn.Linear(4, 3)),
        (2, 3, 3),
    ),
    "residual in place": (Residual, (2, 4, 4)),
    "cnn": (network({"name": "cnn", "width": 2, "hidden": 4}, (1, 8, 8)), (1, 8, 8)),
    "resnet": (network({"name": "resnet10", "width": 2}, (1, 8, 8)), (1, 8, 8)),
    "moon": (network("moon_cnn", (1, 16, 16)), (1, 16, 16)),
}
BOTH = (slice(64), slice(64, None))
NOT_HOOKED = {
    "groups": (
        sequence(lambda: nn.Conv2d(2, 4, 2, groups=2), nn.Flatten, lambda: nn.Linear(16, 3)),
        (2, 3, 3),
    ),
    "circular padding": (
        sequence(
            lambda: nn.Conv2d(2, 1, 3, padding=1, padding_mode="circular"),
            nn.Flatten,
            lambda: nn.Linear(9, 3),
        ),
        (2, 3, 3),
    ),
    "same padding": (
        sequence(lambda: nn.Conv2d(2, 1, 3, padding="same"), nn.Flatten, lambda: nn.Linear(9, 3)),
        (2, 3, 3),
    ),
    "layer norm": (sequence(lambda: nn.LayerNorm(4), lambda: nn.Linear(4, 3)), (4,)),
    "subclass": (sequence(lambda: Doubling(4, 3)), (4,)),
    "used twice": (Twice, (4,)),
    "tied": (Tied, (4,)),
    "no statistics": (
        sequence(
            lambda: nn.Conv2d(1, 2, 2, bias=False),
            lambda: nn.BatchNorm2d(2, track_running_stats=False),
            nn.Flatten,
            lambda: nn.Linear(8, 3),
        ),
        (1, 3, 3),
    ),
}


@pytest.mark.parametrize("name", HOOKED)
def test_hooks_vmap_and_loop_agree(name):
    model, x, y = made(*HOOKED[name])
    expected = plain(model, x, y)
    model.eval()
    for sums in (
        by_hooks(model, x, y),
        squares_by_vmap(model, x, y, 3),
        squares_by_loop(model, x, y, 3),
    ):
        assert_equal({key: one / len(x) for key, one in sums.items()}, expected)


@pytest.mark.parametrize("name", NOT_HOOKED)
def test_models_the_formulas_do_not_hold_for_fall_back(name):
    model, x, y = made(*NOT_HOOKED[name])
    assert by_hooks(model.eval(), x, y) is None
    assert_equal(fisher_diagonal(model, x, y), plain(model, x, y))


@pytest.mark.parametrize("factory", [WeightOutside, Coupled, DataDependent])
def test_what_hooks_cannot_see_is_found_on_two_samples(factory):
    model, x, y = made(factory, (4,))
    assert by_hooks(model.eval(), x, y) is not None
    assert_equal(fisher_diagonal(model, x, y), plain(model, x, y))


def test_recurrent_network_by_loop():
    model, x, y = made(
        network({"name": "gru", "codes": 4, "postals": 3, "embedding": 3, "hidden": 4}, (4, 4)),
        (4, 4),
    )
    x[:, 0, :3] = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    x[2, 0, 2] = 0
    x[:, 1:, 0] = torch.arange(3) + 1.0
    assert_equal(fisher_diagonal(model, x, y), plain(model, x, y))


def test_softmax_regression_closed_form():
    model, x, y = made(lambda: nn.Linear(4, 3), (4,))
    chances = torch.softmax(model(x), 1).detach()
    errors = (chances - functional.one_hot(y, 3)) ** 2
    found = fisher_diagonal(model, x, y)
    torch.testing.assert_close(found["weight"], (errors[:, :, None] * x[:, None, :] ** 2).mean(0))
    torch.testing.assert_close(found["bias"], errors.mean(0))


@pytest.mark.parametrize("target_shape", [(7,), (7, 1)])
def test_regression_squares_the_gradient_of_the_squared_error(target_shape):
    model, x, _ = made(lambda: nn.Linear(4, 1), (4,))
    y = torch.linspace(-1, 1, 7, dtype=torch.float64)
    residual = (model(x).detach().squeeze(1) - y)[:, None]
    found = fisher_diagonal(model, x, y.reshape(target_shape))
    torch.testing.assert_close(found["weight"][0], (4 * residual**2 * x**2).mean(0))


def test_neither_batch_size_nor_order_matters():
    model, x, y = made(*HOOKED["cnn"])
    expected = fisher_diagonal(model, x, y)
    for batch, order in ((1, range(7)), (4, range(6, -1, -1)), (100, [3, 1, 0, 2, 6, 5, 4])):
        assert_equal(fisher_diagonal(model, x[list(order)], y[list(order)], batch=batch), expected)


def test_float32_is_close_to_float64():
    model, x, y = made(*HOOKED["cnn"])
    exact = fisher_diagonal(model, x, y)
    single = fisher_diagonal(model.float(), x, y)
    for name, one in exact.items():
        assert single[name].dtype == torch.float32
        assert (single[name] - one).abs().max() <= 1e-5 * one.max() + 1e-20


def test_frozen_parameters_are_left_out():
    model, x, y = made(*HOOKED["convolutions"])
    everything = fisher_diagonal(model, x, y)
    model[0].weight.requires_grad_(False)
    model[1].requires_grad_(False)
    expected = {
        name: one
        for name, one in everything.items()
        if name != "0.weight" and not name.startswith("1.")
    }
    assert_equal(fisher_diagonal(model, x, y), expected)


def test_leaves_the_model_as_it_was():
    model, x, y = made(*HOOKED["convolutions"])
    model.train()
    model[1].eval()
    model[0].weight.requires_grad_(False)
    model[3].weight.grad = torch.ones_like(model[3].weight)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    for variant in ("sample", "batch"):
        fisher_diagonal(model, x, y, fisher=variant)
    assert [part.training for part in model] == [True, False, True, True, True, True]
    assert [one.requires_grad for one in model.parameters()] == [False] + [True] * 6
    assert (model[3].weight.grad == 1).all() and model[5].weight.grad is None
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert not any(part._forward_hooks for part in model.modules())


def test_batch_variant():
    model, x, y = made(*HOOKED["mlp"])
    assert_equal(
        fisher_diagonal(model, x, y, fisher="batch", batch=1), fisher_diagonal(model, x, y)
    )
    gradient = torch.autograd.grad(functional.cross_entropy(model(x), y), model.head.weight)[0]
    torch.testing.assert_close(
        fisher_diagonal(model, x, y, fisher="batch", batch=7)["head.weight"], gradient**2
    )


def test_batches_are_of_64_unless_told():
    model, x, y = made(*HOOKED["linear"], count=66)
    found = fisher_diagonal(model, x, y, fisher="batch")
    assert_equal(found, fisher_diagonal(model, x, y, fisher="batch", batch=64))
    first, last = (
        torch.autograd.grad(functional.cross_entropy(model(x[part]), y[part]), model.bias)[0]
        for part in BOTH
    )
    torch.testing.assert_close(found["bias"], (64 * first**2 + 2 * last**2) / 66)


def test_torch_func_is_asked_where_it_can_be():
    model, x, y = made(*NOT_HOOKED["layer norm"])
    assert_equal(_stacked(model, x, y, 3), squares_by_loop(model, x, y, 3))
    assert _stacked(nn.GRU(2, 2).double(), x, y, 3) is None
    assert _stacked(made(DataDependent, (4,))[0], x, y, 3) is None


def test_labels_of_the_model():
    model, x, y = made(*HOOKED["linear"])
    with torch.no_grad():
        model.bias.copy_(torch.tensor([0.0, 1e3, 0.0]))
    drawn = fisher_diagonal(model, x, y, labels="model", generator=torch_stream(0, "labels"))
    assert_equal(drawn, fisher_diagonal(model, x, torch.ones_like(y)))
    with pytest.raises(ValueError, match="generator"):
        fisher_diagonal(model, x, y, labels="model")
    with pytest.raises(ValueError, match="classification"):
        fisher_diagonal(model, x, y.double(), labels="model", generator=torch_stream(0, "labels"))


def test_arrays_in_arrays_out():
    model, x, y = made(*HOOKED["linear"])
    found = fisher_diagonal(model, x.numpy(), y.numpy())
    assert isinstance(found["weight"], np.ndarray)
    np.testing.assert_array_equal(found["weight"], fisher_diagonal(model, x, y)["weight"].numpy())


def test_one_sample():
    model, x, y = made(*HOOKED["cnn"], count=1)
    assert_equal(fisher_diagonal(model, x, y), plain(model, x, y))


def test_refuses_a_batch_of_none():
    with pytest.raises(ValueError, match="at least 1"):
        fisher_diagonal(*made(*HOOKED["linear"]), batch=0)


def test_refuses_no_samples_and_no_parameters():
    model, x, y = made(*HOOKED["linear"])
    for inputs, labels in ((x[:0], y[:0]), (x, y[:2])):
        with pytest.raises(ValueError, match="same samples"):
            fisher_diagonal(model, inputs, labels)
    with pytest.raises(ValueError, match="frozen"):
        fisher_diagonal(model.requires_grad_(False), x, y)

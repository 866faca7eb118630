from __future__ import annotations

import pytest
import torch
from torch import nn

from equipoise.models import build, names, shape_after
from equipoise.streams import default_generator, torch_stream
from equipoise.task import Task

GREY, COLOUR = (1, 28, 28), (3, 32, 32)


def made(spec, shape=GREY, outputs=10, kind="classification"):
    with default_generator(0, "models"):
        return build(spec, Task(kind, shape, outputs))


def parameters(model):
    return sum(one.numel() for one in model.parameters())


@pytest.mark.parametrize(
    "name, shape, outputs, count",
    [
        ("mlp", GREY, 10, 199_210),
        ("linear", (13,), 2, 14),
        ("linear", (13,), 3, 42),
        ("corefed_cnn", COLOUR, 10, 797_962),
        ("simple_cnn", GREY, 10, 50_378),
        ("simple_cnn", COLOUR, 10, 60_554),
        ("fedave_mnist", GREY, 10, 1_663_370),
        ("fedave_cifar", COLOUR, 10, 121_182),
        ("lenet", GREY, 10, 44_426),
        ("bench_cnn", GREY, 10, 582_026),
        ("moon_cnn", COLOUR, 10, 92_626),
        ("moon_cnn", COLOUR, 100, 115_756),
        ({"name": "moon_cnn", "split": "projection"}, COLOUR, 10, 92_626),
        ("private_cnn", GREY, 10, 749_194),
        ("private_cnn", COLOUR, 10, 750_346),
        ("private_cnn", GREY, 4, 747_652),
        ("private_cnn", GREY, 11, 749_451),
        ("private_cnn", COLOUR, 1, 748_033),
        ("proxy_cnn", GREY, 10, 151_306),
        ("proxy_cnn", COLOUR, 10, 151_882),
        ("proxy_cnn", GREY, 4, 150_532),
        ("proxy_cnn", GREY, 11, 151_435),
        ("proxy_cnn", (3, 224, 224), 1, 150_721),
        ("resnet10", COLOUR, 10, 4_903_242),
        ("resnet12", COLOUR, 10, 4_977_226),
        ("resnet10", (3, 64, 64), 10, 4_903_242),
    ],
)
def test_parameter_counts_of_the_papers(name, shape, outputs, count):
    assert parameters(made(name, shape, outputs)) == count


def test_simple_cnn_has_192_float_buffers_and_two_counters():
    buffers = list(made("simple_cnn").buffers())
    assert sum(one.numel() for one in buffers if one.is_floating_point()) == 192
    assert sum(not one.is_floating_point() for one in buffers) == 2


@pytest.mark.parametrize(
    "name, shape, features",
    [
        ("mlp", GREY, (200,)),
        ("cnn", (1, 8, 8), (64,)),
        ("simple_cnn", GREY, (64 * 7 * 7,)),
        ("corefed_cnn", COLOUR, (192,)),
        ("fedave_mnist", GREY, (512,)),
        ("fedave_cifar", COLOUR, (84,)),
        ("lenet", GREY, (84,)),
        ("bench_cnn", GREY, (512,)),
        ("moon_cnn", COLOUR, (16, 5, 5)),
        ("moon_cnn", GREY, (16, 4, 4)),
        ({"name": "moon_cnn", "split": "projection"}, COLOUR, (256,)),
        ("private_cnn", GREY, (256,)),
        ("proxy_cnn", GREY, (128,)),
        ({"name": "resnet10", "width": 4}, COLOUR, (32,)),
        ({"name": "resnet12", "width": 4}, (3, 64, 64), (32,)),
        ({"name": "gru", "hidden": 6}, (5, 4), (36,)),
    ],
)
def test_where_features_end(name, shape, features):
    assert shape_after(made(name, shape).features, shape) == features


@pytest.mark.parametrize(
    "name", ["mlp", "corefed_cnn", "fedave_mnist", "lenet", "bench_cnn", "private_cnn", "proxy_cnn"]
)
def test_penultimate_features_are_after_relu(name):
    model = made(name, COLOUR).eval()
    x = torch.randn(4, *COLOUR, generator=torch_stream(0, "x"))
    features = model.features(x)
    assert (features >= 0).all() and (features == 0).any() and (features > 0).any()


def test_both_splits_of_moon_compute_the_same():
    x = torch.randn(3, *COLOUR, generator=torch_stream(0, "x"))
    by_map, by_projection = (
        made({"name": "moon_cnn", "split": split}, COLOUR) for split in ("map", "projection")
    )
    assert torch.equal(by_map(x), by_projection(x))


def test_dropout_precedes_relu_in_corefed():
    kinds = [type(layer) for layer in made("corefed_cnn", COLOUR).features]
    assert kinds[-6:] == [nn.Linear, nn.Dropout, nn.ReLU, nn.Linear, nn.Dropout, nn.ReLU]


def takes(name, shape):
    try:
        made(name, shape)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", names())
def test_outputs_gradients_and_regression(name):
    shape = next(shape for shape in ((3, 16, 16), (5, 4), (12,)) if takes(name, shape))
    small = {
        "name": name,
        **({"width": 4} if "resnet" in name else {"hidden": 6} if name == "gru" else {}),
    }
    for kind, outputs in (("classification", 7), ("regression", 1)):
        model = made(small, shape, outputs, kind)
        x = torch.rand(3, *shape, generator=torch_stream(0, "x"))
        assert model(x).shape == (3, outputs)
        torch.testing.assert_close(model.eval()(x), model.head(model.features(x)))
        model(x).sum().backward()
        assert all(one.grad is not None for one in model.parameters())


def test_resnet_halves_the_map_three_times():
    layers = made({"name": "resnet12", "width": 4}, COLOUR).features
    assert shape_after(layers[:-2], COLOUR) == (32, 4, 4)


@pytest.mark.parametrize("name", names())
def test_flat_samples_are_refused_by_image_models(name):
    if not takes(name, COLOUR) or takes(name, (12,)):
        return  # no model of images alone
    with pytest.raises(ValueError, match="use 'mlp'"):
        made(name, (12,))


@pytest.mark.parametrize("name", ["cnn", "lenet", "moon_cnn", "corefed_cnn", "simple_cnn"])
def test_images_too_small_are_refused(name):
    with pytest.raises(ValueError, match="too small"):
        made(name, (1, 3, 3))


def test_cnn_takes_eight_pixels_and_uneven_images():
    assert parameters(made("cnn", (1, 8, 8))) == 160 + 32 + 4640 + 64 + 128 * 64 + 64 + 650
    assert made("cnn", (2, 4, 9))(torch.zeros(2, 2, 4, 9)).shape == (2, 10)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["cnn", "simple_cnn", "corefed_cnn", "fedave_mnist", "fedave_cifar", "lenet", "bench_cnn", "moon_cnn", "private_cnn", "proxy_cnn"])  # fmt: skip
def test_pooling_before_relu_changes_no_bit(name, channels_last):
    """The papers write ReLU, then pooling: three steps of either order end in the same bits, names
    included.
    """
    shape = COLOUR if name in ("corefed_cnn", "fedave_cifar", "moon_cnn") else GREY
    ours, papers = made(name, shape), made(name, shape)
    turned = 0
    for part in papers.modules():
        for place, (first, second) in enumerate(
            zip(list(part)[:-1], list(part)[1:], strict=True)
            if isinstance(part, nn.Sequential)
            else ()
        ):
            if isinstance(first, nn.MaxPool2d) and isinstance(second, nn.ReLU):
                part[place], part[place + 1] = second, first
                turned += 1
    assert turned == 2 and list(ours.state_dict()) == list(papers.state_dict())
    x = torch.randn(6, *shape, generator=torch_stream(0, "x"))
    y = torch.arange(6) % 10
    for net in (ours, papers):
        if channels_last:
            net.to(memory_format=torch.channels_last)
        with default_generator(0, "dropout"):
            for _ in range(3):
                net.zero_grad()
                nn.functional.cross_entropy(net(x), y).backward()
                with torch.no_grad():
                    for one in net.parameters():
                        one -= 0.1 * one.grad
    assert all(
        torch.equal(ours.state_dict()[key], value) for key, value in papers.state_dict().items()
    )


def test_linear_is_logistic_regression_for_two_classes():
    model = made("linear", (4,), 2)
    x = torch.randn(5, 4)
    chances = model(x).softmax(1)[:, 1]
    assert torch.allclose(chances, torch.sigmoid(model.head[0](x)).squeeze(1))
    assert made("linear", (4,), 1, "regression")(x).shape == (5, 1)

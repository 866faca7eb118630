from __future__ import annotations

import pytest
import torch

from equipoise.models import Generator, build, shape_after
from equipoise.streams import default_generator, torch_stream
from equipoise.task import Task


def made(shape, classes=10, **options):
    with default_generator(0, "generator"):
        return Generator(shape, classes, **options)


def outputs(generator, count=4):
    return generator(
        torch.randn(count, generator.noise, generator=torch_stream(0, "noise")),
        torch.arange(count) % 3,
    )


@pytest.mark.parametrize("classes, count", [(10, 890_724), (100, 1_084_944)])
def test_parameter_count_of_the_paper(classes, count):
    assert sum(one.numel() for one in made((16, 5, 5), classes).parameters()) == count


@pytest.mark.parametrize(
    "shape",
    [(16, 5, 5), (3, 2, 2), (4, 8, 3), (2, 9, 9), (2, 17, 30), (2, 32, 32), (5, 1, 1), (84,), (1,)],
)
def test_any_feature_shape(shape):
    features = outputs(made(shape))
    assert features.shape == (4, *shape)
    assert ((features > 0) & (features < 1)).all()


def test_layers_of_the_paper():
    sizes = [
        (layer.in_channels, layer.out_channels)
        for layer in made((16, 5, 5)).layers
        if hasattr(layer, "in_channels")
    ]
    assert sizes == [(110, 512), (512, 256), (256, 128), (128, 16)]


def test_widths_halve_down_to_64():
    sizes = [
        layer.out_channels for layer in made((16, 8, 8)).layers if hasattr(layer, "in_channels")
    ]
    assert sizes == [512, 256, 128, 64, 64, 64, 16]


def test_large_maps_double_and_are_cropped_from_the_centre():
    generator = made((2, 11, 12))
    grown = generator.eval().layers(
        torch.cat([torch.zeros(1, 100), generator.label(torch.tensor([1]))], 1)[:, :, None, None]
    )
    assert grown.shape == (1, 2, 16, 16)
    torch.testing.assert_close(
        generator(torch.zeros(1, 100), torch.tensor([1])), grown[:, :, 2:13, 2:14]
    )


@pytest.mark.parametrize("shape", [(16, 5, 5), (12,)])
def test_label_and_noise_both_matter(shape):
    generator = made(shape).eval()
    noise = torch.randn(2, 100, generator=torch_stream(0, "noise"))
    first = generator(noise, torch.tensor([0, 0]))
    assert not torch.allclose(first[0], first[1])
    assert not torch.allclose(first, generator(noise, torch.tensor([1, 1])))


def test_other_activations():
    assert (outputs(made((6,), out_act="relu")) == 0).any()
    assert (outputs(made((6,), out_act="softplus")) > 0).all()


@pytest.mark.parametrize("name", ["moon_cnn", "cnn", "simple_cnn"])
def test_feeds_the_head_of_a_split_model(name):
    task = Task("classification", (1, 28, 28), 10)
    model = build(name, task)
    generator = made(shape_after(model.features, task.shape))
    model.head(outputs(generator)).sum().backward()
    assert all(one.grad is not None for one in generator.parameters())
    assert all(one.grad is None for one in model.features.parameters())


def test_refuses():
    with pytest.raises(ValueError, match="flat"):
        made((5, 4))
    with pytest.raises(ValueError, match="sigmoid"):
        made((5,), out_act="tanh")

"""The convolutional networks of the papers, with the parameter counts they state."""

from __future__ import annotations

from typing import Literal

from torch import nn

from equipoise.models.network import Network
from equipoise.models.parts import (
    Probability,
    convolutional,
    dense,
    image_shape,
    pooled_relu,
    size_after,
)
from equipoise.task import Task


def corefed_cnn(task: Task, *, dropout: tuple[Probability, Probability] = (0.2, 0.5)) -> Network:
    """CoRe-Fed's CNN: two 5x5 convolutions (64, 64), then 384 and 192 hidden units.

    Dropout comes before each ReLU.
    """
    convolutions = _two_convolutions(task, 64, 64)
    features = nn.Sequential(
        *convolutions,
        nn.Flatten(),
        *(nn.Linear(size_after(convolutions, task), 384), nn.Dropout(dropout[0]), nn.ReLU()),
        *(nn.Linear(384, 192), nn.Dropout(dropout[1]), nn.ReLU()),
    )
    return Network(features, nn.Linear(192, task.outputs))


def fedave_mnist(task: Task) -> Network:
    """FedAVE's CNN for grey digits: two padded 5x5 convolutions (32, 64) and 512 hidden units."""
    return convolutional(task, _two_convolutions(task, 32, 64, padding=2), [512])


def fedave_cifar(task: Task) -> Network:
    """FedAVE's CNN for colour images: two 5x5 convolutions (16, 32), 120 and 84 hidden units."""
    return convolutional(task, _two_convolutions(task, 16, 32), [120, 84])


def lenet(task: Task) -> Network:
    """LeNet with ReLU and max-pooling: two 5x5 convolutions (6, 16), 120 and 84 hidden units."""
    return convolutional(task, _two_convolutions(task, 6, 16), [120, 84])


def bench_cnn(task: Task) -> Network:
    """FedAvg's CNN without padding: two 5x5 convolutions (32, 64) and 512 hidden units."""
    return convolutional(task, _two_convolutions(task, 32, 64), [512])


def moon_cnn(task: Task, *, split: Literal["map", "projection"] = "map") -> Network:
    """MOON's simple CNN; features are the 16-channel map, as in KDIA.

    With split "projection" they are the 256 numbers of MOON's projection head.
    """
    convolutions = _two_convolutions(task, 6, 16)
    projection = [
        nn.Flatten(),
        *dense([size_after(convolutions, task), 120, 84, 84]),
        nn.Linear(84, 256),
    ]
    classifier = nn.Linear(256, task.outputs)
    if split == "map":
        return Network(convolutions, nn.Sequential(*projection, classifier))
    return Network(nn.Sequential(*convolutions, *projection), classifier)


def private_cnn(task: Task) -> Network:
    """FedeKD's private model: three 3x3 convolutions (64, 128, 128) and 256 hidden units."""
    return _pooled(task, [64, 128, 128], hidden=256)


def proxy_cnn(task: Task) -> Network:
    """FedeKD's proxy model: two 3x3 convolutions (32, 64), pooled to 4x4, and 128 hidden units."""
    return _pooled(task, [32, 64], hidden=128)


def _two_convolutions(task: Task, first: int, second: int, padding: int = 0) -> nn.Sequential:
    channels = image_shape(task)[0]
    return nn.Sequential(
        *(nn.Conv2d(channels, first, 5, padding=padding), *pooled_relu()),
        *(nn.Conv2d(first, second, 5, padding=padding), *pooled_relu()),
    )


def _pooled(task: Task, widths: list[int], hidden: int) -> Network:
    """Return 3x3 convolutions with adaptive pooling, for any image from 4x4 pixels on.

    The first two are each followed by max-pooling.
    """
    layers: list[nn.Module] = []
    for position, (inner, outer) in enumerate(
        zip([image_shape(task)[0], *widths], widths, strict=False)
    ):
        layers += [
            nn.Conv2d(inner, outer, 3, padding=1),
            *(pooled_relu() if position < 2 else [nn.ReLU()]),
        ]
    return convolutional(task, nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4)), [hidden])

"""Small networks for flat samples and for small images."""

from __future__ import annotations

import math

import torch
from torch import nn

from equipoise.models.network import Network
from equipoise.models.parts import Count, convolutional, dense, image_shape, pooled_relu
from equipoise.task import Task


def mlp(task: Task, *, hidden: tuple[Count, ...] = (200, 200)) -> Network:
    """Fully connected layers with ReLU over the flattened sample.

    The default is CoRe-Fed's network (199,210 parameters at 28x28).
    """
    sizes = [math.prod(task.shape), *hidden]
    return Network(nn.Sequential(nn.Flatten(), *dense(sizes)), nn.Linear(sizes[-1], task.outputs))


class ReferenceClass(nn.Module):
    """The last step of logistic regression: from the log odds z to the logits (0, z)."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Return two logits per sample; their softmax is (1 - sigmoid(z), sigmoid(z))."""
        return torch.cat([torch.zeros_like(z), z], dim=1)


def linear(task: Task) -> Network:
    """One linear layer over the flattened sample.

    For two classes it is logistic regression: one output, against the first class.
    """
    inputs = math.prod(task.shape)
    if task.classifies and task.outputs == 2:
        head = nn.Sequential(nn.Linear(inputs, 1), ReferenceClass())
        return Network(nn.Flatten(), head)
    return Network(nn.Flatten(), nn.Linear(inputs, task.outputs))


def cnn(task: Task, *, width: Count = 16, hidden: Count = 64) -> Network:
    """Two 3x3 convolutions with batch norm and one hidden layer, for images from 4x4 pixels on."""
    channels = image_shape(task)[0]
    convolutions = nn.Sequential(*_block(channels, width), *_block(width, 2 * width))
    return convolutional(task, convolutions, [hidden])


def simple_cnn(task: Task) -> Network:
    """FedAKD's SimpleCNN: two 3x3 convolutions (32, 64) with batch norm, then the linear head."""
    channels = image_shape(task)[0]
    return convolutional(task, nn.Sequential(*_block(channels, 32), *_block(32, 64)), [])


def _block(inner: int, outer: int) -> list[nn.Module]:
    return [nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), *pooled_relu()]

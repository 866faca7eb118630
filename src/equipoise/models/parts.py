"""Parts that the convolutional networks share."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated

from pydantic import Field
from torch import nn

from equipoise.models.network import Network, shape_after
from equipoise.task import Task

Count = Annotated[int, Field(strict=True, ge=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]


def image_shape(task: Task) -> tuple[int, int, int]:
    """Return channels, height and width of the task's images.

    Raises:
        ValueError: If the samples are not images.
    """
    if len(task.shape) != 3:
        raise ValueError(
            "needs images of shape (channels, height, width), but the samples have shape "
            f"{task.shape}; use 'mlp' for flat samples"
        )
    channels, height, width = task.shape
    return channels, height, width


def size_after(convolutions: nn.Module, task: Task) -> int:
    """Return the number of outputs of convolutions for one image.

    Raises:
        ValueError: If the image is too small.
    """
    try:
        return math.prod(shape_after(convolutions, task.shape))
    except RuntimeError as error:
        raise ValueError(
            f"images of shape {task.shape} are too small for its convolutions and pools; use "
            "larger images or 'mlp'"
        ) from error


def pooled_relu() -> list[nn.Module]:
    """Return ReLU and 2x2 max-pooling, the pooling first.

    The two commute exactly, gradients included, and ReLU then has a quarter of the work.
    """
    return [nn.MaxPool2d(2), nn.ReLU()]


def dense(sizes: list[int]) -> list[nn.Module]:
    """Return linear layers of these sizes, each followed by ReLU."""
    return [
        layer for inner, outer in pairwise(sizes) for layer in (nn.Linear(inner, outer), nn.ReLU())
    ]


def convolutional(task: Task, convolutions: nn.Sequential, hidden: list[int]) -> Network:
    """Return a network of convolutions, hidden layers with ReLU, and a linear head."""
    sizes = [size_after(convolutions, task), *hidden]
    return Network(
        nn.Sequential(*convolutions, nn.Flatten(), *dense(sizes)),
        nn.Linear(sizes[-1], task.outputs),
    )

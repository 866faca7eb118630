"""Pieces the convolutional networks share."""

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
    """Channels, height and width of the task's images; anything else is refused."""
    if len(task.shape) != 3:
        raise ValueError(
            f"needs images of shape (channels, height, width), but the samples have shape {task.shape}; use 'mlp' for flat samples"
        )
    channels, height, width = task.shape
    return channels, height, width


def size_after(convolutions: nn.Module, task: Task) -> int:
    """How many numbers the convolutions make of one image; an image too small for them is refused."""
    try:
        return math.prod(shape_after(convolutions, task.shape))
    except RuntimeError as error:
        raise ValueError(
            f"images of shape {task.shape} are too small for its convolutions and pools; use larger images or 'mlp'"
        ) from error


def pooled_relu() -> list[nn.Module]:
    """The papers' ReLU and 2x2 max-pooling, the pooling first: the two commute exactly, gradients included, and ReLU then has a quarter to do."""
    return [nn.MaxPool2d(2), nn.ReLU()]


def dense(sizes: list[int]) -> list[nn.Module]:
    """Linear layers of these sizes, each followed by ReLU."""
    return [
        layer for inner, outer in pairwise(sizes) for layer in (nn.Linear(inner, outer), nn.ReLU())
    ]


def convolutional(task: Task, convolutions: nn.Sequential, hidden: list[int]) -> Network:
    """Convolutions, flattened, then hidden layers with ReLU as features; one linear layer as head."""
    sizes = [size_after(convolutions, task), *hidden]
    return Network(
        nn.Sequential(*convolutions, nn.Flatten(), *dense(sizes)),
        nn.Linear(sizes[-1], task.outputs),
    )

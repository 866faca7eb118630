"""ResNet-10 and ResNet-12 for small images.

They have a 3x3 stem without pooling, so that 32 and 64 pixels both work.
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge
from torch import nn

from equipoise.models.network import Network
from equipoise.models.parts import Count, image_shape
from equipoise.task import Task

Bottleneck = Annotated[int, Ge(0)]


class Residual(nn.Module):
    """Two 3x3 convolutions with batch norm and a shortcut.

    The shortcut is a 1x1 convolution where the shape changes.
    """

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_normed(inner, outer, 3, stride), nn.ReLU(), *_normed(outer, outer, 3, 1)
        )
        same = inner == outer and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_normed(inner, outer, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the block."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet10(task: Task, *, width: Count = 64, bottleneck: Bottleneck = 0) -> Network:
    """ResNet-10 for small images: one block per stage, pooled features.

    Args:
        task: The task.
        width: The number of channels in the first of four stages.
        bottleneck: The number of features after one more layer with ReLU, 400 in KDIA; 0 adds none.
    """
    return _resnet(task, (1, 1, 1, 1), width, bottleneck)


def resnet12(task: Task, *, width: Count = 64, bottleneck: Bottleneck = 0) -> Network:
    """ResNet-12 for small images: like ResNet-10 with a second block in the first stage."""
    return _resnet(task, (2, 1, 1, 1), width, bottleneck)


def _resnet(task: Task, blocks: tuple[int, int, int, int], width: int, bottleneck: int) -> Network:
    layers: list[nn.Module] = [*_normed(image_shape(task)[0], width, 3, 1), nn.ReLU()]
    inner = width
    for stage, count in enumerate(blocks):
        outer = width * 2**stage
        for block in range(count):
            layers.append(Residual(inner, outer, stride=2 if stage > 0 and block == 0 else 1))
            inner = outer
    narrow = [nn.Linear(inner, bottleneck), nn.ReLU()] if bottleneck else []
    features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *narrow)
    return Network(features, nn.Linear(bottleneck or inner, task.outputs))


def _normed(inner: int, outer: int, kernel: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inner, outer, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outer),
    ]

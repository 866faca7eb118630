"""Learnable anchors of classes (FedLSA)."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize


class Anchors(nn.Module):
    """One point of length 1 per class, in the shape of the features.

    Two layers (Theta) compute the points from one learnable vector per class (R).

    Args:
        classes: The number of classes.
        size: The size of the learnable vectors.
        shape: The shape of the features.
    """

    def __init__(self, classes: int, size: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.vectors = nn.Parameter(torch.randn(classes, size))  # R
        # Theta
        self.layers = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, prod(shape)))

    def forward(self) -> Any:
        """Return the anchors, one row per class."""
        return normalize(self.layers(self.vectors), dim=1).view(-1, *self.shape)

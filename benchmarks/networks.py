"""The networks of the workloads, the same for every contender."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def network(name: str, seed: int) -> nn.Sequential:
    """A fresh network whose initial parameters follow from the seed.

    >>> names = ("cnn", "mlp", "lenet", "mlp_30", "mlp_13")
    >>> [sum(p.numel() for p in network(name, 0).parameters()) for name in names]
    [582026, 199210, 44426, 46802, 1026]
    """
    torch.manual_seed(seed)
    if name == "mlp_30":
        return nn.Sequential(
            nn.Linear(30, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 2)
        )
    if name == "mlp_13":
        return nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 2))
    if name == "mlp":
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(784, 200),
            nn.ReLU(),
            nn.Linear(200, 200),
            nn.ReLU(),
            nn.Linear(200, 10),
        )
    if name == "cnn":
        return nn.Sequential(
            *_convolution(1, 32),
            *_convolution(32, 64),
            nn.Flatten(),
            nn.Linear(1024, 512),
            nn.ReLU(),
            nn.Linear(512, 10),
        )
    if name == "lenet":
        head = (nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
        return nn.Sequential(*_convolution(1, 6), *_convolution(6, 16), nn.Flatten(), *head)
    raise ValueError(f"Expected the network cnn, mlp, lenet, mlp_30 or mlp_13, got {name!r}.")


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(inputs, outputs, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
    )  # in this order the same numbers, for less


@torch.no_grad()
def count_correct(model: nn.Module, x: Tensor, y: Tensor, batch: int = 500) -> int:
    """Return the number of samples that the model classifies correctly."""
    hits = (
        model(inputs).argmax(1) == labels
        for inputs, labels in zip(x.split(batch), y.split(batch), strict=True)
    )
    return sum(int(hit.sum()) for hit in hits)

"""The conditional generator of KDIA: features of a class from noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

OUTPUT = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU, "softplus": nn.Softplus}


class Generator(nn.Module):
    """A network that generates features from noise and labels, as FedCG's LeNet variant does.

    See KDIA, section 5.3. Maps up to 8x8 grow by one pixel per transposed convolution; larger maps
    start at 4x4 and double; flat features come from an MLP. The paper's last activation is
    "sigmoid"; "relu" and "softplus" also reach activations above 1.

    >>> sum(p.numel() for p in Generator((16, 5, 5), classes=10).parameters())
    890724
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        noise: int = 100,
        out_act: Literal["sigmoid", "relu", "softplus"] = "sigmoid",
    ) -> None:
        super().__init__()
        if out_act not in OUTPUT:
            raise ValueError(
                f"unknown out_act {out_act!r}; it has to be one of {', '.join(OUTPUT)}"
            )
        if len(shape) not in (1, 3):
            raise ValueError(
                "features have to be flat (size,) or a map (channels, height, width) to be "
                f"generated; theirs is {tuple(shape)}"
            )
        self.shape = tuple(shape)
        self.noise = noise
        self.label = nn.Embedding(classes, classes)
        side = max(self.shape[1:], default=1)
        layers = (
            _flat(noise + classes, math.prod(self.shape))
            if side == 1
            else _map(noise + classes, self.shape[0], side)
        )
        self.layers = nn.Sequential(*layers, OUTPUT[out_act]())

    def forward(self, noise: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return features for noise (batch, noise) and labels (batch,)."""
        made = torch.cat([noise, self.label(labels)], dim=1)
        if max(self.shape[1:], default=1) == 1:
            return torch.reshape(self.layers(made), (len(made), *self.shape))
        return _cropped(self.layers(made[:, :, None, None]), self.shape[1], self.shape[2])


def _flat(inputs: int, outputs: int) -> list[nn.Module]:
    hidden = [
        layer
        for inner, outer in ((inputs, 512), (512, 256))
        for layer in (nn.Linear(inner, outer), nn.BatchNorm1d(outer), nn.LeakyReLU(0.2))
    ]
    return [*hidden, nn.Linear(256, outputs)]


def _map(inputs: int, channels: int, side: int) -> list[nn.Module]:
    """Return transposed convolutions from 1x1 to at least side x side.

    All but the last have batch norm and LeakyReLU.
    """
    one_more, four, doubled = (2, 1, 0), (4, 1, 0), (4, 2, 1)  # kernel, stride, padding
    steps = (
        [one_more] * (side - 1)
        if side <= 8
        else [four] + [doubled] * math.ceil(math.log2(side / 4))
    )
    widths = [inputs, *(max(512 >> position, 64) for position in range(len(steps) - 1)), channels]
    layers: list[nn.Module] = []
    for (kernel, stride, padding), inner, outer in zip(steps, widths, widths[1:], strict=False):
        layers += [
            nn.ConvTranspose2d(inner, outer, kernel, stride, padding, bias=False),
            nn.BatchNorm2d(outer),
            nn.LeakyReLU(0.2),
        ]
    return layers[:-2]


def _cropped(maps: torch.Tensor, height: int, width: int) -> torch.Tensor:
    top, left = (maps.shape[2] - height) // 2, (maps.shape[3] - width) // 2
    return maps[:, :, top : top + height, left : left + width]

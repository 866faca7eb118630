"""Pixels as model inputs, and random augmentation of training batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from equipoise.validation.names import did_you_mean

# name -> mean and standard deviation per channel of pixels in [0, 1]
NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "none": ((0.0,), (1.0,)),
    "half": ((0.5,), (0.5,)),  # FedeKD
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # FedEquilibria, FedHEAL
    "cifar10": (
        (125.3 / 255, 123.0 / 255, 113.9 / 255),
        (63.0 / 255, 62.1 / 255, 66.7 / 255),
    ),  # KDIA
    "cifar10_corefed": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.50708, 0.48655, 0.44092), (0.26733, 0.25644, 0.27615)),  # KDIA
    "cinic10": ((0.47890, 0.47228, 0.43047), (0.24206, 0.23828, 0.25875)),  # KDIA
}
BLOCK = 1024


def normalised(x: Tensor, name: str) -> Tensor:
    """Return float inputs: whole-number pixels divided by 255, then (x - mean) / std per channel.

    Args:
        x: The inputs.
        name: A name of NORMALISATIONS.

    Raises:
        ValueError: If the normalisation is for another number of channels.

    >>> normalised(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), "half").tolist()
    [[[[-1.0, 1.0]]]]
    """
    mean, std = NORMALISATIONS[name]
    if len(mean) > 1 and (x.ndim != 4 or x.shape[1] != len(mean)):
        raise ValueError(
            f"normalisation {name} is for images with {len(mean)} channels, "
            f"got samples of shape {tuple(x.shape[1:])}"
        )
    out = x.to(torch.float32, copy=True)
    if x.dtype == torch.uint8:
        out /= 255
    if name != "none":
        shape = (-1,) + (1,) * (x.ndim - 2)
        out -= torch.tensor(mean).view(shape)
        out /= torch.tensor(std).view(shape)
    return out.contiguous()


def resized(x: Tensor, size: int) -> Tensor:
    """Return images (n, channels, height, width) at another size, of the same type.

    Interpolation is bilinear, with smoothing when shrinking.
    """
    if x.shape[-2:] == (size, size):
        return x
    out = torch.empty((*x.shape[:2], size, size), dtype=x.dtype)
    for start in range(0, len(x), BLOCK):
        block = functional.interpolate(
            x[start : start + BLOCK].float(), (size, size), mode="bilinear", antialias=True
        )
        out[start : start + BLOCK] = block.round_() if x.dtype == torch.uint8 else block
    return out


def augmentation(text: str) -> Callable[[Tensor, torch.Generator], Tensor]:
    """Return the random change with a name.

    Args:
        text: crop, crop_reflect, flip or rotate, optionally with an amount as in crop:2.

    Raises:
        ValueError: If the name or the amount is not valid.
    """
    name, _, amount = text.partition(":")
    known = {"crop": 4, "crop_reflect": 4, "flip": None, "rotate": 15}
    if name not in known:
        raise ValueError(
            f"unknown augmentation {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}"
        )
    if amount and (known[name] is None or not amount.isdigit()):
        alternative = "" if known[name] is None else " or a whole number as in crop:4"
        raise ValueError(f"augmentation {text!r}: expected {name}{alternative}")
    value = int(amount or known[name] or 0)
    if name == "flip":
        return _flip
    if name == "rotate":
        return lambda x, generator: _rotate(x, value, generator)
    mode = "reflect" if name == "crop_reflect" else "constant"
    return lambda x, generator: _crop(x, value, mode, generator)


def augment(x: Tensor, names: Sequence[str], generator: torch.Generator) -> Tensor:
    """Return a training batch of images, each changed at random.

    Args:
        x: The images.
        names: The augmentations, in the order in which they are applied.
        generator: The source of random numbers.

    Raises:
        ValueError: If samples are no images, or an augmentation is not known.
    """
    if names and x.ndim != 4:
        raise ValueError(
            f"augmentation {', '.join(names)} is for images, "
            f"got samples of shape {tuple(x.shape[1:])}"
        )
    for name in names:
        x = augmentation(name)(x, generator)
    return x


def _flip(x: Tensor, generator: torch.Generator) -> Tensor:
    chosen = torch.rand(len(x), generator=generator) < 0.5
    return torch.where(chosen.view(-1, 1, 1, 1), x.flip(-1), x)


def _crop(x: Tensor, pad: int, mode: str, generator: torch.Generator) -> Tensor:
    height, width = x.shape[-2:]
    down, right = torch.randint(0, 2 * pad + 1, (2, len(x)), generator=generator)
    windows = functional.pad(x, (pad,) * 4, mode=mode).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(len(x)), :, down, right]


def _rotate(x: Tensor, degrees: int, generator: torch.Generator) -> Tensor:
    angle = (torch.rand(len(x), generator=generator) * 2 - 1) * math.radians(degrees)
    # The coordinates of affine_grid are scaled to [-1, 1] on each side, hence the aspect ratio.
    ratio = x.shape[-1] / x.shape[-2]
    cos = angle.cos()
    sin = angle.sin()
    zero = torch.zeros(len(x))
    first_row = torch.stack([cos, -sin / ratio, zero], 1)
    second_row = torch.stack([sin * ratio, cos, zero], 1)
    turn = torch.stack([first_row, second_row], 1)
    grid = functional.affine_grid(turn, list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, align_corners=False, padding_mode="zeros")

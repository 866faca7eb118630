"""What is inside a record: its tensors and numbers, whether they are finite, and how many bytes they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from equipoise.records.record import PerClient
from equipoise.tree import Tree


def tensors_of(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every tree, tensor and number inside a value, with the path that leads to it."""
    if isinstance(value, (Tree, Tensor, int, float)) and not isinstance(value, bool):
        yield name, value
    elif isinstance(value, Mapping):
        # Of what is kept by client, what changed: the rest lies in files and was looked at when it was new.
        for key, item in (value.changed if isinstance(value, PerClient) else value).items():
            yield from tensors_of(item, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from tensors_of(item, f"{name}[{position}]")


def finite(value: Any) -> bool:
    """Whether a tree, tensor or number holds finite values only."""
    if isinstance(value, Tree):
        return all(finite(tensor) for tensor in value.values())
    if not isinstance(value, Tensor):
        return math.isfinite(value)
    if not value.is_floating_point():
        return True
    # One value that is not finite makes the sum so. A sum that overflows says nothing: then each value is looked at.
    return math.isfinite(value.sum().item()) or bool(torch.isfinite(value).all())


def size(value: Any) -> int:
    """Bytes of the tensors inside a value: what a transport has to carry, headers apart."""
    return sum(
        item.bytes()
        if isinstance(item, Tree)
        else item.numel() * item.element_size()
        if isinstance(item, Tensor)
        else 8
        for _, item in tensors_of(value)
    )

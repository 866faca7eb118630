"""Contents of a record: its tensors and numbers, whether they are finite, and their bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from equipoise.records.record import PerClient, Record
from equipoise.tree import Tree

_NUMBER_BYTES = 8


def tensors_of(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every tree, tensor and number inside a value, with the path that leads to it."""
    if isinstance(value, (Tree, Tensor, int, float)) and not isinstance(value, bool):
        yield name, value
    elif isinstance(value, Mapping):
        # Unchanged values of a `PerClient` are in files and were inspected when they were new.
        entries = value.changed if isinstance(value, PerClient) else value
        for key, item in entries.items():
            yield from tensors_of(item, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from tensors_of(item, f"{name}[{position}]")


def finite(value: Any) -> bool:
    """Return True if all values of a tree, tensor or number are finite."""
    if isinstance(value, Tree):
        return all(finite(tensor) for tensor in value.values())
    if not isinstance(value, Tensor):
        return math.isfinite(value)
    if not value.is_floating_point():
        return True
    # If the sum is finite, so is every value. A sum may overflow, so each value is inspected then.
    return math.isfinite(value.sum().item()) or bool(torch.isfinite(value).all())


def size(value: Any) -> int:
    """Return the bytes of the tensors and numbers inside a value, without headers.

    A record never changes, so its size is computed once.
    """
    if not isinstance(value, Record):
        return _computed_size(value)
    if value._size is None:
        value._size = _computed_size(value)
    return value._size


def _computed_size(value: Any) -> int:
    total = 0
    for _, item in tensors_of(value):
        if isinstance(item, Tree):
            total += item.bytes()
        elif isinstance(item, Tensor):
            total += item.numel() * item.element_size()
        else:
            total += _NUMBER_BYTES
    return total

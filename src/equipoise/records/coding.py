"""A record as plain JSON with its tensors beside it, and back: what packing and files have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from equipoise.records.record import KINDS, LEVELS, PER_CLIENT, PerClient, Record
from equipoise.tree import Tree

_ENVELOPES = 2  # records that the engine puts around what travels


def encode(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"$tensor": len(tensors) - 1}
    if isinstance(value, Tree):
        entries = {}
        for name, tensor in value.items():
            entries[name] = len(tensors)
            tensors.append(tensor)
        return {"$tree": value.model, "entries": entries, "untrained": sorted(value.untrained)}
    if isinstance(value, Record):
        return {
            "$record": type(value).__name__,
            "values": {name: encode(item, tensors) for name, item in value.items()},
        }
    if isinstance(value, PerClient):
        raise TypeError(PER_CLIENT)
    if isinstance(value, Mapping):
        return {name: encode(item, tensors) for name, item in value.items()}
    if isinstance(value, list):
        return [encode(item, tensors) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"$number": str(float(value))}  # JSON has no such literals
    return value


_FORMS: dict[str, set[str]] = {"$tensor": {"$tensor"}, "$tree": {"$tree", "entries", "untrained"}, "$record": {"$record", "values"}, "$number": {"$number"}}  # fmt: skip
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def decode(
    value: Any,
    take: Callable[[int], Tensor],
    take_all: Callable[[dict[str, int]], Mapping[str, Tensor]],
    level: int = 0,
) -> Any:
    """The inverse of `encode`, in place; ValueError or KeyError for whatever that cannot have written. Each tensor is taken once."""
    if not isinstance(value, (list, dict)):
        return value
    if level >= LEVELS + _ENVELOPES:
        raise ValueError(f"more than {LEVELS} levels of records, lists and mappings")
    if isinstance(value, list):
        for position, item in enumerate(value):
            value[position] = decode(item, take, take_all, level + 1)
        return value
    mark = None
    for name in value:
        if name[:1] == "$":
            mark = name
            break
    if mark is None:
        for name, item in value.items():
            value[name] = decode(item, take, take_all, level + 1)
        return value
    if _FORMS.get(mark) != value.keys():
        raise ValueError(f"a mapping with the keys {sorted(value)[:3]}")
    if mark == "$tensor":
        return take(_places(value)[mark])
    if mark == "$number":
        return _NUMBERS[value[mark]]
    if mark == "$record":
        kind, values = KINDS[value[mark]], value["values"]
        if type(values) is not dict:
            raise ValueError("a record without values")
        for name, item in values.items():
            values[name] = decode(item, take, take_all, level + 1)
        return kind._trusted(values)
    model, entries, untrained = value["$tree"], value["entries"], value["untrained"]
    if (
        type(model) is not str
        or type(entries) is not dict
        or type(untrained) is not list
        or set(map(type, untrained)) - {str}
    ):
        raise ValueError(
            "a tree without a model, entries and the names of those that are not trained"
        )
    tree = Tree(take_all(_places(entries)), model, untrained)
    tree.plain = True
    return tree


def _places(entries: dict[str, Any]) -> dict[str, int]:
    for position in entries.values():
        if type(position) is not int:
            raise ValueError("a tensor whose position is no integer")
    return entries

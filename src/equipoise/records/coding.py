"""Records as JSON and a list of tensors, the form that messages and files share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from equipoise.records.record import KINDS, LEVELS, PER_CLIENT, PerClient, Record
from equipoise.tree import Tree

_ENVELOPES = 2  # records that the engine puts around what travels


def encode(value: Any, tensors: list[Tensor]) -> Any:
    """Return a value of a record as JSON.

    Args:
        value: The record, or a value inside it.
        tensors: Receives the tensors; the JSON refers to them by position.

    Raises:
        TypeError: If the value holds a `PerClient`.
    """
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


# The keys of a mapping that stands for something else, by the key that marks it.
_FORMS: dict[str, set[str]] = {
    "$tensor": {"$tensor"},
    "$tree": {"$tree", "entries", "untrained"},
    "$record": {"$record", "values"},
    "$number": {"$number"},
}
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def decode(
    value: Any,
    take: Callable[[int], Tensor],
    take_all: Callable[[dict[str, int]], Mapping[str, Tensor]],
    level: int = 0,
) -> Any:
    """Return the value that `encode` turned into JSON; lists and mappings are changed in place.

    Args:
        value: The JSON, which may come from a stranger.
        take: Returns the tensor at a position, each once.
        take_all: Returns the tensors of a tree by name.
        level: The number of containers around the value.

    Raises:
        ValueError: If `encode` cannot have written the JSON.
        KeyError: If a tensor, a kind of record or a number is unknown.
    """
    if not isinstance(value, (list, dict)):
        return value
    if level >= LEVELS + _ENVELOPES:
        raise ValueError(f"more than {LEVELS} levels of records, lists and mappings")
    if isinstance(value, list):
        for position, item in enumerate(value):
            value[position] = decode(item, take, take_all, level + 1)
        return value
    for name in value:
        if name[:1] == "$":
            return _decode_marked(name, value, take, take_all, level)
    for name, item in value.items():
        value[name] = decode(item, take, take_all, level + 1)
    return value


def _decode_marked(
    mark: str,
    value: dict[str, Any],
    take: Callable[[int], Tensor],
    take_all: Callable[[dict[str, int]], Mapping[str, Tensor]],
    level: int,
) -> Any:
    """Return the tensor, tree, record or number that a mapping stands for."""
    if _FORMS.get(mark) != value.keys():
        raise ValueError(f"a mapping with the keys {sorted(value)[:3]}")
    if mark == "$tensor":
        return take(_checked_positions(value)[mark])
    if mark == "$number":
        return _NUMBERS[value[mark]]
    if mark == "$tree":
        return _decode_tree(value, take_all)
    kind = KINDS[value[mark]]
    values = value["values"]
    if type(values) is not dict:
        raise ValueError("a record without values")
    for name, item in values.items():
        values[name] = decode(item, take, take_all, level + 1)
    return kind._trusted(values)


def _decode_tree(
    value: dict[str, Any], take_all: Callable[[dict[str, int]], Mapping[str, Tensor]]
) -> Tree:
    model = value["$tree"]
    entries = value["entries"]
    untrained = value["untrained"]
    has_types = type(model) is str and type(entries) is dict and type(untrained) is list
    if not has_types or set(map(type, untrained)) - {str}:
        raise ValueError(
            "a tree without a model, entries and the names of those that are not trained"
        )
    tree = Tree(take_all(_checked_positions(entries)), model, untrained)
    tree.plain = True
    return tree


def _checked_positions(entries: dict[str, Any]) -> dict[str, int]:
    for position in entries.values():
        if type(position) is not int:
            raise ValueError("a tensor whose position is no integer")
    return entries

"""The arrays that a method could read through the arguments of its slots."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.client import Client
from equipoise.data.samples import Samples
from equipoise.method import SLOTS, Method, Ups, overridden
from equipoise.server import Server

MAX_OBJECTS = 100_000  # A search that finds more counts as endless.
ALWAYS_PROBED = ("start", "client", "update", "round")
NEVER_PROBED = ("check", "models")
LEAVES = (str, int, float, type(None), type, ModuleType, FunctionType, torch.Generator)


def probing(method: Method, inspect_arguments: Callable[[Mapping[str, Any]], None]) -> Any:
    """Return a method that also passes the arguments of each slot to a function.

    Args:
        method: The method to copy.
        inspect_arguments: Called with the arguments of a slot by name, before the slot.
    """
    kind: Any = type(method)

    def probed(slot: str) -> Callable[..., Any]:
        original = getattr(kind, slot)
        names = list(inspect.signature(original).parameters)

        @functools.wraps(original)
        def probe(*arguments: Any) -> Any:
            inspect_arguments(dict(zip(["method", *names[1:]], arguments, strict=True)))
            return original(*arguments)

        return probe

    slots = {}
    for slot in SLOTS:
        own = overridden(method, slot) and slot not in NEVER_PROBED
        if own or slot in ALWAYS_PROBED:
            slots[slot] = probed(slot)
    values = {field.name: getattr(method, field.name) for field in fields(method) if field.init}
    return type(kind.__name__, (kind,), {"__module__": "__main__", **slots})(**values)


class Rows:
    """Samples to look for in the memory of arrays.

    Args:
        rows: One flattened sample per row, as float32.
    """

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows
        self.first_values = np.unique(rows[:, 0])

    def are_in(self, array: Tensor | np.ndarray) -> bool:
        """Return True if a row occurs anywhere in the memory of an array.

        The whole storage is searched, because a slice leads to all of it.
        """
        tensor = array if isinstance(array, Tensor) else torch.from_numpy(np.array(array))
        if tensor.dtype != torch.float32 or not len(self.rows):
            return False
        memory = torch.empty(0).set_(tensor.detach().untyped_storage()).numpy()
        length = self.rows.shape[1]
        starts = memory[: max(0, len(memory) - length + 1)]
        positions = np.searchsorted(self.first_values, starts)
        nearest = self.first_values[np.minimum(positions, len(self.first_values) - 1)]
        for start in np.flatnonzero(nearest == starts):
            if (self.rows == memory[start : start + length]).all(1).any():
                return True
        return False


def reachable(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Tensor | np.ndarray]]:
    """Yield the arrays to which attributes, properties and items lead, with their paths.

    The closures of functions are not searched.

    Raises:
        RuntimeError: If the search does not end.
    """
    waiting = list(arguments.items())
    # Also keeps objects that properties create, so that no other object gets their id.
    seen: dict[int, Any] = {}
    while waiting:
        path, value = waiting.pop()
        if id(value) in seen or isinstance(value, LEAVES):
            continue
        seen[id(value)] = value
        if len(seen) > MAX_OBJECTS:
            raise RuntimeError(f"{path} leads to an endless number of objects")
        if isinstance(value, Tensor):
            yield path, value
            continue
        if isinstance(value, np.ndarray) and value.dtype != object:
            yield path, value
        else:
            waiting += _items(path, value)
        waiting += [(f"{path}.{name}", inner) for name, inner in _attributes(value)]


def _items(path: str, value: Any) -> list[tuple[str, Any]]:
    """Return the items of a mapping or sequence with their paths."""
    if isinstance(value, Mapping):
        return [(f"{path}[{key!r}]", value[key]) for key in value]
    if isinstance(value, (list, tuple, set, frozenset, Ups)):
        return [(f"{path}[{position}]", item) for position, item in enumerate(value)]
    return []


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object: of the instance, in slots, and chosen properties."""
    yield from getattr(value, "__dict__", {}).items()
    for name in ("__self__", "func", "args", "keywords"):
        if hasattr(value, name):
            yield name, getattr(value, name)
    kind: type = type(value)
    for name in _class_attributes(kind):
        with suppress(Exception):  # A property without a value raises.
            yield name, getattr(value, name)
    if isinstance(value, Method):
        yield from _constants(type(value))


@functools.cache
def _class_attributes(kind: type) -> list[str]:
    """Return the names of slots and properties to follow.

    Only properties of these classes are followed: the parameters of a tree are a tree, whose
    parameters are a tree, and so on.
    """
    follows_properties = issubclass(kind, (Client, Server, Samples, Method))
    names = []
    for base in kind.__mro__:
        slots = getattr(base, "__slots__", ())
        for name, value in vars(base).items():
            if name in slots or (isinstance(value, property) and follows_properties):
                names.append(name)
    return list(dict.fromkeys(names))


def _constants(kind: type[Method]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a method's class and its bases that are no functions."""
    for base in kind.__mro__:
        for name, value in vars(base).items():
            if not (name.startswith("__") or callable(value) or isinstance(value, property)):
                yield name, value

"""What a method could reach through what its slots are given."""

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

FARTHEST = 100_000  # objects behind which a way counts as one without an end


def probing(method: Method, look: Callable[[Mapping[str, Any]], None]) -> Any:
    """The same method with a look at what its slots are given."""
    kind: Any = type(method)

    def watched(slot: str) -> Callable[..., Any]:
        original = getattr(kind, slot)
        names = list(inspect.signature(original).parameters)

        @functools.wraps(original)
        def probe(*given: Any) -> Any:
            look(dict(zip(["method", *names[1:]], given, strict=True)))
            return original(*given)

        return probe

    always = ("start", "client", "update", "round")
    slots = {
        slot: watched(slot)
        for slot in SLOTS
        if slot in always or (overridden(method, slot) and slot not in ("check", "models"))
    }
    values = {field.name: getattr(method, field.name) for field in fields(method) if field.init}
    return type(kind.__name__, (kind,), {"__module__": "__main__", **slots})(**values)


def holds(found: Tensor | np.ndarray, rows: np.ndarray) -> bool:
    """Whether one of these rows stands anywhere in the memory of a tensor: a slice leads to the whole."""
    tensor = found if isinstance(found, Tensor) else torch.from_numpy(np.array(found))
    if tensor.dtype != torch.float32:
        return False
    memory = torch.empty(0).set_(tensor.detach().untyped_storage()).numpy()
    starts = [
        start
        for start in np.flatnonzero(np.isin(memory, rows[:, 0]))
        if start + rows.shape[1] <= len(memory)
    ]
    return any((rows == memory[start : start + rows.shape[1]]).all(1).any() for start in starts)


def reachable(given: Mapping[str, Any]) -> Iterator[tuple[str, Tensor | np.ndarray]]:
    """The tensors and arrays that attributes, properties and items lead to, with their paths; what a function encloses is its own."""
    waiting, seen = list(given.items()), {}
    while waiting:
        path, one = waiting.pop()
        if id(one) in seen or isinstance(
            one, (str, int, float, type(None), type, ModuleType, FunctionType, torch.Generator)
        ):
            continue
        seen[id(one)] = one  # also what a property made: its number must not be given to another
        if len(seen) > FARTHEST:
            raise RuntimeError(f"{path} leads on without an end")
        if isinstance(one, Tensor) or (isinstance(one, np.ndarray) and one.dtype != object):
            yield path, one
        elif isinstance(one, Mapping):
            waiting += [(f"{path}[{key!r}]", one[key]) for key in one]
        elif isinstance(one, (list, tuple, set, frozenset, Ups)):
            waiting += [(f"{path}[{place}]", item) for place, item in enumerate(one)]
        if not isinstance(one, Tensor):
            waiting += [(f"{path}.{name}", value) for name, value in _attributes(one)]


def _attributes(one: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(one, "__dict__", {}).items()
    yield from (
        (name, getattr(one, name))
        for name in ("__self__", "func", "args", "keywords")
        if hasattr(one, name)
    )
    for kind in type(one).__mro__:
        for name, value in vars(kind).items():
            # Properties of others are not followed: the parameters of a tree are a tree, whose parameters are a tree, and so on.
            given = isinstance(value, property) and isinstance(
                one, (Client, Server, Samples, Method)
            )
            if given or name in getattr(kind, "__slots__", ()):
                with suppress(Exception):  # a property that has nothing to give says so
                    yield name, getattr(one, name)
            elif isinstance(one, Method) and not name.startswith("__") and not callable(value):
                yield name, value

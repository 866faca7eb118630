"""What may travel: trees, tensors, numbers, strings, lists and mappings with string keys; anything else is refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from equipoise.tree import Tree

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in
           (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)}  # fmt: skip
_TRAVELLING = frozenset(DTYPES.values())
LEVELS = 32  # of records, lists and mappings inside each other
_BITS = 1024  # of an integer: as many as the largest float has
DIMENSIONS = 64  # of a tensor: what torch can compute with


class Record(Mapping[str, Any]):
    """A read-only mapping whose entries are also attributes: `down.model` is `down["model"]`."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        if type(self) not in KINDS.values():
            raise TypeError(
                f"{type(self).__name__}: expected one of {', '.join(KINDS)}; a class of your own does not arrive, use Up or Down"
            )
        given = {**(values or {}), **more}
        _check_keys(given, type(self).__name__)
        # A bare record is an envelope of the engine's: what it holds was made, and its levels counted, before.
        level, keeps = int(type(self) is not Record), type(self) is State
        self._values = {name: plain(value, name, level, keeps) for name, value in given.items()}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(
                f"{type(self).__name__} has no entry {name!r}; it has {sorted(self._values)}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def with_(self, **changes: Any) -> Self:
        """The same record with some entries changed or added."""
        return type(self)(self._values, **changes)

    @classmethod
    def _trusted(cls, values: dict[str, Any]) -> Self:
        """A record of values that are plain already (just unpacked): no second look."""
        record = cls.__new__(cls)
        record._values = values
        return record


class State(Record):
    """What the server remembers between rounds."""


class Up(Record):
    """What a client sends to the server."""


class Down(Record):
    """What the server sends to a client."""


class PerClient(Mapping[str, Any]):
    """A mapping client id -> value inside the server's state, of which only changed values are written.

    Values that were `saved` lie in files and are read when asked, so a model per client does not fill the memory.
    """

    __slots__ = ("changed", "saved")

    def __init__(
        self, saved: Mapping[str, Any] | None = None, changed: Mapping[str, Any] | None = None
    ) -> None:
        _check_keys(changed or {}, "PerClient")
        self.saved = saved if saved is not None else {}
        self.changed = {key: plain(value, key) for key, value in (changed or {}).items()}

    def put(self, values: Mapping[str, Any]) -> PerClient:
        """The same mapping with these clients' values replaced."""
        return PerClient(self.saved, {**self.changed, **values})

    def __getitem__(self, client: str) -> Any:
        return self.changed[client] if client in self.changed else self.saved[client]

    def __contains__(self, client: object) -> bool:
        return client in self.changed or client in self.saved

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.saved, *self.changed]))

    def __len__(self) -> int:
        return len(self.saved.keys() | self.changed.keys())


KINDS: dict[str, type[Record]] = {"Record": Record, "State": State, "Up": Up, "Down": Down}
PER_CLIENT = "a PerClient lives in the server's state, at its top or in mappings, and nowhere else; send single values of it"


def plain(value: Any, name: str = "value", level: int = 1, keeps: bool = False) -> Any:
    """The value as plain data: a model becomes its tree, an array a tensor; what cannot travel is refused by name.

    This is the one rule, whatever the transport. Tensors are dense, on the CPU (from other devices they are copied), contiguous and without
    a gradient. `level`: how many containers are around the value. `keeps`: whether it lies where the server's state may hold a `PerClient`.
    """
    if value is None or type(value) in (bool, float, str):
        return value
    if isinstance(value, Tree):
        return _plain_tree(value, name)
    if isinstance(value, Tensor):
        return _plain_tensor(value, name)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int):
        if value.bit_length() > _BITS:
            raise TypeError(
                f"{name}: expected an integer of at most {_BITS} bits, got one of {value.bit_length()}; send it as a float"
            )
        return value if isinstance(value, bool) else int.__int__(value)
    # also of a class of its own, an enumeration say: what arrives is the bare value
    if isinstance(value, (float, str)):
        return float.__float__(value) if isinstance(value, float) else str.__str__(value)
    if isinstance(value, PerClient):
        if not keeps:
            raise TypeError(f"{name}: {PER_CLIENT}")
        return value
    if isinstance(value, np.ndarray):
        return _plain_tensor(_tensor_of(value, name), name)
    if isinstance(value, (list, tuple, Mapping)):
        if level >= LEVELS:
            raise TypeError(
                f"{name[:80]}: expected at most {LEVELS} levels of records, lists and mappings, got more; make it flatter"
            )
        if isinstance(value, Record):
            return type(value)._trusted(
                {key: plain(item, f"{name}.{key}", level + 1) for key, item in value.items()}
            )
        if isinstance(value, Mapping):
            _check_keys(value, name)
            return {
                key: plain(item, f"{name}.{key}", level + 1, keeps) for key, item in value.items()
            }
        return [
            plain(item, f"{name}[{position}]", level + 1) for position, item in enumerate(value)
        ]
    if callable(getattr(value, "tree", None)):
        return plain(value.tree(), name, level)
    raise TypeError(
        f"{name}: expected a tree, model, tensor, number, string, list or mapping, got {type(value).__name__}; turn it into one of these"
    )


def _check_keys(values: Mapping[Any, Any], name: str) -> None:
    for key in values:
        if not isinstance(key, str) or key.startswith("$"):
            raise TypeError(
                f"{name}: expected string keys that do not begin with $, got {key!r}; use str(key)"
            )


def _plain_tensor(value: Tensor, name: str) -> Tensor:
    if (
        value.dtype not in _TRAVELLING
        or value.layout is not torch.strided
        or value.is_meta
        or value.is_nested
        or value.dim() > DIMENSIONS
    ):
        kind = (
            "nested"
            if value.is_nested
            else "meta"
            if value.is_meta
            else str(value.layout).removeprefix("torch.")
        )
        raise TypeError(
            f"{name}: expected a dense tensor of {', '.join(DTYPES)} and at most {DIMENSIONS} dimensions, "
            f"got a {kind} one of {str(value.dtype).removeprefix('torch.')} and {value.dim()} dimensions; convert it first"
        )
    if value.requires_grad or type(value) is not Tensor:
        # A parameter belongs to a network that the next client will train: what is recorded must not move with it.
        value = value.detach().clone().as_subclass(Tensor)
    # each of them the tensor itself where there is nothing to do
    return value.cpu().resolve_neg().contiguous()


def _plain_tree(tree: Tree, name: str) -> Tree:
    if tree.plain:
        return tree
    if not isinstance(tree.model, str) or tree.model.startswith("$"):
        raise TypeError(
            f"{name}: expected a tree with the name of its model, not beginning with $, got {tree.model!r}; name it"
        )
    _check_keys(tree, name)
    _check_keys(dict.fromkeys(tree.untrained), name)
    entries = {}
    for key, tensor in tree.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{name}.{key}: expected a tensor in a tree, got {type(tensor).__name__}; use torch.as_tensor"
            )
        entries[key] = _plain_tensor(tensor, f"{name}.{key}")
    if any(entries[key] is not tensor for key, tensor in tree.items()):
        tree = Tree(entries, tree.model, tree.untrained)
    tree.plain = True
    return tree


def _tensor_of(array: np.ndarray, name: str) -> Tensor:
    try:
        # a copy: what is recorded stays
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
    except TypeError:
        raise TypeError(
            f"{name}: expected an array of {', '.join(DTYPES)}, got one of {array.dtype}; convert it with astype"
        ) from None

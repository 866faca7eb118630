"""Records: the plain data that may travel between server and clients.

A record holds trees, tensors, numbers, strings, lists and mappings with string keys. Anything
else is refused with the name of the entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from equipoise.tree import Tree

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
_ALLOWED_DTYPES = frozenset(DTYPES.values())
LEVELS = 32  # of records, lists and mappings inside each other
_BITS = 1024  # of an integer: as many as the largest float has
DIMENSIONS = 64  # of a tensor: as many as torch can compute with


class Record(Mapping[str, Any]):
    """A read-only mapping whose entries are also attributes.

    Args:
        values: The entries.
        more: Further entries by name.

    Raises:
        TypeError: If an entry cannot travel; see `plain`.

    Example:
        >>> Up(loss=0.5).loss
        0.5
    """

    __slots__ = ("_size", "_values")
    _size: int | None  # of its tensors and numbers, in bytes, once it was computed

    def __init__(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        if type(self) not in KINDS.values():
            raise TypeError(
                f"{type(self).__name__}: expected one of {', '.join(KINDS)}; "
                "a class of your own does not arrive, use Up or Down"
            )
        entries = {**(values or {}), **more}
        _check_keys(entries, type(self).__name__)
        # A bare record is an envelope of the engine: the levels of what it holds were counted
        # when that was made.
        level = 0 if type(self) is Record else 1
        in_state = type(self) is State
        self._size = None
        self._values = {
            name: plain(value, name, level, in_state) for name, value in entries.items()
        }

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
        entries = ", ".join(f"{name}={value!r}" for name, value in self.items())
        return f"{type(self).__name__}({entries})"

    def with_(self, **changes: Any) -> Self:
        """Return the record with some entries changed or added."""
        return type(self)(self._values, **changes)

    @classmethod
    def _trusted(cls, values: dict[str, Any]) -> Self:
        """Return a record of values that are known to be plain, without checking them again."""
        record = cls.__new__(cls)
        record._size = None
        record._values = values
        return record


class State(Record):
    """The state of the server between rounds."""


class Up(Record):
    """A message from a client to the server."""


class Down(Record):
    """A message from the server to a client."""


class PerClient(Mapping[str, Any]):
    """Values by client inside the server's state, of which only changed ones are written.

    Values that were saved lie in files and are read when they are used, so a model per client
    does not fill the memory.

    Args:
        saved: The values in files.
        changed: The values that have changed since.
    """

    __slots__ = ("changed", "saved")

    def __init__(
        self, saved: Mapping[str, Any] | None = None, changed: Mapping[str, Any] | None = None
    ) -> None:
        _check_keys(changed or {}, "PerClient")
        self.saved = saved if saved is not None else {}
        self.changed = {key: plain(value, key) for key, value in (changed or {}).items()}

    def put(self, values: Mapping[str, Any]) -> PerClient:
        """Return the mapping with the values of some clients replaced."""
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
PER_CLIENT = (
    "a PerClient lives in the server's state, at its top or in mappings, and nowhere else; "
    "send single values of it"
)


def plain(value: Any, name: str = "value", level: int = 1, in_state: bool = False) -> Any:
    """Return a value as plain data, by the same rule for every transport.

    A model becomes its tree, an array a tensor. Tensors are dense, on the CPU (from other devices
    they are copied), contiguous and without a gradient.

    Args:
        value: The value.
        name: Its name, for messages.
        level: The number of containers around it.
        in_state: True if it lies where the server's state may hold a `PerClient`.

    Raises:
        TypeError: If the value cannot travel.
    """
    if value is None or type(value) in (bool, float, str):
        return value
    if isinstance(value, Tree):
        return _plain_tree(value, name)
    if isinstance(value, Tensor):
        return _plain_tensor(value, name)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (int, float, str)):
        return _plain_scalar(value, name)
    if isinstance(value, np.ndarray):
        return _plain_tensor(_tensor_of(value, name), name)
    if isinstance(value, (list, tuple, Mapping)):
        return _plain_container(value, name, level, in_state)
    if callable(getattr(value, "tree", None)):
        return plain(value.tree(), name, level)
    raise TypeError(
        f"{name}: expected a tree, model, tensor, number, string, list or mapping, "
        f"got {type(value).__name__}; turn it into one of these"
    )


def _plain_scalar(value: int | float | str, name: str) -> int | float | str:
    """Return the bare value, also of a class such as an enumeration."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, bool):
        return value
    if value.bit_length() > _BITS:
        raise TypeError(
            f"{name}: expected an integer of at most {_BITS} bits, "
            f"got one of {value.bit_length()}; send it as a float"
        )
    return int.__int__(value)


def _plain_container(
    value: list[Any] | tuple[Any, ...] | Mapping[str, Any], name: str, level: int, in_state: bool
) -> Any:
    if isinstance(value, PerClient):
        if not in_state:
            raise TypeError(f"{name}: {PER_CLIENT}")
        return value
    if level >= LEVELS:
        raise TypeError(
            f"{name[:80]}: expected at most {LEVELS} levels of records, lists and mappings, "
            "got more; make it flatter"
        )
    if isinstance(value, Record):
        entries = {key: plain(item, f"{name}.{key}", level + 1) for key, item in value.items()}
        return type(value)._trusted(entries)
    if isinstance(value, Mapping):
        _check_keys(value, name)
        return {
            key: plain(item, f"{name}.{key}", level + 1, in_state) for key, item in value.items()
        }
    return [plain(item, f"{name}[{index}]", level + 1) for index, item in enumerate(value)]


def _check_keys(values: Mapping[Any, Any], name: str) -> None:
    for key in values:
        if not isinstance(key, str) or key.startswith("$"):
            raise TypeError(
                f"{name}: expected string keys that do not begin with $, got {key!r}; use str(key)"
            )


def _plain_tensor(value: Tensor, name: str) -> Tensor:
    is_dense = value.layout is torch.strided and not value.is_meta and not value.is_nested
    if value.dtype not in _ALLOWED_DTYPES or not is_dense or value.dim() > DIMENSIONS:
        raise TypeError(
            f"{name}: expected a dense tensor of {', '.join(DTYPES)} and at most {DIMENSIONS} "
            f"dimensions, got a {_kind_of(value)} one of "
            f"{str(value.dtype).removeprefix('torch.')} and {value.dim()} dimensions; "
            "convert it first"
        )
    if value.requires_grad or type(value) is not Tensor:
        # A parameter belongs to a network that the next client will train: what is recorded
        # must not change with it.
        value = value.detach().clone().as_subclass(Tensor)
    # Each of these returns the tensor itself if there is nothing to do.
    return value.cpu().resolve_neg().contiguous()


def _kind_of(tensor: Tensor) -> str:
    if tensor.is_nested:
        return "nested"
    if tensor.is_meta:
        return "meta"
    return str(tensor.layout).removeprefix("torch.")


def _plain_tree(tree: Tree, name: str) -> Tree:
    if tree.plain:
        return tree
    if not isinstance(tree.model, str) or tree.model.startswith("$"):
        raise TypeError(
            f"{name}: expected a tree with the name of its model, not beginning with $, "
            f"got {tree.model!r}; name it"
        )
    _check_keys(tree, name)
    _check_keys(dict.fromkeys(tree.untrained), name)
    entries = {}
    for key, tensor in tree.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{name}.{key}: expected a tensor in a tree, got {type(tensor).__name__}; "
                "use torch.as_tensor"
            )
        entries[key] = _plain_tensor(tensor, f"{name}.{key}")
    if any(entries[key] is not tensor for key, tensor in tree.items()):
        tree = Tree(entries, tree.model, tree.untrained)
    tree.plain = True
    return tree


def _tensor_of(array: np.ndarray, name: str) -> Tensor:
    try:
        # A copy, so that the record does not change with the array.
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
    except TypeError:
        raise TypeError(
            f"{name}: expected an array of {', '.join(DTYPES)}, got one of {array.dtype}; "
            "convert it with astype"
        ) from None

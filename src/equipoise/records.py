"""Records: what a method remembers and what travels between server and clients, as plain data.

A record maps names to trees, tensors, numbers, strings, lists and mappings with string keys; anything else is refused by
name. So checkpointing, resuming, sending and comparing need no code in any method, and nothing that is loaded can run.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from equipoise.tree import FileTensors, Tree

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in
           (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)}  # fmt: skip


class CannotSave(RuntimeError):
    """A file could not be written: a full disk, a folder that is gone or not writable."""


class Record(Mapping[str, Any]):
    """A read-only mapping whose entries are also attributes: `down.model` is `down["model"]`."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        self._values = {name: plain(value, name) for name, value in {**(values or {}), **more}.items()}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no entry {name!r}; it has {sorted(self._values)}") from None

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

    Values that were saved lie in files and are read when asked, so a model per client does not fill the memory.
    """

    __slots__ = ("changed", "saved")

    def __init__(self, saved: Mapping[str, Path] | None = None, changed: Mapping[str, Any] | None = None) -> None:
        self.saved = dict(saved or {})
        self.changed = {key: plain(value, key) for key, value in (changed or {}).items()}

    def put(self, values: Mapping[str, Any]) -> PerClient:
        """The same mapping with these clients' values replaced."""
        return PerClient(self.saved, {**self.changed, **values})

    def __getitem__(self, client: str) -> Any:
        if client in self.changed:
            return self.changed[client]
        return read(self.saved[client])["value"]

    def __contains__(self, client: object) -> bool:
        return client in self.changed or client in self.saved

    def __iter__(self) -> Iterator[str]:
        return iter({**self.saved, **self.changed})

    def __len__(self) -> int:
        return len(self.saved.keys() | self.changed.keys())


def plain(value: Any, name: str = "value") -> Any:
    """The value as plain data: a model becomes its tree, an array a tensor; what cannot travel is refused by name."""
    if value is None or isinstance(value, (Tree, Record, PerClient, bool, int, float, str)):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, Tensor):
        # A parameter belongs to a network that the next client will train: what is recorded must not move with it.
        return value.detach().clone() if value.requires_grad else value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value)).clone()
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{name}[{place}]") for place, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key.startswith("$"):
                raise TypeError(f"{name}: expected string keys that do not begin with $, got {key!r}; use str(key)")
        return {key: plain(item, f"{name}.{key}") for key, item in value.items()}
    if hasattr(value, "tree"):
        return value.tree()
    raise TypeError(
        f"{name}: expected a tree, model, tensor, number, string, list or mapping, got {type(value).__name__}; turn it into one of these"
    )


def _encode(value: Any, tensors: list[Tensor]) -> Any:
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
        return {"$record": type(value).__name__, "values": {name: _encode(item, tensors) for name, item in value.items()}}
    if isinstance(value, PerClient):
        raise TypeError("a PerClient lives in the server's state; send single values of it")
    if isinstance(value, Mapping):
        return {name: _encode(item, tensors) for name, item in value.items()}
    if isinstance(value, list):
        return [_encode(item, tensors) for item in value]
    return value


_KINDS: dict[str, type[Record]] = {"Record": Record, "State": State, "Up": Up, "Down": Down}


def _decode(value: Any, tensors: Mapping[int, Tensor] | list[Tensor], lazy: Path | None = None) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors, lazy) for item in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return tensors[value["$tensor"]]
    if "$tree" in value:
        entries: Mapping[str, Tensor]
        if lazy is not None:
            entries = FileTensors(lazy, {name: str(place) for name, place in value["entries"].items()})
        else:
            entries = {name: tensors[place] for name, place in value["entries"].items()}
        return Tree(entries, value["$tree"], value["untrained"])
    if "$record" in value:
        return _KINDS[value["$record"]]._trusted({name: _decode(item, tensors, lazy) for name, item in value["values"].items()})
    return {name: _decode(item, tensors, lazy) for name, item in value.items()}


_ALIGNMENT = 64  # of every buffer in a packed record: tensors are views of it, and vector instructions like it


def pack(record: Record) -> list[bytes | memoryview]:
    """A record as a JSON header and raw buffers, each padded to the alignment: what goes over a wire."""
    tensors: list[Tensor] = []
    structure = _encode(record, tensors)
    flat = [tensor.detach().contiguous() for tensor in tensors]
    header = json.dumps({"value": structure, "tensors": [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in flat]}).encode()
    header += b" " * (-(8 + len(header)) % _ALIGNMENT)
    parts: list[bytes | memoryview] = [struct.pack("<Q", len(header)) + header]
    for tensor in flat:
        if tensor.numel():
            parts.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
            parts.append(bytes(-tensor.nbytes % _ALIGNMENT))
    return parts


def unpack(data: bytearray | memoryview) -> Any:
    """The record that `pack` wrote; its tensors are views of `data` and keep it alive."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(bytes(data[8 : 8 + length]))
    tensors, offset, end = [], 8 + length, len(data)
    for dtype_name, shape in header["tensors"]:
        dtype, count = _DTYPES[dtype_name], math.prod(shape)
        size = count * dtype.itemsize
        if offset + size > end:
            raise ValueError(f"a record of {end} bytes ends inside a tensor of shape {shape}: it was cut off on its way")
        tensors.append(
            torch.frombuffer(data, dtype=dtype, count=count, offset=offset).view(shape) if count else torch.empty(shape, dtype=dtype)
        )
        offset += size + -size % _ALIGNMENT
    return _decode(header["value"], tensors)


def write(record: Record, path: Path) -> int:
    """Save a record as a safetensors file; returns its size. The caller names a new file: none is ever overwritten."""
    tensors: list[Tensor] = []
    structure = _encode(record, tensors)
    # safetensors refuses tensors that share memory (a tree put in twice): those are copied.
    seen: set[int] = set()
    entries: dict[str, Tensor] = {}
    for place, tensor in enumerate(tensors):
        own = tensor.detach().contiguous()
        if own.untyped_storage().data_ptr() in seen or own.untyped_storage().nbytes() != own.numel() * own.element_size():
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        entries[str(place)] = own
    try:
        save_file(entries, path, metadata={"record": json.dumps(structure)})
        return path.stat().st_size
    except (OSError, SafetensorError) as error:
        raise CannotSave(
            f"cannot write {path}: {error}; make room or permit writing there, then `equipoise resume {path.parent.parent}`"
        ) from error


def read(path: Path, lazy: bool = True) -> Any:
    """The record that `write` saved. Lazy: its trees read their tensors from the file when asked."""
    with safe_open(path, framework="pt") as file:
        structure = json.loads((file.metadata() or {})["record"])
        wanted = set(_tensor_places(structure)) if lazy else range(len(list(file.keys())))
        tensors = {place: file.get_tensor(str(place)) for place in wanted}
    return _decode(structure, tensors, path if lazy else None)


def _tensor_places(value: Any) -> Iterable[int]:
    if isinstance(value, dict):
        if "$tensor" in value:
            yield cast(int, value["$tensor"])
            return
        if "$tree" in value:
            return
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _tensor_places(item)


def tensors_of(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every tree, tensor and number inside a value, with the path that leads to it."""
    if isinstance(value, (Tree, Tensor, int, float)) and not isinstance(value, bool):
        yield name, value
    elif isinstance(value, Mapping):
        # Of what is kept by client, what changed: the rest lies in files and was looked at when it was new.
        for key, item in (value.changed if isinstance(value, PerClient) else value).items():
            yield from tensors_of(item, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from tensors_of(item, f"{name}[{place}]")


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
        item.bytes() if isinstance(item, Tree) else item.numel() * item.element_size() if isinstance(item, Tensor) else 8
        for _, item in tensors_of(value)
    )

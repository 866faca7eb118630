"""Records: what a method remembers and what travels between server and clients, as plain data.

A record maps names to trees, tensors, numbers, strings, lists and mappings with string keys; anything else is refused by
name, when the record is made. So checkpointing, resuming, sending and comparing need no code in any method, nothing that is loaded can
run, and a record is the same whether it stays in this process or travels.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from equipoise.tree import FileTensors, Tree

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in
           (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)}  # fmt: skip
_TRAVELLING = frozenset(_DTYPES.values())
LEVELS = 32  # of records, lists and mappings inside each other
_ENVELOPES = 2  # records that the engine puts around what travels
_BITS = 1024  # of an integer: as many as the largest float has
_DIMENSIONS = 64  # of a tensor: what torch can compute with


class CannotSave(RuntimeError):
    """A file could not be written: a full disk, a folder that is gone or not writable."""


class Record(Mapping[str, Any]):
    """A read-only mapping whose entries are also attributes: `down.model` is `down["model"]`."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        if type(self) not in _KINDS.values():
            raise TypeError(
                f"{type(self).__name__}: expected one of {', '.join(_KINDS)}; a class of your own does not arrive, use Up or Down"
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
        _check_keys(changed or {}, "PerClient")
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


_PER_CLIENT = "a PerClient lives in the server's state, at its top or in mappings, and nowhere else; send single values of it"


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
            raise TypeError(f"{name}: expected an integer of at most {_BITS} bits, got one of {value.bit_length()}; send it as a float")
        return value if isinstance(value, bool) else int.__int__(value)
    if isinstance(value, (float, str)):  # also of a class of its own, an enumeration say: what arrives is the bare value
        return float.__float__(value) if isinstance(value, float) else str.__str__(value)
    if isinstance(value, PerClient):
        if not keeps:
            raise TypeError(f"{name}: {_PER_CLIENT}")
        return value
    if isinstance(value, np.ndarray):
        return _plain_tensor(_tensor_of(value, name), name)
    if isinstance(value, (list, tuple, Mapping)):
        if level >= LEVELS:
            raise TypeError(f"{name[:80]}: expected at most {LEVELS} levels of records, lists and mappings, got more; make it flatter")
        if isinstance(value, Record):
            return type(value)._trusted({key: plain(item, f"{name}.{key}", level + 1) for key, item in value.items()})
        if isinstance(value, Mapping):
            _check_keys(value, name)
            return {key: plain(item, f"{name}.{key}", level + 1, keeps) for key, item in value.items()}
        return [plain(item, f"{name}[{place}]", level + 1) for place, item in enumerate(value)]
    if callable(getattr(value, "tree", None)):
        return plain(value.tree(), name, level)
    raise TypeError(
        f"{name}: expected a tree, model, tensor, number, string, list or mapping, got {type(value).__name__}; turn it into one of these"
    )


def _check_keys(values: Mapping[Any, Any], name: str) -> None:
    for key in values:
        if not isinstance(key, str) or key.startswith("$"):
            raise TypeError(f"{name}: expected string keys that do not begin with $, got {key!r}; use str(key)")


def _plain_tensor(value: Tensor, name: str) -> Tensor:
    if value.dtype not in _TRAVELLING or value.layout is not torch.strided or value.is_meta or value.is_nested or value.dim() > _DIMENSIONS:
        kind = "nested" if value.is_nested else "meta" if value.is_meta else str(value.layout).removeprefix("torch.")
        raise TypeError(
            f"{name}: expected a dense tensor of {', '.join(_DTYPES)} and at most {_DIMENSIONS} dimensions, "
            f"got a {kind} one of {str(value.dtype).removeprefix('torch.')} and {value.dim()} dimensions; convert it first"
        )
    if value.requires_grad or type(value) is not Tensor:
        # A parameter belongs to a network that the next client will train: what is recorded must not move with it.
        value = value.detach().clone().as_subclass(Tensor)
    return value.cpu().resolve_neg().contiguous()  # each of them the tensor itself where there is nothing to do


def _plain_tree(tree: Tree, name: str) -> Tree:
    if tree.plain:
        return tree
    if not isinstance(tree.model, str) or tree.model.startswith("$"):
        raise TypeError(f"{name}: expected a tree with the name of its model, not beginning with $, got {tree.model!r}; name it")
    _check_keys(tree, name)
    _check_keys(dict.fromkeys(tree.untrained), name)
    entries = {}
    for key, tensor in tree.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}.{key}: expected a tensor in a tree, got {type(tensor).__name__}; use torch.as_tensor")
        entries[key] = _plain_tensor(tensor, f"{name}.{key}")
    if any(entries[key] is not tensor for key, tensor in tree.items()):
        tree = Tree(entries, tree.model, tree.untrained)
    tree.plain = True
    return tree


def _tensor_of(array: np.ndarray, name: str) -> Tensor:
    try:
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))  # a copy: what is recorded stays
    except TypeError:
        raise TypeError(f"{name}: expected an array of {', '.join(_DTYPES)}, got one of {array.dtype}; convert it with astype") from None


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
        raise TypeError(_PER_CLIENT)
    if isinstance(value, Mapping):
        return {name: _encode(item, tensors) for name, item in value.items()}
    if isinstance(value, list):
        return [_encode(item, tensors) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"$number": str(float(value))}  # JSON has no such literals
    return value


_KINDS: dict[str, type[Record]] = {"Record": Record, "State": State, "Up": Up, "Down": Down}
_FORMS: dict[str, set[str]] = {"$tensor": {"$tensor"}, "$tree": {"$tree", "entries", "untrained"}, "$record": {"$record", "values"}, "$number": {"$number"}}  # fmt: skip
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _decode(value: Any, take: Callable[[int], Tensor], take_all: Callable[[dict[str, int]], Mapping[str, Tensor]], level: int = 0) -> Any:
    """The inverse of `_encode`, in place; ValueError or KeyError for whatever that cannot have written. Each tensor is taken once."""
    if not isinstance(value, (list, dict)):
        return value
    if level >= LEVELS + _ENVELOPES:
        raise ValueError(f"more than {LEVELS} levels of records, lists and mappings")
    if isinstance(value, list):
        for place, item in enumerate(value):
            value[place] = _decode(item, take, take_all, level + 1)
        return value
    mark = None
    for name in value:
        if name[:1] == "$":
            mark = name
            break
    if mark is None:
        for name, item in value.items():
            value[name] = _decode(item, take, take_all, level + 1)
        return value
    if _FORMS.get(mark) != value.keys():
        raise ValueError(f"a mapping with the keys {sorted(value)[:3]}")
    if mark == "$tensor":
        return take(_places(value)[mark])
    if mark == "$number":
        return _NUMBERS[value[mark]]
    if mark == "$record":
        kind, values = _KINDS[value[mark]], value["values"]
        if type(values) is not dict:
            raise ValueError("a record without values")
        for name, item in values.items():
            values[name] = _decode(item, take, take_all, level + 1)
        return kind._trusted(values)
    model, entries, untrained = value["$tree"], value["entries"], value["untrained"]
    if type(model) is not str or type(entries) is not dict or type(untrained) is not list or set(map(type, untrained)) - {str}:
        raise ValueError("a tree without a model, entries and the names of those that are not trained")
    tree = Tree(take_all(_places(entries)), model, untrained)
    tree.plain = True
    return tree


def _places(entries: dict[str, Any]) -> dict[str, int]:
    for place in entries.values():
        if type(place) is not int:
            raise ValueError("a tensor whose place is no integer")
    return entries


_ALIGNMENT = 64  # of every buffer in a packed record: tensors are views of it, and vector instructions like it


def pack(record: Record) -> list[bytes | memoryview]:
    """A record as a JSON header and raw buffers, each padded to the alignment: what goes over a wire."""
    tensors: list[Tensor] = []
    structure = _encode(record, tensors)
    flat = [tensor.detach().contiguous() for tensor in tensors]
    header = _write_json({"value": structure, "tensors": [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in flat]}).encode()
    header += b" " * (-(8 + len(header)) % _ALIGNMENT)
    parts: list[bytes | memoryview] = [struct.pack("<Q", len(header)) + header]
    for tensor in flat:
        if count := tensor.numel():
            # A single number cut from a strided tensor is contiguous by name only.
            row = (tensor if count > 1 else tensor.clone(memory_format=torch.contiguous_format)).reshape(-1)
            parts.append(row.view(torch.uint8).numpy().data)
            parts.append(bytes(-tensor.nbytes % _ALIGNMENT))
    return parts


def unpack(data: bytearray | memoryview) -> Any:
    """The record that `pack` wrote; its tensors are views of `data` and keep it alive.

    Bytes may come from anyone: whatever is wrong with them is a ValueError, and the memory asked for is a small multiple of theirs.
    """
    try:
        return _unpacked(data)
    except (ValueError, KeyError, TypeError, RecursionError, struct.error) as error:
        raise ValueError(f"{len(data)} bytes that are no whole record: {error or type(error).__name__}") from error


def _unpacked(data: bytearray | memoryview) -> Record:
    end = len(data)
    (length,) = struct.unpack_from("<Q", data)
    if length > end - 8:
        raise ValueError(f"a header of {length} bytes was cut off on its way")
    header = _read_json(str(data[8 : 8 + length], "utf-8"))
    offset = 8 + length
    if type(header) is not dict or header.keys() != {"value", "tensors"} or type(header["tensors"]) is not list or offset % _ALIGNMENT:
        raise ValueError("a header of another form")
    tensors: dict[int, Tensor] = {}
    for place, (dtype_name, shape) in enumerate(header["tensors"]):
        dtype = _DTYPES[dtype_name]
        if type(shape) is not list or len(shape) > _DIMENSIONS:
            raise ValueError("a tensor with an impossible shape")
        count = 1
        for width in shape:
            if type(width) is not int or width < 0:
                raise ValueError("a tensor with an impossible shape")
            count *= width
        size = count * dtype.itemsize
        if size > end - offset:
            raise ValueError(f"a tensor of {size} bytes was cut off on its way")
        if count:
            flat = torch.frombuffer(data, dtype=dtype, count=count, offset=offset)
            tensors[place] = flat if len(shape) == 1 else flat.view(shape)
        else:
            tensors[place] = _empty(shape, dtype)
        offset += size + -size % _ALIGNMENT
    if offset != end:
        raise ValueError(f"{offset} bytes were announced; what travels was cut off or grew on its way")
    take = tensors.pop
    record = _decode(header["value"], take, lambda entries: {name: take(place) for name, place in entries.items()})
    if not isinstance(record, Record) or tensors:
        raise ValueError("tensors that belong to no entry" if tensors else "no record")
    return record


def _empty(shape: list[int], dtype: torch.dtype) -> Tensor:
    try:
        return torch.empty(shape, dtype=dtype)
    except RuntimeError:  # none of its numbers exists, but their distances in memory have to be numbers, too
        raise ValueError("a tensor with an impossible shape") from None


def _no_literal(name: str) -> None:
    raise ValueError(f"{name}, which is no JSON")


_write_json = json.JSONEncoder(allow_nan=False).encode
_read_json = json.JSONDecoder(parse_constant=_no_literal).decode


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
    """The record that `write` saved, ValueError if the file holds none. Lazy: its trees read their tensors from the file when asked."""
    try:
        with safe_open(path, framework="pt") as file:
            left = set(file.keys())

            def take(place: int) -> Tensor:
                left.remove(str(place))
                tensor: Tensor = file.get_tensor(str(place))
                return tensor

            def take_all(entries: dict[str, int]) -> Mapping[str, Tensor]:
                if not lazy:
                    return {name: take(place) for name, place in entries.items()}
                for place in entries.values():
                    left.remove(str(place))
                return FileTensors(path, {name: str(place) for name, place in entries.items()})

            record = _decode(json.loads((file.metadata() or {})["record"]), take, take_all)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} holds no whole record: {error or type(error).__name__}") from error
    if not isinstance(record, Record) or left:
        raise ValueError(f"{path} holds {'tensors that belong to no entry' if left else 'no record'}")
    return record


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

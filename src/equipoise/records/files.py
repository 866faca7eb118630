"""Records in safetensors files."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save, save_file
from torch import Tensor

from equipoise.records.coding import decode, encode
from equipoise.records.record import Record
from equipoise.tree import FileTensors
from equipoise.validation.regular_files import check_regular

_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "F32": 4,
    "I64": 8,
    "F64": 8,
}  # of a number


class CannotSave(RuntimeError):
    """A file could not be written: a full disk, a folder that is gone or not writable."""


def _entries(record: Record) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a record by their position, and its structure as metadata."""
    tensors: list[Tensor] = []
    structure = encode(record, tensors)
    # safetensors refuses tensors that share memory (a tree put in twice): those are copied.
    seen: set[int] = set()
    entries: dict[str, Tensor] = {}
    for position, tensor in enumerate(tensors):
        own = tensor.detach().contiguous()
        if (
            own.untyped_storage().data_ptr() in seen
            or own.untyped_storage().nbytes() != own.numel() * own.element_size()
        ):
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        entries[str(position)] = own
    return entries, {"record": json.dumps(structure)}


def dump(record: Record) -> bytes:
    """A record as the bytes of a safetensors file."""
    return save(*_entries(record))


def parse(data: bytes) -> Any:
    """The record that `dump` gave, ValueError if these bytes are none."""
    try:
        (length,) = struct.unpack_from("<Q", data)
        structure = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["record"])
        tensors = load(data)
        record = decode(
            structure,
            lambda position: tensors.pop(str(position)),
            lambda entries: {
                name: tensors.pop(str(position)) for name, position in entries.items()
            },
        )
    except (
        SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
        struct.error,
    ) as error:
        raise ValueError(
            f"{len(data)} bytes that hold no whole record: {error or type(error).__name__}"
        ) from error
    if not isinstance(record, Record) or tensors:
        raise ValueError(
            f"{len(data)} bytes that hold {'tensors that belong to no entry' if tensors else 'no record'}"
        )
    return record


def write(record: Record, path: Path) -> int:
    """Save a record as a safetensors file; returns its size. The caller names a new file: none is ever overwritten."""
    entries, metadata = _entries(record)
    try:
        save_file(entries, path, metadata=metadata)
        return path.stat().st_size
    except (OSError, SafetensorError) as error:
        raise CannotSave(
            f"cannot write {path}: {error}; make room or permit writing there, "
            "then continue with `equipoise resume`"
        ) from error


def read(path: Path, lazy: bool = True) -> Any:
    """The record that `write` saved, ValueError if the file holds none. Lazy: its trees read their tensors from the file when asked."""
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            left = set(file.keys())

            def take(position: int) -> Tensor:
                left.remove(str(position))
                tensor: Tensor = file.get_tensor(str(position))
                return tensor

            def take_all(entries: dict[str, int]) -> Mapping[str, Tensor]:
                if not lazy:
                    return {name: take(position) for name, position in entries.items()}
                for position in entries.values():
                    left.remove(str(position))
                return FileTensors(
                    path, {name: str(position) for name, position in entries.items()}
                )

            record = decode(json.loads((file.metadata() or {})["record"]), take, take_all)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} holds no whole record: {error or type(error).__name__}"
        ) from error
    if not isinstance(record, Record) or left:
        raise ValueError(
            f"{path} holds {'tensors that belong to no entry' if left else 'no record'}"
        )
    return record


def check_form(data: bytes) -> None:
    """ValueError unless the bytes of a file say of which tensors a record is made, and where these lie: as `parse`, without making the tensors."""
    try:
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        structure, left = json.loads(header.pop("__metadata__")["record"]), set(header)
        end = 8 + length
        for entry in sorted(header.values(), key=lambda entry: list(entry["data_offsets"])):
            first, last = (8 + length + offset for offset in entry["data_offsets"])
            known = _BYTES.get(entry["dtype"])
            if (
                first != end
                or last < first
                or (known and last - first != known * math.prod(entry["shape"]))
            ):
                raise ValueError("tensors that do not lie one behind another")
            end = last
        if end != len(data):
            raise ValueError("tensors that end elsewhere than the file")

        def take(position: int) -> Any:
            left.remove(str(position))

        def take_all(entries: dict[str, int]) -> Mapping[str, Any]:
            for position in entries.values():
                take(position)
            return entries

        record = decode(structure, take, take_all)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise ValueError(f"no record: {error or type(error).__name__}") from error
    if not isinstance(record, Record) or left:
        raise ValueError("tensors that belong to no entry" if left else "no record")


class Saved(Mapping[str, Any]):
    """Values that lie in files, one per client: read when asked."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self.paths = dict(paths)

    def __getitem__(self, client: str) -> Any:
        return read(self.paths[client])["value"]

    def __contains__(self, client: object) -> bool:
        return client in self.paths

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

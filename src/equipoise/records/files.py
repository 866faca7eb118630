"""Records in safetensors files."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save, save_file
from torch import Tensor

from equipoise.records.coding import decode, encode
from equipoise.records.record import Record
from equipoise.tree import FileTensors
from equipoise.validation.regular_files import check_regular

_ITEM_BYTES = {
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
}  # bytes per number, by the name of the type in safetensors
_LENGTH_BYTES = 8  # A file begins with the length of its header.


class CannotSave(RuntimeError):
    """A file could not be written: a full disk, a folder that is missing or not writable."""


def dump(record: Record) -> bytes:
    """Return a record as the bytes of a safetensors file."""
    return save(*_entries(record))


def parse(data: bytes) -> Any:
    """Return the record whose bytes `dump` returned.

    Raises:
        ValueError: If the bytes hold no record.
    """
    try:
        header, _ = _read_header(data)
        structure = json.loads(header["__metadata__"]["record"])
        tensors = load(data)

        def take(position: int) -> Tensor:
            return tensors.pop(str(position))

        def take_all(entries: dict[str, int]) -> Mapping[str, Tensor]:
            return {name: take(position) for name, position in entries.items()}

        record = decode(structure, take, take_all)
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
    if reason := _incomplete(record, tensors):
        raise ValueError(f"{len(data)} bytes that hold {reason}")
    return record


def write(record: Record, path: Path) -> int:
    """Save a record as a safetensors file.

    Args:
        record: The record.
        path: A new file; existing ones are never overwritten.

    Returns:
        The size of the file in bytes.

    Raises:
        CannotSave: If the file cannot be written.
    """
    entries, metadata = _entries(record)
    try:
        save_file(entries, path, metadata=metadata)
        return path.stat().st_size
    except (OSError, SafetensorError) as error:
        raise CannotSave(
            f"cannot write {path}: {error}; make room or permit writing there, then resume the run"
        ) from error


def read(path: Path, lazy: bool = True) -> Any:
    """Return the record that `write` saved.

    Args:
        path: The file.
        lazy: True if trees read their tensors from the file on first use.

    Raises:
        ValueError: If the file holds no record.
    """
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
                keys = {name: str(position) for name, position in entries.items()}
                for key in keys.values():
                    left.remove(key)
                return FileTensors(path, keys)

            record = decode(json.loads((file.metadata() or {})["record"]), take, take_all)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} holds no whole record: {error or type(error).__name__}"
        ) from error
    if reason := _incomplete(record, left):
        raise ValueError(f"{path} holds {reason}")
    return record


def check_form(data: bytes) -> None:
    """Check that the bytes of a file describe a record and all of its tensors.

    It checks what `parse` does, without creating the tensors.

    Raises:
        ValueError: If they do not.
    """
    try:
        header, start = _read_header(data)
        structure = json.loads(header.pop("__metadata__")["record"])
        left = set(header)
        _check_offsets(header.values(), len(data) - start)

        def take(position: int) -> Any:
            left.remove(str(position))

        def take_all(entries: dict[str, int]) -> Mapping[str, Any]:
            for position in entries.values():
                take(position)
            return entries

        record = decode(structure, take, take_all)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise ValueError(f"no record: {error or type(error).__name__}") from error
    if reason := _incomplete(record, left):
        raise ValueError(reason)


def _entries(record: Record) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a record by their position, and its structure as metadata."""
    tensors: list[Tensor] = []
    structure = encode(record, tensors)
    # safetensors refuses tensors that share memory, such as those of a tree that occurs twice.
    seen: set[int] = set()
    entries: dict[str, Tensor] = {}
    for position, tensor in enumerate(tensors):
        own = tensor.detach().contiguous()
        storage = own.untyped_storage()
        is_shared = storage.data_ptr() in seen
        is_part = storage.nbytes() != own.numel() * own.element_size()
        if is_shared or is_part:
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        entries[str(position)] = own
    return entries, {"record": json.dumps(structure)}


def _read_header(data: bytes) -> tuple[Any, int]:
    """Return the header of a file, and the position of the first tensor behind it."""
    (length,) = struct.unpack_from("<Q", data)
    start = _LENGTH_BYTES + length
    return json.loads(data[_LENGTH_BYTES:start]), start


def _check_offsets(entries: Collection[Any], length: int) -> None:
    """Check that tensors follow one another without gaps or overlaps, up to the end of the file.

    Args:
        entries: Type, shape and offsets of each tensor.
        length: The number of bytes of all tensors.
    """
    end = 0
    for entry in sorted(entries, key=lambda entry: list(entry["data_offsets"])):
        first, last = entry["data_offsets"]
        item = _ITEM_BYTES.get(entry["dtype"])
        has_wrong_size = item and last - first != item * math.prod(entry["shape"])
        if first != end or last < first or has_wrong_size:
            raise ValueError("tensors that do not follow one another")
        end = last
    if end != length:
        raise ValueError("tensors that do not end with the file")


def _incomplete(record: Any, left: Collection[Any]) -> str | None:
    """Return why something decoded is no record; None if it is one.

    Args:
        record: The decoded value.
        left: The tensors that no entry refers to.
    """
    if left:
        return "tensors that belong to no entry"
    return None if isinstance(record, Record) else "no record"


class Saved(Mapping[str, Any]):
    """Values in files, one per client, each read on access."""

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

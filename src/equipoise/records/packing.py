"""Records as bytes on a wire: a JSON header and raw buffers."""

from __future__ import annotations

import json
import struct
from typing import Any

import torch
from torch import Tensor

from equipoise.records.coding import decode, encode
from equipoise.records.record import DIMENSIONS, DTYPES, Record

_ALIGNMENT = 64  # of every buffer in a packed record: tensors are views of it, and vector instructions like it


def pack(record: Record) -> list[bytes | memoryview]:
    """A record as a JSON header and raw buffers, each padded to the alignment: what goes over a wire."""
    tensors: list[Tensor] = []
    structure = encode(record, tensors)
    flat = [tensor.detach().contiguous() for tensor in tensors]
    header = _write_json(
        {
            "value": structure,
            "tensors": [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in flat],
        }
    ).encode()
    header += b" " * (-(8 + len(header)) % _ALIGNMENT)
    parts: list[bytes | memoryview] = [struct.pack("<Q", len(header)) + header]
    for tensor in flat:
        if count := tensor.numel():
            # A single number cut from a strided tensor is contiguous by name only.
            row = (
                tensor if count > 1 else tensor.clone(memory_format=torch.contiguous_format)
            ).reshape(-1)
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
        raise ValueError(
            f"{len(data)} bytes that are no whole record: {error or type(error).__name__}"
        ) from error


def _unpacked(data: bytearray | memoryview) -> Record:
    end = len(data)
    (length,) = struct.unpack_from("<Q", data)
    if length > end - 8:
        raise ValueError(f"a header of {length} bytes was cut off on its way")
    header = _read_json(str(data[8 : 8 + length], "utf-8"))
    offset = 8 + length
    if (
        type(header) is not dict
        or header.keys() != {"value", "tensors"}
        or type(header["tensors"]) is not list
        or offset % _ALIGNMENT
    ):
        raise ValueError("a header of another form")
    tensors: dict[int, Tensor] = {}
    for position, (dtype_name, shape) in enumerate(header["tensors"]):
        dtype = DTYPES[dtype_name]
        if type(shape) is not list or len(shape) > DIMENSIONS:
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
            tensors[position] = flat if len(shape) == 1 else flat.view(shape)
        else:
            tensors[position] = _empty(shape, dtype)
        offset += size + -size % _ALIGNMENT
    if offset != end:
        raise ValueError(
            f"{offset} bytes were announced; what travels was cut off or grew on its way"
        )
    take = tensors.pop
    record = decode(
        header["value"],
        take,
        lambda entries: {name: take(position) for name, position in entries.items()},
    )
    if not isinstance(record, Record) or tensors:
        raise ValueError("tensors that belong to no entry" if tensors else "no record")
    return record


def _empty(shape: list[int], dtype: torch.dtype) -> Tensor:
    try:
        return torch.empty(shape, dtype=dtype)
    # none of its numbers exists, but their distances in memory have to be numbers, too
    except RuntimeError:
        raise ValueError("a tensor with an impossible shape") from None


def _no_literal(name: str) -> None:
    raise ValueError(f"{name}, which is no JSON")


_write_json = json.JSONEncoder(allow_nan=False).encode
_read_json = json.JSONDecoder(parse_constant=_no_literal).decode

"""Records as bytes on a wire: a JSON header and raw buffers."""

from __future__ import annotations

import json
import struct
from typing import Any

import torch
from torch import Tensor

from equipoise.records.coding import decode, encode
from equipoise.records.record import DIMENSIONS, DTYPES, Record

# In bytes, of every buffer in a packed record. Tensors are views of it, and vector instructions
# are faster on aligned memory.
_ALIGNMENT = 64


def pack(record: Record) -> list[bytes | memoryview]:
    """Return a record as a JSON header and raw buffers, each padded to the alignment.

    Args:
        record: The record.

    Returns:
        The parts of the message in their order; buffers are views of the record's tensors.
    """
    tensors: list[Tensor] = []
    structure = encode(record, tensors)
    flat = [tensor.detach().contiguous() for tensor in tensors]
    forms = [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in flat]
    header = _write_json({"value": structure, "tensors": forms}).encode()
    header += b" " * (-(8 + len(header)) % _ALIGNMENT)
    parts: list[bytes | memoryview] = [struct.pack("<Q", len(header)) + header]
    for tensor in flat:
        count = tensor.numel()
        if count == 0:
            continue
        if count == 1:  # cut from a strided tensor it is contiguous by name only
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        parts.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
        parts.append(bytes(-tensor.nbytes % _ALIGNMENT))
    return parts


def unpack(data: bytearray | memoryview) -> Any:
    """Return the record that `pack` wrote.

    Bytes may come from anyone. The memory that is used is a small multiple of theirs.

    Args:
        data: The bytes. The tensors of the record are views of them and keep them alive.

    Raises:
        ValueError: If the bytes are not a whole record.
    """
    try:
        return _unpacked(data)
    except (ValueError, KeyError, TypeError, RecursionError, struct.error) as error:
        raise ValueError(
            f"{len(data)} bytes that are no whole record: {error or type(error).__name__}"
        ) from error


def _unpacked(data: bytearray | memoryview) -> Record:
    header, offset = _read_header(data)
    tensors: dict[int, Tensor] = {}
    for position, (dtype_name, shape) in enumerate(header["tensors"]):
        tensors[position], size = _read_tensor(data, offset, DTYPES[dtype_name], shape)
        offset += size + -size % _ALIGNMENT
    if offset != len(data):
        raise ValueError(
            f"{offset} bytes were announced; what travels was cut off or grew on its way"
        )
    take = tensors.pop

    def take_all(entries: dict[str, int]) -> dict[str, Tensor]:
        return {name: take(position) for name, position in entries.items()}

    record = decode(header["value"], take, take_all)
    if tensors:
        raise ValueError("tensors that belong to no entry")
    if not isinstance(record, Record):
        raise ValueError("no record")
    return record


def _read_header(data: bytearray | memoryview) -> tuple[dict[str, Any], int]:
    """Return the header, and the offset of the first tensor behind it."""
    (length,) = struct.unpack_from("<Q", data)
    offset = 8 + length
    if offset > len(data):
        raise ValueError(f"a header of {length} bytes was cut off on its way")
    header = _read_json(str(data[8:offset], "utf-8"))
    has_keys = type(header) is dict and header.keys() == {"value", "tensors"}
    if not has_keys or type(header["tensors"]) is not list or offset % _ALIGNMENT:
        raise ValueError("a header of another form")
    return header, offset


def _read_tensor(
    data: bytearray | memoryview, offset: int, dtype: torch.dtype, shape: Any
) -> tuple[Tensor, int]:
    """Return a tensor that is a view of the data, and its size in bytes."""
    if type(shape) is not list or len(shape) > DIMENSIONS:
        raise ValueError("a tensor with an impossible shape")
    count = 1
    for width in shape:
        if type(width) is not int or width < 0:
            raise ValueError("a tensor with an impossible shape")
        count *= width
    size = count * dtype.itemsize
    if size > len(data) - offset:
        raise ValueError(f"a tensor of {size} bytes was cut off on its way")
    if not count:
        return _empty(shape, dtype), size
    flat = torch.frombuffer(data, dtype=dtype, count=count, offset=offset)
    return (flat if len(shape) == 1 else flat.view(shape)), size


def _empty(shape: list[int], dtype: torch.dtype) -> Tensor:
    try:
        return torch.empty(shape, dtype=dtype)
    except RuntimeError:  # the strides of an empty tensor have to be representable, too
        raise ValueError("a tensor with an impossible shape") from None


def _no_literal(name: str) -> None:
    raise ValueError(f"{name}, which is no JSON")


_write_json = json.JSONEncoder(allow_nan=False).encode
_read_json = json.JSONDecoder(parse_constant=_no_literal).decode

"""NPZ files of plain arrays, whose stated sizes are checked before memory is allocated."""

from __future__ import annotations

import math
import os
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from equipoise.validation.limits import BYTES, bytes_are_stated, most_bytes
from equipoise.validation.names import quoted
from equipoise.validation.regular_files import check_regular

# How many times larger than its file the content may be, if it has more bytes than SMALL.
MOST_SWOLLEN, SMALL = 200, 2**28
KINDS = "biufUS"  # booleans, numbers, text
_MOST_ENTRIES = 2**40  # along one side of an array without any value, whose header may say anything


def read_npz(file: Path) -> dict[str, np.ndarray]:
    """Return all arrays of an NPZ file.

    Raises:
        ValueError: If it is damaged, holds serialised Python objects, or would take more memory
            than EQUIPOISE_MAX_BYTES allows.
    """
    check_regular(file)
    most = most_bytes()
    try:
        with zipfile.ZipFile(file) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            _check_size(file, sum(member.file_size for member in members), most)
            return {
                member.filename.removesuffix(".npy"): _array(archive, member, file)
                for member in members
            }
    except _Refused as refused:
        raise ValueError(str(refused)) from None
    except Exception as error:
        # zipfile, zlib and NumPy raise many errors for damaged bytes, and NumPy's message
        # recommends unsafe loading.
        problem = "is damaged or not an NPZ file of plain arrays; replace it by an intact one"
        if isinstance(error, OSError) and error.strerror:
            problem = f"cannot be read: {error.strerror}"
        raise ValueError(f"{file} {problem}") from error


class _Refused(Exception):
    """A file that is intact but must not be read, with a message for the user."""


def check_sizes(files: Sequence[Path]) -> None:
    """Refuse NPZ files that together take more memory than one data set may.

    Raises:
        ValueError: If they do. Damaged files are refused by `read_npz`.
    """
    total = 0
    for file in files:
        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(file) as archive:
            total += sum(member.file_size for member in archive.infolist())
    if total > most_bytes():
        raise ValueError(
            f"{len(files)} NPZ files such as {files[0]}: expected arrays of at most "
            f"{most_bytes():,} bytes together, got {total:,}; "
            f"use a part of them, or set {BYTES} to more bytes"
        )


def named_columns(file: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a file with the columns of `x` under their `feature_names`.

    Raises:
        ValueError: If names do not fit the columns, are repeated, or are those of other arrays.
    """
    others = {name: array for name, array in arrays.items() if name != "feature_names"}
    names = [str(name) for name in arrays.get("feature_names", np.array([])).reshape(-1)]
    if not names or "x" not in others:
        return others
    x = others.pop("x")
    if x.ndim != 2 or x.shape[1] != len(names):
        raise ValueError(
            f"{file}: expected x to have a column for each of {len(names)} feature_names, "
            f"got the shape {x.shape}"
        )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(
            f"{file}: expected feature_names that differ, got {quoted(repeated[0])} "
            f"{names.count(repeated[0])} times; rename them"
        )
    taken = [name for name in names if name in others]
    if taken:
        raise ValueError(
            f"{file}: {quoted(taken[0])} is one of its feature_names and also an array; "
            "rename the feature, or leave it out if it is the label"
        )
    columns = {name: x[:, index] for index, name in enumerate(names)}
    return {**columns, **others}


def _check_size(file: Path, size: int, most: int) -> None:
    on_disk = os.stat(file).st_size
    if size > SMALL and size > MOST_SWOLLEN * on_disk and not bytes_are_stated():
        raise _Refused(
            f"{file}: expected arrays, got a file of {on_disk:,} bytes that would expand to "
            f"{size:,}; if that is right, set {BYTES} to at least as many bytes"
        )
    if size > most:
        raise _Refused(
            f"{file}: expected arrays of at most {most:,} bytes, got {size:,}; "
            f"use a part of them, or set {BYTES} to more"
        )


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: Path) -> np.ndarray:
    with archive.open(member) as opened:
        version = npy.read_magic(opened)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = header(opened)
        name = quoted(member.filename.removesuffix(".npy"))
        if dtype.hasobject:
            raise _Refused(
                f"{file}: the array {name} holds Python objects, which are never loaded; "
                "save it as numbers or text"
            )
        if dtype.kind not in KINDS or not dtype.itemsize:
            raise _Refused(
                f"{file}: the array {name} is of type {str(dtype)[:40]}; save it as numbers or text"
            )
        stated = math.prod(shape) * dtype.itemsize
        stored = member.file_size - opened.tell()
        is_possible = min(shape, default=0) >= 0 and max(shape, default=0) <= _MOST_ENTRIES
        if not is_possible or stated != stored:
            raise _Refused(
                f"{file}: the header of the array {name} says {quoted(shape, 60)} of {dtype} "
                f"({stated:,} bytes), but the file has {stored:,} bytes; "
                "the file is damaged, replace it by an intact one"
            )
    with archive.open(member) as opened:
        return npy.read_array(opened, allow_pickle=False)

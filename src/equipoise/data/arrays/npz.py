"""NPZ files of plain arrays, read with bounds: what a file says about its sizes is checked before memory is taken."""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from equipoise.validation.names import quoted
from equipoise.validation.regular_files import check_regular

MOST_SWOLLEN, SMALL = (
    200,
    2**28,
)  # how many times larger than its file the content may be, if it has more bytes than SMALL
KINDS = "biufUS"  # booleans, numbers, text
_MOST_ENTRIES = 2**40  # along one side of an array without any value, whose header may say anything


def read_npz(file: Path) -> dict[str, np.ndarray]:
    """All arrays of an NPZ file; damaged files, serialised Python objects and files that swell beyond reason are refused."""
    check_regular(file)
    try:
        with zipfile.ZipFile(file) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            _check_size(file, sum(member.file_size for member in members))
            return {
                member.filename.removesuffix(".npy"): _array(archive, member, file)
                for member in members
            }
    except _Refused as refused:
        raise ValueError(str(refused)) from None
    except Exception as error:
        # Whatever zipfile, zlib and NumPy make of damaged bytes; NumPy's advice to load a file unsafely is not for our users.
        why = "is damaged or not an NPZ file of plain arrays; replace it by a whole one"
        if isinstance(error, OSError) and error.strerror:
            why = f"cannot be read: {error.strerror}"
        raise ValueError(f"{file} {why}") from error


class _Refused(Exception):
    """A file that is whole but not what may be read; the sentence is for the user."""


def _check_size(file: Path, size: int) -> None:
    on_disk = os.stat(file).st_size
    if size > SMALL and size > MOST_SWOLLEN * on_disk:
        raise _Refused(
            f"{file}: expected arrays, got a file of {on_disk:,} bytes that would swell to {size:,}; it is no data set"
        )
    if size > _memory():
        raise _Refused(
            f"{file}: its arrays take {size:,} bytes, more than the memory of this machine; use a part of them"
        )


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: Path) -> np.ndarray:
    with archive.open(member) as opened:
        version = npy.read_magic(opened)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = header(opened)
        name = quoted(member.filename.removesuffix(".npy"))
        if dtype.hasobject:
            raise _Refused(
                f"{file}: the array {name} holds Python objects, which are never loaded; save it as numbers or text"
            )
        if dtype.kind not in KINDS or not dtype.itemsize:
            raise _Refused(
                f"{file}: the array {name} is of type {str(dtype)[:40]}; save it as numbers or text"
            )
        stated, there = math.prod(shape) * dtype.itemsize, member.file_size - opened.tell()
        if min(shape, default=0) < 0 or max(shape, default=0) > _MOST_ENTRIES or stated != there:
            raise _Refused(
                f"{file}: the header of the array {name} says {quoted(shape, 60)} of {dtype} ({stated:,} bytes), but {there:,} bytes are there; "
                "the file is damaged, replace it by a whole one"
            )
    with archive.open(member) as opened:
        return npy.read_array(opened, allow_pickle=False)


def _memory() -> int:
    """Bytes of memory that this machine has; without bound where that is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**63

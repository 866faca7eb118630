"""Readers of official file formats; none runs code from a file, and none writes to disk."""

from __future__ import annotations

import bz2
import gzip
import io
import tarfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from equipoise.data.sets.registered import Arrays

MOST_BYTES = 2**28  # of one file inside; the largest official one has 47 million
DAMAGED = (
    OSError,
    EOFError,
    zlib.error,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    tarfile.TarError,
)


def idx(file: Path) -> np.ndarray:
    """Read an MNIST file, which is compressed with gzip.

    It holds a magic number 0, 0, 8 (bytes), the number of dimensions, the sizes in big-endian
    order, and the data.

    Raises:
        ValueError: If the file is no such file, or too large.
    """
    with gzip.open(file) as opened:
        raw = opened.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise ValueError(f"{file.name} swells to more than {MOST_BYTES:,} bytes")
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise ValueError(f"{file.name} is not an IDX file of bytes")
    ndim = raw[3]
    shape = np.frombuffer(raw, ">u4", count=ndim, offset=4).astype(np.int64)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * ndim).reshape(shape)


def mnist(files: dict[str, Path]) -> Arrays:
    """Read the four files of MNIST, or of a set in the same form."""
    return {
        "x_train": idx(files["train-images-idx3-ubyte.gz"]),
        "y_train": idx(files["train-labels-idx1-ubyte.gz"]),
        "x_test": idx(files["t10k-images-idx3-ubyte.gz"]),
        "y_test": idx(files["t10k-labels-idx1-ubyte.gz"]),
    }


def usps(files: dict[str, Path]) -> Arrays:
    """Read the LIBSVM files of USPS.

    A line has a label 1..10 for the digits 0..9, then 256 pairs index:value with values in [-1, 1].
    """
    arrays: Arrays = {}
    for part, name in (("train", "usps.bz2"), ("test", "usps.t.bz2")):
        with bz2.open(files[name], "rt", encoding="ascii") as opened:
            lines = [line.split() for line in opened if line.strip()]
        values = np.zeros((len(lines), 256))
        for row, line in enumerate(lines):
            for pair in line[1:]:
                index, _, value = pair.partition(":")
                values[row, int(index) - 1] = float(value)
        pixels = ((values.astype(np.float32) + 1) / 2 * 255).astype(np.uint8)
        arrays[f"x_{part}"] = pixels.reshape(-1, 16, 16)
        arrays[f"y_{part}"] = np.array([int(line[0]) - 1 for line in lines], np.uint8)
    return arrays


def svhn(files: dict[str, Path]) -> Arrays:
    """Read MATLAB files with X (height, width, channels, n) and y, where 10 is the digit 0."""
    from scipy.io import loadmat

    arrays: Arrays = {}
    for part, file in zip(("train", "test"), files.values(), strict=True):
        stored = loadmat(file, variable_names=["X", "y"])
        arrays[f"x_{part}"] = np.ascontiguousarray(stored["X"].transpose(3, 0, 1, 2))
        arrays[f"y_{part}"] = (stored["y"].reshape(-1) % 10).astype(np.uint8)
    return arrays


def cifar(files: dict[str, Path]) -> Arrays:
    """Read a CIFAR archive, without unpickling.

    The binary version has records of label bytes and 3,072 pixels, the Python version has pickled
    batches.

    Raises:
        ValueError: If the archive is damaged, or holds a file that is too large.
    """
    (file,) = files.values()
    with tarfile.open(file) as archive:
        members = _archive_members(archive, file.name)

        def content(name: str) -> bytes:
            opened = archive.extractfile(members[name])
            assert opened is not None  # members holds regular files only
            return opened.read()

        if "data_batch_1.bin" in members or "train.bin" in members:
            return _binary_cifar(content, ten_classes="data_batch_1.bin" in members)
        return _pickled_cifar(content, ten_classes="data_batch_1" in members)


def _archive_members(archive: tarfile.TarFile, name: str) -> dict[str, tarfile.TarInfo]:
    """Return the files of an archive, by name without folder."""
    members = {}
    for member in archive:
        # Checked one after another: skipping a member that is too large would unpack it.
        if member.size > MOST_BYTES:
            raise ValueError(
                f"{name} holds {member.name!r} of {member.size:,} bytes, "
                "which is no part of the data set"
            )
        if member.isfile():
            members[Path(member.name).name] = member
    return members


def _binary_cifar(content: Callable[[str], bytes], ten_classes: bool) -> Arrays:
    train = [f"data_batch_{number}.bin" for number in range(1, 6)] if ten_classes else ["train.bin"]
    test = ["test_batch.bin"] if ten_classes else ["test.bin"]
    label_bytes = 1 if ten_classes else 2
    arrays: Arrays = {}
    for part, names in (("train", train), ("test", test)):
        arrays |= _joined(part, [_records(content(name), label_bytes) for name in names])
    if not ten_classes:
        arrays["class_names"] = np.array(content("fine_label_names.txt").decode().split())
    return arrays


def _pickled_cifar(content: Callable[[str], bytes], ten_classes: bool) -> Arrays:
    train = [f"data_batch_{number}" for number in range(1, 6)] if ten_classes else ["train"]
    test = ["test_batch"] if ten_classes else ["test"]
    label = "labels" if ten_classes else "fine_labels"
    arrays: Arrays = {}
    for part, names in (("train", train), ("test", test)):
        arrays |= _joined(part, [_batch(content(name), label) for name in names])
    if not ten_classes:
        arrays["class_names"] = np.array(_plain(content("meta"))["fine_label_names"])
    return arrays


def _joined(part: str, batches: Sequence[tuple[np.ndarray, np.ndarray]]) -> Arrays:
    return {
        f"x_{part}": np.concatenate([x for x, _ in batches]),
        f"y_{part}": np.concatenate([y for _, y in batches]),
    }


def cifar_sheets(arrays: Arrays) -> Arrays:
    """Unpack CIFAR-10 from lossless WebP sheets of 50 x 100 images."""
    from equipoise.data.arrays.images import opened_image

    unpacked: Arrays = {}
    for part in ("train", "test"):
        lengths = arrays[f"len_{part}"]
        sheets = []
        for end, length in zip(np.cumsum(lengths), lengths, strict=True):
            raw = arrays[f"webp_{part}"][end - length : end].tobytes()
            with opened_image(io.BytesIO(raw)) as opened:
                tiles = np.asarray(opened.convert("RGB")).reshape(50, 32, 100, 32, 3)
            sheets.append(tiles.transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32))
        unpacked[f"x_{part}"] = np.concatenate(sheets)
        unpacked[f"y_{part}"] = arrays[f"y_{part}"]
    return unpacked


def _records(raw: bytes, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    records = np.frombuffer(raw, np.uint8).reshape(-1, label_bytes + 3072)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1]


def _batch(raw: bytes, label: str) -> tuple[np.ndarray, np.ndarray]:
    stored = _plain(raw)
    return np.asarray(stored["data"]).reshape(-1, 3, 32, 32), np.array(stored[label], np.uint8)


def _plain(raw: bytes) -> dict[str, object]:
    from equipoise.data.sets.safe_unpickler import plain

    value = plain(raw)
    if not isinstance(value, dict):
        raise TypeError(f"expected a mapping in a CIFAR batch, got {type(value).__name__}")
    return value

"""Entries of registered data sets, and data sets from their stored arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from equipoise.data.arrays.user_data import images_first
from equipoise.data.dataset import TEST, TRAIN, VALIDATION, Dataset
from equipoise.task import Task

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Remote:
    """One official file."""

    file: str
    md5: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class RegisteredSet:
    """A data set that can be fetched or imported.

    Attributes:
        name: Its name.
        title: Its description.
        shape: The shape of a sample.
        class_names: The names of the classes.
        counts: The numbers of samples, as text.
        licence: The licence.
        cited: The source of addresses and checksums, or where to get the files by hand.
        read: A function that makes the data set of its arrays.
        remotes: The official files; none if it can only be imported.
        also: Official files in another format that `prepare` accepts.
        files: The file names of a data set that can only be imported.
        prepare: A function that makes the arrays of the files.
        packed: Another name of a prepared copy in the data folder.
        content: The checksum of its arrays, for a set whose files have no published checksum.
        note: A remark for users.
    """

    name: str
    title: str
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    counts: str
    licence: str
    cited: str
    read: Callable[[RegisteredSet, Arrays], Dataset]
    remotes: tuple[Remote, ...] = ()
    also: tuple[Remote, ...] = ()
    files: tuple[str, ...] = ()
    prepare: Callable[[dict[str, Path]], Arrays] | None = None
    packed: str | None = None
    content: str | None = None
    note: str = ""

    @property
    def official(self) -> tuple[str, ...]:
        """The names of the official files."""
        return tuple(remote.file for remote in self.remotes) or self.files


def content_of(arrays: Arrays) -> str:
    """Return the SHA-256 of arrays: names, shapes, types and bytes, in the order of names.

    >>> content_of({"x": np.zeros(2, np.int8)})[:8]
    'cc14f71a'
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def images(entry: RegisteredSet, arrays: Arrays) -> Dataset:
    """Return a data set from the arrays x_train, y_train, x_test, y_test.

    x_validation and y_validation are used if they are present.
    """
    marks = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
    if "x_validation" not in arrays:
        del marks["validation"]
    x = [images_first(array_of(entry, arrays, f"x_{name}")) for name in marks]
    y = [array_of(entry, arrays, f"y_{name}").reshape(-1) for name in marks]
    part = [np.full(len(arrays[f"y_{name}"]), mark) for name, mark in marks.items()]
    return dataset(entry, np.concatenate(x), np.concatenate(y), part=np.concatenate(part))


def dataset(
    entry: RegisteredSet, x: np.ndarray, y: np.ndarray, *, part: np.ndarray | None = None
) -> Dataset:
    """Return a data set with the task of an entry.

    Raises:
        ValueError: If samples have another shape or type.
    """
    if x.dtype != np.uint8 or x.shape[1:] != entry.shape:
        raise ValueError(
            f"data set {entry.name}: expected uint8 images of shape {entry.shape}, "
            f"got {x.dtype} of shape {x.shape[1:]}"
        )
    task = Task("classification", entry.shape, len(entry.class_names), entry.class_names)
    labels = torch.from_numpy(y.astype(np.int64))
    return Dataset(
        entry.name,
        torch.from_numpy(np.ascontiguousarray(x)),
        labels,
        task,
        part=part,
        licence=entry.licence,
        source=entry.cited,
    )


def array_of(entry: RegisteredSet, arrays: Arrays, name: str) -> np.ndarray:
    """Return an array of a file.

    Raises:
        ValueError: If the file has no such array.
    """
    if name not in arrays:
        raise ValueError(
            f"data set {entry.name}: the file has no array {name}; "
            f"it has {', '.join(arrays) or 'none'}"
        )
    return arrays[name]

"""What is known of a registered data set, and how its stored arrays become a Dataset."""

from __future__ import annotations

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
    """A registered set. `files` are official files that `prepare` turns into the arrays that `read` understands."""

    name: str
    title: str
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    counts: str
    licence: str
    cited: str  # where addresses and checksums were taken from, or where to get the files by hand
    read: Callable[[RegisteredSet, Arrays], Dataset]
    remotes: tuple[Remote, ...] = ()  # empty: import-only
    also: tuple[Remote, ...] = ()  # official files in another format that `prepare` takes too
    files: tuple[str, ...] = ()  # of an import-only set, in the order `prepare` names them
    prepare: Callable[[dict[str, Path]], Arrays] | None = None
    packed: str | None = None  # another name under which a prepared copy may lie in the data folder
    note: str = ""

    @property
    def official(self) -> tuple[str, ...]:
        return tuple(remote.file for remote in self.remotes) or self.files


def images(entry: RegisteredSet, arrays: Arrays) -> Dataset:
    """Arrays x_train, y_train, x_test, y_test (and x_validation, y_validation if there is such a part)."""
    parts = [("train", TRAIN), ("validation", VALIDATION), ("test", TEST)]
    found = [(name, mark) for name, mark in parts if f"x_{name}" in arrays or name != "validation"]
    x = np.concatenate([images_first(wanted(entry, arrays, f"x_{name}")) for name, _ in found])
    y = np.concatenate([wanted(entry, arrays, f"y_{name}").reshape(-1) for name, _ in found])
    part = np.concatenate([np.full(len(arrays[f"y_{name}"]), mark) for name, mark in found])
    return dataset(entry, x, y, part=part)


def dataset(
    entry: RegisteredSet, x: np.ndarray, y: np.ndarray, *, part: np.ndarray | None = None
) -> Dataset:
    """A Dataset with the entry's task; samples of another shape or type are refused."""
    if x.dtype != np.uint8 or x.shape[1:] != entry.shape:
        raise ValueError(
            f"data set {entry.name}: expected uint8 images of shape {entry.shape}, got {x.dtype} of shape {x.shape[1:]}"
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


def wanted(entry: RegisteredSet, arrays: Arrays, name: str) -> np.ndarray:
    """An array of the file, or an error that says what the file should hold."""
    if name not in arrays:
        raise ValueError(
            f"data set {entry.name}: the file has no array {name}; it has {', '.join(arrays) or 'none'}"
        )
    return arrays[name]

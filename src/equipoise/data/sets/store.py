"""The data folder: where prepared copies lie, how they get there, and what to say when one does not."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from equipoise.data.arrays.npz import read_npz
from equipoise.data.sets.download import Progress, download, md5_of
from equipoise.data.sets.files import DAMAGED
from equipoise.data.sets.registered import Arrays, RegisteredSet


def data_folder() -> Path:
    """EQUIPOISE_DATA, or a folder in the user's cache."""
    if os.environ.get("EQUIPOISE_DATA"):
        return Path(os.environ["EQUIPOISE_DATA"]).expanduser()
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "equipoise"


def prepared_copy(entry: RegisteredSet) -> Path | None:
    """The prepared copy of a set in the data folder, if there is one."""
    names = [entry.name] + ([entry.packed] if entry.packed else [])
    return next((file for name in names if (file := data_folder() / f"{name}.npz").is_file()), None)


def arrays_of(entry: RegisteredSet) -> Arrays:
    """The prepared arrays of a set, or an error that says how to get them."""
    file = prepared_copy(entry)
    if file is None:
        how = (
            f"equipoise data fetch {entry.name}"
            if entry.remotes
            else "it cannot be fetched automatically"
        )
        raise FileNotFoundError(
            f"data set {entry.name} is not in the data folder {data_folder()}. Online: {how}. Offline: get the file by hand and run "
            f"equipoise data import {entry.name} FILE ({entry.cited}), or point EQUIPOISE_DATA to a folder that has {entry.name}.npz"
        )
    return read_npz(file)


def fetch(entry: RegisteredSet, progress: Progress | None = None) -> Path:
    """Download the official files, check them, and keep a prepared copy; the files themselves are removed afterwards."""
    if not entry.remotes:
        raise ValueError(
            f"data set {entry.name} is import-only: equipoise data import {entry.name} FILE ({entry.cited})"
        )
    folder = _writable(data_folder())
    files = [
        download(remote.urls, folder / f"{entry.name}-{remote.file}", remote.md5, progress)
        for remote in entry.remotes
    ]
    copy = _save(
        entry,
        _checked(
            entry, {remote.file: file for remote, file in zip(entry.remotes, files, strict=True)}
        ),
    )
    for file in files:
        file.unlink(missing_ok=True)
    return copy


def import_files(entry: RegisteredSet, given: Sequence[Path]) -> Path:
    """Check files got by hand (the official ones, or a prepared NPZ file) and keep a prepared copy."""
    missing = [str(file) for file in given if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"no such file: {', '.join(missing)}")
    by_name = {file.name: file for file in given}
    for remote in (*entry.remotes, *entry.also):
        file = by_name.get(remote.file)
        if file and md5_of(file) != remote.md5:
            raise ValueError(
                f"the checksum of {file} is {md5_of(file)}, the official file has {remote.md5}: truncated or another version"
            )
    if len(entry.official) == len(given) == 1:
        by_name = {entry.official[0]: given[0]}
    return _save(entry, _checked(entry, by_name))


def _checked(entry: RegisteredSet, files: dict[str, Path]) -> Arrays:
    """The arrays of the files, once they have been read as the data set they are meant to be."""
    try:
        arrays = _arrays(entry, files)
        entry.read(entry, arrays)
    except DAMAGED as error:
        raise ValueError(
            f"{', '.join(files)} cannot be taken as data set {entry.name}: {error}"
        ) from error
    return arrays


def _arrays(entry: RegisteredSet, files: dict[str, Path]) -> Arrays:
    only = next(iter(files.values()))
    if len(files) == 1 and (only.suffix == ".npz" or entry.prepare is None):
        return read_npz(only)
    lacking = [name for name in entry.official if name not in files]
    if lacking or entry.prepare is None:
        raise ValueError(
            f"also needed: {', '.join(lacking)}; give all of {', '.join(entry.official)} together, or one prepared NPZ file"
        )
    return entry.prepare({name: files[name] for name in entry.official})


def _save(entry: RegisteredSet, arrays: Arrays) -> Path:
    """Write to a temporary file first, so that a prepared copy is whole or absent."""
    folder = _writable(data_folder())
    handle, name = tempfile.mkstemp(suffix=".npz", dir=folder)
    try:
        with os.fdopen(handle, "wb") as opened:
            np.savez(opened, **arrays)  # type: ignore[arg-type]
        target = folder / f"{entry.name}.npz"
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return target


def _writable(folder: Path) -> Path:
    hint = "set EQUIPOISE_DATA to a folder you may write to"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make the data folder {folder} ({error}); {hint}") from error
    # the owner's permission is asked too, because the system lets an administrator write into folders marked read-only
    if not (os.access(folder, os.W_OK) and folder.stat().st_mode & stat.S_IWUSR):
        raise OSError(f"the data folder {folder} is read-only; {hint}")
    return folder

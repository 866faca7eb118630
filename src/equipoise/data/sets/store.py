"""The data folder with prepared copies of data sets."""

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
from equipoise.data.sets.registered import Arrays, RegisteredSet, content_of


def data_folder() -> Path:
    """Return the data folder: EQUIPOISE_DATA, or a folder in the user's cache."""
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
    """Return the prepared copy of a data set in the data folder, if there is one."""
    for name in (entry.name, entry.packed):
        file = data_folder() / f"{name}.npz"
        if name and file.is_file():
            return file
    return None


def arrays_of(entry: RegisteredSet) -> Arrays:
    """Return the prepared arrays of a data set.

    Raises:
        FileNotFoundError: If there is no prepared copy; the message says how to get one.
    """
    file = prepared_copy(entry)
    if file is None:
        remedy = "it cannot be fetched automatically"
        if entry.remotes:
            remedy = f"equipoise data fetch {entry.name}"
        raise FileNotFoundError(
            f"data set {entry.name} is not in the data folder {data_folder()}. Online: {remedy}. "
            "Offline: get the file by hand and run "
            f"equipoise data import {entry.name} FILE ({entry.cited}), "
            f"or point EQUIPOISE_DATA to a folder that has {entry.name}.npz"
        )
    return read_npz(file)


def fetch(entry: RegisteredSet, progress: Progress | None = None) -> Path:
    """Download the official files, verify them, and store a prepared copy.

    The official files are removed afterwards.

    Args:
        entry: The data set.
        progress: A function that is called while files are downloaded.

    Returns:
        The prepared copy.

    Raises:
        ValueError: If the data set can only be imported, or a file is damaged.
        OSError: If a file cannot be downloaded or written.
    """
    if not entry.remotes:
        raise ValueError(
            f"data set {entry.name} is import-only: "
            f"equipoise data import {entry.name} FILE ({entry.cited})"
        )
    folder = _writable(data_folder())
    files: dict[str, Path] = {}
    for remote in entry.remotes:
        target = folder / f"{entry.name}-{remote.file}"
        files[remote.file] = download(remote.urls, target, remote.md5, progress)
    copy = _save(entry, _checked(entry, files))
    for file in files.values():
        file.unlink(missing_ok=True)
    return copy


def import_files(entry: RegisteredSet, files: Sequence[Path]) -> Path:
    """Verify files that were downloaded by hand, and store a prepared copy.

    Args:
        entry: The data set.
        files: The official files, or one prepared NPZ file.

    Returns:
        The prepared copy.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is damaged or of another version.
    """
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"no such file: {', '.join(missing)}")
    by_name = {file.name: file for file in files}
    for remote in (*entry.remotes, *entry.also):
        file = by_name.get(remote.file)
        if file and md5_of(file) != remote.md5:
            raise ValueError(
                f"the checksum of {file} is {md5_of(file)}, the official file has {remote.md5}: "
                "truncated or another version"
            )
    if len(entry.official) == len(files) == 1:
        by_name = {entry.official[0]: files[0]}
    return _save(entry, _checked(entry, by_name))


def _checked(entry: RegisteredSet, files: dict[str, Path]) -> Arrays:
    """Return the arrays of files, after the data set was read from them once."""
    try:
        arrays = _arrays(entry, files)
        entry.read(entry, arrays)
    except DAMAGED as error:
        raise ValueError(
            f"{', '.join(files)} cannot be taken as data set {entry.name}: {error}"
        ) from error
    if entry.content is not None and content_of(arrays) != entry.content:
        raise ValueError(
            f"the checksum of the contents of {', '.join(files)} is {content_of(arrays)}, "
            f"data set {entry.name} has {entry.content}: changed or another version"
        )
    return arrays


def _arrays(entry: RegisteredSet, files: dict[str, Path]) -> Arrays:
    only = next(iter(files.values()))
    if len(files) == 1 and (only.suffix == ".npz" or entry.prepare is None):
        return read_npz(only)
    lacking = [name for name in entry.official if name not in files]
    if lacking or entry.prepare is None:
        raise ValueError(
            f"also needed: {', '.join(lacking)}; give all of {', '.join(entry.official)} together, "
            "or one prepared NPZ file"
        )
    return entry.prepare({name: files[name] for name in entry.official})


def _save(entry: RegisteredSet, arrays: Arrays) -> Path:
    """Write a prepared copy through a temporary file, so that it is complete or absent."""
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
    # The owner's permission counts, too: an administrator may write into read-only folders.
    if not (os.access(folder, os.W_OK) and folder.stat().st_mode & stat.S_IWUSR):
        raise OSError(f"the data folder {folder} is read-only; {hint}")
    return folder

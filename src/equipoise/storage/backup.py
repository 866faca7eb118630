"""Backup of a run, also while a process writes it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from equipoise.storage.files import CONFIGURATION, DATABASE, FILES, RunError, is_ours, sync

TRIES = 20  # commits that may remove files of the copy before all of them are linked


def back_up(folder: Path, target: Path) -> int:
    """Copy a run as it is after its last commit.

    The database is copied in one piece. Files of a run never change, so they are linked where
    both folders lie on one file system, and copied otherwise.

    Args:
        folder: The folder of the run.
        target: A new folder for the copy.

    Returns:
        The last committed round of the copy.

    Raises:
        RunError: If there is no run, or the target exists or cannot be written.
    """
    if not (folder / DATABASE).exists():
        raise RunError(f"{folder} is not a run: it has no {DATABASE}; give the folder of a run")
    if target.exists():
        raise RunError(f"{target} exists already; choose another folder for the copy")
    try:
        (target / FILES).mkdir(parents=True)
        shutil.copy2(folder / CONFIGURATION, target / CONFIGURATION)
        for _ in range(TRIES):
            names, number = _copied_database(folder, target)
            if all(_linked(folder / FILES / name, target / FILES / name) for name in names):
                break
        else:
            raise RunError(f"{folder} is written faster than it can be copied; try again")
        _remove_others(target / FILES, set(names))
        sync([target / DATABASE, target / CONFIGURATION, target])
    except (OSError, sqlite3.Error) as error:
        raise RunError(
            f"{folder} cannot be copied to {target}: {error}; make room there"
        ) from error
    return number


def _copied_database(folder: Path, target: Path) -> tuple[list[str], int]:
    """Copy the database; return the files that it names at the server, and the last round."""
    (target / DATABASE).unlink(missing_ok=True)
    address = f"{(folder / DATABASE).absolute().as_uri()}?mode=ro"
    with (
        closing(sqlite3.connect(address, uri=True, timeout=10)) as source,
        closing(sqlite3.connect(target / DATABASE)) as copy,
    ):
        source.backup(copy)
        rows = copy.execute("select name from files where kept_at = 'server'").fetchall()
        (number,) = copy.execute("select max(round) from rounds").fetchone()
    for (name,) in rows:
        if not is_ours(name):
            raise RunError(f"{folder} names a file that no run has: {name!r:.80}")
    return [name for (name,) in rows], -1 if number is None else int(number)


def _linked(source: Path, target: Path) -> bool:
    """Link or copy a file that never changes; return False if a commit has removed it."""
    if target.exists():
        return True
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        return False
    except OSError:  # another file system
        try:
            shutil.copy2(source, target)
        except FileNotFoundError:
            return False
    return True


def _remove_others(folder: Path, names: set[str]) -> None:
    """Remove files that an earlier copy of the database named."""
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in names:
            path.unlink()

"""The lock of a run: whoever writes holds it, readers need none."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import FileLock, Timeout

from equipoise.storage.files import LOCK, RunError


def acquire(folder: Path) -> FileLock:
    """The lock of this run, held; refused if another process holds it."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(f"{folder} is being run by another process; wait for it to end, or stop it") from None
    except OSError as error:
        raise RunError(f"cannot lock {folder}: {error.strerror or error}; it must be writable to go on with the run") from error
    return lock


def is_held(folder: Path) -> bool:
    """Whether some process holds the run's lock; a folder that cannot be written cannot be run either."""
    if not (folder / LOCK).exists() or not os.access(folder, os.W_OK):
        return False
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:
        return False
    lock.release()
    return False

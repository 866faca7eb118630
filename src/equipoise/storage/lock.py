"""Lock of a run: a writer holds it, readers need none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from filelock import FileLock, Timeout

from equipoise.storage.files import LOCK, RunError

if sys.platform != "win32":
    import fcntl

PATIENCE = 0.5  # seconds, since `is_held` in another process has the lock for a moment


def acquire(folder: Path) -> FileLock:
    """Acquire the lock of a run.

    Raises:
        RunError: If another process holds it, or the folder cannot be written.
    """
    return acquire_file(folder / LOCK, f"{folder} is being run", str(folder))


def acquire_file(path: Path, in_use: str, subject: str) -> FileLock:
    """Acquire the lock of a file.

    Args:
        path: The file of the lock.
        in_use: What another process does that holds the lock, such as "runs/a is being run".
        subject: What is locked.

    Raises:
        RunError: If another process holds it, or the file cannot be written.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE, poll_interval=0.02)
    except Timeout:
        raise RunError(f"{in_use} by another process; wait for it to end, or stop it") from None
    except OSError as error:
        raise RunError(
            f"cannot lock {subject}: {error.strerror or error}; it must be writable to continue "
            "the run"
        ) from error
    return lock


def is_held(folder: Path) -> bool:
    """Return True if a process holds the lock of a run; nothing is written to find out."""
    return is_locked(folder / LOCK)


def is_locked(path: Path) -> bool:
    """Return True if a process holds the lock of a file; nothing is written to find out."""
    if not path.exists():
        return False
    if sys.platform == "win32":  # where a lock can only be tried
        return not _can_be_had(FileLock(path))
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        # A shared lock, so that readers do not see each other; closing the file releases it.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _can_be_had(lock: FileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return False
    lock.release()
    return True

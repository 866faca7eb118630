"""The lock of a run: whoever writes holds it, readers need none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from filelock import FileLock, Timeout

from equipoise.storage.files import LOCK, RunError

if sys.platform != "win32":
    import fcntl

PATIENCE = 0.5  # seconds: who only asks whether the lock is held has it for a moment


def acquire(folder: Path) -> FileLock:
    """The lock of this run, held; refused if another process holds it."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=PATIENCE, poll_interval=0.02)
    except Timeout:
        raise RunError(
            f"{folder} is being run by another process; wait for it to end, or stop it"
        ) from None
    except OSError as error:
        raise RunError(
            f"cannot lock {folder}: {error.strerror or error}; it must be writable to go on with the run"
        ) from error
    return lock


def is_held(folder: Path) -> bool:
    """Whether some process holds the run's lock; asked without writing anything, so that whoever looks does not disturb who runs."""
    if not (folder / LOCK).exists():
        return False
    if sys.platform == "win32":  # where a lock can only be tried
        return not _can_be_had(FileLock(folder / LOCK))
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        # shared: those who look do not see each other; let go when it is closed
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

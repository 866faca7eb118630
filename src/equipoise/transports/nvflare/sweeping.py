"""Sweeping of the folders that FLARE leaves for every job in a kit."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

from equipoise.transports.nvflare.kits import Kit

KEPT_JOBS = 20  # newest jobs whose folders stay
LEAST_AGE = 3600.0  # seconds without a change after which a folder may be removed
_JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def sweep_jobs(kit: Kit, keep: int = KEPT_JOBS, age: float = LEAST_AGE) -> int:
    """Remove the folders of old jobs; return their number.

    Args:
        kit: The kit of a server or a site.
        keep: The number of newest jobs whose folders stay.
        age: Seconds without a change after which a folder may be removed.
    """
    count = 0
    # Each site and the server have a folder per job; the server also stores jobs.
    for folder in (kit.startup, kit.startup / "jobs"):
        count += _swept(folder, keep, time.time() - age)
    return count


def _swept(folder: Path, keep: int, before: float) -> int:
    if not folder.is_dir():
        return 0
    changed = {}
    for path in folder.iterdir():
        if _JOB.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            changed[path] = _last_change(path)
    old = sorted(changed, key=lambda path: changed[path], reverse=True)[keep:]
    removed = [path for path in old if changed[path] < before]
    for path in removed:
        shutil.rmtree(path, ignore_errors=True)
    return len(removed)


def _last_change(folder: Path) -> float:
    """Return the time of the last change of a folder; a job in progress writes its log."""
    times = [folder.stat().st_mtime]
    for path in folder.iterdir():
        try:
            times.append(path.stat().st_mtime)
        except OSError:  # removed meanwhile
            continue
    return max(times)

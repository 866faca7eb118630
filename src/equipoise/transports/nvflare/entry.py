"""Entries of the runs at a server: the state of each that its store does not have.

The entry of a run is `RUN.json` next to the folder of the run. The controller of a job and the
supervisor both change it, each under a lock and in one piece.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from equipoise.storage.lock import is_locked
from equipoise.transports.nvflare.order import RunOrder

RUNS = "runs"  # the folder of runs in the folder of the server
_PATIENCE = 10.0  # seconds for the other process to write an entry

Wish = Literal["end", "stop"]


@dataclass(frozen=True)
class RunEntry:
    """A run at the server.

    Attributes:
        order: The order that began it.
        owner: The person whose order began it.
        is_active: True if the supervisor continues the run when its job ends.
        job: FLARE's identifier of its last job.
        submitted: The time at which this job was submitted or began.
        away: The sites that this job cannot reach, with the time since when.
        ended: The time at which the end of this job was noted; 0 while it is in progress.
        outcome: How this job ended: the status of its `Outcome`, "aborted" if FLARE ended it, or
            empty if it died.
        tries: The number of jobs since the last new round.
        round: The last committed round when this job was submitted; -1 before the first.
        deaths: For each site, the jobs in which its process died, with the time.
        left_out: The sites that take no part any more, with the reason.
        reason: Why the run is not continued; empty if it is, or if it is finished.
    """

    order: RunOrder
    owner: str
    is_active: bool = True
    job: str = ""
    submitted: float = 0.0
    away: Mapping[str, float] = field(default_factory=dict)
    ended: float = 0.0
    outcome: str = ""
    tries: int = 0
    round: int = -1
    deaths: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def run(self) -> str:
        """The identifier of the run."""
        return self.order.run

    def text(self) -> str:
        """Return the content of the entry's file."""
        values = asdict(self) | {"order": self.order.text()}
        return json.dumps(values, indent=1) + "\n"

    @classmethod
    def of(cls, text: str) -> RunEntry:
        """Return the entry in the content of a file.

        Raises:
            ValueError: If it is none, or one of another version.
        """
        values = json.loads(text)
        try:
            values["order"] = RunOrder.of(values["order"])
            return cls(**values)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an entry of a run: {error}") from None


def read_entry(runs: Path, run: str) -> RunEntry | None:
    """Return the entry of a run; None if there is none.

    Args:
        runs: The folder of the runs.
        run: The identifier of the run.

    Raises:
        ValueError: If the file is damaged or of another version.
    """
    try:
        return RunEntry.of(_path(runs, run).read_text())
    except FileNotFoundError:
        return None


def read_entries(runs: Path) -> tuple[list[RunEntry], list[str]]:
    """Return the entries of all runs, and what is wrong with those that cannot be read."""
    entries = []
    problems = []
    for path in sorted(runs.glob("*.json")):
        try:
            entries.append(RunEntry.of(path.read_text()))
        except (OSError, ValueError) as error:
            problems.append(f"{path}: {error}")
    return entries, problems


def update_entry(
    runs: Path, run: str, change: Callable[[RunEntry | None], RunEntry | None]
) -> RunEntry | None:
    """Change the entry of a run, whole or not at all.

    Args:
        runs: The folder of the runs.
        run: The identifier of the run.
        change: Returns the new entry for the present one, or None to leave it as it is.

    Returns:
        The entry afterwards.
    """
    runs.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = _path(runs, run)
    with FileLock(f"{path}.lock", timeout=_PATIENCE):
        present = read_entry(runs, run)
        entry = change(present)
        if entry is None:
            return present
        new = path.with_name(f"{path.name}.new")
        with new.open("w") as file:
            file.write(entry.text())
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        return entry


def set_fields(runs: Path, run: str, **values: Any) -> RunEntry | None:
    """Set fields of the entry of a run, if it has one; return the entry."""

    def change(entry: RunEntry | None) -> RunEntry | None:
        return None if entry is None else replace(entry, **values)

    return update_entry(runs, run, change)


@contextmanager
def job_lock(runs: Path, run: str) -> Iterator[bool]:
    """Hold the lock of a run's job for the duration of a block.

    The lock ends with its process, so it shows whether a job lives. FLARE's state of a job does
    not: after a crash of the server it stays RUNNING without end.

    Yields:
        False if another job holds the lock.
    """
    runs.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(_job_lock_path(runs, run))
    try:
        lock.acquire(timeout=0.5, poll_interval=0.02)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def has_live_job(runs: Path, run: str) -> bool:
    """Return True if a job of the run lives."""
    return is_locked(_job_lock_path(runs, run))


def request_end(runs: Path, run: str, wish: Wish) -> None:
    """Ask the live job of a run to end.

    Args:
        runs: The folder of the runs.
        run: The identifier of the run.
        wish: "end" to end after the next commit, "stop" to end at once.
    """
    _request_path(runs, run).write_text(wish)


def requested_end(runs: Path, run: str) -> str:
    """Return the request to end the live job of a run; empty if there is none."""
    try:
        return _request_path(runs, run).read_text()
    except FileNotFoundError:
        return ""


def clear_request(runs: Path, run: str) -> None:
    """Withdraw the request to end the job of a run."""
    _request_path(runs, run).unlink(missing_ok=True)


def _path(runs: Path, run: str) -> Path:
    return runs / f"{run}.json"


def _job_lock_path(runs: Path, run: str) -> Path:
    return runs / f"{run}.job.lock"


def _request_path(runs: Path, run: str) -> Path:
    return runs / f"{run}.request"

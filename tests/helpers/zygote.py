"""A process that forks a child for every job it reads: children start at once and may kill
themselves at a given point.

A job plays or resumes a run. With `die_at = n` the child kills itself at the n-th event: before and
after every file written, every sync, every SQL statement that changes the store, and every removal.
With `die_after = s` it is killed after s seconds instead, wherever it is. With `disk` the clients'
states lie there and not at the server.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import equipoise.runtime.states as states
import equipoise.storage.checkpoint as checkpoint
import equipoise.storage.store as store
from equipoise import records, simulate
from equipoise.experiment import experiment
from equipoise.transports.inprocess import Separated

events = 0
die_at: int | None = None


def event() -> None:
    global events
    events += 1
    if events == die_at:
        os.kill(os.getpid(), signal.SIGKILL)


def around(function: Any) -> Any:
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        event()
        result = function(*arguments, **keywords)
        event()
        return result

    return wrapped


class Database:
    """A connection whose changing statements are events."""

    def __init__(self, db: Any) -> None:
        self.db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self.db, name)

    def execute(self, sql: str, *rest: Any) -> Any:
        changes = sql.split()[0] in ("begin", "insert", "delete", "commit")
        if changes:
            event()
        result = self.db.execute(sql, *rest)
        if changes:
            event()
        return result


def instrument() -> None:
    checkpoint.write = around(records.write)
    states.FileStates.write = around(states.FileStates.write)  # type: ignore[method-assign]
    states.FileStates.keep = around(states.FileStates.keep)  # type: ignore[method-assign]
    store.sync = around(store.sync)
    store.Store.remove = around(store.Store.remove)  # type: ignore[method-assign]
    opened = store.Store.__init__

    def init(self: store.Store, *arguments: Any, **keywords: Any) -> None:
        opened(self, *arguments, **keywords)
        self.db = Database(self.db)  # type: ignore[assignment]

    store.Store.__init__ = init  # type: ignore[method-assign]


def work(job: dict[str, Any], answer: int) -> None:
    global die_at
    instrument()
    die_at = job.get("die_at")
    if "die_after" in job:
        threading.Timer(job["die_after"], os.kill, (os.getpid(), signal.SIGKILL)).start()
    apart: Any = (
        (lambda federation, settings: Separated(federation, Path(job["disk"])))
        if "disk" in job
        else None
    )
    try:
        if job.get("resume"):
            simulate.resume(job["out"], from_round=job.get("from_round"), transport=apart)
        else:
            simulate.run(experiment(job["config"]), job["out"], transport=apart)
        said = {"events": events}
    except BaseException as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    os.write(answer, json.dumps(said).encode())
    os._exit(0)


def main() -> None:
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            work(json.loads(line), writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        status = os.waitpid(child, 0)[1]
        print(
            json.dumps({"killed": os.WIFSIGNALED(status), **json.loads(said or "{}")}), flush=True
        )


if __name__ == "__main__":
    main()

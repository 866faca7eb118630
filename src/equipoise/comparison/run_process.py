"""A process that executes runs of a comparison, one after another.

Each line of its standard input is a job, {"experiment", "imports", "folder", "log", "path",
"where"}. It answers with one line of JSON for every event, the last of a job being "done" or
"failed". When the input ends, the parent is gone or needs no more runs: the process ends at once.
Nothing is lost, since a round counts once its transaction is committed.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from equipoise.callbacks import Callback, ClientProgress, RunStart
from equipoise.experiment import Experiment, experiment
from equipoise.runtime.environment import keep_heap
from equipoise.simulate import resume, run
from equipoise.storage.store import DATABASE
from equipoise.storage.tables import RoundRecord
from equipoise.validation.imports import Imports

SIGN_OF_LIFE = 1.0  # seconds between two signs of life inside a round
Send = Callable[..., None]


def main() -> None:
    """Execute jobs from standard input until it ends."""
    keep_heap()
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()
    events = os.fdopen(os.dup(1), "w", buffering=1)

    def send(kind: str, **details: Any) -> None:
        events.write(json.dumps({"event": kind, **details}) + "\n")

    while True:  # until the input ends
        job = json.loads(jobs.get())
        sys.path[:] = job["path"]
        with open(job["log"], "w") as log:
            for output in (1, 2):  # what a method prints must not pass for an event
                os.dup2(log.fileno(), output)
        try:
            run_cell(
                experiment(job["experiment"], Imports.of_job(job["imports"])),
                Path(job["folder"]),
                send,
                job["where"],
            )
            send("done")
        except Exception as error:
            traceback.print_exc()
            send("failed", reason=_in_one_line(error))


class ReportEvents(Callback):
    """Reports every round as an event, and within a round a sign of life each second."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.last_event = time.monotonic()

    def on_start(self, start: RunStart) -> None:
        """Report the last round that was computed before."""
        self.send("round", round=start.first - 1)

    def on_client(self, progress: ClientProgress) -> None:
        """Report a sign of life."""
        if time.monotonic() - self.last_event > SIGN_OF_LIFE:
            self.last_event = time.monotonic()
            self.send("alive")

    def on_round(self, record: RoundRecord) -> None:
        """Report a round."""
        if not record.finish:
            self.send("round", round=record.round)


def run_cell(
    planned: Experiment, folder: Path, send: Send, where: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Run an experiment, or resume the run of an earlier process, and report its events."""
    events = ReportEvents(send)
    if (folder / DATABASE).exists():
        resume(folder, events, experiment=planned, **where)
    else:
        run(planned, folder, events, quiet=True, **where)


def _in_one_line(error: Exception) -> str:
    """Return the message; of an error inside a method, its place and the end of the traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if len(lines) == 1:
        return lines[0]
    return f"{lines[0]} {lines[-1].strip()}"


def _read(jobs: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()

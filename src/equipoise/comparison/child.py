"""One run of a comparison in a process of its own.

It reads one line from its standard input, {"experiment", "folder", "path"}, and writes one line of JSON for every event. When the input
ends, whoever started it is gone: it ends too. Nothing is lost, since a round counts once its transaction is committed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

SIGN_OF_LIFE = 1.0  # seconds between two signs of life inside a round


def main() -> None:
    job = json.loads(sys.stdin.readline())
    sys.path[:] = job["path"]
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a method prints must not pass for an event
    threading.Thread(target=_end_with_the_parent, daemon=True).start()

    def tell(kind: str, **facts: Any) -> None:
        events.write(json.dumps({"event": kind, **facts}) + "\n")

    try:
        from equipoise.experiment import experiment

        carry_out(experiment(job["experiment"]), Path(job["folder"]), tell)
    except Exception as error:
        traceback.print_exc()
        tell("failed", reason=_in_one_line(error))
        sys.exit(1)


def carry_out(wanted: Any, folder: Path, tell: Any) -> None:
    """Run an experiment, or go on where an earlier process stopped; tells of every round."""
    from equipoise.runs.store import DATABASE
    from equipoise.simulate import resume, run
    from equipoise.transports.exchange import Watcher

    last = time.monotonic()

    def alive(step: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > SIGN_OF_LIFE:
            last = time.monotonic()
            tell("alive")

    watcher = Watcher(
        on_start=lambda first, rounds: tell("round", round=first - 1), on_clients=alive, on_round=lambda done: tell("round", round=done.round)
    )
    if (folder / DATABASE).exists():
        resume(folder, watcher, given=wanted)
    else:
        run(wanted, folder, watcher)


def _in_one_line(error: Exception) -> str:
    """The message, or for an error inside a method the place and the last line of its traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1].strip()}"


def _end_with_the_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()

"""One run of a growing series, in a process of its own.

`growing.py play SPEC` takes turns with others, `growing.py resume FOLDER` continues the run.

Writes the time until the first round and the peak memory to a file next to the run.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

import equipoise as eq
from equipoise import simulate
from equipoise.engine.rounds import Loop
from hearing import Hearing
from measure import Meter, family, memory_mb


class Memory(threading.Thread):
    """The largest memory in MB of this process.

    With workers it is that of all processes together, sampled ten times a second.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(daemon=True)
        self.most = 0.0
        if workers:
            self.start()

    def run(self) -> None:
        """Sample the memory ten times a second."""
        while True:
            self.most = max(self.most, memory_mb(family(os.getpid())))
            time.sleep(0.1)

    def mb(self) -> float:
        """Return the largest memory in MB."""
        return self.most or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def play(spec: dict[str, Any]) -> None:
    """Rounds at whose ends this process waits for its turn.

    Before them `fill` rounds in which every client takes part once, so that each has a state.
    """
    meter, facts, folder, fill = Meter(), {}, Path(spec["folder"]), spec["fill"]
    memory = Memory(spec["experiment"]["workers"])
    choose = Loop._choose

    def chosen(self: Loop, number: int, attempt: int) -> list[str]:
        return (
            list(self.server.ids[number - 1 :: fill])
            if number <= fill
            else choose(self, number, attempt)
        )

    Loop._choose = chosen  # type: ignore[method-assign]

    def started(first: int, rounds: int) -> None:
        facts["startup"] = time.process_time()
        if not fill:
            meter.start()

    def over(record: Any) -> None:
        if record.round < fill:
            return
        if record.round == fill:
            meter.start()
            return
        if record.round == fill + spec["laps"]:
            (folder.parent / f"{folder.name}.json").write_text(
                json.dumps({**facts, "memory": memory.mb()})
            )
        meter.lap(len(record.cohort))

    simulate.run(
        eq.Experiment(**spec["experiment"]), folder, Hearing(on_start=started, on_round=over)
    )


def resume(folder: Path) -> None:
    """CPU seconds until the next round begins, printed; then to the end."""
    simulate.resume(
        folder, Hearing(on_start=lambda first, rounds: print(time.process_time(), flush=True))
    )


if __name__ == "__main__":
    if sys.argv[1] == "play":
        play(json.loads(sys.argv[2]))
    else:
        resume(Path(sys.argv[2]))

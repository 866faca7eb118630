"""Running the cells of a comparison side by side, each in a process of its own; what is finished is left alone."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.comparison.child import carry_out
from equipoise.comparison.plan import Cell
from equipoise.experiment import spec_of
from equipoise.runs import Run
from equipoise.runs.store import DATABASE, RunError

LAST_SECONDS = 10.0  # for a process that was told to end


@dataclass
class Progress:
    """What a comparison tells to whoever watches; the defaults say nothing."""

    on_plan: Callable[[Sequence[Cell], int], None] = lambda missing, finished: None
    on_round: Callable[[Cell, int], None] = lambda cell, number: None
    on_end: Callable[[Cell, str | None], None] = lambda cell, failure: None


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def execute(cells: Sequence[Cell], folder: Path, jobs: int, progress: Progress) -> dict[str, str]:
    """Run what is missing, `jobs` at a time; returns the reason of every failure by the name of the cell."""
    missing = [cell for cell in cells if not finished(folder / cell.name)]
    progress.on_plan(missing, len(cells) - len(missing))
    apart = [cell for cell in missing if cell.experiment.portable is None]
    failures = _side_by_side(apart, folder, jobs, progress)
    for cell in missing:
        if cell.experiment.portable is not None:  # its data, model or method live in this process only
            failures[cell.name] = _noted(cell, progress, _here(cell, folder, progress))
    return {name: reason for name, reason in failures.items() if reason is not None}


def finished(folder: Path) -> bool:
    """Whether a folder holds a finished run; a damaged one is an error that says so."""
    return (folder / DATABASE).exists() and Run(folder).status == "finished"


def _here(cell: Cell, folder: Path, progress: Progress) -> str | None:
    def tell(kind: str, round: int = 0) -> None:
        if kind == "round":
            progress.on_round(cell, round)

    try:
        carry_out(cell.experiment, folder / cell.name, tell)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _noted(cell: Cell, progress: Progress, failure: str | None) -> str | None:
    progress.on_end(cell, failure)
    return failure


def _side_by_side(cells: Sequence[Cell], folder: Path, jobs: int, progress: Progress) -> dict[str, str | None]:
    going: set[subprocess.Popen[bytes]] = set()
    stop = threading.Event()

    def one(cell: Cell) -> str | None:
        return None if stop.is_set() else _noted(cell, progress, _in_child(cell, folder, going, stop, progress))

    with ThreadPoolExecutor(max(1, min(jobs, len(cells)))) as pool:
        try:
            return dict(zip((cell.name for cell in cells), pool.map(one, cells), strict=True))
        except BaseException:
            stop.set()
            for process in list(going):
                _end(process)
            raise


def _in_child(cell: Cell, folder: Path, going: set[Any], stop: threading.Event, progress: Progress) -> str | None:
    """Why the run failed; None if it did not."""
    (folder / cell.name).mkdir(parents=True, exist_ok=True)
    log, limit, reason = folder / cell.name / "log.txt", cell.experiment.participation.deadline, None
    with log.open("wb") as errors:
        # One thread each: as many runs as cores fill the machine, and results must not depend on the number of threads.
        process = subprocess.Popen(
            [sys.executable, "-m", "equipoise.comparison.child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )  # fmt: skip
    going.add(process)
    try:
        with suppress(BrokenPipeError):
            _send(process, cell, folder)
        for event in _events(process, limit):
            if event["event"] == "round":
                progress.on_round(cell, event["round"])
            elif event["event"] == "failed":
                reason = event["reason"]
        code = process.wait(LAST_SECONDS)
    except (TimeoutError, subprocess.TimeoutExpired):
        return f"no sign of life for {limit:g} seconds (participation.deadline); it was ended and can be resumed by running the comparison again"
    finally:
        _end(process)
        going.discard(process)
    if code == 0:
        log.unlink(missing_ok=True)
        return None
    if stop.is_set():
        return "stopped"
    ended = f"its process ended with {'signal' if code < 0 else 'status'} {abs(code)}"
    return f"{reason or ended} (details in {log})"


def _send(process: subprocess.Popen[bytes], cell: Cell, folder: Path) -> None:
    plain = cell.experiment.model_dump(mode="json") | {"method": spec_of(cell.experiment.build_method())}
    job = {"experiment": plain, "folder": str(folder / cell.name), "path": [path or os.getcwd() for path in sys.path]}
    assert process.stdin is not None
    process.stdin.write(json.dumps(job).encode() + b"\n")
    process.stdin.flush()


def _events(process: subprocess.Popen[bytes], limit: float) -> Iterator[dict[str, Any]]:
    """Lines of a child as they come, until it closes its output; silence beyond the limit is a TimeoutError."""
    assert process.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(limit):
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (json.loads(line) for line in lines)
    raise TimeoutError


def _end(process: subprocess.Popen[bytes]) -> None:
    """Closing its input asks a child to end; one that does not is killed."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(LAST_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(LAST_SECONDS)


def open_finished(folder: Path) -> Run:
    """A run of a comparison, which must be whole."""
    if not finished(folder):
        raise RunError(f"{folder} is not finished; run the comparison again to complete it")
    return Run(folder)

"""Running the cells of a comparison side by side in child processes; what is finished is left alone."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.comparison.plan import Cell
from equipoise.runs import Run
from equipoise.storage.files import RunError, check_output
from equipoise.storage.store import DATABASE

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


def execute(
    cells: Sequence[Cell],
    folder: Path,
    jobs: int,
    progress: Progress,
    where: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Run what is missing, `jobs` at a time, `where` a cluster is named there; returns the reason of every failure by the name of the cell."""
    missing = [cell for cell in cells if not finished(folder / cell.name)]
    progress.on_plan(missing, len(cells) - len(missing))
    failures: dict[str, str] = {}

    def ended(cell: Cell, failure: str | None) -> None:
        if failure is not None:
            failures[cell.name] = failure
        progress.on_end(cell, failure)

    _side_by_side(
        [cell for cell in missing if cell.experiment.why_not_portable is None],
        folder,
        jobs,
        progress,
        ended,
        where or {},
    )
    for cell in missing:
        # its data, model or method live in this process only
        if cell.experiment.why_not_portable is not None:
            ended(cell, _here(cell, folder, progress))
    return failures


def finished(folder: Path) -> bool:
    """Whether a folder holds a finished run; a damaged one is an error that says so."""
    if not (folder / DATABASE).exists():
        return False
    run = Run(folder)
    try:
        return run.status == "finished"
    finally:
        run.store.close()


def _here(cell: Cell, folder: Path, progress: Progress) -> str | None:
    from equipoise.comparison.run_process import run_cell

    def tell(kind: str, round: int = 0) -> None:
        if kind == "round":
            progress.on_round(cell, round)

    try:
        run_cell(cell.experiment, folder / cell.name, tell)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _side_by_side(
    cells: Sequence[Cell],
    folder: Path,
    jobs: int,
    progress: Progress,
    ended: Callable[[Cell, str | None], None],
    where: Mapping[str, Any],
) -> None:
    left, children, stop = deque(cells), [], threading.Event()

    def lane() -> None:
        child = None
        while left and not stop.is_set():
            try:
                cell = left.popleft()
            except IndexError:  # another lane took the last one
                break
            if child is None or child.poll() is not None:
                child = _start()
                children.append(child)
            failure = _in_child(child, cell, folder, progress, where)
            if not stop.is_set():
                ended(cell, failure)

    with ThreadPoolExecutor(max(1, min(jobs, len(cells)))) as pool:
        lanes = [pool.submit(lane) for _ in range(min(jobs, len(cells)))]
        try:
            for future in lanes:
                future.result()
        finally:
            stop.set()
            for process in children:
                _end(process)


def _start() -> subprocess.Popen[bytes]:
    # One thread each: as many processes as cores fill the machine, and results must not depend on the number of threads.
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    # -P: what lies in the current folder, a stranger's perhaps, is not imported in place of a library.
    command = [sys.executable, "-P", "-m", "equipoise.comparison.run_process"]
    # A session of its own: Ctrl-C reaches this process only, which then ends its children in order.
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def _in_child(
    child: subprocess.Popen[bytes],
    cell: Cell,
    folder: Path,
    progress: Progress,
    where: Mapping[str, Any],
) -> str | None:
    """Why the run failed; None if it did not."""
    log, limit = folder / cell.name / "log.txt", cell.experiment.participation.deadline
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        check_output(log)
    except RunError as error:
        return str(error)
    last: dict[str, Any] = {}
    try:
        with suppress(BrokenPipeError):
            _send(child, cell, folder / cell.name, log, where)
        for last in _events(child, limit):
            if last["event"] == "round":
                progress.on_round(cell, last["round"])
    except TimeoutError:
        _end(child)
        return f"no sign of life for {limit:g} seconds (participation.deadline), so it was ended; the comparison, run again, goes on with it"
    if last.get("event") == "done":
        log.unlink(missing_ok=True)
        return None
    if last.get("event") == "failed":
        return f"{last['reason']} (details in {log})"
    code = child.wait(LAST_SECONDS)
    return f"its process ended with {'signal' if code < 0 else 'status'} {abs(code)} (details in {log})"


def _send(
    child: subprocess.Popen[bytes], cell: Cell, folder: Path, log: Path, where: Mapping[str, Any]
) -> None:
    imports = cell.experiment.imports.plain()
    path = [path or os.getcwd() for path in sys.path]
    job = {
        "experiment": cell.experiment.to_spec(),
        "imports": imports,
        "folder": str(folder),
        "log": str(log),
        "path": path,
        "where": dict(where),
    }
    assert child.stdin is not None
    child.stdin.write(json.dumps(job).encode() + b"\n")
    child.stdin.flush()


def _events(child: subprocess.Popen[bytes], limit: float) -> Iterator[dict[str, Any]]:
    """Events of a job as they come, until its last or the end of the process; silence beyond the limit is a TimeoutError."""
    assert child.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while selector.select(limit):
            chunk = os.read(child.stdout.fileno(), 1 << 16)
            *lines, rest = (rest + chunk).split(b"\n")
            for event in map(json.loads, lines):
                yield event
                if event["event"] in ("done", "failed"):
                    return
            if not chunk:
                return
    raise TimeoutError


def _end(child: subprocess.Popen[bytes]) -> None:
    """Closing its input asks a child to end; one that does not is killed."""
    assert child.stdin is not None
    with suppress(OSError):
        child.stdin.close()
    try:
        child.wait(LAST_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(LAST_SECONDS)

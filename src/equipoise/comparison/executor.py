"""Execution of the runs of a comparison in parallel child processes; finished runs are skipped."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

from equipoise.comparison.changed_data import check_unchanged
from equipoise.comparison.plan import Cell
from equipoise.runs import Run
from equipoise.storage.files import RunError, check_output
from equipoise.storage.store import DATABASE
from equipoise.transports.workers.processes import Forked, may_fork

LAST_SECONDS = 10.0  # for a process to end after SIGTERM


class Child(Protocol):
    """The part of `subprocess.Popen` that is used here."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """The pipe for jobs."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """The pipe of events."""

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end; return its exit code."""

    def kill(self) -> None:
        """Kill the process."""


class ForkedChild(Forked):
    """A forked process with the pipes to it.

    Attributes:
        stdin: The pipe for jobs.
        stdout: The pipe of events.
    """

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        super().__init__(pid)
        self.stdin = stdin
        self.stdout = stdout


@dataclass
class Progress:
    """Receivers of the events of a comparison; the defaults ignore them.

    Attributes:
        on_plan: Called with the missing runs and the number of finished ones.
        on_round: Called with a run and the number of its last round.
        on_end: Called with a run and the reason of its failure, or None.
    """

    on_plan: Callable[[Sequence[Cell], int], None] = lambda missing, finished: None
    on_round: Callable[[Cell, int], None] = lambda cell, number: None
    on_end: Callable[[Cell, str | None], None] = lambda cell, failure: None


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def execute(
    cells: Sequence[Cell],
    folder: Path,
    jobs: int,
    progress: Progress,
    where: Mapping[str, Any] | None = None,
    start: Callable[[], Child] | None = None,
) -> dict[str, str]:
    """Run what is missing.

    Args:
        cells: The runs of the comparison.
        folder: The folder of the runs.
        jobs: Runs at a time.
        progress: Receives events.
        where: Arguments of `equipoise.run` that name a cluster.
        start: Starts a child process that executes jobs (see `run_process`).

    Returns:
        The reason of every failure, by the name of the run.

    Raises:
        RunError: A finished run is damaged, or its data have changed since.
    """
    done: list[Cell] = []
    missing: list[Cell] = []
    for cell in cells:
        (done if finished(folder / cell.name) else missing).append(cell)
    portable = [cell for cell in missing if cell.experiment.why_not_portable is None]
    threads = min(jobs, len(portable))
    # Before the receiver of events starts a thread, such as that of a progress bar.
    children = _fork(threads) if start is None and may_fork() else []
    try:
        # After the fork, since reading data may start threads.
        check_unchanged(done, folder)
        progress.on_plan(missing, len(done))
    except BaseException:
        for child in children:
            _end(child)
        raise
    failures: dict[str, str] = {}

    def ended(cell: Cell, failure: str | None) -> None:
        if failure is not None:
            failures[cell.name] = failure
        progress.on_end(cell, failure)

    in_child = partial(_in_child, folder=folder, progress=progress, where=where or {})
    _in_parallel(portable, threads, children, start or _spawn, in_child, ended)
    for cell in missing:
        # Its data, model or method exist in this process only.
        if cell.experiment.why_not_portable is not None:
            ended(cell, _in_this_process(cell, folder, progress))
    return failures


def finished(folder: Path) -> bool:
    """Return True if a folder holds a finished run.

    Raises:
        RunError: It holds a damaged one.
    """
    if not (folder / DATABASE).exists():
        return False
    run = Run(folder)
    try:
        return run.status == "finished"
    finally:
        run.store.close()


def _in_this_process(cell: Cell, folder: Path, progress: Progress) -> str | None:
    from equipoise.comparison.run_process import run_cell

    def send(kind: str, round: int = 0) -> None:
        if kind == "round":
            progress.on_round(cell, round)

    try:
        run_cell(cell.experiment, folder / cell.name, send)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _in_parallel(
    cells: Sequence[Cell],
    threads: int,
    children: Sequence[Child],
    start: Callable[[], Child],
    in_child: Callable[[Child, Cell], str | None],
    ended: Callable[[Cell, str | None], None],
) -> None:
    """Run cells in child processes; a thread for each process gives it one cell after another.

    Args:
        cells: The runs.
        threads: The number of processes at a time.
        children: Processes that exist already; others are started when they are needed.
        start: Starts a child process.
        in_child: Runs a cell in a child process; returns the reason of its failure, or None.
        ended: Receives every cell with that reason.
    """
    waiting = deque(cells)
    idle = deque(children)
    started = list(children)
    stop = threading.Event()

    def work() -> None:
        child = idle.popleft() if idle else None
        while waiting and not stop.is_set():
            try:
                cell = waiting.popleft()
            except IndexError:  # another thread took the last one
                break
            if child is None or child.poll() is not None:
                child = start()
                started.append(child)
            failure = in_child(child, cell)
            if not stop.is_set():
                ended(cell, failure)

    with ThreadPoolExecutor(max(1, threads)) as pool:
        futures = [pool.submit(work) for _ in range(threads)]
        try:
            for future in futures:
                future.result()
        finally:
            stop.set()
            for process in started:
                _end(process)


def _spawn() -> Child:
    # One thread each: as many processes as cores fill the machine, and results must not depend on
    # the number of threads.
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    # -P: a file in the current folder, a stranger's perhaps, must not be imported as a library.
    command = [sys.executable, "-P", "-m", "equipoise.comparison.run_process"]
    # A session of its own: Ctrl-C reaches this process only, which then ends its children.
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def _fork(count: int) -> list[ForkedChild]:
    """Fork processes that execute jobs; they need not import torch again."""
    from equipoise.comparison import run_process  # once, here: the children have it

    children: list[ForkedChild] = []
    for _ in range(count):
        jobs, to_jobs = os.pipe()
        from_events, events = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            foreign = [to_jobs, from_events]
            for sibling in children:
                foreign += [sibling.stdin.fileno(), sibling.stdout.fileno()]
            _become_child(jobs, events, foreign, run_process.main)
        os.close(jobs)
        os.close(events)
        children.append(ForkedChild(pid, os.fdopen(to_jobs, "wb"), os.fdopen(from_events, "rb")))
    return children


def _become_child(jobs: int, events: int, foreign: Sequence[int], main: Callable[[], None]) -> None:
    """Continue a fork as the process of `_spawn` does; never return."""
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Only the parent may hold these, since the end of its input ends a child.
        for descriptor in foreign:
            os.close(descriptor)
        os.dup2(jobs, 0)
        os.dup2(events, 1)
        sys.stdin = os.fdopen(0)
        sys.stdout = os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w")
        main()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _in_child(
    child: Child,
    cell: Cell,
    folder: Path,
    progress: Progress,
    where: Mapping[str, Any],
) -> str | None:
    """Run a cell in a child process; return the reason of its failure, or None."""
    log = folder / cell.name / "log.txt"
    limit = cell.experiment.participation.deadline
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
        return (
            f"no sign of life for {limit:g} seconds (participation.deadline), so it was ended; the "
            "comparison, run again, continues it"
        )
    if last.get("event") == "done":
        log.unlink(missing_ok=True)
        return None
    if last.get("event") == "failed":
        return f"{last['reason']} (details in {log})"
    code = child.wait(LAST_SECONDS)
    kind = "signal" if code < 0 else "status"
    return f"its process ended with {kind} {abs(code)} (details in {log})"


def _send(child: Child, cell: Cell, folder: Path, log: Path, where: Mapping[str, Any]) -> None:
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


def _events(child: Child, limit: float) -> Iterator[dict[str, Any]]:
    """Yield the events of a job, until its last one or the end of the process.

    Raises:
        TimeoutError: The process was silent for longer than the limit.
    """
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


def _end(child: Child) -> None:
    """End a child: closing its input asks it to, and one that does not is killed."""
    assert child.stdin is not None
    with suppress(OSError):
        child.stdin.close()
    try:
        child.wait(LAST_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(LAST_SECONDS)

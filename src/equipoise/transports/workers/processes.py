"""Worker processes before they have a job: forked where this process is known to be plain, started afresh elsewhere."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# For glibc: keep the memory of activations and gradients between steps. By default blocks of 128 KiB and more go back to the system when
# freed, and every step pays for fresh pages.
HEAP = {"MALLOC_MMAP_THRESHOLD_": 2**25, "MALLOC_TRIM_THRESHOLD_": 2**27, "MALLOC_TOP_PAD_": 2**24}
_HEAP_NUMBERS = {
    "MALLOC_MMAP_THRESHOLD_": -3,
    "MALLOC_TRIM_THRESHOLD_": -1,
    "MALLOC_TOP_PAD_": -2,
}  # the same in mallopt(3)
# Each process computes on one thread, as promised; libraries that look at the environment learn it there.
SINGLE = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# Ctrl-C is the parent's business, also while a worker still imports.
_WORKER = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from equipoise.transports.workers.worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
_plain = False


def allow_fork() -> None:
    """Said by our own command line, before it imports anything heavy: no one else's threads are here, so workers may be forked.

    A forked worker has torch already, which a fresh one has to import. Elsewhere (a notebook, say) a fork could copy a lock that a
    thread holds.
    """
    global _plain
    _plain = hasattr(os, "fork")
    os.environ.update(SINGLE)


def keep_heap() -> None:
    """The settings above for a process that runs already."""
    with suppress(AttributeError, OSError):  # no glibc
        for name, value in HEAP.items():
            ctypes.CDLL(None).mallopt(_HEAP_NUMBERS[name], value)


class Forked:
    """A forked process, with what we use of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    def kill(self) -> None:
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.code is None:
            try:
                found, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # someone else waited for it
                found, status = self.pid, 0
            if found:
                self.code = os.waitstatus_to_exitcode(status)
            elif deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked worker", timeout or 0.0)
            else:
                time.sleep(0.005)
        return self.code


@dataclass
class Process:
    """A worker process and the socket to it."""

    process: subprocess.Popen[bytes] | Forked
    connection: socket.socket
    ends: Any = None  # sender and receiver on this connection, which outlive a run


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else ""
    return f"killed by signal {-code}" + (f" ({name})" if name else "")


def out_of_memory_kills(
    proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> dict[str, int]:
    """How many processes the kernel has ended for want of memory, by the files that count them here: of our control group, and of the machine."""
    files = [proc / "vmstat"]
    with suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                files.append(groups / group.lstrip("/") / "memory.events")
            elif "memory" in controllers.split(","):  # of the first version
                files.append(groups / "memory" / group.lstrip("/") / "memory.oom_control")
    found = {}
    for file in files:
        with suppress(OSError, ValueError):
            counts = dict(
                line.split()[:2] for line in file.read_text().splitlines() if line.strip()
            )
            found[str(file)] = int(counts["oom_kill"]) if "oom_kill" in counts else 0
    return found


class Pool:
    """Processes around one memory for the data."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.data: int | None = None
        self.jobs = 0  # that its processes were told
        self.started: list[Process] = []
        self._selector: selectors.BaseSelector | None = None
        self.begin()

    def begin(self) -> None:
        """Start what is missing: all of them at first, and again after a run that ended in the middle of an exchange."""
        if self.data is None:
            self.data = _anonymous_memory()
            self._selector = selectors.DefaultSelector()
        while len(self.started) < self.count:
            self.start()

    def start(self) -> Process:
        ours, theirs = socket.socketpair()
        with theirs:
            started = (
                self._fork(ours, theirs)
                if _plain and threading.active_count() == 1
                else self._spawn(theirs)
            )
        one = Process(started, ours)
        self.started.append(one)
        self._open_selector.register(ours, selectors.EVENT_READ, one)
        return one

    @property
    def _open_selector(self) -> selectors.BaseSelector:
        assert self._selector is not None, "the pool is closed"
        return self._selector

    def wait(self, seconds: float) -> list[Process]:
        """Wait, for so long at most, and return the processes that have said something or have ended."""
        return [key.data for key, _ in self._open_selector.select(seconds)]

    def end(self, one: Process, seconds: float) -> int | None:
        """Wait so long for a process to end by itself, then end it: how it ended, None if by us."""
        try:
            code: int | None = one.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()
            code = None
        self._open_selector.unregister(one.connection)
        one.connection.close()  # not before: a worker whose parent is gone ends at once, with another exit code
        self.started.remove(one)
        return code

    def close(self) -> None:
        for one in self.started:
            one.connection.close()
            one.process.kill()
        for one in self.started:
            with suppress(subprocess.TimeoutExpired):
                one.process.wait(timeout=10)
        self.started = []
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        if self.data is not None:
            os.close(self.data)
            self.data = None

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        heap = {name: str(value) for name, value in HEAP.items()}
        environment = (
            heap
            | os.environ
            | SINGLE
            | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        )
        assert self.data is not None
        # -P: what lies in the current folder, a stranger's perhaps, is not imported in place of a library.
        command = [sys.executable, "-P", "-c", _WORKER, str(theirs.fileno()), str(self.data)]
        return subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(), self.data),
            env=environment,
            stdin=subprocess.DEVNULL,
        )

    def _fork(self, ours: socket.socket, theirs: socket.socket) -> Forked:
        from equipoise.transports.workers.worker import main  # once, here: the children have it

        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return Forked(pid)
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            # The sockets to this and the other workers are the parent's alone: their end tells a worker that the parent is gone.
            for connection in (ours, *(other.connection for other in self.started)):
                connection.close()
            self._open_selector.close()
            keep_heap()
            assert self.data is not None
            main(theirs.detach(), self.data)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


def _anonymous_memory() -> int:
    """A descriptor of memory that belongs to no file: it goes when the last process does."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("equipoise")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

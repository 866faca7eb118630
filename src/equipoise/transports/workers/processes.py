"""Worker processes before they have a job: forked from our command line, else started anew."""

from __future__ import annotations

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

from equipoise.runtime.environment import HEAP, SINGLE_THREAD, keep_heap

# The parent handles Ctrl-C, also while a worker still imports.
_WORKER = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from equipoise.transports.workers.worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
# The threads of this process when forks were allowed; None if they are not.
_known_threads: frozenset[str] | None = None


def allow_fork(allowed: bool = True) -> None:
    """Allow child processes to be forked from this process.

    Our command line calls this before it imports anything heavy, when there are no threads. A
    forked child has torch already, which a new process has to import. In other processes, such
    as a notebook, a fork could copy a lock that a thread holds.

    Args:
        allowed: False takes the permission back.
    """
    global _known_threads
    _known_threads = _threads() if allowed and hasattr(os, "fork") else None
    if allowed:
        os.environ.update(SINGLE_THREAD)


def may_fork() -> bool:
    """Return True if a fork of this process is safe now: it was allowed and no thread was added.

    A thread that has computed frees the buffers of its matrix products after its Python code has
    ended. A child that is forked meanwhile waits forever for the lock of MKL's memory. So the
    threads of the operating system count, not only those of Python.

    If torch computes with several threads, a forked child would wait forever for those of its
    parent.
    """
    if _known_threads is None or threading.active_count() > 1:
        return False
    return _threads() <= _known_threads and not _torch_has_threads()


def _threads() -> frozenset[str]:
    """Return the threads of this process, as far as the operating system tells."""
    try:
        return frozenset(os.listdir("/proc/self/task"))
    except OSError:  # no Linux
        return frozenset(str(thread.native_id) for thread in threading.enumerate())


def _torch_has_threads() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.get_num_threads() > 1


class Forked:
    """A forked process with the part of `subprocess.Popen` that is used here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.code

    def kill(self) -> None:
        """Kill the process."""
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end; return its exit code.

        Raises:
            TimeoutExpired: If it has not ended in time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.code is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # another part of this process waited for it
                ended, status = self.pid, 0
            if ended:
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
    """Return how a process with an exit code ended, as text."""
    if code >= 0:
        return f"exit code {code}"
    if -code in set(signal.Signals):
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    return f"killed by signal {-code}"


def out_of_memory_kills(
    proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> dict[str, int]:
    """Return how many processes the kernel has ended because memory ran out.

    Args:
        proc: The folder of the kernel's files on processes.
        groups: The folder of control groups.

    Returns:
        The number by the file that counts: of our control group, and of the machine.
    """
    files = [proc / "vmstat"]
    with suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                files.append(groups / group.lstrip("/") / "memory.events")
            elif "memory" in controllers.split(","):  # of the first version
                files.append(groups / "memory" / group.lstrip("/") / "memory.oom_control")
    kills = {}
    for file in files:
        with suppress(OSError, ValueError):
            lines = [line for line in file.read_text().splitlines() if line.strip()]
            counts = dict(line.split()[:2] for line in lines)
            kills[str(file)] = int(counts.get("oom_kill", 0))
    return kills


class Pool:
    """Worker processes that share one memory for the data.

    Attributes:
        count: The number of processes.
        data: The descriptor of the shared memory; None after `close`.
        jobs: The number of jobs that were sent.
        started: The processes.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.data: int | None = None
        self.jobs = 0
        self.started: list[Process] = []
        self._selector: selectors.BaseSelector | None = None
        self.begin()

    def begin(self) -> None:
        """Start all processes that are missing, for example after a run that was interrupted."""
        if self.data is None:
            self.data = _anonymous_memory()
            self._selector = selectors.DefaultSelector()
        while len(self.started) < self.count:
            self.start()

    def start(self) -> Process:
        """Start one process."""
        ours, theirs = socket.socketpair()
        child: subprocess.Popen[bytes] | Forked
        with theirs:
            child = self._fork(ours, theirs) if may_fork() else self._spawn(theirs)
        process = Process(child, ours)
        self.started.append(process)
        self._open_selector.register(ours, selectors.EVENT_READ, process)
        return process

    @property
    def _open_selector(self) -> selectors.BaseSelector:
        assert self._selector is not None, "the pool is closed"
        return self._selector

    def wait(self, seconds: float) -> list[Process]:
        """Return the processes that have sent something or have ended, after a wait if none has."""
        return [key.data for key, _ in self._open_selector.select(seconds)]

    def end(self, worker: Process, seconds: float) -> int | None:
        """Wait for a process to end by itself, then kill it.

        Args:
            worker: The process.
            seconds: The time to wait.

        Returns:
            Its exit code; None if it was killed.
        """
        try:
            code: int | None = worker.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
            code = None
        self._open_selector.unregister(worker.connection)
        # Not earlier: a worker that has lost its parent ends at once, with another exit code.
        worker.connection.close()
        self.started.remove(worker)
        return code

    def close(self) -> None:
        """Kill all processes and release the shared memory."""
        for worker in self.started:
            worker.connection.close()
            worker.process.kill()
        for worker in self.started:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(timeout=10)
        self.started = []
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        if self.data is not None:
            os.close(self.data)
            self.data = None

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        environment = (
            HEAP
            | os.environ
            | SINGLE_THREAD
            | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        )
        assert self.data is not None
        # -P: files in the current folder, perhaps a stranger's, must not be imported in place of
        # a library.
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
            # Only the parent may hold the sockets to workers, since their end signals a worker that
            # the parent is gone.
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
    """Return a descriptor of memory without a file; it is freed with its last process."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("equipoise")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

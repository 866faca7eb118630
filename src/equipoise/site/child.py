"""The child process of a site, in which data are prepared and steps are performed."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.records import Record, pack, unpack
from equipoise.runtime import wire
from equipoise.runtime.environment import HEAP, SINGLE_THREAD
from equipoise.runtime.messages import Job, Request
from equipoise.site.log import Log
from equipoise.site.messages import LATE, RAISED, REFUSED
from equipoise.site.runtime import Result, SiteRuntime
from equipoise.site.settings import SiteSettings

LOG = "child.log"  # what the child prints, in the folder of the site
START_DEADLINE = 600.0  # seconds in which a child imports torch and prepares the data
GRACE = 5.0  # seconds beyond a step's deadline in which the child itself reports it
TRIES = 2  # children that may die with one request
_FRAME = struct.Struct("<Q")
_LONGEST_WAIT = 1e6  # seconds of one call of a socket, which refuses timeouts of centuries
# The input of the child ends with the process of the site, and then the child ends at once, also
# in the middle of a step.
_PROGRAM = (
    "import os, signal, sys, threading; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start(); "
    "from equipoise.site.child import main; main(int(sys.argv[1]))"
)


class _Ended(Exception):
    """The child has died."""


class _Interrupted(Exception):
    """The child was killed, since the site has something else to do."""


class _TooLate(Exception):
    """The child did not answer in time."""


@dataclass(frozen=True)
class _Opened:
    """The run that a child has open, so that its successor continues it.

    Attributes:
        job: The message that opened the run.
        folder: The folder of the run.
        fingerprint: The digest of the data with which it was opened.
    """

    job: Job
    folder: Path
    fingerprint: str

    def message(self) -> Record:
        """Return the message that opens the run in a child."""
        return _opening(self.job, self.folder)


class ChildRuntime:
    """Executes the requests of a site in a child process, which is replaced when it dies.

    A step may hang, run out of memory or crash without ending the site itself.

    Args:
        name: The name of the site.
        settings: The settings of the site.
    """

    def __init__(self, name: str, settings: SiteSettings) -> None:
        self.name = name
        self.settings = settings
        self._child: _Child | None = None
        self._opened: _Opened | None = None

    @property
    def pid(self) -> int | None:
        """The identifier of the child process; None if there is none at present."""
        return None if self._child is None else self._child.process.pid

    def describe(self, job: Job) -> Result:
        """Return the roster of the site; see `Runtime.describe`."""
        return self._ask(Record(kind="describe", job=job.text()), START_DEADLINE)

    def open(self, job: Job, folder: Path) -> Result:
        """Begin or continue a run; see `Runtime.open`."""
        result = self._ask(_opening(job, folder), START_DEADLINE)
        self._opened = None
        if not result.code:
            self._opened = _Opened(job, folder, result.entries["fingerprint"])
        return result

    def perform(self, request: Request, deadline: float) -> Result:
        """Perform a step; see `Runtime.perform`."""
        message = Record._trusted(
            {
                "kind": "perform",
                "request": wire.to_wire(request),
                "down": request.down,
                "deadline": deadline,
            }
        )
        return self._ask(message, deadline + GRACE)

    def interrupt(self) -> None:
        """Kill the child with what it is doing; see `Runtime.interrupt`."""
        child = self._child
        if child is not None:
            child.interrupt()

    def close(self) -> None:
        """End the child."""
        self._opened = None
        self._end()

    def _ask(self, message: Record, seconds: float) -> Result:
        """Send a message to the child; one that dies is replaced, and receives it once more."""
        for _ in range(TRIES):
            try:
                return _result_in(self._started().exchange(message, seconds))
            except _TooLate:
                self._end()
                return Result(LATE)
            except _Interrupted:
                self._end()
                return Result(f"{REFUSED}ended")
            except _Ended:
                self._end()
        return Result(RAISED, text=f"the child process ended {TRIES} times; see {LOG}")

    def _started(self) -> _Child:
        """Return a child in which the run is open."""
        if self._child is None:
            child = self._child = _Child(self.settings.folder / LOG)
            settings = Record(kind="settings", name=self.name, settings=self.settings.plain())
            child.exchange(settings, START_DEADLINE)
            if self._opened is not None:
                self._open_again(child, self._opened)
        return self._child

    def _open_again(self, child: _Child, opened: _Opened) -> None:
        """Open the run in a child that replaces one that died.

        Data that have changed since must not be used unnoticed: the run stays closed then, and the
        server learns of the change when it opens the run.
        """
        result = _result_in(child.exchange(opened.message(), START_DEADLINE))
        if result.code or result.entries["fingerprint"] != opened.fingerprint:
            self._opened = None
            child.exchange(Record(kind="close"), START_DEADLINE)

    def _end(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None


def _opening(job: Job, folder: Path) -> Record:
    return Record(kind="open", job=job.text(), folder=str(folder))


def _result_in(answer: Any) -> Result:
    return Result(answer["code"], answer["entries"], answer["text"])


class _Child:
    """A child process and the socket to it."""

    def __init__(self, log: Path) -> None:
        self.connection, theirs = socket.socketpair()
        self._is_interrupted = False
        environment = HEAP | os.environ | SINGLE_THREAD
        environment |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        # -P: files in the current folder, perhaps a stranger's, must not be imported in place of
        # a library.
        command = [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        # The child does not write to the file itself: a step could fill the disk with its output.
        threading.Thread(
            target=Log(log).copy_from, args=(self.process.stdout,), daemon=True
        ).start()

    def exchange(self, message: Record, seconds: float) -> Any:
        """Send a message and return the answer.

        Raises:
            _Ended: If the child died.
            _Interrupted: If it was interrupted.
            _TooLate: If it did not answer in time.
        """
        until = time.monotonic() + seconds
        try:
            send(self.connection, message, until)
            return receive(self.connection, until)
        except TimeoutError:
            raise _TooLate from None
        except (OSError, EOFError, ValueError):
            raise (_Interrupted if self._is_interrupted else _Ended) from None

    def interrupt(self) -> None:
        """Kill the child, whatever it is doing."""
        self._is_interrupted = True
        self.process.kill()

    def close(self) -> None:
        """Kill the child."""
        self.connection.close()
        self.process.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)


def send(connection: socket.socket, message: Record, until: float | None = None) -> None:
    """Send a record over a socket.

    Args:
        connection: The socket.
        message: The record.
        until: The time by which it must be sent; None to wait as long as it takes.

    Raises:
        TimeoutError: If the other side did not take it in time.
    """
    parts = pack(message)
    for part in (_FRAME.pack(sum(map(len, parts))), *parts):
        _limit_time(connection, until)
        connection.sendall(part)


def receive(connection: socket.socket, until: float | None = None) -> Any:
    """Return the next record from a socket.

    Args:
        connection: The socket.
        until: The time by which it must be whole; None to wait as long as it takes.

    Raises:
        EOFError: If the other side closed the connection.
        TimeoutError: If the other side did not send it in time.
    """
    (total,) = _FRAME.unpack(_exactly(connection, _FRAME.size, until))
    return unpack(memoryview(_exactly(connection, total, until)))


def _limit_time(connection: socket.socket, until: float | None) -> None:
    """Limit the time of the next call of a socket.

    Raises:
        TimeoutError: If the time is over.
    """
    if until is None:
        connection.settimeout(None)
        return
    remaining = until - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    connection.settimeout(min(remaining, _LONGEST_WAIT))


def _exactly(connection: socket.socket, count: int, until: float | None) -> bytearray:
    data = bytearray(count)
    view = memoryview(data)
    received = 0
    while received < count:
        _limit_time(connection, until)
        size = connection.recv_into(view[received:])
        if not size:
            raise EOFError("the other side closed the connection")
        received += size
    return data


def main(descriptor: int) -> None:
    """Execute the requests of a site until the site is gone.

    Args:
        descriptor: The descriptor of the socket to the site.
    """
    connection = socket.socket(fileno=descriptor)
    runtime: SiteRuntime | None = None
    while True:
        try:
            message = [receive(connection)]
        except (EOFError, OSError):
            return
        if runtime is None:
            runtime = _begun(message.pop())
            result = Result()
        else:
            # The caller's reference would keep the tensors of a message until the next one is here.
            result = _executed(runtime, message.pop())
        send(connection, _answer(result))
        del result


def _begun(message: Any) -> SiteRuntime:
    """Return the runtime of a site by its settings, which are the first message."""
    settings = SiteSettings.of(message["settings"])
    _limit_memory(settings.memory_limit)
    return SiteRuntime(message["name"], settings)


def _answer(result: Result) -> Record:
    values = {"code": result.code, "entries": result.entries, "text": result.text}
    return Record._trusted(values)


def _limit_memory(limit: int | None) -> None:
    """Limit the memory that this process allocates.

    `RLIMIT_AS` would also count libraries and reserved addresses, of which torch has gigabytes.
    An allocation beyond the limit raises, so that the step fails and the process continues.
    """
    if limit is not None:
        import resource  # not on every system; the settings refuse a limit elsewhere

        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _executed(runtime: SiteRuntime, message: Any) -> Result:
    if message["kind"] == "perform":
        request = wire.request_of(message["request"], message["down"])
        return runtime.perform(request, message["deadline"])
    if message["kind"] == "close":
        runtime.close()
        return Result()
    job = Job.of(message["job"])
    if message["kind"] == "describe":
        return runtime.describe(job)
    return runtime.open(job, Path(message["folder"]))

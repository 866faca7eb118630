"""A site: everything that a server, or a stranger, can do to it is one function of bytes."""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from equipoise.experiment import Experiment
from equipoise.records import Record
from equipoise.runtime.messages import Job, Request
from equipoise.site.checks import (
    Refused,
    check_envelope,
    check_request,
    own_experiment,
    read_job,
    read_request,
)
from equipoise.site.child import ChildRuntime
from equipoise.site.messages import DISK_FULL, RAISED, REFUSED, packed, unpacked
from equipoise.site.runtime import Result, Runtime
from equipoise.site.settings import SiteSettings
from equipoise.validation.names import checked_name

LOG = "site.log"
LOG_SIZE = 2**24  # bytes after which a new log begins; one old log is kept
LOG_TEXT = 2**14  # characters of one reason, which may repeat a message of a stranger
RUN = "run.json"  # identifier of the run and digest of its experiment, in the run's folder


@dataclass
class _OpenRun:
    """The run that a site has open.

    Attributes:
        job: The message that opened it.
        digest: The digest of its experiment.
        experiment: The experiment as the site executes it.
        seen: The last round, attempt and exchange that were performed.
    """

    job: Job
    digest: str
    experiment: Experiment
    seen: tuple[int, int, int] = (0, 0, 0)

    def take_note(self, request: Request) -> None:
        """Refuse a request that precedes one that was performed.

        A message that arrives twice must not replace a newer state by an older one. Evaluations,
        whose exchange is 0, follow the exchanges of their round.
        """
        at = (request.round, request.attempt)
        is_same_attempt = at == self.seen[:2]
        is_earlier_exchange = is_same_attempt and 0 < request.exchange < self.seen[2]
        if at < self.seen[:2] or is_earlier_exchange:
            raise Refused("round", f"{(*at, request.exchange)} after {self.seen}")
        exchange = max(request.exchange, self.seen[2]) if is_same_attempt else request.exchange
        self.seen = (*at, exchange)


class Site:
    """A site of a network, which knows no network.

    Args:
        name: The name of the site, which is the name of its client.
        settings: The settings of the site.
        runtime: Makes what performs steps; a child process by default.

    Attributes:
        runtime: What performs steps.

    Example:
        >>> from pathlib import Path
        >>> site = Site("north", SiteSettings(Path("north.csv"), Path("north")))
        >>> unpacked(site.answer(b"hello"))["code"]  # doctest: +SKIP
        'refused:message'
    """

    def __init__(
        self,
        name: str,
        settings: SiteSettings,
        runtime: Callable[[str, SiteSettings], Runtime] = ChildRuntime,
    ) -> None:
        self.name = checked_name(name, "the name of a site")
        self.settings = settings
        self.runtime = runtime(name, settings)
        self._open: _OpenRun | None = None
        self._lock = threading.Lock()  # a network may deliver several messages at once
        self._log = _Log(settings.folder / LOG)

    def answer(self, data: bytes | bytearray) -> bytes:
        """Answer a message.

        Args:
            data: The bytes of a message, from anyone.

        Returns:
            The bytes of an answer: the result, or a code. No text of the site is in it.
        """
        try:
            with self._lock:
                result = self._act(data)
            if not result.code:
                return packed({"code": "", **result.entries})
        except Refused as error:
            result = Result(f"{REFUSED}{error.word}", text=error.text)
        except OSError as error:
            result = Result(DISK_FULL, text=str(error))
        except Exception:
            result = Result(RAISED, text=traceback.format_exc())
        self._log.write(result)
        return packed({"code": result.code})

    def close(self) -> None:
        """End the run and the child process."""
        self._open = None
        self.runtime.close()

    def _act(self, data: bytes | bytearray) -> Result:
        """Check a message and do what it asks."""
        if len(data) > self.settings.limit:
            raise Refused("size", f"{len(data)} bytes")
        try:
            message = unpacked(data)
        except ValueError as error:
            raise Refused("message", str(error)) from None
        kind = check_envelope(message, self.name)
        if kind == "describe":
            return self._describe(message)
        if kind == "open":
            return self._begin(message)
        open_run = self._check_open(message)
        if kind == "close":
            self.close()
            return Result()
        return self._perform(message, open_run)

    def _describe(self, message: Record) -> Result:
        return self.runtime.describe(read_job(message))

    def _begin(self, message: Record) -> Result:
        job = read_job(message)
        digest = str(message["experiment"])
        experiment = own_experiment(job, self.name, self.settings)
        folder = self.settings.folder / job.run
        _check_same_experiment(folder, digest)
        result = self.runtime.open(job, folder)
        if result.code:
            return result
        _write_run(folder, job, digest)
        self._open = _OpenRun(job, digest, experiment)
        return result

    def _check_open(self, message: Record) -> _OpenRun:
        if self._open is None:
            raise Refused("closed")
        if message["run"] != self._open.job.run:
            raise Refused("run", str(message["run"]))
        if message.get("experiment") != self._open.digest:
            raise Refused("experiment", "its digest is another one")
        return self._open

    def _perform(self, message: Record, open_run: _OpenRun) -> Result:
        request = read_request(message)
        check_request(request, self.name, open_run.experiment)
        open_run.take_note(request)
        deadline = message.get("deadline")
        seconds = self.settings.deadline
        if isinstance(deadline, (int, float)) and 0 < deadline < seconds:
            seconds = float(deadline)
        return self.runtime.perform(request, seconds)


def _check_same_experiment(folder: Path, digest: str) -> None:
    """Refuse a run that began here with another experiment."""
    path = folder / RUN
    if not path.exists():
        return
    try:
        begun = json.loads(path.read_bytes())["experiment"]
    except (ValueError, KeyError, TypeError):
        begun = None
    if begun != digest:
        raise Refused("experiment", f"{path} has another digest")


def _write_run(folder: Path, job: Job, digest: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RUN
    if not path.exists():
        path.write_text(json.dumps({"run": job.run, "experiment": digest}))


class _Log:
    """The log of a site: an entry for every message that had no result, with the reason.

    An entry begins with time and code. Further lines of a reason are indented, so that no message
    can imitate an entry.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, result: Result) -> None:
        """Add an entry; a log that cannot be written does not keep the site from answering."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A stranger must not fill the disk with messages that are refused.
            if self.path.exists() and self.path.stat().st_size > LOG_SIZE:
                self.path.replace(self.path.with_suffix(".log.old"))
            with self.path.open("a", encoding="utf-8", errors="replace") as log:
                log.write(f"{now} {result.code} {_log_text(result.text)}".rstrip() + "\n")


def _log_text(text: str) -> str:
    """Return a reason as an entry of the log holds it; the end of a traceback says most."""
    lines = []
    for line in text[-LOG_TEXT:].splitlines():
        lines.append("".join(sign if sign.isprintable() else "?" for sign in line))
    return "\n    ".join(lines)

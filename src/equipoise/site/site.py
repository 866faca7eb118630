"""A site: everything that a server, or a stranger, can do to it is one function of bytes."""

from __future__ import annotations

import json
import secrets
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
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
    read_deadline,
    read_job,
    read_request,
    read_ticket,
)
from equipoise.site.child import ChildRuntime
from equipoise.site.log import Log
from equipoise.site.messages import DISK_FULL, RAISED, REFUSED, mark_of, packed, unpacked
from equipoise.site.runtime import Result, Runtime
from equipoise.site.settings import SiteSettings
from equipoise.validation.names import checked_file_name

LOG = "site.log"
LOG_TEXT = 2**14  # characters of one reason, which may repeat a message of a stranger
RUN = "run.json"  # identifier of the run and digest of its experiment, in the run's folder
TICKETS = 64  # descriptions with which a run can still be opened
_PAUSE = 0.1  # seconds after which a message that is being acted on is interrupted again


@dataclass
class _OpenRun:
    """The run that a site has open.

    Attributes:
        job: The message that opened it.
        ticket: The ticket with which it was opened, which all of its messages carry.
        digest: The digest of its experiment.
        experiment: The experiment as the site executes it.
        result: The result of opening it.
        seen: The last round, attempt and exchange that were performed.
    """

    job: Job
    ticket: str
    digest: str
    experiment: Experiment
    result: Result
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
        self.name = checked_file_name(name, "the name of a site")
        self.settings = settings
        self.runtime = runtime(name, settings)
        self._open: _OpenRun | None = None
        # A network may deliver several messages at once; the runtime acts on one at a time.
        self._lock = threading.Lock()
        # Run and ticket of descriptions that were not used yet.
        self._tickets: deque[tuple[str, str]] = deque(maxlen=TICKETS)
        # The last description and the digest of its experiment.
        self._description: tuple[str, Result] | None = None
        self._log = Log(settings.folder / LOG)

    def answer(self, data: bytes | bytearray) -> bytes:
        """Answer a message.

        Args:
            data: The bytes of a message, from anyone.

        Returns:
            The bytes of an answer: the result, or a code. No text of the site is in it.
        """
        try:
            result = self._act(data)
            if not result.code:
                return packed({"code": "", **result.entries})
        except Refused as error:
            result = Result(f"{REFUSED}{error.word}", text=error.text)
        except OSError as error:
            result = Result(DISK_FULL, text=str(error))
        except Exception:
            result = Result(RAISED, text=traceback.format_exc())
        self._log.append(_log_entry(result))
        return packed({"code": result.code})

    def close(self) -> None:
        """End the run, the step that is being performed, and the child process."""
        with suppress(Refused), self._turn(interrupting=True):
            self._release()
            return
        self._release()  # an executor that cannot be interrupted has taken too long

    def _release(self) -> None:
        self._open = None
        self.runtime.close()

    @contextmanager
    def _turn(self, interrupting: bool = False) -> Iterator[None]:
        """Wait for the message that is being acted on.

        Args:
            interrupting: Interrupt that message.

        Raises:
            Refused: If it takes too long.
        """
        until = time.monotonic() + self.settings.wait
        pause = min(_PAUSE, self.settings.wait) if interrupting else self.settings.wait
        while not self._lock.acquire(timeout=pause):
            if time.monotonic() >= until:
                raise Refused("busy")
            if interrupting:
                self.runtime.interrupt()
        try:
            yield
        finally:
            self._lock.release()

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
            return self._end(open_run)
        return self._perform(message, open_run)

    def _describe(self, message: Record) -> Result:
        """Return the description of the data, with a ticket that opens the run once."""
        job = read_job(message)
        digest = str(message["experiment"])
        result = self._known_description(digest)
        if result is None:
            with self._turn():
                result = self.runtime.describe(job)
                if not result.code:
                    self._description = (digest, result)
        if result.code:
            return result
        ticket = secrets.token_hex(16)
        self._tickets.append((job.run, ticket))
        return replace(result, entries=Record({**result.entries, "ticket": ticket}))

    def _known_description(self, digest: str) -> Result | None:
        """Return the last description, if it fits and a step is being performed.

        A server that was started anew can so open its run, although the site still performs the
        last step that this server requested.
        """
        if self._description is None or not self._lock.locked():
            return None
        known, result = self._description
        return result if known == digest else None

    def _begin(self, message: Record) -> Result:
        job = read_job(message)
        ticket = read_ticket(message)
        open_run = self._open
        if open_run is not None and (open_run.job.run, open_run.ticket) == (job.run, ticket):
            return open_run.result  # the same message once more, which changes nothing
        digest = str(message["experiment"])
        experiment = own_experiment(job, self.name, self.settings)
        folder = self.settings.folder / job.run
        _check_same_experiment(folder, digest)
        self._use_ticket(job, ticket)
        with self._turn(interrupting=True):
            self._open = None
            result = self.runtime.open(job, folder)
            if result.code:
                return result
            _write_run(folder, job, digest)
            self._open = _OpenRun(job, ticket, digest, experiment, result)
        return result

    def _use_ticket(self, job: Job, ticket: str) -> None:
        """Refuse a ticket that is unknown or was used."""
        try:
            self._tickets.remove((job.run, ticket))
        except ValueError:
            raise Refused("opening", "no ticket that is still valid") from None

    def _check_open(self, message: Record) -> _OpenRun:
        open_run = self._open
        if open_run is None:
            raise Refused("closed")
        if message["run"] != open_run.job.run:
            raise Refused("run", str(message["run"]))
        if message.get("experiment") != open_run.digest:
            raise Refused("experiment", "its digest is another one")
        if read_ticket(message) != open_run.ticket:
            raise Refused("opening", "the ticket of another opening")
        return open_run

    def _end(self, open_run: _OpenRun) -> Result:
        with self._turn(interrupting=True):
            self._check_still_open(open_run)
            self._release()
        return Result()

    def _check_still_open(self, open_run: _OpenRun) -> None:
        """Refuse a message whose run was closed, or opened anew, while it waited."""
        if self._open is not open_run:
            raise Refused("ended")

    def _perform(self, message: Record, open_run: _OpenRun) -> Result:
        request = read_request(message, self.name)
        check_request(request, open_run.experiment)
        deadline = read_deadline(message)
        seconds = self.settings.deadline
        if deadline is not None:
            seconds = min(seconds, deadline)
        with self._turn():
            self._check_still_open(open_run)
            open_run.take_note(request)
            result = self.runtime.perform(request, seconds)
        if result.code:
            return result
        entries = Record._trusted({**result.entries, "answers": mark_of(request)})
        return replace(result, entries=entries)


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


def _log_entry(result: Result) -> bytes:
    """Return an entry of the log: time, code, and why a message had no result.

    Further lines of a reason are indented, so that no message can imitate an entry.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = f"{now} {result.code} {_log_text(result.text)}".rstrip() + "\n"
    return entry.encode(errors="replace")


def _log_text(text: str) -> str:
    """Return a reason as an entry of the log holds it; the end of a traceback says most."""
    lines = []
    for line in text[-LOG_TEXT:].splitlines():
        lines.append("".join(sign if sign.isprintable() else "?" for sign in line))
    return "\n    ".join(lines)

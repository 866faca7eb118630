"""Transport to sites that hold their data themselves, by messages of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from equipoise.data.roster import Roster
from equipoise.experiment import ConfigurationError
from equipoise.records import Up
from equipoise.runtime.messages import Job, Reply, Request
from equipoise.site.messages import (
    CODES,
    REFUSED,
    Bodies,
    Kind,
    Message,
    explained,
    mark_of,
    message,
    perform_message,
    unpacked,
)
from equipoise.site.runtime import reply_in, roster_in
from equipoise.site.settings import LIMIT
from equipoise.transports.base import Interrupted, Monitor, put_to_file, timed_out_reply
from equipoise.validation.names import checked_file_name

T = TypeVar("T")
POLL = 0.2  # seconds between two looks at whether the user requested a stop
AWAY = "away"  # the failure of a client whose site cannot be reached
_CLOSED = f"{REFUSED}closed"  # the code of a site that was started anew
_LONGEST_TICKET = 64  # characters


class Answering(Protocol):
    """Something that answers the messages to a site, such as the site itself."""

    def answer(self, data: bytes) -> bytes:
        """Answer a message.

        Raises:
            ConnectionError: If the site cannot be reached.
        """
        ...


@runtime_checkable
class Connection(Protocol):
    """A connection to a site elsewhere."""

    @property
    def is_reachable(self) -> bool:
        """False for a site that is known to be away."""
        ...

    def call(self, message: Message, seconds: float | None) -> bytes | memoryview:
        """Send a message and return the answer.

        Args:
            message: The message.
            seconds: The time that the site has for it; None for the limit of the connection.

        Raises:
            ConnectionError: If the site cannot be reached.
            TimeoutError: If it did not answer in time.
        """
        ...


class Direct:
    """The connection to a site in this process, which bounds the time of a step itself."""

    is_reachable = True

    def __init__(self, site: Answering) -> None:
        self.site = site

    def call(self, message: Message, seconds: float | None) -> bytes:
        """Return the answer of the site; see `Connection.call`."""
        return self.site.answer(message.joined())


class SiteUnreachable(ConfigurationError):
    """A site is away at the beginning of a run."""


class Apart:
    """Sites that have their own data, states and settings.

    Args:
        sites: The sites, or connections to them, by name in the order of the clients.
        parallel: Have all sites work at the same time, as on a network; each must compute in a
                process of its own. Otherwise they work one after another.

    Raises:
        ValueError: If the name of a site is not safe as the name of a file.

    Attributes:
        away: Sites that are treated as if they could not be reached.
        newest: The round of the newest state of each site when the run was opened there.
    """

    keeps: Literal["server", "client"] = "client"

    def __init__(self, sites: Mapping[str, Answering | Connection], parallel: bool = False) -> None:
        for name in sites:
            checked_file_name(name, "the site")
        self.sites = dict(sites)
        self.parallel = parallel
        self.away: set[str] = set()
        self.newest: dict[str, int] = {}
        self._job: Job | None = None
        self._roster: Roster | None = None
        self._tickets: dict[str, str] = {}  # by site, of descriptions that have opened no run yet
        self._opened: dict[str, str] = {}  # the ticket with which the run is open at a site

    @property
    def lanes(self) -> int:
        """The number of sites that work at a time."""
        return len(self.sites) if self.parallel else 1

    def present(self) -> Sequence[str]:
        """Return the sites that can be reached."""
        return [name for name in self.sites if self._is_present(name)]

    def _is_present(self, name: str) -> bool:
        return name not in self.away and _connection(self.sites[name]).is_reachable

    def open(self, job: Job, files: Path, monitor: Monitor, known: Roster | None = None) -> Roster:
        """Let every site describe its data, then open the run there.

        Nothing is written before all descriptions fit together.

        Args:
            job: The message that opens the sites.
            files: The run's folder of files.
            monitor: Passes progress on.
            known: The roster of a run that is resumed; sites that are away are taken from it.

        Returns:
            The roster of all sites.

        Raises:
            ConfigurationError: If a site refuses, is away without being known, or describes
                another task than the others.
        """
        self.files = files
        self.monitor = monitor
        names = list(self.sites)
        rosters = self._of_each(names, lambda name: self._described(name, job, known))
        try:
            joined = Roster.joined(rosters)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        self._job = job
        self._roster = joined
        self._of_each(self.present(), lambda name: self._open_now(name, known is None))
        data = job.experiment.get("data", {})
        return replace(joined, name=str(data.get("name", "")))

    def _open_now(self, name: str, must_answer: bool) -> None:
        """Open the run at a site that described its data; one that left may be opened later."""
        try:
            reason = self._open_site(name)
        except ConnectionError:
            reason = "it can no longer be reached" if must_answer else None
        if reason is not None:
            raise ConfigurationError(f"site {name!r} refused the run: {reason}")

    def _open_site(self, name: str) -> str | None:
        """Open the run at a site; return why it cannot be opened, or None.

        A description opens a run once, so that a site which was away describes its data again.
        """
        assert self._job is not None and self._roster is not None
        self._opened.pop(name, None)
        if name not in self._tickets:
            described = self._ask(name, "describe")
            if described["code"]:
                return explained(described["code"])
            self._tickets[name] = _ticket_in(described)
        ticket = self._tickets.pop(name)
        answer = self._ask(name, "open", ticket)
        if answer["code"]:
            return explained(answer["code"])
        if answer.get("fingerprint") != self._roster.fingerprints[name]:
            return "its data have changed since the run began; restore the original data"
        if type(answer.get("newest")) is int:
            self.newest[name] = answer["newest"]
        self._opened[name] = ticket
        return None

    def _described(self, name: str, job: Job, known: Roster | None) -> Roster:
        """Return the roster of one site, which may come from a stranger."""
        try:
            answer = self._sent(name, message("describe", name, job))
        except ConnectionError:
            if known is not None and name in known.ids:
                return known.only(name)
            raise SiteUnreachable(
                f"site {name!r} cannot be reached; a run begins with all of its sites"
            ) from None
        if answer["code"]:
            raise _refusal(name, answer["code"])
        self._tickets[name] = _ticket_in(answer)
        try:
            roster = roster_in(answer)
            if roster.ids != (name,):
                raise ValueError(f"it describes the clients {roster.ids!r:.80}")
            return replace(roster.checked(), name="")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"site {name!r} described its data in a form that is not understood: {error}"
            ) from None

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        """Have sites perform requests; see `Transport.exchange`."""
        bodies = Bodies()
        replies: dict[int, Reply] = {}

        def perform(position: int) -> Reply:
            return self._performed(requests[position], deadline, bodies)

        for position, reply in self._performed_by_sites(requests, perform):
            replies[position] = reply
            step = requests[position].step
            self.monitor.on_clients(step, len(replies), len(requests))
        return [replies[position] for position in range(len(requests))]

    def _performed_by_sites(
        self, requests: Sequence[Request], perform: Callable[[int], Reply]
    ) -> Iterator[tuple[int, Reply]]:
        """Yield the replies with their positions as they arrive."""
        if not self.parallel:
            for position in range(len(requests)):
                if self.monitor.interrupted():
                    raise Interrupted
                yield position, perform(position)
            return
        by_site: dict[str, list[int]] = {}
        for position, request in enumerate(requests):
            by_site.setdefault(request.client, []).append(position)
        yield from self._in_threads(list(by_site.values()), perform)

    def _in_threads(
        self, queues: Sequence[Sequence[int]], perform: Callable[[int], T]
    ) -> Iterator[tuple[int, T]]:
        """Perform one queue per thread; yield results with their positions as they arrive."""
        results: SimpleQueue[tuple[int, T | Exception]] = SimpleQueue()

        def work(queue: Sequence[int]) -> None:
            for position in queue:
                try:
                    results.put((position, perform(position)))
                except Exception as error:
                    results.put((position, error))

        missing = sum(map(len, queues))
        with ThreadPoolExecutor(max(1, len(queues))) as threads:
            for queue in queues:
                threads.submit(work, queue)
            while missing:
                if self.monitor.interrupted():
                    raise Interrupted
                try:
                    position, result = results.get(timeout=POLL)
                except Empty:
                    continue
                missing -= 1
                if isinstance(result, Exception):
                    raise result
                yield position, result

    def _of_each(self, names: Sequence[str], function: Callable[[str], T]) -> list[T]:
        """Return the results of a function for sites, in their order."""
        if not self.parallel:
            return [function(name) for name in names]
        queues = [[position] for position in range(len(names))]
        results = dict(self._in_threads(queues, lambda position: function(names[position])))
        return [results[position] for position in range(len(names))]

    def _performed(self, request: Request, deadline: float | None, bodies: Bodies) -> Reply:
        """Have a site perform a request; open the run there first if it is not open."""
        name = request.client
        try:
            answer = None
            if name in self._opened:
                answer = self._send_request(request, deadline, bodies)
            if answer is None or answer["code"] == _CLOSED:
                reason = self._open_site(name)
                if reason is not None:
                    return Reply(name, failure=reason)
                answer = self._send_request(request, deadline, bodies)
        except ConnectionError:
            return Reply(name, failure=AWAY)
        except TimeoutError:
            return timed_out_reply(request, deadline, self.files)
        if answer["code"]:
            return Reply(request.client, failure=explained(answer["code"]))
        if answer.get("answers") != mark_of(request):
            return Reply(request.client, failure="a reply to another request")
        try:
            reply = reply_in(answer)
            _check_form(reply)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return Reply(request.client, failure=f"a reply of another form: {error}")
        # Only a code says why there is no result, and no site names files of the server.
        reply = replace(reply, failure=None, error=None, stop=None, file=None)
        return put_to_file(reply, request, self.files)

    def _send_request(self, request: Request, deadline: float | None, bodies: Bodies) -> Any:
        assert self._job is not None
        ticket = self._opened[request.client]
        data = perform_message(self._job, request, deadline, bodies, ticket)
        return self._sent(request.client, data, deadline)

    def _ask(self, name: str, kind: Kind, ticket: str = "") -> Any:
        assert self._job is not None
        return self._sent(name, message(kind, name, self._job, ticket=ticket))

    def _sent(self, name: str, data: Message, seconds: float | None = None) -> Any:
        """Send a message to a site and return the answer, which may come from a stranger.

        Raises:
            ConnectionError: If the site is away, or its answer is none.
            TimeoutError: If it did not answer in time.
        """
        if not self._is_present(name):
            raise ConnectionError(f"site {name!r} is not connected")
        try:
            received = _connection(self.sites[name]).call(data, seconds)
            if len(received) > LIMIT:
                raise ValueError(f"{len(received)} bytes")
            answer = unpacked(received)
            code = answer["code"]
        except (ValueError, KeyError) as error:
            raise ConnectionError(
                f"site {name!r} sent an answer that is not valid: {error}"
            ) from None
        if not isinstance(code, str) or code not in CODES:
            raise ConnectionError(f"site {name!r} answered with an unknown code")
        return answer

    def close(self, keep: bool = False) -> None:
        """Close the run at all sites that can be reached."""
        if self._job is None:
            return
        for name in self.present():
            if name in self._opened:
                with suppress(ConnectionError, TimeoutError):
                    self._ask(name, "close", self._opened[name])
        self._job = None
        self._opened.clear()
        self._tickets.clear()


def _connection(site: Answering | Connection) -> Connection:
    return site if isinstance(site, Connection) else Direct(site)


def _check_form(reply: Reply) -> None:
    """Refuse a reply whose parts are not what the engine reads; it checks their values itself."""
    if not isinstance(reply.up, Up):
        raise ValueError("expected an upload")
    rows = reply.measured
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ValueError("expected rows of values")


def _ticket_in(answer: Any) -> str:
    """Return the ticket in a description, which may come from a stranger."""
    ticket = answer.get("ticket")
    if not isinstance(ticket, str) or len(ticket) > _LONGEST_TICKET:
        return ""  # with which the site opens no run
    return ticket


def _refusal(name: str, code: str) -> ConfigurationError:
    return ConfigurationError(f"site {name!r} refused the run: {explained(code)}")

"""Transport to sites that hold their data themselves, by messages of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from equipoise.data.roster import Roster
from equipoise.experiment import ConfigurationError
from equipoise.records import Up
from equipoise.runtime.messages import Job, Reply, Request
from equipoise.site.messages import (
    CODES,
    REFUSED,
    Kind,
    explained,
    message,
    perform_message,
    unpacked,
)
from equipoise.site.runtime import reply_in, roster_in
from equipoise.site.settings import LIMIT
from equipoise.transports.base import Interrupted, Monitor, put_to_file
from equipoise.validation.names import checked_file_name

AWAY = "away"  # the failure of a client whose site cannot be reached
_LONGEST_TICKET = 64  # characters
_CLOSED = f"{REFUSED}closed"  # the code of a site that was started anew


class Answering(Protocol):
    """Something that answers the messages to a site: the site, or a connection to it."""

    def answer(self, data: bytes) -> bytes:
        """Answer a message.

        Raises:
            ConnectionError: If the site cannot be reached.
        """
        ...


class Apart:
    """Sites that answer one after another; each has its own data, states and settings.

    Args:
        sites: The sites by name, in the order of the clients.

    Raises:
        ValueError: If the name of a site is not safe as the name of a file.

    Attributes:
        away: The sites that cannot be reached at present.
    """

    lanes = 1
    keeps: Literal["server", "client"] = "client"

    def __init__(self, sites: Mapping[str, Answering]) -> None:
        for name in sites:
            checked_file_name(name, "the site")
        self.sites = dict(sites)
        self.away: set[str] = set()
        self._job: Job | None = None
        self._roster: Roster | None = None
        self._tickets: dict[str, str] = {}  # by site, of descriptions that have opened no run yet
        self._opened: dict[str, str] = {}  # the ticket with which the run is open at a site

    def present(self) -> Sequence[str]:
        """Return the sites that can be reached."""
        return [name for name in self.sites if name not in self.away]

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
        rosters = [self._described(name, job, known) for name in self.sites]
        try:
            joined = Roster.joined(rosters)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        self._job = job
        self._roster = joined
        for name in self.present():
            self._open_now(name, must_answer=known is None)
        data = job.experiment.get("data", {})
        return replace(joined, name=str(data.get("name", "")))

    def _open_now(self, name: str, must_answer: bool) -> None:
        """Open the run at a site that described its data; one that left may be opened later."""
        try:
            reason = self._open_site(name)
        except ConnectionError:
            reason = "it cannot be reached any more" if must_answer else None
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
            return "its data have changed since the run began; bring back the original data"
        self._opened[name] = ticket
        return None

    def _described(self, name: str, job: Job, known: Roster | None) -> Roster:
        """Return the roster of one site, which may come from a stranger."""
        try:
            answer = self._sent(name, message("describe", name, job))
        except ConnectionError:
            if known is not None and name in known.ids:
                return known.only(name)
            raise ConfigurationError(
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
        """Have sites perform requests in their order; see `Transport.exchange`."""
        replies: list[Reply] = []
        for request in requests:
            if self.monitor.interrupted():
                raise Interrupted
            replies.append(self._performed(request, deadline))
            self.monitor.on_clients(request.step, len(replies), len(requests))
        return replies

    def _performed(self, request: Request, deadline: float | None) -> Reply:
        name = request.client
        try:
            answer = None
            if name in self._opened:
                answer = self._send_request(request, deadline)
            if answer is None or answer["code"] == _CLOSED:
                reason = self._open_site(name)
                if reason is not None:
                    return Reply(name, failure=reason)
                answer = self._send_request(request, deadline)
        except ConnectionError:
            return Reply(name, failure=AWAY)
        if answer["code"]:
            return Reply(request.client, failure=explained(answer["code"]))
        try:
            reply = reply_in(answer)
            _check_form(reply)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return Reply(request.client, failure=f"a reply of another form: {error}")
        # Only a code says why there is no result, and no site names files of the server.
        reply = replace(reply, failure=None, error=None, stop=None, file=None)
        return put_to_file(reply, request, self.files)

    def _send_request(self, request: Request, deadline: float | None) -> Any:
        assert self._job is not None
        name = request.client
        return self._sent(
            name, perform_message(name, self._job, request, deadline, self._opened[name])
        )

    def _ask(self, name: str, kind: Kind, ticket: str = "") -> Any:
        assert self._job is not None
        return self._sent(name, message(kind, name, self._job, ticket=ticket))

    def _sent(self, name: str, data: bytes) -> Any:
        """Send a message to a site and return the answer, which may come from a stranger.

        Raises:
            ConnectionError: If the site is away, or its answer is none.
        """
        if name in self.away:
            raise ConnectionError(f"site {name!r} is away")
        try:
            received = self.sites[name].answer(data)
            if len(received) > LIMIT:
                raise ValueError(f"{len(received)} bytes")
            answer = unpacked(received)
            code = answer["code"]
        except (ValueError, KeyError) as error:
            raise ConnectionError(f"site {name!r} answered in another form: {error}") from None
        if not isinstance(code, str) or code not in CODES:
            raise ConnectionError(f"site {name!r} answered with a code that there is not")
        return answer

    def close(self, keep: bool = False) -> None:
        """Close the run at all sites that can be reached."""
        if self._job is None:
            return
        for name in self.present():
            if name in self._opened:
                with suppress(ConnectionError):
                    self._ask(name, "close", self._opened[name])
        self._job = None
        self._opened.clear()
        self._tickets.clear()


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

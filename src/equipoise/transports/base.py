"""The interface between a server and its clients, whatever carries the messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from equipoise.callbacks import CallbackList, ClientProgress
from equipoise.data.roster import Roster
from equipoise.records import read, write
from equipoise.runtime.messages import Job, Reply, Request, reply_file, state_file, state_name
from equipoise.storage.files import writable_path


class ClientError(RuntimeError):
    """A client's step raised; says which client, round and step."""


class Interrupted(Exception):
    """The user requested a stop; the run can be resumed."""


@dataclass
class Monitor:
    """Reports a transport's progress to callbacks, and says if the user requested a stop."""

    callbacks: CallbackList = field(default_factory=CallbackList)
    interrupted: Callable[[], bool] = lambda: False
    # Events by location, such as "clients@NODE"; the record of the round takes them.
    by_location: Counter[str] = field(default_factory=Counter)

    def on_clients(self, step: str, done: int, total: int) -> None:
        """Report that so many clients of an exchange have answered."""
        if not self.callbacks.callbacks:
            return
        by_node = {}
        for event, count in self.by_location.items():
            kind, _, node = event.partition("@")
            if kind == "clients":
                by_node[node] = float(count)
        self.callbacks.on_client(ClientProgress(step, done, total, by_node))


class Transport(Protocol):
    """Carries requests from a server to its clients, and replies back."""

    keeps: Literal["server", "client"]  # on whose disk committed client states lie

    @property
    def lanes(self) -> int:
        """The number of clients that work at a time."""
        ...

    def present(self) -> Sequence[str]:
        """Return the clients that can be reached now; rounds are sampled from these."""
        ...

    def open(self, job: Job, files: Path, monitor: Monitor) -> Roster:
        """Start or connect.

        Args:
            job: The run.
            files: The run's folder of files, which may not exist yet.
            monitor: Receives progress, and says when to stop.

        Returns:
            The clients.

        Raises:
            ValueError: If the job cannot run, with one sentence that says why.
        """
        ...

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        """Return one reply per request, in their order.

        The reply of a client that cannot be reached, or did not answer in time, is a failure.
        """
        ...

    def close(self, keep: bool = False) -> None:
        """End. A second call, or a call after a failed `open`, does nothing.

        Args:
            keep: Leave what was started for the next run.
        """
        ...


def with_file(reply: Reply, files: Path) -> Reply:
    """Return a large reply as the server reads it: tensor by tensor, from the run's files."""
    return reply if reply.file is None else replace(reply, up=read(files / reply.file))


def put_to_file(reply: Reply, request: Request, files: Path) -> Reply:
    """Save a large reply from another disk in the run's files, and return it with its file."""
    if not request.large or reply.up is None or reply.file is not None:
        return reply
    name = reply_file(request)
    write(reply.up, writable_path(files, name))
    return with_file(replace(reply, file=name), files)


def timed_out_reply(request: Request, deadline: float | None, files: Path) -> Reply:
    """Return the reply of a client whose step did not end in time, and remove its files."""
    name = state_name(request.client, request.round, request.attempt, request.exchange)
    for file in (state_file(name), reply_file(request)):
        (files / file).unlink(missing_ok=True)
    limit = "" if deadline is None else f" within {deadline:g} s"
    return Reply(request.client, failure=f"did not answer{limit}")

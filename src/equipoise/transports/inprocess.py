"""Transports in process, where breakpoints work and exceptions keep their traceback."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from equipoise.data import Federation
from equipoise.data.roster import Roster
from equipoise.experiment import Experiment
from equipoise.records import CannotSave, Record, pack, unpack
from equipoise.runtime.executor import ClientExecutor
from equipoise.runtime.isolation import UNKEPT, Late, can_interrupt
from equipoise.runtime.messages import Job, Reply, Request, StateRef
from equipoise.runtime.states import FileStates, ServerStates, StateMissing, States
from equipoise.transports.base import (
    ClientError,
    Interrupted,
    Monitor,
    put_to_file,
    timed_out_reply,
    with_file,
)

log = logging.getLogger("equipoise")


class InProcess:
    """Executes one client after another in this process.

    Args:
        federation: The data of the clients.
        experiment: The experiment, if it holds Python objects that a job cannot name.
    """

    lanes = 1
    keeps: Literal["server", "client"] = "server"

    def __init__(self, federation: Federation, experiment: Experiment | None = None) -> None:
        self.federation = federation
        self.experiment = experiment
        self.executor: ClientExecutor | None = None
        self._warned = False

    def open(self, job: Job, files: Path, monitor: Monitor) -> Roster:
        """Build the client runtime; see `Transport.open`."""
        self.files = files
        self.monitor = monitor
        states = self.states(files)
        self.executor = ClientExecutor(job, self.federation, states, self.experiment, files)
        return self.executor.roster()

    def states(self, files: Path) -> States:
        """Return the store of the clients' states."""
        return ServerStates(files)

    def present(self) -> Sequence[str]:
        """Return all clients: they are in this process."""
        return self.federation.ids

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        """Execute requests in their order; see `Transport.exchange`."""
        if deadline is not None and not self._warned and not can_interrupt():
            log.warning(UNKEPT)
            self._warned = True
        replies: list[Reply] = []
        for request in requests:
            if self.monitor.interrupted():
                raise Interrupted
            replies.append(self._execute(request, deadline))
            self.monitor.on_clients(request.step, len(replies), len(requests))
        return replies

    def _execute(self, request: Request, deadline: float | None) -> Reply:
        assert self.executor is not None
        try:
            reply = self.executor.execute(request, deadline)
        except Late:
            return timed_out_reply(request, deadline or 0.0, self.files)
        except StateMissing as error:
            return Reply(request.client, failure=str(error))
        except CannotSave:
            raise
        except Exception as error:
            raise ClientError(
                f"client {request.client!r}, round {request.round}, step {request.step!r}: "
                f"{type(error).__name__}: {error}"
            ) from error
        return with_file(reply, self.files)

    def close(self, keep: bool = False) -> None:
        """Release the client runtime."""
        self.executor = None


class Loopback(InProcess):
    """In process, with every message packed and unpacked: shows that a method can travel."""

    def _execute(self, request: Request, deadline: float | None) -> Reply:
        reply = super()._execute(replace(request, down=_travelled(request.down)), deadline)
        return replace(reply, up=None if reply.up is None else _travelled(reply.up))


class Separated(Loopback):
    """In process, as between organisations.

    States stay on a second disk, and every message is rebuilt from bytes, as a stranger's is.

    Args:
        federation: The data of the clients.
        disk: The folder of the clients' states.
        experiment: The experiment, if it holds Python objects that a job cannot name.
    """

    keeps: Literal["server", "client"] = "client"

    def __init__(
        self, federation: Federation, disk: Path, experiment: Experiment | None = None
    ) -> None:
        super().__init__(federation, experiment)
        self.disk = disk

    def states(self, files: Path) -> States:
        """Return the store of the clients' states."""
        return FileStates(self.disk)

    def open(self, job: Job, files: Path, monitor: Monitor) -> Roster:
        """Build the client runtime; see `Transport.open`."""
        roster = super().open(Job.of(job.text()), files, monitor)
        assert self.executor is not None
        self.executor.disk = None  # not the server's
        return Roster.of(_travelled(Record(roster.record())))

    def _execute(self, request: Request, deadline: float | None) -> Reply:
        values = _travelled_values(request)
        if values["state"] is not None:
            name, digest = values["state"]
            values["state"] = (name, digest)
        reply = super()._execute(Request(**values), deadline)
        values = _travelled_values(reply)
        if values["state"] is not None:
            values["state"] = StateRef(*values["state"])
        return put_to_file(Reply(**values), request, self.files)


def _travelled_values(message: Request | Reply) -> dict[str, Any]:
    """Return the values of a message after it was packed and unpacked; a state is a list."""
    values = dict(vars(message))
    if message.state is not None:
        values["state"] = list(message.state)
    return dict(_travelled(Record(values)))


def _travelled(record: Any) -> Any:
    return unpack(bytearray(b"".join(pack(record))))

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
from equipoise.runtime.isolation import UNKEPT, Late, can_interrupt, time_limit
from equipoise.runtime.messages import Job, Reply, Request, StateRef, group_size
from equipoise.runtime.states import FileStates, ServerStates, StateMissing, States
from equipoise.training.stack import Deferral
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
    """Executes the clients in this process, one after another or in groups of small models.

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
        self._trains_groups = False

    def open(self, job: Job, files: Path, monitor: Monitor) -> Roster:
        """Build the client runtime; see `Transport.open`."""
        self.files = files
        self.monitor = monitor
        states = self.states(files)
        self.executor = ClientExecutor(job, self.federation, states, self.experiment, files)
        self._trains_groups = self.executor.trains_groups
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
        while len(replies) < len(requests):
            if self.monitor.interrupted():
                raise Interrupted
            first = len(replies)
            size = group_size(requests[first]) if self._trains_groups else 1
            for reply in self._execute_group(requests[first : first + size], deadline):
                replies.append(reply)
                self.monitor.on_clients(requests[first].step, len(replies), len(requests))
        return replies

    def _execute_group(self, requests: Sequence[Request], deadline: float | None) -> list[Reply]:
        """Execute requests together; one after another if they take too long together."""
        if len(requests) > 1:
            try:
                with time_limit(deadline):
                    return self._execute_together(requests)
            except Late:
                pass  # Each of them has the deadline for itself now.
        return [self._execute(request, deadline) for request in requests]

    def _execute_together(self, requests: Sequence[Request]) -> list[Reply]:
        """Execute requests; raise the error of the first request that has one."""
        assert self.executor is not None
        errors: dict[str, Exception] = {}

        def execute(request: Request, deferral: Deferral | None) -> Reply:
            try:
                return self._execute(request, None, deferral)
            except Exception as error:
                errors[request.client] = error
                return Reply(request.client)

        replies = self.executor.execute_group(requests, execute)
        for request in requests:
            if request.client in errors:
                raise errors[request.client]
        return replies

    def _execute(
        self, request: Request, deadline: float | None, deferral: Deferral | None = None
    ) -> Reply:
        assert self.executor is not None
        try:
            reply = self.executor.execute(request, deadline, deferral)
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

    def _execute(
        self, request: Request, deadline: float | None, deferral: Deferral | None = None
    ) -> Reply:
        request = replace(request, down=_travelled(request.down))
        reply = super()._execute(request, deadline, deferral)
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

    def _execute(
        self, request: Request, deadline: float | None, deferral: Deferral | None = None
    ) -> Reply:
        values = _travelled_values(request)
        if values["state"] is not None:
            name, digest = values["state"]
            values["state"] = (name, digest)
        reply = super()._execute(Request(**values), deadline, deferral)
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

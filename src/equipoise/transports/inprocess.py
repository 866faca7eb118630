"""In process: the reference. Breakpoints work, and a client's exception is raised where it happened."""

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
from equipoise.runtime.states import FileStates, ServerStates, States
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
    """One client after another, here."""

    lanes = 1
    keeps: Literal["server", "client"] = "server"

    def __init__(self, federation: Federation, wanted: Experiment | None = None) -> None:
        self.federation, self.wanted = federation, wanted
        self.executor: ClientExecutor | None = None
        self.warned = False

    def open(self, job: Job, files: Path, monitor: Monitor) -> Roster:
        self.files, self.monitor = files, monitor
        self.executor = ClientExecutor(job, self.federation, self.states(files), self.wanted, files)
        return self.executor.roster()

    def states(self, files: Path) -> States:
        return ServerStates(files)

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        if deadline is not None and not self.warned and not can_interrupt():
            log.warning(UNKEPT)
            self.warned = True
        replies: list[Reply] = []
        for request in requests:
            if self.monitor.interrupted():
                raise Interrupted
            replies.append(self._one(request, deadline))
            self.monitor.on_clients(request.step, len(replies), len(requests))
        return replies

    def _one(self, request: Request, deadline: float | None) -> Reply:
        assert self.executor is not None
        try:
            reply = self.executor.execute(request, deadline)
        except Late:
            return timed_out_reply(request, deadline or 0.0, self.files)
        except CannotSave:
            raise
        except Exception as error:
            raise ClientError(
                f"client {request.client!r}, round {request.round}, step {request.step!r}: {type(error).__name__}: {error}"
            ) from error
        return with_file(reply, self.files)

    def close(self, keep: bool = False) -> None:
        self.executor = None


class Loopback(InProcess):
    """In process, but everything is packed and unpacked on its way: what shows that a method can travel."""

    def _one(self, request: Request, deadline: float | None) -> Reply:
        reply = super()._one(replace(request, down=_travelled(request.down)), deadline)
        return replace(reply, up=None if reply.up is None else _travelled(reply.up))


class Separated(Loopback):
    """As between organisations: states stay on a second disk, and every message is rebuilt from bytes, as a stranger's would be."""

    keeps: Literal["server", "client"] = "client"

    def __init__(
        self, federation: Federation, disk: Path, wanted: Experiment | None = None
    ) -> None:
        super().__init__(federation, wanted)
        self.disk = disk

    def states(self, files: Path) -> States:
        return FileStates(self.disk)

    def open(self, job: Job, files: Path, monitor: Monitor) -> Roster:
        roster = super().open(Job.of(job.text()), files, monitor)
        assert self.executor is not None
        self.executor.disk = None  # not the server's
        return Roster.of(_travelled(Record(roster.record())))

    def _one(self, request: Request, deadline: float | None) -> Reply:
        told: dict[str, Any] = dict(
            _travelled(Record({**vars(request), "state": request.state and list(request.state)}))
        )
        state = told.pop("state")
        reply = super()._one(
            Request(**told, state=None if state is None else (state[0], state[1])), deadline
        )
        back = dict(
            _travelled(
                Record({**vars(reply), "state": None if reply.state is None else list(reply.state)})
            )
        )
        arrived = Reply(
            **{**back, "state": None if back["state"] is None else StateRef(*back["state"])}
        )
        return put_to_file(arrived, request, self.files)


def _travelled(record: Any) -> Any:
    return unpack(bytearray(b"".join(pack(record))))

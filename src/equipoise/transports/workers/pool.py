"""The transport over worker processes.

Which worker takes which client is decided by who is free, and never changes a bit: each request carries all that its result depends on.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from equipoise.data import Federation
from equipoise.data.roster import Roster, roster_of
from equipoise.experiment import ConfigurationError
from equipoise.records import Record
from equipoise.runtime.messages import Job, Reply, Request
from equipoise.storage.store import RunError
from equipoise.transports import wire
from equipoise.transports.base import Interrupted, Watcher, timed_out_reply, with_file
from equipoise.transports.workers import processes
from equipoise.transports.workers.memory import attach, share
from equipoise.transports.workers.sockets import Receiver, Sender

log = logging.getLogger("equipoise")

TRIES = 3
START_DEADLINE = 120.0  # seconds for a worker to import, attach the data and say that it is ready
END_DEADLINE = 5.0  # seconds for a worker that closed its connection to end by itself


@dataclass
class _Worker:
    """A process as this side knows it."""

    started: processes.Process
    sender: Sender
    receiver: Receiver
    # how often a process was started for this place in a row, without one that was ready
    tries: int = 1
    began: float = 0.0  # when it was sent its job
    ready: bool = False
    # numbers of its requests, and when each began to be waited for
    asked: deque[tuple[int, float]] = field(default_factory=deque)
    knows_trees: bool = False

    @classmethod
    def of(cls, started: processes.Process, tries: int = 1) -> _Worker:
        if started.ends is None:
            started.ends = (
                Sender(started.connection),
                Receiver(started.connection),
            )  # they know what memory the other side maps
        sender, receiver = started.ends
        return cls(started, sender, receiver, tries)


@dataclass
class _Exchange:
    """Requests on their way."""

    pending: dict[int, Request]
    waiting: deque[int]
    tries: Counter[int] = field(default_factory=Counter)
    replies: dict[int, Reply] = field(default_factory=dict)


class Workers:
    """A pool of processes that perform requests."""

    keeps: Literal["server", "client"] = "server"

    def __init__(self, pool: processes.Pool, federation: Federation) -> None:
        self.pool, self.federation = pool, federation
        self.lanes = pool.count
        self.watcher = Watcher()
        self.workers: list[_Worker] = []

    def open(self, job: Job, files: Path, watcher: Watcher) -> Roster:
        self.watcher, self.files = watcher, files
        self.roster = roster_of(self.federation)
        self.killed_for_memory = processes.out_of_memory_kills()
        self.pool.begin()
        self.pool.jobs += 1
        assert self.pool.data is not None
        told = share(self.federation, self.pool.data)
        shared = attach(told, self.pool.data)
        # this process, too, needs the data once only
        self.federation = replace(self.federation, x=shared.x, y=shared.y)
        self.job = Record(
            kind="job", number=self.pool.jobs, job=job.text(), files=str(files.absolute()), data=told,
            path=[path or os.getcwd() for path in sys.path],
        )  # fmt: skip
        self.workers = [_Worker.of(started) for started in self.pool.started]
        for worker in self.workers:
            self._send_job(worker)
        self._until_ready()
        return self.roster

    def _send_job(self, worker: _Worker) -> None:
        worker.began = time.monotonic()
        with suppress(OSError):  # it died: the selector will say so
            worker.sender.send(self.job)

    def _until_ready(self) -> None:
        """Wait for all workers, or for the sentence of one that cannot do the job."""
        nothing = _Exchange({}, deque())
        with selectors.DefaultSelector() as selector:
            for worker in self.workers:
                selector.register(worker.started.connection, selectors.EVENT_READ, worker)
            while not all(worker.ready for worker in self.workers):
                self._turn(selector, nothing, None)

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        if not requests:
            return []
        shared, trees = wire.shared_trees(requests)
        going = _Exchange(dict(enumerate(requests)), deque(self._order(requests)))
        # Small tasks are sent ahead, so that a worker never waits for the post; few large ones are given out one by one.
        ahead = 2 if len(requests) > 8 * self.lanes else 1
        for worker in self.workers:
            worker.knows_trees = False
        with selectors.DefaultSelector() as selector:
            for worker in self.workers:
                selector.register(worker.started.connection, selectors.EVENT_READ, worker)
            while len(going.replies) < len(requests):
                if self.watcher.interrupted():
                    raise Interrupted
                for worker in self.workers:
                    while worker.ready and len(worker.asked) < ahead and going.waiting:
                        number = going.waiting.popleft()
                        worker.asked.append((number, time.monotonic()))
                        try:
                            if not worker.knows_trees:
                                worker.sender.send(Record(kind="trees", trees=trees))
                                worker.knows_trees = True
                            self._send(worker, number, going.pending[number], shared)
                        except OSError:
                            break  # it died; the selector will say so
                self._turn(selector, going, deadline)
        return [going.replies[number] for number in range(len(requests))]

    def _send(self, worker: _Worker, number: int, request: Request, shared: dict[int, str]) -> None:
        worker.sender.send(
            Record._trusted(
                {
                    "kind": "task", "number": number, "request": wire.to_wire(request), "down": wire.referring(request.down, shared),
                    "returned": worker.receiver.returned(),
                }
            )
        )  # fmt: skip

    def _turn(
        self, selector: selectors.BaseSelector, going: _Exchange, deadline: float | None
    ) -> None:
        """Take in what has arrived, and look at the clock."""
        for key, _ in selector.select(timeout=0.5):
            worker = key.data
            try:
                message = worker.receiver.receive()
            except (EOFError, OSError, ValueError):
                self._replace(worker, selector, going)
                continue
            if message["kind"] == "ready":
                if message["number"] != self.job["number"]:  # of a run before this one
                    continue
                if message["refused"]:
                    raise ConfigurationError(message["refused"])
                worker.ready = True
                continue
            number = message["number"]
            worker.sender.take_back(message["returned"])
            worker.asked = deque(entry for entry in worker.asked if entry[0] != number)
            if worker.asked:  # the next in its queue begins now
                worker.asked[0] = (worker.asked[0][0], time.monotonic())
            going.replies[number] = with_file(
                wire.reply_of(message["reply"], message["up"]), self.files
            )
            self.watcher.on_clients(
                going.pending[number].step, len(going.replies), len(going.pending)
            )
        now = time.monotonic()
        for worker in list(self.workers):
            if not worker.ready and now - worker.began > START_DEADLINE:
                raise RunError(
                    f"a worker process was not ready within {START_DEADLINE:.0f} s; run with --workers 0 to see why"
                )
            if deadline is not None and worker.asked and now - worker.asked[0][1] > deadline:
                number = worker.asked[0][0]
                self._replace(worker, selector, going, f"did not answer within {deadline:g} s")
                if going.tries[number] >= TRIES:
                    going.waiting.remove(number)
                    going.replies[number] = timed_out_reply(
                        going.pending[number], deadline, self.files
                    )

    def _order(self, requests: Sequence[Request]) -> list[int]:
        """Large clients first, so that the last ones to finish are small."""
        sizes = self.roster.sizes["train"]
        return sorted(range(len(requests)), key=lambda number: -sizes[requests[number].client])

    def _replace(
        self,
        worker: _Worker,
        selector: selectors.BaseSelector,
        going: _Exchange,
        hung: str | None = None,
    ) -> None:
        """A new process in place of one that died or hung; its clients are asked again, three times at most."""
        selector.unregister(worker.started.connection)
        code = self.pool.end(worker.started, 0 if hung else END_DEADLINE)
        cause = "it spoke no more and was ended" if code is None else self._cause(code)
        log.warning("a worker process %s; a new one takes its place", hung or f"ended ({cause})")
        if not worker.ready and worker.tries >= TRIES:
            raise RunError(
                f"a worker process ended {TRIES} times while starting (the last: {cause}); what it said is above. "
                "Run with --workers 0 to see it in place"
            )
        for place, (number, _) in reversed(list(enumerate(worker.asked))):
            going.waiting.appendleft(number)
            if place:  # it had not begun with this one
                continue
            going.tries[number] += 1
            request = going.pending[number]
            if going.tries[number] >= TRIES and hung is None:
                raise RunError(
                    f"a worker process ended {TRIES} times with client {request.client!r} in round {request.round}, step {request.step!r} "
                    f"(the last: {cause})"
                )
            going.pending[number] = replace(request, die=False)
        fresh = _Worker.of(self.pool.start(), 1 if worker.ready else worker.tries + 1)
        self._send_job(fresh)
        self.workers[self.workers.index(worker)] = fresh
        selector.register(fresh.started.connection, selectors.EVENT_READ, fresh)

    def _cause(self, code: int) -> str:
        """How a process ended that we did not end ourselves, and what helps; of memory only where the kernel counted such an end."""
        before, self.killed_for_memory = self.killed_for_memory, processes.out_of_memory_kills()
        if code == -signal.SIGKILL and any(
            count > before.get(file, count) for file, count in self.killed_for_memory.items()
        ):
            return f"{processes.ending(code)}: the system ran out of memory; try fewer --workers or a smaller batch"
        return processes.ending(code)

    def close(self, keep: bool = False) -> None:
        if not keep or any(worker.asked for worker in self.workers):
            self.pool.close()
        self.workers = []

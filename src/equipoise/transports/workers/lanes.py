"""Worker processes as lanes of the dispatcher."""

from __future__ import annotations

import logging
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.experiment import ConfigurationError
from equipoise.records import Record
from equipoise.runtime import wire
from equipoise.runtime.messages import Reply, Request, group_size
from equipoise.storage.store import RunError
from equipoise.transports.base import with_file
from equipoise.transports.lanes import Answered, Batch, Event, Exchange, Lane, Lost, share
from equipoise.transports.workers import processes
from equipoise.transports.workers.sockets import Receiver, Sender

log = logging.getLogger("equipoise")

STARTS = 3  # processes that are started for a lane in a row, without one that was ready
START_DEADLINE = 120.0  # seconds for a worker to import, attach the data and say that it is ready
END_DEADLINE = 5.0  # seconds for a worker that closed its connection to end by itself


@dataclass(eq=False, kw_only=True)
class WorkerLane(Lane):
    """A process and both ends of the connection to it."""

    process: processes.Process
    sender: Sender
    receiver: Receiver
    began: float  # when it was sent its job
    starts: int  # processes that were started for this lane since one was ready
    groups: bool = False  # whether it trains several clients together

    def send(self, batch: Batch, trees: Any) -> None:
        """Send requests, after the shared trees if the worker does not have them yet."""
        tasks = [
            {"request": wire.to_wire(request), "down": wire.referring(request.down, batch.shared)}
            for request in batch.requests
        ]
        task = {"kind": "tasks", "tasks": tasks, "returned": self.receiver.returned()}
        with suppress(OSError):  # it died: `poll` reports it
            if trees is not None:
                self.sender.send(trees)
            self.sender.send(Record._trusted(task))


class WorkerLanes:
    """The processes of a pool, for one run; one that dies or hangs is replaced."""

    title = "a worker process"
    # Workers share the machine and the run's files, so the same request to two of them would only
    # cost time.
    patience: tuple[float, float] | None = None

    def __init__(
        self, pool: processes.Pool, job: Record, files: Path, clock: Callable[[], float]
    ) -> None:
        """Send a job to every process of a pool.

        Args:
            pool: The processes.
            job: The message that begins the run.
            files: The run's folder of files.
            clock: Seconds, never going back.
        """
        self.pool = pool
        self.job = job
        self.files = files
        self.clock = clock
        self.together = 1  # requests of the present exchange in one message
        self.killed_for_memory = processes.out_of_memory_kills()
        self.lanes = [self._begin(process, starts=1) for process in pool.started]

    def _begin(self, process: processes.Process, starts: int) -> WorkerLane:
        if process.ends is None:
            # They know which memory the other side maps, so they last as long as the connection.
            process.ends = Sender(process.connection), Receiver(process.connection)
        sender, receiver = process.ends
        with suppress(OSError):  # it died: `poll` reports it
            sender.send(self.job)
        return WorkerLane(
            "", process=process, sender=sender, receiver=receiver, began=self.clock(), starts=starts
        )

    def place_for(self, request: Request) -> None:
        """Return None: every worker can execute every request."""
        return

    def begin(self, exchange: Exchange) -> Record:
        """Return the message with the shared trees."""
        self.together = 1
        if all(lane.groups for lane in self.lanes):
            self.together = group_size(exchange.requests[0])
        return Record(kind="trees", trees=exchange.trees)

    def take(self, waiting: deque[int], exchange: Exchange) -> list[int]:
        """Take the next requests that a worker executes as a group; see `share`."""
        return share(waiting, exchange.weights, self.together, len(self.lanes), exchange.alone)

    def poll(self, seconds: float) -> Iterator[Event]:
        """Yield the events of workers.

        Raises:
            ConfigurationError: If a worker cannot execute the experiment.
            RunError: If a worker is not ready in time.
        """
        by_process = {id(lane.process): lane for lane in self.lanes}
        for process in self.pool.wait(seconds):
            lane = by_process[id(process)]
            try:
                message = lane.receiver.receive()
            except (EOFError, OSError, ValueError):
                yield Lost(lane, self._cause(self.pool.end(process, END_DEADLINE)))
                continue
            if message["kind"] == "ready":
                self._is_ready(lane, message)
            else:
                lane.sender.take_back(message["returned"])
                yield Answered(lane, message["replies"])
        for lane in self.lanes:
            if not lane.ready and self.clock() - lane.began > START_DEADLINE:
                raise RunError(
                    f"a worker process was not ready within {START_DEADLINE:.0f} s; "
                    "run with --workers 0 to see why"
                )

    def _is_ready(self, lane: WorkerLane, message: Any) -> None:
        if message["number"] != self.job["number"]:  # of a run before this one
            return
        if message["refused"]:
            raise ConfigurationError(message["refused"])
        lane.ready = True
        lane.groups = message["groups"]

    def accept(self, lane: Lane, request: Request, answer: Any) -> Reply:
        """Read a reply; a large one lies in a file of the run."""
        return with_file(wire.reply_of(answer["reply"], answer["up"]), self.files)

    def replace(self, lane: Lane, cause: str, hung: bool) -> None:
        """Start a new process in place of one that died or hangs."""
        assert isinstance(lane, WorkerLane)
        if hung:
            self.pool.end(lane.process, 0)
        log.warning(
            "a worker process %s; a new one takes its place", cause if hung else f"ended ({cause})"
        )
        if not lane.ready and lane.starts >= STARTS:
            raise RunError(
                f"a worker process ended {STARTS} times while starting (the last: {cause}); "
                "its output is above. Run with --workers 0 to see it in place"
            )
        fresh = self._begin(self.pool.start(), 1 if lane.ready else lane.starts + 1)
        self.lanes[self.lanes.index(lane)] = fresh

    def blamed(self, places: list[str]) -> list[str]:
        """Return all places: workers share one machine."""
        return places

    def _cause(self, code: int | None) -> str:
        """Return how a process ended; it names memory only if the kernel counted such an end."""
        if code is None:
            return "it did not answer any more and was ended"
        before = self.killed_for_memory
        self.killed_for_memory = processes.out_of_memory_kills()
        out_of_memory = any(
            count > before.get(file, count) for file, count in self.killed_for_memory.items()
        )
        if code == -signal.SIGKILL and out_of_memory:
            return (
                f"{processes.ending(code)}: the system ran out of memory; "
                "try fewer --workers or a smaller batch"
            )
        return processes.ending(code)

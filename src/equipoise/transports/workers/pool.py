"""Transport to worker processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from equipoise.data import Federation
from equipoise.data.roster import Roster, roster_of
from equipoise.records import Record
from equipoise.runtime.messages import Job, Reply, Request
from equipoise.transports.base import Monitor
from equipoise.transports.dispatcher import Dispatcher
from equipoise.transports.workers import processes
from equipoise.transports.workers.lanes import WorkerLanes
from equipoise.transports.workers.memory import attach, share


class Workers:
    """Worker processes that execute requests.

    Args:
        pool: The processes.
        federation: The data of the clients.
        clock: Seconds, never going back.
    """

    keeps: Literal["server", "client"] = "server"

    def __init__(
        self,
        pool: processes.Pool,
        federation: Federation,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = pool
        self.federation = federation
        self.clock = clock
        self.lanes = pool.count
        self.group: WorkerLanes | None = None
        self.dispatcher: Dispatcher | None = None

    def open(self, job: Job, files: Path, monitor: Monitor) -> Roster:
        """Share the data and send the job to all processes; see `Transport.open`."""
        roster = roster_of(self.federation)
        self.pool.begin()
        self.pool.jobs += 1
        assert self.pool.data is not None
        layout = share(self.federation, self.pool.data)
        shared = attach(layout, self.pool.data)
        # This process uses the shared memory, too, so that the data exist once.
        self.federation = replace(self.federation, x=shared.x, y=shared.y)
        message = Record(
            kind="job",
            number=self.pool.jobs,
            job=job.text(),
            files=str(files.absolute()),
            data=layout,
            path=[path or os.getcwd() for path in sys.path],
        )
        self.group = group = WorkerLanes(self.pool, message, files, self.clock)
        self.dispatcher = Dispatcher(group, roster.sizes["train"], files, monitor, self.clock)
        self.dispatcher.wait_until(lambda: all(lane.ready for lane in group.lanes))
        return roster

    def present(self) -> Sequence[str]:
        """Return all clients: any executor can execute any of them."""
        return self.federation.ids

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        """Execute requests; see `Transport.exchange`."""
        assert self.dispatcher is not None
        return self.dispatcher.exchange(requests, deadline)

    def close(self, keep: bool = False) -> None:
        """End the processes.

        Args:
            keep: Leave idle processes for another run.
        """
        working = self.group is not None and any(lane.outstanding for lane in self.group.lanes)
        if not keep or working:
            self.pool.close()
        self.group = None
        self.dispatcher = None

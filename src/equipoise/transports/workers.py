"""Worker processes: one torch thread each, started once and kept; data shared, not copied.

Which worker takes which client is decided by who is free, and never changes a bit: each request carries all that its result depends on.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from equipoise import processes
from equipoise.data import Federation
from equipoise.experiment import Experiment, spec_of
from equipoise.records import Record
from equipoise.runs.store import RunError
from equipoise.transports import wire
from equipoise.transports.exchange import Interrupted, Reply, Request, Watcher, late
from equipoise.tree import Tree
from equipoise.workbench import Workbench

log = logging.getLogger("equipoise")

TRIES = 3
START_DEADLINE = 120.0  # seconds for a worker to import, attach the data and say that it is ready
END_DEADLINE = 5.0  # seconds for a worker that closed its connection to end by itself
_ALIGNMENT = 4096


@dataclass
class _Worker:
    process: subprocess.Popen[bytes] | processes.Forked
    connection: socket.socket
    sender: wire.Sender
    receiver: wire.Receiver
    tries: int = 1  # how often a process was started for this place in a row, without one that was ready
    began: float = field(default_factory=time.monotonic)  # when it was sent its job; before that it waits for us
    ready: bool = False
    asked: deque[tuple[int, float]] = field(default_factory=deque)  # numbers of its requests, and when each was sent
    knows_trees: bool = False


def _worker(started: processes.Process, tries: int = 1) -> _Worker:
    return _Worker(started.process, started.connection, wire.Sender(started.connection), wire.Receiver(started.connection), tries)


class Workers:
    """A pool of processes that perform requests."""

    def __init__(self, count: int) -> None:
        """Start the processes; they import what they need until `begin` tells them their job."""
        self.lanes, self.watcher, self.job = count, Watcher(), ""
        self.pool = processes.Pool(count)
        self.data = self.pool.data
        self.killed_for_memory = processes.out_of_memory_kills()
        self.workers = [_worker(started) for started in self.pool.started]

    def begin(self, experiment: Experiment, bench: Workbench) -> None:
        """Share the data and send the job."""
        assert bench.federation is not None
        self.bench = bench
        arrays, total = _share(bench.federation, self.data)
        bench.federation = federation = _over_shared(
            bench.federation, self.data, arrays, total
        )  # this process, too, needs the data once only
        self.job = json.dumps(
            {
                "experiment": experiment.model_dump(mode="json") | {"method": spec_of(experiment.build_method())},
                "task": asdict(federation.task),
                "name": federation.name,
                "ids": federation.ids,
                "augment": federation.augment,
                "arrays": arrays,
                "bytes": total,
                "path": [path or os.getcwd() for path in sys.path],
            }
        )
        for worker in self.workers:
            self._send_job(worker)

    def _send_job(self, worker: _Worker) -> None:
        worker.began = time.monotonic()
        with suppress(OSError):  # it died: the first exchange will say so
            worker.sender.send(Record(kind="job", job=self.job))

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        if not requests:
            return []
        shared, trees = self._shared_trees(requests)
        waiting = deque(self._order(requests))
        pending = dict(enumerate(requests))
        tries: Counter[int] = Counter()
        replies: dict[int, Reply] = {}
        # Small tasks are sent ahead, so that a worker never waits for the post; few large ones are given out one by one.
        ahead = 2 if len(requests) > 8 * self.lanes else 1
        for worker in self.workers:
            worker.knows_trees = False
        selector = selectors.DefaultSelector()
        for worker in self.workers:
            selector.register(worker.connection, selectors.EVENT_READ, worker)
        try:
            while len(replies) < len(requests):
                if self.watcher.interrupted():
                    raise Interrupted
                for worker in self.workers:
                    while worker.ready and len(worker.asked) < ahead and waiting:
                        number = waiting.popleft()
                        worker.asked.append((number, time.monotonic()))
                        try:
                            if not worker.knows_trees:
                                worker.sender.send(Record(kind="trees", trees=trees))
                                worker.knows_trees = True
                            down = wire.mapped(
                                pending[number].down, lambda tree: wire.reference(shared[id(tree)]) if id(tree) in shared else tree
                            )
                            worker.sender.send(wire.task(number, pending[number], down, worker.receiver.returned()))
                        except OSError:
                            break  # it died; the selector will say so
                for key, _ in selector.select(timeout=0.5):
                    worker = key.data
                    try:
                        message = worker.receiver.receive()
                    except (EOFError, OSError, ValueError):
                        self._replace(worker, selector, waiting, pending, tries)
                        continue
                    if message["kind"] == "ready":
                        worker.ready = True
                        continue
                    worker.sender.take_back(message["returned"])
                    reply = wire.reply_of(message)
                    worker.asked = deque(entry for entry in worker.asked if entry[0] != message["number"])
                    if worker.asked:  # the next in its queue begins now
                        worker.asked[0] = (worker.asked[0][0], time.monotonic())
                    replies[message["number"]] = reply
                    self.watcher.on_clients(pending[message["number"]].step, len(replies), len(requests))
                replies |= self._check_deadlines(selector, waiting, pending, tries, deadline)
        finally:
            selector.close()
        return [replies[number] for number in range(len(requests))]

    def _order(self, requests: Sequence[Request]) -> list[int]:
        """Large clients first, so that the last ones to finish are small."""
        assert self.bench.federation is not None
        sizes, position = self.bench.federation.train.sizes, self.bench.position
        return sorted(range(len(requests)), key=lambda number: -int(sizes[position[requests[number].client]]))

    def _shared_trees(self, requests: Sequence[Request]) -> tuple[dict[int, str], dict[str, Tree]]:
        found: dict[int, Tree] = {}
        counts: Counter[int] = Counter()
        for request in requests:
            for tree in wire.trees_in(request.down):
                found[id(tree)] = tree
                counts[id(tree)] += 1
        shared = {place: str(number) for number, place in enumerate(place for place, count in counts.items() if count > 1)}
        return shared, {key: found[place] for place, key in shared.items()}

    def _check_deadlines(
        self, selector: Any, waiting: deque[int], pending: dict[int, Request], tries: Counter[int], deadline: float | None
    ) -> dict[int, Reply]:
        """Replace workers that hang; the replies of clients with which that happened too often."""
        now, given_up = time.monotonic(), {}
        for worker in list(self.workers):
            if not worker.ready and now - worker.began > START_DEADLINE:
                raise RunError(f"a worker process was not ready within {START_DEADLINE:.0f} s; run with --workers 0 to see why")
            if deadline is not None and worker.asked and now - worker.asked[0][1] > deadline:
                number = worker.asked[0][0]
                self._replace(worker, selector, waiting, pending, tries, f"did not answer within {deadline:g} s")
                if tries[number] >= TRIES:
                    waiting.remove(number)
                    given_up[number] = late(pending[number], deadline)
        return given_up

    def _replace(
        self, worker: _Worker, selector: Any, waiting: deque[int], pending: dict[int, Request], tries: Counter[int], hung: str | None = None
    ) -> None:
        """A new process in place of one that died or hung; its clients are asked again, three times at most."""
        selector.unregister(worker.connection)
        try:
            cause = self._cause(worker.process.wait(timeout=0 if hung else END_DEADLINE))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
            cause = "it spoke no more and was ended"
        worker.connection.close()  # not before: a worker whose parent is gone ends at once, with another exit code
        log.warning("a worker process %s; a new one takes its place", hung or f"ended ({cause})")
        if not worker.ready and worker.tries >= TRIES:
            raise RunError(
                f"a worker process ended {TRIES} times while starting (the last: {cause}); what it said is above. "
                "Run with --workers 0 to see it in place"
            )
        for place, (number, _) in reversed(list(enumerate(worker.asked))):
            waiting.appendleft(number)
            if place:  # it had not begun with this one
                continue
            tries[number] += 1
            request = pending[number]
            if tries[number] >= TRIES and hung is None:
                raise RunError(
                    f"a worker process ended {TRIES} times with client {request.client!r} in round {request.round}, step {request.step!r} "
                    f"(the last: {cause})"
                )
            pending[number] = replace(request, die=False)
        fresh = _worker(self.pool.start(), 1 if worker.ready else worker.tries + 1)
        self._send_job(fresh)
        self.workers[self.workers.index(worker)] = fresh
        selector.register(fresh.connection, selectors.EVENT_READ, fresh)

    def _cause(self, code: int) -> str:
        """How a process ended that we did not end ourselves, and what helps; of memory only where the kernel counted such an end."""
        before, self.killed_for_memory = self.killed_for_memory, processes.out_of_memory_kills()
        if code == -signal.SIGKILL and any(count > before.get(file, count) for file, count in self.killed_for_memory.items()):
            return f"{processes.ending(code)}: the system ran out of memory; try fewer --workers or a smaller batch"
        return processes.ending(code)

    def close(self) -> None:
        for worker in self.workers:
            worker.connection.close()
            worker.process.kill()
        for worker in self.workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(timeout=10)
        os.close(self.data)


def _share(federation: Federation, number: int) -> tuple[dict[str, Any], int]:
    """Put the federation's arrays into the shared memory; where each lies, and how much there is."""
    arrays: dict[str, np.ndarray] = {"x": federation.x.numpy(), "y": federation.y.numpy(), "shared test": federation.shared_test}
    for part in ("train", "validation", "test"):
        arrays |= {f"{part} index": getattr(federation, part).index, f"{part} offsets": getattr(federation, part).offsets}
    facts: dict[str, Any] = {}
    offset = 0
    for name, array in arrays.items():
        facts[name] = {"offset": offset, "dtype": str(array.dtype), "shape": list(array.shape)}
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    total = max(offset, _ALIGNMENT)
    os.ftruncate(number, total)
    for name, array in arrays.items():
        # Written, not copied into a mapping: the system fills whole pages at once. It takes at most 2 GiB at a time.
        content, done = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, 0
        while done < len(content):
            done += os.pwrite(number, content[done:], facts[name]["offset"] + done)
    return facts, total


def _over_shared(federation: Federation, number: int, arrays: dict[str, Any], total: int) -> Federation:
    memory = mmap.mmap(number, total, access=mmap.ACCESS_COPY)

    def tensor(name: str) -> torch.Tensor:
        facts = arrays[name]
        count = int(np.prod(facts["shape"], dtype=np.int64))
        return torch.from_numpy(np.frombuffer(memory, facts["dtype"], count, facts["offset"]).reshape(facts["shape"]))

    return replace(federation, x=tensor("x"), y=tensor("y"))

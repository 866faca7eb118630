"""Worker processes: one torch thread each, started once and kept; data shared, not copied.

Which worker takes which client is decided by who is free, and never changes a bit: each request carries all that its result depends on.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import selectors
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
from equipoise.transports.exchange import Interrupted, Reply, Request, Watcher
from equipoise.tree import Tree
from equipoise.workbench import Workbench

log = logging.getLogger("equipoise")

TRIES = 3
START_DEADLINE = 120.0  # seconds for a worker to import, attach the data and say that it is ready
_ALIGNMENT = 4096


@dataclass
class _Worker:
    process: subprocess.Popen[bytes] | processes.Forked
    connection: socket.socket
    sender: wire.Sender
    receiver: wire.Receiver
    ready: bool = False
    asked: deque[tuple[int, float]] = field(default_factory=deque)  # numbers of its requests, and when each was sent
    knows_trees: bool = False


def _worker(started: processes.Process) -> _Worker:
    return _Worker(started.process, started.connection, wire.Sender(started.connection), wire.Receiver(started.connection))


class Workers:
    """A pool of processes that perform requests."""

    def __init__(self, count: int) -> None:
        """Start the processes; they import what they need until `begin` tells them their job."""
        self.lanes, self.watcher, self.job = count, Watcher(), ""
        self.pool = processes.Pool(count)
        self.data = self.pool.data
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
                "imports": experiment.imports.plain(),
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
        began = time.monotonic()
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
                    except (EOFError, OSError):
                        self._replace(worker, selector, waiting, pending, tries, "died")
                        continue
                    if message["kind"] == "ready":
                        worker.ready = True
                        began = time.monotonic()
                        continue
                    worker.sender.take_back(message["returned"])
                    reply = wire.reply_of(message)
                    worker.asked = deque(entry for entry in worker.asked if entry[0] != message["number"])
                    if worker.asked:  # the next in its queue begins now
                        worker.asked[0] = (worker.asked[0][0], time.monotonic())
                    replies[message["number"]] = reply
                    self.watcher.on_clients(pending[message["number"]].step, len(replies), len(requests))
                self._check_deadlines(selector, waiting, pending, tries, deadline, began)
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
        self, selector: Any, waiting: deque[int], pending: dict[int, Request], tries: Counter[int], deadline: float | None, began: float
    ) -> None:
        now = time.monotonic()
        for worker in list(self.workers):
            if not worker.ready and now - began > START_DEADLINE:
                raise RunError(f"a worker process was not ready within {START_DEADLINE:.0f} s; run with --workers 0 to see why")
            if deadline is not None and worker.asked and now - worker.asked[0][1] > deadline:
                worker.process.kill()
                self._replace(worker, selector, waiting, pending, tries, f"did not answer within {deadline:.0f} s")

    def _replace(
        self, worker: _Worker, selector: Any, waiting: deque[int], pending: dict[int, Request], tries: Counter[int], what: str
    ) -> None:
        """A new process in place of a dead one; its clients are asked again, three times at most."""
        selector.unregister(worker.connection)
        worker.connection.close()
        worker.process.kill()
        code = worker.process.wait()
        log.warning("a worker process %s (exit code %s); a new one takes its place", what, code)
        if not worker.ready:
            raise RunError(
                f"a worker process ended with code {code} while starting; its message is above. Run with --workers 0 to see it in place"
            )
        for number, _ in worker.asked:
            tries[number] += 1
            if tries[number] >= TRIES:
                raise RunError(
                    f"a worker process {what} {TRIES} times (last exit code {code}) with client {pending[number].client!r} in round {pending[number].round}; "
                    "it may have run out of memory: try fewer --workers, a smaller batch, or --workers 0"
                )
            pending[number] = replace(pending[number], die=False)
            waiting.appendleft(number)
        fresh = _worker(self.pool.start())
        self._send_job(fresh)
        self.workers[self.workers.index(worker)] = fresh
        selector.register(fresh.connection, selectors.EVENT_READ, fresh)

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

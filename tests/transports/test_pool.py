"""Workers without processes: the other end of every connection is this test, which says what a
worker does, and when it dies.
"""

from __future__ import annotations

import _thread
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.data import Federation, federate
from equipoise.experiment import ConfigurationError, experiment
from equipoise.records import Down, Record, Up, write
from equipoise.runtime import wire
from equipoise.runtime.evaluation_messages import CheckState
from equipoise.runtime.messages import Reply, Request, reply_file, state_file, state_name
from equipoise.session import job_of
from equipoise.storage.files import writable_path
from equipoise.storage.store import RunError
from equipoise.transports.base import Interrupted, Monitor
from equipoise.transports.workers import memory, processes, sockets
from equipoise.transports.workers.pool import Workers
from equipoise.tree import Tree
from tests.helpers.callbacks import monitor_of
from tests.helpers.runs import settings, sites

SIZES = {f"c{index}": 40 - 5 * index for index in range(4)}


@pytest.fixture(scope="module")
def federation() -> Federation:
    wanted = eq.Experiment(**settings("fedavg"), dataset=eq.from_sites(sites(SIZES)))
    return federate(wanted.data, wanted.seed, wanted.dataset)


class Worker:
    """The other side of a connection.

    It works when somebody waits for it, on the oldest message first.
    """

    def __init__(self, number: int) -> None:
        self.pid, self.connection = number, None
        ours, self.theirs = socket.socketpair()
        self.process: Any = processes.Process(self, ours)  # type: ignore[arg-type]
        self.sender, self.receiver = sockets.Sender(self.theirs), sockets.Receiver(self.theirs)
        self.trees: dict[str, Any] = {}
        self.jobs: list[Any] = []
        self.inbox: list[Any] = []

    def take_in(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.theirs, selectors.EVENT_READ)
            while selector.select(timeout=0):
                message = self.receiver.receive()
                if message["kind"] == "trees":
                    self.trees = dict(message["trees"])
                elif message["kind"] == "job":
                    self.jobs.append(message)
                self.inbox += [] if message["kind"] == "trees" else [message]


class Pool:
    """In place of a pool of processes; `script` says what becomes of a request: a reply, None (it
    hangs), or an exit code.
    """

    def __init__(self, count: int) -> None:
        self.count, self.jobs, self.data, self.started = count, 0, os.memfd_create("test"), []
        self.workers: list[Worker] = []
        self.ends: list[tuple[int, float]] = []
        self.closed, self.refuses, self.now = 0, "", 1000.0
        self.groups = False
        self.asked: list[tuple[int, Request]] = []
        self.script: Callable[[Request], Any] = echo
        self.starting: Callable[[Worker], Any] = lambda worker: True
        self.longest = 0

    def begin(self) -> None:
        while len(self.started) < self.count:
            self.start()

    def start(self) -> Any:
        self.workers.append(Worker(len(self.workers)))
        self.started.append(self.workers[-1].process)
        return self.started[-1]

    def end(self, one: Any, seconds: float) -> int | None:
        code = self.codes.pop(one.process.pid, None)
        self.ends.append((one.process.pid, seconds))
        one.connection.close()
        one.process.theirs.close()
        self.started.remove(one)
        return code

    def close(self) -> None:
        self.closed += 1
        for one in list(self.started):
            self.end(one, 0)

    codes: dict[int, int]

    def wait(self, seconds: float) -> list[Any]:
        """Somebody waits: the workers work, and time passes where none of them says a word."""
        self.work()
        with selectors.DefaultSelector() as selector:
            for one in self.started:
                selector.register(one.connection, selectors.EVENT_READ, one)
            found = [key.data for key, _ in selector.select(0)]
        self.now += 0.0 if found else seconds
        assert self.now < 2000, "nothing ends this wait"
        return found

    def work(self) -> None:
        """Every living worker does one message."""
        self.codes = {}
        for worker in [one.process for one in self.started]:
            worker.take_in()
            self.longest = max(
                self.longest, sum(message["kind"] == "tasks" for message in worker.inbox)
            )
            if worker.inbox and self._one(worker, worker.inbox[0]):
                worker.inbox.pop(0)

    def _one(self, worker: Worker, message: Any) -> bool:
        if message["kind"] == "job":
            found = self.starting(worker)
            if found is True:
                worker.sender.send(
                    Record(
                        kind="ready",
                        number=message["number"],
                        refused=self.refuses,
                        groups=self.groups,
                    )
                )
        else:
            replies = []
            for task in message["tasks"]:
                request = wire.request_of(
                    task["request"], wire.resolved(task["down"], worker.trees)
                )
                self.asked.append((worker.pid, request))
                found = self.script(request)
                if not isinstance(found, Reply):
                    break
                replies.append({"reply": wire.to_wire(found), "up": found.up})
            else:
                told = {
                    "kind": "replies",
                    "replies": replies,
                    "returned": worker.receiver.returned(),
                }
                worker.sender.send(Record._trusted(told))
                found = True
        if type(found) is int:
            self.codes[worker.pid] = found
            worker.theirs.shutdown(socket.SHUT_RDWR)
        return found is True


def echo(request: Request) -> Reply:
    total = float(request.down.model["w"].sum()) if "model" in request.down else 0.0
    return Reply(request.client, Up(word=request.client, total=total), steps=request.round)


@pytest.fixture
def opened(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[Pool, Workers]]]:
    made = list[Pool]()
    monkeypatch.setattr(processes, "out_of_memory_kills", dict)

    def open_(
        count: int = 2, monitor: Monitor | None = None, **changes: Any
    ) -> tuple[Pool, Workers]:
        made.append(Pool(count))
        vars(made[-1]).update(changes)
        pool = made[-1]
        found = Workers(pool, federation, lambda: pool.now)  # type: ignore[arg-type]
        found.open(
            job_of(experiment(settings("fedavg")), "run"), tmp_path / "files", monitor or Monitor()
        )
        return made[-1], found

    yield open_
    for pool in made:
        for worker in pool.workers:
            worker.theirs.close()
            worker.process.connection.close()
        os.close(pool.data)


def asked(count: int = 4, tree: Tree | None = None, **more: Any) -> list[Request]:
    return [
        Request(f"c{index % 4}", "client", Down(**({"model": tree} if tree else {})), 3, 9, **more)
        for index in range(count)
    ]


def test_every_worker_is_told_the_job_the_data_and_the_files(
    opened: Any, tmp_path: Path, federation: Federation
) -> None:
    pool, workers = opened(3)
    assert workers.lanes == 3 and pool.jobs == 1
    for worker in pool.workers:
        (job,) = worker.jobs
        assert (job["number"], job["files"]) == (
            1,
            str(tmp_path / "files"),
        ) and '"protocol": 1' in job["job"]
        assert job["path"] == [path or os.getcwd() for path in sys.path]
        assert torch.equal(memory.attach(job["data"], pool.data).x, federation.x)
    assert (
        torch.equal(workers.federation.x, federation.x)
        and workers.federation.x.data_ptr() != federation.x.data_ptr()
    )


def test_replies_come_in_order_and_large_clients_are_asked_first(opened: Any) -> None:
    seen: list[Any] = []
    pool, workers = opened(1, monitor_of(lambda *told: seen.append(told)))
    assert workers.exchange([]) == [] and not pool.asked
    replies = workers.exchange(asked()[::-1])
    assert [reply.client for reply in replies] == ["c3", "c2", "c1", "c0"] and [
        reply.steps for reply in replies
    ] == [3] * 4
    assert [request.client for _, request in pool.asked] == ["c0", "c1", "c2", "c3"]
    assert seen == [("client", number, 4) for number in (1, 2, 3, 4)] and not pool.ends


def test_trees_that_many_share_are_sent_in_every_exchange_once(opened: Any) -> None:
    pool, workers = opened()
    for fill in (1.0, 2.0):
        assert [
            reply.up.total
            for reply in workers.exchange(asked(tree=Tree({"w": torch.full((3,), fill)})))
        ] == [3 * fill] * 4
        assert all(list(worker.trees) == ["0"] for worker in pool.workers)
    workers.exchange(asked(1, tree=Tree({"w": torch.ones(3)})))
    assert pool.workers[0].trees == {}


def test_memory_of_large_messages_is_used_again_when_the_worker_has_done_with_it(
    opened: Any,
) -> None:
    pool, workers = opened(1)
    for fill in range(6):
        down = Down(model=Tree({"w": torch.full((2**15,), float(fill))}))
        replies = workers.exchange([Request(name, "client", down, 1, 3) for name in ("c0", "c1")])
        assert [reply.up.total for reply in replies] == [fill * 2**15] * 2
        pool.asked.clear()
    # the trees of this exchange, and of the one before
    (worker,) = pool.workers
    assert len(worker.receiver._memories) == 2


@pytest.mark.parametrize(("count", "ahead"), [(8, 1), (9, 2)])
def test_many_requests_are_sent_ahead(count: int, ahead: int, opened: Any) -> None:
    pool, workers = opened(1)
    assert len(workers.exchange(asked(count))) == count and pool.longest == ahead


def test_what_is_refused_is_said_and_an_interrupt_stops(opened: Any) -> None:
    with pytest.raises(ConfigurationError, match="^expected this, got that$"):
        opened(refuses="expected this, got that")
    monitor = Monitor()
    _, workers = opened(monitor=monitor)
    monitor.interrupted = lambda: True
    with pytest.raises(Interrupted):
        workers.exchange(asked())


def test_an_answer_to_the_job_of_an_earlier_run_is_none(opened: Any) -> None:
    def late(worker: Worker) -> Any:
        worker.sender.send(Record(kind="ready", number=0, refused="of another run"))
        return True

    _, workers = opened(starting=late)
    assert len(workers.exchange(asked())) == 4


def dying(client: str, *becomes: Any) -> Callable[[Request], Any]:
    """What becomes of the requests to a client, one after another; then it answers."""
    left = list(becomes)
    return lambda request: left.pop(0) if request.client == client and left else echo(request)


def test_a_worker_that_dies_is_replaced_and_its_client_asked_again_without_the_fault(
    opened: Any, caplog: Any
) -> None:
    pool, workers = opened(1, script=dying("c1", 7, -signal.SIGKILL))
    down = Down(model=Tree({"w": torch.ones(3)}))
    replies = workers.exchange(
        [Request("c0", "client", down, 3, 9), Request("c1", "client", down, 3, 9, die=True)]
    )
    assert [(reply.client, reply.up.total) for reply in replies] == [
        ("c0", 3.0),
        ("c1", 3.0),
    ]  # a new one is sent the trees, too
    assert [(number, request.client, request.die) for number, request in pool.asked] == [
        (0, "c0", False), (0, "c1", True), (1, "c1", False), (2, "c1", False),
    ]  # fmt: skip
    assert pool.ends == [(0, 5.0), (1, 5.0)] and len(pool.started) == 1
    assert "a worker process ended (exit code 7); a new one takes its place" in caplog.text
    assert "ended (killed by signal 9 (SIGKILL))" in caplog.text


def test_a_client_that_ends_its_worker_three_times_ends_the_run(opened: Any) -> None:
    _, workers = opened(2, script=dying("c1", 7, 7, 8))
    with pytest.raises(RunError) as ended:
        workers.exchange(asked())
    assert (
        str(ended.value)
        == "a worker process ended 3 times with client 'c1' in round 3, step 'client' (the last: exit code 8)"
    )


def test_only_the_client_that_a_worker_had_begun_with_is_counted(opened: Any) -> None:
    """The first in the queue kills its worker twice, and so does the second; none three times."""
    left = {"c0": 2, "c1": 2}

    def script(request: Request) -> Any:
        if left.get(request.client, 0):
            left[request.client] -= 1
            return 7
        return echo(request)

    pool, workers = opened(1, script=script)
    requests = [
        Request(f"c{index % 4}", "client", Down(), 3, 99, attempt=index) for index in range(12)
    ]
    assert [reply.client for reply in workers.exchange(requests)] == [
        request.client for request in requests
    ]
    assert len(pool.ends) == 4 and pool.longest == 2
    # what was given back is asked first, in its order
    numbers = [request.attempt for _, request in pool.asked]
    assert numbers == [0, 0, 0, 4, 8, 1, 1, 1, 5, 9, 2, 6, 10, 3, 7, 11]


def test_a_client_that_hangs_costs_one_deadline_and_is_out_of_the_round(
    opened: Any, tmp_path: Path, caplog: Any
) -> None:
    pool, workers = opened(
        1, script=lambda request: None if request.client == "c1" else echo(request)
    )
    request = asked(2, exchange=1)[1]
    left = writable_path(tmp_path / "files", state_file(state_name("c1", 3, 0, 1)))
    left.parent.mkdir(parents=True, exist_ok=True)
    left.touch()
    began = pool.now
    replies = workers.exchange([*asked(1), request], deadline=10.0)
    assert (
        replies[1].failure == "did not answer within 10 s"
        and replies[0].failure is None
        and not left.exists()
    )
    assert pool.ends == [(0, 0)] and 10.0 < pool.now - began < 11.0
    assert "a worker process did not answer within 10 s; a new one takes its place" in caplog.text
    assert [one.client for one in asked(1)] == [
        reply.client for reply in workers.exchange(asked(1))
    ]  # the new one works


def test_the_clock_of_a_request_begins_when_the_one_before_it_has_ended(opened: Any) -> None:
    waiting: dict[str, int] = {}

    def slow(request: Request) -> Any:  # six seconds each
        waiting[request.client] = waiting.get(request.client, 0) + 1
        return echo(request) if waiting[request.client] % 13 == 0 else None

    pool, workers = opened(1, script=slow)
    replies = workers.exchange(asked(9), deadline=8.0)
    assert (
        not any(reply.failure for reply in replies)
        and not pool.ends
        and pool.longest == 2
        and pool.now > 1050
    )


def test_workers_that_end_while_starting_are_started_three_times(opened: Any) -> None:
    pool, workers = opened(2, starting=lambda worker: 7 if worker.pid < 2 else True)
    assert len(workers.exchange(asked())) == 4 and len(pool.ends) == 2
    with pytest.raises(RunError) as ended:
        opened(1, starting=lambda worker: 7)
    assert "3 times while starting (the last: exit code 7)" in str(ended.value)
    assert "--workers 0" in str(ended.value)
    # between them one was ready: those starts count anew
    fails = [False, True, True, False, True, True, False]
    pool, workers = opened(
        1, script=dying("c0", 7, 7), starting=lambda worker: 7 if fails[worker.pid] else True
    )
    assert len(workers.exchange(asked(1))) == 1 and len(pool.workers) == 7


def test_a_worker_that_is_never_ready_ends_the_run(opened: Any) -> None:
    with pytest.raises(
        RunError,
        match="^a worker process was not ready within 120 s; run with --workers 0 to see why$",
    ):
        opened(1, starting=lambda worker: None)


def test_large_replies_are_read_from_their_files(opened: Any, tmp_path: Path) -> None:
    def script(request: Request) -> Reply:
        path = writable_path(tmp_path / "files", reply_file(request))
        path.parent.mkdir(parents=True, exist_ok=True)
        write(Up(word="from a file"), path)
        return Reply(request.client, None, file=reply_file(request))

    _, workers = opened(script=script)
    assert [reply.up.word for reply in workers.exchange(asked(2, exchange=1, large=True))] == [
        "from a file"
    ] * 2


def test_a_pool_is_kept_unless_a_request_is_on_its_way(opened: Any) -> None:
    pool, workers = opened()
    workers.exchange(asked())
    workers.close(keep=True)
    assert not pool.closed
    pool, workers = opened()
    workers.close()
    assert pool.closed == 1
    monitor = Monitor()
    pool, workers = opened(monitor=monitor, script=lambda request: None)
    monitor.interrupted = lambda: len(pool.asked) > 2
    with pytest.raises(Interrupted):
        workers.exchange(asked())
    workers.close(keep=True)
    assert pool.closed == 1


# Memory.


def test_what_another_process_finds_in_the_memory_is_the_federation(federation: Federation) -> None:
    descriptor = os.memfd_create("test")
    os.pwrite(descriptor, b"\xff" * 10**6, 0)  # of an earlier run
    told = memory.share(federation, descriptor)
    found = memory.attach(told, descriptor)
    assert (
        torch.equal(found.x, federation.x)
        and torch.equal(found.y, federation.y)
        and found.x.dtype == federation.x.dtype
    )
    assert (found.name, found.ids, found.task) == (federation.name, federation.ids, federation.task)
    for part in ("train", "validation", "test"):
        for own, theirs in zip(getattr(federation, part), getattr(found, part), strict=True):
            assert np.array_equal(own, theirs) and len(getattr(found, part)) == 4
    assert np.array_equal(found.shared_test, federation.shared_test)
    places = sorted(
        (one["offset"], int(np.prod(one["shape"])) * np.dtype(one["dtype"]).itemsize)
        for one in told["arrays"].values()
    )
    assert all(start % 4096 == 0 for start, _ in places) and all(
        a + n <= b for (a, n), (b, _) in pairwise(places)
    )
    end = places[0][0] + places[0][1]
    assert not any(os.pread(descriptor, places[1][0] - end, end)) and places[1][0] > end, (
        "memory of an earlier run is not kept"
    )
    assert told["bytes"] == os.fstat(descriptor).st_size and told["bytes"] - sum(
        n for _, n in places
    ) < 4096 * (len(places) + 1)
    found.x.zero_()
    assert torch.equal(memory.attach(told, descriptor).x, federation.x), (
        "a stray write stays in its process"
    )
    os.close(descriptor)


# Frames.


@pytest.mark.parametrize("more", [0, 1])
def test_what_fits_goes_in_line_and_the_rest_by_memory(more: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender, receiver = sockets.Sender(ours), sockets.Receiver(theirs)
        empty = sum(map(len, sockets.pack(Record(x=torch.zeros(64, dtype=torch.uint8)))))
        record = Record(x=torch.ones(64 + 2**16 - empty + 64 * more - 64 * 2, dtype=torch.uint8))
        while sum(map(len, sockets.pack(record))) < 2**16 + 64 * more:
            record = Record(x=torch.ones(len(record.x) + 64, dtype=torch.uint8))
        assert sum(map(len, sockets.pack(record))) == 2**16 + 64 * more
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**19)
        sender.send(record)
        assert len(sender._memories) == more and torch.equal(receiver.receive().x, record.x)


def test_the_smallest_memory_that_fits_is_used_again() -> None:
    sender = sockets.Sender(None)  # type: ignore[arg-type]
    sender._memories = {
        number: torch.zeros(size, dtype=torch.uint8)
        for number, size in ((1, 300), (2, 200), (3, 100))
    }
    sender.take_back([1, 2, 3])
    assert sender._memory(150) == (2, None) and sender._memory(150) == (
        1,
        None,
    )  # at most twice as large
    assert sender._memory(50) == (3, None) and sender._free == []
    sender.take_back([3])
    number, descriptor = sender._memory(49)
    assert number == 4 and descriptor is not None and sender._memories[4].numel() == 2**16
    os.close(descriptor)
    number, descriptor = sender._memory(2**16 + 1)
    assert number == 5 and descriptor is not None and sender._memories[5].numel() == 2 * 2**16
    os.close(descriptor)
    assert sender._memory(100) == (3, None)


def test_memory_is_told_to_be_free_once() -> None:
    receiver = sockets.Receiver(None)  # type: ignore[arg-type]
    receiver._done.extend([3, 1])
    assert receiver.returned() == [3, 1] and receiver.returned() == []


# Processes.


def child(program: str) -> int:
    """The number of a child process that nobody but us waits for."""
    return os.posix_spawn("/bin/sh", ["sh", "-c", program], os.environ)


def test_a_forked_process_is_waited_for_and_killed_once() -> None:
    forked = processes.Forked(child("exec sleep 60"))
    with pytest.raises(subprocess.TimeoutExpired) as late:
        forked.wait(0.01)
    assert late.value.timeout == 0.01
    forked.kill()
    assert forked.wait(10.0) == forked.wait() == -signal.SIGKILL
    forked.kill()  # its number may be another's by now
    assert processes.Forked(child("exit 3")).wait() == 3
    gone = child("exit 3")
    os.waitpid(gone, 0)
    processes.Forked(gone).kill()
    assert processes.Forked(gone).wait(1.0) == 0  # someone else waited for it


# Real processes.


@pytest.fixture(scope="module")
def pool(federation: Federation) -> Iterator[tuple[processes.Pool, dict[str, Any]]]:
    """Two worker processes, and a job for them."""
    pool = processes.Pool(2)
    assert pool.data is not None
    job = {
        "kind": "job",
        "number": 1,
        "job": job_of(experiment(settings("fedavg")), "run").text(),
        "data": memory.share(federation, pool.data),
        "path": [],
    }
    yield pool, job
    pool.close()


def answer(worker: processes.Process, *messages: dict[str, Any]) -> Any:
    """Send messages to a worker and return its next answer."""
    if worker.ends is None:
        worker.ends = sockets.Sender(worker.connection), sockets.Receiver(worker.connection)
    sender, receiver = worker.ends
    for message in messages:
        sender.send(Record(message))
    worker.connection.settimeout(60)
    return receiver.receive()


def test_a_worker_refuses_a_job_of_another_version_with_a_sentence(
    pool: tuple[processes.Pool, dict[str, Any]], tmp_path: Path
) -> None:
    other = pool[1]["job"].replace('"protocol": 1', '"protocol": 2')
    ready = answer(pool[0].started[0], pool[1] | {"job": other, "files": str(tmp_path)})
    assert ready["kind"] == "ready" and ready["number"] == 1
    assert ready["refused"].startswith("expected protocol 1, got 2")


def test_a_worker_executes_requests_and_sends_the_traceback_of_an_error(
    pool: tuple[processes.Pool, dict[str, Any]], tmp_path: Path
) -> None:
    worker = pool[0].started[0]
    assert answer(worker, pool[1] | {"files": str(tmp_path)})["refused"] == ""
    check = wire.to_wire(Request("c0", CheckState.step, Record(), 1, 3))
    train = wire.to_wire(Request("c0", "client", Down(), 1, 3))
    tasks = [{"request": request, "down": Down()} for request in (check, train)]
    message = {"kind": "tasks", "tasks": tasks, "returned": []}
    checked, trained = answer(worker, {"kind": "trees", "trees": {}}, message)["replies"]
    assert checked["up"] == Up()
    assert "Traceback" in trained["reply"]["error"] and "model" in trained["reply"]["error"]


def test_a_worker_ends_at_a_damaged_message(
    pool: tuple[processes.Pool, dict[str, Any]],
) -> None:
    worker = pool[0].started[0]
    worker.connection.sendall(struct.pack("<QQ", 2**63, 0))
    assert worker.process.wait(60) == 1


def test_a_worker_ends_when_its_parent_is_gone(
    pool: tuple[processes.Pool, dict[str, Any]],
) -> None:
    worker = pool[0].started[1]
    worker.connection.shutdown(socket.SHUT_RDWR)
    assert worker.process.wait(60) == 0


@pytest.fixture
def forks_allowed() -> Iterator[None]:
    processes.allow_fork()
    yield
    processes.allow_fork(False)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads as Linux does")
def test_a_process_with_a_thread_that_python_does_not_count_is_not_forked(
    forks_allowed: None,
) -> None:
    # A thread of a library, or one that has left Python and still frees its memory.
    assert processes.may_fork()
    end = threading.Lock()
    end.acquire()
    _thread.start_new_thread(end.acquire, ())
    assert threading.active_count() == 1
    try:
        assert not processes.may_fork()
    finally:
        end.release()

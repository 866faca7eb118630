"""Connections to sites: messages that share their tensors, sites that work at the same time."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.experiment import experiment
from equipoise.records import Down
from equipoise.runtime.messages import Job, Request
from equipoise.session import Session
from equipoise.site.messages import Bodies, Message, perform_message, unpacked
from equipoise.transports.apart import Apart
from equipoise.tree import Tree
from tests.helpers.apart_sites import apart_config, network_of, run_apart, run_joined
from tests.helpers.runs import same_run

JOB = Job("0" * 32, {"data": {"name": "x"}})


class Remote:
    """A connection to a site of this process, with faults.

    Steps in one process share the generators of torch, so they wait for each other here.
    """

    lock = threading.Lock()

    def __init__(self, site: Any) -> None:
        self.site = site
        self.is_reachable = True
        self.fault: Exception | None = None
        self.seconds: list[float | None] = []

    def call(self, message: Message, seconds: float | None) -> bytes:
        self.seconds.append(seconds)
        if self.fault is not None:
            raise self.fault
        with self.lock:
            return self.site.answer(message.joined())


def request(client: str, tree: Tree) -> Request:
    return Request(client, "client", Down(model=tree), 1, 1, exchange=1)


def test_messages_with_the_same_tensors_share_their_bytes() -> None:
    tree = Tree({"w": torch.arange(6.0).reshape(2, 3)})
    bodies = Bodies()
    first = perform_message(JOB, request("ada", tree), None, bodies)
    second = perform_message(JOB, request("bo", tree), None, bodies)
    assert first.body is second.body
    for message in (first, second):
        assert torch.equal(unpacked(message.joined())["down"]["model"]["w"], tree["w"])


def test_tensors_that_need_a_copy_are_never_taken_for_each_other() -> None:
    bodies = Bodies()
    messages = []
    for value in range(20):  # each copy may lie where the one before it was
        tree = Tree({"w": torch.full((4, 3), float(value)).t()})
        messages.append(perform_message(JOB, request("ada", tree), None, bodies))
    for value, message in enumerate(messages):
        assert (unpacked(message.joined())["down"]["model"]["w"] == value).all()


def test_sites_that_work_at_the_same_time_give_the_same_bits(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "scaffold")
    network = network_of(tmp_path)
    sites = network.transport().sites
    transport = Apart({name: Remote(site) for name, site in sites.items()}, parallel=True)
    run = run_apart(config, tmp_path / "run", transport)
    assert transport.lanes == 4
    same_run(run_joined(config, tmp_path / "joined"), run, network.states(run))


def test_sites_work_at_the_same_time(tmp_path: Path) -> None:
    together = threading.Barrier(4, timeout=30)

    class Meeting(Remote):
        def call(self, message: Message, seconds: float | None) -> bytes:
            if unpacked(message.joined())["kind"] == "perform":
                together.wait()
            return super().call(message, seconds)

    config = apart_config(tmp_path, "fedavg", rounds=1)
    sites = network_of(tmp_path).transport().sites
    remote = {name: Meeting(site) for name, site in sites.items()}
    assert run_apart(config, tmp_path / "run", Apart(remote, parallel=True)).status == "finished"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(ConnectionError(), "away"), (TimeoutError(), "did not answer within 5 s")],
)
def test_a_site_that_fails_is_left_out_of_the_round(
    tmp_path: Path, fault: Exception, reason: str
) -> None:
    config = apart_config(tmp_path, "fedavg", rounds=1, participation={"deadline": 5.0})
    sites = network_of(tmp_path).transport().sites
    remote = {name: Remote(site) for name, site in sites.items()}
    transport = Apart(remote, parallel=True)

    class Failing(Apart):
        def exchange(self, requests: Any, deadline: float | None = None) -> Any:
            failing = requests[0].exchange == 1
            remote["bo"].fault = fault if failing else None
            return super().exchange(requests, deadline)

    transport = Failing(remote, parallel=True)
    run = run_apart(config, tmp_path / "run", transport)
    rejected = run.rejected()
    assert [(entry["client"], entry["reason"]) for entry in rejected] == [("bo", reason)]
    assert 5.0 in remote["ada"].seconds


def test_a_stop_is_noticed_while_sites_work(tmp_path: Path) -> None:
    stop = threading.Event()

    class Slow(Remote):
        def call(self, message: Message, seconds: float | None) -> bytes:
            if unpacked(message.joined())["kind"] == "perform":
                stop.set()
                time.sleep(0.5)
            return super().call(message, seconds)

    config = apart_config(tmp_path, "fedavg", rounds=50)
    sites = network_of(tmp_path).transport().sites
    transport = Apart({name: Slow(site) for name, site in sites.items()}, parallel=True)
    session = Session(experiment(config), transport, interrupted=stop.is_set)
    with session, pytest.raises(KeyboardInterrupt, match="stopped after round 0"):
        session.start(tmp_path / "run")

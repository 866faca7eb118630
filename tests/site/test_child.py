"""Steps in the child process of a site: the same bits, and deaths and delays that the site
outlives.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.experiment import experiment
from equipoise.records import Down, Record
from equipoise.runtime.messages import Reply, Request
from equipoise.session import job_of
from equipoise.site import Site, SiteSettings
from equipoise.site.child import ChildRuntime
from equipoise.site.log import Log
from equipoise.site.messages import message, perform_message, unpacked
from equipoise.site.settings import LEAST_MEMORY
from equipoise.transports.apart import Apart
from tests.helpers.apart_sites import (
    Network,
    apart_config,
    network_of,
    run_apart,
    run_joined,
)
from tests.helpers.runs import same_run, sites

RUN = "0123456789abcdef" * 2


@pytest.fixture
def children() -> Iterator[list[Apart]]:
    """Transports whose child processes end with the test."""
    transports: list[Apart] = []
    yield transports
    for transport in transports:
        for site in transport.sites.values():
            site.close()  # type: ignore[attr-defined]


def two_sites(tmp_path: Path, method: str, **more: Any) -> tuple[dict[str, Any], Network]:
    config = apart_config(tmp_path, method)
    for name in ("cy", "di"):
        (tmp_path / "data" / f"{name}.npz").unlink()
    return config, network_of(tmp_path, runtime=ChildRuntime, **more)


@pytest.mark.slow
def test_a_child_that_dies_is_replaced_and_the_run_has_the_same_bits(
    tmp_path: Path, children: list[Apart]
) -> None:
    config, network = two_sites(tmp_path, "scaffold")
    killed: list[int] = []

    class Deadly(Apart):
        def exchange(self, requests: Any, deadline: float | None = None) -> list[Reply]:
            if (requests[0].round, requests[0].exchange) == (2, 1):
                killed.append(self.sites["bo"].runtime.pid)  # type: ignore[attr-defined]
                os.kill(killed[0], signal.SIGKILL)
            return super().exchange(requests, deadline)

    transport = Deadly(network.transport().sites)
    children.append(transport)
    run = run_apart(config, tmp_path / "run", transport)
    assert killed and run.rejected() == []
    same_run(run_joined(config, tmp_path / "here"), run, network.states(run))


@pytest.mark.slow
def test_a_child_that_dies_after_the_data_changed_does_not_train_on_the_new_ones(
    tmp_path: Path, children: list[Apart]
) -> None:
    config, network = two_sites(tmp_path, "fedavg")

    class Changed(Apart):
        def exchange(self, requests: Any, deadline: float | None = None) -> list[Reply]:
            if (requests[0].round, requests[0].exchange) == (2, 1):
                x, y = sites({"bo": 13}, seed=9)["bo"]
                np.savez(network.data / "bo.npz", x=x, y=y)
                os.kill(self.sites["bo"].runtime.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            return super().exchange(requests, deadline)

    transport = Changed(network.transport().sites)
    children.append(transport)
    run = run_apart(config, tmp_path / "run", transport)
    assert run.rounds()[1]["joined"] == ["ada"]
    assert "data have changed" in run.rejected()[0]["reason"]


@pytest.mark.thorough
def test_a_step_beyond_the_deadline_of_the_site_is_late(
    tmp_path: Path, children: list[Apart]
) -> None:
    config, network = two_sites(tmp_path, "fedavg", changes={"bo": {"deadline": 1e-4}})
    transport = network.transport()
    children.append(transport)
    run = run_apart(config, tmp_path / "run", transport)
    late = {(row["client"], row["reason"]) for row in run.rejected()}
    assert late == {("bo", "late")} and set(run.final()) == {"ada"}
    assert run.rounds()[0]["joined"] == ["ada"]


class OpenSite:
    """A site with a child process in which a run is open."""

    def __init__(self, tmp: Path, **changes: Any) -> None:
        self.job = job_of(experiment(apart_config(tmp, "scaffold")).with_model((1, 8, 8)), RUN)
        self.folder = tmp / "site"
        settings = SiteSettings(tmp / "data" / "bo.npz", self.folder, **changes)
        self.site = Site("bo", settings)

    def answer(self, data: bytes) -> Any:
        return unpacked(self.site.answer(data))

    def open(self) -> str:
        described = self.answer(message("describe", "bo", self.job).joined())
        if described["code"]:
            return str(described["code"])
        self.ticket = described["ticket"]
        return str(
            self.answer(message("open", "bo", self.job, ticket=self.ticket).joined())["code"]
        )

    def perform(self, down: Record, deadline: float | None = None) -> str:
        request = Request("bo", "client", down, 1, 2, exchange=1)
        data = perform_message(self.job, request, deadline, ticket=self.ticket).joined()
        return str(self.answer(data)["code"])


@pytest.mark.slow
def test_no_wait_for_a_child_that_is_stopped_is_longer_than_its_deadline(tmp_path: Path) -> None:
    opened = OpenSite(tmp_path)
    assert opened.open() == ""
    child = opened.site.runtime
    assert isinstance(child, ChildRuntime) and child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)
    larger_than_a_buffer = Down(model=torch.zeros(2**20))
    began = time.monotonic()
    assert opened.perform(larger_than_a_buffer, deadline=0.1) == "late"
    assert time.monotonic() - began < 30
    opened.site.close()


@pytest.mark.slow
def test_a_close_ends_the_step_of_a_child(tmp_path: Path) -> None:
    opened = OpenSite(tmp_path)
    assert opened.open() == ""
    child = opened.site.runtime
    assert isinstance(child, ChildRuntime) and child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)
    codes: list[str] = []
    thread = threading.Thread(target=lambda: codes.append(opened.perform(Down())))
    thread.start()
    time.sleep(0.5)
    closing = message("close", "bo", opened.job, ticket=opened.ticket).joined()
    assert opened.answer(closing)["code"] == ""
    thread.join(30)
    assert codes == ["refused:ended"] and child.pid is None


_DYING_SITE = """
import os, sys, threading, time
from pathlib import Path
from equipoise.runtime.messages import Job
from equipoise.site import SiteSettings
from equipoise.site.child import ChildRuntime
sys.path.insert(0, sys.argv[1])
runtime = ChildRuntime("bo", SiteSettings(Path("bo.csv"), Path(sys.argv[2])))
threading.Thread(target=runtime.describe, args=(Job("0" * 32, {}),), daemon=True).start()
while runtime.pid is None:
    time.sleep(0.01)
time.sleep(1)
print(runtime.pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_a_child_ends_at_once_with_the_process_of_its_site(tmp_path: Path) -> None:
    # The child imports this in place of the library, and so is busy for a long time.
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(600)\n")
    command = [sys.executable, "-c", _DYING_SITE, str(tmp_path), str(tmp_path / "site")]
    site = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120)
    child = Path("/proc", site.stdout.strip(), "stat")
    until = time.monotonic() + 10
    while child.exists() and ") Z " not in child.read_text():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_output_of_a_child_does_not_fill_the_disk(tmp_path: Path) -> None:
    size = 2**17
    source, sink = os.pipe()
    log = Log(tmp_path / "child.log", size)
    thread = threading.Thread(target=log.copy_from, args=(os.fdopen(source, "rb"),))
    thread.start()
    with os.fdopen(sink, "wb") as file:
        for number in range(50_000):
            file.write(f"line {number}\n".encode())
    thread.join(30)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"child.log", "child.log.old"} and max(sizes.values()) <= size
    assert log.path.read_text().endswith("line 49999\n")


@pytest.mark.slow
def test_a_child_that_needs_more_memory_than_its_limit_has_a_code(tmp_path: Path) -> None:
    opened = OpenSite(tmp_path, memory_limit=LEAST_MEMORY)
    assert opened.open() == ""
    too_much = torch.zeros(LEAST_MEMORY, dtype=torch.uint8)
    assert opened.perform(Down(model=too_much)) == "raised"
    opened.site.close()


@pytest.mark.parametrize(
    "wrong", [{"memory_limit": 1000}, {"memory_limit": 2**31, "device": "cuda"}]
)
def test_a_memory_limit_that_cannot_hold_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="memory_limit"):
        SiteSettings(tmp_path, tmp_path, **wrong)

"""Steps in the child process of a site: the same bits, and deaths and delays that the site outlives."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.runtime.messages import Reply
from equipoise.site.child import ChildRuntime
from equipoise.transports.apart import Apart
from tests.helpers.apart_sites import (
    Network,
    apart_config,
    network_of,
    run_apart,
    run_joined,
)
from tests.helpers.runs import same_run, sites


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

"""Runs whose clients are trained in stacks have the bits of runs with one client after another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from equipoise import methods, mkl
from equipoise.client import Client
from equipoise.methods.fedavg import FedAvg
from equipoise.records import Down, Up
from equipoise.runs import Run
from equipoise.runtime.messages import Reply, Request
from equipoise.transports.base import ClientError
from equipoise.transports.inprocess import InProcess
from equipoise.transports.workers.processes import Pool
from tests.helpers.runs import assert_same, everything, played, same_run, settings, sites
from tests.helpers.transports import over

pytestmark = pytest.mark.skipif(
    not mkl.is_reproducible(), reason="products are not reproducible, so nothing is stacked"
)
NETWORK = {"name": "mlp", "hidden": [24]}  # large enough for a stack
# Of almost one size, so that a single worker receives the first four as a group.
SIZES = {f"c{position}": 24 - position % 2 for position in range(8)}


class OneByOne(InProcess):
    """In process, each client alone."""

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        replies = []
        for request in requests:
            replies += super().exchange([request], deadline)
        return replies


@pytest.fixture(scope="module")
def single() -> Iterator[Pool]:
    """One worker process."""
    pool = Pool(1)
    yield pool
    pool.close()


def run_of(method: Any, out: Path, transport: Any = None, **more: Any) -> Run:
    models = dict.fromkeys(("model", "private", "proxy"), NETWORK)
    training = {"batch": 7, "lr": 0.05}
    config = settings(method, **{"models": models, "training": training, "rounds": 2, **more})
    return played(config, out, sites(SIZES), transport)


# Plain, with a proximal term, with a hook of the gradient, with hooks of layers, with distillation.
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "fedmpr", "fedakd"])
def test_a_run_in_groups_has_the_bits_of_one_client_after_another(
    method: str, tmp_path: Path
) -> None:
    same_run(run_of(method, tmp_path / "alone", OneByOne), run_of(method, tmp_path / "grouped"))


def test_one_and_two_workers_have_these_bits(single: Pool, pool: Pool, tmp_path: Path) -> None:
    alone = run_of("fedakd", tmp_path / "alone", OneByOne)
    same_run(alone, run_of("fedakd", tmp_path / "one", over(single)))
    same_run(alone, run_of("fedakd", tmp_path / "two", over(pool)))


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.names())
def test_every_method_has_these_bits(method: str, single: Pool, pool: Pool, tmp_path: Path) -> None:
    alone = run_of(method, tmp_path / "alone", OneByOne)
    same_run(alone, run_of(method, tmp_path / "grouped"))
    same_run(alone, run_of(method, tmp_path / "one", over(single)))
    same_run(alone, run_of(method, tmp_path / "two", over(pool)))


def test_a_worker_that_dies_with_a_group_changes_no_bit(single: Pool, tmp_path: Path) -> None:
    """The client at which it dies is not the first of its group."""
    script = [{"round": 1, "client": "c4", "kind": "kill"}]
    killed = run_of("fedavg", tmp_path / "killed", over(single), faults={"script": script})
    alone = run_of("fedavg", tmp_path / "alone", OneByOne)
    assert_same(everything(alone), everything(killed))


class Failing(FedAvg):
    """Clients fail: the first one after its fit, the second one before it."""

    def client(self, client: Client, down: Down) -> Up:
        if client.id == "c1":
            raise ValueError("before the fit")
        up = super().client(client, down)
        if client.id == "c0":
            raise ValueError("after the fit")
        return up


def test_in_process_the_error_of_the_first_client_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="'c0'.*after the fit"):
        run_of(Failing(), tmp_path / "run")


class Slow(FedAvg):
    """The step of one client takes too long."""

    def client(self, client: Client, down: Down) -> Up:
        if client.id == "c1":
            time.sleep(60)
        return super().client(client, down)


@pytest.mark.thorough
def test_in_process_only_the_client_that_misses_the_deadline_is_excluded(tmp_path: Path) -> None:
    run = run_of(Slow(), tmp_path / "run", rounds=1, participation={"deadline": 2.0})
    assert [row["client"] for row in run.rejected()] == ["c1"]

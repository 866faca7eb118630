"""One contract for every transport: the same run, bit for bit, wherever clients do their work and
whoever keeps their states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise import methods, simulate
from equipoise.data import Federation
from equipoise.data.roster import Roster
from equipoise.data.samples import Samples
from equipoise.engine.cohort import Clients
from equipoise.runtime.evaluation_messages import PredictShared, SendModel
from equipoise.runtime.messages import Reply, reply_file
from equipoise.server import ServerData
from equipoise.transports.inprocess import Separated
from equipoise.transports.workers.processes import Pool
from tests.helpers.runs import OF_EACH_KIND, played, same_run, settings
from tests.helpers.transports import named, over, separated

DROP_AND_NAN = [
    {"round": 1, "client": "bo", "kind": "drop"},
    {"round": 2, "client": "ada", "kind": "nan"},
]
KILL = [{"round": 2, "client": "di", "kind": "kill"}]
# A fresh worker imports torch, which takes seconds: the quick tests lose one where it could matter,
# the slow ones with every method.
KILLED = ("fedavg", "scaffold", "fedekd")


def job(method: Any, kill: bool = False) -> dict[str, Any]:
    return settings(method, faults={"script": DROP_AND_NAN + (KILL if kill else [])})


@pytest.mark.parametrize("method", methods.names())
@pytest.mark.quick_cases(*OF_EACH_KIND)
def test_every_method_runs_alike_in_process_packed_and_on_two_workers(
    method: str, pool: Pool, tmp_path: Path
) -> None:
    wanted = job(method, kill=method in KILLED)
    here = played(wanted, tmp_path / "here")
    assert {(row["round"], row["client"]) for row in here.rejected()} == {(1, "bo"), (2, "ada")}
    same_run(here, played(wanted, tmp_path / "packed", transport="loopback"))
    before = [one.process.pid for one in pool.started]
    same_run(here, played(wanted, tmp_path / "workers", transport=over(pool)))
    kept = [one.process.pid for one in pool.started]
    assert len(kept) == 2 and len(set(kept) - set(before)) == (1 if method in KILLED else 0)


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.names())
def test_every_method_runs_alike_between_organisations(method: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    apart = played(job(method), tmp_path / "apart", transport=separated(disk))
    same_run(played(job(method), tmp_path / "here"), apart, disk)
    assert not list((tmp_path / "apart" / "files").rglob("client-*"))
    # the last accepted state of each client, and at most the last committed one as well
    if disk.exists():
        committed = {file.path.name for file in apart.store.current("client").values()}
        assert committed <= named(disk) and all(
            sum(name.startswith(f"client-{own}") for name in named(disk)) <= 2
            for own in owners(disk)
        )


def owners(disk: Path) -> set[str]:
    return {name.split("-")[1] for name in named(disk)}


@pytest.fixture(scope="module", params=[1, 3])
def crowd(request: pytest.FixtureRequest) -> Iterator[Pool]:
    found = Pool(request.param)
    yield found
    found.close()


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.names())
def test_every_method_runs_alike_on_one_and_three_workers_that_die(
    method: str, crowd: Pool, tmp_path: Path
) -> None:
    wanted = job(method, kill=True)
    same_run(
        played(wanted, tmp_path / "here"),
        played(wanted, tmp_path / "workers", transport=over(crowd)),
    )


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedekd"])
def test_states_on_a_second_disk_give_the_same_bits(method: str, tmp_path: Path) -> None:
    wanted, disk = settings(method, faults={"script": DROP_AND_NAN}), tmp_path / "disk"
    apart = played(wanted, tmp_path / "apart", transport=separated(disk))
    same_run(played(wanted, tmp_path / "here"), apart, disk)
    assert not list((tmp_path / "apart" / "files").rglob("client-*"))
    committed = {file.path.name for file in apart.store.current("client").values()}
    assert len(committed) == (0 if method == "fedavg" else 4)
    assert all(file.kept_at == "client" for file in apart.store.current("client").values())
    if committed:
        assert committed <= named(disk)


def test_large_replies_go_through_files_on_every_transport(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = settings("fedequilibria", rounds=2)
    here = played(wanted, tmp_path / "here")
    monkeypatch.setattr(Clients, "large", lambda self, down, cohort: True)
    ask, seen = Clients.ask, []

    def watched(self: Clients, requests: Any) -> list[Reply]:
        replies = ask(self, requests)
        for request, reply in zip(requests, replies, strict=True):
            if request.exchange:
                assert reply.file == reply_file(request)
                assert any(tmp_path.glob(f"*/files/{reply.file}"))
                seen.append(reply.file)
        return replies

    monkeypatch.setattr(Clients, "ask", watched)
    for name, transport in (
        ("files", None),
        ("packed", "loopback"),
        ("workers", over(pool)),
        ("apart", separated(tmp_path / "disk")),
    ):
        same_run(here, played(wanted, tmp_path / name, transport=transport))
    assert len(seen) == 4 * 8


def test_a_server_with_a_test_set_of_its_own_measures_as_one_whose_clients_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network the test set for all may lie at the server alone: it asks for the model, not for
    slices of logits.
    """
    config = settings(
        "fedavg",
        rounds=2,
        data={"split": (0.6, 0.15, 0.25), "partition": "natural", "test": "global"},
    )
    here = played(config, tmp_path / "here")
    whole: list[Federation] = []
    asked: list[str] = []

    class Alone(Separated):
        def open(self, *arguments: Any) -> Roster:
            whole.append(self.federation)
            return replace(super().open(*arguments), shared=0, shared_fingerprint="")

        def exchange(self, requests: Any, deadline: float | None = None) -> list[Reply]:
            asked.extend(request.step for request in requests)
            return super().exchange(requests, deadline)

    monkeypatch.setattr(
        simulate,
        "ServerData",
        lambda validation, shared: ServerData(
            validation, Samples.of(whole[0], whole[0].shared_test)
        ),
    )
    alone = played(
        config,
        tmp_path / "alone",
        transport=lambda federation, wanted: Alone(federation, tmp_path / "disk"),
    )
    assert asked.count(SendModel.step) == 2 and PredictShared.step not in asked
    assert alone.table(split="shared") == here.table(split="shared") and alone.table(
        split="shared", client="all"
    )

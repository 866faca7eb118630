"""Faults of a real network: processes are killed, and runs continue with the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from equipoise.transports.nvflare.entry import has_live_job
from equipoise.transports.nvflare.jobs import open_desk
from tests.network.consortium import build
from tests.network.faulty import CHILD, JOB_PROCESS, SITES, Faulty, wait_until
from tests.network.hospitals import give_data, small_tables

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    folder = tmp_path_factory.mktemp("faulty")
    data = small_tables(folder / "tables", SITES)
    consortium = build(folder / "parties", SITES)
    give_data(consortium, folder / "tables")
    network = Faulty(consortium, data)
    try:
        network.start()
        yield network
    finally:
        network.end()


def test_a_run_survives_the_death_of_a_child_a_job_process_and_the_server(
    faulty: Faulty, tmp_path: Path
) -> None:
    with open_desk(faulty.consortium.lead) as desk:
        run = faulty.submit(desk, tmp_path / "run", rounds=40)
        faulty.wait_for_round(run, 2)
        first = faulty.entry(run).job
        faulty.kill_one("north", CHILD)
        faulty.wait_for_more(run)
        assert faulty.entry(run).job == first  # a child's death costs no job
        faulty.kill_one("south", JOB_PROCESS["site"])
        wait_until(lambda: faulty.entry(run).job != first, "new job")
        assert set(faulty.entry(run).deaths) == {"south"}
        faulty.wait_for_more(run)
    faulty.kill("server")
    wait_until(lambda: not has_live_job(faulty.runs, run.order.run), "end of the job")
    faulty.start_server()
    faulty.wait_for_more(run)
    there = faulty.finished(run, tmp_path)
    assert there.last_round == 40


def test_a_site_that_died_is_in_the_run_again_when_it_returns(
    faulty: Faulty, tmp_path: Path
) -> None:
    with open_desk(faulty.consortium.lead) as desk:
        run = faulty.submit(desk, tmp_path / "run", rounds=100, method="fedakd")
        faulty.wait_for_round(run, 2)
        first = faulty.entry(run).job
        faulty.kill("west")
        wait_until(lambda: "west" in faulty.entry(run).away, "site that is away")
        faulty.wait_for_more(run)
        assert faulty.entry(run).job == first  # the others continue
        faulty.start_site("west")
        wait_until(lambda: faulty.entry(run).job != first, "new job")
        faulty.wait_for_more(run)
        assert not faulty.entry(run).away
    there = faulty.finished(run, tmp_path)
    members = [set(row["joined"]) for row in there.rounds()]
    assert {"north", "south"} in members and members[-1] == set(SITES)

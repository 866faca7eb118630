"""Faults of a real network: processes are killed, and runs continue with the same bits."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from equipoise import simulate
from equipoise.experiment import experiment
from equipoise.runs import Run
from equipoise.transports.nvflare import parties
from equipoise.transports.nvflare.entry import RUNS, RunEntry, has_live_job, read_entry
from equipoise.transports.nvflare.jobs import Desk, open_desk
from equipoise.transports.nvflare.processes import PartyProcess, marked_processes
from equipoise.transports.nvflare.scientist import NetworkRun, submit, watch_until_end
from equipoise.transports.nvflare.supervisor import last_round
from tests.helpers.runs import same_as_replay
from tests.network.consortium import Consortium, build
from tests.network.hospitals import give_data, small_tables, states_of

pytestmark = pytest.mark.slow
SITES = ("north", "south", "west")
LONGEST = 240.0  # seconds for a run to continue, on a busy machine


class Faulty:
    """A network whose parties a test kills and starts again."""

    def __init__(self, consortium: Consortium, data: dict[str, Any]) -> None:
        self.consortium = consortium
        self.data = data
        self.runs = consortium.server.folder / RUNS
        self.processes: dict[str, PartyProcess] = {}
        self._attended = ExitStack()

    def start_server(self) -> None:
        process = PartyProcess(self.consortium.server)
        self.processes["server"] = process
        process.wait_until_ready(seconds=LONGEST)
        self._attended.enter_context(parties.attended(self.consortium.server))

    def start_site(self, name: str) -> None:
        self.processes[name] = PartyProcess(self.consortium.sites[name])

    def start(self) -> None:
        self.start_server()
        for name in self.consortium.sites:
            self.start_site(name)
        for name in self.consortium.sites:
            self.processes[name].wait_until_ready(seconds=LONGEST)

    def end(self) -> None:
        self._attended.close()
        for process in reversed(list(self.processes.values())):
            process.end()

    def kill(self, name: str) -> None:
        """Kill all processes of a party at once, as a power cut does."""
        if name == "server":
            self._attended.close()
        for pid in marked_processes(self.processes[name].mark):
            os.kill(pid, signal.SIGKILL)
        self.processes.pop(name).end()

    def kill_one(self, name: str, word: str) -> None:
        """Kill the process of a party whose command line has a word."""
        for pid in marked_processes(self.processes[name].mark):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
            if word in command:
                os.kill(pid, signal.SIGKILL)
                return
        raise AssertionError(f"{name} has no process with {word}")

    def submit(self, desk: Desk, folder: Path, rounds: int, method: Any = "scaffold") -> NetworkRun:
        config = {"data": self.data, "method": method, "rounds": rounds, "keep": 2}
        return submit(desk, experiment(config), folder, SITES)

    def entry(self, run: NetworkRun) -> RunEntry:
        entry = read_entry(self.runs, run.order.run)
        assert entry is not None
        return entry

    def wait_for_round(self, run: NetworkRun, number: int) -> None:
        wait_until(lambda: last_round(self.runs / run.order.run) >= number, f"round {number}")

    def wait_for_more(self, run: NetworkRun, rounds: int = 2) -> None:
        self.wait_for_round(run, last_round(self.runs / run.order.run) + rounds)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < until, f"no {what} within {LONGEST:g} s"
        time.sleep(0.2)


JOB_PROCESS = {"server": "runner_process", "site": "worker_process"}
CHILD = "equipoise.site.child"


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


def assert_same_as_replay(faulty: Faulty, run: NetworkRun, folder: Path) -> Run:
    """Compare everything of a fetched run with its repetition in process."""
    there = Run(run.folder)
    here = simulate.run(experiment(there.replay()), folder / "replay", quiet=True)
    same_as_replay(here, there, states_of(faulty.consortium, there, folder / "states"))
    return there


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
    with open_desk(faulty.consortium.lead) as desk:
        outcome = watch_until_end(desk, run, lambda progress: None)
    assert outcome.status == "finished", outcome
    there = assert_same_as_replay(faulty, run, tmp_path)
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
        assert faulty.entry(run).job == first  # the others go on
        faulty.start_site("west")
        wait_until(lambda: faulty.entry(run).job != first, "new job")
        faulty.wait_for_more(run)
        assert not faulty.entry(run).away
        outcome = watch_until_end(desk, run, lambda progress: None)
    assert outcome.status == "finished", outcome
    there = assert_same_as_replay(faulty, run, tmp_path)
    members = [set(row["joined"]) for row in there.rounds()]
    assert {"north", "south"} in members and members[-1] == set(SITES)

"""Jobs of a run at a server, with sites in this process: what each leaves for the next."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from equipoise import simulate
from equipoise.callbacks import Callback
from equipoise.experiment import experiment
from equipoise.runs import Run
from equipoise.runs.notes import notes
from equipoise.runs.result import read_result
from equipoise.site.messages import Message
from equipoise.storage.store import RunError
from equipoise.transports.nvflare.entry import (
    RunEntry,
    has_live_job,
    job_lock,
    read_entry,
    request_end,
    requested_end,
    set_fields,
)
from equipoise.transports.nvflare.order import RunOrder
from equipoise.transports.nvflare.run_jobs import JobFacts, RunJob
from equipoise.transports.nvflare.scientist import submit
from equipoise.transports.nvflare.serving import Outcome
from tests.helpers.apart_sites import apart_config, network_of, run_joined
from tests.helpers.runs import config, same_as_replay, same_run

RUN = "a" * 32
OWNER = "ann@example.org"
SUPERVISOR = "supervisor@hearts.internal"


@dataclass
class Connection:
    """The connection to a site in this process; sites take turns, since they share torch."""

    site: Any
    lock: threading.Lock
    is_reachable: bool = True
    called: int = 0

    def call(self, message: Message, seconds: float | None) -> bytes:
        if not self.is_reachable:
            raise ConnectionError("away")
        self.called += 1
        with self.lock:
            return bytes(self.site.answer(message.joined()))


class After(Callback):
    """Calls a function after a round."""

    def __init__(self, number: int, function: Callable[[], Any]) -> None:
        self.number = number
        self.function = function

    def on_round(self, record: Any) -> None:
        if record.round == self.number:
            self.function()


@dataclass
class Server:
    """A server whose jobs are run by a test."""

    folder: Path
    config: dict[str, Any]
    is_aborted: bool = False
    jobs: int = 0
    connections: dict[str, Connection] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lock = threading.Lock()
        sites = network_of(self.folder).transport().sites
        self.connections = {name: Connection(site, lock) for name, site in sites.items()}
        self.order = RunOrder(RUN, experiment(self.config).to_spec(), tuple(sites))

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def run(
        self, submitter: str = OWNER, callback: Callback | None = None, **changes: Any
    ) -> Outcome:
        self.jobs += 1
        sites = [name for name, connection in self.connections.items() if connection.is_reachable]
        facts = JobFacts(f"job{self.jobs}", submitter, submitter == SUPERVISOR, tuple(sites))
        order = replace(self.order, **changes)
        job = RunJob(order, facts, self.runs, lambda: self.is_aborted)
        return job.carry_out(
            self.connections, callback or Callback(), self.folder / f"delivered{self.jobs}"
        )

    @property
    def entry(self) -> RunEntry:
        entry = read_entry(self.runs, RUN)
        assert entry is not None
        return entry

    @property
    def store(self) -> Run:
        return Run(self.runs / RUN)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path, apart_config(tmp_path, "scaffold", rounds=3))


def test_a_finished_run_is_not_active_any_more_and_delivered(server: Server) -> None:
    assert server.run() == Outcome("finished")
    assert not server.entry.is_active and server.entry.outcome == "finished"
    assert server.entry.owner == OWNER and server.entry.job == "job1"
    assert Run(server.folder / "delivered1").status == "finished"


def test_a_job_ends_after_the_round_in_which_it_was_asked_to(server: Server) -> None:
    asked = After(2, lambda: request_end(server.runs, RUN, "end"))
    # The request precedes the commit of round 2 for the callback of the job.
    assert server.run(callback=asked).status == "stopped"
    assert server.store.last_round == 2
    assert server.entry.is_active and server.entry.outcome == "stopped" and server.entry.ended
    assert not requested_end(server.runs, RUN)
    assert server.run(SUPERVISOR).status == "finished"
    states = network_of(server.folder).states(server.store)
    same_run(run_joined(server.config, server.folder / "joined"), server.store, states)


def test_a_job_that_flare_aborts_says_so(server: Server) -> None:
    def abort() -> None:
        server.is_aborted = True

    assert server.run(callback=After(1, abort)).status == "stopped"
    assert server.entry.outcome == "aborted" and server.entry.is_active


def test_an_abort_before_the_first_round_is_no_refusal(server: Server) -> None:
    server.is_aborted = True
    for connection in server.connections.values():
        connection.is_reachable = False
    assert server.run().status == "stopped"
    assert server.entry.outcome == "aborted" and server.entry.is_active


def test_a_run_whose_site_is_away_at_the_beginning_begins_when_it_is_back(server: Server) -> None:
    away = next(iter(server.connections.values()))
    away.is_reachable = False
    outcome = server.run()
    assert outcome.status == "stopped" and "begins" in outcome.text
    assert server.entry.is_active and not (server.runs / RUN / "run.db").exists()
    away.is_reachable = True
    assert server.run(SUPERVISOR).status == "finished"


def test_another_lead_may_not_continue_a_run(server: Server) -> None:
    server.run()
    outcome = server.run("bob@example.org")
    assert outcome.status == "refused" and OWNER in outcome.text
    assert not (server.folder / "delivered2").exists()


def test_the_supervisor_does_not_continue_a_run_that_its_owner_stopped(server: Server) -> None:
    server.run(callback=After(1, lambda: request_end(server.runs, RUN, "end")))
    set_fields(server.runs, RUN, is_active=False, reason="its owner stopped it")
    assert server.run(SUPERVISOR).status == "stopped"
    assert server.store.last_round == 1
    assert server.run(OWNER).status == "finished"


@pytest.mark.parametrize("action", ["run", "deliver"])
def test_a_finished_run_is_delivered_again_without_its_sites(server: Server, action: str) -> None:
    server.run()
    for connection in server.connections.values():
        connection.is_reachable = False
        connection.called = 0
    assert server.run(action=action).status == "finished"
    assert Run(server.folder / "delivered2").status == "finished"


def test_a_run_with_a_job_in_progress_is_not_begun_twice(server: Server) -> None:
    with job_lock(server.runs, RUN):
        assert server.run().status == "running"
        assert server.run(action="deliver").status == "running"
    assert not (server.runs / RUN).exists()


def test_the_owner_stops_the_job_of_the_supervisor(server: Server) -> None:
    asked = After(1, lambda: request_end(server.runs, RUN, "end"))
    server.run(callback=asked)
    stopping: list[Outcome] = []

    def stop() -> None:
        thread = threading.Thread(target=lambda: stopping.append(server.run(action="stop")))
        thread.start()
        threads.append(thread)
        while not requested_end(server.runs, RUN):
            pass

    threads: list[threading.Thread] = []
    assert server.run(SUPERVISOR, After(2, stop)).status == "stopped"
    threads[0].join(60)
    assert stopping[0].status == "stopped" and "stopped it" in stopping[0].text
    assert not server.entry.is_active and not has_live_job(server.runs, RUN)
    assert Run(server.folder / "delivered3").last_round == 2


def test_sites_that_are_not_in_the_job_are_away_from_its_beginning(server: Server) -> None:
    server.run(callback=After(1, lambda: request_end(server.runs, RUN, "end")))
    last = list(server.connections)[-1]
    server.connections[last].is_reachable = False
    assert server.run(SUPERVISOR).status == "finished"
    assert set(server.entry.away) == {last}
    assert last not in server.store.rounds()[-1]["cohort"]


def test_a_run_whose_sites_are_away_waits_for_them(server: Server) -> None:
    server.run(callback=After(1, lambda: request_end(server.runs, RUN, "end")))
    for connection in server.connections.values():
        connection.is_reachable = False
    outcome = server.run(SUPERVISOR)
    assert outcome.status == "stopped" and "round 2" in outcome.text
    assert server.entry.is_active


def test_a_new_run_does_not_advise_to_resume_a_finished_one(tmp_path: Path) -> None:
    job = config(tmp_path, "fedavg", rounds=1)
    simulate.run(experiment(job), tmp_path / "run", quiet=True)
    nobody: Any = None  # the folder is checked before anything is sent
    with pytest.raises(RunError, match="is finished, so choose another folder"):
        submit(nobody, experiment(job), tmp_path / "run")


def test_a_run_goes_back_once(tmp_path: Path) -> None:
    server = Server(tmp_path, apart_config(tmp_path, "fedavg", rounds=3, keep=3))
    server.run(callback=After(2, lambda: request_end(server.runs, RUN, "end")))
    asked = After(2, lambda: request_end(server.runs, RUN, "end"))
    assert server.run(from_round=1, callback=asked).status == "stopped"
    assert server.entry.order.from_round is None
    assert server.run(SUPERVISOR, **vars(server.entry.order)).status == "finished"


def test_a_refused_order_leaves_its_reason(server: Server) -> None:
    outcome = server.run(from_round=1)  # of a run that has not begun
    assert outcome.status == "refused"
    assert not server.entry.is_active and server.entry.reason == outcome.text


def test_a_damaged_entry_is_refused_in_one_sentence(server: Server) -> None:
    server.runs.mkdir()
    (server.runs / f"{RUN}.json").write_text("{}")
    outcome = server.run()
    assert outcome.status == "refused" and "entry" in outcome.text


def test_a_site_that_lost_its_state_begins_afresh_by_order(server: Server) -> None:
    site = list(server.connections)[-1]
    server.run(callback=After(1, lambda: request_end(server.runs, RUN, "end")))
    shutil.rmtree(server.folder / "sites" / site / RUN / "states")
    server.run(SUPERVISOR, After(2, lambda: request_end(server.runs, RUN, "end")))
    assert {row["client"] for row in server.store.rejected()} == {site}
    assert "no-state" in server.store.rejected()[0]["reason"]
    assert server.run(restarted=(site,)).status == "finished"
    assert server.entry.order.restarted == ()
    run = server.store
    assert site in run.rounds()[-1]["joined"]
    assert any("reset in round 3" in note for note in notes(read_result(run)))
    repeated = simulate.run(experiment(run.replay()), server.folder / "replay", quiet=True)
    same_as_replay(repeated, run, network_of(server.folder).states(run))


def test_a_site_that_is_not_in_the_run_cannot_begin_afresh(server: Server) -> None:
    with pytest.raises(ValueError, match="expected an order"):
        RunOrder.of(replace(server.order, restarted=("nobody",)).text())

"""Decisions of the supervisor, and a server with a stand-in for FLARE that it looks after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.experiment import ConfigurationError
from equipoise.transports.nvflare.entry import (
    RunEntry,
    clear_request,
    has_live_job,
    job_lock,
    read_entries,
    read_entry,
    request_end,
    requested_end,
    set_fields,
    update_entry,
)
from equipoise.transports.nvflare.job_states import MISSING
from equipoise.transports.nvflare.order import RunOrder
from equipoise.transports.nvflare.supervisor import (
    DEATHS,
    DEATHS_WITHIN,
    HEARD,
    MOST_TRIES,
    SETTLE,
    START_GRACE,
    STATE_GRACE,
    EndJob,
    Facts,
    GiveUp,
    NoteEnd,
    Submit,
    Supervisor,
    Wait,
    decide,
    noted_end,
    pause_after,
    reported_deaths,
)

RUN = "a" * 32
SITES = ("ada", "bob", "cyd")
ORDER = RunOrder(RUN, {"participation": {"floor": 2}}, SITES)
NOW = 10_000.0
BEGAN = RunEntry(ORDER, "ann@example.org", job="job", submitted=NOW - 200)
ENDED = replace(BEGAN, ended=NOW - 100, outcome="stopped", tries=1, round=4)
ALL = dict.fromkeys(SITES, NOW - 1)


def decided(entry: RunEntry, started: float = 1.0, **facts: Any) -> Any:
    facts = {"last_round": 4, "state": "FINISHED:COMPLETED", "heard": ALL} | facts
    return decide(entry, Facts(**facts), NOW, started)


def test_a_run_that_is_not_active_is_left_alone() -> None:
    assert decided(replace(ENDED, is_active=False)) is None


def test_a_job_in_progress_is_left_alone() -> None:
    assert decided(BEGAN, is_live=True) is None


@pytest.mark.parametrize("state", ["RUNNING", "FINISHED:COMPLETED", ""])
def test_the_lock_and_not_the_state_of_flare_shows_that_a_job_lives(state: str) -> None:
    assert decided(BEGAN, is_live=True, state=state) is None


@pytest.mark.parametrize(
    ("since", "heard", "is_back"),
    [
        (NOW - 60, NOW - 1, True),
        (NOW - 60, NOW - 57, False),  # the last heartbeat before it died
        (NOW - 3, NOW - 1, False),  # it may still answer its old job
        (NOW - 200, NOW - HEARD - 1, False),
    ],
)
def test_a_job_ends_after_the_round_when_a_site_is_heard_again(
    since: float, heard: float, is_back: bool
) -> None:
    entry = replace(BEGAN, away={"bob": since})
    action = decided(entry, is_live=True, heard=ALL | {"bob": heard})
    assert action == (EndJob(("bob",)) if is_back else None)


def test_a_job_is_asked_once_to_end() -> None:
    entry = replace(BEGAN, away={"bob": NOW - 60})
    assert decided(entry, is_live=True, is_end_requested=True) is None


def test_a_site_that_is_left_out_does_not_end_a_job() -> None:
    entry = replace(BEGAN, away={"bob": NOW - 60}, left_out={"bob": "it died"})
    assert decided(entry, is_live=True) is None


def test_a_job_has_time_to_start() -> None:
    entry = replace(BEGAN, submitted=NOW - START_GRACE + 1)
    assert isinstance(decided(entry, state="RUNNING"), Wait)
    entry = replace(BEGAN, submitted=NOW - START_GRACE - 1)
    assert decided(entry, state="RUNNING") == NoteEnd()


def test_a_job_of_before_a_restart_is_dead_at_once() -> None:
    entry = replace(BEGAN, submitted=NOW - 5)
    assert decided(entry, state="RUNNING", started=NOW - 4) == NoteEnd()


def test_a_job_that_flare_will_start_is_waited_for_also_after_a_restart() -> None:
    assert isinstance(decided(BEGAN, state="SUBMITTED", started=NOW - 4), Wait)


def test_nothing_is_decided_while_the_server_does_not_answer() -> None:
    assert isinstance(decided(BEGAN, state=""), Wait)


@pytest.mark.parametrize("state", ["FINISHED:EXECUTION_EXCEPTION", "FINISHED:ABNORMAL", MISSING])
def test_a_job_that_ended_without_a_word_is_noted(state: str) -> None:
    assert decided(BEGAN, state=state) == NoteEnd()


def test_a_run_continues_with_all_connected_sites() -> None:
    assert decided(ENDED) == Submit(SITES)
    heard = ALL | {"bob": NOW - HEARD - 1}
    assert decided(ENDED, heard=heard) == Submit(("ada", "cyd"))


def test_a_run_waits_for_the_floor() -> None:
    action = decided(ENDED, heard={"ada": NOW})
    assert isinstance(action, Wait) and "1 of at least 2" in action.reason


def test_a_run_begins_with_all_of_its_sites() -> None:
    action = decided(ENDED, heard={"ada": NOW, "bob": NOW}, last_round=-1)
    assert isinstance(action, Wait) and "'cyd'" in action.reason
    assert decided(ENDED, last_round=-1) == Submit(SITES)


def test_a_run_that_cannot_begin_without_a_site_that_is_left_out_is_given_up() -> None:
    entry = replace(ENDED, left_out={"cyd": "it died"})
    action = decided(entry, last_round=-1)
    assert isinstance(action, GiveUp) and "it died" in action.reason


def test_sites_of_the_last_job_have_some_seconds_to_return() -> None:
    heard = {"ada": NOW, "bob": NOW}
    entry = replace(ENDED, ended=NOW - SETTLE + 1)
    assert isinstance(decided(entry, heard=heard), Wait)
    assert isinstance(decided(ENDED, heard=heard, started=NOW - SETTLE + 1), Wait)
    # Nobody waits for a site that was away already.
    away = replace(entry, away={"cyd": NOW - 300})
    assert decided(away, heard=heard) == Submit(("ada", "bob"))


def test_the_pause_doubles_up_to_a_minute() -> None:
    for tries, pause in [(1, 1), (2, 2), (3, 4), (7, 60), (19, 60)]:
        assert pause_after(tries) == pause
        early = replace(ENDED, tries=tries, ended=NOW - pause + 0.5)
        assert isinstance(decided(early), Wait)
        due = replace(ENDED, tries=tries, ended=NOW - pause)
        assert decided(due) == Submit(SITES)


def test_a_run_without_a_new_round_is_given_up_after_twenty_jobs() -> None:
    action = decided(replace(ENDED, tries=MOST_TRIES))
    assert isinstance(action, GiveUp) and str(MOST_TRIES) in action.reason


def test_a_new_round_begins_the_count_of_tries_anew() -> None:
    entry = replace(BEGAN, tries=MOST_TRIES, round=4)
    assert noted_end(entry, Facts(last_round=5), NOW).tries == 0
    assert noted_end(entry, Facts(last_round=4), NOW).tries == MOST_TRIES


def test_a_run_that_its_owner_aborted_is_not_continued() -> None:
    aborted = replace(ENDED, outcome="aborted")
    assert isinstance(decided(aborted, state="FINISHED:ABORTED"), GiveUp)
    # FLARE aborts a job also when the process of a site dies.
    assert decided(aborted, state="FINISHED:ABORTED", deaths=["bob"]) == Submit(SITES)
    assert decided(aborted, state="FINISHED:EXECUTION_EXCEPTION") == Submit(SITES)


def test_flare_has_time_to_state_why_it_ended_a_job() -> None:
    aborted = replace(ENDED, outcome="aborted", ended=NOW - STATE_GRACE + 1)
    assert isinstance(decided(aborted, state="RUNNING"), Wait)
    aborted = replace(ENDED, outcome="aborted", ended=NOW - STATE_GRACE)
    assert decided(aborted, state="RUNNING") == Submit(SITES)


def test_a_site_is_left_out_after_three_deaths_within_ten_minutes() -> None:
    entry = BEGAN
    for number in range(DEATHS):
        assert not entry.left_out
        entry = replace(entry, job=f"job{number}", ended=0.0)
        for _ in range(2):  # noting the same end twice counts once
            entry = noted_end(entry, Facts(deaths=["bob"]), NOW + number)
    assert "3 times within 10 minutes" in entry.left_out["bob"]


def test_deaths_of_long_ago_do_not_count() -> None:
    entry = BEGAN
    for number in range(2 * DEATHS):
        entry = replace(entry, job=f"job{number}", ended=0.0)
        entry = noted_end(entry, Facts(deaths=["bob"]), NOW + number * DEATHS_WITHIN / 2)
    assert not entry.left_out


def test_deaths_are_read_from_the_log_of_the_server() -> None:
    lines = [
        "Failing job j1 due to reported failure from bob: aborted",
        "Failing job j2 due to reported failure from ada: execution exception",
        "Started run: j1",
    ]
    assert reported_deaths("\n".join(lines), "j1") == ["bob"]
    assert reported_deaths("", "j1") == []


def test_an_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    entry = replace(
        ENDED, deaths={"bob": {"j": 3.0}}, away={"ada": 2.5}, left_out={"bob": "it died"}
    )
    assert read_entry(tmp_path, RUN) is None
    update_entry(tmp_path, RUN, lambda present: entry)
    assert read_entry(tmp_path, RUN) == entry
    assert read_entries(tmp_path) == ([entry], [])
    assert set_fields(tmp_path, RUN, tries=9) == replace(entry, tries=9)
    assert set_fields(tmp_path, "b" * 32, tries=9) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"order": "x"}', '{"order": 3}'])
def test_a_damaged_entry_is_named_and_the_others_are_read(tmp_path: Path, text: str) -> None:
    update_entry(tmp_path, RUN, lambda present: ENDED)
    (tmp_path / "b.json").write_text(text)
    entries, problems = read_entries(tmp_path)
    assert entries == [ENDED]
    assert len(problems) == 1 and "b.json" in problems[0]


def test_a_second_job_of_a_run_is_noticed(tmp_path: Path) -> None:
    assert not has_live_job(tmp_path, RUN)
    with job_lock(tmp_path, RUN) as is_first:
        assert is_first and has_live_job(tmp_path, RUN)
        with job_lock(tmp_path, RUN) as is_second:
            assert not is_second
    assert not has_live_job(tmp_path, RUN)


def test_a_request_to_end_can_be_withdrawn(tmp_path: Path) -> None:
    request_end(tmp_path, RUN, "end")
    assert requested_end(tmp_path, RUN) == "end"
    clear_request(tmp_path, RUN)
    assert requested_end(tmp_path, RUN) == ""


@dataclass
class Server:
    """A stand-in for FLARE's server: jobs live as long as a test holds their lock."""

    runs: Path
    now: float = NOW
    connected: set[str] = field(default_factory=lambda: set(SITES))
    states: dict[str, str] = field(default_factory=dict)
    submitted: list[tuple[str, ...]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    live: ExitStack = field(default_factory=ExitStack)

    def submit(self, order: RunOrder, sites: Sequence[str] = ()) -> str:
        self.submitted.append(tuple(sites))
        job = f"job{len(self.submitted)}"
        self.states[job] = "SUBMITTED"
        return job

    def status(self, job: str) -> str:
        return self.states.get(job, MISSING)

    def abort(self, job: str) -> None:
        self.aborted.append(job)
        raise ConfigurationError("the job is not running")

    def heard(self) -> Mapping[str, float]:
        return dict.fromkeys(self.connected, self.now)

    def begin(self, job: str) -> None:
        self.states[job] = "RUNNING"
        assert self.live.enter_context(job_lock(self.runs, RUN))

    def die(self, job: str, state: str = "FINISHED:EXECUTION_EXCEPTION") -> None:
        self.live.close()
        self.states[job] = state


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "runs")
    entry = replace(BEGAN, job="job0", submitted=NOW)
    update_entry(server.runs, RUN, lambda present: entry)
    server.begin("job0")
    yield server
    server.live.close()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervisor(server: Server, tmp_path: Path, said: list[str]) -> Supervisor:
    return Supervisor(
        server.runs,
        tmp_path / "log.txt",
        said.append,
        clock=lambda: server.now,
        started=NOW - 1,
        last_round=lambda folder: 0,
    )


def watch(supervisor: Supervisor, server: Server, seconds: int) -> None:
    for _ in range(seconds):
        supervisor.step(server)
        server.now += 1


def entry_of(server: Server) -> RunEntry:
    entry = read_entry(server.runs, RUN)
    assert entry is not None
    return entry


def test_a_job_that_dies_is_followed_by_another(server: Server, supervisor: Supervisor) -> None:
    watch(supervisor, server, 3)
    assert server.submitted == []
    server.die("job0")
    watch(supervisor, server, 5)
    assert server.submitted == [SITES]
    assert entry_of(server).job == "job1" and entry_of(server).tries == 1


def test_a_job_that_the_server_lost_is_aborted_first(
    server: Server, supervisor: Supervisor
) -> None:
    server.die("job0", "RUNNING")
    supervisor.started = server.now + 1  # the server was started anew
    watch(supervisor, server, 5)
    assert server.aborted == ["job0"] and server.submitted == [SITES]


def test_jobs_that_all_die_are_tried_twenty_times(
    server: Server, supervisor: Supervisor, said: list[str]
) -> None:
    server.die("job0")
    for _ in range(2000):
        supervisor.step(server)
        server.now += 1
        job = entry_of(server).job
        if server.states[job] == "SUBMITTED":
            server.states[job] = "FINISHED:ABNORMAL"
    assert len(server.submitted) == MOST_TRIES
    assert not entry_of(server).is_active and "20 jobs" in entry_of(server).reason
    assert "is not continued" in said[-1]


def test_a_site_whose_process_dies_again_and_again_is_left_out(
    server: Server, supervisor: Supervisor, tmp_path: Path
) -> None:
    log = tmp_path / "log.txt"
    log.write_text("Failing job job0 due to reported failure from bob: aborted\n")
    server.die("job0")
    for number in (1, 2):
        watch(supervisor, server, 10)
        with log.open("a") as file:
            file.write(f"Failing job job{number} due to reported failure from bob: aborted\n")
        server.states[f"job{number}"] = "FINISHED:EXECUTION_EXCEPTION"
    watch(supervisor, server, 10)
    assert server.submitted == [SITES, SITES, ("ada", "cyd")]
    assert "bob" in entry_of(server).left_out


def test_a_site_that_returns_is_in_the_next_job(server: Server, supervisor: Supervisor) -> None:
    set_fields(server.runs, RUN, away={"bob": server.now})
    server.connected.remove("bob")
    watch(supervisor, server, 20)
    assert not requested_end(server.runs, RUN)
    server.connected.add("bob")
    watch(supervisor, server, 2)
    assert requested_end(server.runs, RUN) == "end"
    set_fields(server.runs, RUN, ended=server.now, outcome="stopped")
    server.die("job0", "RUNNING")  # FLARE is still ending it
    watch(supervisor, server, 3)
    assert server.submitted == [SITES]


def test_a_finished_run_is_not_continued(server: Server, supervisor: Supervisor) -> None:
    set_fields(server.runs, RUN, is_active=False, ended=server.now, outcome="finished")
    server.die("job0", "FINISHED:COMPLETED")
    watch(supervisor, server, 5)
    assert server.submitted == []


def test_the_reason_for_waiting_is_reported_once(
    server: Server, supervisor: Supervisor, said: list[str]
) -> None:
    server.die("job0")
    server.connected = {"ada"}
    watch(supervisor, server, 60)
    assert server.submitted == []
    assert len([text for text in said if "1 of at least 2" in text]) == 1

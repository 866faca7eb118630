"""Child processes that execute runs: what is made of their answers, and of their silence or death.

The children here are shell scripts in place of `equipoise.comparison.run_process`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise.comparison import executor
from equipoise.comparison.executor import Progress, execute
from equipoise.comparison.plan import Cell
from tests.helpers.plans import plan
from tests.helpers.stores import made_up_run


def say(event: str, **more: object) -> str:
    return f"echo '{json.dumps({'event': event, **more})}'"


def children(script: str) -> Callable[[], subprocess.Popen[bytes]]:
    """Return a function that starts a child which does this for every job."""
    command = ["sh", "-c", f"while read job; do {script}; done"]
    return lambda: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def planned(deadline: float = 20.0, methods: tuple[str, ...] = ("fedavg",)) -> list[Cell]:
    base = {
        "rounds": 2,
        "data": {"name": "digits", "clients": 2},
        "participation": {"deadline": deadline},
    }
    return plan(base, list(methods), seeds=[1])


def executed(
    script: str, folder: Path, deadline: float = 20.0
) -> tuple[str | None, list[int], Path]:
    """Return the failure of a single run, the rounds that it reported, and its log."""
    rounds: list[int] = []
    progress = Progress(on_round=lambda cell, number: rounds.append(number))
    cell = planned(deadline)[-1]
    failures = execute([cell], folder, 1, progress, start=children(script))
    return failures.get(cell.name), rounds, folder / cell.name / "log.txt"


@pytest.mark.parametrize(
    ("script", "failure", "rounds"),
    [
        (f"{say('round', round=1)}; {say('alive')}; {say('round', round=2)}; {say('done')}", None, [1, 2]),
        (f"touch log; {say('failed', reason='no luck')}", "no luck", []),
        (f"{say('round', round=1)}; exit 3", "status 3", [1]),
        ("kill -9 $$", "signal 9", []),
        ("printf '{\"event\": \"ro'; sleep 0.05; echo 'und\", \"round\": 5}'; " + say("done"), None, [5]),
    ],
)  # fmt: skip
def test_a_child_is_believed_until_its_last_event(
    script: str, failure: str | None, rounds: list[int], tmp_path: Path
) -> None:
    reason, reported, log = executed(script, tmp_path)
    assert reported == rounds
    if failure is None:
        assert reason is None
    else:
        assert reason is not None and failure in reason and f"details in {log}" in reason


def test_a_silent_child_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "LAST_SECONDS", 0.05)
    reason, _, _ = executed("exec sleep 60", tmp_path, deadline=0.1)
    assert reason is not None and "0.1 seconds (participation.deadline)" in reason


def test_a_job_says_what_is_to_be_run_and_where(tmp_path: Path) -> None:
    cell = planned()[-1]
    file = tmp_path / "job"
    start = children(f'printf "%s" "$job" > {file}; {say("done")}')
    assert execute([cell], tmp_path, 1, Progress(), {"cluster": "x"}, start) == {}
    job = json.loads(file.read_text())
    assert job["folder"] == str(tmp_path / cell.name) and job["where"] == {"cluster": "x"}
    assert job["experiment"]["seed"] == 1 and all(job["path"])


def test_a_finished_run_is_skipped_and_a_stopped_one_is_not(tmp_path: Path) -> None:
    first, second = planned()
    made_up_run(tmp_path / first.name)
    made_up_run(tmp_path / second.name, finished=False)
    events: list[Any] = []
    progress = Progress(
        on_plan=lambda missing, finished: events.append(([c.name for c in missing], finished)),
        on_end=lambda cell, failure: events.append((cell.name, failure)),
    )
    assert execute([first, second], tmp_path, 2, progress, start=children(say("done"))) == {}
    assert events == [([second.name], 1), (second.name, None)]


@pytest.mark.parametrize(("script", "count"), [(say("done"), 1), (f"{say('done')}; exit 0", 3)])
def test_a_child_takes_the_next_run_and_a_dead_one_is_replaced(
    script: str, count: int, tmp_path: Path
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = children(script)

    def counted() -> subprocess.Popen[bytes]:
        started.append(start())
        return started[-1]

    def wait_for_death(cell: Cell, failure: str | None) -> None:
        if count > 1:
            started[-1].wait(20)

    cells = planned(methods=("fedavg", "fedprox"))
    progress = Progress(on_end=wait_for_death)
    assert execute(cells, tmp_path, 1, progress, start=counted) == {}
    assert len(started) == count and all(child.poll() is not None for child in started)


def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda process: {0, 2, 5} if process == 0 else {1}, raising=False
    )
    assert executor.cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert executor.cores() == 1

"""Processes that carry out runs, without runs: what is made of what they say, and how one that is silent or dies is reported."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise.callbacks import ClientProgress, RunStart
from equipoise.comparison import executor, run_process
from equipoise.comparison.executor import Progress, _in_child, execute, finished
from equipoise.comparison.run_process import _in_one_line, run_cell
from equipoise.experiment import Experiment
from tests.helpers.stores import made_up_run


def say(event: str, **more: object) -> str:
    said = json.dumps({"event": event, **more})
    return f"echo '{said}'"


def cell(name: str = "one", deadline: float = 20.0, portable: str | None = None) -> Any:
    wanted = SimpleNamespace(
        participation=SimpleNamespace(deadline=deadline),
        imports=SimpleNamespace(plain=list),
        to_spec=lambda: {"seed": 3},
        portable=portable,
    )
    return SimpleNamespace(name=name, experiment=wanted)


def told(script: str, folder: Path, deadline: float = 20.0) -> tuple[str | None, list[int]]:
    """The failure, if any, that is reported of a child that reads its job and then does this; and the rounds that it told of."""
    rounds: list[int] = []
    progress = Progress(on_round=lambda cell, number: rounds.append(number))
    with subprocess.Popen(
        ["sh", "-c", f"read job; {script}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        try:
            return _in_child(
                child, cell(deadline=deadline), folder, progress, {"cluster": None}
            ), rounds
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("script", "failure", "rounds"),
    [
        (f"{say('round', round=1)}; {say('alive')}; {say('round', round=2)}; {say('done')}; {say('round', round=9)}", None, [1, 2]),
        (say("failed", reason="no luck"), "no luck (details in {log})", []),
        (f"{say('round', round=1)}; exit 3", "its process ended with status 3 (details in {log})", [1]),
        ("kill -9 $$", "its process ended with signal 9 (details in {log})", []),
        ("printf '{\"event\": \"ro'; sleep 0.05; echo 'und\", \"round\": 5}'; " + say("done"), None, [5]),
    ],
)  # fmt: skip
def test_a_child_is_believed_until_its_last_word(
    script: str, failure: str | None, rounds: list[int], tmp_path: Path
) -> None:
    log = tmp_path / "one" / "log.txt"
    log.parent.mkdir()
    log.touch()
    assert told(script, tmp_path) == (failure and failure.format(log=log), rounds)
    assert log.exists() == (failure is not None), "logs are of runs that failed"


def test_a_silent_child_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "LAST_SECONDS", 0.05)
    failure, _ = told("exec sleep 60", tmp_path, deadline=0.1)
    assert failure is not None and failure.startswith(
        "no sign of life for 0.1 seconds (participation.deadline), so it was ended"
    )
    child = subprocess.Popen(
        ["sh", "-c", "read job; exit 7"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    monkeypatch.setattr(executor, "LAST_SECONDS", 20.0)
    executor._end(child)
    assert child.returncode == 7, "one that ends when asked is not killed"
    assert child.stdout is not None
    child.stdout.close()


def test_a_job_says_what_is_to_be_run_and_where(tmp_path: Path) -> None:
    failure, _ = told(f'echo "$job" > {tmp_path}/job; {say("done")}', tmp_path)
    job = json.loads((tmp_path / "job").read_text())
    assert failure is None and all(job["path"])
    del job["path"]
    one = tmp_path / "one"
    assert job == {
        "experiment": {"seed": 3},
        "imports": [],
        "folder": str(one),
        "log": str(one / "log.txt"),
        "where": {"cluster": None},
    }


def test_what_is_finished_is_left_alone_and_the_rest_is_run_here_or_in_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up_run(tmp_path / "whole")
    made_up_run(tmp_path / "cut", finished=False)
    assert (
        finished(tmp_path / "whole")
        and not finished(tmp_path / "cut")
        and not finished(tmp_path / "none")
    )
    sent: list[Any] = []
    monkeypatch.setattr(
        executor,
        "_side_by_side",
        lambda cells, folder, jobs, progress, ended, where: sent.append(
            ([c.name for c in cells], jobs, where)
        ),
    )

    def here(wanted: Any, folder: Path, tell: Callable[..., None]) -> None:
        tell("alive")
        tell("round", round=4)
        if folder.name == "none":
            raise ValueError("not today")

    monkeypatch.setattr(run_process, "run_cell", here)
    planned: list[Any] = []
    seen: list[Any] = []
    progress = Progress(
        on_plan=lambda missing, finished: planned.append(([c.name for c in missing], finished)),
        on_round=lambda cell, number: seen.append((cell.name, number)),
        on_end=lambda cell, failure: seen.append((cell.name, failure)),
    )
    cells = [
        cell("whole"),
        cell("cut"),
        cell("none", portable="data"),
        cell("mine", portable="data"),
    ]
    assert execute(cells, tmp_path, 3, progress) == {"none": "ValueError: not today"}
    assert planned == [(["cut", "none", "mine"], 1)] and sent == [(["cut"], 3, {})]
    assert seen == [("none", 4), ("none", "ValueError: not today"), ("mine", 4), ("mine", None)]
    execute(cells[:2], tmp_path, 1, Progress(), {"cluster": "x"})
    assert sent[-1] == (["cut"], 1, {"cluster": "x"})


def test_as_many_children_as_jobs_and_each_takes_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children: list[Any] = []
    ended: list[Any] = []
    closed: list[Any] = []

    def start() -> Any:
        children.append(SimpleNamespace(poll=lambda: None))
        return children[-1]

    monkeypatch.setattr(executor, "_start", start)
    monkeypatch.setattr(executor, "_end", closed.append)
    monkeypatch.setattr(
        executor, "_in_child", lambda child, cell, *more: None if cell.name != "b" else "broke"
    )
    cells = [cell(name) for name in "abc"]
    executor._side_by_side(
        cells, tmp_path, 1, Progress(), lambda cell, failure: ended.append((cell.name, failure)), {}
    )
    assert (
        ended == [("a", None), ("b", "broke"), ("c", None)]
        and len(children) == 1
        and closed == children
    )
    executor._side_by_side([], tmp_path, 2, Progress(), lambda cell, failure: None, {})
    assert len(children) == 1
    monkeypatch.setattr(
        executor,
        "_start",
        lambda: children.append(SimpleNamespace(poll=lambda: 1)) or children[-1],
    )
    executor._side_by_side(cells, tmp_path, 1, Progress(), lambda cell, failure: None, {})
    assert len(children) == 4, "in place of one that has ended there is a new one"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one line"), "one line"),
        (ValueError("\nfirst\n\n  middle\n  last  \n"), "first last"),
        (KeyError(), "KeyError"),
        (RuntimeError(" \n "), "RuntimeError"),
    ],
)
def test_an_error_is_one_line(error: Exception, line: str) -> None:
    assert _in_one_line(error) == line


def test_a_run_is_begun_or_resumed_and_tells_of_rounds_and_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    began: list[Any] = []
    clock = [0.0]
    monkeypatch.setattr(run_process.time, "monotonic", lambda: clock[0])

    def play(events: Any) -> None:
        events.on_start(RunStart(tmp_path, 3, 9))
        for moment in (1.0, 1.1, 2.0, 2.2):
            clock[0] = moment
            events.on_client(ClientProgress("training", 1, 2))
        events.on_round(SimpleNamespace(finish=False, round=3))
        events.on_round(SimpleNamespace(finish=True, round=4))

    def run(wanted: Any, folder: Path, events: Any, quiet: bool, **where: Any) -> None:
        began.append(("run", folder.name, where))
        play(events)

    monkeypatch.setattr(run_process, "run", run)
    monkeypatch.setattr(
        run_process,
        "resume",
        lambda folder, events, given, **where: began.append(
            ("resume", folder.name, given.seed, where)
        ),
    )
    wanted = Experiment(seed=5)
    run_cell(wanted, tmp_path / "new", lambda kind, **more: said.append((kind, more)))
    assert said == [
        ("round", {"round": 2}),
        ("alive", {}),
        ("alive", {}),
        ("round", {"round": 3}),
    ], "a sign of life after more than a second"
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.db").touch()
    run_cell(wanted, tmp_path / "old", lambda kind, **more: None, {"cluster": "x"})
    assert began == [("run", "new", {}), ("resume", "old", 5, {"cluster": "x"})]


def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda process: {0, 2, 5} if process == 0 else {1}, raising=False
    )
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert executor.cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert executor.cores() == 8
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert executor.cores() == 1

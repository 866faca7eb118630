"""What a long run costs to look at grows with its rounds, not with their square."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from equipoise.runs import Run
from tests.helpers import half_finished

PHASES = ("clients", "transport", "aggregation", "evaluation", "store")


def long(folder: Path, rounds: int) -> Run:
    shutil.copytree(half_finished.FOLDER / "fedavg", folder)
    with sqlite3.connect(folder / "run.db") as db:
        db.execute("delete from rounds where round > 0")
        db.execute("delete from seconds where round > 0")
        db.executemany("insert into rounds values (?, 0, '[\"0\"]', '[\"0\"]', 1, 2, 3, 4, null)", [(n,) for n in range(1, rounds + 1)])
        db.executemany("insert into seconds values (?, ?, ?)", [(n, phase, n / 8) for n in range(1, rounds + 1) for phase in PHASES])
    db.close()
    configuration = folder / "experiment.yaml"
    configuration.write_text(configuration.read_text().replace("\nrounds: 4\n", f"\nrounds: {rounds}\n"))
    return Run(folder)


def work(run: Run) -> tuple[int, int]:
    """How many statements SQLite was given for `rounds`, and how many thousand steps of its machine they took."""
    statements: list[str] = []
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    run.store.db.set_trace_callback(statements.append)
    run.store.db.set_progress_handler(step, 1000)
    run.rounds()
    run.store.db.set_trace_callback(None)
    run.store.db.set_progress_handler(None, 0)
    return len([text for text in statements if text.lstrip().lower().startswith("select")]), steps


@pytest.mark.parametrize("migrated", [False, True], ids=["format 1", "format 2"])
def test_the_rounds_of_a_run_are_one_query_whose_work_grows_with_their_number(migrated: bool, tmp_path: Path) -> None:
    from equipoise.storage.store import Store

    runs = []
    for rounds in (500, 4000):
        run = long(tmp_path / str(rounds), rounds)
        if migrated:
            Store(run.folder, writing=True).close()
            run = Run(run.folder)
        runs.append(run)
    (few_statements, few), (many_statements, many) = map(work, runs)
    assert few_statements == many_statements == 1
    assert many < 12 * few  # eight times the rounds; each of 4,000 rounds looking through all would be sixty times the work
    rows = runs[1].rounds()
    assert [row["round"] for row in rows] == list(range(1, 4001))
    assert rows[99]["seconds"] == dict.fromkeys(PHASES, 100 / 8) and list(rows[99]["seconds"]) == list(PHASES)
    assert rows[99]["cohort"] == ["0"] and "phase" not in rows[99]


def test_a_round_without_times_is_a_round(tmp_path: Path) -> None:
    run = long(tmp_path / "run", 3)
    with sqlite3.connect(tmp_path / "run" / "run.db") as db:
        db.execute("delete from seconds where round = 2")
    db.close()
    assert [row["seconds"].get("store") for row in run.rounds()] == [1 / 8, None, 3 / 8]

"""What a long run costs to look at grows with its rounds, not with their square."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from equipoise.runs import Run
from equipoise.storage.store import RoundRecord, Store
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


def written(folder: Path, keep: int, cohorts: list[list[int]], reopened: set[int]) -> Iterator[Store]:
    """A store in which the clients of each round's cohort wrote a state, and the server its own; given after every commit."""
    store = Store.create(folder, "", {})
    for number, cohort in enumerate(cohorts):
        if number in reopened:
            store.close()
            store = Store(folder, writing=True)
        names = {"server": f"server-r{number}a0.safetensors"} | {str(k): f"client-{k:06x}-r{number}a0x1.safetensors" for k in cohort}
        files = [("server" if key == "server" else "client", "" if key == "server" else key, name, "") for key, name in names.items()]
        for name in names.values():
            (store.files / name).write_bytes(b"x")
        store.commit(RoundRecord(number, 0, [], [], files=files), keep)
        yield store
    store.close()


@pytest.mark.parametrize("reopened", [set(), {3}, {4, 5, 9}], ids=["in one go", "resumed once", "resumed thrice"])
@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_commit_keeps_what_the_kept_rounds_would_find_and_nothing_else(keep: int, reopened: set[int], tmp_path: Path) -> None:
    draw = random.Random(f"{keep} {sorted(reopened)}")
    cohorts = [draw.sample(range(7), 3) for _ in range(12)]
    for number, store in enumerate(written(tmp_path / "run", keep, cohorts, reopened)):
        wanted = set()
        for kept in range(max(0, number - keep + 1), number + 1):  # by its meaning: what each kept round finds
            wanted.add(f"server-r{kept}a0.safetensors")
            for client in range(7):
                last = max((n for n in range(kept + 1) if client in cohorts[n]), default=None)
                wanted |= {f"client-{client:06x}-r{last}a0x1.safetensors"} if last is not None else set()
        assert {row["name"] for row in store.rows("select name from files")} == wanted == {path.name for path in store.files.iterdir()}


def test_a_commit_costs_what_its_cohort_costs_however_many_clients_have_a_state(tmp_path: Path) -> None:
    steps: dict[int, list[None]] = {200: [], 4000: []}
    for clients, counted in steps.items():
        everyone, few = list(range(clients)), [[k, k + 1, k + 2] for k in range(0, 18, 3)]
        for number, store in enumerate(written(tmp_path / str(clients), 2, [everyone, *few], set())):
            if number == len(few) - 1:  # what the last commit does is counted
                store.db.set_progress_handler(partial(counted.append, None), 20)
    assert 0 < len(steps[4000]) < 1.5 * len(steps[200])

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
from equipoise.storage import store as store_module
from equipoise.storage.files import writable_path
from equipoise.storage.store import RoundRecord, RunError, Store
from tests.helpers import half_finished
from tests.helpers.runs import files_under

PHASES = ("clients", "transport", "aggregation", "evaluation", "store")


def long(folder: Path, rounds: int) -> Run:
    shutil.copytree(half_finished.FOLDER / "fedavg", folder)
    with sqlite3.connect(folder / "run.db") as db:
        db.execute("delete from rounds where round > 0")
        db.execute("delete from seconds where round > 0")
        db.executemany(
            "insert into rounds values (?, 0, '[\"0\"]', '[\"0\"]', 1, 2, 3, 4, null)",
            [(n,) for n in range(1, rounds + 1)],
        )
        db.executemany(
            "insert into seconds values (?, ?, ?)",
            [(n, phase, n / 8) for n in range(1, rounds + 1) for phase in PHASES],
        )
    db.close()
    configuration = folder / "experiment.yaml"
    configuration.write_text(
        configuration.read_text().replace("\nrounds: 4\n", f"\nrounds: {rounds}\n")
    )
    return Run(folder)


def work(run: Run) -> tuple[int, int]:
    """How many statements SQLite was given for `rounds`, and how many thousand steps of its machine
    they took.
    """
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
def test_the_rounds_of_a_run_are_one_query_whose_work_grows_with_their_number(
    migrated: bool, tmp_path: Path
) -> None:
    runs = []
    for rounds in (500, 4000):
        run = long(tmp_path / str(rounds), rounds)
        if migrated:
            Store(run.folder, writing=True).close()
            run = Run(run.folder)
        runs.append(run)
    (few_statements, few), (many_statements, many) = map(work, runs)
    # One for the rounds, and one for the defaults that the run was begun with.
    assert few_statements == many_statements <= 2
    # eight times the rounds; each of 4,000 rounds looking through all would be sixty times the work
    assert many < 12 * few
    rows = runs[1].rounds()
    assert [row["round"] for row in rows] == list(range(1, 4001))
    assert rows[99]["seconds"] == dict.fromkeys(PHASES, 100 / 8) and list(
        rows[99]["seconds"]
    ) == list(PHASES)
    assert rows[99]["cohort"] == ["0"] and "phase" not in rows[99]


def test_a_round_without_times_is_a_round(tmp_path: Path) -> None:
    run = long(tmp_path / "run", 3)
    with sqlite3.connect(tmp_path / "run" / "run.db") as db:
        db.execute("delete from seconds where round = 2")
    db.close()
    assert [row["seconds"].get("store") for row in run.rounds()] == [1 / 8, None, 3 / 8]


def written(
    folder: Path, keep: int, cohorts: list[list[int]], reopened: set[int]
) -> Iterator[Store]:
    """A store in which the clients of each round's cohort wrote a state, and the server its own;
    given after every commit.
    """
    store = Store.create(folder, "", {})
    for number, cohort in enumerate(cohorts):
        if number in reopened:
            store.close()
            store = Store(folder, writing=True)
        names = {"server": f"server-r{number}a0.safetensors"} | {
            str(k): f"{k % 256:02x}/client-{k:06x}-r{number}a0x1.safetensors" for k in cohort
        }
        files = [
            ("server" if key == "server" else "client", "" if key == "server" else key, name, "")
            for key, name in names.items()
        ]
        for name in names.values():
            writable_path(store.files, name).write_bytes(b"x")
        ids = [str(k) for k in cohort]
        measured = [(client, "global", "received", "test", "accuracy", 0.5) for client in ids]
        store.commit(
            RoundRecord(
                number,
                0,
                ids,
                ids,
                measurements=measured,
                weights=dict.fromkeys(ids, 0.1),
                files=files,
            ),
            keep,
        )
        yield store
    store.close()


@pytest.mark.parametrize(
    "reopened", [set(), {3}, {4, 5, 9}], ids=["in one go", "resumed once", "resumed thrice"]
)
@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_commit_keeps_what_the_kept_rounds_would_find_and_nothing_else(
    keep: int, reopened: set[int], tmp_path: Path
) -> None:
    draw = random.Random(f"{keep} {sorted(reopened)}")
    cohorts = [draw.sample(range(7), 3) for _ in range(12)]
    for number, store in enumerate(written(tmp_path / "run", keep, cohorts, reopened)):
        wanted = set()
        # by its meaning: what each kept round finds
        for kept in range(max(0, number - keep + 1), number + 1):
            wanted.add(f"server-r{kept}a0.safetensors")
            for client in range(7):
                last = max((n for n in range(kept + 1) if client in cohorts[n]), default=None)
                wanted |= (
                    {f"{client:02x}/client-{client:06x}-r{last}a0x1.safetensors"}
                    if last is not None
                    else set()
                )
        assert (
            {row["name"] for row in store.rows("select name from files")}
            == wanted
            == set(files_under(store.files))
        )


def test_a_commit_costs_what_its_cohort_costs_however_many_clients_have_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: steps of SQLite's machine, statements, rows that change, files that are synced and
    removed.
    """
    removed: list[Path] = []
    synced: list[Path] = []
    for name, seen in (("unlink", removed), ("sync", synced)):
        real = getattr(store_module, name)
        monkeypatch.setattr(
            store_module,
            name,
            lambda paths, real=real, seen=seen: real(seen.extend(paths := list(paths)) or paths),
        )
    found = {}
    for clients in (200, 4000):
        everyone, few = list(range(clients)), [[k, k + 1, k + 2] for k in range(0, 18, 3)]
        steps, statements, changes = list[None](), list[str](), 0
        for number, store in enumerate(
            written(tmp_path / str(clients), 2, [everyone, *few], set())
        ):
            if number == len(few) - 1:  # what the last commit does is counted
                changes = store.db.total_changes
                removed.clear(), synced.clear()
                store.db.set_progress_handler(partial(steps.append, None), 20)
                store.db.set_trace_callback(statements.append)
            elif number == len(few):
                changes = store.db.total_changes - changes
        found[clients] = len(steps), len(statements), changes, len(removed), len(synced)
    assert found[4000][1:] == found[200][1:]
    assert 0 < found[4000][0] < 1.5 * found[200][0]
    _, statements_of_one, changes, gone, on_disk = found[200]
    # By hand: a round, three measurements and shares, four files and two values of metadata are
    # new; the server's file of two rounds ago and the first states of the three clients of one
    # round ago go. One file each for the server and three clients, and their folders.
    assert (
        (changes, gone) == (1 + 3 + 3 + 4 + 1 + 4, 4)
        and statements_of_one < 40
        and 4 < on_disk <= 8
    )


def counted_opening(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    steps: list[None] = []
    connect = sqlite3.connect

    def watched(*arguments: object, **more: object) -> sqlite3.Connection:
        db = connect(*arguments, **more)  # type: ignore[call-overload]
        db.set_progress_handler(partial(steps.append, None), 20)
        return db

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", watched)
        Run(folder).store.close()
    return len(steps)


def test_opening_a_run_costs_the_same_however_much_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for rows in (10, 5000):
        folder = long(tmp_path / str(rows), 3).folder
        with sqlite3.connect(folder / "run.db") as db:
            one = (
                "insert into measurements values (1, ?, 'global', 'received', 'test', 'accuracy', "
                "0.5)"
            )
            db.executemany(one, [(str(number),) for number in range(rows)])
            db.executemany(
                "insert into weights values (1, ?, 0.1)", [(str(number),) for number in range(rows)]
            )
        db.close()
        found[rows] = counted_opening(folder, monkeypatch)
    assert 0 < found[5000] <= found[10] + 1


COLUMNS = {
    "measurements": ("round", "client", "model", "phase", "split", "metric", "value"),
    "weights": ("round", "client", "share"),
    "curves": (
        "round",
        "client",
        "model",
        "split",
        "class",
        "score",
        "positives",
        "negatives",
        "found",
        "mistaken",
    ),
}


@pytest.mark.parametrize(
    ("table", "column"),
    [(table, column) for table, columns in COLUMNS.items() for column in columns],
)
def test_a_value_of_the_wrong_type_is_found_when_it_is_read(
    table: str, column: str, tmp_path: Path
) -> None:
    folder = long(tmp_path / "run", 3).folder
    Store(folder, writing=True).close()  # to today's format
    with sqlite3.connect(folder / "run.db") as db:
        db.execute("delete from measurements where rowid > 1")
        db.execute("insert into weights values (1, '0', 0.5)")
        db.execute("insert into curves values (1, '0', 'global', 'test', 0, 0, 1, 1, 1, 1, 612)")
    db.close()
    read = {
        "measurements": Run.table,
        "weights": Run.weights,
        "curves": lambda run: run.store.rows("select * from curves"),
    }[table]
    assert read(Run(folder))
    for wrong in (b"\x01", None) if column != "value" else (b"\x01", "good"):
        # the table says that there is none: whoever wants one there changes that first
        if wrong is None:
            (made,) = (
                sqlite3.connect(folder / "run.db")
                .execute("select sql from sqlite_master where name = ?", (table,))
                .fetchone()
            )
            with sqlite3.connect(folder / "run.db") as db:
                db.execute("pragma writable_schema = on")
                db.execute(
                    "update sqlite_master set sql = ? where name = ?",
                    (made.replace(" not null", ""), table),
                )
            db.close()
        with sqlite3.connect(folder / "run.db") as db:
            db.execute(
                f"update {table} set {column} = ? where rowid = (select max(rowid) from {table})",
                (wrong,),
            )
        db.close()
        run = Run(folder)
        with pytest.raises(
            RunError,
            match=(
                rf"is damaged or not a run of Equipoise: a '{column}' in its database is of the "
                r"wrong type"
            ),
        ):
            read(run)
        with pytest.raises(
            RunError, match=rf"row [0-9]+ of the table '{table}' holds a value of the wrong type"
        ):
            Store(folder, writing=True)

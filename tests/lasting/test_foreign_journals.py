"""A folder from a stranger may hold a journal that makes SQLite delete a file of the user: it is
never opened.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
from pathlib import Path

import pytest

from equipoise import simulate
from equipoise.runs import Run
from equipoise.storage.store import RunError, Store
from equipoise.watch.gallery import Gallery
from tests.helpers.answers import CommandLine, one_sentence
from tests.helpers.stores import change, made_up_run

MAGIC = bytes.fromhex("d9d505f920a163d7")  # at the start of a rollback journal, and at its end
EMPTY = b"\0" * 100


def crafted_journal(database: Path, victim: Path) -> bytes:
    """A hot journal without pages that names a file as super-journal
    (https://sqlite.org/fileformat.html).
    """
    (page,) = struct.unpack(">H", database.read_bytes()[16:18])
    page = 65536 if page == 1 else page
    pages = database.stat().st_size // page
    records, nonce, sector = 0, 0, 512
    header = MAGIC + struct.pack(">IIIII", records, nonce, pages, sector, page)
    name = os.fsencode(victim)
    lock_page = 2**30 // page + 1
    named = struct.pack(">I", lock_page) + name + struct.pack(">II", len(name), sum(name))
    return header.ljust(sector, b"\0") + named + MAGIC


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    file = tmp_path / "thesis.txt"
    file.write_text("three years of work")
    return file


@pytest.fixture
def folder(tmp_path: Path, victim: Path) -> Path:
    """A stopped run with a journal next to its database that makes SQLite delete the victim."""
    run = made_up_run(tmp_path / "runs" / "run", finished=False)
    (run / "run.db-journal").write_bytes(crafted_journal(run / "run.db", victim))
    return run


@pytest.fixture
def equipoise(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capsys, monkeypatch)


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_sqlite_itself_deletes_the_file_that_the_journal_names(
    mode: str, folder: Path, victim: Path
) -> None:
    journal = (folder / "run.db-journal").read_bytes()
    (folder / "run.db-journal").unlink()
    change(folder, f"pragma journal_mode = {mode}")
    (folder / "run.db-journal").write_bytes(journal)
    db = sqlite3.connect(folder / "run.db")
    db.execute("select * from meta").fetchall()
    db.close()
    assert not victim.exists()


COMMANDS = {
    "resume": ["resume", "RUN"],
    "show": ["show", "RUN"],
    "report": ["report", "RUN"],
    "export": ["export", "RUN"],
    "table": ["table", "RUN"],
    "predict": ["predict", "RUN", "new.csv"],
    "overwrite": ["run", "--data", "digits", "--overwrite", "--out", "RUN"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_opens_a_run_with_a_journal(
    command: str, folder: Path, victim: Path, equipoise: CommandLine
) -> None:
    said = one_sentence(
        equipoise(*(folder if word == "RUN" else word for word in COMMANDS[command]))
    )
    assert "run.db-journal" in said and "remove it" in said
    assert victim.exists() and (folder / "run.db").exists()


def test_python_and_the_gallery_do_not_open_it_either(folder: Path, victim: Path) -> None:
    for ask in (simulate.resume, Run, lambda path: Store(path, writing=True)):
        with pytest.raises(RunError, match="run.db-journal"):
            ask(folder)
    gallery = Gallery(folder.parent)
    assert "run.db-journal" in gallery.page.html()
    assert victim.exists()


@pytest.mark.parametrize("ending", ["-journal", "-wal", "-shm"])
def test_a_new_run_does_not_begin_beside_what_another_database_left(
    ending: str, folder: Path, victim: Path, tmp_path: Path, equipoise: CommandLine
) -> None:
    (tmp_path / "new").mkdir()
    remains = tmp_path / "new" / f"run.db{ending}"
    shutil.copy(folder / "run.db-journal", remains)
    answer = equipoise(
        "run", "--data", "digits", "--rounds", 1, "--quiet", "--workers", 0, "--out", remains.parent
    )
    assert remains.name in one_sentence(answer)
    assert victim.exists() and not (tmp_path / "new" / "run.db").exists()


def test_what_a_killed_creation_left_is_replaced(
    folder: Path, victim: Path, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    for ending in ("", "-journal", "-wal", "-shm"):
        shutil.copy(folder / "run.db-journal", tmp_path / "new" / f"run.db.new{ending}")
    made_up_run(tmp_path / "new")
    assert victim.exists()
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "experiment.yaml",
        "files",
        "run.db",
        "run.lock",
    ]
    assert Run(tmp_path / "new").status == "finished"


def test_a_database_in_another_journal_mode_is_brought_back_to_a_log(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run")
    change(run, "pragma journal_mode = delete")  # as copies by other tools are
    assert Run(run).status == "finished"
    Store(run, writing=True).close()
    assert (run / "run.db").read_bytes()[18:20] == b"\x02\x02"  # reads and writes by a log


def test_a_database_that_is_refused_is_not_written(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run")
    change(run, "pragma journal_mode = delete", "create view other as select * from meta")
    before = (run / "run.db").read_bytes()
    with pytest.raises(RunError, match="view"):
        simulate.resume(run)
    assert (run / "run.db").read_bytes() == before


# Hard links: what is written here would change a file elsewhere.


@pytest.mark.parametrize("name", ["run.db-wal", "run.db-shm"])
def test_not_even_a_reader_writes_through_a_hard_link(
    name: str, tmp_path: Path, victim: Path
) -> None:
    run = made_up_run(tmp_path / "run", finished=False)
    (run / name).hardlink_to(victim)
    for ask in (simulate.resume, Run):
        with pytest.raises(RunError, match=f"{name} is a hard link"):
            ask(run)
    assert victim.read_text() == "three years of work"


@pytest.mark.parametrize("name", ["run.lock", "run.db", "experiment.yaml"])
def test_a_resumed_run_does_not_write_through_a_hard_link(name: str, tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", finished=False)
    (run / name).write_bytes((run / name).read_bytes() or EMPTY)
    copy = tmp_path / "elsewhere"
    copy.hardlink_to(run / name)
    before = copy.read_bytes()
    with pytest.raises(RunError, match=f"{name} is a hard link"):
        simulate.resume(run)
    assert copy.read_bytes() == before
    assert Run(run).last_round == 2  # it can be read


@pytest.mark.parametrize("name", ["experiment.yaml", "run.lock", "run.db.new"])
def test_a_new_run_does_not_write_through_a_hard_link(
    name: str, tmp_path: Path, victim: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).hardlink_to(victim)
    with pytest.raises(RunError, match=f"{name} is a hard link"):
        made_up_run(tmp_path / "run")
    assert victim.read_text() == "three years of work"


@pytest.mark.parametrize("name", ["report.html", "audit.json"])
def test_an_output_does_not_write_through_a_hard_link(
    name: str, tmp_path: Path, victim: Path, equipoise: CommandLine
) -> None:
    run = made_up_run(tmp_path / "run")
    (run / name).hardlink_to(victim)
    if name == "report.html":
        answer = equipoise("report", run)
    else:
        answer = equipoise(
            "audit", "--data", "digits", "--clients", 2, "--workers", 0, "--out", run
        )
    assert f"{name} is a hard link" in one_sentence(answer)
    assert victim.read_text() == "three years of work"

"""Runs that version 0.1.0 left half-finished are resumed to the bits it would have reached."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest

import equipoise as eq
from equipoise.storage.tables import FORMAT
from tests.helpers import bits, half_finished
from tests.helpers.runs import assert_same, config, everything, files_under, stopped

EXPECTED = json.loads(half_finished.EXPECTED.read_text())


@pytest.mark.parametrize("method", half_finished.METHODS)
def test_a_run_of_format_1_is_resumed_to_the_same_bits(method: str, tmp_path: Path) -> None:
    shutil.copytree(half_finished.FOLDER / method, tmp_path / "run")
    assert eq.Run(tmp_path / "run").last_round == 2
    run = eq.resume(tmp_path / "run")
    expected, values = EXPECTED["methods"][method], everything(run)
    assert bits.norms(values) == pytest.approx(expected["norms"], rel=1e-3)
    if bits.processor() != EXPECTED["processor"]:
        pytest.skip(f"the digests belong to {EXPECTED['processor']}; the norms agree")
    assert bits.digest(values) == expected["digest"]
    # To nine decimals: a metric's own formula may round otherwise than it did in version 0.1, which
    # had no rows of reference either.
    rows = [
        (
            r["round"],
            r["client"],
            r["model"],
            r["phase"],
            r["split"],
            r["metric"],
            round(r["value"], 9),
        )
        for r in run.table()
        if r["phase"] != "reference"
    ]
    assert hashlib.sha256(repr(rows).encode()).hexdigest() == expected["table"]


# states of clients; and one value per client at the server
@pytest.mark.parametrize("method", ["scaffold", "kdia"])
@pytest.mark.thorough
def test_a_run_of_format_4_whose_files_lie_in_one_folder_goes_on_to_the_same_bits(
    method: str, tmp_path: Path
) -> None:
    folder = stopped(tmp_path, method, rounds=4)
    with sqlite3.connect(folder / "run.db") as db:
        for (name,) in db.execute("select name from files").fetchall():
            (folder / "files" / name).rename(folder / "files" / Path(name).name)
            db.execute("update files set name = ? where name = ?", (Path(name).name, name))
        db.execute("update meta set value = '4' where key = 'format'")
        db.execute("alter table curves drop column bins")
        db.execute("drop table group_curves")
    db.close()
    for path in (folder / "files").iterdir():
        if path.is_dir():
            path.rmdir()
    eq.Run(folder).store.check_files()
    eq.resume(folder)
    eq.run(config(tmp_path, method, rounds=4), out=tmp_path / "whole")
    run, whole = eq.Run(folder), eq.Run(tmp_path / "whole")
    assert_same(everything(whole), everything(run))
    assert run.table() == whole.table() and run.store.meta("format") == FORMAT
    known = [row["name"] for row in run.store.rows("select name from files order by name")]
    # nothing old is left over, what is new has its place
    assert files_under(folder / "files") == known and any("/" in name for name in known)

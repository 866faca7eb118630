"""Checkpoints are checked: damage is named, and an older checkpoint leads to the same bits."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise import simulate
from equipoise.experiment import experiment
from equipoise.runs import Run
from equipoise.runs.export import export, predictions
from equipoise.runtime.messages import state_file, state_name
from equipoise.storage import store as store_module
from equipoise.storage.files import digest
from equipoise.storage.store import RunError, Store
from tests.helpers import half_finished
from tests.helpers.runs import SIZES, config, files_under, same_run, stopped


def flip(path: Path, place: int = -9) -> None:
    """One bit of a file, by default in a tensor, its size unchanged: what a worn disk or a careless
    copy does.
    """
    content = bytearray(path.read_bytes())
    content[place] ^= 0x40
    path.write_bytes(content)


def no_header(path: Path) -> None:
    flip(path, 3)  # the header's length


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a bit": flip,
    "the header": no_header,
    "nothing left": lambda path: path.write_bytes(b""),
    "missing": Path.unlink,
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)) and None,
}


@pytest.mark.parametrize("kind", ["server", "client", "perclient"])
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.quick_cases("server", "missing")
def test_a_damaged_newest_checkpoint_is_named_and_an_older_one_leads_to_the_same_bits(
    damage: str, kind: str, tmp_path: Path
) -> None:
    method = "kdia" if kind == "perclient" else "scaffold"
    folder = stopped(tmp_path, method)
    victim = sorted((folder / "files").rglob(f"{kind}-*r2a0*"))[0]
    DAMAGE[damage](victim)
    before = {path: path.read_bytes() for path in (folder / "files").rglob("*.safetensors")}
    with pytest.raises(RunError) as said:
        simulate.resume(folder)
    assert (
        f"the newest checkpoint of {folder}, of round 2, is damaged: "
        f"{victim.relative_to(folder / 'files')} " in str(said.value)
    )
    assert f"`equipoise resume {folder} --from-round 1`" in str(said.value)
    assert "repl" not in str(said.value)  # nobody's reply is to blame
    assert {path: path.read_bytes() for path in (folder / "files").rglob("*.safetensors")} == before
    simulate.resume(folder, from_round=1)
    simulate.run(experiment(config(tmp_path, method, rounds=3)), tmp_path / "whole")
    same_run(folder, tmp_path / "whole")


def test_only_a_checkpoint_that_is_held_and_whole_is_gone_back_to(tmp_path: Path) -> None:
    folder = stopped(tmp_path, rounds=4)
    with pytest.raises(
        RunError, match=r"holds no checkpoint of round 1, but of 3, 2; choose one of these"
    ):
        simulate.resume(folder, from_round=1)
    with pytest.raises(RunError, match=r"holds no checkpoint of round 7, but of 3, 2"):
        simulate.resume(folder, from_round=7)
    for number in (2, 3):
        flip(folder / "files" / f"server-r{number}a0.safetensors")
    with pytest.raises(
        RunError,
        match=(
            r"round 3, is damaged: server-r3.*no older one is whole: restore the folder from a "
            r"copy, or run"
        ),
    ):
        simulate.resume(folder)
    with pytest.raises(
        RunError,
        match=(
            r"the checkpoint of round 2 of .* is damaged, too: server-r2a0.safetensors was changed "
            r"after it was written"
        ),
    ):
        simulate.resume(folder, from_round=2)
    assert Run(folder).last_round == 3 and len(Run(folder).rounds()) == 3  # nothing was given up


def test_without_an_older_checkpoint_none_is_offered(tmp_path: Path) -> None:
    folder = stopped(tmp_path, keep=1)
    flip(folder / "files" / "server-r2a0.safetensors")
    with pytest.raises(RunError, match="no older one is whole"):
        simulate.resume(folder)


def test_an_older_checkpoint_that_is_damaged_does_not_stop_a_run(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    flip(folder / "files" / "server-r1a0.safetensors")
    simulate.resume(folder)
    simulate.run(experiment(config(tmp_path, "scaffold", rounds=3)), tmp_path / "whole")
    same_run(folder, tmp_path / "whole")


def test_going_back_deletes_the_later_rounds_all_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stopped(tmp_path)
    before = list(sqlite3.connect(folder / "run.db").iterdump())
    store = Store(folder, writing=True)
    monkeypatch.setattr(store_module, "BY_ROUND", (*store_module.BY_ROUND, "no_such_table"))
    with pytest.raises(RunError, match="no_such_table"):
        store.go_back(1)
    assert list(store.db.iterdump()) == before
    monkeypatch.undo()
    store.go_back(1)
    for table in ("rounds", "measurements", "weights", "seconds", "files"):
        assert store.rows(f"select max(round) as last from {table}")[0]["last"] == 1
    store.close()


def test_a_finished_run_gives_nothing_up_unless_its_end_is_damaged(tmp_path: Path) -> None:
    job = experiment(config(tmp_path, "scaffold", rounds=3))
    for name in ("run", "whole"):
        simulate.run(job, tmp_path / name)
    with pytest.raises(RunError, match="is finished: all 3 rounds"):
        simulate.resume(tmp_path / "run", from_round=2)
    flip(tmp_path / "run" / "files" / "server-r3a0.safetensors")
    with pytest.raises(RunError, match=r"round 3, is damaged: server-r3a0.*--from-round 2"):
        Run(tmp_path / "run").model()
    simulate.resume(tmp_path / "run", from_round=2)
    same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("damage", ["a bit", "the header", "missing"])
def test_no_model_comes_out_of_a_damaged_checkpoint(damage: str, tmp_path: Path) -> None:
    run = simulate.run(experiment(config(tmp_path, "scaffold", rounds=2)), tmp_path / "run")
    ids = list(SIZES)
    new = tmp_path / "new.npz"
    np.savez(new, x=np.zeros((2, *run.task.shape), np.float32))
    predictions(run, new)
    DAMAGE[damage](run.folder / "files" / state_file(state_name(ids[1], 2, 0, 1)))
    export(run, client=ids[0])  # what does not touch the model that is asked for does not matter
    assert isinstance(run.model("global", client=ids[0]), torch.nn.Module)
    for ask in (
        lambda: run.model("global", client=ids[1]),
        lambda: export(run, client=ids[1]),
        lambda: predictions(run, new, client=ids[1]),
    ):
        with pytest.raises(
            RunError,
            match=(
                r"of round 2, is damaged: [0-9a-f]{2}/client-\w+-r2a0x1.safetensors .*--from-round "
                r"1"
            ),
        ):
            ask()
    DAMAGE[damage](run.folder / "files" / "server-r2a0.safetensors")
    for ask in (lambda: export(run), lambda: predictions(run, new)):
        with pytest.raises(
            RunError, match=r"of round 2, is damaged: server-r2a0.safetensors .*--from-round 1"
        ):
            ask()


def test_a_damaged_database_is_found_at_resume(tmp_path: Path) -> None:
    folder = stopped(tmp_path, rounds=5)
    with sqlite3.connect(folder / "run.db") as db:
        db.execute("pragma wal_checkpoint(truncate)")
        page = db.execute("select rootpage from sqlite_master where name = 'measured'").fetchone()[
            0
        ]
    db.close()
    content = bytearray((folder / "run.db").read_bytes())
    size = int.from_bytes(content[16:18], "big")
    # an index, which nothing at resume would read
    content[(page - 1) * size + 100 : page * size] = bytes(size - 100)
    (folder / "run.db").write_bytes(content)
    with pytest.raises(
        RunError,
        match="is damaged or not a run of Equipoise: its database says: .*restore it from a copy",
    ):
        simulate.resume(folder)


def test_every_file_has_its_digest(tmp_path: Path) -> None:
    for method, workers in (("kdia", 0), ("scaffold", 1)):
        run = simulate.run(
            experiment(config(tmp_path, method, rounds=2, workers=workers)), tmp_path / method
        )
        rows = run.store.rows("select name, digest from files")
        assert {row["name"]: row["digest"] for row in rows} == {
            name: digest(run.store.files / name) for name in files_under(run.store.files)
        }
        assert len(rows) > 2


# The store of version 0.1.


@pytest.fixture
def old(tmp_path: Path) -> Path:
    shutil.copytree(half_finished.FOLDER / "scaffold", tmp_path / "run")
    return tmp_path / "run"


def test_a_run_of_format_1_is_read_as_it_is(old: Path) -> None:
    before = (old / "run.db").read_bytes()
    run = Run(old)
    assert [row["round"] for row in run.rounds()] == [1, 2] and run.rounds()[0]["seconds"][
        "clients"
    ] > 0
    run.model("global")
    run.store.close()
    assert (old / "run.db").read_bytes() == before


def test_opening_a_run_of_format_1_for_writing_migrates_it_whole_or_not_at_all(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(sqlite3.connect(old / "run.db").iterdump())
    calls: list[Path] = []

    def failing(path: Path) -> str:
        calls.append(path)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return digest(path)

    monkeypatch.setattr(store_module, "digest", failing)
    with pytest.raises(KeyboardInterrupt):
        Store(old, writing=True)
    assert list(sqlite3.connect(old / "run.db").iterdump()) == before
    monkeypatch.undo()
    store = Store(old, writing=True)
    assert store.meta("format") == store_module.FORMAT
    assert {row["name"]: row["digest"] for row in store.rows("select * from files")} == {
        path.name: digest(path) for path in store.files.iterdir()
    }
    store.close()
    flip(old / "files" / "server-r2a0.safetensors")
    with pytest.raises(RunError, match="server-r2a0.safetensors was changed after it was written"):
        simulate.resume(old)


def test_a_broken_header_is_found_in_a_run_without_digests(old: Path) -> None:
    no_header(old / "files" / "client-000001-r2a0x1.safetensors")
    with pytest.raises(
        RunError,
        match=r"of round 2, is damaged: client-000001-r2a0x1.safetensors cannot be read \(",
    ):
        eq.resume(old)
    with pytest.raises(RunError, match=r"client-000001-r2a0x1.safetensors cannot be read \("):
        Run(old).model("global", client="1")

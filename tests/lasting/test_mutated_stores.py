"""Stores that were changed behind the back of Equipoise: one short sentence, whatever they hold."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from equipoise.storage.files import digest
from tests.helpers.answers import CommandLine, one_sentence
from tests.helpers.runs import stopped
from tests.helpers.stores import change, made_up_run

LONG = 40_000
# A table of the same columns in which SQLite keeps values of any type as they are.
UNTYPED = (
    "create table other (key text primary key not null, value)",
    "insert into other select * from meta",
    "drop table meta",
    "alter table other rename to meta",
)


def meta(key: str, value: str) -> str:
    return f"update meta set value = {value} where key = '{key}'"


CHANGES: dict[str, tuple[str, ...]] = {
    "a format that is an integer": (*UNTYPED, meta("format", "5")),
    "a format that is a fraction": (*UNTYPED, meta("format", "5.5")),
    "no format": (*UNTYPED, meta("format", "null")),
    "a format that is bytes": (*UNTYPED, meta("format", "x'ff35'")),
    "a long format": (meta("format", f"'{'9' * 4000}'"),),
    "a format of long text": (meta("format", f"'\"{'9' * LONG}\"'"),),
    "infinite seconds": ("update seconds set seconds = 9e999",),
    "seconds before the beginning of time": ("update seconds set seconds = -9e999",),
    "infinite virtual seconds": ("update rounds set virtual_seconds = 9e999",),
    "a view with a long name": (f'create view "{"v" * LONG}" as select 1',),
    "very many outputs": (meta("task", f"json_set(value, '$.outputs', {10**15})"),),
    "no outputs": (meta("task", "json_set(value, '$.outputs', 0)"),),
    "a negative shape": (meta("task", "json_set(value, '$.shape[0]', -3)"),),
    "negative sizes": (meta("sizes", "json_set(value, '$.train[0]', -1)"),),
}


@pytest.fixture
def equipoise(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capsys, monkeypatch)


@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_store_is_one_short_sentence(
    case: str, tmp_path: Path, equipoise: CommandLine
) -> None:
    run = made_up_run(tmp_path / "run", finished=False)
    change(run, *CHANGES[case])
    for command in ("show", "report", "resume", "export"):
        assert "damaged" in (said := one_sentence(equipoise(command, run))) or "newer" in said


def test_infinite_shares_are_refused_where_they_are_read(
    tmp_path: Path, equipoise: CommandLine
) -> None:
    run = made_up_run(tmp_path / "run")
    change(run, "update weights set share = 9e999")
    assert "share" in one_sentence(equipoise("report", run))


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped(tmp_path_factory.mktemp("half"))


@pytest.mark.parametrize("kind", ["client", "server"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64])
def test_tensors_of_another_kind_in_a_state_are_one_sentence(
    kind: str, dtype: torch.dtype, half: Path, tmp_path: Path, equipoise: CommandLine
) -> None:
    run = tmp_path / "run"
    shutil.copytree(half, run)
    names = []
    with sqlite3.connect(run / "run.db", isolation_level=None) as db:
        for (name,) in db.execute("select name from files where kind = ?", (kind,)).fetchall():
            file = run / "files" / name
            with safe_open(file, framework="pt") as opened:
                described = opened.metadata()
            tensors = {key: tensor.to(dtype) for key, tensor in load_file(file).items()}
            save_file(tensors, file, metadata=described)
            db.execute(
                "update files set bytes = ?, digest = ? where name = ?",
                (file.stat().st_size, digest(file), name),
            )
            names.append(file.name)
    db.close()
    code, said = equipoise("resume", run, "--quiet")
    assert code == 2 and "Traceback" not in said
    last = said.strip().splitlines()[-1]
    assert str(dtype) in last and any(name in last for name in names)

"""A run's folder may come from anyone: it deletes nothing and writes nowhere else, and whatever is
wrong with it is said in one sentence.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise import simulate
from equipoise.experiment import experiment
from equipoise.report import report
from equipoise.runs import Run
from equipoise.runs.export import export
from equipoise.runtime.messages import state_file, state_name
from equipoise.storage.files import is_ours
from equipoise.storage.store import RunError, Store
from equipoise.transports import inprocess
from tests.helpers.answers import CommandLine, one_sentence
from tests.helpers.runs import config, stopped


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stopped and a finished run."""
    place = tmp_path_factory.mktemp("made")
    stopped(place).rename(place / "stopped")
    simulate.run(experiment(config(place, "scaffold", rounds=2)), place / "finished")
    return place


@pytest.fixture
def half(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "stopped", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def whole(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "finished", tmp_path / "run")
    return tmp_path / "run"


def sql(folder: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(folder / "run.db", isolation_level=None) as db:
        db.execute(statement, values)
    db.close()


# Names.


@pytest.mark.parametrize(
    "name",
    ["server-r2a0.safetensors", "client-000012-r1a3x2.safetensors", "client-0f3a9c0d11223344-r1a0x1.safetensors",
     "reply-000001-r10a0x1.safetensors", "perclient-0011aabb-0123456789abcdef-r3a0.safetensors",
     "0f/client-0f3a9c0d11223344-r1a0x1.safetensors", "0f/reply-0f3a-r10a0x1.safetensors", "0f/perclient-0011aabb-0f23-r3a0.safetensors"],
)  # fmt: skip
def test_names_that_a_run_gives(name: str) -> None:
    assert is_ours(name)


BAD_NAMES = [
    "../../precious.txt",
    "/etc/passwd",
    "client-../x.safetensors",
    "server-r2a0.safetensors/../../precious.txt",
    "precious.txt",
    "",
    "..",
    "server-r2a0.safetensors\n",
    "client-00\0001-r1a0x1.safetensors",
    "server-r٢a0.safetensors",
    "Server-r2a0.safetensors",
    "client-000001-r2a0x1.safetensors.bak",
    "../client-000001-r2a0x1.safetensors",
    "0f/../client-0f-r1a0x1.safetensors",
    "0f/server-r2a0.safetensors",
    "0F/client-0f-r1a0x1.safetensors",
    "0f/0f/client-0f-r1a0x1.safetensors",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_row_that_names_any_other_file_is_refused_and_nothing_is_removed(
    name: str, half: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("my thesis")
    inside = half / "files" / "precious.txt"
    inside.write_text("its appendix")
    # An old version of the server's state: the next commit would remove its file.
    sql(half, "insert into files values ('server', '', -5, ?, 9, '', 'server')", name)
    with pytest.raises(
        RunError,
        match=(
            "is damaged or not a run of Equipoise: its database names a file .*, which no run "
            "writes"
        ),
    ):
        simulate.resume(half)
    with pytest.raises(RunError, match="which no run writes"):
        Run(half)
    assert precious.read_text() == "my thesis" and inside.read_text() == "its appendix"


def test_a_trigger_is_refused(half: Path) -> None:
    sql(
        half,
        "create trigger later after insert on rounds begin update files set name = "
        "'../../precious.txt' where kind = 'server'; end",
    )
    with pytest.raises(
        RunError, match="its database has a trigger named 'later', which no run has"
    ):
        simulate.resume(half)


def test_what_is_not_of_a_run_stays_in_its_folder(half: Path) -> None:
    (half / "files" / "notes.txt").write_text("mine")
    (half / "files" / "server-r9a0.safetensors").write_text("left over by a killed process")
    (half / "files" / ".tmpAb12Cd").write_text("half written by one")
    within = half / "files" / state_file(state_name("eve", 1, 0, 1))
    within.parent.mkdir()
    for name in (within.name, f"{within.name}.12.part", ".tmpAb12Cd", "notes.txt"):
        within.with_name(name).write_text("in a sub-folder")
    (half / "files" / "0123").mkdir()
    (half / "files" / "0123" / within.name).write_text("in a folder that no run makes")
    simulate.resume(half)
    assert (half / "files" / "notes.txt").read_text() == "mine"
    assert (
        not (half / "files" / "server-r9a0.safetensors").exists()
        and not (half / "files" / ".tmpAb12Cd").exists()
    )
    assert [path.name for path in within.parent.iterdir()] == ["notes.txt"]
    assert (half / "files" / "0123" / within.name).exists()


# Links.


@pytest.mark.parametrize(
    "name",
    [
        "run.db",
        "run.db-wal",
        "run.db-shm",
        "run.db-journal",
        "run.lock",
        "experiment.yaml",
        "files",
    ],
)
@pytest.mark.parametrize("to", ["something", "nothing"])
def test_a_run_is_not_followed_through_links(
    name: str, to: str, half: Path, tmp_path: Path
) -> None:
    target = tmp_path / "elsewhere"
    if (half / name).exists():
        shutil.move(half / name, target)
    else:
        target.write_bytes(b"precious")
    if to == "nothing" and name != "run.db":  # there it is no run at all
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    before = listing(target)
    (half / name).unlink(missing_ok=True)
    (half / name).symlink_to(target)
    for ask in (lambda: simulate.resume(half), lambda: Run(half).status):
        with pytest.raises(
            RunError,
            match=(
                rf"{name} is a symbolic link, which Equipoise does not follow inside a run; put "
                r"the file"
            ),
        ):
            ask()
    assert listing(target) == before


@pytest.mark.parametrize("to", ["something", "nothing"])
def test_a_sub_folder_is_not_followed_through_a_link(to: str, half: Path, tmp_path: Path) -> None:
    used = next(path for path in (half / "files").iterdir() if path.is_dir())
    for place in (used, half / "files" / state_file(state_name("eve", 1, 0, 1)).partition("/")[0]):
        target = tmp_path / f"elsewhere {place.name}"
        shutil.move(place, target) if place.exists() else target.mkdir()
        (target / "client-00-r9a0x9.safetensors").write_text("looks left over")
        if to == "nothing":
            shutil.rmtree(target)
        before = listing(target)
        place.symlink_to(target)
        for ask in (lambda: simulate.resume(half), lambda: Run(half).status):
            with pytest.raises(
                RunError,
                match=(
                    rf"files/{place.name} is a symbolic link, which Equipoise does not follow "
                    r"inside a run"
                ),
            ):
                ask()
        assert listing(target) == before
        place.unlink()


def listing(path: Path) -> object:
    if path.is_dir():
        return sorted((str(file), file.read_bytes()) for file in path.rglob("*") if file.is_file())
    return path.read_bytes() if path.exists() else None


@pytest.mark.parametrize("link", ["server-r2a0.safetensors", "server-r3a0.safetensors"])
def test_a_checkpoint_is_not_read_or_written_through_a_link(
    link: str, half: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    place = half / "files" / link
    shutil.move(place, target) if place.exists() else target.write_bytes(b"precious")
    before = target.read_bytes()
    place.symlink_to(target)
    if link == "server-r2a0.safetensors":
        with pytest.raises(RunError, match="server-r2a0.safetensors is not a file"):
            simulate.resume(half)
    else:
        simulate.resume(half)  # the link was left over, and went
        assert not place.is_symlink()
    assert target.read_bytes() == before


@pytest.mark.parametrize(
    "name",
    [
        "experiment.yaml",
        "files",
        "run.db.new",
        "run.db.new-journal",
        "run.lock",
        "tensorboard",
        "wandb",
    ],
)
def test_a_new_run_is_not_written_through_links(name: str, made: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir() if name in ("files", "tensorboard", "wandb") else (
        tmp_path / "target"
    ).write_text("precious")
    before = listing(tmp_path / "target")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / name).symlink_to(tmp_path / "target")
    with pytest.raises(RunError, match=f"{name} is a symbolic link"):
        simulate.run(experiment(config(made, "fedavg", rounds=1)), tmp_path / "new")
    assert listing(tmp_path / "target") == before


@pytest.mark.parametrize(
    "name", ["report.html", "report-heatmap.png", "global.safetensors", "global.md"]
)
@pytest.mark.parametrize("dangling", [False, True])
@pytest.mark.thorough
def test_outputs_are_not_written_through_links(
    name: str, dangling: bool, whole: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    if not dangling:
        target.write_text("precious")
    (whole / name).symlink_to(target)
    with pytest.raises(
        RunError,
        match=(
            rf"{name} is a symbolic link, which Equipoise does not write through; remove it, or "
            r"choose another"
        ),
    ):
        report([whole], whole / "report.html", kinds=["png"]) if name.startswith(
            "report"
        ) else export(Run(whole), "global")
    assert not target.exists() if dangling else target.read_text() == "precious"


# A sentence for everything.


def garbage(folder: Path, start: float, stop: float) -> None:
    content = bytearray((folder / "run.db").read_bytes())
    content[int(start * len(content)) : int(stop * len(content))] = os.urandom(
        int(stop * len(content)) - int(start * len(content))
    )
    (folder / "run.db").write_bytes(content)


def instead(path: Path, content: bytes | None = None) -> None:
    """A file with this content, or a folder, in place of what is there."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.mkdir() if content is None else path.write_bytes(content)


META = [
    "status",
    "created",
    "version",
    "environment",
    "data",
    "clients",
    "task",
    "sizes",
    "shared test",
    "facts",
    "recipe",
    "fingerprint",
    "method",
    "format",
]
TABLES = ["meta", "rounds", "measurements", "weights", "seconds", "rejected", "files"]
BROKEN: dict[str, Callable[[Path], None]] = {
    **{f"no table {name}": lambda f, name=name: sql(f, f"drop table {name}") for name in TABLES},
    **{
        f"no {key}": lambda f, key=key: sql(f, "delete from meta where key = ?", key)
        for key in META
    },
    **{
        f"{key} is no JSON": lambda f, key=key: sql(
            f, "update meta set value = '{]' where key = ?", key
        )
        for key in META
    },
    **{
        f"{key} is a list of nulls": lambda f, key=key: sql(
            f, "update meta set value = '[null]' where key = ?", key
        )
        for key in META
    },
    **{
        f"{key} nested deep": lambda f, key=key: sql(
            f, "update meta set value = ? where key = ?", "[" * 10**5, key
        )
        for key in META
    },
    "format 0": lambda f: sql(f, "update meta set value = '0' where key = 'format'"),
    "format 99": lambda f: sql(f, "update meta set value = '99' where key = 'format'"),
    "too few sizes": lambda f: sql(
        f,
        'update meta set value = \'{"train": [1], "validation": [1], "test": [1]}\' where key = '
        "'sizes'",
    ),
    "no clients": lambda f: sql(
        f,
        "update meta set value = case key when 'clients' then '[]' else '{\"train\": [], "
        "\"validation\": [], \"test\": []}' end where key in ('clients', 'sizes')",
    ),
    "a scale in words": lambda f: sql(
        f, "update meta set value = json_set(value, '$.scale', 'large') where key = 'task'"
    ),
    "an infinite centre": lambda f: sql(
        f,
        "update meta set value = replace(value, '\"centre\": 0.0', '\"centre\": Infinity') where "
        "key = 'task'",
    ),
    "a cohort that is no JSON": lambda f: sql(f, "update rounds set cohort = 'ada, bo'"),
    "a cohort of numbers": lambda f: sql(f, "update rounds set joined = '[1, 2]'"),
    "a size that is a word": lambda f: sql(f, "update files set bytes = 'many'"),
    "a name that is bytes": lambda f: sql(f, "update files set name = x'00ff'"),
    "a measurement that is a word": lambda f: sql(f, "update measurements set value = 'good'"),
    "a client that is bytes": lambda f: sql(f, "update measurements set client = x'ff'"),
    "another column": lambda f: sql(f, "alter table rounds rename column joined to came"),
    "a view in place of a table": lambda f: (
        sql(f, "alter table weights rename to w"),
        sql(f, "create view weights as select * from w"),
    )[1],
    "an empty database": lambda f: instead(f / "run.db", b""),
    "a database cut in half": lambda f: os.truncate(
        f / "run.db", (f / "run.db").stat().st_size // 2
    ),
    "garbage in the database": lambda f: garbage(f, 0.3, 0.7),
    "a folder for a database": lambda f: instead(f / "run.db"),
    "a letter for a database": lambda f: instead(f / "run.db", b"Dear Sir or Madam" * 500),
    "no configuration": lambda f: (f / "experiment.yaml").unlink(),
    "a folder for a configuration": lambda f: instead(f / "experiment.yaml"),
    "a configuration of bytes": lambda f: instead(f / "experiment.yaml", b"\xff\xfe\x00\x01"),
    "a configuration that is no YAML": lambda f: instead(f / "experiment.yaml", b"a: [1"),
    "a configuration that is a list": lambda f: instead(f / "experiment.yaml", b"- 1"),
    "a configuration without a method": lambda f: instead(
        f / "experiment.yaml", b"rounds: 3\nseed: 1\ndata: {name: x, partition: iid}\n"
    ),
    "rounds in words": lambda f: instead(
        f / "experiment.yaml",
        (f / "experiment.yaml")
        .read_bytes()
        .replace(b"rounds: 3", b"rounds: three")
        .replace(b"rounds: 2", b"rounds: two"),
    ),
}
FILES_BROKEN: dict[str, Callable[[Path], None]] = {
    "no files": lambda f: shutil.rmtree(f / "files"),
    "a file for a folder": lambda f: instead(f / "files", b""),
    "files for sub-folders": lambda f: (
        [instead(path, b"") for path in (f / "files").iterdir() if path.is_dir()] and None
    ),
    "a folder for a file": lambda f: instead(f / "files" / "server-r2a0.safetensors"),
    "a header of nonsense": lambda f: instead(
        f / "files" / "server-r2a0.safetensors",
        b"\x09" * (f / "files" / "server-r2a0.safetensors").stat().st_size,
    ),
    "a file without a record": lambda f: without_record(f),
    "no server's state": lambda f: sql(f, "delete from files where kind = 'server'"),
}


def without_record(folder: Path) -> None:
    """A whole safetensors file with the digest that the store names, but of something else."""
    import torch
    from safetensors.torch import save_file

    from equipoise.storage.files import digest

    path = folder / "files" / "server-r2a0.safetensors"
    save_file({"0": torch.zeros(3)}, path)
    sql(
        folder,
        "update files set bytes = ?, digest = ? where name = ?",
        path.stat().st_size,
        digest(path),
        path.name,
    )


@pytest.fixture
def equipoise(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capsys, monkeypatch)


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.quick_cases("format", "sizes", "configuration", "table", "cohort")
def test_a_malformed_store_is_one_sentence(case: str, half: Path, equipoise: CommandLine) -> None:
    BROKEN[case](half)
    for command in (
        "resume",
        "show",
        "export",
        "report",
        *(["table"] if "configuration" not in case and "words" not in case else []),
    ):
        one_sentence(equipoise(command, half))


@pytest.mark.parametrize("case", FILES_BROKEN)
def test_damaged_files_are_one_sentence(
    case: str, half: Path, equipoise: CommandLine, tmp_path: Path
) -> None:
    FILES_BROKEN[case](half)
    (tmp_path / "new.csv").write_text("a\n1\n")
    for words in (("resume", half), ("export", half), ("predict", half, tmp_path / "new.csv")):
        one_sentence(equipoise(*words))
    assert equipoise("show", half)[0] == 0  # the numbers are there


@pytest.mark.parametrize("what", ["", "files", "a state", "run.db"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_that_is_deleted_while_it_goes_on_is_one_sentence(
    what: str,
    workers: int,
    made: Path,
    tmp_path: Path,
    equipoise: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "job.yaml").write_text(
        json.dumps(config(made, "scaffold", rounds=4, workers=workers))
    )
    if workers:
        from equipoise.transports.workers.pool import Workers as transport
    else:
        transport = inprocess.InProcess  # type: ignore[assignment,misc]
    exchange, asked, deleted = transport.exchange, [], []

    def deleting(self, requests, *rest):
        asked.extend(requests[:1] if requests[0].step == "client" else ())
        if len(asked) == 3 and not deleted:
            deleted.append(what)
            gone = (
                tmp_path
                / "run"
                / (what if what != "a state" else f"files/{newest(tmp_path / 'run')}")
            )
            shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        return exchange(self, requests, *rest)

    monkeypatch.setattr(transport, "exchange", deleting)
    answer = equipoise("run", tmp_path / "job.yaml", "--out", tmp_path / "run", "--quiet")
    one_sentence(answer)
    assert "removed" in answer[1] and "while the run was in progress" in answer[1]
    if not what:
        assert not (tmp_path / "run").exists()  # nothing of it was made again


def newest(folder: Path) -> str:
    """The file of the newest client's state, which the next step needs."""
    store = Store(folder)
    found = store.rows("select name from files where kind = 'client' order by round desc, name")[0][
        "name"
    ]
    store.close()
    return str(found)

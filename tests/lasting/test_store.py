"""The store by itself, without a run: what a round puts into it, which files it finds, keeps and removes, and how it says what is wrong."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.records import CannotSave, PerClient, Record, Saved, State, read, write
from equipoise.storage import form
from equipoise.storage import store as module
from equipoise.storage.checkpoint import load_server, paths_of, save_server
from equipoise.storage.files import (
    READ_WHOLE,
    digest,
    digest_of,
    file_flaw,
    in_subfolder,
    is_left_over,
    names_in,
    place,
    save_output,
    sync,
    unlink,
)
from equipoise.storage.outdated import outdated
from equipoise.storage.store import DATABASE, RoundRecord, RunError, Store
from equipoise.storage.tables import FORMAT
from equipoise.tree import Tree


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store.create(tmp_path / "run", "rounds: 3\n", {"clients": ["a", "b"], "note": None})
    yield found
    found.close()


def server(store: Store, number: int, attempt: int = 0) -> tuple[str, str, str, str]:
    name = f"server-r{number}a{attempt}.safetensors"
    write(State(number=number), store.files / name)
    return "server", "", name, digest(store.files / name)


def client(store: Store, own: str, number: int) -> tuple[str, str, str, str]:
    name = in_subfolder(own, f"client-{own}-r{number}a0x1.safetensors")
    write(Record(number=number), place(store.files, name))
    return "client", own, name, digest(store.files / name)


def record(number: int, *files: tuple[str, str, str, str], **more: Any) -> RoundRecord:
    return RoundRecord(number, 0, ["a", "b"], ["a"], files=list(files), **more)


# Beginning.


def test_a_new_store_holds_what_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / f"{DATABASE}.new").write_text("left over by a process that was killed")
    store = Store.create(tmp_path / "run", "rounds: 3\n", {"clients": ["a"], "note": None})
    assert (
        store.meta("format"),
        store.meta("status"),
        store.meta("clients"),
        store.meta("note"),
    ) == (FORMAT, "running", ["a"], None)
    assert (
        store.meta("never said") is None
        and store.last_round() == -1
        and store.missed(3) is None
        and store.checkpoints() == []
    )
    assert (
        tmp_path / "run" / "experiment.yaml"
    ).read_text() == "rounds: 3\n" and store.files.is_dir()
    assert not (tmp_path / "run" / f"{DATABASE}.new").exists() and store.db.execute(
        "pragma journal_mode"
    ).fetchone() == ("wal",)
    assert store.db.execute("pragma synchronous").fetchone() == (2,) and store.db.execute(
        "pragma trusted_schema"
    ).fetchone() == (0,)
    with pytest.raises(RunError, match="holds a run already; resume it with `equipoise resume"):
        Store.create(tmp_path / "run", "", {})
    store.set_meta("clients", ["b"])
    assert store.meta("clients") == ["b"]
    reader = Store(tmp_path / "run")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.set_meta("clients", [])
    reader.close()
    store.close()
    Store(tmp_path / "run", writing=True).close()


@pytest.mark.parametrize(("version", "sentence"), [
    (0, "its format is 0"), (True, "its format is True"), (1.0, "its format is 1.0"), (FORMAT + 1, f"newer version .format {FORMAT + 1}, this one reads up to {FORMAT}"),
])  # fmt: skip
def test_formats_that_this_version_does_not_read(
    version: object, sentence: str, store: Store
) -> None:
    store.set_meta("format", version)
    with pytest.raises(RunError, match=sentence):
        Store(store.folder)
    store.close()
    with pytest.raises(RunError, match=sentence):
        Store(store.folder, writing=True)
    with pytest.raises(RunError, match=sentence):  # the lock was given back
        Store(store.folder, writing=True)


# Rounds.


def test_every_column_of_a_round_is_what_the_record_says(store: Store) -> None:
    table = [("a", "global", "test", 1, 50, 4, 3, 2, 1, 612)]
    given = RoundRecord(
        2, 1, ["a", "b"], ["b"], bytes_down=10, bytes_up=20, steps=30, skipped=40, virtual_seconds=0.5, curves=table,  # type: ignore[arg-type]
        measurements=[("a", "global", "received", "test", "loss", 0.25)], weights={"a": 0.75, "b": 0.25}, seconds={"clients": 1.5},
        rejected=[(0, 3, "a", "gone")], files=[server(store, 2, 1)], elsewhere=[("b", "bb/client-bb-r2a1x1.safetensors", 99, "d" * 64)],
    )  # fmt: skip
    store.commit(given, 2, "finished")
    assert store.tuples("select * from rounds") == [
        (2, 1, '["a", "b"]', '["b"]', 10, 20, 30, 40, 0.5)
    ]
    assert store.tuples("select * from measurements") == [
        (2, "a", "global", "received", "test", "loss", 0.25)
    ]
    assert store.tuples("select * from curves") == [(2, *table[0])]
    assert store.tuples("select * from weights") == [(2, "a", 0.75), (2, "b", 0.25)]
    assert store.tuples("select * from seconds") == [(2, "clients", 1.5)] and given.seconds == {
        "clients": 1.5
    }
    assert store.tuples("select * from rejected") == [(2, 0, 3, "a", "gone")]
    path = store.files / "server-r2a1.safetensors"
    assert store.rows("select * from files order by kind") == [
        {"kind": "client", "key": "b", "round": 2, "name": "bb/client-bb-r2a1x1.safetensors", "bytes": 99, "digest": "d" * 64, "kept_at": "client"},
        {"kind": "server", "key": "", "round": 2, "name": path.name, "bytes": path.stat().st_size, "digest": digest(path), "kept_at": "server"},
    ]  # fmt: skip
    assert (
        store.meta("status") == "finished"
        and store.meta("main model") is None
        and store.last_round() == 2
    )
    store.commit(record(3, server(store, 3), main="personal", seconds={"store": 1.0}), 2)
    assert store.meta("status") == "running" and store.meta("main model") == "personal"
    # to sync is part of it
    assert 1.0 < store.rows("select seconds from seconds where phase = 'store'")[0]["seconds"] < 60


def measured(client: str, phase: str, value: float) -> tuple[str, str, str, str, str, float]:
    return client, "global", phase, "test", "loss", value


def test_who_comes_late_has_new_final_values_and_nobody_else(store: Store) -> None:
    phases = ("received", "final", "reference", "clinical")
    counts = [(one, "global", "test", 0, 1, 1, 1, 1, 1, 612) for one in ("a", "b")]
    store.commit(
        record(
            3,
            measurements=[measured(one, phase, 1.0) for one in ("a", "b") for phase in phases],
            curves=counts,
        ),
        2,
    )  # type: ignore[arg-type]
    store.commit(record(4, measurements=[measured("a", "final", 2.0)], curves=[], finish=True), 2)
    found = store.tuples("select client, phase, value from measurements order by client, phase")
    assert found == [
        ("a", "final", 2.0),
        ("a", "received", 1.0),
        ("b", "clinical", 1.0),
        ("b", "final", 1.0),
        ("b", "received", 1.0),
        ("b", "reference", 1.0),
    ]
    assert store.tuples("select client from curves") == [("b",)]
    store.commit(record(5, measurements=[measured("b", "final", 3.0)]), 2)
    assert (
        len(store.tuples("select * from measurements where client = 'b' and phase = 'final'")) == 2
    )  # only an end replaces


def test_who_has_not_answered_since_the_last_round(store: Store) -> None:
    store.commit(RoundRecord(3, 0, ["a", "b", "c"], ["a", "b", "c"]), 2)
    assert store.missed(3) is None and store.missed(2) == []
    store.commit(RoundRecord(4, 0, ["a", "b", "c"], ["b"]), 2)
    assert store.missed(3) == ["a", "c"]
    store.commit(RoundRecord(5, 0, ["a", "c"], ["c"]), 2)
    assert store.missed(3) == ["a"] and store.last_round() == 5


def test_a_round_that_cannot_be_saved_leaves_the_store_as_it_was(
    store: Store, tmp_path: Path
) -> None:
    store.commit(record(1, server(store, 1)), 2)
    before = list(store.db.iterdump())
    with pytest.raises(
        RunError,
        match=r"round 2 could not be saved to .*; make room or permit writing, then `equipoise resume",
    ):
        # a file that is not there
        store.commit(record(2, ("server", "", "server-r2a0.safetensors", "")), 2)
    with pytest.raises(sqlite3.IntegrityError):
        store.commit(record(1, server(store, 1)), 2)
    store.db.execute("rollback")
    assert list(store.db.iterdump()) == before
    (store.folder / DATABASE).rename(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=r"round 2 could not be saved to .*its run\.db is gone"):
        store.commit(record(2, server(store, 2)), 2)


# Files.


def test_the_newest_version_at_or_before_a_round_is_found(store: Store) -> None:
    for number in (1, 2, 3):
        store.commit(
            record(
                number, server(store, number), client(store, "aa" if number < 3 else "bb", number)
            ),
            5,
        )
    assert {key: file.path.name for key, file in store.current("client").items()} == {
        "aa": "client-aa-r2a0x1.safetensors", "bb": "client-bb-r3a0x1.safetensors",
    }  # fmt: skip
    assert (
        list(store.current("client", "aa")) == ["aa"]
        and not store.current("client", "cc")
        and not store.current("perclient")
    )
    assert (
        store.current("client", at=1)["aa"].path
        == store.files / "aa" / "client-aa-r1a0x1.safetensors"
    )
    assert (
        list(store.current("client", at=2)) == ["aa"]
        and store.current("server", at=2)[""].path.name == "server-r2a0.safetensors"
    )
    (file,) = store.current("server", "").values()
    assert (file.bytes, file.digest, file.kept_at) == (
        file.path.stat().st_size,
        digest(file.path),
        "server",
    )
    assert store.checkpoints() == [3, 2, 1]
    assert store.rows("select name from files where round = ?", [3])[0].keys() == {"name"}


def test_what_is_wrong_with_a_checkpoint_and_which_older_one_is_whole(store: Store) -> None:
    store.check_files()  # nothing is there yet
    for number in (0, 1, 2):
        store.commit(
            record(
                number,
                server(store, number),
                client(store, "aa", number),
                client(store, "bb", number),
            ),
            5,
        )
    assert (
        store.flaw(2) is store.flaw(0) is None and store.flaw(7) == "the server's state is missing"
    )
    newest = store.files / "bb" / "client-bb-r2a0x1.safetensors"
    newest.write_bytes(newest.read_bytes() + b"!")
    assert (
        store.flaw(2)
        == store.flaw(2, "bb")
        == "bb/client-bb-r2a0x1.safetensors is longer than it was written"
    )
    assert store.flaw(2, "aa") is None and store.flaw(1) is None
    store.check_files("aa")
    with pytest.raises(
        RunError,
        match=r"of round 2, is damaged: bb/client-bb.*`equipoise resume .* --from-round 1`",
    ):
        store.check_files()
    (store.files / "server-r1a0.safetensors").unlink()
    with pytest.raises(RunError, match="--from-round 0`"):
        store.check_files()
    (store.files / "server-r0a0.safetensors").unlink()
    with pytest.raises(RunError, match="no older one is whole"):
        store.check_files()


def test_what_was_kept_before_round_1_is_looked_at_too(store: Store) -> None:
    store.commit(record(0, server(store, 0)), 2)
    store.check_files()
    (store.files / "server-r0a0.safetensors").unlink()
    with pytest.raises(
        RunError,
        match="of round 0, is damaged: server-r0a0.safetensors is missing; no older one is whole",
    ):
        store.check_files()


def test_going_back_makes_an_older_round_the_last(store: Store) -> None:
    for number in (1, 2, 3):
        given = record(
            number,
            server(store, number),
            measurements=[measured("a", "received", 1.0)],
            weights={"a": 1.0},
            seconds={"clients": 1.0},
        )
        store.commit(given, 2, "finished")
    with pytest.raises(RunError, match="holds no checkpoint of round 1, but of 3, 2; choose"):
        store.go_back(1)
    store.go_back(2)
    assert (
        store.last_round() == 2 and store.meta("status") == "running" and store.checkpoints() == [2]
    )
    assert (
        store.tuples("select round from weights")
        == store.tuples("select round from seconds")
        == [(1,), (2,)]
    )
    store.commit(record(3, server(store, 3)), 2)
    store.commit(record(4, server(store, 4)), 2)
    assert store.checkpoints() == [4, 3] and not (store.files / "server-r2a0.safetensors").exists()


def test_going_back_without_any_checkpoint_says_so(store: Store) -> None:
    with pytest.raises(RunError, match="holds no checkpoint of round 1, but of none; choose"):
        store.go_back(1)


def test_what_nothing_names_is_swept_away(store: Store) -> None:
    store.commit(record(1, server(store, 1), client(store, "aa", 1)), 2)
    for name in (
        "server-r9a0.safetensors",
        "aa/client-aa-r9a0x1.safetensors",
        "aa/.tmpAbc123",
        "notes.txt",
        "aa/notes.txt",
    ):
        (store.files / name).write_text("")
    store.sweep()
    assert sorted(names_in(store.files)) == [
        "aa/client-aa-r1a0x1.safetensors", "aa/notes.txt", "notes.txt", "server-r1a0.safetensors",
    ]  # fmt: skip
    shutil.rmtree(store.files)
    store.sweep()
    assert store.files.is_dir()
    store.files.rmdir()
    store.files.write_text("")
    with pytest.raises(
        RunError, match="cannot write to .*files: .*; it must be a folder that can be written"
    ):
        store.sweep()


def test_what_was_taken_away_from_a_run_is_named(store: Store, tmp_path: Path) -> None:
    store.commit(record(1, server(store, 1), client(store, "aa", 1)), 2)
    assert store.lost() is None
    (store.files / "aa" / "client-aa-r1a0x1.safetensors").unlink()
    assert str(store.lost()).startswith(
        f"aa/client-aa-r1a0x1.safetensors was removed from {store.folder} while the run was in progress"
    )
    for what in (store.files, store.folder / DATABASE, store.folder):
        what.rename(tmp_path / "elsewhere")
        assert str(store.lost()).startswith(
            f"{what} was removed or moved while the run was in progress; bring it back"
        )
        (tmp_path / "elsewhere").rename(what)


def test_states_on_the_clients_disks_are_no_part_of_a_checkpoint(store: Store) -> None:
    away = ("b", "bb/client-bb-r1a0x1.safetensors", 99, "d" * 64)
    store.commit(record(1, server(store, 1), elsewhere=[away]), 2)
    assert (
        store.flaw(1) is None
        and store.lost() is None
        and store.current("client")["b"].kept_at == "client"
    )


# Names and contents.


@pytest.mark.parametrize(("name", "left"), [
    (".tmpAb12Cd", True), ("0a/.tmpAb12Cd", True), (".tmpAb12C", False), ("client-0f-r1a0x1.safetensors.77.part", True), ("server-r1a0.safetensors", True),
    ("client-0f-r1a0x1.part", False), ("notes.txt", False),
])  # fmt: skip
def test_names_that_a_killed_process_may_leave(name: str, left: bool) -> None:
    assert is_left_over(name) == left


def test_files_of_clients_lie_in_folders_of_their_first_two_letters(tmp_path: Path) -> None:
    assert in_subfolder("7c01", "x") == "7c/x"
    assert place(tmp_path, "7c/x") == tmp_path / "7c" / "x" and (tmp_path / "7c").is_dir()
    assert (
        place(tmp_path, "7c/y").parent.is_dir()
        and place(tmp_path / "none", "y") == tmp_path / "none" / "y"
        and not (tmp_path / "none").exists()
    )
    assert (
        place(tmp_path / "none", "7c/y") == tmp_path / "none" / "7c" / "y"
        and not (tmp_path / "none").exists()
    )
    (tmp_path / "7c" / "x").write_text("")
    (tmp_path / "zz").mkdir()
    (tmp_path / "0f").write_text("a file")
    assert sorted(names_in(tmp_path)) == ["0f", "7c/x", "zz"]


def test_outputs_replace_what_was_there(tmp_path: Path) -> None:
    save_output(tmp_path / "report.html", "a longer text, naïve")
    save_output(tmp_path / "report.html", "short")
    assert (tmp_path / "report.html").read_text() == "short"
    save_output(tmp_path / "model", b"\x00\x01")
    assert (tmp_path / "model").read_bytes() == b"\x00\x01" and (
        tmp_path / "model"
    ).stat().st_mode & 0o600 == 0o600
    assert not (tmp_path / "model").stat().st_mode & 0o111  # nothing to execute
    with pytest.raises(FileNotFoundError):
        save_output(tmp_path / "none" / "report.html", "")


def test_a_link_that_appears_in_between_is_not_followed_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    monkeypatch.setattr(Path, "is_symlink", lambda self: False)  # it was none when somebody looked
    with pytest.raises(
        RunError, match="link is a symbolic link, which Equipoise does not write through"
    ):
        save_output(tmp_path / "link", "other")
    with pytest.raises(OSError):
        digest(tmp_path / "link")
    assert (tmp_path / "target").read_text() == "precious"


@pytest.mark.parametrize("size", [0, READ_WHOLE, READ_WHOLE + 1])
def test_a_digest_is_that_of_all_bytes_read_in_one_piece_or_in_several(
    size: int, tmp_path: Path
) -> None:
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    (tmp_path / "file").write_bytes(content)
    assert digest(tmp_path / "file") == digest_of(content) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("read_whole", [0, READ_WHOLE])
def test_what_is_wrong_with_a_file(
    read_whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.storage.files.READ_WHOLE", read_whole)
    path = tmp_path / "r.safetensors"
    size, known = write(Record(x=torch.zeros(3)), path), digest(path)
    whole = path.read_bytes()
    assert (
        known == digest_of(whole)
        and file_flaw(path, size, known) is file_flaw(path, size, "") is None
    )
    assert (
        file_flaw(path, size + 1, known) == "is cut off"
        and file_flaw(path, size - 1, known) == "is longer than it was written"
    )
    path.write_bytes(whole[:-1] + b"!")
    assert (
        file_flaw(path, size, known) == "was changed after it was written"
        and file_flaw(path, size, "") is None
    )
    path.write_bytes(whole.replace(b"Record", b"record"))
    assert "record: 'record'" in str(file_flaw(path, size, digest(path))), "as written, by whomever"
    path.write_bytes(bytes(size))
    assert (
        str(file_flaw(path, size, "")).startswith("cannot be read (")
        and file_flaw(tmp_path / "none", 1, "") == "is missing"
    )
    assert file_flaw(tmp_path, tmp_path.stat().st_size, "") == "is not a file"


def test_files_are_synced_and_removed_as_far_as_it_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [tmp_path / f"{number}" for number in range(20)]
    for name in names:
        name.write_text("")
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    sync([*names, tmp_path])
    sync([])
    assert len(synced) == 21
    unlink([tmp_path, tmp_path / "none", *names])
    assert not any(name.exists() for name in names) and tmp_path.is_dir()


# The server's state.


def test_a_servers_state_is_saved_in_parts_and_comes_back(store: Store) -> None:
    tree = Tree({"w": torch.arange(3.0)}, "net")
    state = State(
        model=tree,
        number=1,
        inner=Record(tree=tree),
        several=[tree, 2],
        own=PerClient({}, {"a": 1, "b": 2}),
        deep={"own": PerClient({}, {"a": 3}), "x": 4},
    )
    first = RoundRecord(1, 0, [], [])
    settled = save_server(store, state, first)
    assert [(kind, key) for kind, key, _, _ in first.files] == [
        ("server", ""), ("perclient", "own\x1fa"), ("perclient", "own\x1fb"), ("perclient", "deep/own\x1fa"),
    ]  # fmt: skip
    assert (
        all(known == digest(store.files / name) for _, _, name, known in first.files)
        and len({name for *_, name, _ in first.files}) == 4
    )
    store.commit(first, 2)
    for found in (settled(), load_server(store)):
        assert (
            dict(found.own) == {"a": 1, "b": 2}
            and dict(found.deep["own"]) == {"a": 3}
            and (found.deep["x"], found.number) == (4, 1)
        )
        assert (
            not found.own.changed
            and torch.equal(found.several[0]["w"], tree["w"])
            and torch.equal(found.inner.tree["w"], tree["w"])
        )
    second = RoundRecord(2, 1, [], [])
    state = load_server(store)
    settled = save_server(store, state.with_(own=state.own.put({"b": 20})), second)
    assert [(kind, key) for kind, key, _, _ in second.files] == [
        ("server", ""),
        ("perclient", "own\x1fb"),
    ]  # what changed, and no more
    assert second.files[0][2] == "server-r2a1.safetensors" and second.files[1][2].endswith(
        "-r2a1.safetensors"
    )
    store.commit(second, 2)
    for found in (settled(), load_server(store)):
        assert dict(found.own) == {"a": 1, "b": 20} and dict(found.deep["own"]) == {"a": 3}
    assert paths_of(PerClient({"a": 1})) == {} and set(paths_of(found.own)) == {"a", "b"}


def test_a_servers_state_holds_what_large_replies_brought(store: Store) -> None:
    """Their files go with the round: what the state took from them is in memory when it is settled."""
    path = store.files / "reply-aa-r1a0x1.safetensors"
    write(Record(value=Tree({"w": torch.ones(2)}, "net")), path)
    lazy = read(path)["value"]
    settled = save_server(
        store,
        State(model=lazy, several=[lazy], inner={"tree": lazy}, record=Record(tree=lazy)),
        RoundRecord(1, 0, [], []),
    )
    path.unlink()
    found = settled()
    assert [
        one["w"].tolist()
        for one in (found.model, found.several[0], found.inner["tree"], found.record.tree)
    ] == [[1, 1]] * 4


def test_saved_values_are_a_mapping_of_files(tmp_path: Path) -> None:
    write(Record(value=7), tmp_path / "a.safetensors")
    saved = Saved({"a": tmp_path / "a.safetensors"})
    assert dict(saved) == {"a": 7} and "b" not in saved and len(saved) == 1
    with pytest.raises(
        CannotSave,
        match="cannot write .*none.x: .*then resume the run",
    ):
        write(Record(value=7), tmp_path / "none" / "x")


# The form of what is in a store.

META = {
    "status": "running", "created": "now", "version": "1", "environment": {"torch": "2"}, "data": "digits", "clients": ["a", "b"],
    "task": {"kind": "classification", "shape": [3], "outputs": 2, "class_names": []}, "sizes": {"train": [1, 2], "validation": [0, 0], "test": [1, 1]},
    "shared test": 0, "facts": {}, "recipe": {}, "fingerprint": "f", "method": {"name": "fedavg"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"clients": ["a"]}, "its database counts clients and sizes of clients differently"),
        ({"sizes": {"train": [1, 2], "validation": [0, 0], "test": [1]}}, "counts clients and sizes of clients differently"),
        ({"clients": [], "sizes": {"train": [], "validation": [], "test": []}}, "its database names no client"),
        ({"task": META["task"] | {"scale": "x"}}, "centre and scale of its task are [1.0, 'x'], not numbers"),  # type: ignore[operator]
        ({"task": META["task"] | {"centre": float("inf")}}, "centre and scale of its task are [inf, 1.0], not numbers"),  # type: ignore[operator]
        ({"shared test": True}, "'shared test' of its database is 'True', not a whole number"),
        ({"clients": ["a", 1]}, "an entry of 'clients' of its database is '1', not a text"),
        ({"clients": "ab"}, "'clients' of its database is 'ab', not a list"),
        ({"environment": {}}, "'environment' of its database has no 'torch'"),
        ({"method": "fedavg"}, "'method' of its database is 'fedavg', not a mapping"),
        ({"status": None}, "its database has no 'status'"),
        ({"task": META["task"] | {"centre": 1, "scale": 2.5}}, None),  # type: ignore[operator]
        ({}, None),
    ],
)  # fmt: skip
def test_metadata_that_no_run_has(change: dict[str, Any], sentence: str | None) -> None:
    def facts(keys: Collection[str]) -> dict[str, Any]:
        return META | change

    if sentence is None:
        form.check_metadata(Path("run"), facts)
        return
    with pytest.raises(RunError) as said:
        form.check_metadata(Path("run"), facts)
    assert sentence in str(said.value) and str(said.value).startswith(
        "run is damaged or not a run of Equipoise: "
    )


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        (
            "update rounds set virtual_seconds = 'x'",
            "row 1 of the table 'rounds' holds a value of the wrong type",
        ),
        (
            "update rounds set steps = 1.5",
            "row 1 of the table 'rounds' holds a value of the wrong type",
        ),
        ("create view more as select 1", "its database has a view named 'more', which no run has"),
        (
            "alter table seconds rename column phase to what",
            "its database has no 'phase' in the table 'seconds'",
        ),
        ("update rounds set virtual_seconds = null", None),
        ("update measurements set value = null", None),
    ],
)
def test_tables_that_no_run_has(statement: str, sentence: str | None, store: Store) -> None:
    store.commit(
        record(
            1,
            virtual_seconds=0.5,
            measurements=[measured("a", "received", 1.0)],
            seconds={"x": 1.0},
        ),
        2,
    )
    store.db.execute(statement)
    if sentence is None:
        assert len(Store(store.folder).rows("select * from measurements")) == 1
        return
    with pytest.raises(RunError) as said:
        Store(store.folder)
    assert sentence in str(said.value)


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("update rounds set cohort = 'x'", "'x' in its database is not JSON"),
        ("update rounds set joined = '[1]'", "an entry of a round's clients is '1', not a text"),
    ],
)
def test_clients_of_rounds_are_checked_when_they_are_read_or_written(
    statement: str, sentence: str, store: Store
) -> None:
    store.commit(record(2), 2)
    store.db.execute(statement)
    with pytest.raises(RunError, match=re.escape(sentence)):
        Store(store.folder).missed(rounds=1)
    store.close()
    with pytest.raises(RunError, match=re.escape(sentence)):
        Store(store.folder, writing=True)


def test_long_tables_are_looked_at_when_they_are_read_or_written(store: Store) -> None:
    store.commit(record(1, measurements=[measured("a", "received", 1.0)], weights={"a": 1.0}), 2)
    store.db.execute("update weights set share = 'much'")
    reader = Store(store.folder)
    assert reader.rows("select client from weights") == [{"client": "a"}]
    with pytest.raises(RunError, match="a 'share' in its database is of the wrong type"):
        reader.rows("select * from weights")
    with pytest.raises(RunError, match=r"its run\.db cannot be read \(no such table: apples\)"):
        reader.rows("select * from apples")
    store.close()
    with pytest.raises(
        RunError, match="row 1 of the table 'weights' holds a value of the wrong type"
    ):
        Store(store.folder, writing=True)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_stores_of_older_formats_are_read_and_brought_to_this_one(
    version: int, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "server-r1a0.safetensors").touch()
    size = write(State(x=1), tmp_path / "files" / "server-r2a0.safetensors")
    with sqlite3.connect(tmp_path / DATABASE) as db:
        db.executescript(
            module.TABLES
            + "".join(text for since, text in module.ADDED.items() if since <= version)
        )
        db.execute("insert into meta values ('format', ?)", (json.dumps(version),))
        for number, bytes in ((1, 5), (2, size)):  # the first is damaged: its digest stays unknown
            db.execute(
                "insert into files (kind, key, round, name, bytes) values ('server', '', ?, ?, ?)",
                (number, f"server-r{number}a0.safetensors", bytes),
            )
        if version > 1:
            db.execute("update files set digest = 'known' where round = 1")
        if version > 2:
            db.execute("update files set kept_at = 'client' where round = 1")
    db.close()
    first = ("known" if version > 1 else "", "client" if version > 2 else "server")
    reader = Store(tmp_path)
    assert reader.current("server", at=1)[""][2:] == first
    (file,) = reader.current("server").values()
    assert (file.digest, file.kept_at, reader.meta("format")) == ("", "server", version)
    reader.close()
    writer = Store(tmp_path, writing=True)
    (file,) = writer.current("server").values()
    assert (file.digest, file.kept_at, writer.meta("format")) == (
        digest(file.path),
        "server",
        FORMAT,
    )
    assert (
        writer.current("server", at=1)[""][2:] == first
        and writer.flaw(2) is None
        and writer.tuples("select * from curves") == []
    )
    writer.close()
    Store(tmp_path, writing=True).close()


@pytest.mark.parametrize(
    ("version", "config", "changed"),
    [
        ("unknown", {"training": {"optimiser": "adam"}, "method": {"name": "fedekd"}}, True),
        ("0.1", {"training": {"momentum": 0.9}, "method": {"name": "fedekd"}}, True),
        ("0.1", {"training": {}, "method": {"name": "fedekd"}}, False),
        (
            "0.1",
            {
                "training": {"optimiser": "adam", "keep_optimiser": True},
                "method": {"name": "standalone"},
                "model": "cnn",
            },
            True,
        ),
        (
            "0.1",
            {
                "training": {"optimiser": "adam", "keep_optimiser": True},
                "method": {"name": "standalone"},
                "model": {"name": "mlp"},
            },
            False,
        ),
    ],
)
def test_which_settings_an_old_version_left_out(
    version: str, config: dict[str, Any], changed: bool
) -> None:
    assert (
        outdated(config, version, {"kind": "classification", "shape": [1, 8, 8]}) is not None
    ) == changed
    assert "did not standardise" in str(
        outdated(config, "0.9", {"kind": "regression", "shape": [3]})
    )
    assert outdated(config, "0.9", {"kind": "regression", "shape": [3], "centre": 0.0}) is None

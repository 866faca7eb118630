"""The power may be lost at any moment: what is on the disk then is a run that can be resumed, to
the same bits.

A recording file layer keeps what a disk is sure to hold: the content of a file once the file was
synced, its name once the folder was synced, a transaction once SQLite committed it in full
synchrony. The rest is dropped, while a removal counts at once: both may happen.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

import equipoise.runtime.states as states
import equipoise.storage.checkpoint as checkpoint
import equipoise.storage.store as store_module
from equipoise import records, simulate
from equipoise.experiment import experiment
from equipoise.runs import Run
from tests.helpers.runs import config, same_run

Image = tuple[tuple[str, bytes], ...]
UNSYNCED = b""  # what a file holds whose name reached the disk before its content


class Disk:
    """What the disk under a run's folder is sure to hold, and every state that it was in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.contents: dict[int, bytes] = {}  # inode -> content when it was synced
        self.holds: dict[
            str, int
        ] = {}  # path inside the folder, once its own folder was synced -> inode
        self.folders = {"", "files"}  # those whose own names were synced
        self.database: bytes | None = None  # the last transaction that is sure to be there
        self.images: dict[Image, None] = {}
        self.lock = threading.RLock()  # files are synced by several threads

    def fsync(self, descriptor: int) -> None:
        synced = os.fstat(descriptor)
        with self.lock:
            files = self.folder / "files"
            for place in (
                place for place in (self.folder, files, *files.glob("??")) if place.is_dir()
            ):
                inside = [path for path in place.iterdir() if path.is_file()]
                if place == files and os.path.samestat(place.stat(), synced):
                    self.folders |= {
                        str(path.relative_to(self.folder))
                        for path in place.iterdir()
                        if path.is_dir()
                    }
                if os.path.samestat(place.stat(), synced):
                    for path in inside:
                        if not path.name.startswith("run."):
                            self.holds[str(path.relative_to(self.folder))] = path.stat().st_ino
                    if self.folder / "run.db" in inside:
                        self.committed(None)  # its name is there from now on
                for path in inside:
                    if os.path.samestat(path.stat(), synced):
                        self.contents[synced.st_ino] = path.read_bytes()
            self.moment()

    def removed(self, path: Path) -> None:
        with self.lock:
            if path.is_relative_to(self.folder):
                inode = self.holds.pop(str(path.relative_to(self.folder)), None)
                self.contents.pop(inode or 0, None)  # the next file may have its number
            self.moment()

    def committed(self, db: Any) -> None:
        own = sqlite3.connect(self.folder / "run.db") if db is None else db
        copy = sqlite3.connect(":memory:")
        own.backup(copy)
        self.database = copy.serialize()
        copy.close()
        if db is None:
            own.close()

    def moment(self) -> None:
        with self.lock:
            if self.database is not None:
                there = {
                    name: inode
                    for name, inode in sorted(self.holds.items())
                    if name.rpartition("/")[0] in self.folders
                }
                held = ((name, self.contents.get(inode, UNSYNCED)) for name, inode in there.items())
                self.images[(("run.db", self.database), *held)] = None


class Database:
    """A connection that reports to the disk what it committed for certain."""

    def __init__(self, db: Any, disk: Disk) -> None:
        self.db, self.disk = db, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self.db, name)

    def execute(self, sql: str, *rest: Any) -> Any:
        self.disk.moment()
        result = self.db.execute(sql, *rest)
        if sql.split()[0] in ("commit", "insert") and not self.db.in_transaction:
            if self.db.execute("pragma synchronous").fetchone()[0] >= 2:  # full
                self.disk.committed(self.db)
            self.disk.moment()
        return result


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk(tmp_path / "whole")
    opened, unlink, fsync = store_module.Store.__init__, Path.unlink, os.fsync

    def init(self: Any, *arguments: Any, **keywords: Any) -> None:
        opened(self, *arguments, **keywords)
        self.db = Database(self.db, found)

    def around(function: Any) -> Any:
        def called(*arguments: Any) -> Any:
            found.moment()
            result = function(*arguments)
            found.moment()
            return result

        return called

    monkeypatch.setattr(store_module.Store, "__init__", init)
    monkeypatch.setattr(checkpoint, "write", around(records.write))
    monkeypatch.setattr(states.FileStates, "write", around(states.FileStates.write))
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (fsync(descriptor), found.fsync(descriptor))[0]
    )
    monkeypatch.setattr(
        Path,
        "unlink",
        lambda path, missing_ok=False: (unlink(path, missing_ok), found.removed(path))[0],
    )
    return found


# state of clients; and one value per client at the server
@pytest.mark.parametrize("method", ["scaffold", "kdia"])
@pytest.mark.thorough
def test_power_may_be_lost_at_any_moment(
    method: str, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With one checkpoint kept, a commit that is lost after it removed the older one would be the
    # end.
    job = experiment(config(tmp_path, method, rounds=3, keep=1))
    simulate.run(job, disk.folder)
    monkeypatch.undo()
    images = list(disk.images)
    rounds = set()
    for number, image in enumerate(images):
        out = tmp_path / f"after-{number}"
        (out / "files").mkdir(parents=True)
        for name, content in image:
            (out / name).parent.mkdir(exist_ok=True)
            (out / name).write_bytes(content)
        found = Run(out)
        rounds.add(found.store.last_round())
        finished = found.status == "finished"
        found.store.close()
        if not finished:
            simulate.resume(out)
        same_run(disk.folder, out) if not finished else Run(out).store.check_files()
        shutil.rmtree(out)
    assert rounds == {-1, 0, 1, 2, 3}
    assert len(images) > 12

"""The store of a run: an SQLite file beside a folder of safetensors files.

The SQLite transaction is the only commit point. Trees go to new files that no one overwrites; a file counts once a committed row names it, and
files that no row names are removed after a commit and on resume. So a process may be killed at any moment: the last committed round stands whole.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

FORMAT = 1
DATABASE, CONFIGURATION, FILES, LOCK = "run.db", "experiment.yaml", "files", "run.lock"

_TABLES = """
create table meta (key text primary key, value text not null);
create table rounds (round integer primary key, attempt integer not null, cohort text not null, joined text not null,
                     bytes_down integer not null, bytes_up integer not null, steps integer not null, skipped integer not null, virtual_seconds real);
create table measurements (round integer not null, client text not null, model text not null, phase text not null, split text not null,
                           metric text not null, value real);
create table weights (round integer not null, client text not null, share real not null);
create table seconds (round integer not null, phase text not null, seconds real not null);
create table rejected (round integer not null, attempt integer not null, exchange integer not null, client text not null, reason text not null);
create table files (kind text not null, key text not null, round integer not null, name text not null, bytes integer not null,
                    primary key (kind, key, round));
create index measured on measurements (round, client);
"""


class RunError(RuntimeError):
    """Something is wrong with a run on disk; says what and what to do."""


@dataclass
class RoundRecord:
    """All that one round adds to the store."""

    round: int
    attempt: int
    cohort: list[str]
    joined: list[str]
    bytes_down: int = 0
    bytes_up: int = 0
    steps: int = 0
    skipped: int = 0
    virtual_seconds: float | None = None
    measurements: list[tuple[str, str, str, str, str, float]] = field(default_factory=list)  # client, model, phase, split, metric, value
    weights: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    rejected: list[tuple[int, int, str, str]] = field(default_factory=list)  # attempt, exchange, client, reason
    files: list[tuple[str, str, str]] = field(default_factory=list)  # kind, key, name
    main: str = ""  # the served model that the method is for, as the clients said


class Store:
    """One run on disk. Writers hold its lock; readers need none."""

    def __init__(self, folder: Path, writing: bool = False) -> None:
        self.folder = folder
        self.files = folder / FILES
        self._lock: FileLock | None = None
        database = folder / DATABASE
        if not database.exists():
            raise RunError(f"{folder} is not a run: it has no {DATABASE}; give the folder that `equipoise run` named at its end")
        if writing:
            self._acquire()
        try:
            address = database if writing else f"{database.absolute().as_uri()}?mode=ro"
            self.db = sqlite3.connect(address, uri=not writing, isolation_level=None, timeout=10)
            self.db.execute("pragma synchronous = normal")
            version = self.meta("format")
        except sqlite3.DatabaseError as error:
            self.close()
            raise RunError(
                f"{database} cannot be read ({error}): it is damaged or not a run of Equipoise; restore it from a copy or run anew"
            ) from error
        if int(version or 0) > FORMAT:
            self.close()
            raise RunError(
                f"{folder} was written by a newer version (format {version}, this one reads up to {FORMAT}); upgrade equipoise to open it"
            )

    @classmethod
    def create(cls, folder: Path, configuration: str, meta: Mapping[str, Any]) -> Store:
        """A new run; the folder must not hold one already."""
        try:
            (folder / FILES).mkdir(parents=True, exist_ok=True)
            if (folder / DATABASE).exists():
                raise RunError(f"{folder} holds a run already; resume it with `equipoise resume {folder}`, or choose another --out")
            (folder / CONFIGURATION).write_text(configuration)
            fresh = folder / f"{DATABASE}.new"
            fresh.unlink(missing_ok=True)
            db = sqlite3.connect(fresh, isolation_level=None)
            db.execute("pragma journal_mode = wal")
            db.executescript(f"begin; {_TABLES} commit;")
            rows = [(key, json.dumps(value)) for key, value in {"format": FORMAT, "status": "running", **meta}.items()]
            db.executemany("insert into meta values (?, ?)", rows)
            db.close()
            fresh.rename(folder / DATABASE)  # a folder with a database is a whole run, even one killed in its first instant
        except OSError as error:
            raise RunError(
                f"cannot write a run to {folder}: {error.strerror or error}; choose a folder that can be written with --out"
            ) from error
        return cls(folder, writing=True)

    def _acquire(self) -> None:
        lock = FileLock(self.folder / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise RunError(f"{self.folder} is being run by another process; wait for it to end, or stop it") from None
        except OSError as error:
            raise RunError(f"cannot lock {self.folder}: {error.strerror or error}; it must be writable to go on with the run") from error
        self._lock = lock

    def busy(self) -> bool:
        """Whether some process holds the run's lock."""
        if not os.access(self.folder, os.W_OK):
            return False
        lock = FileLock(self.folder / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return True
        lock.release()
        return False

    def close(self) -> None:
        with suppress(AttributeError):
            self.db.close()
        if self._lock is not None:
            self._lock.release()

    def meta(self, key: str) -> Any:
        row = self.db.execute("select value from meta where key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def set_meta(self, key: str, value: Any) -> None:
        self.db.execute("insert or replace into meta values (?, ?)", (key, json.dumps(value)))

    def rows(self, query: str, parameters: Iterable[Any] = ()) -> list[dict[str, Any]]:
        cursor = self.db.execute(query, tuple(parameters))
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def last_round(self) -> int:
        """The last committed round; 0 is the state before round 1, None-like -1 if not even that."""
        found = self.db.execute("select max(round) from rounds").fetchone()[0]
        return -1 if found is None else int(found)

    def commit(self, record: RoundRecord, keep: int, status: str = "running") -> None:
        """Make a round part of the run, whole or not at all; then remove the files that nothing names any more."""
        number = record.round
        try:
            sizes = [(kind, key, number, name, (self.files / name).stat().st_size) for kind, key, name in record.files]
            self.db.execute("begin immediate")
            self.db.execute(
                "insert into rounds values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (number, record.attempt, json.dumps(record.cohort), json.dumps(record.joined), record.bytes_down, record.bytes_up,
                 record.steps, record.skipped, record.virtual_seconds),
            )  # fmt: skip
            self.db.executemany("insert into measurements values (?, ?, ?, ?, ?, ?, ?)", [(number, *row) for row in record.measurements])
            self.db.executemany("insert into weights values (?, ?, ?)", [(number, *row) for row in record.weights.items()])
            self.db.executemany("insert into seconds values (?, ?, ?)", [(number, *row) for row in record.seconds.items()])
            self.db.executemany("insert into rejected values (?, ?, ?, ?, ?)", [(number, *row) for row in record.rejected])
            self.db.executemany("insert into files values (?, ?, ?, ?, ?)", sizes)
            # A version is needed while it is what some kept round would find: the newest at or before it.
            oldest = number - keep + 1
            old = """from files as f where round < ? and exists
                     (select 1 from files as g where g.kind = f.kind and g.key = f.key and g.round > f.round and g.round <= ?)"""
            gone = [row[0] for row in self.db.execute(f"select name {old}", (oldest, oldest))]
            self.db.execute(f"delete from files where rowid in (select f.rowid {old})", (oldest, oldest))
            self.db.execute("insert or replace into meta values ('status', ?)", (json.dumps(status),))
            if record.main:
                self.db.execute("insert or replace into meta values ('main model', ?)", (json.dumps(record.main),))
            self.db.execute("commit")
        except (sqlite3.OperationalError, OSError) as error:
            with suppress(sqlite3.Error):
                self.db.execute("rollback")
            raise RunError(
                f"round {number} could not be saved to {self.folder}: {error}; make room or permit writing, then `equipoise resume {self.folder}`"
            ) from error
        self.remove(gone)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self.files / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove every file that no committed row names."""
        known = {row[0] for row in self.db.execute("select name from files")}
        self.remove(path.name for path in self.files.iterdir() if path.name not in known)

    def current(self, kind: str, key: str | None = None) -> dict[str, tuple[Path, int]]:
        """Key -> file and round of the newest version of this kind."""
        rows = self.db.execute(
            "select key, name, max(round) from files where kind = ? and (? is null or key = ?) group by key", (kind, key, key)
        ).fetchall()
        return {found: (self.files / name, number) for found, name, number in rows}

    def check_files(self) -> None:
        """Refuse a run whose checkpoint lacks files or has cut ones."""
        for name, size in self.db.execute("select name, bytes from files"):
            path = self.files / name
            if not path.exists() or path.stat().st_size != size:
                raise RunError(
                    f"{self.folder} is damaged: {path.name} is {'missing' if not path.exists() else 'cut off'}; "
                    "restore the folder from a copy, or run the experiment anew from its experiment.yaml"
                )

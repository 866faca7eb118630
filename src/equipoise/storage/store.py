"""The store of a run: an SQLite file beside a folder of safetensors files.

The SQLite transaction is the only commit point. Trees go to new files that no one overwrites; a file counts once a committed row names it, and
files that no row names are removed after a commit and on resume. The files of a round are on the disk before the transaction that names them,
and that is on the disk before anything is removed. So a process may be killed, or the power lost, at any moment: the last committed round
stands whole. Each row keeps the digest of its file, so damage that comes later is found, too.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from equipoise.storage.files import (
    CONFIGURATION,
    DATABASE,
    FILES,
    RunError,
    check_entries,
    digest,
    file_flaw,
    is_left_over,
    is_ours,
    names_in,
    sync,
    unlink,
)
from equipoise.storage.form import check_pages, check_tables, damaged, parsed, read
from equipoise.storage.lock import acquire
from equipoise.storage.tables import ADDED, BY_ROUND, FORMAT, TABLES, RoundRecord, Stored
from equipoise.storage.versions import Versions
from equipoise.validation.names import quoted

__all__ = ["CONFIGURATION", "DATABASE", "FILES", "FORMAT", "RoundRecord", "RunError", "Store"]


class Store:
    """One run on disk. Writers hold its lock; readers need none."""

    def __init__(self, folder: Path, writing: bool = False) -> None:
        self.folder = folder
        self.files = folder / FILES
        self._lock: FileLock | None = None
        self._versions = Versions()
        self._types: dict[str, set[type]] = {}  # what columns of long tables hold
        database = folder / DATABASE
        if not database.exists():
            raise RunError(
                f"{folder} is not a run: it has no {DATABASE}; give the folder that `equipoise run` named at its end"
            )
        check_entries(folder, writing)
        if writing:
            self._lock = acquire(folder)
        try:
            # Everything is checked before SQLite may write: a stranger's file must not make it do so.
            self.db = self._connected("ro")
            if writing:
                check_pages(folder, self.db)
            self._check(writing)
            if writing:
                self.db.close()
                self.db = self._connected("rw")
                # A copy made by another tool may have left this mode, in which a kill leaves a journal.
                self.db.execute("pragma journal_mode = wal")
                self._migrate()
        except sqlite3.DatabaseError as error:
            self.close()
            raise damaged(folder, f"its {DATABASE} cannot be read ({error})") from error
        except BaseException:
            self.close()
            raise

    def _connected(self, mode: Literal["ro", "rw"]) -> sqlite3.Connection:
        """Return a connection to the database, which must be there."""
        address = f"{(self.folder / DATABASE).absolute().as_uri()}?mode={mode}"
        db = sqlite3.connect(address, uri=True, isolation_level=None, timeout=10)
        db.execute("pragma synchronous = full")
        # nothing in a stranger's file is to be called
        db.execute("pragma trusted_schema = off")
        return db

    @classmethod
    def create(cls, folder: Path, configuration: str, meta: Mapping[str, Any]) -> Store:
        """A new run; the folder must not hold one already."""
        try:
            check_entries(folder, writing=True)
            (folder / FILES).mkdir(parents=True, exist_ok=True)
            if (folder / DATABASE).exists():
                raise RunError(
                    f"{folder} holds a run already; resume it with `equipoise resume {folder}`, choose another --out, or remove it with --overwrite"
                )
            _check_no_remains(folder)
            (folder / CONFIGURATION).write_text(configuration)
            fresh = folder / f"{DATABASE}.new"
            for ending in ("", "-journal", "-wal", "-shm"):
                fresh.with_name(fresh.name + ending).unlink(missing_ok=True)
            db = sqlite3.connect(fresh, isolation_level=None)
            db.execute("pragma journal_mode = wal")
            db.executescript(f"begin; {TABLES} {''.join(ADDED.values())} commit;")
            rows = [
                (key, json.dumps(value))
                for key, value in {"format": FORMAT, "status": "running", **meta}.items()
            ]
            db.executemany("insert into meta values (?, ?)", rows)
            db.close()
            sync([folder / CONFIGURATION, fresh, folder])
            # a folder with a database is a whole run, even one killed in its first instant
            fresh.rename(folder / DATABASE)
            sync([folder, folder.parent])
        except OSError as error:
            raise RunError(
                f"cannot write a run to {folder}: {error.strerror or error}; choose a folder that can be written with --out"
            ) from error
        return cls(folder, writing=True)

    def _check(self, whole: bool) -> None:
        """Refuse what a newer version wrote, and what no version would write."""
        version = self.meta("format")
        if type(version) is not int or version < 1:
            raise damaged(self.folder, f"its format is {quoted(version)}")
        if version > FORMAT:
            raise RunError(
                f"{self.folder} was written by a newer version (format {quoted(version, 20)}, this one reads up to {FORMAT}); upgrade equipoise to open it"
            )
        tables = TABLES + "".join(text for since, text in ADDED.items() if version >= since)
        self._types = check_tables(self.folder, self.db, tables, whole)
        self._digest = "digest" if version > 1 else "''"
        self._kept_at = "kept_at" if version > 2 else "'server'"
        for (name,) in self.db.execute("select name from files"):
            if not is_ours(name):
                self.file(name)  # which says so

    def _migrate(self) -> None:
        """Bring the store of an older version to this format, whole or not at all."""
        version = self.meta("format")
        if version == FORMAT:
            return
        self.db.execute("begin immediate")
        try:
            for since, text in ADDED.items():
                for statement in text.strip().splitlines() if version < since else ():
                    self.db.execute(statement)
            for name, size in self.db.execute(
                "select name, bytes from files where digest = ''"
            ).fetchall():
                if file_flaw(self.file(name), size, "") is None:
                    self.db.execute(
                        "update files set digest = ? where name = ?",
                        (digest(self.file(name)), name),
                    )
            self.set_meta("format", FORMAT)
            self.db.execute("commit")
        except BaseException:
            with suppress(sqlite3.Error):
                self.db.execute("rollback")
            raise
        self._digest, self._kept_at = "digest", "kept_at"

    def close(self) -> None:
        with suppress(AttributeError):
            self.db.close()
        if self._lock is not None:
            self._lock.release()

    def meta(self, key: str) -> Any:
        rows = self.rows("select value as text from meta where key = ?", (key,))
        return parsed(rows[0]["text"], self.folder) if rows else None

    def set_meta(self, key: str, value: Any) -> None:
        self.db.execute("insert or replace into meta values (?, ?)", (key, json.dumps(value)))

    def rows(self, query: str, parameters: Iterable[Any] = ()) -> list[dict[str, Any]]:
        names, found = read(self.folder, self.db, self._types, query, parameters)
        return [dict(zip(names, row, strict=True)) for row in found]

    def tuples(self, query: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """As `rows`, without the names: for very many."""
        return read(self.folder, self.db, self._types, query, parameters)[1]

    def last_round(self) -> int:
        """The last committed round; 0 is the state before round 1, None-like -1 if not even that."""
        found = self.rows("select max(round) as last from rounds")[0]["last"]
        return -1 if found is None else int(found)

    def missed(self, rounds: int) -> list[str] | None:
        """The clients that were asked after the last of so many rounds and have not answered since; None if that was not yet."""
        rows = self.rows(
            "select cohort, joined from rounds where round > ? order by round", (rounds,)
        )
        if not rows:
            return None
        joined = {client for row in rows for client in parsed(row["joined"], self.folder)}
        return [client for client in parsed(rows[0]["cohort"], self.folder) if client not in joined]

    def commit(self, record: RoundRecord, keep: int, status: str = "running") -> None:
        """Make a round part of the run, whole or not at all; then remove the files that nothing names any more."""
        number = record.round
        try:
            if not (self.folder / DATABASE).exists():
                # SQLite would go on with a file that has no name any more
                raise FileNotFoundError(f"its {DATABASE} is gone")
            began = time.perf_counter()
            paths = [self.file(name) for _, _, name, _ in record.files]
            # names of files, and of sub-folders that are new
            sync([*paths, *{self.files, *(path.parent for path in paths)}])
            if "store" in record.seconds:
                record.seconds["store"] += time.perf_counter() - began
            files = [
                (kind, key, number, name, path.stat().st_size, known, "server")
                for path, (kind, key, name, known) in zip(paths, record.files, strict=True)
            ]
            files += [
                ("client", client, number, name, size, known, "client")
                for client, name, size, known in record.elsewhere
            ]
            self.db.execute("begin immediate")
            self.db.execute(
                "insert into rounds values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (number, record.attempt, json.dumps(record.cohort), json.dumps(record.joined), record.bytes_down, record.bytes_up,
                 record.steps, record.skipped, record.virtual_seconds),
            )  # fmt: skip
            if record.finish:  # a client that had missed the end has new final values
                measured = {row[0] for row in record.measurements}
                for phase in ("final", "reference", "clinical"):
                    old = "delete from measurements where phase = ? and client = ?"
                    self.db.executemany(old, [(phase, client) for client in measured])
                self.db.executemany(
                    "delete from curves where client = ?", [(client,) for client in measured]
                )
            self.db.executemany(
                "insert into measurements values (?, ?, ?, ?, ?, ?, ?)",
                [(number, *row) for row in record.measurements],
            )
            self.db.executemany(
                "insert into curves values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(number, *row) for row in record.curves],
            )
            self.db.executemany(
                "insert into weights values (?, ?, ?)",
                [(number, *row) for row in record.weights.items()],
            )
            self.db.executemany(
                "insert into seconds values (?, ?, ?)",
                [(number, *row) for row in record.seconds.items()],
            )
            self.db.executemany(
                "insert into rejected values (?, ?, ?, ?, ?)",
                [(number, *row) for row in record.rejected],
            )
            self.db.executemany(
                "insert into files (kind, key, round, name, bytes, digest, kept_at) values (?, ?, ?, ?, ?, ?, ?)",
                files,
            )
            gone = self._versions.supersede(self.db, number - keep + 1)
            self.db.execute(
                "insert or replace into meta values ('status', ?)", (json.dumps(status),)
            )
            if record.main:
                self.db.execute(
                    "insert or replace into meta values ('main model', ?)",
                    (json.dumps(record.main),),
                )
            self.db.execute("commit")
        except (sqlite3.OperationalError, OSError) as error:
            with suppress(sqlite3.Error):
                self.db.execute("rollback")
            raise RunError(
                f"round {number} could not be saved to {self.folder}: {error}; make room or permit writing, then `equipoise resume {self.folder}`"
            ) from error
        self._versions.written[number] = [(kind, key) for kind, key, *_ in files]
        self.remove(gone)

    def file(self, name: str) -> Path:
        """Where a file of this run lies; a name that no run gives is refused, wherever it would lead."""
        if not is_ours(name):
            raise damaged(
                self.folder, f"its database names a file {str(name)[:80]!r}, which no run writes"
            )
        return self.files / name

    def remove(self, names: Iterable[str]) -> None:
        # What cannot be removed now is no part of the run any more, and is tried again at resume.
        unlink([self.file(name) for name in names])

    def sweep(self) -> None:
        """Remove every file of a run that no committed row names."""
        known = {row[0] for row in self.db.execute("select name from files")}
        try:
            self.files.mkdir(exist_ok=True)
            unlink(
                [
                    self.files / name
                    for name in names_in(self.files)
                    if name not in known and is_left_over(name)
                ]
            )
        except OSError as error:
            raise RunError(
                f"cannot write to {self.files}: {error.strerror or error}; it must be a folder that can be written"
            ) from error

    def current(
        self, kind: str, key: str | None = None, at: int | None = None
    ) -> dict[str, Stored]:
        """Key -> the newest version of this kind, or the newest at or before a round."""
        rows = self.rows(
            f"""select key, name, max(round) as round, bytes, {self._digest} as digest, {self._kept_at} as kept_at from files
                where kind = ? and (? is null or key = ?) and (? is null or round <= ?) group by key""",
            (kind, key, key, at, at),
        )
        return {
            row["key"]: Stored(self.file(row["name"]), row["bytes"], row["digest"], row["kept_at"])
            for row in rows
        }

    def checkpoints(self) -> list[int]:
        """The rounds whose checkpoints are kept, newest first: the server's state is written in every round, and goes with the round's others."""
        return [
            row["round"]
            for row in self.rows(
                "select distinct round from files where kind = 'server' order by round desc"
            )
        ]

    def flaw(self, number: int, client: str | None = None) -> str | None:
        """What is wrong with the checkpoint of a round, or with what of it concerns one client; None if all is as it was written."""
        if number not in self.checkpoints():
            return "the server's state is missing"
        for row in self._files_of(number, client):
            wrong = file_flaw(self.file(row["name"]), row["bytes"], row["digest"])
            if wrong is not None:
                return f"{row['name']} {wrong}"
        return None

    def _files_of(self, number: int, client: str | None = None) -> list[dict[str, Any]]:
        """Name, size and digest of every file in the checkpoint of a round: the newest version at or before it."""
        return self.rows(
            f"""select name, bytes, {self._digest} as digest, max(round) from files
                where round <= ? and {self._kept_at} = 'server' and (kind != 'client' or ? is null or key = ?)
                group by kind, key order by name""",
            (number, client, client),
        )

    def check_files(self, client: str | None = None) -> None:
        """Refuse a run whose newest checkpoint is damaged, and say from which older one it can go on."""
        last = self.last_round()
        wrong = self.flaw(last, client) if last >= 0 else None
        if wrong is None:
            return
        older = next(
            (
                number
                for number in self.checkpoints()
                if number < last and self.flaw(number) is None
            ),
            None,
        )
        raise RunError(
            f"the newest checkpoint of {self.folder}, of round {last}, is damaged: {wrong}; "
            + (
                "no older one is whole: restore the folder from a copy, or run the experiment anew from its experiment.yaml"
                if older is None
                else f"`equipoise resume {self.folder} --from-round {older}` goes on from the one of round {older}, to the same result"
            )
        )

    def go_back(self, number: int) -> None:
        """Make an older checkpoint the newest: the rounds after it leave the run, all or none."""
        kept = self.checkpoints()
        if number not in kept:
            raise RunError(
                f"{self.folder} holds no checkpoint of round {number}, but of {', '.join(map(str, kept)) or 'none'}; choose one of these"
            )
        wrong = self.flaw(number)
        if wrong is not None:
            raise RunError(
                f"the checkpoint of round {number} of {self.folder} is damaged, too: {wrong}; restore the folder from a copy"
            )
        try:
            self.db.execute("begin immediate")
            for table in BY_ROUND:
                self.db.execute(f"delete from {table} where round > ?", (number,))
            self.set_meta("status", "running")
            self.db.execute("commit")
            self._versions.written.clear()
        except sqlite3.OperationalError as error:
            with suppress(sqlite3.Error):
                self.db.execute("rollback")
            raise RunError(
                f"cannot write to {self.folder}: {error}; make room or permit writing"
            ) from error

    def lost(self) -> str | None:
        """What of a run that is going on was taken away from it; None if all its files are there."""
        if not (self.folder / DATABASE).exists() or not self.files.is_dir():
            what = (
                self.folder
                if not self.folder.exists()
                else self.folder / DATABASE
                if self.files.is_dir()
                else self.files
            )
            return f"{what} was removed or moved while the run was going on; bring it back and resume the run, or run anew"
        gone = next(
            (
                row["name"]
                for row in self._files_of(self.last_round())
                if not self.file(row["name"]).exists()
            ),
            None,
        )
        return (
            None
            if gone is None
            else f"{gone} was removed from {self.folder} while the run was going on; resume the run, or run anew"
        )


def _check_no_remains(folder: Path) -> None:
    """Refuse a folder with what SQLite would take for changes of the database that is made there."""
    for ending in ("-wal", "-shm"):
        path = folder / f"{DATABASE}{ending}"
        if path.exists():
            raise RunError(
                f"{path} belongs to a database that is not there; remove it, or choose another folder with --out"
            )

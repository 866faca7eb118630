"""Store of a run: an SQLite file next to a folder of safetensors files.

The SQLite transaction is the only commit point. Trees go to new files that nobody overwrites. A
file counts once a committed row names it, and files that no row names are removed after a commit
and on resume. The files of a round are on the disk before the transaction that names them, and
that is on the disk before anything is removed. So a process may be killed, or the power lost, at
any moment: the last committed round is whole. Each row has the digest of its file, so that later
damage is found, too.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from equipoise.storage.files import (
    CONFIGURATION,
    DATABASE,
    FILES,
    RunError,
    RunStopped,
    check_entries,
    digest,
    file_flaw,
    is_left_over,
    is_ours,
    names_in,
    resume_command,
    sync,
    unlink,
)
from equipoise.storage.form import (
    check_no_code,
    check_pages,
    check_tables,
    clients_in,
    damaged,
    parsed,
    read,
    read_configuration,
    types_of,
)
from equipoise.storage.lock import acquire
from equipoise.storage.tables import (
    ADDED,
    BY_ROUND,
    CLIENT_PHASE,
    FORMAT,
    TABLES,
    RoundRecord,
    Stored,
)
from equipoise.storage.versions import Versions
from equipoise.validation.names import quoted

__all__ = [
    "CONFIGURATION",
    "DATABASE",
    "FILES",
    "FORMAT",
    "RoundRecord",
    "RunError",
    "RunStopped",
    "Store",
]


class Store:
    """One run on disk. Writers hold its lock; readers need none.

    Attributes:
        folder: The folder of the run.
        files: The folder of its safetensors files.
        db: The connection to its database.
    """

    def __init__(self, folder: Path, writing: bool = False, checked: bool = True) -> None:
        """Open a run.

        Args:
            folder: The folder of the run.
            writing: True to lock the run and change it.
            checked: False to check no more of the database than what is read of it, which is
                faster where hundreds of runs are listed.

        Raises:
            RunError: If there is no run, it is damaged, or another process writes it.
        """
        self.folder = folder
        self.files = folder / FILES
        self._lock: FileLock | None = None
        self._versions = Versions()
        self._types: Mapping[str, set[type]] = {}  # the types in columns of long tables
        self.data_at_sites = False
        database = folder / DATABASE
        if not database.exists():
            raise RunError(
                f"{folder} is not a run: it has no {DATABASE}; "
                "give the folder that `equipoise run` named at its end"
            )
        check_entries(folder, writing)
        if writing:
            self._lock = acquire(folder)
        try:
            # Everything is checked before SQLite may write, since a stranger's file must not make
            # it do so.
            self.db = self._connected("ro")
            if writing:
                check_pages(folder, self.db)
            self._check(checked, whole=writing)
            if writing:
                self.db.close()
                self.db = self._connected("rw")
                # A copy made by another tool may be in another mode, in which a kill leaves a
                # journal.
                self.db.execute("pragma journal_mode = wal")
                self._migrate()
            # Read now: a message about a disk that fails later must not need the disk.
            self.data_at_sites = bool(self.rows("select 1 from meta where key = 'roster'"))
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
        if mode == "rw":
            db.execute("pragma synchronous = full")
        # Functions that a stranger's file names are not called.
        db.execute("pragma trusted_schema = off")
        return db

    @classmethod
    def create(cls, folder: Path, configuration: str, meta: Mapping[str, Any]) -> Store:
        """Create a run and open it for writing.

        Args:
            folder: The folder of the run, which must not hold one already.
            configuration: The text of the experiment's file.
            meta: Facts about the run.

        Raises:
            RunError: If the folder holds a run or cannot be written.
        """
        try:
            check_entries(folder, writing=True)
            (folder / FILES).mkdir(parents=True, exist_ok=True)
            if (folder / DATABASE).exists():
                raise folder_in_use(folder)
            _check_no_remains(folder)
            (folder / CONFIGURATION).write_text(configuration)
            new_database = folder / f"{DATABASE}.new"
            _create_database(new_database, {"format": FORMAT, "status": "running", **meta})
            sync([folder / CONFIGURATION, new_database, folder])
            # A folder with a database is a whole run, even one killed in its first instant.
            new_database.rename(folder / DATABASE)
            sync([folder, folder.parent])
        except OSError as error:
            raise RunError(
                f"cannot write a run to {folder}: {error.strerror or error}; "
                "choose a folder that can be written with --out"
            ) from error
        return cls(folder, writing=True)

    def _check(self, checked: bool, whole: bool) -> None:
        """Refuse the formats of newer versions, and content that no version writes.

        Args:
            checked: False to check the format only.
            whole: True to check the tables that grow with clients and rounds, too.
        """
        check_no_code(self.folder, self.db)
        version = self.meta("format")
        if type(version) is not int or version < 1:
            raise damaged(self.folder, f"its format is {quoted(version)}")
        if version > FORMAT:
            raise RunError(
                f"{self.folder} was written by a newer version (format {quoted(version, 20)}, "
                f"this one reads up to {FORMAT}); upgrade equipoise to open it"
            )
        tables = TABLES + "".join(text for since, text in ADDED.items() if version >= since)
        self._types = types_of(tables)
        self._digest = "digest" if version > 1 else "''"
        self._kept_at = "kept_at" if version > 2 else "'server'"
        if not checked:
            return
        check_tables(self.folder, self.db, tables, whole)
        for (name,) in self.db.execute("select name from files"):
            self.file(name)  # refuses a name that no run gives

    def _migrate(self) -> None:
        """Bring the store of an older version to this format, whole or not at all."""
        version = self.meta("format")
        if version == FORMAT:
            return
        self.db.execute("begin immediate")
        try:
            for since, text in ADDED.items():
                if version < since:
                    for statement in text.strip().splitlines():
                        self.db.execute(statement)
            undigested = self.db.execute("select name, bytes from files where digest = ''")
            for name, size in undigested.fetchall():
                path = self.file(name)
                if file_flaw(path, size, "") is None:
                    self.db.execute(
                        "update files set digest = ? where name = ?", (digest(path), name)
                    )
            self.set_meta("format", FORMAT)
            self.db.execute("commit")
        except BaseException:
            with suppress(sqlite3.Error):
                self.db.execute("rollback")
            raise
        self._digest = "digest"
        self._kept_at = "kept_at"

    def close(self) -> None:
        """Close the database and release the lock."""
        with suppress(AttributeError):
            self.db.close()
        if self._lock is not None:
            self._lock.release()

    def meta(self, key: str) -> Any:
        """Return a fact about the run; None if it is unknown."""
        return self.facts([key]).get(key)

    def facts(self, keys: Collection[str]) -> dict[str, Any]:
        """Return the known facts about the run with some keys, in one query."""
        placeholders = ", ".join("?" * len(keys))
        rows = self.tuples(
            f"select key, value as text from meta where key in ({placeholders})", keys
        )
        return {key: parsed(text, self.folder) for key, text in rows}

    @property
    def is_finished(self) -> bool:
        """True if training has ended: all rounds are done, or a callback or a budget stopped it."""
        return bool(self.meta("status") == "finished")

    def resume_command(self, options: str = "") -> str:
        """Return the command that resumes the run; see `files.resume_command`."""
        return resume_command(self.folder, self.data_at_sites, options)

    def set_meta(self, key: str, value: Any) -> None:
        """Write a fact about the run."""
        self.db.execute("insert or replace into meta values (?, ?)", (key, json.dumps(value)))

    def rows(self, query: str, parameters: Iterable[Any] = ()) -> list[dict[str, Any]]:
        """Return the rows of a query as mappings.

        Args:
            query: An SQL query.
            parameters: The values of its placeholders.

        Raises:
            RunError: If a value has another type than the column.
        """
        names, rows = read(self.folder, self.db, self._types, query, parameters)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def tuples(self, query: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query as tuples, which is faster for very many."""
        return read(self.folder, self.db, self._types, query, parameters)[1]

    def last_round(self) -> int:
        """Return the last committed round: 0 for the state before round 1, -1 without even that."""
        last = self.rows("select max(round) as last from rounds")[0]["last"]
        return -1 if last is None else int(last)

    def missed(self, rounds: int) -> list[str] | None:
        """Return the clients that have not made their final model yet.

        Args:
            rounds: The number of rounds of the experiment.

        Returns:
            Their names; None if no client has made one yet.
        """
        rows = self.rows(
            "select cohort, joined from rounds where round > ? order by round", (rounds,)
        )
        if not rows:
            return None
        joined: set[str] = set()
        for row in rows:
            joined.update(clients_in(row["joined"], self.folder))
        cohort = clients_in(rows[0]["cohort"], self.folder)
        return [client for client in cohort if client not in joined]

    def unevaluated(self) -> list[str]:
        """Return the clients that missed the evaluation of the last committed round."""
        rows = self.rows(
            "select client from rejected "
            "where exchange = 0 and round = (select max(round) from rounds) order by rowid"
        )
        return [row["client"] for row in rows]

    def commit(self, record: RoundRecord, keep: int, status: str = "running") -> None:
        """Make a round part of the run, whole or not at all.

        Files that no row names afterwards are removed.

        Args:
            record: The round.
            keep: The number of checkpoints to keep.
            status: The status of the run after this round.

        Raises:
            RunStopped: If the round cannot be saved; the run stays at the round before.
        """
        number = record.round
        try:
            if not (self.folder / DATABASE).exists():
                # SQLite would continue with a file that has no name any more.
                raise FileNotFoundError(f"its {DATABASE} is gone")
            files = self._synced_files(record)
            self.db.execute("begin immediate")
            self._insert(record, files)
            superseded = self._versions.supersede(self.db, number - keep + 1)
            self.set_meta("status", status)
            if record.main:
                self.set_meta("main model", record.main)
            self.db.execute("commit")
        except (sqlite3.OperationalError, OSError) as error:
            with suppress(sqlite3.Error):
                self.db.execute("rollback")
            raise RunStopped(
                f"round {number} could not be saved to {self.folder}: {error}; "
                f"make room or permit writing, then {self.resume_command()}"
            ) from error
        self._versions.written[number] = [(kind, key) for kind, key, *_ in files]
        self.remove(superseded)

    def _synced_files(self, record: RoundRecord) -> list[tuple[Any, ...]]:
        """Make sure that a round's files are on the disk; return their rows."""
        began = time.perf_counter()
        paths = [self.file(name) for _, _, name, _ in record.files]
        # The folders, too: they hold the names of new files and of new sub-folders.
        folders = {self.files, *(path.parent for path in paths)}
        sync([*paths, *folders])
        if "store" in record.seconds:
            record.seconds["store"] += time.perf_counter() - began
        rows: list[tuple[Any, ...]] = []
        for path, (kind, key, name, known) in zip(paths, record.files, strict=True):
            rows.append((kind, key, record.round, name, path.stat().st_size, known, "server"))
        for client, name, size, known in record.elsewhere:
            rows.append(("client", client, record.round, name, size, known, "client"))
        return rows

    def _insert(self, record: RoundRecord, files: Iterable[tuple[Any, ...]]) -> None:
        """Insert the rows of a round into all tables."""
        number = record.round
        round_row = (
            number,
            record.attempt,
            json.dumps(record.cohort),
            json.dumps(record.joined),
            record.bytes_down,
            record.bytes_up,
            record.steps,
            record.skipped,
            record.virtual_seconds,
        )
        self._insert_rows("rounds", [round_row])
        if record.finish:
            self._delete_final_values({row[0] for row in record.measurements})
        self._insert_rows("measurements", [(number, *row) for row in record.measurements])
        self._insert_rows("curves", [(number, *row) for row in record.curves])
        self._insert_rows("group_curves", [(number, *row) for row in record.group_curves])
        self._insert_rows("weights", [(number, *row) for row in record.weights.items()])
        seconds = dict(record.seconds)
        for client, value in record.client_seconds.items():
            seconds[f"{CLIENT_PHASE}{client}"] = value
        self._insert_rows("seconds", [(number, *row) for row in seconds.items()])
        self._insert_rows("rejected", [(number, *row) for row in record.rejected])
        # The columns are named, since a migrated table has them in another order.
        columns = "kind, key, round, name, bytes, digest, kept_at"
        self._insert_rows(f"files ({columns})", list(files))

    def _insert_rows(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            placeholders = ", ".join("?" * len(rows[0]))
            self.db.executemany(f"insert into {table} values ({placeholders})", rows)

    def _delete_final_values(self, clients: Iterable[str]) -> None:
        """Delete the final values of clients that have new ones after they had missed the end."""
        for client in clients:
            for phase in ("final", "reference", "clinical"):
                self.db.execute(
                    "delete from measurements where phase = ? and client = ?", (phase, client)
                )
            self.db.execute("delete from curves where client = ?", (client,))
            self.db.execute("delete from group_curves where client = ?", (client,))

    def file(self, name: str) -> Path:
        """Return the path of a file of this run.

        Raises:
            RunError: If no run gives such a name, for example one that leads elsewhere.
        """
        if not is_ours(name):
            raise damaged(
                self.folder, f"its database names a file {str(name)[:80]!r}, which no run writes"
            )
        return self.files / name

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; those that cannot be removed now are removed on resume."""
        unlink([self.file(name) for name in names])

    def sweep(self) -> None:
        """Remove every file of the run that no committed row names.

        Raises:
            RunError: If the folder of files cannot be written.
        """
        committed = {row[0] for row in self.db.execute("select name from files")}
        try:
            self.files.mkdir(exist_ok=True)
            left_over = []
            for name in names_in(self.files):
                if name not in committed and is_left_over(name):
                    left_over.append(self.files / name)
            unlink(left_over)
        except OSError as error:
            raise RunError(
                f"cannot write to {self.files}: {error.strerror or error}; "
                "it must be a folder that can be written"
            ) from error

    def current(
        self, kind: str, key: str | None = None, at: int | None = None
    ) -> dict[str, Stored]:
        """Return the newest files of a kind by key.

        Args:
            kind: ``server`` or ``client``, for example.
            key: One key only.
            at: The newest at or before this round.
        """
        rows = self.rows(
            f"""
            select key, name, max(round) as round, bytes,
                   {self._digest} as digest, {self._kept_at} as kept_at
            from files
            where kind = ? and (? is null or key = ?) and (? is null or round <= ?)
            group by key
            """,
            (kind, key, key, at, at),
        )
        files = {}
        for row in rows:
            path = self.file(row["name"])
            files[row["key"]] = Stored(path, row["bytes"], row["digest"], row["kept_at"])
        return files

    def checkpoints(self) -> list[int]:
        """Return the rounds that have a checkpoint, newest first.

        The server's state is written in every round and removed with the rest of its checkpoint.
        """
        query = "select distinct round from files where kind = 'server' order by round desc"
        return [row["round"] for row in self.rows(query)]

    def flaw(self, number: int, client: str | None = None) -> str | None:
        """Return the damage to a checkpoint; None if all is intact.

        Args:
            number: The round of the checkpoint.
            client: Check only what concerns this client.
        """
        if number not in self.checkpoints():
            return "the server's state is missing"
        for row in self._files_of(number, client):
            wrong = file_flaw(self.file(row["name"]), row["bytes"], row["digest"])
            if wrong is not None:
                return f"{row['name']} {wrong}"
        return None

    def _files_of(self, number: int, client: str | None = None) -> list[dict[str, Any]]:
        """Return name, size and digest of the files in a checkpoint: the newest of each kind."""
        return self.rows(
            f"""
            select name, bytes, {self._digest} as digest, max(round)
            from files
            where round <= ? and {self._kept_at} = 'server'
                  and (kind != 'client' or ? is null or key = ?)
            group by kind, key
            order by name
            """,
            (number, client, client),
        )

    def check_files(self, client: str | None = None) -> None:
        """Check that the newest checkpoint is whole.

        Args:
            client: Check only what concerns this client.

        Raises:
            RunError: If it is damaged; it names an older checkpoint that is whole.
        """
        last = self.last_round()
        damage = self.flaw(last, client) if last >= 0 else None
        if damage is None:
            return
        remedy = (
            "no older one is whole: restore the folder from a copy, "
            "or run the experiment again from its experiment.yaml"
        )
        for number in self.checkpoints():
            if number < last and self.flaw(number) is None:
                command = self.resume_command(f" --from-round {number}")
                remedy = f"{command} continues from the one of round {number}, to the same result"
                break
        raise RunError(
            f"the newest checkpoint of {self.folder}, of round {last}, is damaged: {damage}; "
            f"{remedy}"
        )

    def restarted(self) -> list[tuple[str, int]]:
        """Return the clients that began afresh, each with the first round without its old state."""
        rows = self.meta("restarted") or []
        try:
            return [(str(client), int(number)) for client, number in rows]
        except (TypeError, ValueError):
            raise damaged(self.folder, f"its restarted clients are {quoted(rows)}") from None

    def restart(self, client: str) -> None:
        """Let a client begin afresh with the next round, since its state is lost.

        Args:
            client: The client.

        Raises:
            RunError: If the run has no such client.
        """
        clients = self.meta("clients")
        if client not in clients:
            raise RunError(
                f"{self.folder} has no client {client!r}; its clients are "
                f"{', '.join(map(repr, clients))}"
            )
        self.set_meta("restarted", [*self.restarted(), (client, self.last_round() + 1)])

    def go_back(self, number: int) -> None:
        """Make an older checkpoint the newest: later rounds leave the run, all or none.

        Args:
            number: The round of the checkpoint.

        Raises:
            RunError: If there is no such checkpoint, or it is damaged.
        """
        checkpoints = self.checkpoints()
        if number not in checkpoints:
            listed = ", ".join(map(str, checkpoints)) or "none"
            raise RunError(
                f"{self.folder} holds no checkpoint of round {number}, but of {listed}; "
                "choose one of these"
            )
        damage = self.flaw(number)
        if damage is not None:
            raise RunError(
                f"the checkpoint of round {number} of {self.folder} is damaged, too: {damage}; "
                "restore the folder from a copy"
            )
        try:
            self.db.execute("begin immediate")
            for table in BY_ROUND:
                self.db.execute(f"delete from {table} where round > ?", (number,))
            self.set_meta("status", "running")
            restarted = [row for row in self.restarted() if row[1] <= number + 1]
            self.set_meta("restarted", restarted)
            self.set_meta("went back", True)
            self.db.execute("commit")
            self._versions.written.clear()
        except sqlite3.OperationalError as error:
            with suppress(sqlite3.Error):
                self.db.execute("rollback")
            raise RunError(
                f"cannot write to {self.folder}: {error}; make room or permit writing"
            ) from error

    def lost(self) -> str | None:
        """Return what was removed from a run in progress, as a sentence; None if nothing was."""
        present = {
            self.folder: self.folder.exists(),
            self.files: self.files.is_dir(),
            self.folder / DATABASE: (self.folder / DATABASE).exists(),
        }
        for path, is_present in present.items():
            if not is_present:
                return (
                    f"{path} was removed or moved while the run was in progress; "
                    "bring it back and resume the run, or run again"
                )
        for row in self._files_of(self.last_round()):
            if not self.file(row["name"]).exists():
                return (
                    f"{row['name']} was removed from {self.folder} while the run was in progress; "
                    "resume the run, or run again"
                )
        return None


def folder_in_use(folder: Path) -> RunError:
    """Return the error that a folder holds a run, which may be finished."""
    try:
        with closing(Store(folder, checked=False)) as store:
            rounds = read_configuration(folder)["rounds"]
            is_over = store.is_finished and not store.missed(rounds) and not store.unevaluated()
    except (RunError, KeyError):  # a damaged run: `equipoise resume` says what is wrong with it
        is_over = False
    if is_over:
        return RunError(
            f"{folder} holds a run already; it is finished, so choose another folder with --out, "
            "or replace it with --overwrite"
        )
    return RunError(
        f"{folder} holds a run already; resume it with `equipoise resume {folder}` "
        "(add --network KIT if its data are at sites), choose another --out, "
        "or remove it with --overwrite"
    )


def _create_database(path: Path, meta: Mapping[str, Any]) -> None:
    """Create a database with all tables, in place of one that was left over."""
    for ending in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("pragma journal_mode = wal")
    db.executescript(f"begin; {TABLES} {''.join(ADDED.values())} commit;")
    rows = [(key, json.dumps(value)) for key, value in meta.items()]
    db.executemany("insert into meta values (?, ?)", rows)
    db.close()


def _check_no_remains(folder: Path) -> None:
    """Refuse files that SQLite would take for changes of the database that is created."""
    for ending in ("-wal", "-shm"):
        path = folder / f"{DATABASE}{ending}"
        if path.exists():
            raise RunError(
                f"{path} belongs to a database that is not there; remove it, "
                "or choose another folder with --out"
            )

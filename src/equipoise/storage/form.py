"""Form of a run's folder, which may be damaged or come from anyone."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.storage.files import CONFIGURATION, DATABASE, RunError
from equipoise.validation.imports import FromFile
from equipoise.validation.names import quoted

# Tables with rows for every client of a round.
_LONG = ("measurements", "weights", "curves", "group_curves")
_MOST = 2**40  # of anything that a run counts
_LONGEST = 400  # characters of a sentence that holds something from a file
# Numbers of which every value must be finite; a measured value may be infinite, as a loss may be.
_FINITE = ("seconds", "share", "virtual_seconds")
_TYPES = {"integer": int, "real": float, "text": str}
_WORDS = {int: "a whole number", str: "a text", list: "a list", dict: "a mapping"}
_METADATA: dict[str, Any] = {
    "status": str,
    "created": str,
    "version": str,
    "environment": {"torch": str},
    "data": str,
    "clients": [str],
    "task": {"kind": str, "shape": [int], "outputs": int, "class_names": [str]},
    "sizes": {"train": [int], "validation": [int], "test": [int]},
    "shared test": int,
    "facts": dict,
    "recipe": dict,
    "fingerprint": str,
    "method": {"name": str},
}
_CONFIGURATION: dict[str, Any] = {
    "data": {"name": str, "partition": str},
    "method": {"name": str},
    "training": dict,
    "rounds": int,
    "seed": int,
    "model": object,
    "models": dict,
    "evaluation": {"metrics": [str], "splits": [str], "clients": str},
}


class _Column(NamedTuple):
    """A column of a table, as SQLite describes it."""

    name: str
    type: str  # integer, real or text
    filled: bool  # no value may be missing


def damaged(folder: Path, damage: str) -> RunError:
    """Return the error for a folder that no version writes; long texts are shortened."""
    if len(damage) > _LONGEST:
        damage = f"{damage[:_LONGEST]}..."
    return RunError(
        f"{folder} is damaged or not a run of Equipoise: {damage}; "
        "restore it from a copy or run again"
    )


def check_tables(folder: Path, db: sqlite3.Connection, tables: str, whole: bool) -> None:
    """Refuse a database whose tables differ from those of a run, down to the type of every value.

    Args:
        folder: The folder of the run.
        db: Its database.
        tables: The SQL that creates the tables.
        whole: True to check the tables that grow with clients and rounds, too. Otherwise `read`
            checks their values.

    Raises:
        RunError: If the database is not that of a run.
    """
    present = set(
        db.execute(
            "select tables.name, columns.name from sqlite_master as tables "
            "join pragma_table_info(tables.name) as columns where tables.type = 'table'"
        )
    )
    for table, expected in _columns_of(tables).items():
        for column in expected:
            if (table, column.name) not in present:
                raise damaged(folder, f"its database has no {column.name!r} in the table {table!r}")
        if whole or table not in _LONG:
            _check_values(folder, db, table, expected)
    _check_cohorts(folder, db)


def check_no_code(folder: Path, db: sqlite3.Connection) -> None:
    """Refuse a database with triggers or views, which SQLite would execute.

    Raises:
        RunError: If there is one.
    """
    foreign = db.execute(
        "select type, name from sqlite_master where type in ('trigger', 'view')"
    ).fetchone()
    if foreign is not None:
        raise damaged(
            folder, f"its database has a {foreign[0]} named {foreign[1]!r}, which no run has"
        )


@cache
def types_of(tables: str) -> Mapping[str, set[type]]:
    """Return the types in the columns of the tables that grow with clients and rounds.

    Args:
        tables: The SQL that creates all tables.
    """
    columns = _columns_of(tables)
    types: dict[str, set[type]] = {}
    for table in _LONG:
        for column in columns.get(table, ()):
            types[column.name] = {_TYPES[column.type]}
            if not column.filled:
                types[column.name].add(type(None))
    return types


@cache
def _columns_of(tables: str) -> dict[str, list[_Column]]:
    """Return the columns of the tables that some SQL creates."""
    columns = {}
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(tables)
        names = db.execute("select name from sqlite_master where type = 'table'").fetchall()
        for (name,) in names:
            rows = db.execute(
                f"select name, lower(type), \"notnull\" from pragma_table_info('{name}')"
            )
            columns[name] = [_Column(column, kind, bool(filled)) for column, kind, filled in rows]
    return columns


def _check_values(
    folder: Path, db: sqlite3.Connection, table: str, columns: Iterable[_Column]
) -> None:
    """Check the type of every value in a table, since SQLite keeps any type in any column."""
    conditions = ") and (".join(_condition(column) for column in columns)
    wrong = db.execute(f"select rowid from {table} where not (({conditions})) limit 1").fetchone()
    if wrong is not None:
        raise damaged(
            folder,
            f"row {wrong[0]} of the table {table!r} holds a value of the wrong type, "
            "or one that is not finite",
        )


def _check_cohorts(folder: Path, db: sqlite3.Connection) -> None:
    for row in db.execute("select cohort, joined from rounds"):
        for text in row:
            clients_in(text, folder)


def _condition(column: _Column) -> str:
    """Return the SQL that checks type and finiteness of a column's values."""
    condition = f"typeof({column.name}) = '{column.type}'"
    if column.name in _FINITE:
        condition += f" and abs({column.name}) < 9e999"
    return condition if column.filled else f"({condition}) or {column.name} is null"


def read(
    folder: Path,
    db: sqlite3.Connection,
    types: Mapping[str, set[type]],
    query: str,
    parameters: Iterable[Any],
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names of a query's columns, and its rows.

    Args:
        folder: The folder of the run.
        db: Its database.
        types: The types that columns may hold, by name.
        query: An SQL query.
        parameters: The values of its placeholders.

    Raises:
        RunError: If a value has another type than its column, or should be finite and is not.
    """
    try:
        cursor = db.execute(query, tuple(parameters))
        names = [column[0] for column in cursor.description]
        rows = cursor.fetchall()
    except sqlite3.DatabaseError as error:
        raise damaged(folder, f"its {DATABASE} cannot be read ({error})") from error
    for index, name in enumerate(names):
        # `map` in place of a comprehension: there may be millions of rows.
        value_of = itemgetter(index)
        if name in types and not types[name].issuperset(map(type, map(value_of, rows))):
            raise damaged(folder, f"a {name!r} in its database is of the wrong type")
        if name in _FINITE:
            numbers = filter(None, map(value_of, rows))
            if not all(map(math.isfinite, numbers)):
                raise damaged(folder, f"a {name!r} in its database is not a finite number")
    return names, rows


def check_pages(folder: Path, db: sqlite3.Connection) -> None:
    """Refuse a database that SQLite itself finds broken."""
    finding = db.execute("pragma quick_check(1)").fetchone()[0]
    if finding != "ok":
        raise damaged(folder, f"its database says: {' '.join(finding.split())}")


def parsed(text: str, folder: Path) -> Any:
    """Return the value of JSON from the store."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise damaged(folder, f"{quoted(text, 40)} in its database is not JSON") from None


def clients_in(text: str, folder: Path) -> list[str]:
    """Return the clients that a column of the table of rounds names, as JSON.

    Args:
        text: The value of the column.
        folder: The folder of the run.

    Raises:
        RunError: If it is not a list of texts.
    """
    clients: list[str] = parsed(text, folder)
    wrong = mismatch(clients, [str], "a round's clients")
    if wrong is not None:
        raise damaged(folder, wrong)
    return clients


def check_metadata(folder: Path, facts: Callable[[Collection[str]], Mapping[str, Any]]) -> None:
    """Refuse a run whose facts are missing, malformed or contradictory.

    Args:
        folder: The folder of the run.
        facts: Returns the known facts with some keys, such as `Store.facts`.

    Raises:
        RunError: With the first problem.
    """
    metadata = {}
    for key, value in facts(_METADATA).items():
        if value is not None:
            metadata[key] = value
    wrong = (
        mismatch(metadata, _METADATA, "its database")
        or _wrong_clients(metadata)
        or _wrong_unit(metadata["task"])
        or _absurd(metadata)
    )
    if wrong is not None:
        raise damaged(folder, wrong)


def _wrong_clients(metadata: Mapping[str, Any]) -> str | None:
    clients = len(metadata["clients"])
    if any(len(metadata["sizes"][part]) != clients for part in _METADATA["sizes"]):
        return "its database counts clients and sizes of clients differently"
    return None if clients else "its database names no client"


def _wrong_unit(task: Mapping[str, Any]) -> str | None:
    unit = [task.get(key, 1.0) for key in ("centre", "scale")]  # older runs have none
    for number in unit:
        if type(number) not in (int, float) or not math.isfinite(number):
            return f"centre and scale of its task are {str(unit)[:40]}, not numbers"
    return None


def _absurd(metadata: Mapping[str, Any]) -> str | None:
    """Return the count of a run that no data can have; None if all are possible."""
    task = metadata["task"]
    widths = [*task["shape"], task["outputs"]]
    if not all(0 < width < _MOST for width in widths):
        return f"shape and outputs of its task are {quoted(widths, 40)}"
    counts = [metadata["shared test"]]
    for part in _METADATA["sizes"]:
        counts += metadata["sizes"][part]
    for count in counts:
        if not 0 <= count < _MOST:
            return f"its database counts {quoted(count, 40)} samples"
    return None


def read_configuration(folder: Path) -> FromFile:
    """Return the resolved configuration of a run.

    Code that it names counts as named by a file, not by the user.

    Raises:
        RunError: If it is missing or malformed.
    """
    from equipoise.experiment import load

    path = folder / CONFIGURATION
    if not path.exists():
        raise damaged(folder, f"it has no {CONFIGURATION}")
    if not path.is_file():  # a read from a pipe would wait
        raise damaged(folder, f"its {CONFIGURATION} is not a file")
    try:
        config = load(path)
    except (ValueError, OSError, RecursionError) as error:
        raise damaged(
            folder, f"its {CONFIGURATION} cannot be read ({str(error).splitlines()[0]})"
        ) from None
    wrong = mismatch(config, _CONFIGURATION, CONFIGURATION)
    if wrong is not None:
        raise damaged(folder, wrong)
    return config


def mismatch(value: Any, shape: Any, where: str) -> str | None:
    """Return the difference of a value from the shape that it should have; None if there is none.

    Args:
        value: The value.
        shape: A type, a list with the shape of every item, or a mapping from key to shape.
        where: The name of the value, for the message.

    Example:
        >>> mismatch({"sizes": [1, "many"]}, {"sizes": [int]}, "the file")
        "an entry of 'sizes' of the file is 'many', not a whole number"
    """
    if isinstance(shape, list):
        return mismatch(value, list, where) or _mismatch_of_items(value, shape[0], where)
    if isinstance(shape, dict):
        return mismatch(value, dict, where) or _mismatch_of_keys(value, shape, where)
    fits = isinstance(value, shape) and not (shape is int and isinstance(value, bool))
    return None if fits else f"{where} is {str(value)[:40]!r}, not {_WORDS[shape]}"


def _mismatch_of_items(items: Iterable[Any], shape: Any, where: str) -> str | None:
    # Lists of 100,000 clients are checked without a call for each.
    if isinstance(shape, type) and {shape}.issuperset(map(type, items)):
        return None
    for item in items:
        wrong = mismatch(item, shape, f"an entry of {where}")
        if wrong is not None:
            return wrong
    return None


def _mismatch_of_keys(
    values: Mapping[str, Any], shape: Mapping[str, Any], where: str
) -> str | None:
    for key in shape:
        if key not in values:
            return f"{where} has no {key!r}"
    for key, inner in shape.items():
        wrong = mismatch(values[key], inner, f"{key!r} of {where}")
        if wrong is not None:
            return wrong
    return None

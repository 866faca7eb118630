"""Whether what lies in a run's folder has the form of a run: a folder may be damaged, or come from anyone."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from equipoise.storage.files import CONFIGURATION, DATABASE, RunError
from equipoise.validation.imports import FromFile
from equipoise.validation.names import quoted

_LONG = ("measurements", "weights", "curves")  # tables with rows for every client of a round
_MOST = 2**40  # of anything that a run counts
_LONGEST = 400  # characters of a sentence that holds something from a file
# Numbers of which every value must be finite; a measured value may be infinite, as a loss may be.
_FINITE = ("seconds", "share", "virtual_seconds")
_TYPES = {"integer": int, "real": float, "text": str}
_WORDS = {int: "a whole number", str: "a text", list: "a list", dict: "a mapping"}
_METADATA: dict[str, Any] = {
    "status": str, "created": str, "version": str, "environment": {"torch": str}, "data": str, "clients": [str],
    "task": {"kind": str, "shape": [int], "outputs": int, "class_names": [str]},
    "sizes": {"train": [int], "validation": [int], "test": [int]},
    "shared test": int, "facts": dict, "recipe": dict, "fingerprint": str, "method": {"name": str},
}  # fmt: skip
_CONFIGURATION: dict[str, Any] = {
    "data": {"name": str, "partition": str}, "method": {"name": str}, "training": dict, "rounds": int, "seed": int, "model": object,
    "models": dict, "evaluation": {"metrics": [str], "splits": [str], "clients": str},
}  # fmt: skip


def damaged(folder: Path, what: str) -> RunError:
    """Return the error for a folder that no version would write; long texts are shortened."""
    what = what if len(what) <= _LONGEST else f"{what[:_LONGEST]}..."
    return RunError(
        f"{folder} is damaged or not a run of Equipoise: {what}; restore it from a copy or run anew"
    )


def check_tables(
    folder: Path, db: sqlite3.Connection, tables: str, whole: bool
) -> dict[str, set[type]]:
    """Refuse a database whose tables are not those that `tables` makes, down to the type of every value.

    Unless `whole`, the tables that grow with clients and rounds are left to `read`; returns the types of their columns.
    """
    with sqlite3.connect(":memory:") as own:
        own.executescript(tables)
        known = own.execute("select name from sqlite_master where type = 'table'").fetchall()
        columns = {
            name: own.execute(
                f"select name, lower(type), \"notnull\" from pragma_table_info('{name}')"
            ).fetchall()
            for (name,) in known
        }
    own.close()
    stranger = db.execute(
        "select type, name from sqlite_master where type in ('trigger', 'view')"
    ).fetchone()
    if stranger is not None:
        raise damaged(
            folder, f"its database has a {stranger[0]} named {stranger[1]!r}, which no run has"
        )
    for table, wanted in columns.items():
        found = {row[0] for row in db.execute("select name from pragma_table_info(?)", (table,))}
        missing = [name for name, _, _ in wanted if name not in found]
        if missing:
            raise damaged(folder, f"its database has no {missing[0]!r} in the table {table!r}")
        if table in _LONG and not whole:
            continue
        # SQLite keeps any type in any column.
        fits = [_condition(name, kind, bool(filled)) for name, kind, filled in wanted]
        wrong = db.execute(
            f"select rowid from {table} where not (({') and ('.join(fits)})) limit 1"
        ).fetchone()
        if wrong is not None:
            raise damaged(
                folder,
                f"row {wrong[0]} of the table {table!r} holds a value of the wrong type, or one that is not finite",
            )
    for cohort, joined in db.execute("select cohort, joined from rounds"):
        for text in (cohort, joined):
            wrong = mismatch(parsed(text, folder), [str], "a round's clients")
            if wrong is not None:
                raise damaged(folder, wrong)
    return {
        name: {_TYPES[kind], *((type(None),) if not filled else ())}
        for table in _LONG
        for name, kind, filled in columns.get(table, ())
    }


def _condition(column: str, kind: str, filled: bool) -> str:
    """Return what SQLite checks of a column's values: their type, and that they are finite."""
    fits = f"typeof({column}) = '{kind}'"
    if column in _FINITE:
        fits += f" and abs({column}) < 9e999"
    return fits if filled else f"({fits}) or {column} is null"


def read(
    folder: Path,
    db: sqlite3.Connection,
    types: Mapping[str, set[type]],
    query: str,
    parameters: Iterable[Any],
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The names of a query's columns, and its rows; refused if a value is of another type than columns of that name hold."""
    try:
        cursor = db.execute(query, tuple(parameters))
        names, rows = [column[0] for column in cursor.description], cursor.fetchall()
    except sqlite3.DatabaseError as error:
        raise damaged(folder, f"its {DATABASE} cannot be read ({error})") from error
    for place, name in enumerate(names):
        if name in types and not types[name].issuperset(map(type, map(itemgetter(place), rows))):
            raise damaged(folder, f"a {name!r} in its database is of the wrong type")
        if name in _FINITE and not all(
            map(math.isfinite, filter(None, map(itemgetter(place), rows)))
        ):
            raise damaged(folder, f"a {name!r} in its database is not a finite number")
    return names, rows


def check_pages(folder: Path, db: sqlite3.Connection) -> None:
    """Refuse a database of which SQLite itself says that it is broken."""
    said = db.execute("pragma quick_check(1)").fetchone()[0]
    if said != "ok":
        raise damaged(folder, f"its database says: {' '.join(said.split())}")


def parsed(text: str, folder: Path) -> Any:
    """JSON from the store."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise damaged(folder, f"{quoted(text, 40)} in its database is not JSON") from None


def check_metadata(folder: Path, meta: Callable[[str], Any]) -> None:
    """Refuse a run that does not say what it is."""
    metadata = {key: value for key in _METADATA if (value := meta(key)) is not None}
    wrong = mismatch(metadata, _METADATA, "its database")
    if (
        wrong is None
        and len(
            {
                len(metadata["clients"]),
                *(len(metadata["sizes"][part]) for part in _METADATA["sizes"]),
            }
        )
        != 1
    ):
        wrong = "its database counts clients and sizes of clients differently"
    unit = (
        [] if wrong is not None else [metadata["task"].get(key, 1.0) for key in ("centre", "scale")]
    )  # runs of older versions have none
    if any(type(number) not in (int, float) or not math.isfinite(number) for number in unit):
        wrong = f"centre and scale of its task are {str(unit)[:40]}, not numbers"
    if wrong is None:
        wrong = _absurd(metadata)
    if wrong is None and not metadata["clients"]:
        wrong = "its database names no client"
    if wrong is not None:
        raise damaged(folder, wrong)


def _absurd(metadata: Mapping[str, Any]) -> str | None:
    """Return which count of a run no data can have; None if all are possible."""
    task, sizes = metadata["task"], metadata["sizes"]
    counts = [*task["shape"], task["outputs"]]
    if not all(0 < count < _MOST for count in counts):
        return f"shape and outputs of its task are {quoted(counts, 40)}"
    counts = [
        metadata["shared test"],
        *(count for part in _METADATA["sizes"] for count in sizes[part]),
    ]
    wrong = next((count for count in counts if not 0 <= count < _MOST), None)
    return None if wrong is None else f"its database counts {quoted(wrong, 40)} samples"


def read_configuration(folder: Path) -> FromFile:
    """The resolved configuration of a run: enough to repeat it. What it names is a file's, not the user's."""
    from equipoise.experiment import load

    if not (folder / CONFIGURATION).is_file():  # a pipe would be waited for
        raise damaged(
            folder,
            f"its {CONFIGURATION} is not a file"
            if (folder / CONFIGURATION).exists()
            else f"it has no {CONFIGURATION}",
        )
    try:
        found = load(folder / CONFIGURATION)
    except (ValueError, OSError, RecursionError) as error:
        raise damaged(
            folder, f"its {CONFIGURATION} cannot be read ({str(error).splitlines()[0]})"
        ) from None
    wrong = mismatch(found, _CONFIGURATION, CONFIGURATION)
    if wrong is not None:
        raise damaged(folder, wrong)
    return found


def mismatch(value: Any, shape: Any, where: str) -> str | None:
    """What is wrong with a value: `shape` is a type, a list with the shape of every item, or a mapping from key to shape.

    >>> mismatch({"sizes": [1, "many"]}, {"sizes": [int]}, "the file")
    "an entry of 'sizes' of the file is 'many', not a whole number"
    """
    if isinstance(shape, list):
        wrong = mismatch(value, list, where)
        # of 100,000 clients, too, without a call for each
        if wrong is None and {shape[0]}.issuperset(map(type, value)):
            return None
        return wrong or next(
            (
                wrong
                for item in value
                if (wrong := mismatch(item, shape[0], f"an entry of {where}"))
            ),
            None,
        )
    if isinstance(shape, dict):
        wrong = mismatch(value, dict, where) or next(
            (f"{where} has no {key!r}" for key in shape if key not in value), None
        )
        return wrong or next(
            (
                wrong
                for key, one in shape.items()
                if (wrong := mismatch(value[key], one, f"{key!r} of {where}"))
            ),
            None,
        )
    fits = isinstance(value, shape) and not (shape is int and isinstance(value, bool))
    return None if fits else f"{where} is {str(value)[:40]!r}, not {_WORDS[shape]}"

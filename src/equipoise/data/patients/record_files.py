"""Files of patients and events, CSV or Parquet, some rows at a time; and what their cells mean."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import Any, TextIO

from equipoise.validation.regular_files import check_regular

BLOCK = 50_000  # rows of a file that are held as text at a time
Block = tuple[int, dict[str, list[str]]]  # number of its first row, and cells by column


def blocks(
    file: Path, wanted: dict[str, tuple[str, ...]], needed: Sequence[str]
) -> Iterator[Block]:
    """The wanted columns of a file, some rows at a time; row numbers count the header as 1."""
    header = header_of(file)
    columns = {
        name: next((h for h in header if h.lower() in also), None) for name, also in wanted.items()
    }
    lacking = [name for name in needed if columns[name] is None]
    if lacking:
        raise ValueError(
            f"{file}: expected the columns {', '.join(needed)}, got {', '.join(header)}; {lacking[0]} is missing"
        )
    chosen = {name: column for name, column in columns.items() if column is not None}
    number = 2
    for rows in (_parquet_blocks if file.suffix == ".parquet" else _csv_blocks)(file, chosen):
        yield number, rows
        number += len(next(iter(rows.values())))


def header_of(file: Path) -> list[str]:
    """Return the names of a file's columns."""
    check_regular(file)
    if file.suffix == ".parquet":
        names = [str(name) for name in _parquet(file).schema.names]
    else:
        with _reading(file) as opened:
            names = [
                cell.strip().lower()
                for cell in next(csv.reader(opened, delimiter=_separator(file)), [])
            ]
    if not any(names):
        raise ValueError(f"{file}: expected a line of column names, got an empty file")
    repeated = sorted(
        name
        for name, count in Counter(name.lower() for name in names).items()
        if count > 1 and name
    )
    if repeated:
        raise ValueError(
            f"{file}: the column {repeated[0]} appears twice; leave one of the two out"
        )
    return names


@contextmanager
def _reading(file: Path) -> Iterator[TextIO]:
    try:
        with open(file, encoding="utf-8-sig", newline="") as opened:
            yield opened
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(
            f"{file} is damaged or not a CSV file in UTF-8 ({error}); save it as CSV in UTF-8"
        ) from None


def _separator(file: Path) -> str:
    with _reading(file) as opened:
        line = opened.readline(100_000)
    return max(",;\t|", key=line.count)


def _csv_blocks(file: Path, chosen: dict[str, str]) -> Iterator[dict[str, list[str]]]:
    with _reading(file) as opened:
        reader = csv.reader(opened, delimiter=_separator(file), strict=True)
        header = [cell.strip().lower() for cell in next(reader, [])]
        places = {name: header.index(column) for name, column in chosen.items()}
        held: dict[str, list[str]] = {name: [] for name in places}
        blank = 0  # the first of the empty lines, which may stand at the end only: rows are counted
        for number, row in enumerate(reader, 2):
            if not row:
                blank = blank or number
                continue
            if blank or len(row) != len(header):
                bad, cells = (blank, 0) if blank else (number, len(row))
                raise ValueError(
                    f"{file}, row {bad}: expected {len(header)} cells, got {cells}; mend that row"
                )
            for name, place in places.items():
                held[name].append(row[place].strip())
            if len(held["patient"]) == BLOCK:
                yield held
                held = {name: [] for name in places}
        if held["patient"]:
            yield held


def _parquet_blocks(file: Path, chosen: dict[str, str]) -> Iterator[dict[str, list[str]]]:
    for batch in _parquet(file).iter_batches(BLOCK, columns=list(dict.fromkeys(chosen.values()))):
        yield {
            name: [
                "" if cell is None else str(cell).strip()
                for cell in batch.column(column).to_pylist()
            ]
            for name, column in chosen.items()
        }


def _parquet(file: Path) -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"reading {file} needs the package pyarrow; pip install 'equipoise[tables]'"
        ) from None
    try:
        return parquet.ParquetFile(file)
    except (ValueError, OSError) as error:
        raise ValueError(f"{file} is damaged or not a Parquet file ({error})") from None


def column_among(file: Path, names: Sequence[str]) -> str | None:
    header = header_of(file)
    return next((h for name in names for h in header if h.lower() == name), None)


def number_of(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def moment_of(cell: str) -> float:
    """A time as days: a number, a day or a time of day."""
    number = number_of(cell)
    readers: tuple[Callable[[str], float], ...] = (
        lambda text: float(date.fromisoformat(text).toordinal()),
        lambda text: (
            (moment := datetime.fromisoformat(text)).toordinal()
            + (moment.hour * 3600 + moment.minute * 60 + moment.second) / 86400
        ),
    )
    for read in readers if math.isnan(number) else ():
        try:
            return read(cell.strip())
        except ValueError:
            continue
    return number if math.isfinite(number) else math.nan

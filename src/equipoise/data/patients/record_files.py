"""Files of patients and events, CSV or Parquet, read in blocks of rows; and cells as numbers."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from equipoise.validation.regular_files import check_regular

BLOCK = 50_000  # rows of a file that are held as text at a time
Block = tuple[int, dict[str, list[str]]]  # number of its first row, and cells by column
_DAY = 86400  # seconds


def read_blocks(
    file: Path, columns: Mapping[str, Sequence[str]], required: Sequence[str]
) -> Iterator[Block]:
    """Yield columns of a file in blocks of rows; row numbers count the header as 1.

    Args:
        file: A CSV or Parquet file.
        columns: For each column its names, in lower case, of which a file has one.
        required: The columns that the file must have.

    Raises:
        ValueError: If a column is missing, or the file is damaged.
    """
    header = header_of(file)
    in_file: dict[str, str] = {}
    for name, spellings in columns.items():
        for column in header:
            if column.lower() in spellings:
                in_file.setdefault(name, column)
    for name in required:
        if name not in in_file:
            raise ValueError(
                f"{file}: expected the columns {', '.join(required)}, got {', '.join(header)}; "
                f"{name} is missing"
            )
    read = _parquet_blocks if file.suffix == ".parquet" else _csv_blocks
    number = 2
    for rows in read(file, in_file):
        yield number, rows
        number += len(next(iter(rows.values())))


def header_of(file: Path) -> list[str]:
    """Return the names of a file's columns.

    Raises:
        ValueError: If there are none, or one appears twice.
    """
    check_regular(file)
    if file.suffix == ".parquet":
        names = [str(name) for name in _open_parquet(file).schema.names]
    else:
        separator = _separator(file)
        with _open_csv(file) as opened:
            names = _names(next(csv.reader(opened, delimiter=separator), []))
    if not any(names):
        raise ValueError(f"{file}: expected a line of column names, got an empty file")
    counts = Counter(name.lower() for name in names)
    repeated = sorted(name for name, count in counts.items() if count > 1 and name)
    if repeated:
        raise ValueError(
            f"{file}: the column {repeated[0]} appears twice; leave one of the two out"
        )
    return names


def _names(cells: Sequence[str]) -> list[str]:
    return [cell.strip().lower() for cell in cells]


@contextmanager
def _open_csv(file: Path) -> Iterator[TextIO]:
    try:
        with open(file, encoding="utf-8-sig", newline="") as opened:
            yield opened
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(
            f"{file} is damaged or not a CSV file in UTF-8 ({error}); save it as CSV in UTF-8"
        ) from None


def _separator(file: Path) -> str:
    with _open_csv(file) as opened:
        line = opened.readline(100_000)
    return max(",;\t|", key=line.count)


def _csv_blocks(file: Path, columns: Mapping[str, str]) -> Iterator[dict[str, list[str]]]:
    separator = _separator(file)
    with _open_csv(file) as opened:
        reader = csv.reader(opened, delimiter=separator, strict=True)
        header = _names(next(reader, []))
        indices = {name: header.index(column) for name, column in columns.items()}
        block: dict[str, list[str]] = {name: [] for name in indices}
        empty_line = 0  # allowed only at the end, since rows are counted
        for number, row in enumerate(reader, 2):
            if not row:
                empty_line = empty_line or number
                continue
            if empty_line:
                raise ValueError(_wrong_cells(file, empty_line, len(header), 0))
            if len(row) != len(header):
                raise ValueError(_wrong_cells(file, number, len(header), len(row)))
            for name, index in indices.items():
                block[name].append(row[index].strip())
            if len(block["patient"]) == BLOCK:
                yield block
                block = {name: [] for name in indices}
        if block["patient"]:
            yield block


def _wrong_cells(file: Path, row: int, expected: int, cells: int) -> str:
    return f"{file}, row {row}: expected {expected} cells, got {cells}; correct that row"


def _parquet_blocks(file: Path, columns: Mapping[str, str]) -> Iterator[dict[str, list[str]]]:
    names = list(dict.fromkeys(columns.values()))
    for batch in _open_parquet(file).iter_batches(BLOCK, columns=names):
        block = {}
        for name, column in columns.items():
            cells = batch.column(column).to_pylist()
            block[name] = ["" if cell is None else str(cell).strip() for cell in cells]
        yield block


def _open_parquet(file: Path) -> Any:
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
    """Return the column of a file that has one of these names, the first of them if several."""
    columns = {column.lower(): column for column in header_of(file)}
    for name in names:
        if name in columns:
            return columns[name]
    return None


def number_of(cell: str) -> float:
    """Return a cell as a number; NaN if it is none."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def time_in_days(cell: str) -> float:
    """Return a time in days: a number, a date or a date with a time of day; NaN for others.

    >>> time_in_days("3.5"), time_in_days("0001-01-02T12:00"), time_in_days("yesterday")
    (3.5, 2.5, nan)
    """
    number = number_of(cell)
    if math.isfinite(number):
        return number
    if not math.isnan(number):
        return math.nan
    try:
        moment = datetime.fromisoformat(cell.strip())
    except ValueError:
        return math.nan
    seconds = moment.hour * 3600 + moment.minute * 60 + moment.second
    return moment.toordinal() + seconds / _DAY

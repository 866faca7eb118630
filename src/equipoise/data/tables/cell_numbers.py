"""Cells of one column as numbers: categories as codes, dates as days, gaps as NaN."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import numpy as np

from equipoise.data.schema import DATES, ColumnSchema
from equipoise.data.tables.csv_files import (
    cells_as_text,
    column_of,
    is_inexact_integer,
    is_missing,
    number_of,
    numbers_if_all,
)
from equipoise.validation.names import quoted

LARGEST = float(np.finfo(np.float32).max)
_EPOCH = datetime(1970, 1, 1)
_DAY = 86400  # seconds


def column_as_numbers(
    values: np.ndarray, column: ColumnSchema, of_row: Callable[[int], str] | None = None
) -> np.ndarray:
    """Return a column as numbers: dates as days, categories as their index in the schema.

    Args:
        values: The cells.
        column: The schema of the column. A category that it does not list gets the code after
            the last. A number that it lists in another spelling, such as 01 for 1, is that one.
        of_row: A function that returns the file and line of a row, for errors.

    Returns:
        One float per cell, NaN for a gap and for infinity.

    Raises:
        ValueError: If a cell does not fit the kind of the column.
    """
    if column.kind == "category":
        return _category_codes(values, column.categories)
    values = numbers_if_all(values)
    if column.kind == "date":
        return dates_as_days(cells_as_text(values), column, of_row)
    numbers = _parse_numbers(values, column.name, of_row)
    # `data check` warns that infinity is read as a gap.
    return np.where(np.abs(numbers) > LARGEST, np.nan, numbers)


def _category_codes(values: np.ndarray, categories: tuple[str, ...]) -> np.ndarray:
    codes = {name: code for code, name in enumerate(categories)}
    codes_of_numbers = _codes_of_numbers(categories)
    unknown = len(categories)
    numbers = np.full(len(values), np.nan)
    for row, cell in enumerate(map(str, cells_as_text(values))):
        if is_missing(cell):
            continue
        if cell not in codes:
            codes[cell] = codes_of_numbers.get(_spelled_alike(cell), unknown)
        numbers[row] = codes[cell]
    return numbers


def _codes_of_numbers(categories: tuple[str, ...]) -> dict[str | None, int]:
    """Return the code of each category that is a number, by a spelling that all sites share.

    Of several categories with one number, such as 1 and 01, it is the first that is spelled so.
    """
    codes: dict[str | None, int] = {}
    for code, name in enumerate(categories):
        spelling = _spelled_alike(name)
        if spelling is not None and (spelling not in codes or name == spelling):
            codes[spelling] = code
    return codes


def _spelled_alike(cell: str) -> str | None:
    """Return one spelling for 1, 01 and 1.0; None for a cell that is no number."""
    if is_inexact_integer(cell) or not is_number(cell):
        return None
    return str(cells_as_text(column_of([cell]))[0])


def dates_as_days(
    cells: np.ndarray, column: ColumnSchema, of_row: Callable[[int], str] | None = None
) -> np.ndarray:
    """Return dates as days since 1970, with fractions; NaN for a gap.

    Args:
        cells: The cells as text.
        column: The column with its formats.
        of_row: A function that returns the file and line of a row, for errors.

    Raises:
        ValueError: If a cell is not a date in one of the formats.
    """
    result = np.full(len(cells), np.nan)
    for row, cell in enumerate(map(str, cells)):
        if is_missing(cell):
            continue
        form = next((form for form in column.formats if is_date(cell, form)), None)
        if form is None:
            raise ValueError(
                f"{_location(row, of_row)}column {quoted(column.name)}: expected dates as "
                f"{' or '.join(column.formats or DATES[:3])}, got {quoted(cell)}; "
                "correct the cell or the schema"
            )
        since_epoch = datetime.strptime(cell, form) - _EPOCH
        result[row] = since_epoch.total_seconds() / _DAY
    return result


def is_date(cell: str, form: str) -> bool:
    """Return True if a cell is a date in a format such as %d.%m.%Y."""
    try:
        datetime.strptime(cell, form)
    except ValueError:
        return False
    return True


def is_number(text: str) -> bool:
    """Return True if a cell that is no gap reads as a number."""
    return not is_missing(text) and column_of([text]).dtype.kind == "f"


def _parse_numbers(
    values: np.ndarray, name: str, of_row: Callable[[int], str] | None
) -> np.ndarray:
    if values.dtype.kind != "U":
        return values.astype(np.float64)
    numbers = np.full(len(values), np.nan)
    for row, cell in enumerate(map(str, values)):
        if is_missing(cell):
            continue
        try:
            numbers[row] = number_of(cell)
        except ValueError:
            raise ValueError(
                f"{_location(row, of_row)}column {quoted(name)}: expected a number, "
                f"got {quoted(cell)}; list such cells under `missing` in the schema, "
                "or give the column another kind"
            ) from None
    return numbers


def _location(row: int, of_row: Callable[[int], str] | None) -> str:
    return f"{of_row(row)}, " if of_row is not None else ""

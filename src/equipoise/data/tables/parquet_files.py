"""Parquet files, whose size is checked by their footer before memory is allocated."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.tables.csv_files import spelled_column
from equipoise.validation.names import quoted

LIMIT = "EQUIPOISE_TABLE_GB"  # the environment variable that raises the bound
GB = 2**30
DEFAULT_GB = 4.0
_CELL_BYTES = 64  # memory of a cell while it is read and checked, as measured
_EXACT = 2**53  # up to which every integer is a float
_MOST_EXPANSION = 200  # times that the numbers may be larger than the file,
_SMALL = 2**29  # unless they take fewer bytes than this


def read_parquet(file: Path) -> dict[str, np.ndarray]:
    """Read the columns of a Parquet file.

    Raises:
        ValueError: If the file is damaged, holds nested columns, or would take more memory than
            the environment variable EQUIPOISE_TABLE_GB allows (4 by default).
    """
    parquet = _pyarrow(file)
    try:
        opened = parquet.ParquetFile(file)
        _check_footer(file, opened.metadata, opened.schema_arrow)
        texts = [field.name for field in opened.schema_arrow if _is_text(field.type)]
        table = parquet.read_table(file, read_dictionary=texts)
        rows = table.num_rows
        return {
            name: _cells(table.column(name), rows, f"{file}, column {quoted(name)}")
            for name in table.column_names
        }
    except _TooLarge as error:
        raise ValueError(str(error)) from None
    except (ValueError, OSError, KeyError) as error:  # pyarrow's errors are of these kinds
        raise ValueError(f"{file} is damaged or not a Parquet file ({error})") from None


class _TooLarge(Exception):
    """A file that is intact but must not be read, with a message for the user."""


def _pyarrow(file: Path) -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"reading {file} needs the package pyarrow, which is not installed; pip install pyarrow"
        ) from None
    return parquet


def _check_footer(file: Path, metadata: Any, schema: Any) -> None:
    from pyarrow import types

    nested = [field.name for field in schema if types.is_nested(field.type)]
    if nested:
        raise _TooLarge(
            f"{file}: expected one number or text per cell, got lists or records in column "
            f"{quoted(nested[0])}; leave that column out"
        )
    rows, columns = metadata.num_rows, len(schema)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    stored = sum(group.total_byte_size for group in groups)
    needed = max(stored, rows * columns * _CELL_BYTES)
    content = f"{rows:,} rows x {columns:,} columns"
    _check_memory(str(file), needed, content)
    size = os.stat(file).st_size
    # Eight bytes are a number: a file of real data is not that much smaller than its numbers.
    is_suspicious = rows * columns * 8 > _MOST_EXPANSION * size
    if is_suspicious and needed > _SMALL and LIMIT not in os.environ:
        raise _TooLarge(
            f"{file}: expected data, got a file of {size:,} bytes that would expand to {content}; "
            f"set the environment variable {LIMIT} to {needed / GB + 0.1:.1f} or more if the file "
            "is what you expect"
        )


def _check_memory(location: str, needed: int, content: str) -> None:
    if needed > _limit() * GB:
        raise _TooLarge(
            f"{location}: its {content} would take {needed / GB:.1f} GB of memory, more than "
            "the bound of "
            f"{_limit():g} GB; use a part of the file, or set the environment variable {LIMIT} to "
            f"{needed / GB + 0.1:.1f} or more if the file is what you expect"
        )


def _limit() -> float:
    text = os.environ.get(LIMIT, "")
    try:
        limit = float(text) if text else DEFAULT_GB
    except ValueError:
        limit = 0.0
    if not limit > 0:
        raise _TooLarge(f"{LIMIT}: expected a positive number of gigabytes, got {quoted(text)}")
    return limit


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_floating(kind) or types.is_integer(kind))


def _has_large_integers(column: Any) -> bool:
    """Return True if there are integers that a float may not hold."""
    from pyarrow import compute, types

    if not types.is_integer(column.type):
        return False
    bounds = compute.min_max(column).as_py()
    return any(abs(bound) > _EXACT for bound in bounds.values() if bound is not None)


def _cells(column: Any, rows: int, location: str) -> np.ndarray:
    """Return a column as floats, or as text.

    Args:
        column: The column.
        rows: Its length.
        location: The file and the column, for errors.
    """
    from pyarrow import types

    if _is_number(column.type) and not _has_large_integers(column):
        return np.asarray(column.to_numpy(), np.float64)
    if not types.is_dictionary(column.type):
        return spelled_column(["" if cell is None else str(cell) for cell in column.to_pylist()])
    texts: list[np.ndarray] = []
    for chunk in column.chunks:
        # Every different text is converted once, however often it occurs.
        known = np.array(["", *map(str, chunk.dictionary.to_pylist())], dtype=np.str_)
        _check_memory(location, rows * known.itemsize, f"{rows:,} texts")
        index = chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        texts.append(known[index + 1])
    cells = np.concatenate(texts) if texts else np.array([], dtype=np.str_)
    different, index = np.unique(cells, return_inverse=True)
    return spelled_column(different.tolist())[index.reshape(-1)]

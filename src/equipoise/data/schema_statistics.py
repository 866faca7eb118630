"""Counts, means and variances of one site's numbers, for centres and scales of a joint schema.

They leave the site in its schema file, so they are written only if somebody asks for them, and
never of fewer than five numbers.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from equipoise.data.dataset import Dataset
from equipoise.data.schema import SCALED, CodeSchema, ColumnSchema, Schema, Statistics

FEWEST = 5  # numbers of a site of which a mean is written; of fewer it would give them away
_DIGITS = 8  # of numbers in a file
_Entry = TypeVar("_Entry", ColumnSchema, CodeSchema, Schema)


def with_statistics(schema: Schema, dataset: Dataset) -> Schema:
    """Return the schema of a site with the statistics of its numbers, dates, codes and targets.

    Args:
        schema: The schema of the site.
        dataset: Its data, read by this schema.

    Returns:
        The schema; columns and codes with fewer than five numbers have no statistics.
    """
    if dataset.codes:
        schema = schema.model_copy(update={"codes": _with_code_statistics(schema.codes, dataset)})
    x = dataset.x.numpy()
    index = {column.name: j for j, column in enumerate(dataset.columns)}
    columns = []
    for column in schema.columns:
        if column.kind in SCALED and column.name in index:
            column = _with(column, x[:, index[column.name]])
        columns.append(column)
    schema = schema.model_copy(update={"columns": tuple(columns)})
    if dataset.task.classifies:
        return schema
    return _with(schema, dataset.y.numpy())


def without_statistics(schema: Schema) -> Schema:
    """Return a schema without statistics, which may be those of cells before a repair."""
    columns = tuple(column.model_copy(update={"statistics": None}) for column in schema.columns)
    codes = tuple(code.model_copy(update={"statistics": None}) for code in schema.codes)
    return schema.model_copy(update={"statistics": None, "columns": columns, "codes": codes})


def _with_code_statistics(
    codes: tuple[CodeSchema, ...], dataset: Dataset
) -> tuple[CodeSchema, ...]:
    """Return codes with the statistics of their values."""
    events = dataset.x.numpy()[:, 1:]
    has_value = (events[..., 0] > 0) & (events[..., 3] == 0)
    numbers = events[..., 0][has_value].astype(np.int64)
    values = events[..., 1][has_value]
    order = np.argsort(numbers, kind="stable")
    ends = np.searchsorted(numbers[order], np.arange(1, len(dataset.codes) + 2))
    by_code = {}
    for position, name in enumerate(dataset.codes):
        by_code[name] = values[order[ends[position] : ends[position + 1]]]
    return tuple(_with(code, by_code.get(code.name, values[:0])) for code in codes)


def _with(entry: _Entry, numbers: np.ndarray) -> _Entry:
    """Return an entry of a schema with the statistics of some numbers, NaN left out."""
    present = numbers[~np.isnan(numbers)].astype(np.float64)
    if len(present) < FEWEST:
        return entry.model_copy(update={"statistics": None})
    statistics = Statistics(
        count=len(present), mean=rounded(present.mean()), variance=rounded(present.var())
    )
    return entry.model_copy(update={"statistics": statistics})


def rounded(value: float) -> float:
    """Return a number with as many digits as a schema file has.

    >>> rounded(2 / 3)
    0.66666667
    """
    return float(f"{value:.{_DIGITS}g}")

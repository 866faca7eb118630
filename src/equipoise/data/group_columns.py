"""The columns under `data.groups`, as files and the command line write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from equipoise.validation.names import is_unicode, quoted

LONGEST_NAME = 100  # characters of a column
MOST_COLUMNS = 10
_FORM = "expected columns such as [sex, age: [0, 50, 65, 120]]"


def read_columns(value: Any) -> dict[str, tuple[float, ...]]:
    """Return column -> edges of its bins; no edges if every value is a group.

    Args:
        value: A list of columns, each with or without edges, or a mapping.

    Raises:
        ValueError: If it has another form, or edges do not rise.

    >>> read_columns(["sex", {"age": [0, 50, 120]}])
    {'sex': (), 'age': (0.0, 50.0, 120.0)}
    """
    if value is None:
        return {}
    if isinstance(value, str):
        value = [value]
    columns: dict[str, tuple[float, ...]] = {}
    for name, edges in _entries(value):
        if not isinstance(name, str) or not is_unicode(name) or not 0 < len(name) <= LONGEST_NAME:
            raise ValueError(f"{_FORM}, got {quoted(name)}")
        if name in columns:
            raise ValueError(f"expected different columns, got {quoted(name)} twice")
        columns[name] = _edges(name, edges)
    if len(columns) > MOST_COLUMNS:
        raise ValueError(f"expected at most {MOST_COLUMNS} columns, got {len(columns)}")
    return columns


def _entries(value: Any) -> list[tuple[Any, Any]]:
    """Return pairs of column and edges."""
    if isinstance(value, Mapping):
        return list(value.items())
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{_FORM}, got {quoted(value)}")
    entries: list[tuple[Any, Any]] = []
    for item in value:
        if isinstance(item, Mapping):
            entries += item.items()
        else:
            entries.append((item, None))
    return entries


def _edges(column: str, edges: Any) -> tuple[float, ...]:
    if edges is None or edges in ((), []):
        return ()
    if not isinstance(edges, (list, tuple)) or not all(_is_number(edge) for edge in edges):
        raise ValueError(
            f"{quoted(column)}: expected edges of bins such as [0, 50, 65, 120], "
            f"got {quoted(edges)}"
        )
    numbers = tuple(float(edge) for edge in edges)
    rises = all(low < high for low, high in pairwise(numbers))
    if len(numbers) < 2 or not rises:
        raise ValueError(
            f"{quoted(column)}: expected two or more rising edges of bins, got {quoted(edges)}"
        )
    return numbers


def _is_number(value: Any) -> bool:
    is_plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_plain and math.isfinite(value)

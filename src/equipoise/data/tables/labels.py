"""The label column of tables: its cells as classes or numbers, and its gaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np

from equipoise.data.arrays.array_checks import looks_like_classes
from equipoise.data.tables.csv_files import (
    CLASS_WORDS,
    cells_as_text,
    column_of,
    is_inexact_integer,
    is_missing,
    numbers_if_all,
)
from equipoise.data.tables.finding_text import Columns

# The least share of rows for which `none`, `na` or `null` is a class and not a gap.
FREQUENT = 0.05


def read_labels(
    columns: Columns, task: str | None = None, known: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Return the label cells of every site, as numbers if all sites have numbers, else as text.

    Args:
        columns: The label column of each site, as its file holds it.
        task: The kind of task, if that is known.
        known: Class names that a schema gives; they are never gaps.

    Returns:
        One array per site. Gaps are NaN among numbers and empty among text.
    """
    if task in ("regression", "survival") or all(
        column.dtype.kind in "fiu" for column in columns.values()
    ):
        return {site: numbers_if_all(column) for site, column in columns.items()}
    counts: Counter[str] = Counter()
    for column in columns.values():
        counts.update(map(str, cells_as_text(column)))
    words = class_words(counts, task, known)
    as_written = not _all_numbers(counts) or any(map(is_inexact_integer, counts))
    if not words and not as_written:
        return {site: numbers_if_all(column) for site, column in columns.items()}
    names = {cell: _class_name(cell, words, as_written) for cell in counts}
    return {
        site: np.array([names[str(cell)] for cell in cells_as_text(column)], np.str_)
        for site, column in columns.items()
    }


def label_gaps(cells: np.ndarray) -> np.ndarray:
    """Mark the gaps in a label column that `read_labels` returned."""
    if cells.dtype.kind == "f":
        return np.asarray(np.isnan(cells))
    return np.asarray(cells.astype(np.str_) == "")


def class_words(
    counts: Mapping[str, int], task: str | None = None, known: Collection[str] = ()
) -> set[str]:
    """Return the cells among `none`, `na` and `null` that are classes rather than gaps.

    Such a word is a class if at least 5 % of the rows have it, if there is only one other value,
    or if the schema lists it. Among numbers only `none` can be a class: programs write NA
    and null for missing numbers.

    Args:
        counts: How many rows have each cell, over all sites.
        task: The kind of task, if that is known.
        known: Class names that a schema gives.

    Returns:
        The cells that are classes, spelled as in the files.
    """
    present = [cell for cell in counts if not is_missing(cell)]
    possible: tuple[str, ...] = CLASS_WORDS
    if _all_numbers(counts):
        if task != "classification" and not looks_like_classes(column_of(present)):
            return set()
        possible = ("none",)
    rows = Counter[str]()
    for cell, count in counts.items():
        rows[cell.lower()] += count
    frequent = FREQUENT * sum(counts.values())
    classes = set()
    for cell in counts:
        word = cell.lower()
        is_frequent = rows[word] >= frequent or len(present) == 1
        is_class = word in possible and bool(present) and is_frequent
        if word in CLASS_WORDS and (cell in known or is_class):
            classes.add(cell)
    return classes


def _all_numbers(counts: Mapping[str, int]) -> bool:
    return column_of([cell for cell in counts if not is_missing(cell)]).dtype.kind == "f"


def _class_name(cell: str, words: Collection[str], as_written: bool) -> str:
    if cell in words:
        return cell
    if is_missing(cell):
        return ""
    return cell if as_written else str(cells_as_text(column_of([cell]))[0])

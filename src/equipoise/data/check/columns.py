"""Columns of a table: the model inputs that they become, and warnings about their cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.data.check.report import ColumnReport
from equipoise.data.config import DataConfig
from equipoise.data.message_text import some
from equipoise.data.schema import INPUTS, ColumnSchema, Schema
from equipoise.data.tables.cell_numbers import LARGEST
from equipoise.data.tables.csv_files import cells_as_text, column_of, is_missing, numbers_if_all
from equipoise.data.tables.finding_text import as_yaml
from equipoise.data.tables.schema_inference import all_are_dates
from equipoise.data.tables.sites import Sites
from equipoise.validation.names import quoted

MOST_SHOWN = 3  # different cells that a proposed repair lists
_SCALING = {
    "client": "scaled by each client's own mean and deviation",
    "pooled": "scaled by mean and deviation of all clients",
    "agreed": "scaled by centre and scale of the schema",
}


def report_on_columns(sites: Sites, schema: Schema, config: DataConfig) -> tuple[ColumnReport, ...]:
    """Return reports on the columns of the schema, then on those that it does not list."""
    reports = []
    for column in schema.columns:
        reports.append(report_on_column(column, _cells_of(sites, column.name), config))
    listed = {column.name for column in schema.columns} | {schema.label}
    every = dict.fromkeys(name for table in sites.tables.values() for name in table)
    for name in every:
        if name not in listed:
            gaps = _count_gaps(_cells_of(sites, name))
            reports.append(ColumnReport(name, "not in the schema", gaps, "left out"))
    return tuple(reports)


def _cells_of(sites: Sites, column: str) -> list[np.ndarray]:
    """Return the cells of a column at each site that has it."""
    return [table[column] for table in sites.tables.values() if column in table]


def report_on_column(
    column: ColumnSchema, parts: Sequence[np.ndarray], config: DataConfig
) -> ColumnReport:
    """Return the report on one column.

    Args:
        column: The schema of the column.
        parts: Its cells at each site.
        config: The data section.
    """
    gaps = _count_gaps(parts)
    if column.kind not in INPUTS:
        return ColumnReport(column.name, column.kind, gaps, "left out")
    becomes = _inputs_of(column, _scaling_of(config))
    if column.gaps:
        becomes += "; 1 more marks gaps"
    return ColumnReport(column.name, column.kind, gaps, becomes)


def _inputs_of(column: ColumnSchema, scaling: str) -> str:
    if column.kind == "category":
        return f"{len(column.categories) + 1} inputs: {some(column.categories)}, other"
    if column.kind == "date":
        return f"1 input (days since 1970), {scaling}"
    return f"1 input, {scaling}"


def _scaling_of(config: DataConfig) -> str:
    scaling = config.normalise
    if scaling == "auto":
        scaling = "pooled" if config.test == "global" else "client"
    return _SCALING.get(scaling, "not scaled")


def _count_gaps(parts: Sequence[np.ndarray]) -> int:
    return sum(int(_gaps(part).sum()) for part in parts)


def _gaps(cells: np.ndarray) -> np.ndarray:
    if cells.dtype.kind == "f":
        return np.asarray(~np.isfinite(cells))
    return np.array([is_missing(cell) for cell in cells_as_text(cells)], bool)


def warnings_on_columns(sites: Sites, schema: Schema, inferred: bool) -> list[str]:
    """Return warnings about the cells of columns.

    Args:
        sites: The tables.
        schema: Their schema.
        inferred: True if no user chose the kinds of columns, so that they may be wrong.
    """
    warnings = []
    for column in schema.columns:
        parts = [numbers_if_all(cells) for cells in _cells_of(sites, column.name)]
        warnings += _warnings_on_values(column.name, parts)
        if inferred:
            warnings += _warnings_on_kind(column, parts, sites)
    return warnings


def _warnings_on_values(name: str, parts: Sequence[np.ndarray]) -> list[str]:
    """Return warnings about infinite cells, and about a column without any value."""
    warnings = []
    infinite = 0
    for part in parts:
        if part.dtype.kind == "f":
            infinite += int((np.abs(part) > LARGEST).sum())
    if infinite:
        cells = "1 cell is infinite" if infinite == 1 else f"{infinite} cells are infinite"
        warnings.append(
            f"column {quoted(name)}: {cells} (inf, or beyond 3e38) and read as missing; "
            "correct the file, or leave such cells empty"
        )
    if parts and all(_gaps(part).all() for part in parts):
        warnings.append(
            f"column {quoted(name)} has no value at all; "
            "remove it from the files, or leave it out of the schema"
        )
    return warnings


def _warnings_on_kind(column: ColumnSchema, parts: Sequence[np.ndarray], sites: Sites) -> list[str]:
    """Return warnings about a kind that was inferred from the cells."""
    warnings = []
    texts = _present_texts(parts)
    if column.kind in ("identifier", "text", "category"):
        warnings += _warnings_on_mixed_cells(column.name, parts, texts, sites)
    # Numbers with a few words among them look like an identifier, but are none.
    if column.kind in ("identifier", "text") and not warnings:
        looks = "free text" if column.kind == "text" else "an identifier"
        warnings.append(
            f"column {quoted(column.name)} looks like {looks} (about one value per row) and is "
            "left out; to use it, give it the kind number or category in a schema "
            "(equipoise data check --save schema.yaml, then --schema schema.yaml)"
        )
    if column.kind == "date":
        warnings.append(_warning_on_dates(column, texts))
    return warnings


def _present_texts(parts: Sequence[np.ndarray]) -> list[str]:
    """Return the cells that are not missing, of sites where the column is not all numbers."""
    texts = []
    for part in parts:
        if part.dtype.kind not in "fiu":
            texts += [cell for cell in map(str, part) if not is_missing(cell)]
    return texts


def _warnings_on_mixed_cells(
    name: str, parts: Sequence[np.ndarray], texts: Sequence[str], sites: Sites
) -> list[str]:
    """Return a warning if a few words keep a column from being read as numbers."""
    words = [cell for cell in texts if not _is_number_or_gap(cell.replace(",", ".", 1))]
    cells = sum(part.size for part in parts)
    numbers = cells - len(words) - _count_gaps(parts)
    if not words or numbers <= 4 * len(words):
        return []
    count = "1 cell, " if len(words) == 1 else f"{len(words)} cells such as "
    different = list(dict.fromkeys(words))
    repair = as_yaml({"missing": {name: different[:MOST_SHOWN]}})
    more = ", ..." if len(different) > MOST_SHOWN else ""
    return [
        f"column {quoted(name)} is not read as numbers because of {count}{quoted(words[0])} "
        f"({_location_of(words[0], name, sites)}); leave such cells empty if they mean that the "
        f"value is unknown, or list them in the schema: {repair}{more}"
    ]


def _location_of(cell: str, column: str, sites: Sites) -> str:
    """Return file and line of the first row with this cell."""
    for site, table in sites.tables.items():
        if column not in table:
            continue
        rows = np.flatnonzero(cells_as_text(table[column]) == cell)
        if len(rows):
            return sites.origins[site].of_row(int(rows[0]))
    return some(list(sites.files.values()))


def _is_number_or_gap(cell: str) -> bool:
    return column_of([cell]).dtype.kind == "f"


def _warning_on_dates(column: ColumnSchema, texts: Sequence[str]) -> str:
    warning = (
        f"column {quoted(column.name)} holds dates, which become numbers (days since 1970); "
        "leave the column out of the schema if the date carries no information"
    )
    swapped = [form.replace("%d/%m", "%m/%d") for form in column.formats]
    if swapped == list(column.formats) or not all_are_dates(texts, swapped):
        return warning
    day, month, _ = texts[0].split("/", 2)
    return (
        f"{warning}; the dates would also fit with the month first: "
        f"{texts[0]} is read as day {int(day)} of month {int(month)}"
    )

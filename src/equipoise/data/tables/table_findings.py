"""Findings on everything in users' tables that would silently be read wrongly."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from equipoise.data.arrays.array_checks import looks_like_classes
from equipoise.data.findings import Finding
from equipoise.data.message_text import some
from equipoise.data.tables.column_findings import (
    Target,
    find_coding,
    find_kind,
    find_leak,
    find_signs,
)
from equipoise.data.tables.csv_files import cells_as_text, numbers_if_all
from equipoise.data.tables.finding_text import Columns
from equipoise.data.tables.label_findings import find_in_labels
from equipoise.data.tables.labels import label_gaps, read_labels
from equipoise.data.tables.repairs import Table
from equipoise.data.tables.row_findings import find_copies, find_repeated
from equipoise.data.tables.sites import Sites, hidden_files
from equipoise.data.tables.table_dataset import LABELS
from equipoise.data.tables.unit_findings import find_codes, find_units


def find_in_tables(
    sites: Sites,
    label: str | None = None,
    task: str | None = None,
    decided: Collection[str] = (),
) -> list[Finding]:
    """Return findings on the tables of all sites, before any of them is refused.

    Args:
        sites: The tables, as files hold them or after the repairs of a schema.
        label: The label column; none: the one that is named like a label.
        task: `classification` or `regression`; none: as the labels look.
        decided: Columns whose kind a schema gives, so that none is proposed.

    Returns:
        Findings on files, on the label, and on each column in its order.
    """
    if sites.arrays or _has_wide_columns(sites):
        return []
    label = label or _named_label(next(iter(sites.tables.values())))
    findings = _find_hidden(sites)
    labels: Columns = {}
    if label is not None:
        written = {site: table[label] for site, table in sites.tables.items() if label in table}
        labels = read_labels(written, task) if written else {}
        task = task or _task(labels)
        if labels and task == "classification":
            findings += find_in_labels(written, label, sites.files, task)
    target = None
    if label is not None and len(labels) == len(sites.tables):
        target = _target(label, labels, task)
    tables = {
        site: {name: numbers_if_all(cells) for name, cells in table.items()}
        for site, table in sites.tables.items()
    }
    for name in dict.fromkeys(name for table in tables.values() for name in table):
        columns = {site: table[name] for site, table in tables.items() if name in table}
        if name != label:
            leaks_into = target if len(columns) == len(tables) else None
            findings += _find_in_column(columns, name, sites.files, name in decided, leaks_into)
        else:
            findings += _find_in_target(columns, name, sites.files, task)
    findings += find_copies(tables, sites.files)
    findings += find_repeated(tables, sites.origins)
    return findings


def _has_wide_columns(sites: Sites) -> bool:
    """Return True if a column has more than one number per row, as arrays of NPZ files may."""
    return any(cells.ndim != 1 for table in sites.tables.values() for cells in table.values())


def _find_in_column(
    columns: Columns, name: str, files: dict[str, str], decided: bool, target: Target | None
) -> list[Finding]:
    """Return findings on an input column.

    Args:
        columns: The cells of each site.
        name: The column.
        files: The file of each site.
        decided: True if the user chose the kind of the column.
        target: The label of all rows, if it is known.
    """
    findings = [*find_coding(columns, name, files), *find_signs(columns, name, files)]
    numbers = _numbers(columns)
    if numbers:
        findings += find_codes(numbers, name, files)
        kinds = find_kind(numbers, name, files) if len(numbers) == len(columns) else []
        if not kinds:
            findings += find_units(numbers, name, files)
        elif not decided:
            findings += kinds
    if target is not None and not decided:
        findings += find_leak(columns, name, target)
    return findings


def _find_in_target(
    columns: Columns, name: str, files: dict[str, str], task: str | None
) -> list[Finding]:
    """Return findings on codes for missing labels and, for numbers and times, on units."""
    numbers = _numbers(columns)
    if not numbers:
        return []
    if task == "survival":  # The sign of a time says whether it was censored.
        numbers = {site: np.abs(cells) for site, cells in numbers.items()}
    findings = find_codes(numbers, name, files)
    if task != "classification":
        findings += find_units(numbers, name, files)
    return findings


def _numbers(columns: Columns) -> Columns:
    """Return the cells of those sites where all of them are numbers."""
    return {site: cells for site, cells in columns.items() if cells.dtype.kind in "fiu"}


def _find_hidden(sites: Sites) -> list[Finding]:
    names = [file.name for file in hidden_files(sites.path)]
    if not names:
        return []
    message = f"hidden files are not read as sites: {some(names)}; rename one that holds a site"
    return [Finding(message)]


def _named_label(table: Table) -> str | None:
    named = [name for name in LABELS if name in table]
    return named[0] if len(named) == 1 else None


def _target(label: str, labels: Columns, task: str | None) -> Target | None:
    """Return the label of all rows; None if it is a number that is written as text."""
    if task in ("regression", "survival"):
        if any(cells.dtype.kind not in "fiu" for cells in labels.values()):
            return None
        return Target(label, np.concatenate([np.float64(cells) for cells in labels.values()]))
    texts = np.concatenate([cells_as_text(cells) for cells in labels.values()])
    names, codes = np.unique(texts, return_inverse=True)
    return Target(label, codes, tuple(map(str, names)))


def _task(labels: Columns) -> str:
    known = [cells[~label_gaps(cells)] for cells in labels.values()]
    if any(cells.dtype.kind not in "fiu" for cells in known):
        return "classification"
    return "classification" if looks_like_classes(np.concatenate(known)) else "regression"

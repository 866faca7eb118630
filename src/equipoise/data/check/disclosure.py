"""Information about the rows of one site that leaves it with its schema file."""

from __future__ import annotations

import numpy as np

from equipoise.data.dataset import Dataset
from equipoise.data.message_text import counted, some
from equipoise.data.schema import Schema
from equipoise.validation.names import quoted


def disclosure_lines(schema: Schema, dataset: Dataset) -> list[str]:
    """Return sentences about the information that leaves a site with its schema file.

    Args:
        schema: The schema that is written.
        dataset: The data of the site, read by this schema.
    """
    contents = []
    if schema.columns:
        contents.append(f"the names of {counted(len(schema.columns), 'column')}")
    classes = len(schema.classes)
    if classes:
        contents.append(f"the names of {classes:,} {'class' if classes == 1 else 'classes'}")
    categories = [
        f"{quoted(column.name)} ({len(column.categories)})"
        for column in schema.columns
        if column.categories
    ]
    if categories:
        contents.append(f"all categories of {some(categories, 20)}")
    if schema.codes:
        contents.append(f"{counted(len(schema.codes), 'code')} of patients' events")
    marked = _with_gap_marks(schema)
    if marked:
        contents.append(f"cells that mark gaps in {some(marked, 20)}")
    summarised = _with_statistics(schema)
    if summarised:
        contents.append(f"count, mean and variance of {some(summarised, 20)}")
    lines = [f"the file holds no row; it contains {_listed(contents)}"]
    rare = _single_rows(dataset)
    if rare:
        lines.append(
            f"warning: values that only one row has are in the file: {some(rare, 20)}; remove them "
            "there if they may not leave the site, or give such a column the kind identifier or "
            "text"
        )
    return lines


def _with_gap_marks(schema: Schema) -> list[str]:
    """Return the columns of which a schema lists cells that are gaps."""
    columns: dict[str, None] = {}
    for repairs in (schema, *schema.sites.values()):
        columns.update(dict.fromkeys(repairs.missing))
    return [quoted(column) for column in columns]


def _with_statistics(schema: Schema) -> list[str]:
    """Return the columns and codes whose statistics are in a schema, and the label."""
    names = [quoted(column.name) for column in schema.columns if column.statistics is not None]
    names += [quoted(code.name) for code in schema.codes if code.statistics is not None]
    if schema.statistics is not None:
        names.append("the label")
    return names


def _listed(parts: list[str]) -> str:
    """Return parts of a sentence with commas and an `and`."""
    if len(parts) < 2:
        return "".join(parts) or "the task"
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _single_rows(dataset: Dataset) -> list[str]:
    """Return each column, the label and the codes with the number of values of a single row."""
    rare = []
    x = dataset.x.numpy()
    for j, column in enumerate(dataset.columns):
        if column.categories:
            codes = x[:, j][~np.isnan(x[:, j])].astype(np.int64)
            # Categories that the schema does not list have the last code, and are not in the file.
            singles = _count_ones(np.bincount(codes)[: len(column.categories)])
            if singles:
                rare.append(f"{quoted(column.name)} ({singles})")
    if dataset.task.classifies:
        singles = _count_ones(np.bincount(dataset.y.numpy()))
        if singles:
            rare.append(f"the label ({singles})")
    if dataset.codes:
        singles = _codes_of_one_patient(x, len(dataset.codes))
        if singles:
            rare.append(f"codes ({singles})")
    return rare


def _codes_of_one_patient(x: np.ndarray, codes: int) -> int:
    """Return how many codes appear in the history of a single patient only."""
    patients = np.zeros(codes + 2, np.int64)
    for history in x:
        patients[np.unique(history[1:, 0].astype(np.int64))] += 1
    return _count_ones(patients[1 : codes + 1])


def _count_ones(counts: np.ndarray) -> int:
    return int(np.count_nonzero(counts == 1))

"""Schemas inferred from the cells of all sites, and data sets read according to a schema."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from equipoise.data.arrays.array_checks import looks_like_classes
from equipoise.data.dataset import Dataset
from equipoise.data.schema import (
    DATES,
    CodeSchema,
    ColumnSchema,
    Kind,
    Schema,
    mixes_day_and_month,
)
from equipoise.data.tables.cell_numbers import is_date
from equipoise.data.tables.csv_files import cells_as_text, is_missing
from equipoise.data.tables.labels import label_gaps
from equipoise.task import Task, TaskKind
from equipoise.validation.names import nearest, quoted

# Rows below which a column is not taken for an identifier, though nearly all its values differ.
ENOUGH = 20
_NAMES_ROWS = re.compile(
    r"(?:^|[^a-z])"
    r"(?:id|ids|nr|no|mrn|pid|uuid|guid|index|identifier|number|nummer"
    r"|patient|case|record|subject|row)"
    r"(?:$|[^a-z])"
)


def infer_schema(
    table: Mapping[str, np.ndarray],
    owners: Sequence[str],
    label: str | None,
    kinds: Mapping[str, Kind] | None = None,
    task: str | None = None,
) -> Schema:
    """Return the schema that follows from the cells of a table.

    Args:
        table: The columns, over all sites; the label as `read_labels` returns it.
        owners: The site of every row.
        label: The label column; none: every column is an input.
        kinds: Kinds of columns that somebody chose.
        task: The task, if somebody chose it.
    """
    sites = np.unique(np.asarray(owners), return_inverse=True)[1]
    kinds = kinds or {}
    columns = tuple(
        _infer_column(name, cells, sites, kinds.get(name))
        for name, cells in table.items()
        if name != label
    )
    if label is None:
        return Schema(columns=columns)
    target = table[label][~label_gaps(table[label])]
    classes: tuple[str, ...] = ()
    if task == "classification" or (task is None and looks_like_classes(target)):
        classes = tuple(map(str, cells_as_text(np.unique(target))))
    number: TaskKind = "survival" if task == "survival" else "regression"
    return Schema(
        label=label,
        task="classification" if classes else number,
        classes=classes,
        columns=columns,
    )


def schema_of(dataset: Dataset) -> Schema:
    """Return the schema of a data set that did not come from files."""
    x = dataset.x.numpy()
    columns = []
    for index, column in enumerate(dataset.columns):
        columns.append(
            ColumnSchema(
                name=column.name,
                kind="category" if column.categories else "number",
                categories=column.categories,
                gaps=bool(np.isnan(x[:, index]).any()),
            )
        )
    return Schema(
        task=dataset.task.kind,
        classes=dataset.task.class_names,
        columns=tuple(columns),
        shape=dataset.task.shape if dataset.image else None,
    )


def full_schema(dataset: Dataset) -> Schema:
    """Return the schema of a data set with everything on which sites have to agree.

    Unlike the schema that a run records, it names classes that are numbers, the shape of arrays,
    and the codes of patients' events, sorted so that their order says nothing about patients.
    """
    schema = dataset.schema or schema_of(dataset)
    update: dict[str, Any] = {}
    if dataset.task.classifies and not schema.classes:
        update["classes"] = tuple(map(str, range(dataset.task.outputs)))
    if dataset.codes and not schema.codes:
        update["codes"] = tuple(CodeSchema(name=name) for name in sorted(dataset.codes))
        update["events"] = dataset.task.shape[0] - 1
    elif not dataset.columns and not dataset.codes:
        update["shape"] = dataset.task.shape
    return schema.model_copy(update=update)


def with_schema(dataset: Dataset, schema: Schema | None) -> Dataset:
    """Return the data set with the columns and classes of a schema.

    Args:
        dataset: The data set.
        schema: The schema; none: the data set is returned as it is.

    Raises:
        ValueError: If the schema does not fit the data set.
    """
    if schema is None or _is_read_by(dataset, schema):
        return dataset
    refuse_repairs(schema, dataset.name, dataset.schema)
    if schema.shape is not None and tuple(schema.shape) != dataset.task.shape:
        raise ValueError(
            f"data set {dataset.name}: its schema says samples of shape {tuple(schema.shape)}, "
            f"got {dataset.task.shape}; set image_size or correct the schema"
        )
    if schema.columns:
        dataset = _with_columns(dataset, schema)
    if schema.classes:
        dataset = _with_classes(dataset, schema.classes)
    return replace(dataset, schema=complete_schema(schema, schema_of(dataset)))


def _is_read_by(dataset: Dataset, schema: Schema) -> bool:
    """Return True if a data set was read according to this schema already."""
    if dataset.schema is None:
        return False
    return dataset.schema == complete_schema(schema, dataset.schema)


def _with_columns(dataset: Dataset, schema: Schema) -> Dataset:
    """Return the data set with the input columns of a schema, in their order."""
    if not dataset.columns:
        raise ValueError(
            f"data set {dataset.name} is no table, but its schema has columns; "
            "leave them out of the schema"
        )
    known = [column.name for column in dataset.columns]
    indices = []
    for column in schema.inputs:
        if column.name not in known:
            raise nearest(f"column of {dataset.name}, named by its schema", column.name, known)
        indices.append(known.index(column.name))
    for column, index in zip(schema.inputs, indices, strict=True):
        if (column.kind == "category") != bool(dataset.columns[index].categories):
            raise ValueError(
                f"data set {dataset.name}: its schema gives column {quoted(column.name)} "
                "another kind than the data set has; correct the schema"
            )
    return replace(
        dataset,
        x=dataset.x[:, indices],
        columns=tuple(dataset.columns[index] for index in indices),
        task=replace(dataset.task, shape=(len(indices),)),
    )


def _with_classes(dataset: Dataset, classes: tuple[str, ...]) -> Dataset:
    """Return the data set with the classes of a schema, in their order."""
    task = dataset.task
    if not task.classifies:
        raise ValueError(
            f"data set {dataset.name} has numbers for labels, but its schema has classes; "
            "set task: classification or correct the schema"
        )
    names = task.class_names or tuple(map(str, range(task.outputs)))
    for code in torch.unique(dataset.y):
        if names[int(code)] not in classes:
            raise ValueError(
                f"data set {dataset.name}: its schema lacks the class {quoted(names[int(code)])}; "
                f"it has {', '.join(classes[:20])}"
            )
    new_codes = torch.tensor([classes.index(name) if name in classes else -1 for name in names])
    return replace(
        dataset, y=new_codes[dataset.y], task=Task(task.kind, task.shape, len(classes), classes)
    )


def refuse_repairs(schema: Schema, name: str, known: Schema | None = None) -> None:
    """Raise an error if a schema asks for repairs that cannot be made any more.

    Args:
        schema: The schema.
        name: The data set, which has no cells: images, arrays, or a table that was read before.
        known: The schema by which it was read.

    Raises:
        ValueError: If the schema has a repair that `known` has not.
    """
    applied = known.all_repairs if known is not None else {}
    for key, repairs in schema.all_repairs.items():
        if any(applied.get(key, {}).get(entry) != value for entry, value in repairs.items()):
            raise ValueError(
                f"data set {name}: `{key}` of its schema repairs tables as they are read "
                "from CSV, Parquet or NPZ files with named columns; give a frame its schema as "
                "from_frame(frame, schema=...), and leave it out for other data"
            )


def complete_schema(schema: Schema | None, inferred: Schema) -> Schema:
    """Return a user's schema, with everything that it leaves open as inferred from the data.

    Args:
        schema: The user's schema.
        inferred: The schema that was inferred.
    """
    if schema is None:
        return inferred
    chosen: dict[str, Any] = {}
    for name in schema.model_fields_set:
        value = getattr(schema, name)
        if value not in (None, (), {}):
            chosen[name] = value
    if "columns" in chosen:
        chosen["columns"] = _complete_columns(schema, inferred)
    if "classes" in chosen and schema.label is not None:
        chosen["classes"] = after_values(schema.classes, schema.values.get(schema.label, {}))
    if "rename" in chosen:
        chosen["rename"] = {**inferred.rename, **schema.rename}
    return Schema(**{**dict(inferred), **chosen})


def _complete_columns(schema: Schema, inferred: Schema) -> tuple[ColumnSchema, ...]:
    by_name = {column.name: column for column in inferred.columns}
    repaired: set[str] = set()
    for repairs in (schema, *schema.sites.values()):
        repaired.update(repairs.missing, repairs.values)
    columns = []
    for column in schema.columns:
        categories = after_values(column.categories, schema.values.get(column.name, {}))
        column = column.model_copy(update={"categories": categories})
        columns.append(_complete_column(column, by_name.get(column.name), repaired))
    return tuple(columns)


def after_values(names: tuple[str, ...], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return categories or classes by their names after `values` of the schema replaced cells.

    A list that was saved before `values` was added has names that cannot occur any more.
    """
    targets = set(values.values())
    new = [name if name in targets else values.get(name, name) for name in names]
    return tuple(name for name in dict.fromkeys(new) if name or name in names)


def _complete_column(
    column: ColumnSchema, inferred: ColumnSchema | None, repaired: Collection[str]
) -> ColumnSchema:
    """Return a column with categories, formats and gaps filled in where they were left open.

    A schema that was saved before `missing` or `values` was added knows nothing of their gaps.
    """
    if inferred is None or inferred.kind != column.kind:
        return column
    update: dict[str, Any] = {}
    if not column.categories:
        update["categories"] = inferred.categories
    if not column.formats:
        update["formats"] = inferred.formats
    if column.gaps is None or (inferred.gaps and column.name in repaired):
        update["gaps"] = inferred.gaps
    return column.model_copy(update=update)


def date_formats(cells: np.ndarray, sites: np.ndarray) -> tuple[str, ...]:
    """Return the formats in which all cells are dates, one for each site.

    Args:
        cells: The cells as text, without gaps.
        sites: The site of each cell, as a number.

    Returns:
        The formats; none if cells are not dates, or if sites mix day and month.
    """
    formats: dict[str, None] = {}
    for site in np.unique(sites):
        form = _common_format(list(dict.fromkeys(cells[sites == site])))
        if form is None:
            return ()
        formats[form] = None
    if not mixes_day_and_month(formats):
        return tuple(formats)
    # At a site with small numbers only, both orders fit: the month is first if that fits all.
    swapped = tuple(dict.fromkeys(form.replace("%d/%m", "%m/%d") for form in formats))
    return swapped if all_are_dates(cells, swapped) else ()


def _common_format(cells: Sequence[str]) -> str | None:
    """Return the first format in which all cells are dates."""
    for form in DATES:
        if all(is_date(cell, form) for cell in cells):
            return form
    return None


def all_are_dates(cells: Iterable[str], formats: Sequence[str]) -> bool:
    """Return True if every cell is a date in one of the formats."""
    return all(any(is_date(cell, form) for form in formats) for cell in set(cells))


def _infer_column(
    name: str, cells: np.ndarray, sites: np.ndarray, kind: Kind | None = None
) -> ColumnSchema:
    """Return the schema of one column.

    Args:
        name: The column.
        cells: Its cells, of all sites.
        sites: The site of each cell, as a number.
        kind: The kind that somebody chose.
    """
    if cells.dtype.kind in "fiu" and kind != "category":
        return _infer_numbers(name, cells, sites, kind)
    text = cells_as_text(cells)
    present = _are_present(text)
    gaps = not present.all()
    categories = sorted(set(map(str, text[present])))
    formats: tuple[str, ...] = ()
    if categories and kind in (None, "date"):
        formats = date_formats(text[present], sites[present])
    if kind is None:
        kind = "date" if formats else _kind_of_text(text[present], sites[present])
    if kind == "category":
        # A column with no value at all would look like a number: one category keeps its kind.
        return ColumnSchema(
            name=name, kind=kind, categories=tuple(categories) or ("none",), gaps=gaps
        )
    return ColumnSchema(name=name, kind=kind, formats=formats if kind == "date" else (), gaps=gaps)


def _infer_numbers(
    name: str, cells: np.ndarray, sites: np.ndarray, kind: Kind | None
) -> ColumnSchema:
    gaps = not np.isfinite(cells).all()
    if kind is None:
        kind = "identifier" if numbers_rows(name, cells, sites) else "number"
    return ColumnSchema(name=name, kind=kind, gaps=gaps)


def _are_present(text: np.ndarray) -> np.ndarray:
    return np.array([not is_missing(cell) for cell in text], bool)


def _kind_of_text(cells: np.ndarray, sites: np.ndarray) -> Kind:
    """Return the kind of a column of words: a category, an identifier or free text."""
    count = len(cells)
    if count < ENOUGH:
        return "category"
    values = set(map(str, cells))
    if 2 * len(values) <= count and not _tells_rows_apart(cells, sites):
        return "category"
    with_blanks = sum(" " in value for value in values)
    is_long = sum(map(len, values)) > 20 * len(values)
    return "text" if 2 * with_blanks > len(values) and is_long else "identifier"


def _tells_rows_apart(text: np.ndarray, sites: np.ndarray) -> bool:
    """Return True if nearly every row of a site has a value of its own.

    Other sites may use the same values: each may count its patients from 1.
    """
    rows = 0
    different = 0
    for site in np.unique(sites):
        values = text[sites == site]
        if len(values) >= ENOUGH:
            rows += len(values)
            different += len(set(map(str, values)))
    return rows > 0 and 10 * different >= 9 * rows


def numbers_rows(name: str, cells: np.ndarray, sites: np.ndarray) -> bool:
    """Return True if a column of numbers is an identifier of rows.

    Its numbers are whole and nearly all different within a site, and its name says so or they
    are counted from 0 or 1.

    Args:
        name: The column.
        cells: Its numbers, of all sites.
        sites: The site of each number.
    """
    if len(cells) < ENOUGH or not np.isfinite(cells).all() or not (cells == np.floor(cells)).all():
        return False
    by_site = [cells[sites == site] for site in np.unique(sites)]
    different = sum(len(np.unique(values)) for values in by_site)
    if 10 * different < 9 * len(cells):
        return False
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).casefold()
    return all(map(_are_counted, by_site)) or _NAMES_ROWS.search(words) is not None


def _are_counted(values: np.ndarray) -> bool:
    """Return True if numbers are 0, 1, 2, ... or 1, 2, 3, ... in this order."""
    return bool(len(values) > 1 and values[0] in (0, 1) and (np.diff(values) == 1).all())

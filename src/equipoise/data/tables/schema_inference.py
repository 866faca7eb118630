"""From cells to a schema: what a column is, decided from all rows of all sites; and a data set as a schema sees it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import torch

from equipoise.data.arrays.array_checks import looks_like_classes
from equipoise.data.dataset import Dataset
from equipoise.data.schema import DATES, ColumnSchema, Kind, Schema
from equipoise.data.tables.csv_files import cells_as_text, is_missing
from equipoise.data.tables.labels import label_gaps
from equipoise.task import Task
from equipoise.validation.names import nearest, quoted

# rows below which nothing is said of a column in which nearly every row has its own value
ENOUGH = 20
_NAMES_ROWS = re.compile(r"(?:^|[^a-z])(?:id|ids|nr|no|mrn|pid|uuid|guid|index|identifier|number|nummer|patient|case|record|subject|row)(?:$|[^a-z])")  # fmt: skip


def decided(
    table: Mapping[str, np.ndarray],
    owners: Sequence[str],
    label: str | None,
    kinds: Mapping[str, Kind] | None = None,
    task: str | None = None,
) -> Schema:
    """Return the schema of a table as its cells tell it.

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
        _column(name, cells, sites, kinds.get(name))
        for name, cells in table.items()
        if name != label
    )
    if label is None:
        return Schema(columns=columns)
    target = table[label][~label_gaps(table[label])]
    classes: tuple[str, ...] = ()
    if task != "regression" and (task == "classification" or looks_like_classes(target)):
        classes = tuple(map(str, cells_as_text(np.unique(target))))
    return Schema(
        label=label,
        task="classification" if classes else "regression",
        classes=classes,
        columns=columns,
    )


def schema_of(dataset: Dataset) -> Schema:
    """The schema of a data set that did not come from files."""
    x = dataset.x.numpy()
    columns = tuple(
        ColumnSchema(
            name=column.name,
            kind="category" if column.categories else "number",
            categories=column.categories,
            gaps=bool(np.isnan(x[:, place]).any()),
        )
        for place, column in enumerate(dataset.columns)
    )
    return Schema(
        task=dataset.task.kind,
        classes=dataset.task.class_names,
        columns=columns,
        shape=dataset.task.shape if dataset.image else None,
    )


def with_schema(dataset: Dataset, schema: Schema | None) -> Dataset:
    """The data set as a given schema sees it: its columns, its classes; a schema that does not fit is refused."""
    if schema is None or (
        dataset.schema is not None and dataset.schema == completed(schema, dataset.schema)
    ):
        return dataset
    refuse_repairs(schema, dataset.name, dataset.schema)
    if schema.shape is not None and tuple(schema.shape) != dataset.task.shape:
        raise ValueError(
            f"data set {dataset.name}: its schema says samples of shape {tuple(schema.shape)}, got {dataset.task.shape}; set image_size or mend the schema"
        )
    if schema.columns:
        if not dataset.columns:
            raise ValueError(
                f"data set {dataset.name} is no table, but its schema has columns; leave them out of the schema"
            )
        known = [column.name for column in dataset.columns]
        missing = [column.name for column in schema.inputs if column.name not in known]
        if missing:
            raise nearest(f"column of {dataset.name}, named by its schema", missing[0], known)
        differing = [
            c.name
            for c in schema.inputs
            if (c.kind == "category") != bool(dataset.columns[known.index(c.name)].categories)
        ]
        if differing:
            raise ValueError(
                f"data set {dataset.name}: its schema gives column {quoted(differing[0])} another kind than the data set has; mend it"
            )
        places = [known.index(column.name) for column in schema.inputs]
        x = dataset.x[:, places]
        dataset = replace(
            dataset,
            x=x,
            columns=tuple(dataset.columns[p] for p in places),
            task=replace(dataset.task, shape=(len(places),)),
        )
    if schema.classes:
        dataset = _with_classes(dataset, schema.classes)
    return replace(dataset, schema=completed(schema, schema_of(dataset)))


def refuse_repairs(schema: Schema, name: str, known: Schema | None = None) -> None:
    """Raise an error if a schema asks for repairs that cannot be made any more.

    Args:
        schema: The schema.
        name: The data set, which has no cells: images, arrays, or a table that was read before.
        known: The schema by which it was read.
    """
    made = known.all_repairs if known is not None else {}
    for key, repairs in schema.all_repairs.items():
        if any(made.get(key, {}).get(entry) != value for entry, value in repairs.items()):
            raise ValueError(
                f"data set {name}: `{key}` of its schema repairs tables as they are read "
                "from CSV, Parquet or NPZ files with named columns; give a frame its schema as "
                "from_frame(frame, schema=...), and leave it out for other data"
            )


def completed(schema: Schema | None, found: Schema) -> Schema:
    """Return a given schema, with what it does not say as it was found."""
    if schema is None:
        return found
    said = {
        name: getattr(schema, name)
        for name in schema.model_fields_set
        if getattr(schema, name) not in (None, (), {})
    }
    if "columns" in said:
        inferred = {column.name: column for column in found.columns}
        repaired = {
            name for one in (schema, *schema.sites.values()) for name in (*one.missing, *one.values)
        }
        said["columns"] = tuple(
            _filled(_after_values(column, schema.values), inferred.get(column.name), repaired)
            for column in schema.columns
        )
    if "classes" in said and schema.label is not None:
        said["classes"] = _mapped(schema.classes, schema.values.get(schema.label, {}))
    if "rename" in said:
        said["rename"] = {**found.rename, **schema.rename}
    return Schema(**{**dict(found), **said})


def _after_values(column: ColumnSchema, values: Mapping[str, Mapping[str, str]]) -> ColumnSchema:
    categories = _mapped(column.categories, values.get(column.name, {}))
    return column.model_copy(update={"categories": categories})


def _mapped(names: tuple[str, ...], values: Mapping[str, str]) -> tuple[str, ...]:
    """Categories or classes as they are called after `values` of the schema replaced cells.

    A list that was saved before `values` was added has names that cannot occur any more.
    """
    targets = set(values.values())
    new = [name if name in targets else values.get(name, name) for name in names]
    return tuple(name for name in dict.fromkeys(new) if name or name in names)


def _filled(
    column: ColumnSchema, found: ColumnSchema | None, repaired: Collection[str]
) -> ColumnSchema:
    """A column with categories, formats and gaps that were not given as they were found.

    A schema that was saved before `missing` or `values` was added knows nothing of their gaps.
    """
    if found is None or found.kind != column.kind:
        return column
    update: dict[str, Any] = {}
    if not column.categories:
        update["categories"] = found.categories
    if not column.formats:
        update["formats"] = found.formats
    if column.gaps is None or (found.gaps and column.name in repaired):
        update["gaps"] = found.gaps
    return column.model_copy(update=update)


def _with_classes(dataset: Dataset, classes: tuple[str, ...]) -> Dataset:
    task = dataset.task
    if not task.classifies:
        raise ValueError(
            f"data set {dataset.name} has numbers for labels, but its schema has classes; set task: classification or mend the schema"
        )
    names = task.class_names or tuple(map(str, range(task.outputs)))
    used = [names[int(code)] for code in torch.unique(dataset.y)]
    unknown = [name for name in used if name not in classes]
    if unknown:
        raise ValueError(
            f"data set {dataset.name}: its schema lacks the class {quoted(unknown[0])}; it has {', '.join(classes[:20])}"
        )
    places = torch.tensor([classes.index(name) if name in classes else -1 for name in names])
    return replace(
        dataset, y=places[dataset.y], task=Task(task.kind, task.shape, len(classes), classes)
    )


def days(
    cells: np.ndarray, column: ColumnSchema, of_row: Callable[[int], str] | None = None
) -> np.ndarray:
    """Return dates as days since 1970, with fractions; NaN for a gap.

    Args:
        cells: The cells as text.
        column: The column with its formats.
        of_row: The file and line of a row, for errors.

    Raises:
        ValueError: A cell is not a date in one of the formats.
    """
    result = np.full(len(cells), np.nan)
    for row, cell in enumerate(map(str, cells)):
        if is_missing(cell):
            continue
        form = next((form for form in column.formats if is_date(cell, form)), None)
        if form is None:
            where = f"{of_row(row)}, " if of_row is not None else ""
            raise ValueError(
                f"{where}column {quoted(column.name)}: expected dates as "
                f"{' or '.join(column.formats or DATES[:3])}, got {quoted(cell)}; "
                "correct the cell or the schema"
            )
        day = datetime.strptime(cell, form) - datetime(1970, 1, 1)
        result[row] = day.total_seconds() / 86400
    return result


def date_formats(cells: np.ndarray, sites: np.ndarray) -> tuple[str, ...]:
    """The formats in which all cells are dates, one for each site; none if they are not dates, or if sites mix day and month."""
    found: dict[str, None] = {}
    for site in np.unique(sites):
        own = list(dict.fromkeys(cells[sites == site]))
        form = next(
            (
                form
                for form in DATES
                if is_date(own[0], form) and all(is_date(cell, form) for cell in own)
            ),
            None,
        )
        if form is None:
            return ()
        found[form] = None
    mixed = any(form.startswith("%d/") for form in found) and any(
        form.startswith("%m/") for form in found
    )
    if mixed:  # a site with small numbers only fits both: month first if that fits all
        month_first = tuple(dict.fromkeys(form.replace("%d/%m", "%m/%d") for form in found))
        return (
            month_first
            if all(any(is_date(cell, form) for form in month_first) for cell in set(cells))
            else ()
        )
    return tuple(found)


def is_date(cell: str, form: str) -> bool:
    try:
        datetime.strptime(cell, form)
    except ValueError:
        return False
    return True


def _column(
    name: str, cells: np.ndarray, sites: np.ndarray, kind: Kind | None = None
) -> ColumnSchema:
    """The schema of one column; `kind` is what somebody chose."""
    text = cells_as_text(cells)
    present = np.array([not is_missing(cell) for cell in text], bool)
    numeric = cells.dtype.kind in "fiu"
    gaps = not (np.isfinite(cells) if numeric and kind != "category" else present).all()
    values = [] if numeric and kind != "category" else sorted(set(map(str, text[present])))
    formats = (
        date_formats(text[present], sites[present]) if values and kind in (None, "date") else ()
    )
    if kind is None:
        kind = _kind(name, cells, sites, values, formats)
    if kind == "category":
        # A column with no value at all would look like a number: one category keeps its kind.
        return ColumnSchema(name=name, kind=kind, categories=tuple(values) or ("none",), gaps=gaps)
    return ColumnSchema(name=name, kind=kind, formats=formats if kind == "date" else (), gaps=gaps)


def _kind(
    name: str, cells: np.ndarray, sites: np.ndarray, values: Sequence[str], formats: Sequence[str]
) -> Kind:
    """The kind of a column as its cells tell it."""
    if cells.dtype.kind in "fiu":
        return "identifier" if numbers_rows(name, cells, sites) else "number"
    if formats:
        return "date"
    text = cells_as_text(cells)
    present = np.array([not is_missing(cell) for cell in text], bool)
    count = int(present.sum())
    if count < ENOUGH:
        return "category"
    if 2 * len(values) <= count and not _tells_rows_apart(text[present], sites[present]):
        return "category"
    with_blanks = sum(" " in value for value in values)
    long = sum(map(len, values)) > 20 * len(values)
    return "text" if 2 * with_blanks > len(values) and long else "identifier"


def _tells_rows_apart(text: np.ndarray, sites: np.ndarray) -> bool:
    """Whether nearly every row of a site has a value of its own, though other sites may use the same ones: each counts its patients from 1, say."""
    own = [values for site in np.unique(sites) if len(values := text[sites == site]) >= ENOUGH]
    return bool(own) and 10 * sum(len(set(map(str, values))) for values in own) >= 9 * sum(
        map(len, own)
    )


def numbers_rows(name: str, cells: np.ndarray, sites: np.ndarray) -> bool:
    """Whether a column of numbers only tells rows apart: whole, nearly all different within a site, and named or counted like that."""
    if len(cells) < ENOUGH or not np.isfinite(cells).all() or not (cells == np.floor(cells)).all():
        return False
    own = [cells[sites == site] for site in np.unique(sites)]
    if 10 * sum(len(np.unique(values)) for values in own) < 9 * len(cells):
        return False
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).casefold()
    counted = all(
        len(values) > 1 and values[0] in (0, 1) and (np.diff(values) == 1).all() for values in own
    )
    return counted or _NAMES_ROWS.search(words) is not None

"""One data set from the tables of all sites."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from equipoise.data.arrays.user_data import from_arrays, from_sites
from equipoise.data.dataset import Column, Dataset
from equipoise.data.findings import DataErrors
from equipoise.data.groups import label_message
from equipoise.data.message_text import some
from equipoise.data.schema import Kind, Schema
from equipoise.data.tables.cell_numbers import column_as_numbers
from equipoise.data.tables.csv_files import cells_as_text, column_of, numbers_if_all
from equipoise.data.tables.label_findings import count_classes, missing_labels, split_classes
from equipoise.data.tables.labels import label_gaps, read_labels
from equipoise.data.tables.repairs import Table
from equipoise.data.tables.schema_inference import complete_schema, infer_schema, with_schema
from equipoise.data.tables.sites import MOST_COLUMNS, Sites, read_sites
from equipoise.validation.names import checked_name, did_you_mean, quoted

LABELS = ("label", "target", "y")  # names by which a label column is recognised
_SHOWN = 5  # rows that a message lists


@dataclass(frozen=True)
class _JoinedTable:
    """The columns that all sites share, joined over all rows.

    Attributes:
        label: The label column.
        tables: The tables of the sites, with these columns only.
        columns: The cells of all sites, by column.
        owners: The site of every row.
    """

    label: str
    tables: Mapping[str, Table]
    columns: Mapping[str, np.ndarray]
    owners: Sequence[str]


def from_tables(
    path: Path | str,
    *,
    label: str | None = None,
    site: str | None = None,
    categorical: tuple[str, ...] = (),
    kind: str | None = None,
    schema: Schema | None = None,
) -> Dataset:
    """Return a data set from a folder of site files, or from one file with a site column.

    Without a schema, the kinds of columns are inferred from their cells. Empty cells, NA, ? and
    infinity are missing values.

    Args:
        path: A folder with one CSV, NPZ or Parquet file per site, or one such file.
        label: The label column; by default the one named `label`, `target` or `y`.
        site: The column that names the site, if one file holds all sites.
        categorical: Columns whose numbers are categories.
        kind: `classification` or `regression`; by default inferred from the labels.
        schema: Columns, kinds, classes and repairs.

    Raises:
        ValueError: If the files cannot be read; the message lists every problem.
    """
    names = (*([label] if label else []), *categorical)
    sites = read_sites(Path(path), site, schema, names)
    return dataset_from_sites(sites, label, categorical, kind, schema)


def dataset_from_sites(
    sites: Sites,
    label: str | None = None,
    categorical: tuple[str, ...] = (),
    kind: str | None = None,
    schema: Schema | None = None,
    agreed: bool = False,
    event: str | None = None,
    groups: Sequence[str] = (),
) -> Dataset:
    """Return one data set of all sites' tables, read according to a schema.

    Args:
        sites: The tables of all sites.
        label: The label column; none: that of the schema, or the one that is named like a label.
        categorical: Columns whose numbers are categories.
        kind: The kind of task; none: as the schema says, or as the labels look.
        schema: The schema; what it leaves open is inferred from the cells.
        agreed: True if the schema leaves nothing open, so that cells change nothing in it.
        event: The former column of events, which `with_survival_target` joined with the times.
        groups: Columns by which samples are grouped; they need not be inputs.

    Raises:
        DataErrors: If the tables cannot be joined; it lists every reason.
    """
    if kind is None and schema is not None:
        kind = schema.predicts
    if sites.arrays:
        return _dataset_of_arrays(sites, kind, schema)
    problems = list(sites.problems)
    as_written: tuple[str, ...] = ()
    if agreed and schema is not None:
        # Other sites may have text in this column, so that 01 and 1 are two categories.
        as_written = tuple(column.name for column in schema.columns if column.kind == "category")
    joined = _join(sites, label, kind, schema, problems, as_written)
    problems += _categorical_problems(sites, joined, categorical)
    if agreed:
        schema = complete_schema(schema, Schema())
        problems += _unknown_class_problems(sites, joined, schema.classes)
    else:
        schema = _inferred_schema(sites, joined, categorical, kind, schema, problems)
    if event is not None:
        schema = schema.model_copy(update={"event": event})
    problems += _class_problems(sites, joined, schema.classes)
    if not schema.inputs and not problems:
        problems.append(_no_inputs(sites.path, schema))
    inputs = _input_columns(sites, joined, schema, problems)
    if not schema.classes:
        problems += _target_problems(sites, joined)
    attributes = _attributes(sites, joined.label, groups, problems)
    if problems:
        raise DataErrors(problems)
    target = joined.columns[joined.label]
    dataset = from_arrays(
        np.stack(inputs, axis=1),
        cells_as_text(target) if schema.classes else target,
        name=sites.path.stem,
        sites=joined.owners,
        columns=[Column(column.name, column.categories) for column in schema.inputs],
        kind=kind,
        class_names=schema.classes,
    )
    notes = (*dataset.notes, *(finding.message for finding in sites.findings))
    return replace(dataset, source="own files", schema=schema, notes=notes, attributes=attributes)


def _attributes(
    sites: Sites, label: str, columns: Sequence[str], problems: list[str]
) -> dict[str, np.ndarray]:
    """Return columns of all sites' rows that need not be inputs.

    Args:
        sites: The tables of all sites.
        label: The label column.
        columns: The columns.
        problems: A list that receives a sentence for every column that is not at every site.
    """
    attributes = {}
    for column in columns:
        if column == label:
            problems.append(label_message(column))
            continue
        lacking = [site for site, table in sites.tables.items() if column not in table]
        for site in lacking:
            table = sites.tables[site]
            problems.append(
                f"site {quoted(site)} ({sites.files[site]}) lacks the column {quoted(column)} of "
                f"data.groups; it has {some(table, MOST_COLUMNS)}{did_you_mean(column, table)}"
            )
        if not lacking:
            cells = [numbers_if_all(table[column]) for table in sites.tables.values()]
            attributes[column] = join_cells(cells)
    return attributes


def _inferred_schema(
    sites: Sites,
    joined: _JoinedTable,
    categorical: Sequence[str],
    kind: str | None,
    schema: Schema | None,
    problems: Sequence[str],
) -> Schema:
    """Return the schema with everything that it leaves open inferred from the cells."""
    kinds = _chosen_kinds(categorical, schema)
    try:
        inferred = infer_schema(joined.columns, joined.owners, joined.label, kinds, kind)
        schema = complete_schema(schema, inferred)
    except ValueError as error:
        raise DataErrors([*problems, str(error)]) from None
    if not sites.matched:
        return schema
    return schema.model_copy(update={"rename": {**sites.matched, **schema.rename}})


def _unknown_class_problems(
    sites: Sites, joined: _JoinedTable, classes: Sequence[str]
) -> list[str]:
    """Return a sentence for every site that has classes which the schema lacks."""
    problems = []
    for site, table in joined.tables.items():
        labels = table[joined.label]
        present = set(map(str, cells_as_text(labels[~label_gaps(labels)])))
        unknown = sorted(present - set(classes))
        if classes and unknown:
            noun = "class" if len(unknown) == 1 else "classes"
            problems.append(
                f"site {quoted(site)} ({sites.files[site]}): the schema lacks the {noun} "
                f"{some(map(quoted, unknown))} of column {quoted(joined.label)}; it has "
                f"{some(classes, MOST_COLUMNS)}: agree on a schema with all classes, or map cells "
                "under `values` in it"
            )
    return problems


def _dataset_of_arrays(sites: Sites, kind: str | None, schema: Schema | None) -> Dataset:
    """Return the data set of site files that hold arrays x and y instead of named columns."""
    if sites.problems:
        raise DataErrors(sites.problems)
    incomplete = [name for name, table in sites.tables.items() if set(table) != {"x", "y"}]
    if incomplete:
        raise ValueError(
            f"{sites.path}: expected exactly the arrays x and y in every site's file, "
            f"but not in {', '.join(incomplete)}; store these two arrays only"
        )
    x = next(iter(sites.tables.values()))["x"]
    columns = []
    if x.ndim == 2:
        columns = [f"x{number}" for number in range(x.shape[1])]
    dataset = from_sites(
        {name: (table["x"], table["y"]) for name, table in sites.tables.items()},
        name=sites.path.stem,
        columns=columns,
        kind=kind,
    )
    return with_schema(dataset, schema)


def _join(
    sites: Sites,
    label: str | None,
    kind: str | None,
    schema: Schema | None,
    problems: list[str],
    as_written: Collection[str],
) -> _JoinedTable:
    """Return the columns that all sites have; what differs is added to the problems.

    Args:
        sites: The tables of all sites.
        label: The label column, if it is known.
        kind: The task, if it is known.
        schema: The schema, if there is one.
        problems: A list that receives what differs.
        as_written: Columns whose cells keep the spelling of the files.

    Raises:
        DataErrors: If nothing can be joined.
    """
    label, tables = _label_and_common_columns(sites, label, schema, problems)
    read = interpret_tables(tables, label, kind, schema, as_written)
    problems += _gap_problems(sites, tables, read, label)
    owners: list[str] = []
    for site, table in read.items():
        owners += [site] * len(table[label])
    columns = {}
    for name in next(iter(read.values())):
        columns[name] = join_cells([table[name] for table in read.values()])
    return _JoinedTable(label, read, columns, owners)


def _label_and_common_columns(
    sites: Sites, label: str | None, schema: Schema | None, problems: list[str]
) -> tuple[str, dict[str, Table]]:
    tables = sites.tables
    if schema is not None:
        label = chosen_label(sites, label, schema)
        problems += _lacking_columns(tables, schema)
        tables = _listed_columns(tables, schema, label)
    if any(cells.ndim != 1 for table in tables.values() for cells in table.values()):
        problems.append(
            f"{sites.path}: expected one number or text per sample and column, "
            "or the arrays x and y in every site's file"
        )
        raise DataErrors(problems)
    problems += _differences(tables)
    tables = _with_common_columns(tables)
    try:
        label = find_label(next(iter(tables.values())), label)
    except ValueError as error:
        raise DataErrors([*problems, str(error)]) from None
    return label, tables


def _with_common_columns(tables: Mapping[str, Table]) -> dict[str, Table]:
    first = next(iter(tables.values()))
    common = [name for name in first if all(name in table for table in tables.values())]
    return {site: {name: table[name] for name in common} for site, table in tables.items()}


def chosen_label(sites: Sites, label: str | None, schema: Schema) -> str | None:
    """Return the label column that the user or the schema chose, by its name in the tables."""
    label = label or schema.label
    if label is None or any(label in table for table in sites.tables.values()):
        return label
    return schema.rename.get(label, label)


def find_label(table: Table, label: str | None) -> str:
    """Return the label column of a table.

    Args:
        table: The table.
        label: The column that somebody chose; none: the one that is named like a label.

    Raises:
        ValueError: If there is no such column, or several are named like a label.
    """
    if label is not None and label in table:
        return label
    columns = some(table, MOST_COLUMNS)
    message = f"say which column is the label (label: COLUMN), one of {columns}"
    if label is not None:
        raise ValueError(f"{message}; there is no {label}{did_you_mean(label, table)}")
    candidates = [name for name in LABELS if name in table]
    if len(candidates) != 1:
        raise ValueError(message)
    return candidates[0]


def _lacking_columns(tables: Mapping[str, Table], schema: Schema) -> list[str]:
    """Return a sentence for every site that lacks columns of the schema."""
    problems = []
    for site, table in tables.items():
        lacking = [column.name for column in schema.inputs if column.name not in table]
        if not lacking:
            continue
        noun = "column" if len(lacking) == 1 else "columns"
        problems.append(
            f"site {quoted(site)} lacks the {noun} {some(map(quoted, lacking))} of the schema; "
            f"it has {some(table, MOST_COLUMNS)}{did_you_mean(lacking[0], table)}"
        )
    return problems


def _listed_columns(
    tables: dict[str, Table], schema: Schema, label: str | None
) -> dict[str, Table]:
    """Return the columns that a schema lists, and the label."""
    if not schema.columns:
        return tables
    listed = {column.name for column in schema.columns}
    used = listed | ({label} if label is not None else set(LABELS))
    # A column that is no input may be missing at some sites; then it is left out everywhere.
    for name in listed - {column.name for column in schema.inputs}:
        if not all(name in table for table in tables.values()):
            used.discard(name)
    return {
        site: {name: cells for name, cells in table.items() if name in used}
        for site, table in tables.items()
    }


def _differences(tables: Mapping[str, Table]) -> list[str]:
    """Return a sentence for every site whose columns are not those of the first."""
    first, *others = tables
    problems = []
    for other in others:
        lacks = sorted(set(tables[first]) - set(tables[other]))
        extra = sorted(set(tables[other]) - set(tables[first]))
        differences = []
        if lacks:
            differences.append(f"{other} lacks {some(lacks, MOST_COLUMNS)}")
        if extra:
            differences.append(f"{other} has also {some(extra, MOST_COLUMNS)}")
        if differences:
            problems.append(
                f"sites differ in their columns: compared with {first}, "
                f"{' and '.join(differences)}; bring all sites to the same columns, "
                "rename them in a schema, or list there the columns to use"
            )
    return problems


def interpret_tables(
    tables: Mapping[str, Table],
    label: str | None,
    task: str | None,
    schema: Schema | None,
    as_written: Collection[str] = (),
) -> dict[str, Table]:
    """Return the tables with labels as classes or numbers, and numbers in all other columns.

    Args:
        tables: The tables of all sites, with the spelling of the files; all have the label.
        label: The label column, if it is known.
        task: `classification` or `regression`, if that is known.
        schema: Classes that it names, or that it writes in place of cells, are never gaps.
        as_written: Columns whose cells keep the spelling of the files.
    """
    labels: dict[str, np.ndarray] = {}
    if label is not None:
        written = {site: table[label] for site, table in tables.items()}
        labels = read_labels(written, task, _named_classes(label, schema or Schema()))
    result: dict[str, Table] = {}
    for site, table in tables.items():
        result[site] = {}
        for name, cells in table.items():
            if name == label:
                cells = labels[site]
            elif name not in as_written:
                cells = numbers_if_all(cells)
            result[site][name] = cells
    return result


def _named_classes(label: str, schema: Schema) -> set[str]:
    """Return the classes that a schema lists, and those that it writes in place of cells."""
    classes = set(schema.classes)
    for repairs in (schema, *schema.sites.values()):
        classes.update(repairs.values.get(label, {}).values())
    return classes


def join_cells(parts: list[np.ndarray]) -> np.ndarray:
    """Return one column over all sites; it is text if it is text at any site."""
    if all(part.dtype.kind in "fiu" for part in parts):
        return np.concatenate(parts)
    return np.concatenate([cells_as_text(part) for part in parts])


def _chosen_kinds(categorical: Sequence[str], schema: Schema | None) -> dict[str, Kind]:
    """Return the kinds of columns that the user or the schema chose."""
    kinds: dict[str, Kind] = dict.fromkeys(categorical, "category")
    if schema is not None:
        kinds.update({column.name: column.kind for column in schema.columns})
    return kinds


def _gap_problems(
    sites: Sites, written: Mapping[str, Table], read: Mapping[str, Table], label: str
) -> list[str]:
    """Return a sentence if rows have no label.

    Args:
        sites: The sites, for files and lines.
        written: The tables with the cells as the files have them.
        read: The same tables as `interpret_tables` returns them.
        label: The label column.
    """
    locations: list[str] = []
    gap_words: set[str] = set()
    gap_count = 0
    for site, table in read.items():
        gaps = np.flatnonzero(label_gaps(table[label]))
        gap_count += len(gaps)
        gap_words |= set(cells_as_text(written[site][label][gaps]).tolist())
        locations += [sites.origins[site].of_row(int(row)) for row in gaps[:_SHOWN]]
    if not gap_count:
        return []
    return [missing_labels(locations[:_SHOWN], label, gap_count, gap_words)]


def _categorical_problems(
    sites: Sites, joined: _JoinedTable, categorical: Sequence[str]
) -> list[str]:
    unknown = [name for name in categorical if name not in joined.columns]
    if not unknown:
        return []
    return [
        f"categorical names no column of {sites.path.stem}: {', '.join(unknown)}; "
        f"it has {some(joined.columns, MOST_COLUMNS)}"
    ]


def _class_problems(sites: Sites, joined: _JoinedTable, classes: Sequence[str]) -> list[str]:
    """Return a class whose name is not allowed, or else classes that sites code differently."""
    if not classes:
        return []
    try:
        for name in classes:
            checked_name(name, f"data set {sites.path.stem}: the label")
    except ValueError as error:
        return [str(error)]
    counts = count_classes({site: table[joined.label] for site, table in joined.tables.items()})
    return [finding.message for finding in split_classes(counts, joined.label, sites.files)]


def _no_inputs(path: Path, schema: Schema) -> str:
    columns = [f"{column.name} ({column.kind})" for column in schema.columns]
    shown = some(columns, MOST_COLUMNS) or "none but the label"
    return (
        f"{path}: no column is left to learn from; there are {shown}: "
        "give one another kind in a schema"
    )


def _input_columns(
    sites: Sites, joined: _JoinedTable, schema: Schema, problems: list[str]
) -> list[np.ndarray]:
    """Return the input columns as numbers; cells that do not fit are added to the problems."""
    numbers = []
    for column in schema.inputs:
        cells = joined.columns.get(column.name)
        if cells is None:
            continue  # a site lacks it, which is among the problems
        try:
            numbers.append(column_as_numbers(cells, column, sites.of_row))
        except ValueError as error:
            problems.append(str(error))
    return numbers


def _target_problems(sites: Sites, joined: _JoinedTable) -> list[str]:
    """Return a sentence if the numbers to predict hold text."""
    target = joined.columns[joined.label]
    if target.dtype.kind in "fiu":
        return []
    row = next(row for row, cell in enumerate(target) if not _is_number_or_gap(str(cell)))
    return [
        f"{sites.of_row(row)}, column {quoted(joined.label)}: expected numbers "
        f"in {joined.label}, got text such as {quoted(target[row])}; use task: classification"
    ]


def _is_number_or_gap(cell: str) -> bool:
    return column_of([cell]).dtype.kind == "f"

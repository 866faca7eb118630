"""Tables of a user's sites: one CSV, NPZ or Parquet file per site, or one file with a column that names the site."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from equipoise.data.arrays.npz import check_sizes, named_columns, read_npz
from equipoise.data.arrays.user_data import from_arrays, from_sites
from equipoise.data.dataset import Column, Dataset
from equipoise.data.findings import Finding
from equipoise.data.schema import ColumnSchema, Kind, Schema
from equipoise.data.tables.csv_files import (
    Dialect,
    cells_as_text,
    column_of,
    is_missing,
    number_of,
    numbers_if_all,
    read_csv,
)
from equipoise.data.tables.label_findings import count_classes, missing_labels, split_classes
from equipoise.data.tables.labels import label_gaps, read_labels
from equipoise.data.tables.parquet_files import read_parquet
from equipoise.data.tables.repairs import (
    Table,
    match_names,
    rename_columns,
    repair_cells,
    unmatched_repairs,
)
from equipoise.data.tables.schema_inference import completed, days, decided, with_schema
from equipoise.validation.names import checked_name, did_you_mean, quoted
from equipoise.validation.regular_files import check_regular

ENDINGS = (".csv", ".npz", ".parquet")
HIDDEN = (".", "~$")  # such as .DS_Store, ._a.csv and the lock files of spreadsheets
LABELS = ("label", "target", "y")
LARGEST = float(np.finfo(np.float32).max)
_SHOWN = 5  # rows or columns that a message lists


def site_files(folder: Path) -> list[Path]:
    """The site files of a folder, in the order of their names."""
    if not folder.is_dir():
        return []
    named = sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in ENDINGS and not path.name.startswith(HIDDEN)
    )
    for path in named:
        check_regular(path)  # a site must not be left out in silence
    return [path for path in named if path.is_file()]


def hidden_files(folder: Path) -> list[Path]:
    """Return the hidden files of a folder, which are never read as sites."""
    return sorted(file for file in _files(folder) if file.name.startswith(HIDDEN))


def _files(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.is_file()] if folder.is_dir() else []


class DataErrors(ValueError):
    """Every problem that keeps data from being read, told at once, one per line."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(" ".join(problem.split()) for problem in problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True)
class Origin:
    """The file of a site and, for each row of its table, the line or row of that file."""

    file: str
    rows: Sequence[int] | np.ndarray
    unit: str = "line"

    def of_row(self, row: int) -> str:
        return f"{self.file}, {self.unit} {self.rows[row]}"


@dataclass(frozen=True)
class Sites:
    """The tables of all sites, repaired as the schema says, and how their files were written."""

    path: Path
    tables: dict[str, Table]
    dialects: dict[str, Dialect]  # by file
    arrays: bool  # files that hold x and y in place of columns
    origins: dict[str, Origin] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()
    # names of columns that were matched though they differ in case or blanks
    matched: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        """The file of each site, or the name of the data if there are none."""
        return {site: origin.file for site, origin in self.origins.items()}

    def of_row(self, row: int) -> str:
        """Return the file and line of a row, counted through all sites."""
        for site, table in self.tables.items():
            rows = len(next(iter(table.values())))
            if row < rows:
                return self.origins[site].of_row(row)
            row -= rows
        raise IndexError(row)


def from_tables(
    path: Path | str,
    *,
    label: str | None = None,
    site: str | None = None,
    categorical: tuple[str, ...] = (),
    kind: str | None = None,
    schema: Schema | None = None,
) -> Dataset:
    """A data set from a folder of site files, or from one file and the column that names the site.

    Without a schema the cells tell what a column is; empty cells, NA, ? and infinity are missing.
    """
    names = (*([label] if label else []), *categorical)
    sites = read_sites(Path(path), site, schema, names)
    return dataset_of(sites, label, categorical, kind, schema)


def read_sites(
    path: Path, site: str | None = None, schema: Schema | None = None, names: Sequence[str] = ()
) -> Sites:
    """Read every site's table and repair it.

    Args:
        path: A folder with one file per site, or one file.
        site: The column that names the site, of one file.
        schema: Its repairs are applied.
        names: Names of columns that are asked for, besides those of the schema.

    Returns:
        The tables of all files that could be read; the other files are among the problems.

    Raises:
        ValueError: No file could be read, or one file does not say which site a row is of.
    """
    files = [path] if path.is_file() else site_files(path)
    if not files:
        raise ValueError(
            f"{path} holds no site files; expected one {', '.join(ENDINGS)} file per site"
        )
    check_sizes([file for file in files if file.suffix.lower() == ".npz"])
    if path.is_dir() and site is not None:
        raise ValueError(
            f"site: {site} is for one file that holds all sites; {path} is a folder with one file per site"
        )
    found, problems = _read_files(files, path.is_dir())
    if not found.tables:
        raise DataErrors(problems)
    found = replace(found, path=path, problems=tuple(problems))
    first = next(iter(found.tables.values()))
    names_of_files = [origin.file.lower() for origin in found.origins.values()]
    if all(name.endswith(".npz") for name in names_of_files) and "x" in first:
        return replace(found, arrays=True)
    if path.is_file():
        rename = schema.rename if schema is not None else {}
        found = split_by_site(found, site, rename)
    return repaired(found, schema, names, (site,) if site else ())


def _read_files(files: Sequence[Path], named_by_file: bool) -> tuple[Sites, list[str]]:
    """The tables of all files that can be read, and what is wrong with the others."""
    tables: dict[str, Table] = {}
    origins: dict[str, Origin] = {}
    dialects: dict[str, Dialect] = {}
    problems: list[str] = []
    for file in files:
        try:
            name = checked_name(file.stem, "the site of a file") if named_by_file else file.stem
            table = read_table(file, dialects)
        except (ValueError, OSError) as error:
            problems.append(str(error))
            continue
        if name in tables:
            problems.append(
                f"{file.parent}: two site files share a name, {quoted(name)}; "
                "a site's name is its file's name without the ending"
            )
            continue
        tables[name] = table
        origins[name] = origin_of(file.name, table, dialects.get(file.name))
    return Sites(files[0], tables, dialects, False, origins), problems


def origin_of(file: str, table: Table, dialect: Dialect | None = None) -> Origin:
    """Return where the rows of a table come from: lines of a text file, else rows from 1."""
    if dialect is not None and dialect.lines:
        return Origin(file, dialect.lines)
    rows = len(next(iter(table.values()))) if table else 0
    return Origin(file, range(1, rows + 1), "row")


def repaired(
    sites: Sites, schema: Schema | None, names: Sequence[str] = (), others: Sequence[str] = ()
) -> Sites:
    """Return the sites with the repairs of a schema, and columns matched by their names.

    Args:
        sites: The tables as the files have them.
        schema: The schema with the repairs; none for no repairs.
        names: Names of columns that are asked for, besides those of the schema.
        others: Columns that are no part of the tables any more but may be named by the schema.

    Returns:
        The repaired tables; repairs that match nothing are among the problems.
    """
    given = schema or Schema()
    problems: list[str] = list(sites.problems)
    repairs = {site: given.repairs_of(site) for site in sites.tables}
    renamed: dict[str, Table] = {}
    for site, table in sites.tables.items():
        try:
            renamed[site] = rename_columns(table, repairs[site].rename, sites.origins[site].file)
        except ValueError as error:
            problems.append(str(error))
            renamed[site] = table
    wanted = [column.name for column in given.columns]
    wanted += [name for name in (given.label, *names) if name is not None]
    files = {site: origin.file for site, origin in sites.origins.items()}
    matching = match_names(renamed, wanted, bool(given.columns), files)
    renamed = {
        site: rename_columns(table, matching.renames[site], files[site])
        for site, table in renamed.items()
    }
    problems += matching.problems
    problems += unmatched_repairs(sites.tables, renamed, given, others)
    commas = {site: _may_have_commas(sites.dialects.get(files[site])) for site in renamed}
    tables = renamed
    try:
        tables = repair_cells(renamed, repairs, commas, len(set(files.values())) == 1)
    except ValueError as error:
        problems.append(str(error))
    matched = {old: new for own in matching.renames.values() for old, new in own.items()}
    return replace(
        sites,
        tables=tables,
        findings=(*sites.findings, *matching.findings),
        problems=tuple(problems),
        matched=matched,
    )


def read_new_rows(
    file: Path, schema: Schema, names: Sequence[str], site: str | None
) -> tuple[Table, Origin]:
    """Read rows that were not there in training, with the repairs of a schema.

    Unlike in training, a repair may match nothing: new rows need not have every value.

    Args:
        file: The file.
        schema: The schema of the run.
        names: The columns that are needed.
        site: The site whose own repairs are applied; none or another: the general ones.

    Raises:
        ValueError: The file cannot be read, or two of its columns have one name.
    """
    dialects: dict[str, Dialect] = {}
    table = read_table(file, dialects)
    origin = origin_of(file.name, table, dialects.get(file.name))
    repairs = schema.repairs_of(site)
    table = rename_columns(table, repairs.rename, str(file))
    matching = match_names({file.name: table}, names, True, {file.name: str(file)})
    if matching.problems:
        raise DataErrors(matching.problems)
    for finding in matching.findings:
        logging.getLogger("equipoise").warning(finding.message)
    table = rename_columns(table, matching.renames[file.name], str(file))
    commas = {file.name: _may_have_commas(dialects.get(file.name))}
    return repair_cells({file.name: table}, {file.name: repairs}, commas, True)[file.name], origin


def _may_have_commas(dialect: Dialect | None) -> bool:
    return dialect is not None and dialect.separator != ","


def dataset_of(
    sites: Sites,
    label: str | None = None,
    categorical: tuple[str, ...] = (),
    kind: str | None = None,
    schema: Schema | None = None,
) -> Dataset:
    """Return one data set of all sites' tables, as a schema sees them.

    Args:
        sites: The tables of all sites.
        label: The label column; none: that of the schema, or the one that is named like a label.
        categorical: Columns whose numbers are categories.
        kind: The task, classification or regression; none: what the schema or the labels tell.
        schema: The schema; what it does not say is decided by the cells.

    Raises:
        DataErrors: The tables cannot be read as one; all reasons that were found.
    """
    path, name = sites.path, sites.path.stem
    kind = kind or (schema.predicts if schema is not None else None)
    if sites.arrays:
        if sites.problems:
            raise DataErrors(sites.problems)
        return with_schema(_from_site_arrays(path, sites.tables, kind), schema)
    problems = list(sites.problems)
    label, tables = _usable(sites, label, schema, problems)
    tables, problem = _with_labels(sites, tables, label, kind, schema)
    problems += problem
    owners = [who for who, table in tables.items() for _ in range(len(table[label]))]
    joined = {
        column: joined_cells([table[column] for table in tables.values()])
        for column in next(iter(tables.values()))
    }
    unknown = [c for c in categorical if c not in joined]
    if unknown:
        problems.append(
            f"categorical names no column of {name}: {', '.join(unknown)}; it has {_some(joined)}"
        )
    target = joined[label]
    kinds = _kinds(categorical, schema)
    try:
        schema = completed(schema, decided(joined, owners, label, kinds, kind))
    except ValueError as error:
        raise DataErrors([*problems, str(error)]) from None
    if sites.matched:
        schema = schema.model_copy(update={"rename": {**sites.matched, **schema.rename}})
    if schema.classes:
        problems += _class_problems(sites, tables, label, schema.classes)
    if not schema.inputs and not problems:
        left = _some(f"{column.name} ({column.kind})" for column in schema.columns)
        problems.append(
            f"{path}: no column is left to learn from; there are {left or 'none but the label'}: "
            "give one another kind in a schema"
        )
    numbers = []
    for column in schema.inputs:
        if column.name not in joined:
            continue  # a site lacks it, which is among the problems
        try:
            numbers.append(coded(joined[column.name], column, sites.of_row))
        except ValueError as error:
            problems.append(str(error))
    if not schema.classes and target.dtype.kind not in "fiu":
        row = next(i for i, cell in enumerate(map(str, target)) if not _is_number(cell))
        problems.append(
            f"{sites.of_row(row)}, column {quoted(label)}: expected numbers in {label}, got text "
            f"such as {quoted(target[row])}; use task: classification"
        )
    if problems:
        raise DataErrors(problems)
    made = from_arrays(
        np.stack(numbers, axis=1),
        cells_as_text(target) if schema.classes else target,
        name=name,
        sites=owners,
        columns=[Column(column.name, column.categories) for column in schema.inputs],
        kind=kind,
        class_names=schema.classes,
    )
    notes = (*made.notes, *(finding.message for finding in sites.findings))
    return replace(made, source="own files", schema=schema, notes=notes)


def _usable(
    sites: Sites, label: str | None, schema: Schema | None, problems: list[str]
) -> tuple[str, dict[str, Table]]:
    """The label and the columns that all sites have; what differs is added to the problems.

    Raises:
        DataErrors: Nothing can be joined.
    """
    tables = sites.tables
    if schema is not None:
        label = label_name(sites, label, schema)
        tables, lacking = _listed(tables, schema, label)
        problems += lacking
    if not all(column.ndim == 1 for table in tables.values() for column in table.values()):
        problems.append(
            f"{sites.path}: expected one number or text per sample and column, or the arrays x and y in every site's file"
        )
        raise DataErrors(problems)
    problems += _differences(tables)
    common = [
        name for name in next(iter(tables.values())) if all(name in t for t in tables.values())
    ]
    tables = {who: {name: table[name] for name in common} for who, table in tables.items()}
    try:
        label = label_column(next(iter(tables.values())), label)
    except ValueError as error:
        raise DataErrors([*problems, str(error)]) from None
    return label, tables


def label_name(sites: Sites, label: str | None, schema: Schema) -> str | None:
    """Return the label column that somebody chose, by the name that the tables have for it."""
    label = label or schema.label
    if label is None or any(label in table for table in sites.tables.values()):
        return label
    return schema.rename.get(label, label)


def _kinds(categorical: Sequence[str], schema: Schema | None) -> dict[str, Kind]:
    """The kinds of columns that somebody chose."""
    kinds: dict[str, Kind] = dict.fromkeys(categorical, "category")
    for column in schema.columns if schema is not None else ():
        kinds[column.name] = column.kind
    return kinds


def _with_labels(
    sites: Sites, tables: Mapping[str, Table], label: str, task: str | None, schema: Schema | None
) -> tuple[dict[str, Table], list[str]]:
    """Return the tables as they count, and a sentence if rows have no label."""
    counted = as_counted(tables, label, task, schema)
    places: list[str] = []
    words: set[str] = set()
    rows = 0
    for site, table in counted.items():
        gaps = np.flatnonzero(label_gaps(table[label]))
        rows += len(gaps)
        words |= set(cells_as_text(tables[site][label][gaps]).tolist())
        places += [sites.origins[site].of_row(int(row)) for row in gaps[:_SHOWN]]
    if not rows:
        return counted, []
    return counted, [missing_labels(places[:_SHOWN], label, rows, words)]


def _class_problems(
    sites: Sites, tables: Mapping[str, Table], label: str, classes: Sequence[str]
) -> list[str]:
    """A class whose name cannot be one, or else classes that sites code differently."""
    try:
        for name in classes:
            checked_name(name, f"data set {sites.path.stem}: the label")
    except ValueError as error:
        return [str(error)]
    counts = count_classes({who: table[label] for who, table in tables.items()})
    return [finding.message for finding in split_classes(counts, label, sites.files)]


def as_counted(
    tables: Mapping[str, Table], label: str | None, task: str | None, schema: Schema | None
) -> dict[str, Table]:
    """Return the tables with labels as classes or numbers, and numbers in all other columns.

    Args:
        tables: The tables of all sites, as files spell them; the label is in all of them.
        label: The label column, if it is known.
        task: `classification` or `regression`, if that is known.
        schema: Classes that it names, or that it writes in place of cells, are never gaps.
    """
    result = {
        site: {name: numbers_if_all(cells) for name, cells in table.items() if name != label}
        for site, table in tables.items()
    }
    if label is None:
        return result
    written = {site: table[label] for site, table in tables.items()}
    labels = read_labels(written, task, _named_classes(label, schema or Schema()))
    return {
        site: {name: labels[site] if name == label else result[site][name] for name in table}
        for site, table in tables.items()
    }


def _named_classes(label: str, schema: Schema) -> set[str]:
    repairs = (schema, *schema.sites.values())
    return {
        *schema.classes,
        *(new for one in repairs for new in one.values.get(label, {}).values()),
    }


def _listed(
    tables: dict[str, Table], schema: Schema, label: str | None
) -> tuple[dict[str, Table], list[str]]:
    """The columns that a schema lists, all others are left out; and what sites lack."""
    if not schema.columns:
        return tables, []
    listed = {column.name for column in schema.columns}
    wanted = listed | ({label} if label is not None else set(LABELS))
    needed = [column.name for column in schema.inputs]
    problems = []
    for who, table in tables.items():
        lacking = [name for name in needed if name not in table]
        if lacking:
            problems.append(
                f"site {quoted(who)} lacks {_column_word(lacking)} of the schema; "
                f"it has {_some(table)}{did_you_mean(lacking[0], table)}"
            )
    kept = {
        who: {name: cells for name, cells in table.items() if name in wanted}
        for who, table in tables.items()
    }
    # What is left out anyway may differ between sites.
    ignored = listed - set(needed)
    everywhere = {name for name in ignored if all(name in table for table in kept.values())}
    dropped = ignored - everywhere
    return {
        who: {name: cells for name, cells in table.items() if name not in dropped}
        for who, table in kept.items()
    }, problems


def _column_word(names: Sequence[str]) -> str:
    shown = ", ".join(quoted(name) for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"the column {shown}" if len(names) == 1 else f"the columns {shown}{more}"


def _some(names: Iterable[str], most: int = 60) -> str:
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def read_table(file: Path, dialects: dict[str, Dialect] | None = None) -> Table:
    """The columns of a file; a column of numbers is a float array with NaN for missing cells, any other an array of text."""
    check_regular(file)
    ending = file.suffix.lower()
    if ending == ".csv":
        table, dialect = read_csv(file)
        if dialects is not None:
            dialects[file.name] = dialect
        return table
    if ending == ".npz":
        return _npz(file)
    if ending == ".parquet":
        return read_parquet(file)
    raise ValueError(
        f"cannot read {file} as a table; expected a file ending in {', '.join(ENDINGS)}"
    )


def coded(
    values: np.ndarray, column: ColumnSchema, of_row: Callable[[int], str] | None = None
) -> np.ndarray:
    """Return a column as numbers: dates as days, categories as their place among the schema's.

    Args:
        values: The cells.
        column: What the schema says of the column. Categories that it does not have get the code
            after the last.
        of_row: The file and line of a row, for errors.

    Raises:
        ValueError: A cell is not what the kind of the column asks for.
    """
    values = numbers_if_all(values)
    if column.kind == "category":
        places = {name: i for i, name in enumerate(column.categories)}
        cells = map(str, cells_as_text(values))
        return np.array(
            [np.nan if is_missing(cell) else places.get(cell, len(places)) for cell in cells],
            np.float64,
        )
    if column.kind == "date":
        return days(cells_as_text(values), column, of_row)
    numbers = _numbers(values, column.name, of_row)
    # infinity is a gap, as a warning says
    return np.where(np.abs(numbers) > LARGEST, np.nan, numbers)


def _from_site_arrays(path: Path, tables: Mapping[str, Table], kind: str | None) -> Dataset:
    """Site files that hold arrays x and y instead of named columns."""
    lacking = [name for name, table in tables.items() if set(table) != {"x", "y"}]
    if lacking:
        raise ValueError(
            f"{path}: expected the arrays x and y in every site's file, which {', '.join(lacking)} has not"
        )
    x = next(iter(tables.values()))["x"]
    columns = [f"x{j}" for j in range(x.shape[1])] if x.ndim == 2 else []
    return from_sites(
        {name: (t["x"], t["y"]) for name, t in tables.items()},
        name=path.stem,
        columns=columns,
        kind=kind,
    )


def _npz(file: Path) -> Table:
    arrays = read_npz(file)
    shapes = {name: a.shape for name, a in arrays.items() if name != "feature_names"}
    if (
        len({shape[:1] for shape in shapes.values()}) != 1
        or () in shapes.values()
        or not all(map(math.prod, shapes.values()))
    ):
        raise ValueError(
            f"{file}: expected arrays of one length with at least one sample, got the shapes {quoted(shapes)}"
        )
    return named_columns(file, arrays)


def joined_cells(parts: list[np.ndarray]) -> np.ndarray:
    """One column over all sites; it is text if it is text anywhere."""
    numeric = all(part.dtype.kind in "fiu" for part in parts)
    return np.concatenate(parts if numeric else [cells_as_text(part) for part in parts])


def _numbers(values: np.ndarray, name: str, of_row: Callable[[int], str] | None) -> np.ndarray:
    if values.dtype.kind != "U":
        return values.astype(np.float64)
    numbers = np.full(len(values), np.nan)
    for row, cell in enumerate(map(str, values)):
        if is_missing(cell):
            continue
        try:
            numbers[row] = number_of(cell)
        except ValueError:
            where = f"{of_row(row)}, " if of_row is not None else ""
            raise ValueError(
                f"{where}column {quoted(name)}: expected a number, got {quoted(cell)}; "
                "list such cells under `missing` in the schema, or give the column another kind"
            ) from None
    return numbers


def _is_number(cell: str) -> bool:
    return column_of([cell]).dtype.kind == "f"


def split_by_site(sites: Sites, site: str | None, rename: Mapping[str, str]) -> Sites:
    """Return one table of all sites, taken apart by the column that names the site.

    Args:
        sites: One table.
        site: The column that names the site, as the file or as `rename` calls it.
        rename: Columns that the schema renames.
    """
    ((name, table),) = sites.tables.items()
    column = next((old for old in table if site in (old, rename.get(old, old))), None)
    if column is None:
        raise ValueError(
            f"{sites.path} is one file: say which column names the site (site: COLUMN), one of {_some(table)}"
        )
    if len(table) == 1:
        raise ValueError(
            f"{sites.path}: expected columns besides {quoted(column)}, which names the site, got none; "
            "add the label and the columns to learn from"
        )
    owner = cells_as_text(numbers_if_all(table[column]))  # 01 and 1 are one site
    origin = sites.origins[name]
    empty = [row for row, cell in enumerate(owner) if is_missing(str(cell))]
    if empty:
        raise ValueError(
            f"{sites.path}: some rows name no {site}, such as {origin.of_row(empty[0])}; every row needs its site"
        )
    tables, origins = {}, {}
    rows = np.asarray(origin.rows)
    for one in sorted(set(map(str, owner))):
        own = owner == one
        tables[one] = {key: cells[own] for key, cells in table.items() if key != column}
        origins[one] = replace(origin, rows=rows[own])
    return replace(sites, tables=tables, origins=origins)


def _differences(tables: Mapping[str, Table]) -> list[str]:
    """A sentence for every site whose columns are not those of the first."""
    first, *others = tables
    problems = []
    for other in others:
        lacks = sorted(set(tables[first]) - set(tables[other]))
        extra = sorted(set(tables[other]) - set(tables[first]))
        said = []
        if lacks:
            said.append(f"{other} lacks {_some(lacks)}")
        if extra:
            said.append(f"{other} has also {_some(extra)}")
        if said:
            problems.append(
                f"sites differ in their columns: compared with {first}, {' and '.join(said)}; "
                "bring all sites to the same columns, rename them in a schema, or list there the columns to use"
            )
    return problems


def label_column(table: Table, label: str | None) -> str:
    found = [name for name in LABELS if name in table]
    if label is None and len(found) == 1:
        return found[0]
    if label is None or label not in table:
        raise ValueError(
            f"say which column is the label (label: COLUMN), one of {_some(table)}"
            + (f"; there is no {label}{did_you_mean(label, table)}" if label else "")
        )
    return label

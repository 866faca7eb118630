"""Tables of a user's sites: one CSV, NPZ or Parquet file per site, or one file with a column that names the site."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from equipoise.data.arrays.npz import check_sizes, named_columns, read_npz
from equipoise.data.arrays.user_data import from_arrays, from_sites
from equipoise.data.dataset import Column, Dataset
from equipoise.data.schema import ColumnSchema, Schema
from equipoise.data.tables.csv_files import (
    Dialect,
    cells_as_text,
    is_missing,
    numbers_if_all,
    read_csv,
    row_lines,
    spelled_column,
)
from equipoise.data.tables.label_findings import count_classes, missing_labels, split_classes
from equipoise.data.tables.labels import label_gaps, read_labels
from equipoise.data.tables.schema_inference import completed, days, decided, with_schema
from equipoise.validation.names import checked_name, quoted
from equipoise.validation.regular_files import check_regular

ENDINGS = (".csv", ".npz", ".parquet")
HIDDEN = (".", "~$")  # such as .DS_Store, ._a.csv and the lock files of spreadsheets
LABELS = ("label", "target", "y")
LARGEST = float(np.finfo(np.float32).max)
Table = dict[str, np.ndarray]


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


@dataclass(frozen=True)
class Sites:
    """The tables of all sites as their files hold them, and how those were written."""

    path: Path
    tables: dict[str, Table]
    dialects: dict[str, Dialect]  # by file
    arrays: bool  # files that hold x and y in place of columns
    # Of one file for all sites: the rows of the file that each site has.
    rows: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        """The file of each site; the name of the data if there are none."""
        named = {file.stem: file.name for file in site_files(self.path)}
        return {site: named.get(site, self.path.name) for site in self.tables}

    def location(self, site: str, row: int) -> str:
        """Return where a row of a site is, such as `boston.csv, line 17`."""
        file = self.path if self.path.is_file() else self.path / self.files[site]
        if site in self.rows:
            row = int(self.rows[site][row])
        if file.is_file() and file.suffix.lower() == ".csv":
            return f"{file.name}, line {row_lines(file)[row]}"
        return f"{self.files[site]}, row {row + 1}"


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
    return dataset_of(read_sites(Path(path), site), label, categorical, kind, schema)


def read_sites(path: Path, site: str | None = None) -> Sites:
    """Every site's table."""
    files = [path] if path.is_file() else site_files(path)
    if not files:
        raise ValueError(
            f"{path} holds no site files; expected one {', '.join(ENDINGS)} file per site"
        )
    check_sizes([file for file in files if file.suffix.lower() == ".npz"])
    dialects: dict[str, Dialect] = {}
    tables = {
        checked_name(file.stem, "the site of a file") if path.is_dir() else file.stem: read_table(
            file, dialects
        )
        for file in files
    }
    if len(tables) < len(files):
        raise ValueError(
            f"{path}: two site files share a name; a site's name is its file's name without the ending"
        )
    if all(file.suffix.lower() == ".npz" for file in files) and "x" in tables[files[0].stem]:
        return Sites(path, tables, dialects, True)
    rows: dict[str, np.ndarray] = {}
    if path.is_file():
        table = tables[path.stem]
        tables = by_site(table, site, path)
        owner = _owners(table[site or ""])
        rows = {who: np.flatnonzero(owner == who) for who in tables}
    elif site is not None:
        raise ValueError(
            f"site: {site} is for one file that holds all sites; {path} is a folder with one file per site"
        )
    return Sites(path, tables, dialects, False, rows)


def dataset_of(
    sites: Sites,
    label: str | None = None,
    categorical: tuple[str, ...] = (),
    kind: str | None = None,
    schema: Schema | None = None,
) -> Dataset:
    """One data set of all sites' tables, as a schema sees them: the given one, or the one that their cells tell."""
    path, tables, name = sites.path, sites.tables, sites.path.stem
    kind = kind or (schema.predicts if schema is not None else None)
    if sites.arrays:
        return with_schema(_from_site_arrays(path, tables, kind), schema)
    if schema is not None:
        label = label or schema.label
        tables = {who: _listed(who, table, schema, label) for who, table in tables.items()}
    flat = all(column.ndim == 1 for table in tables.values() for column in table.values())
    if not flat:
        raise ValueError(
            f"{path}: expected one number or text per sample and column, or the arrays x and y in every site's file"
        )
    _same_columns(tables)
    label = label_column(next(iter(tables.values())), label)
    tables = _with_labels(sites, tables, label, kind, schema.classes if schema else ())
    owners = [who for who, table in tables.items() for _ in range(len(table[label]))]
    joined = {
        column: _joined([table[column] for table in tables.values()])
        for column in next(iter(tables.values()))
    }
    unknown = [c for c in categorical if c not in joined]
    if unknown:
        raise ValueError(
            f"categorical names no column of {name}: {', '.join(unknown)}; it has {', '.join(joined)}"
        )
    target = joined[label]
    schema = completed(schema, decided(joined, owners, label, categorical, kind))
    if schema.classes:
        split = split_classes(
            count_classes({who: table[label] for who, table in tables.items()}), label, sites.files
        )
        if split:
            raise ValueError(split[0].message)
    if not schema.inputs:
        left = (
            ", ".join(f"{column.name} ({column.kind})" for column in schema.columns)
            or "none but the label"
        )
        raise ValueError(
            f"{path}: no column is left to learn from; there are {left}: give one another kind in a schema"
        )
    columns = [Column(column.name, column.categories) for column in schema.inputs]
    x = np.stack([coded(joined[column.name], column) for column in schema.inputs], axis=1)
    labels = cells_as_text(target) if schema.classes else target
    if not schema.classes and target.dtype.kind not in "fiu":
        raise ValueError(
            f"{name}: expected numbers in {label}, got text such as {quoted(target[0])}; use task: classification"
        )
    made = from_arrays(
        x, labels, name=name, sites=owners, columns=columns, kind=kind, class_names=schema.classes
    )
    return replace(made, source="own files", schema=schema)


def _with_labels(
    sites: Sites, tables: Mapping[str, Table], label: str, kind: str | None, known: Sequence[str]
) -> dict[str, Table]:
    """Return the tables with labels as they count; a row without a label is refused."""
    written = {site: table[label] for site, table in tables.items()}
    labels = read_labels(written, kind, known)
    gaps = [
        (site, int(row))
        for site, cells in labels.items()
        for row in np.flatnonzero(label_gaps(cells))
    ]
    if gaps:
        words = {str(cells_as_text(written[site])[row]) for site, row in gaps}
        shown = [sites.location(site, row) for site, row in gaps[:3]]
        raise ValueError(missing_labels(shown, label, len(gaps), words))
    return {
        site: {
            name: labels[site] if name == label else numbers_if_all(cells)
            for name, cells in table.items()
        }
        for site, table in tables.items()
    }


def _listed(who: str, table: Table, schema: Schema, label: str | None) -> Table:
    """The columns that a schema lists; all others of the file are left out."""
    if not schema.columns:
        return table
    wanted = [
        *(column.name for column in schema.columns),
        *([label] if label is not None else LABELS),
    ]
    missing = [column.name for column in schema.inputs if column.name not in table]
    if missing:
        raise ValueError(
            f"site {quoted(who)} lacks the column {quoted(missing[0])} of the schema; it has {', '.join(table)}"
        )
    return {name: cells for name, cells in table.items() if name in wanted}


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
        return _parquet(file)
    raise ValueError(
        f"cannot read {file} as a table; expected a file ending in {', '.join(ENDINGS)}"
    )


def coded(values: np.ndarray, column: ColumnSchema) -> np.ndarray:
    """Numbers as they are, dates as days, categories as their place among the schema's; unknown ones get the code after the last."""
    values = numbers_if_all(values)
    if column.kind == "date":
        return days(cells_as_text(values), column)
    if column.kind != "category":
        numbers = _numbers(values, column.name)
        # infinity is a gap, as a warning says
        return np.where(np.abs(numbers) > LARGEST, np.nan, numbers)
    places = {name: i for i, name in enumerate(column.categories)}
    text = cells_as_text(values)
    return np.array(
        [np.nan if is_missing(cell) else places.get(cell, len(places)) for cell in text], np.float64
    )


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


def _parquet(file: Path) -> Table:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"reading {file} needs the package pyarrow, which is not installed; pip install pyarrow"
        ) from None
    try:
        table = parquet.read_table(file)
    except (ValueError, OSError) as error:  # pyarrow's errors are of these kinds
        raise ValueError(f"{file} is damaged or not a Parquet file ({error})") from None
    cells = {name: table.column(name).to_pylist() for name in table.column_names}
    return {
        name: spelled_column(["" if c is None else str(c) for c in values])
        for name, values in cells.items()
    }


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """One column over all sites; it is text if it is text anywhere."""
    numeric = all(part.dtype.kind in "fiu" for part in parts)
    return np.concatenate(parts if numeric else [cells_as_text(part) for part in parts])


def _numbers(values: np.ndarray, name: str) -> np.ndarray:
    try:
        return (
            np.array([np.nan if is_missing(v) else float(v) for v in values])
            if values.dtype.kind == "U"
            else values.astype(np.float64)
        )
    except ValueError:
        text = next(v for v in values if not is_missing(v) and not _is_number(v))
        raise ValueError(
            f"column {name} must hold numbers, found text such as {quoted(text)}"
        ) from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def by_site(table: Table, site: str | None, path: Path) -> dict[str, Table]:
    """One table of all sites, taken apart."""
    if site is None or site not in table:
        raise ValueError(
            f"{path} is one file: say which column names the site (site: COLUMN), one of {', '.join(table)}"
        )
    owner = _owners(table[site])
    if any(is_missing(o) for o in owner):
        raise ValueError(f"{path}: some rows name no {site}; every row needs its site")
    return {
        str(o): {n: v[owner == o] for n, v in table.items() if n != site}
        for o in sorted(set(owner))
    }


def _owners(column: np.ndarray) -> np.ndarray:
    """Return the site of each row; 01 and 1 are one site."""
    return cells_as_text(numbers_if_all(column))


def _same_columns(tables: Mapping[str, Table]) -> None:
    first, *others = tables
    for other in others:
        lacks, extra = (
            sorted(set(tables[first]) - set(tables[other])),
            sorted(set(tables[other]) - set(tables[first])),
        )
        if lacks or extra:
            said = [f"{other} lacks {', '.join(lacks)}"] * bool(lacks) + [
                f"{other} has also {', '.join(extra)}"
            ] * bool(extra)
            raise ValueError(
                f"sites differ in their columns: compared with {first}, {' and '.join(said)}; bring all sites to the same columns"
            )


def label_column(table: Table, label: str | None) -> str:
    found = [name for name in LABELS if name in table]
    if label is None and len(found) == 1:
        return found[0]
    if label is None or label not in table:
        raise ValueError(
            f"say which column is the label (label: COLUMN), one of {', '.join(table)}"
            + (f"; there is no {label}" if label else "")
        )
    return label

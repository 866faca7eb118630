"""Tables of a user's sites, read from files and repaired.

There is one CSV, NPZ or Parquet file per site, or one file with a column that names the site.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from equipoise.data.arrays.npz import check_sizes, named_columns, read_npz
from equipoise.data.findings import DataErrors, Finding
from equipoise.data.message_text import some
from equipoise.data.schema import Repairs, Schema
from equipoise.data.tables.csv_files import (
    Dialect,
    cells_as_text,
    is_missing,
    numbers_if_all,
    read_csv,
)
from equipoise.data.tables.parquet_files import read_parquet
from equipoise.data.tables.repairs import (
    Table,
    match_names,
    rename_columns,
    repair_cells,
    unmatched_repairs,
)
from equipoise.validation.names import checked_name, nearest, quoted
from equipoise.validation.regular_files import check_regular

ENDINGS = (".csv", ".npz", ".parquet")
HIDDEN = (".", "~$")  # such as .DS_Store, ._a.csv and the lock files of spreadsheets
MOST_COLUMNS = 60  # names of columns that a message lists


@dataclass(frozen=True)
class Origin:
    """The file of a site and, for each row of its table, the line or row of that file."""

    file: str
    rows: Sequence[int] | np.ndarray
    unit: str = "line"

    def of_row(self, row: int) -> str:
        """Return the file and line of a row, such as `boston.csv, line 17`."""
        return f"{self.file}, {self.unit} {self.rows[row]}"


@dataclass(frozen=True)
class Sites:
    """The tables of all sites, repaired as the schema says.

    Attributes:
        path: The folder or file that was read.
        tables: The columns of each site.
        dialects: Separator, encoding and decimal commas of each CSV file.
        arrays: True if the files hold the arrays x and y in place of named columns.
        origins: The file and lines of each site's rows.
        findings: Observations that a person should check.
        problems: Reasons why these tables cannot be used as they are.
        matched: Columns whose names differ in case or blanks only: name in a file -> name used.
    """

    path: Path
    tables: dict[str, Table]
    dialects: dict[str, Dialect]
    arrays: bool
    origins: dict[str, Origin] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()
    matched: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        """The file of each site, or the name of the data if there are none."""
        return {site: origin.file for site, origin in self.origins.items()}

    def of_row(self, row: int) -> str:
        """Return the file and line of a row, counted through all sites."""
        for site, table in self.tables.items():
            rows = row_count(table)
            if row < rows:
                return self.origins[site].of_row(row)
            row -= rows
        raise IndexError(row)


def row_count(table: Table) -> int:
    """Return the number of rows of a table; 0 if it has no column."""
    for cells in table.values():
        return len(cells)
    return 0


def site_files(folder: Path) -> list[Path]:
    """Return the site files of a folder, sorted by name.

    Raises:
        ValueError: If one of them is a pipe or a device: no site is left out silently.
    """
    if not folder.is_dir():
        return []
    candidates = []
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in ENDINGS and not path.name.startswith(HIDDEN):
            check_regular(path)
            candidates.append(path)
    return [path for path in candidates if path.is_file()]


def hidden_files(folder: Path) -> list[Path]:
    """Return the hidden files of a folder, which are never read as sites."""
    if not folder.is_dir():
        return []
    hidden = [path for path in folder.iterdir() if path.name.startswith(HIDDEN)]
    return sorted(path for path in hidden if path.is_file())


def read_sites(
    path: Path,
    site: str | None = None,
    schema: Schema | None = None,
    names: Sequence[str] = (),
    own_site: str | None = None,
    without: Sequence[str] = (),
) -> Sites:
    """Read every site's table and repair it.

    Args:
        path: A folder with one file per site, or one file.
        site: The column that names the site, if one file holds all sites.
        schema: The schema whose repairs are applied.
        names: Columns that must be recognised in addition to those of the schema.
        own_site: The name of the site whose file this is, if one file is that of one site.
        without: Sites that are left out; of a folder, their files are not read.

    Returns:
        The tables of all files that could be read; the other files are among the problems.

    Raises:
        ValueError: If no file can be read, or the sites of one file's rows are not known.
    """
    files = [path] if path.is_file() else site_files(path)
    if not files:
        raise ValueError(
            f"{path} holds no site files; expected one {', '.join(ENDINGS)} file per site"
        )
    if path.is_dir():
        remaining = without_sites([file.stem for file in files], without)
        files = [file for file in files if file.stem in remaining]
    check_sizes([file for file in files if file.suffix.lower() == ".npz"])
    if path.is_dir() and site is not None:
        raise ValueError(
            f"site: {site} is for one file that holds all sites; "
            f"{path} is a folder with one file per site"
        )
    sites = _read_files(files, sites_are_files=path.is_dir())
    if not sites.tables:
        raise DataErrors(sites.problems)
    sites = replace(sites, path=path)
    if own_site is not None and path.is_file():
        sites = _named(sites, own_site)
    if _holds_arrays(sites):
        return replace(sites, arrays=True)
    if own_site is None and path.is_file():
        renames = schema.rename if schema is not None else {}
        sites = split_by_site(sites, site, renames)
        remaining = without_sites(list(sites.tables), without)
        tables = {name: sites.tables[name] for name in remaining}
        sites = replace(
            sites, tables=tables, origins={name: sites.origins[name] for name in tables}
        )
    former_columns = (site,) if site else ()
    return with_repairs(sites, schema, names, former_columns)


def without_sites(sites: Sequence[str], without: Sequence[str]) -> list[str]:
    """Return the sites that remain after some have left.

    Raises:
        ValueError: If there is no such site, or none remains.
    """
    for name in without:
        if name not in sites:
            raise nearest("site under data.without", name, list(sites))
    remaining = [name for name in sites if name not in without]
    if not remaining:
        raise ValueError(
            f"data.without: expected at least one site that remains of {some(sites)}, got none; "
            "leave out fewer"
        )
    return remaining


def _named(sites: Sites, site: str) -> Sites:
    """Return the only table under the name of its site."""
    ((name, table),) = sites.tables.items()
    return replace(sites, tables={site: table}, origins={site: sites.origins[name]})


def read_own_table(file: Path, site: str, schema: Schema, names: Sequence[str] = ()) -> Sites:
    """Read the table of one site and repair it, without looking at other sites.

    Unlike with all sites together, a general repair may match nothing here: other sites may have
    the column or the cell.

    Args:
        file: The file of the site; its name does not matter.
        site: The name of the site.
        schema: The schema whose repairs are applied.
        names: Columns that must be recognised in addition to those of the schema.

    Raises:
        ValueError: If the file cannot be read.
    """
    sites = _read_files([file], sites_are_files=False)
    if not sites.tables:
        raise DataErrors(sites.problems)
    sites = _named(sites, site)
    if _holds_arrays(sites):
        return replace(sites, arrays=True)
    return with_repairs(sites, schema, names, own_site=site)


def _holds_arrays(sites: Sites) -> bool:
    """Return True if all files are NPZ files that hold an array x."""
    first_table = next(iter(sites.tables.values()))
    only_npz = all(file.lower().endswith(".npz") for file in sites.files.values())
    return only_npz and "x" in first_table


def _read_files(files: Sequence[Path], sites_are_files: bool) -> Sites:
    """Return the tables of all files that can be read; the others are among the problems."""
    sites = Sites(files[0], {}, {}, False)
    problems: list[str] = []
    for file in files:
        try:
            name = file.stem
            if sites_are_files:
                name = checked_name(name, "the site of a file")
            table = read_table(file, sites.dialects)
        except (ValueError, OSError) as error:
            problems.append(str(error))
            continue
        if name in sites.tables:
            problems.append(
                f"{file.parent}: two site files share a name, {quoted(name)}; "
                "a site's name is its file's name without the ending"
            )
            continue
        sites.tables[name] = table
        sites.origins[name] = origin_of(file.name, table, sites.dialects.get(file.name))
    return replace(sites, problems=tuple(problems))


def origin_of(file: str, table: Table, dialect: Dialect | None = None) -> Origin:
    """Return the lines of a text file, else rows counted from 1, as the origin of a table."""
    if dialect is not None and dialect.lines:
        return Origin(file, dialect.lines)
    return Origin(file, range(1, row_count(table) + 1), "row")


def read_table(file: Path, dialects: dict[str, Dialect] | None = None) -> Table:
    """Read the columns of one file.

    Args:
        file: A CSV, NPZ or Parquet file.
        dialects: A dictionary that receives the dialect of a CSV file, by the file's name.

    Returns:
        The columns: numbers as a float array with NaN for missing cells, others as text.

    Raises:
        ValueError: If the file cannot be read as a table.
    """
    check_regular(file)
    ending = file.suffix.lower()
    if ending == ".csv":
        table, dialect = read_csv(file)
        if dialects is not None:
            dialects[file.name] = dialect
        return table
    if ending == ".npz":
        return _read_npz_table(file)
    if ending == ".parquet":
        return read_parquet(file)
    raise ValueError(
        f"cannot read {file} as a table; expected a file ending in {', '.join(ENDINGS)}"
    )


def _read_npz_table(file: Path) -> Table:
    arrays = read_npz(file)
    shapes = {name: array.shape for name, array in arrays.items() if name != "feature_names"}
    one_length = len({shape[:1] for shape in shapes.values()}) == 1
    has_scalar = () in shapes.values()
    has_empty = any(math.prod(shape) == 0 for shape in shapes.values())
    if not one_length or has_scalar or has_empty:
        raise ValueError(
            f"{file}: expected arrays of one length with at least one sample, "
            f"got the shapes {quoted(shapes)}"
        )
    return named_columns(file, arrays)


def split_by_site(sites: Sites, site: str | None, rename: Mapping[str, str]) -> Sites:
    """Return one table of all sites, split by the column that names the site.

    Args:
        sites: One table.
        site: The column that names the site, by its name in the file or after `rename`.
        rename: Columns that the schema renames.

    Raises:
        ValueError: If there is no such column, no other one, or a row that names no site.
    """
    ((name, table),) = sites.tables.items()
    column = _site_column(table, site, rename)
    if column is None:
        raise ValueError(
            f"{sites.path} is one file: say which column names the site (site: COLUMN), "
            f"one of {some(table, MOST_COLUMNS)}"
        )
    if len(table) == 1:
        raise ValueError(
            f"{sites.path}: expected columns besides {quoted(column)}, which names the site, "
            "got none; add the label and the columns to learn from"
        )
    owners = cells_as_text(numbers_if_all(table[column]))  # 01 and 1 are the same site
    origin = sites.origins[name]
    for row, owner in enumerate(owners):
        if is_missing(str(owner)):
            raise ValueError(
                f"{sites.path}: some rows name no {site}, such as {origin.of_row(row)}; "
                "every row needs its site"
            )
    lines = np.asarray(origin.rows)
    tables = {}
    origins = {}
    for owner in sorted(set(map(str, owners))):
        rows = owners == owner
        tables[owner] = {key: cells[rows] for key, cells in table.items() if key != column}
        origins[owner] = replace(origin, rows=lines[rows])
    return replace(sites, tables=tables, origins=origins)


def _site_column(table: Table, site: str | None, rename: Mapping[str, str]) -> str | None:
    for column in table:
        if site in (column, rename.get(column, column)):
            return column
    return None


def with_repairs(
    sites: Sites,
    schema: Schema | None,
    names: Sequence[str] = (),
    former_columns: Sequence[str] = (),
    own_site: str | None = None,
) -> Sites:
    """Return the sites with the repairs of a schema, and columns matched by their names.

    Args:
        sites: The tables as the files have them.
        schema: The schema with the repairs; none for no repairs.
        names: Columns that must be recognised in addition to those of the schema.
        former_columns: Columns that were removed from the tables but may be named by the schema.
        own_site: The only site, if others are elsewhere: then only repairs of this site alone
            have to match something.

    Returns:
        The repaired tables; repairs that match nothing are among the problems.
    """
    schema = schema or Schema()
    problems = list(sites.problems)
    repairs = {site: schema.repairs_of(site) for site in sites.tables}
    renamed = _renamed(sites, repairs, problems)
    chosen = [column.name for column in schema.columns]
    chosen += [name for name in (schema.label, *names) if name is not None]
    files = sites.files
    matching = match_names(renamed, chosen, bool(schema.columns), files)
    tables = {
        site: rename_columns(table, matching.renames[site], files[site])
        for site, table in renamed.items()
    }
    problems += matching.problems
    expected = schema if own_site is None else schema.only_of_site(own_site)
    problems += unmatched_repairs(sites.tables, tables, expected, former_columns)
    commas = {site: _may_have_commas(sites.dialects.get(files[site])) for site in tables}
    is_one_file = len(set(files.values())) == 1
    tables, failed = repair_cells(tables, repairs, commas, is_one_file)
    problems += failed
    matched: dict[str, str] = {}
    for renames in matching.renames.values():
        matched.update(renames)
    return replace(
        sites,
        tables=tables,
        findings=(*sites.findings, *matching.findings),
        problems=tuple(problems),
        matched=matched,
    )


def _renamed(sites: Sites, repairs: Mapping[str, Repairs], problems: list[str]) -> dict[str, Table]:
    """Return tables with columns renamed by the schema; names that clash become problems."""
    renamed: dict[str, Table] = {}
    for site, table in sites.tables.items():
        try:
            renamed[site] = rename_columns(table, repairs[site].rename, sites.files[site])
        except ValueError as error:
            problems.append(str(error))
            renamed[site] = table
    return renamed


def read_new_rows(
    file: Path, schema: Schema, names: Sequence[str], site: str | None
) -> tuple[Table, Origin]:
    """Read rows for prediction, with the repairs of a schema.

    Unlike in training, a repair may match nothing: new rows need not have every value.

    Args:
        file: The file.
        schema: The schema of the run.
        names: The columns that are needed.
        site: The site whose own repairs are applied; none or another: the general ones.

    Returns:
        The table, and the file and lines of its rows.

    Raises:
        ValueError: If the file cannot be read, or two of its columns have one name.
    """
    dialects: dict[str, Dialect] = {}
    table = read_table(file, dialects)
    dialect = dialects.get(file.name)
    origin = origin_of(file.name, table, dialect)
    repairs = schema.repairs_of(site)
    table = rename_columns(table, repairs.rename, str(file))
    matching = match_names({file.name: table}, names, True, {file.name: str(file)})
    if matching.problems:
        raise DataErrors(matching.problems)
    for finding in matching.findings:
        logging.getLogger("equipoise").warning(finding.message)
    table = rename_columns(table, matching.renames[file.name], str(file))
    return repair_table(file.name, table, repairs, _may_have_commas(dialect)), origin


def repair_table(name: str, table: Table, repairs: Repairs, decimal_commas: bool = False) -> Table:
    """Return one table with gaps, values and factors of a schema applied.

    Args:
        name: The name of the table, for errors.
        table: The table, with the column names of the schema.
        repairs: The repairs.
        decimal_commas: True if numbers may have decimal commas.

    Raises:
        ValueError: If a column that has a factor holds text.
    """
    tables, failed = repair_cells(
        {name: table}, {name: repairs}, {name: decimal_commas}, one_file=True
    )
    if failed:
        raise DataErrors(failed)
    return tables[name]


def _may_have_commas(dialect: Dialect | None) -> bool:
    return dialect is not None and dialect.separator != ","

"""Repairs of tables by a schema: names of columns, gaps, values and units."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.data.findings import Finding
from equipoise.data.schema import Repairs, Schema
from equipoise.data.tables.csv_files import (
    cells_as_text,
    column_of,
    is_inexact_integer,
    numbers_if_all,
    spelled_column,
)
from equipoise.validation.names import nearest, quoted

Table = dict[str, np.ndarray]


@dataclass(frozen=True)
class Matching:
    """Columns whose names differ only in case or blanks from the name that is used for them.

    Attributes:
        renames: Per site, name in the file -> name that is used.
        findings: Observations that a person should check.
        problems: Columns that cannot be matched.
    """

    renames: Mapping[str, Mapping[str, str]]
    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()


def rename_columns(table: Table, names: Mapping[str, str], file: str) -> Table:
    """Return a table with columns renamed; names that it does not have are ignored.

    Args:
        table: The table.
        names: Old name -> new name.
        file: The file of the table, for errors.

    Raises:
        ValueError: If two columns would have the same name.
    """
    sources: dict[str, str] = {}
    for old in table:
        new = names.get(old, old)
        if new in sources:
            raise ValueError(
                f"{file}: the columns {quoted(sources[new])} and {quoted(old)} would both be "
                f"{quoted(new)}; give one of them another name under `rename` in the schema"
            )
        sources[new] = old
    return {new: table[old] for new, old in sources.items()}


def repair_cells(
    tables: Mapping[str, Table],
    repairs: Mapping[str, Repairs],
    decimal_commas: Mapping[str, bool],
    one_file: bool,
) -> tuple[dict[str, Table], list[str]]:
    """Apply gaps, values and factors of a schema to the tables of sites.

    Args:
        tables: The tables, by site; their columns have the names of the schema.
        repairs: The repairs of every site.
        decimal_commas: True for a site whose numbers may have decimal commas.
        one_file: True if all sites come from one file, so that a column holds numbers
            everywhere or nowhere.

    Returns:
        The repaired tables, and a sentence for each column with a factor that holds text. Such a
        column has no factor applied; all other repairs are, so that they cause no further errors.
    """
    result = {site: dict(table) for site, table in tables.items()}
    groups = [list(tables)] if one_file else [[site] for site in tables]
    for group in groups:
        for column in _repaired_columns(repairs, group):
            sites = [site for site in group if column in tables[site]]
            if not sites:
                continue
            spellings = _spellings_of(tables, column)
            parts = [
                _replaced(result[site][column], repairs[site], column, spellings) for site in sites
            ]
            cells = spelled_column(np.concatenate(parts).tolist(), decimal_commas[sites[0]])
            ends = np.cumsum([len(part) for part in parts])[:-1]
            for site, part in zip(sites, np.split(cells, ends), strict=True):
                result[site][column] = part
    problems = []
    for site, table in result.items():
        for column, factor in repairs[site].factors.items():
            if column not in table:
                continue
            try:
                table[column] = _multiplied(table[column], factor, column, site)
            except ValueError as error:
                problems.append(str(error))
    return result, problems


def unmatched_repairs(
    raw: Mapping[str, Table],
    renamed: Mapping[str, Table],
    schema: Schema,
    former_columns: Sequence[str],
) -> list[str]:
    """Return a sentence for every repair that matches no site, column or cell.

    Args:
        raw: The tables as the files have them.
        renamed: The same tables with the names of the schema.
        schema: The schema with the repairs.
        former_columns: Columns that were removed but may be renamed, such as the one that names
            the site.
    """
    problems = [
        str(nearest("site under `sites` of the schema", site, list(raw)))
        for site in schema.sites
        if site not in raw
    ]
    scopes: list[tuple[str, Repairs, list[str]]] = [("", schema, list(raw))]
    scopes += [
        (f" of site {quoted(site)}", repairs, [site])
        for site, repairs in schema.sites.items()
        if site in raw
    ]
    for scope, repairs, sites in scopes:
        sources = _columns([raw[site] for site in sites])
        for column, name in repairs.rename.items():
            if column not in sources and not {column, name} & set(former_columns):
                problems.append(
                    str(nearest(f"column under `rename`{scope} in the schema", column, sources))
                )
        problems += _unmatched_cells(scope, repairs, [renamed[site] for site in sites])
    return problems


def match_names(
    tables: Mapping[str, Table], chosen: Sequence[str], only_chosen: bool, files: Mapping[str, str]
) -> Matching:
    """Match columns whose names differ only in case or blanks between sites.

    Args:
        tables: The tables, by site.
        chosen: Names that the user or the schema chose, such as the label.
        only_chosen: True to leave other columns as they are, since they are not used.
        files: The file of every site, for messages.
    """
    renames: dict[str, dict[str, str]] = {site: {} for site in tables}
    findings: list[Finding] = []
    problems: list[str] = []
    chosen_keys = {name_key(name) for name in chosen}
    for key, names in _spellings_by_key(tables, chosen).items():
        used = _used_name(names, chosen)
        if len(names) < 2 or used is None or (only_chosen and key not in chosen_keys):
            continue
        candidates = {
            site: table for site, table in tables.items() if not (only_chosen and used in table)
        }
        doubled = _sites_with_several(candidates, names)
        if doubled and all(name in table for name in names for table in candidates.values()):
            findings.append(_two_columns(names))
        elif doubled:
            problems.append(_clash(files[doubled[0]], candidates[doubled[0]], names))
        else:
            for name in names:
                sites = [site for site, table in candidates.items() if name in table]
                if name != used and sites:
                    for site in sites:
                        renames[site][name] = used
                    findings.append(_match_finding(name, used, sites, files))
    return Matching(renames, tuple(findings), tuple(problems))


def _sites_with_several(tables: Mapping[str, Table], names: Iterable[str]) -> list[str]:
    """Return the sites that have more than one of these columns."""
    return [site for site, table in tables.items() if sum(name in table for name in names) > 1]


def _two_columns(names: Iterable[str]) -> Finding:
    first, second = list(names)[:2]
    return Finding(
        f"the columns {quoted(first)} and {quoted(second)} differ only in case or blanks and are "
        "read as two columns; leave one out of the schema if they are the same",
        column=first,
    )


def _match_finding(name: str, used: str, sites: Sequence[str], files: Mapping[str, str]) -> Finding:
    shown = ", ".join(dict.fromkeys(files[site] for site in sites[:5]))
    more = f" and {len(sites) - 5} more" if len(sites) > 5 else ""
    return Finding(
        f"{shown}{more}: the column {quoted(name)} is read as {quoted(used)}; "
        f"the names differ only in case or blanks. Keep it with `rename` in a schema, "
        "or give the column another name there",
        column=used,
        sites=tuple(sites),
        repair={"rename": {name: used}},
        certain=True,
    )


def name_key(name: str) -> str:
    """Return a name without case, blanks and different Unicode forms of the same letter."""
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())


def _spellings_by_key(
    tables: Mapping[str, Table], chosen: Sequence[str]
) -> dict[str, Counter[str]]:
    """Return the spellings of a name, with the number of sites that use each, by key."""
    spellings: dict[str, Counter[str]] = {}
    for table in tables.values():
        for name in table:
            spellings.setdefault(name_key(name), Counter())[name] += 1
    for name in chosen:
        if name_key(name) in spellings:
            spellings[name_key(name)][name] += (
                0  # a chosen name counts as a spelling that no site uses
            )
    return spellings


def _clash(file: str, table: Table, names: Iterable[str]) -> str:
    first, second = [name for name in names if name in table][:2]
    return (
        f"{file}: the columns {quoted(first)} and {quoted(second)} differ only in case or blanks, "
        "and other sites have one of them, so they cannot be matched; "
        "give one of them another name under `rename` in the schema"
    )


def _used_name(names: Counter[str], chosen: Sequence[str]) -> str | None:
    """Return the chosen name, else the most frequent; None if two of them were chosen."""
    chosen_names = [name for name in names if name in chosen]
    if len(chosen_names) > 1:
        return None
    return chosen_names[0] if chosen_names else names.most_common(1)[0][0]


class _CellMap:
    """A mapping of cells by their text, or by their number: 0 matches 0.0.

    An entry such as 01 matches only 01 if files have such cells, since it may not mean 1.

    Args:
        entries: Cell -> value.
        spellings: The cells of the files that are kept as text.
    """

    def __init__(self, entries: Mapping[str, str], spellings: Collection[str] = ()) -> None:
        self.by_text = dict(entries)
        self.by_number: dict[str, str] = {}
        for cell, value in entries.items():
            number = _number_text(cell)
            if number == cell:
                self.by_number[number] = value
            elif number is not None and cell not in spellings:
                self.by_number.setdefault(number, value)

    def get(self, cell: str) -> str | None:
        """Return the value of a cell; None if there is none."""
        if cell in self.by_text:
            return self.by_text[cell]
        number = _number_text(cell)
        return self.by_number.get(number) if number is not None else None


def _number_text(cell: str) -> str | None:
    """Return a number as text that is the same for 0, 0.0 and 0,0; None for other cells."""
    if is_inexact_integer(cell):
        return None
    number = column_of([cell], decimal_commas=True)
    if number.dtype.kind != "f":
        return None
    return str(cells_as_text(number)[0]) or None


def _repaired_columns(repairs: Mapping[str, Repairs], sites: Sequence[str]) -> list[str]:
    """Return the columns whose cells are replaced at one of these sites."""
    columns: dict[str, None] = {}
    for site in sites:
        columns.update(dict.fromkeys(repairs[site].missing))
        columns.update(dict.fromkeys(repairs[site].values))
    return list(columns)


def _spellings_of(tables: Mapping[str, Table], column: str) -> set[str]:
    """Return the different cells of a column that sites keep as text."""
    spellings: set[str] = set()
    for table in tables.values():
        if column in table and table[column].dtype.kind == "U":
            spellings.update(map(str, np.unique(table[column])))
    return spellings


def _replaced(
    cells: np.ndarray, repairs: Repairs, column: str, spellings: Collection[str]
) -> np.ndarray:
    """Return the cells of a column as text, with gaps emptied and values replaced."""
    gaps = _CellMap(dict.fromkeys(repairs.missing.get(column, ()), ""), spellings)
    values = _CellMap(repairs.values.get(column, {}), spellings)
    different, index = np.unique(cells_as_text(cells), return_inverse=True)
    new = []
    for cell in map(str, different):
        replacement = gaps.get(cell)
        if replacement is None:
            replacement = values.get(cell)
        new.append(cell if replacement is None else replacement)
    return np.array(new, dtype=np.str_)[index.reshape(-1)]


def _multiplied(cells: np.ndarray, factor: float, column: str, site: str) -> np.ndarray:
    cells = numbers_if_all(cells)
    if cells.dtype.kind not in "fiu":
        text = next(cell for cell in map(str, cells) if column_of([cell]).dtype.kind != "f")
        raise ValueError(
            f"site {quoted(site)}, column {quoted(column)}: `factors` of the schema expects "
            f"numbers, got {quoted(text)}; list such cells under `missing`, "
            "or map them under `values`"
        )
    return np.asarray(cells * factor)


def _columns(tables: Iterable[Table]) -> list[str]:
    return list(dict.fromkeys(name for table in tables for name in table))


def _unmatched_cells(scope: str, repairs: Repairs, tables: Sequence[Table]) -> Iterator[str]:
    """Yield a sentence for every column or cell of repairs that no table has."""
    known = _columns(tables)
    entries = [("missing", column, list(cells)) for column, cells in repairs.missing.items()]
    entries += [("values", column, list(cells)) for column, cells in repairs.values.items()]
    entries += [("factors", column, []) for column in repairs.factors]
    for key, column, cells in entries:
        if column not in known:
            yield str(nearest(f"column under `{key}`{scope} in the schema", column, known))
            continue
        if not cells:
            continue
        in_files: set[str] = set()
        for table in tables:
            if column in table:
                in_files.update(map(str, np.unique(cells_as_text(table[column]))))
        present = _CellMap(dict.fromkeys(in_files, ""))
        for cell in cells:
            if present.get(cell) is None:
                entry = f"cell of column {quoted(column)} under `{key}`{scope} in the schema"
                yield str(nearest(entry, cell, sorted(in_files)))

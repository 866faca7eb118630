"""Repairs that a schema makes to the tables of sites: names of columns, gaps, values and units."""

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
    """Columns whose names differ only in case or blanks from the name that is used for them."""

    renames: Mapping[str, Mapping[str, str]]  # per site, name in the file: name that is used
    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()


def rename_columns(table: Table, names: Mapping[str, str], where: str) -> Table:
    """Return a table with columns renamed; names that it does not have are passed over.

    Raises:
        ValueError: Two columns would have the same name.
    """
    sources: dict[str, str] = {}
    for old in table:
        new = names.get(old, old)
        if new in sources:
            raise ValueError(
                f"{where}: the columns {quoted(sources[new])} and {quoted(old)} would both be "
                f"{quoted(new)}; give one of them another name under `rename` in the schema"
            )
        sources[new] = old
    return {new: table[old] for new, old in sources.items()}


def repair_cells(
    tables: Mapping[str, Table],
    repairs: Mapping[str, Repairs],
    decimal_commas: Mapping[str, bool],
    one_file: bool,
) -> dict[str, Table]:
    """Return the tables of sites with gaps, values and factors of a schema applied.

    Args:
        tables: The tables, by site; their columns have the names of the schema.
        repairs: The repairs of every site.
        decimal_commas: Whether numbers of a site may have decimal commas.
        one_file: All sites come from one file, so a column is numbers everywhere or nowhere.

    Raises:
        ValueError: A column that has a factor holds text.
    """
    result = {site: dict(table) for site, table in tables.items()}
    for group in [list(tables)] if one_file else [[site] for site in tables]:
        for column in _touched(repairs, group):
            holders = [site for site in group if column in tables[site]]
            spelled = _spelled(tables, column)
            texts = [
                _replaced(result[site][column], repairs[site], column, spelled) for site in holders
            ]
            if not holders:
                continue
            cells = spelled_column(np.concatenate(texts).tolist(), decimal_commas[holders[0]])
            ends = np.cumsum([len(text) for text in texts])[:-1]
            for site, part in zip(holders, np.split(cells, ends), strict=True):
                result[site][column] = part
    for site, table in result.items():
        for column, factor in repairs[site].factors.items():
            if column in table:
                table[column] = _multiplied(table[column], factor, column, site)
    return result


def unmatched_repairs(
    raw: Mapping[str, Table], renamed: Mapping[str, Table], schema: Schema, others: Sequence[str]
) -> list[str]:
    """Return a sentence for every repair that matches no site, column or cell.

    Args:
        raw: The tables as the files have them.
        renamed: The same tables with the names of the schema.
        schema: The schema with the repairs.
        others: Further columns that may be renamed, such as the one that names the site.
    """
    problems = [
        str(nearest("site under `sites` of the schema", site, list(raw)))
        for site in schema.sites
        if site not in raw
    ]
    scopes: list[tuple[str, Repairs, list[str]]] = [("", schema, list(raw))]
    scopes += [
        (f" of site {quoted(site)}", own, [site])
        for site, own in schema.sites.items()
        if site in raw
    ]
    for scope, repairs, sites in scopes:
        sources = _columns([raw[site] for site in sites])
        for column, name in repairs.rename.items():
            if column not in sources and column not in others and name not in others:
                problems.append(
                    str(nearest(f"column under `rename`{scope} in the schema", column, sources))
                )
        problems += _unmatched_cells(scope, repairs, [renamed[site] for site in sites])
    return problems


def match_names(
    tables: Mapping[str, Table], wanted: Sequence[str], only_wanted: bool, files: Mapping[str, str]
) -> Matching:
    """Match columns whose names differ only in case or blanks between sites.

    Args:
        tables: The tables, by site.
        wanted: Names that somebody chose: of the schema, the label.
        only_wanted: Leave other columns as they are; they are not used.
        files: The file of every site, for messages.
    """
    renames: dict[str, dict[str, str]] = {site: {} for site in tables}
    findings: list[Finding] = []
    problems: list[str] = []
    chosen = {_key(name) for name in wanted}
    for key, names in _spellings(tables, wanted).items():
        used = _used_name(names, wanted)
        if len(names) < 2 or used is None or (only_wanted and key not in chosen):
            continue
        matched = {s: table for s, table in tables.items() if not (only_wanted and used in table)}
        doubled = [s for s, table in matched.items() if sum(name in table for name in names) > 1]
        if doubled and all(name in table for name in names for table in matched.values()):
            findings.append(_two_columns(names))
            continue
        if doubled:
            problems.append(_clash(files[doubled[0]], matched[doubled[0]], names))
            continue
        for name in names:
            holders = [site for site, table in matched.items() if name in table]
            if name == used or not holders:
                continue
            for site in holders:
                renames[site][name] = used
            findings.append(_match_finding(name, used, holders, files))
    return Matching(renames, tuple(findings), tuple(problems))


def _two_columns(names: Iterable[str]) -> Finding:
    first, second = list(names)[:2]
    return Finding(
        f"the columns {quoted(first)} and {quoted(second)} differ only in case or blanks and are "
        "read as two columns; leave one out of the schema if they are the same",
        column=first,
    )


def _match_finding(
    name: str, used: str, holders: Sequence[str], files: Mapping[str, str]
) -> Finding:
    shown = ", ".join(dict.fromkeys(files[site] for site in holders[:5]))
    more = f" and {len(holders) - 5} more" if len(holders) > 5 else ""
    return Finding(
        f"{shown}{more}: the column {quoted(name)} is read as {quoted(used)}; "
        f"the names differ only in case or blanks. Keep it with `rename` in a schema, "
        "or give the column another name there",
        column=used,
        sites=tuple(holders),
        repair={"rename": {name: used}},
        certain=True,
    )


def _key(name: str) -> str:
    """A name without case, blanks and the ways in which Unicode writes the same letter."""
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())


def _spellings(tables: Mapping[str, Table], wanted: Sequence[str]) -> dict[str, Counter[str]]:
    """How many sites write a name in which way, by the name without case and blanks."""
    spellings: dict[str, Counter[str]] = {}
    for table in tables.values():
        for name in table:
            spellings.setdefault(_key(name), Counter())[name] += 1
    for name in wanted:
        if _key(name) in spellings:
            spellings[_key(name)][name] += 0
    return spellings


def _clash(file: str, table: Table, names: Iterable[str]) -> str:
    first, second = [name for name in names if name in table][:2]
    return (
        f"{file}: the columns {quoted(first)} and {quoted(second)} differ only in case or blanks, "
        "and other sites have one of them, so they cannot be matched; "
        "give one of them another name under `rename` in the schema"
    )


def _used_name(names: Counter[str], wanted: Sequence[str]) -> str | None:
    """The name that somebody chose, else the most frequent; none if two are used side by side."""
    chosen = [name for name in names if name in wanted]
    if len(chosen) > 1:
        return None
    return chosen[0] if chosen else names.most_common(1)[0][0]


class _Cells:
    """Finds cells by their text, or by their number: 0 finds 0.0.

    An entry such as 01 finds only 01 if files have such cells, since they may not mean 1.
    """

    def __init__(self, entries: Mapping[str, str], spelled: Collection[str] = ()) -> None:
        self.by_text = dict(entries)
        self.by_number: dict[str, str] = {}
        for cell, value in entries.items():
            number = _number_text(cell)
            if number == cell:
                self.by_number[number] = value
            elif number is not None and cell not in spelled:
                self.by_number.setdefault(number, value)

    def get(self, cell: str) -> str | None:
        if cell in self.by_text:
            return self.by_text[cell]
        number = _number_text(cell)
        return self.by_number.get(number) if number is not None else None


def _number_text(cell: str) -> str | None:
    """A cell that is a number as text that is the same for 0, 0.0 and 0,0."""
    if is_inexact_integer(cell):
        return None
    number = column_of([cell], decimal_commas=True)
    return str(cells_as_text(number)[0]) or None if number.dtype.kind == "f" else None


def _touched(repairs: Mapping[str, Repairs], sites: Sequence[str]) -> list[str]:
    """The columns whose cells are replaced at one of these sites."""
    return list(
        dict.fromkeys(
            column for site in sites for column in (*repairs[site].missing, *repairs[site].values)
        )
    )


def _spelled(tables: Mapping[str, Table], column: str) -> set[str]:
    """The different cells of a column that sites keep as text."""
    texts = [table[column] for table in tables.values() if column in table]
    return {str(cell) for cells in texts if cells.dtype.kind == "U" for cell in np.unique(cells)}


def _replaced(
    cells: np.ndarray, repairs: Repairs, column: str, spelled: Collection[str]
) -> np.ndarray:
    """The cells of a column as text, with gaps emptied and values replaced."""
    gaps = _Cells(dict.fromkeys(repairs.missing.get(column, ()), ""), spelled)
    values = _Cells(repairs.values.get(column, {}), spelled)
    found, place = np.unique(cells_as_text(cells), return_inverse=True)
    new = []
    for cell in map(str, found):
        replaced = gaps.get(cell)
        if replaced is None:
            replaced = values.get(cell)
        new.append(cell if replaced is None else replaced)
    return np.array(new, dtype=np.str_)[place.reshape(-1)]


def _multiplied(cells: np.ndarray, factor: float, column: str, site: str) -> np.ndarray:
    cells = numbers_if_all(cells)
    if cells.dtype.kind not in "fiu":
        text = next(cell for cell in map(str, cells) if column_of([cell]).dtype.kind != "f")
        raise ValueError(
            f"site {quoted(site)}, column {quoted(column)}: `factors` of the schema expects "
            f"numbers, got {quoted(text)}; list such cells under `missing`, or map them under `values`"
        )
    return np.asarray(cells * factor)


def _columns(tables: Iterable[Table]) -> list[str]:
    return list(dict.fromkeys(name for table in tables for name in table))


def _unmatched_cells(scope: str, repairs: Repairs, tables: Sequence[Table]) -> Iterator[str]:
    known = _columns(tables)
    entries = [("missing", column, list(cells)) for column, cells in repairs.missing.items()]
    entries += [("values", column, list(cells)) for column, cells in repairs.values.items()]
    entries += [("factors", column, []) for column in repairs.factors]
    for key, column, cells in entries:
        if column not in known:
            yield str(nearest(f"column under `{key}`{scope} in the schema", column, known))
            continue
        parts = [cells_as_text(table[column]) for table in tables if column in table]
        found = sorted({str(cell) for part in parts for cell in np.unique(part)}) if cells else []
        present = _Cells(dict.fromkeys(found, ""))
        for cell in cells:
            if present.get(cell) is None:
                what = f"cell of column {quoted(column)} under `{key}`{scope} in the schema"
                yield str(nearest(what, cell, found))

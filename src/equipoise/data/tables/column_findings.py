"""Columns that would be read wrongly: other codings, signs in numbers, numbers that are none, leaks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from equipoise.data.findings import Finding
from equipoise.data.tables.cell_numbers import is_date, is_number
from equipoise.data.tables.csv_files import cells_as_text, is_missing
from equipoise.data.tables.finding_text import (
    Columns,
    Counts,
    as_yaml,
    codings,
    counts_of,
    in_quotes,
    some,
    total_of,
)
from equipoise.data.tables.label_findings import (
    is_truth,
    nearly_equal,
    same_text,
    truth,
)
from equipoise.data.tables.row_findings import cell_keys
from equipoise.data.tables.schema_inference import ENOUGH, numbers_rows
from equipoise.validation.names import quoted

FEW = 10  # values of a category up to which codings are compared
MOST_MAPPED = 50  # values up to which a mapping is proposed
SEX = ({"f", "female", "w", "frau", "weiblich", "woman"}, {"m", "male", "mann", "männlich", "man"})
_ZIP = re.compile(r"(?:^|[^a-z])(?:zip|plz|postcode|postal)|zipcode|postleitzahl|postalcode")
_UNNAMED = re.compile(r"unnamed: ?\d+|index|")
_NUMBERED = re.compile(
    r"(?:kunden|patient(?:en)?|customer|user|case|fall|person|subject|client|sample|record|visit|row|"
    r"item|order|account|konto)s?[-_ ]?(?:nr|no|num|id|nummer|number|key)"
)
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)"
_LONGEST = 40  # characters of a number with its unit
_UNIT = (
    r"mmhg|kpa|kg|g|mg|µg|ug|lbs?|cm|mm|m|in|inch|ft|ml|dl|l|(?:m|µ|u|n|k)?g/d?l|(?:m|µ|u|n)?mol/l|"
    r"bpm|years?|yrs?|y|months?|days?|hours?|h|min|ms|s|°? ?[cf]|kg/m[2²]|m[2²³3]|i?u/m?l|kcal|hz"
)
_SIGNS = {
    "a currency sign": re.compile(rf"[$€£¥]\s*{_NUMBER}|{_NUMBER}\s*[$€£¥]"),
    "a per cent sign": re.compile(rf"{_NUMBER}\s*%"),
    "commas between thousands": re.compile(r"[-+$€£¥]*\d{1,3}(?:,\d{3})+(?:\.\d+)?"),
    "a decimal comma": re.compile(r"[-+]?\d+,\d+"),
    "a unit": re.compile(rf"{_NUMBER}\s*(?:{_UNIT})", re.IGNORECASE),
}


def find_coding(columns: Columns, name: str, files: Mapping[str, str]) -> list[Finding]:
    """Return values of a category that sites code differently, or spell differently.

    Args:
        columns: The cells of each site.
        name: The column.
        files: The file of each site.

    Returns:
        At most one finding on codings, and one for each group of nearly equal values.
    """
    if all(cells.dtype.kind in "fiu" for cells in columns.values()):
        return _find_shifted(columns, name, files)
    counts = {site: own for site, own in counts_of(columns).items() if own}
    total = total_of(counts)
    other = _other_coding(counts, name, files)
    if other is not None:
        return [other]
    if sum(total.values()) >= ENOUGH and 2 * len(total) > sum(total.values()):
        return []  # names of rows, or free text
    return nearly_equal(counts, name, f"column {quoted(name)}: the categories")


def find_signs(columns: Columns, name: str, files: Mapping[str, str]) -> list[Finding]:
    """Return numbers that are read as text because of a sign, such as `$5` or `5 mmHg`.

    Args:
        columns: The cells of each site.
        name: The column.
        files: The file of each site.

    Returns:
        At most one finding, with a mapping to plain numbers if there are few different cells.
    """
    texts = {site: cells for site, cells in columns.items() if cells.dtype.kind not in "fiu"}
    counts = total_of(counts_of(texts))
    found = {cell: sign for cell in counts if (sign := _sign(cell)) is not None}
    plain = [cell for cell in counts if is_number(cell)]
    if not found or len(found) + len(plain) < len(counts):
        return []
    sign = Counter(found.values()).most_common(1)[0][0]
    where = [files[site] for site, cells in texts.items() if not found.keys().isdisjoint(cells)]
    start = (
        f"column {quoted(name)} is not read as numbers because of {sign} in cells such as "
        f"{', '.join(quoted(cell) for cell in list(found)[:3])} ({some(where)})"
    )
    if len(found) > MOST_MAPPED:
        return [Finding(f"{start}; write plain numbers in the file", name)]
    comma = "." if "a decimal comma" in found.values() else ""
    values = {cell: _plain_number(cell, comma) for cell in found}
    # A saved schema has the kind that the column has without the repair.
    repair = {"values": {name: values}, **_kind(name, "number")}
    shown = {"values": {name: dict(list(values.items())[:3])}}
    more = ", ..." if len(found) > 3 else ""
    message = f"{start}; write plain numbers, or map them in the schema: {as_yaml(shown)}{more}"
    return [Finding(message, name, repair=repair)]


def find_kind(columns: Columns, name: str, files: Mapping[str, str]) -> list[Finding]:
    """Return numbers that are no quantities: row numbers, dates such as 20240131, zip codes.

    Args:
        columns: The numbers of each site, NaN for gaps.
        name: The column.
        files: The file of each site.

    Returns:
        At most one finding, with the kind to give to the column.
    """
    numbers = np.concatenate([np.asarray(cells, np.float64) for cells in columns.values()])
    finite = numbers[np.isfinite(numbers)]
    if len(finite) < ENOUGH or not (finite == np.floor(finite)).all():
        return []
    shown = ", ".join(f"{number:.0f}" for number in finite[:3])
    start = f"column {quoted(name)} (values such as {shown} in {next(iter(files.values()))})"
    if _are_dates(finite):
        repair = _kind(name, "date", formats=["%Y%m%d"])
        message = f"{start} looks like dates; as numbers they are not days apart. "
        return [
            Finding(
                f"{message}Give it the kind date in a schema: {as_yaml(repair)}",
                name,
                repair=repair,
            )
        ]
    if _ZIP.search(name.casefold()) and finite.min() >= 0 and len(np.unique(finite)) > 2:
        repair = _kind(name, "category" if len(np.unique(finite)) <= FEW else "identifier")
        message = f"{start} looks like zip codes, which are names and not quantities. "
        return [
            Finding(
                f"{message}Give it another kind in a schema: {as_yaml(repair)}", name, repair=repair
            )
        ]
    owners = np.repeat(np.arange(len(columns)), [len(cells) for cells in columns.values()])
    if numbers_rows(name, numbers, owners):
        return []  # left out already, and said so
    if _tells_rows_apart(name, columns):
        repair = _kind(name, "identifier")
        message = f"{start} looks like an identifier (about one whole number per row). "
        return [Finding(f"{message}If it is, leave it out: {as_yaml(repair)}", name, repair=repair)]
    return []


@dataclass(frozen=True)
class Target:
    """The label of all rows, site after site."""

    column: str
    # Numbers to predict, or the place of each row's class in `classes`.
    values: np.ndarray
    classes: tuple[str, ...] = ()


def find_leak(columns: Columns, name: str, target: Target) -> list[Finding]:
    """Return a column that tells the label: a copy of it, or values that each have one label.

    Args:
        columns: The cells of each site.
        name: The column.
        target: The label of the same rows.

    Returns:
        At most one finding.
    """
    how = _determines(columns, target) if target.classes else _copies(columns, target.values)
    if how is None:
        return []
    repair = _kind(name, "identifier")
    message = (
        f"column {quoted(name)} {how} the label column {in_quotes(target.column)}: a model would "
        f"copy it. If it is not known before the label is, leave it out: {as_yaml(repair)}"
    )
    return [Finding(message, name, repair=repair)]


def _kind(name: str, kind: str, **more: object) -> dict[str, object]:
    return {"columns": [{"name": name, "kind": kind, **more}]}


def _find_shifted(columns: Columns, name: str, files: Mapping[str, str]) -> list[Finding]:
    """Return two numbers at every site that are not the same two, such as 0/1 and 1/2."""
    values = {}
    for site, cells in columns.items():
        finite = cells[np.isfinite(np.asarray(cells, np.float64))]
        distinct = np.unique(finite)
        if len(distinct) != 2 or len(finite) < ENOUGH:
            return []
        values[site] = set(map(str, cells_as_text(distinct)))
    if len(set().union(*values.values())) < 3:
        return []
    message = (
        f"column {quoted(name)} has two values at every site, but not the same: {codings(values, files)}. "
        f"If they mean the same, map them in the schema: {_example(values, name)}"
    )
    return [Finding(message, name)]


def _example(values: Mapping[str, set[str]], name: str) -> str:
    site, own = next(iter(values.items()))
    return as_yaml({"sites": {site: {"values": {name: dict.fromkeys(sorted(own), "...")}}}})


def _other_coding(counts: Counts, name: str, files: Mapping[str, str]) -> Finding | None:
    """Return a finding if two sites have few values each and none in common."""
    names = {site: set(own) for site, own in counts.items()}
    groups = {frozenset(own) for own in names.values()}
    if len(groups) < 2 or any(len(own) > FEW for own in groups):
        return None
    apart = any(
        not one & other and min(len(one), len(other)) > 1 for one in groups for other in groups
    )
    if not apart:
        return None
    mapping, certain = _category_mapping(set().union(*groups))
    if not mapping and not _numbers_against_words(groups):
        return None
    start = f"column {quoted(name)} is coded differently between sites: {codings(names, files)}."
    if not mapping:
        return Finding(f"{start} Map them in the schema: {_example(names, name)}", name)
    repair = {"values": {name: mapping}}
    sure = "" if certain else " if that is what they mean"
    message = f"{start} Map them in the schema{sure}: {as_yaml(repair)}"
    return Finding(message, name, repair=repair, certain=certain)


def _category_mapping(names: Collection[str]) -> tuple[dict[str, str], bool]:
    """Return a mapping to one coding, and if it is certain; empty if none is known."""
    keys = {name: same_text(name) for name in sorted(names)}
    if is_truth(names):
        return {name: truth(name) for name in keys if name != truth(name)}, False
    women, men = ([name for name in keys if keys[name] in words] for words in SEX)
    numbers = sorted((name for name in keys if is_number(name)), key=float)
    if women and men and len(women) + len(men) + len(numbers) == len(keys):
        # That the smaller number is female is common, and no more than that.
        female, male = numbers if len(numbers) == 2 else (women[0], men[0])
        mapping = {**dict.fromkeys(women, female), **dict.fromkeys(men, male)}
        return {old: new for old, new in mapping.items() if old != new}, False
    best: dict[str, str] = {}
    for name, key in keys.items():
        best.setdefault(key, name)
    return {name: best[key] for name, key in keys.items() if name != best[key]}, True


def _numbers_against_words(groups: Collection[frozenset[str]]) -> bool:
    numbers = any(all(map(is_number, own)) for own in groups)
    words = any(not any(map(str.isdigit, "".join(own))) for own in groups)
    return numbers and words


def _sign(cell: str) -> str | None:
    if len(cell) > _LONGEST:
        return None
    return next((sign for sign, form in _SIGNS.items() if form.fullmatch(cell)), None)


def _plain_number(cell: str, comma: str) -> str:
    """
    >>> _plain_number("$1,234", ""), _plain_number("1,5", "."), _plain_number("5 mmHg", "")
    ('1234', '1.5', '5')
    """
    match = re.search(_NUMBER, cell.replace(",", comma))
    assert match is not None  # a sign was found around a number
    return match.group()


def _are_dates(numbers: np.ndarray) -> bool:
    """Tell if whole numbers are dates such as 20240131."""
    if numbers.min() < 19000101 or numbers.max() > 21001231:
        return False
    distinct = np.unique(numbers)
    return len(distinct) > 2 and all(is_date(f"{number:.0f}", "%Y%m%d") for number in distinct)


def _tells_rows_apart(name: str, columns: Columns) -> bool:
    """Tell if nearly every row of a site has its own number, and the name or the range says so."""
    sites = [cells[np.isfinite(np.asarray(cells, np.float64))] for cells in columns.values()]
    sites = [cells for cells in sites if len(cells) >= ENOUGH]
    rows = sum(map(len, sites))
    if not rows or 10 * sum(len(np.unique(cells)) for cells in sites) < 9 * rows:
        return False
    low = name.strip().casefold()
    if _UNNAMED.fullmatch(low) or _NUMBERED.search(low):
        return True
    if all(cells.min() >= 1900 and cells.max() <= 2100 for cells in sites):
        return False  # years
    return all(map(_is_range, sites)) or _is_range(np.concatenate(sites))


def _is_range(cells: np.ndarray) -> bool:
    """Tell if whole numbers are those from the lowest to the highest, each once, in any order."""
    return bool(len(np.unique(cells)) == len(cells) == cells.max() - cells.min() + 1)


def _copies(columns: Columns, y: np.ndarray) -> str | None:
    """Say how a column of numbers follows from the number to predict."""
    if any(cells.dtype.kind not in "fiu" for cells in columns.values()):
        return None
    x = np.concatenate([np.asarray(cells, np.float64) for cells in columns.values()])
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < ENOUGH or x.min() == x.max() or y.min() == y.max():
        return None
    if np.array_equal(x, y):
        return "equals"
    with np.errstate(all="ignore"):  # of numbers near the largest nothing is said
        correlation = np.corrcoef(x, y)[0, 1]
    # Rounded copies, and copies in another unit.
    return "is a multiple of" if abs(correlation) > 1 - 1e-6 else None


def _determines(columns: Columns, target: Target) -> str | None:
    """Say how values of a column determine the class; at least five rows of each class do."""
    keys = np.concatenate([cell_keys(cells) for cells in columns.values()])
    gaps = np.concatenate([_gaps(cells) for cells in columns.values()])
    keys, classes = keys[~gaps], target.values[~gaps]
    values, first, places = np.unique(keys, return_index=True, return_inverse=True)
    if 5 * len(values) > len(keys):
        return None
    pairs = np.unique(places * len(target.classes) + classes)
    rows = np.bincount(classes)
    if len(pairs) > len(values) or (rows > 0).sum() < 2 or rows[rows > 0].min() < 5:
        return None
    texts = np.concatenate([cells_as_text(cells) for cells in columns.values()])[~gaps]
    if all(texts[row] == target.classes[classes[row]] for row in first):
        return "equals"
    one_to_one = len(values) == (rows > 0).sum()
    return "has one value for each class of" if one_to_one else "has values that determine"


def _gaps(cells: np.ndarray) -> np.ndarray:
    if cells.dtype.kind in "fiu":
        return np.isnan(np.asarray(cells, np.float64))
    texts = cells.astype(np.str_).tolist()
    missing = {text for text in set(texts) if is_missing(text)}
    return np.array([text in missing for text in texts], bool)

"""Findings on columns: different codings, signs in numbers, identifiers, dates, leaks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from equipoise.data.findings import Finding
from equipoise.data.message_text import some
from equipoise.data.tables.cell_numbers import is_date, is_number
from equipoise.data.tables.csv_files import cells_as_text, is_missing
from equipoise.data.tables.finding_text import (
    Columns,
    Counts,
    as_yaml,
    codings,
    counts_of,
    in_quotes,
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
    """Return findings on categories that sites code or spell differently.

    Args:
        columns: The cells of each site.
        name: The column.
        files: The file of each site.

    Returns:
        At most one finding on codings, and one for each group of nearly equal values.
    """
    if all(cells.dtype.kind in "fiu" for cells in columns.values()):
        return _find_shifted(columns, name, files)
    counts = {site: values for site, values in counts_of(columns).items() if values}
    coding = _different_coding(counts, name, files)
    if coding is not None:
        return [coding]
    total = total_of(counts)
    rows = sum(total.values())
    if rows >= ENOUGH and 2 * len(total) > rows:
        return []  # an identifier, or free text
    return nearly_equal(counts, name, f"column {quoted(name)}: the categories")


def find_signs(columns: Columns, name: str, files: Mapping[str, str]) -> list[Finding]:
    """Return a finding on numbers that are read as text because of a sign, such as `$5`.

    Args:
        columns: The cells of each site.
        name: The column.
        files: The file of each site.

    Returns:
        At most one finding, with a mapping to plain numbers if there are few different cells.
    """
    texts = {site: cells for site, cells in columns.items() if cells.dtype.kind not in "fiu"}
    counts = total_of(counts_of(texts))
    signs: dict[str, str] = {}
    for cell in counts:
        sign = _sign(cell)
        if sign is not None:
            signs[cell] = sign
    plain = [cell for cell in counts if is_number(cell)]
    if not signs or len(signs) + len(plain) < len(counts):
        return []
    most_frequent = Counter(signs.values()).most_common(1)[0][0]
    in_files = [files[site] for site, cells in texts.items() if not signs.keys().isdisjoint(cells)]
    start = (
        f"column {quoted(name)} is not read as numbers because of {most_frequent} in cells such as "
        f"{', '.join(quoted(cell) for cell in list(signs)[:3])} ({some(in_files)})"
    )
    if len(signs) > MOST_MAPPED:
        return [Finding(f"{start}; write plain numbers in the file", name)]
    comma = "." if "a decimal comma" in signs.values() else ""
    values = {cell: _plain_number(cell, comma) for cell in signs}
    # A saved schema has the kind that the column has without the repair.
    repair = {"values": {name: values}, **_kind(name, "number")}
    shown = {"values": {name: dict(list(values.items())[:3])}}
    more = ", ..." if len(signs) > 3 else ""
    message = f"{start}; write plain numbers, or map them in the schema: {as_yaml(shown)}{more}"
    return [Finding(message, name, repair=repair)]


def find_kind(columns: Columns, name: str, files: Mapping[str, str]) -> list[Finding]:
    """Return a finding on numbers that are no quantities: identifiers, 20240131, zip codes.

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
        message = (
            f"{start} looks like dates; as numbers they are not days apart. "
            f"Give it the kind date in a schema: {as_yaml(repair)}"
        )
        return [Finding(message, name, repair=repair)]
    different = len(np.unique(finite))
    if _ZIP.search(name.casefold()) and finite.min() >= 0 and different > 2:
        repair = _kind(name, "category" if different <= FEW else "identifier")
        message = (
            f"{start} looks like zip codes, which are names and not quantities. "
            f"Give it another kind in a schema: {as_yaml(repair)}"
        )
        return [Finding(message, name, repair=repair)]
    owners = np.repeat(np.arange(len(columns)), [len(cells) for cells in columns.values()])
    if numbers_rows(name, numbers, owners):
        return []  # the column is left out already, with a warning
    if _tells_rows_apart(name, columns):
        repair = _kind(name, "identifier")
        message = (
            f"{start} looks like an identifier (about one whole number per row). "
            f"If it is, leave it out: {as_yaml(repair)}"
        )
        return [Finding(message, name, repair=repair)]
    return []


@dataclass(frozen=True)
class Target:
    """The label of all rows, site after site.

    Attributes:
        column: The label column.
        values: Numbers to predict, or the index of each row's class in `classes`.
        classes: The classes; none in regression.
    """

    column: str
    values: np.ndarray
    classes: tuple[str, ...] = ()


def find_leak(columns: Columns, name: str, target: Target) -> list[Finding]:
    """Return a finding on a column that reveals the label: a copy, or one label per value.

    Args:
        columns: The cells of each site.
        name: The column.
        target: The label of the same rows.

    Returns:
        At most one finding.
    """
    if target.classes:
        relation = _relation_to_classes(columns, target)
    else:
        relation = _relation_to_numbers(columns, target.values)
    if relation is None:
        return []
    repair = _kind(name, "identifier")
    message = (
        f"column {quoted(name)} {relation} the label column {in_quotes(target.column)}: a model "
        "would copy it. If it is not known before the label is, "
        f"leave it out: {as_yaml(repair)}"
    )
    return [Finding(message, name, repair=repair)]


def _kind(name: str, kind: str, **more: object) -> dict[str, object]:
    return {"columns": [{"name": name, "kind": kind, **more}]}


def _find_shifted(columns: Columns, name: str, files: Mapping[str, str]) -> list[Finding]:
    """Return a finding on two numbers per site that differ between sites, as 0/1 and 1/2."""
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
        f"column {quoted(name)} has two values at every site, but not the same: "
        f"{codings(values, files)}. "
        f"If they mean the same, map them in the schema: {_example(values, name)}"
    )
    return [Finding(message, name)]


def _example(values: Mapping[str, set[str]], name: str) -> str:
    """Return a mapping for the first site, for a person to fill in."""
    site, site_values = next(iter(values.items()))
    mapping = dict.fromkeys(sorted(site_values), "...")
    return as_yaml({"sites": {site: {"values": {name: mapping}}}})


def _different_coding(counts: Counts, name: str, files: Mapping[str, str]) -> Finding | None:
    """Return a finding if two sites have few values each and none in common."""
    names = {site: set(values) for site, values in counts.items()}
    groups = {frozenset(values) for values in names.values()}
    if len(groups) < 2 or any(len(values) > FEW for values in groups):
        return None
    if not _are_apart([values for values in groups if len(values) > 1]):
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


def _are_apart(groups: Collection[frozenset[str]]) -> bool:
    """Return True if two groups have no value in common."""
    return any(first.isdisjoint(second) for first in groups for second in groups)


def _category_mapping(names: Collection[str]) -> tuple[dict[str, str], bool]:
    """Return a mapping to one coding, empty if none is known, and True if it is certain."""
    keys = {name: same_text(name) for name in sorted(names)}
    if is_truth(names):
        return {name: truth(name) for name in keys if name != truth(name)}, False
    mapping = _sex_mapping(keys)
    if mapping:
        return mapping, False
    best: dict[str, str] = {}
    for name, key in keys.items():
        best.setdefault(key, name)
    return {name: best[key] for name, key in keys.items() if name != best[key]}, True


def _sex_mapping(keys: Mapping[str, str]) -> dict[str, str]:
    """Return a mapping of words for female and male, to two numbers if other sites have them.

    Args:
        keys: The key of each name, without differences of spelling.
    """
    female_words, male_words = SEX
    women = [name for name in keys if keys[name] in female_words]
    men = [name for name in keys if keys[name] in male_words]
    numbers = sorted((name for name in keys if is_number(name)), key=float)
    if not women or not men or len(women) + len(men) + len(numbers) != len(keys):
        return {}
    # That the smaller number is female is common, but not certain.
    female, male = numbers if len(numbers) == 2 else (women[0], men[0])
    mapping = {**dict.fromkeys(women, female), **dict.fromkeys(men, male)}
    return {old: new for old, new in mapping.items() if old != new}


def _numbers_against_words(groups: Collection[frozenset[str]]) -> bool:
    """Return True if one site has numbers and another one has words without digits."""
    has_numbers = any(all(map(is_number, values)) for values in groups)
    has_words = any(not any(map(str.isdigit, "".join(values))) for values in groups)
    return has_numbers and has_words


def _sign(cell: str) -> str | None:
    if len(cell) > _LONGEST:
        return None
    return next((sign for sign, form in _SIGNS.items() if form.fullmatch(cell)), None)


def _plain_number(cell: str, comma: str) -> str:
    """Return the number in a cell.

    >>> _plain_number("$1,234", ""), _plain_number("1,5", "."), _plain_number("5 mmHg", "")
    ('1234', '1.5', '5')
    """
    match = re.search(_NUMBER, cell.replace(",", comma))
    assert match is not None  # `_sign` matches cells with a number only
    return match.group()


def _are_dates(numbers: np.ndarray) -> bool:
    """Return True if whole numbers are dates such as 20240131."""
    if numbers.min() < 19000101 or numbers.max() > 21001231:
        return False
    distinct = np.unique(numbers)
    return len(distinct) > 2 and all(is_date(f"{number:.0f}", "%Y%m%d") for number in distinct)


def _tells_rows_apart(name: str, columns: Columns) -> bool:
    """Return True if the name or the range of numbers suggests one number per row."""
    sites = [cells[np.isfinite(np.asarray(cells, np.float64))] for cells in columns.values()]
    sites = [cells for cells in sites if len(cells) >= ENOUGH]
    rows = sum(map(len, sites))
    if not rows or 10 * sum(len(np.unique(cells)) for cells in sites) < 9 * rows:
        return False
    lower_name = name.strip().casefold()
    if _UNNAMED.fullmatch(lower_name) or _NUMBERED.search(lower_name):
        return True
    if all(cells.min() >= 1900 and cells.max() <= 2100 for cells in sites):
        return False  # years
    return all(map(_is_range, sites)) or _is_range(np.concatenate(sites))


def _is_range(cells: np.ndarray) -> bool:
    """Return True if whole numbers are all from the lowest to the highest, each once."""
    return bool(len(np.unique(cells)) == len(cells) == cells.max() - cells.min() + 1)


def _relation_to_numbers(columns: Columns, y: np.ndarray) -> str | None:
    """Return how a column of numbers follows from the numbers to predict, as a verb."""
    if any(cells.dtype.kind not in "fiu" for cells in columns.values()):
        return None
    x = np.concatenate([np.asarray(cells, np.float64) for cells in columns.values()])
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < ENOUGH or x.min() == x.max() or y.min() == y.max():
        return None
    if np.array_equal(x, y):
        return "equals"
    with np.errstate(all="ignore"):  # numbers near the largest overflow, and match nothing
        correlation = np.corrcoef(x, y)[0, 1]
    # Rounded copies, and copies in another unit.
    return "is a multiple of" if abs(correlation) > 1 - 1e-6 else None


def _relation_to_classes(columns: Columns, target: Target) -> str | None:
    """Return how values of a column determine the class, as a verb.

    Classes of fewer than five rows, and columns of nearly as many values as rows, say nothing.
    """
    keys = np.concatenate([cell_keys(cells) for cells in columns.values()])
    gaps = np.concatenate([_gaps(cells) for cells in columns.values()])
    keys, classes = keys[~gaps], target.values[~gaps]
    values, first, positions = np.unique(keys, return_index=True, return_inverse=True)
    if 5 * len(values) > len(keys):
        return None
    pairs = np.unique(positions * len(target.classes) + classes)
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

"""Words and counts that findings about tables share."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.data.tables.csv_files import cells_as_text, is_missing
from equipoise.validation import safe_yaml
from equipoise.validation.names import quoted

_SHOWN = 5
_MAPPED = 12  # values of a mapping that a message shows

Columns = Mapping[str, np.ndarray]  # one column of each site
Counts = Mapping[str, Counter[str]]  # how many rows of each site have each value


def as_yaml(repair: Mapping[str, Any]) -> str:
    """Return a fragment of a schema on one line; `...` is left for a person to fill in.

    >>> as_yaml({"values": {"sex": {"no": "1e3"}}})
    "values: {sex: {'no': '1e3'}}"
    """
    text = safe_yaml.dumped(
        dict(repair),
        default_flow_style=True,
        width=10**6,
        # Names that look alike are written with escapes.
        allow_unicode=unicodedata.is_normalized("NFC", str(repair)),
    )
    return text.strip()[1:-1].replace("'...'", "...")


def mapping_as_yaml(column: str, mapping: Mapping[str, str]) -> str:
    """Return the values of a column as a fragment of a schema; of many, the first ones.

    >>> mapping_as_yaml("sex", {"f": "0", "m": "1"})
    "values: {sex: {f: '0', m: '1'}}"
    """
    first = dict(list(mapping.items())[:_MAPPED])
    more = f" and {len(mapping) - _MAPPED} more" if len(mapping) > _MAPPED else ""
    return as_yaml({"values": {column: first}}) + more


def in_quotes(name: str) -> str:
    """Return a name in double quotes, without control characters."""
    return f'"{quoted(name)[1:-1]}"'


def as_value(text: str) -> str:
    """Return a value in quotes; letters in a form that looks like another one are escaped."""
    return quoted(text) if unicodedata.is_normalized("NFC", text) else ascii(text)


def some(names: Sequence[str]) -> str:
    """Return the first five names, and how many more there are.

    >>> some(list("abcdefg"))
    'a, b, c, d, e and 2 more'
    """
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def in_rows(number: int) -> str:
    """Return a number of rows in words."""
    return "1 row" if number == 1 else f"{number} rows"


def codings(names: Mapping[str, set[str]], files: Mapping[str, str]) -> str:
    """Return which values which files have."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for site, own in names.items():
        groups.setdefault(tuple(sorted(own)), []).append(files[site])
    return "; ".join(
        f"{some(list(map(as_value, own)))} in {some(sorted(set(where)))}"
        for own, where in list(groups.items())[:_SHOWN]
    )


def counts_of(columns: Columns) -> dict[str, Counter[str]]:
    """Return how many rows of each site have each value of a column; gaps are left out."""
    found = {}
    for site, cells in columns.items():
        counts = Counter(cells_as_text(cells).tolist())
        found[site] = Counter({text: n for text, n in counts.items() if not is_missing(text)})
    return found


def total_of(counts: Counts) -> Counter[str]:
    """Return how many rows of all sites have each value."""
    total: Counter[str] = Counter()
    for own in counts.values():
        total.update(own)
    return total

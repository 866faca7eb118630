"""Texts and counts that findings about tables share."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from equipoise.data.message_text import plural, some
from equipoise.data.tables.csv_files import cells_as_text, is_missing
from equipoise.validation import safe_yaml
from equipoise.validation.names import quoted

_SHOWN = 5
_MAPPED = 12  # values of a mapping that a message shows

Columns = Mapping[str, np.ndarray]  # one column of each site
Counts = Mapping[str, Counter[str]]  # how many rows of each site have each value


def as_yaml(repair: Mapping[str, Any]) -> str:
    """Return a fragment of a schema on one line; `...` is for a person to fill in.

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


def row_text(number: int) -> str:
    """Return a number of rows, such as `1 row` or `20 rows`."""
    return f"{number} {plural('row', number)}"


def codings(names: Mapping[str, set[str]], files: Mapping[str, str]) -> str:
    """Return the values of files, with equal ones together.

    Args:
        names: The values of each site.
        files: The file of each site.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for site, values in names.items():
        groups.setdefault(tuple(sorted(values)), []).append(files[site])
    texts = []
    for group, in_files in list(groups.items())[:_SHOWN]:
        texts.append(f"{some(map(as_value, group))} in {some(sorted(set(in_files)))}")
    return "; ".join(texts)


def counts_of(columns: Columns) -> dict[str, Counter[str]]:
    """Return how many rows of each site have each value of a column; gaps are left out."""
    by_site = {}
    for site, cells in columns.items():
        counts = Counter(cells_as_text(cells).tolist())
        by_site[site] = Counter({text: n for text, n in counts.items() if not is_missing(text)})
    return by_site


def total_of(counts: Counts) -> Counter[str]:
    """Return how many rows of all sites have each value."""
    total: Counter[str] = Counter()
    for site_counts in counts.values():
        total.update(site_counts)
    return total

"""Rows that appear more than once: copies of sites, and rows that repeat within a site."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b

import numpy as np

from equipoise.data.findings import Finding
from equipoise.data.tables.finding_text import row_text
from equipoise.data.tables.sites import Origin
from equipoise.validation.names import quoted

LEAST = 10  # rows below which two sites are not compared
COPIED = 0.9  # least share of a site's rows in another site for which it looks like a copy
REPEATED = 0.01  # least share of repeated rows that is reported
_COPY = re.compile(r"\(\d+\)|copy|copie|kopie", re.IGNORECASE)

Table = Mapping[str, np.ndarray]


def find_copies(tables: Mapping[str, Table], files: Mapping[str, str]) -> list[Finding]:
    """Return findings on sites with nearly the rows of another site, such as `a (1).csv`.

    Args:
        tables: The columns of each site.
        files: The file of each site.

    Returns:
        One finding for each site that looks like a copy of an earlier one.
    """
    first_owner: dict[int, str] = {}
    findings = []
    for site, table in tables.items():
        keys = row_keys(table)
        distinct = np.unique(keys).tolist()
        earlier = Counter(first_owner[key] for key in distinct if key in first_owner)
        # A table of few different rows has them at every site.
        has_many_rows = len(keys) >= LEAST and 2 * len(distinct) > len(keys)
        if earlier and has_many_rows:
            other, shared = earlier.most_common(1)[0]
            if shared >= COPIED * len(distinct):
                findings.append(_copy(site, other, shared, len(distinct), files))
        for key in distinct:
            first_owner.setdefault(key, site)
    return findings


def find_repeated(tables: Mapping[str, Table], origins: Mapping[str, Origin]) -> list[Finding]:
    """Return findings on sites with rows that equal an earlier row in all columns.

    Columns of few values repeat by chance; only far more repetitions are reported.

    Args:
        tables: The columns of each site.
        origins: Where the rows of each site come from.

    Returns:
        One finding for each site.
    """
    findings = []
    for site, table in tables.items():
        keys = row_keys(table)
        _, first, inverse, counts = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        repeated = len(keys) - len(first)
        pairs = float((counts * (counts - 1) / 2).sum())
        if repeated < max(2, REPEATED * len(keys)) or pairs < 10 * _pairs_by_chance(table):
            continue
        row = int(np.flatnonzero(first[inverse] < np.arange(len(keys)))[0])
        origin = origins[site]
        message = (
            f"{origin.file}: {row_text(repeated)} of {len(keys)} at site {quoted(site)} equal an "
            f"earlier row in all columns, such as {origin.of_row(row)}, and "
            f"{origin.of_row(int(first[inverse[row]]))}. Is a part of the export in it twice? "
            "Equal rows stay on one side of the split (data.duplicates)"
        )
        findings.append(Finding(message, sites=(site,)))
    return findings


def row_keys(table: Table) -> np.ndarray:
    """Return a number per row that is equal for equal rows, in any order of columns."""
    keys = np.zeros(len(next(iter(table.values()))), np.uint64)
    for name, cells in table.items():
        keys += _mixed(cell_keys(cells) ^ _text_key(name))
    return keys


def cell_keys(cells: np.ndarray) -> np.ndarray:
    """Return one number for each cell that is equal for equal cells."""
    if cells.dtype.kind in "fiub":
        # Adding 0 makes -0.0 the same as 0.0; all NaN are one.
        numbers = np.asarray(cells, np.float64) + 0.0
        numbers = np.where(np.isnan(numbers), np.nan, numbers)
        return np.asarray(numbers.view(np.uint64))
    texts = cells.tolist()
    keys = {text: _text_key(str(text)) for text in set(texts)}
    return np.array([keys[text] for text in texts], np.uint64)


def _text_key(text: str) -> np.uint64:
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _mixed(keys: np.ndarray) -> np.ndarray:
    """Spread keys over all bits (the finaliser of SplitMix64), so that sums of them differ."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(keys ^ (keys >> np.uint64(31)))


def _pairs_by_chance(table: Table) -> float:
    """Return how many pairs of rows would be equal if columns were independent."""
    rows = len(next(iter(table.values())))
    pairs = rows * (rows - 1) / 2
    for cells in table.values():
        counts = np.unique(cell_keys(cells), return_counts=True)[1]
        pairs *= float(((counts / rows) ** 2).sum())
    return pairs


def _copy(site: str, other: str, shared: int, rows: int, files: Mapping[str, str]) -> Finding:
    if _COPY.search(other) and not _COPY.search(site):
        site, other = other, site
    message = (
        f"site {quoted(site)} ({files[site]}) looks like a copy of {quoted(other)} "
        f"({files[other]}): {shared} of {rows} different rows are in both. "
        "Move the copy to another folder if it is no site of its own"
    )
    return Finding(message, sites=(site, other))

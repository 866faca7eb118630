"""Warnings about rows that sites read by an agreed schema: cells that it does not foresee."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from equipoise.data.dataset import Dataset
from equipoise.data.message_text import counted
from equipoise.data.schema import ColumnSchema, Schema
from equipoise.data.tables.unit_findings import find_codes
from equipoise.validation.names import quoted

FAR = 3.0  # scales between the mean of a site and the agreed centre that suggest another unit


def warnings_on_agreement(dataset: Dataset, schema: Schema) -> list[str]:
    """Return warnings about each site's cells that the schema on which all agreed does not foresee.

    Args:
        dataset: A table, read by the schema.
        schema: The schema.
    """
    if dataset.site is None:
        return []
    x = dataset.x.numpy()
    columns = {column.name: column for column in schema.inputs}
    warnings: list[str] = []
    for index, site in enumerate(dataset.site_names):
        rows = x[dataset.site == index]
        for j, column in enumerate(dataset.columns):
            warnings += _warnings_on_cells(site, columns[column.name], rows[:, j])
    return warnings


def _warnings_on_cells(site: str, column: ColumnSchema, numbers: np.ndarray) -> Iterator[str]:
    """Yield warnings about one column of one site.

    Args:
        site: The site.
        column: The column.
        numbers: Its numbers or codes of categories, NaN for gaps.
    """
    start = f"site {quoted(site)}, column {quoted(column.name)}"
    gaps = int(np.isnan(numbers).sum())
    if gaps and not column.gaps:
        yield (
            f"{start}: {counted(gaps, 'gap')} of {len(numbers):,} cells, but the schema says "
            "gaps: false, so no input marks them; agree on gaps: true"
        )
    if column.kind == "category":
        unknown = int((numbers == len(column.categories)).sum())
        if unknown:
            yield (
                f"{start}: {unknown:,} of {len(numbers):,} cells are no category of the schema and "
                "are read as `other`; if they are other spellings, map them under `values`"
            )
    if column.kind == "number":
        for finding in find_codes({site: numbers}, column.name, {site: site}):
            yield finding.message
    if column.centre is not None and column.scale is not None and gaps < len(numbers):
        mean = float(np.nanmean(numbers.astype(np.float64)))
        if abs(mean - column.centre) > FAR * column.scale:
            yield (
                f"{start}: the mean is {mean:.4g}, far from the agreed centre {column.centre:.4g} "
                f"(scale {column.scale:.4g}); if it is another unit, give the factor under `sites`"
            )

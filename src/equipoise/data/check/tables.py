"""Reports on tables of a user's sites, also on tables that a run would refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from equipoise.data.check.columns import report_on_columns, warnings_on_columns
from equipoise.data.check.report import DataReport, SiteReport
from equipoise.data.check.samples import count_test_rows, report_on_dataset, report_on_sites
from equipoise.data.check.warnings import (
    warnings_on_dialects,
    warnings_on_headers,
    warnings_on_labels,
    warnings_on_sites,
)
from equipoise.data.config import DataConfig
from equipoise.data.dataset import Dataset
from equipoise.data.findings import DataErrors, Finding
from equipoise.data.schema import Schema
from equipoise.data.tables.csv_files import cells_as_text
from equipoise.data.tables.repairs import Table
from equipoise.data.tables.schema_inference import infer_schema
from equipoise.data.tables.sites import Sites, row_count
from equipoise.data.tables.table_dataset import (
    LABELS,
    chosen_label,
    interpret_tables,
    join_cells,
)
from equipoise.data.tables.table_findings import find_in_tables
from equipoise.data.tables.user_tables import dataset_of_tables, read_user_tables


def report_on_tables(path: Path, config: DataConfig, own_site: str | None = None) -> DataReport:
    """Report on a folder of site files, or on one file with a column that names the site.

    Args:
        path: The folder or file.
        config: The data section.
        own_site: The site of all rows, if the file is that of one site.

    Raises:
        ValueError: If no table can be read, or arrays do not fit together.
    """
    sites = read_user_tables(path, config, own_site)
    try:
        dataset = dataset_of_tables(sites, config)
    except ValueError as error:
        if sites.arrays:  # they have no columns to report on
            raise
        problems = error.problems if isinstance(error, DataErrors) else (str(error),)
        return _report_on_problems(sites, config, problems)
    if sites.arrays:
        return report_on_dataset(dataset, config, alone=own_site is not None)
    return report_on_read_tables(sites, dataset, config, alone=own_site is not None)


def report_on_read_tables(
    sites: Sites, dataset: Dataset, config: DataConfig, alone: bool = False
) -> DataReport:
    """Report on tables that were joined to a data set.

    Args:
        sites: The tables.
        dataset: The data set that was made of them.
        config: The data section.
        alone: True if this is one site of several, and the others are elsewhere.
    """
    schema = dataset.schema
    assert schema is not None and schema.label is not None
    site_reports = report_on_sites(dataset, config)
    rows = sum(site.rows for site in site_reports)
    kinds_are_inferred = config.schema is None or not config.schema.columns
    warnings = [
        *warnings_on_columns(sites, schema, kinds_are_inferred),
        *warnings_on_labels(schema.label, schema.classes, rows),
        *warnings_on_sites(site_reports, schema.classes, alone),
        *warnings_on_headers(sites),
        *warnings_on_dialects(sites),
    ]
    return DataReport(
        name=sites.path.stem,
        task=dataset.task.kind,
        label=schema.label,
        guessed=_label_is_guessed(config),
        sites=site_reports,
        columns=report_on_columns(sites, schema, config),
        files=_dialects(sites),
        warnings=tuple(warnings),
        schema=schema,
        findings=_findings(sites, config),
    )


def _report_on_problems(sites: Sites, config: DataConfig, problems: Sequence[str]) -> DataReport:
    """Report on tables that a run would refuse: everything that is known, and the problems."""
    schema = config.schema or Schema()
    task = config.task or schema.predicts
    common = _common_columns(sites)
    label = _label_among(common, sites, config)
    tables = {site: {name: table[name] for name in common} for site, table in sites.tables.items()}
    tables = interpret_tables(tables, label, task, schema)
    inferred = _infer_from_common_columns(tables, common, label, task, schema)
    # Repairs may change kinds and classes, so the saved schema leaves them open.
    saved = schema
    if schema.label is None and label is not None:
        saved = schema.model_copy(update={"label": label})
    site_reports = []
    for site, table in sites.tables.items():
        labels = tables[site].get(label) if label is not None else None
        site_reports.append(_report_on_site(site, row_count(table), labels, inferred, config))
    kinds_are_inferred = not schema.columns
    warnings = [
        *warnings_on_columns(sites, inferred, kinds_are_inferred),
        *warnings_on_headers(sites),
        *warnings_on_dialects(sites),
    ]
    return DataReport(
        name=sites.path.stem,
        task=task or inferred.predicts or "unknown task",
        label=label,
        guessed=_label_is_guessed(config),
        sites=tuple(site_reports),
        columns=report_on_columns(sites, inferred, config),
        files=_dialects(sites),
        warnings=tuple(warnings),
        schema=saved,
        findings=_findings(sites, config),
        problems=tuple(problems),
    )


def _label_is_guessed(config: DataConfig) -> bool:
    """Return True if neither the user nor the schema named the label column."""
    return config.label_column is None and (config.schema is None or config.schema.label is None)


def _dialects(sites: Sites) -> dict[str, str]:
    return {file: str(dialect) for file, dialect in sites.dialects.items()}


def _common_columns(sites: Sites) -> list[str]:
    """Return the columns that all sites have, with one cell per row."""
    tables = list(sites.tables.values())
    return [
        name
        for name in tables[0]
        if all(name in table and table[name].ndim == 1 for table in tables)
    ]


def _label_among(columns: Sequence[str], sites: Sites, config: DataConfig) -> str | None:
    """Return the label column if it is among these columns."""
    chosen = chosen_label(sites, config.label_column, config.schema or Schema())
    for name in (chosen, *LABELS):
        if name in columns:
            return name
    return None


def _infer_from_common_columns(
    tables: dict[str, Table],
    columns: Sequence[str],
    label: str | None,
    task: str | None,
    schema: Schema,
) -> Schema:
    """Return the schema of columns that all sites have and that the user's schema lists."""
    kinds = {column.name: column.kind for column in schema.columns}
    joined = {}
    for name in columns:
        if not kinds or name in kinds or name == label:
            joined[name] = join_cells([table[name] for table in tables.values()])
    owners: list[str] = []
    for site, table in tables.items():
        owners += [site] * row_count(table)
    return infer_schema(joined, owners, label, kinds, task)


def _report_on_site(
    name: str, rows: int, labels: np.ndarray | None, schema: Schema, config: DataConfig
) -> SiteReport:
    classes: dict[str, int] = {}
    if labels is not None:
        counts = Counter(map(str, cells_as_text(labels)))
        classes = {kind: counts[kind] for kind in schema.classes if counts[kind]}
    return SiteReport(name, rows, count_test_rows(rows, config), classes)


def _findings(sites: Sites, config: DataConfig) -> tuple[Finding, ...]:
    """Return everything that looks wrong in the tables.

    Kinds that the user chose are not doubted, and columns that the schema leaves out not checked.
    """
    schema = config.schema or Schema()
    chosen = {column.name for column in schema.columns} | set(config.categorical)
    label = chosen_label(sites, config.label_column, schema)
    findings = find_in_tables(sites, label, config.task or schema.predicts, chosen)
    if schema.columns:
        used = {column.name for column in schema.inputs} | ({label} if label else set(LABELS))
        findings = [
            finding for finding in findings if finding.column is None or finding.column in used
        ]
    return (*sites.findings, *findings)

"""Reports on data sets without files of their own, and the rows of each site."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from equipoise.data.check.agreed import warnings_on_agreement
from equipoise.data.check.columns import report_on_column
from equipoise.data.check.report import DataReport, SiteReport
from equipoise.data.check.warnings import warnings_on_sites
from equipoise.data.config import DataConfig
from equipoise.data.dataset import Dataset
from equipoise.data.tables.schema_inference import full_schema, with_schema
from equipoise.metrics.survival import time_and_event


def report_on_dataset(dataset: Dataset, config: DataConfig, alone: bool = False) -> DataReport:
    """Report on a registered data set, on arrays or on patients' records.

    Args:
        dataset: The data set.
        config: The data section.
        alone: True if this is one site of several, and the others are elsewhere.
    """
    dataset = dataset.as_task(config.task).with_intervals(config.intervals)
    dataset = with_schema(dataset, config.schema)
    schema = full_schema(dataset)
    sites = report_on_sites(dataset, config)
    x = dataset.x.numpy()
    indices = {column.name: index for index, column in enumerate(dataset.columns)}
    columns = []
    for column in schema.inputs:
        columns.append(report_on_column(column, [x[:, indices[column.name]]], config))
    warnings = list(dataset.notes)
    if config.apart:
        warnings += warnings_on_agreement(dataset, schema)
    if dataset.site is not None:
        warnings += warnings_on_sites(sites, dataset.task.class_names, alone)
    return DataReport(
        name=dataset.name,
        task=dataset.task.kind,
        label=None,
        guessed=False,
        sites=sites,
        columns=tuple(columns),
        files={},
        warnings=tuple(warnings),
        schema=schema,
    )


def report_on_sites(dataset: Dataset, config: DataConfig) -> tuple[SiteReport, ...]:
    """Return the rows, classes or targets of each site of a data set."""
    site_names = dataset.site_names or (dataset.name,)
    owners = dataset.site
    if owners is None:
        owners = np.zeros(len(dataset.x), np.int64)
    reports = []
    for index, name in enumerate(site_names):
        y = dataset.y.numpy()[owners == index]
        if dataset.task.classifies:
            report = report_on_classes(name, _count_classes(dataset, y), config)
        else:
            target = _survival_range(y) if dataset.task.survives else _target_range(y)
            report = SiteReport(name, len(y), count_test_rows(len(y), config), {}, target)
        reports.append(report)
    return tuple(reports)


def _count_classes(dataset: Dataset, y: np.ndarray) -> dict[str, int]:
    names = dataset.task.class_names or tuple(map(str, range(dataset.task.outputs)))
    codes, counts = np.unique(y, return_counts=True)
    return {names[int(code)]: int(count) for code, count in zip(codes, counts, strict=True)}


def _target_range(y: np.ndarray) -> dict[str, float]:
    if not len(y):
        return {}
    return {"mean": float(y.mean()), "lowest": float(y.min()), "highest": float(y.max())}


def _survival_range(y: np.ndarray) -> dict[str, float]:
    time, event = time_and_event(y)
    if not len(y):
        return {}
    return {
        "events": float(event.sum()),
        "median time": float(np.median(time)),
        "longest time": float(time.max()),
    }


def report_on_classes(name: str, classes: Mapping[str, int], config: DataConfig) -> SiteReport:
    """Return the report on a site of which the rows per class are known."""
    rows = sum(classes.values())
    return SiteReport(name, rows, count_test_rows(rows, config), classes)


def count_test_rows(rows: int, config: DataConfig) -> int | None:
    """Return how many rows a client of a site is tested on.

    Args:
        rows: The rows of the site.
        config: The data section.

    Returns:
        The number; None where clients are not sites, or share a test set.
    """
    clients_are_sites = config.partition in ("auto", "natural") and config.samples is None
    if config.test != "local" or not clients_are_sites:
        return None
    return math.floor(config.split[2] * rows + 1e-9)

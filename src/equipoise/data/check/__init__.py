"""Checks of a user's data before training: how they are read, and warnings with remedies."""

from __future__ import annotations

from pathlib import Path

from equipoise.data.check.images import report_on_images
from equipoise.data.check.report import ColumnReport, DataReport, SiteReport
from equipoise.data.check.samples import report_on_dataset
from equipoise.data.check.tables import report_on_read_tables, report_on_tables
from equipoise.data.config import DataConfig
from equipoise.data.dataset import Dataset
from equipoise.data.patients.records import is_patients
from equipoise.data.pipeline import (
    LoadedData,
    is_image_folder,
    is_user_path,
    load_client,
    load_with_tables,
)
from equipoise.data.schema import Schema

__all__ = [
    "ColumnReport",
    "DataReport",
    "SiteReport",
    "check_data",
    "check_loaded",
    "check_with_repairs",
]


def check_data(
    config: DataConfig,
    dataset: Dataset | None = None,
    every_pixel: bool = False,
    own_site: str | None = None,
) -> DataReport:
    """Report how the data of an experiment are read, before partitioning and training.

    Args:
        config: The data section.
        dataset: Data that were passed in Python, in place of `config.name`.
        every_pixel: True to decode every image file, so that damaged ones are reported.
        own_site: The name of the site whose file or folder `config.name` is, if it is one site's.

    Raises:
        ValueError: If the data cannot be read at all. Problems of tables are part of the report.
    """
    if dataset is not None:
        return report_on_dataset(dataset, config)
    if config.apart and own_site is not None:
        return report_on_dataset(load_client(config, own_site), config, alone=True)
    path = Path(config.name)
    if not is_user_path(config) or config.apart or is_patients(path):
        loaded = load_with_tables(config, own_site=own_site)
        return report_on_dataset(loaded.dataset, config, alone=own_site is not None)
    if is_image_folder(path):
        return report_on_images(path, config, every_pixel)
    return report_on_tables(path, config, own_site)


def check_loaded(config: DataConfig, loaded: LoadedData) -> DataReport:
    """Report how data were read, as `check_data` does, without reading tables again.

    Args:
        config: The data section.
        loaded: The data that it names.
    """
    if loaded.tables is not None:
        return report_on_read_tables(loaded.tables, loaded.dataset, config)
    path = Path(config.name)
    if is_user_path(config) and not config.apart and is_image_folder(path):
        # The report on images needs the headers of the files, which a data set does not have.
        return report_on_images(path, config, every_pixel=False)
    return report_on_dataset(loaded.dataset, config)


def check_with_repairs(
    config: DataConfig, report: DataReport, own_site: str | None = None
) -> DataReport:
    """Report how the data are read after the certain repairs of their findings.

    Args:
        config: The data section.
        report: The report without the repairs.
        own_site: As for `check_data`.
    """
    repairs = [finding.repair for finding in report.findings if finding.certain and finding.repair]
    if not repairs:
        return report
    schema = config.schema or Schema()
    for repair in repairs:
        schema = schema.with_repairs(repair)
    return check_data(config.model_copy(update={"schema": schema}), own_site=own_site)

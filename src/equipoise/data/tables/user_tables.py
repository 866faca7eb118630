"""A user's tables, read as the `data:` section says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from equipoise.data.config import DataConfig
from equipoise.data.dataset import Dataset
from equipoise.data.tables.sites import Sites, read_sites
from equipoise.data.tables.survival_target import with_survival_target
from equipoise.data.tables.table_dataset import dataset_from_sites


def read_user_tables(
    path: Path,
    config: DataConfig,
    own_site: str | None = None,
    groups: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Sites:
    """Read the tables of all sites; in survival analysis times and events become one column.

    Args:
        path: A folder with one file per site, or one file.
        config: The data section.
        own_site: The site of all rows, if the file is that of one site.
        groups: Columns by which samples are grouped.
        without: Sites that are left out.

    Raises:
        ValueError: If no table can be read.
    """
    survival = config.survival_columns or ()
    label = (config.label,) if config.label else ()
    names = (*label, *survival, *config.categorical, *groups)
    sites = read_sites(path, config.site, config.schema, names, own_site, without)
    return with_survival_target(sites, *survival) if survival else sites


def dataset_of_tables(sites: Sites, config: DataConfig, groups: Sequence[str] = ()) -> Dataset:
    """Return one data set of tables that `read_user_tables` returned.

    Args:
        sites: The tables.
        config: The data section.
        groups: Columns by which samples are grouped; they need not be inputs.

    Raises:
        DataErrors: If the tables cannot be joined; it lists every reason.
    """
    columns = config.survival_columns
    return dataset_from_sites(
        sites,
        config.label_column,
        config.categorical,
        config.task,
        config.schema,
        event=columns[1] if columns is not None else None,
        groups=groups,
    )

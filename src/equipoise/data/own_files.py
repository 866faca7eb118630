"""Files of one site alone, read by a schema on which all sites agreed.

A folder of several sites is read in the same way, one site after the other, so that a simulation
and a site on its own machine have the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from equipoise.data.agreement import check_complete
from equipoise.data.arrays.image_folders import find_images, from_image_folder, holds_images
from equipoise.data.config import DataConfig
from equipoise.data.dataset import Dataset
from equipoise.data.message_text import some
from equipoise.data.patients import codes, histories
from equipoise.data.patients.records import is_patients, read_patients, record_folders
from equipoise.data.schema import Schema
from equipoise.data.tables.schema_inference import with_schema
from equipoise.data.tables.sites import (
    ENDINGS,
    MOST_COLUMNS,
    Sites,
    read_own_table,
    site_files,
    without_sites,
)
from equipoise.data.tables.survival_target import with_survival_target
from equipoise.data.tables.table_dataset import chosen_label, dataset_from_sites, join_cells
from equipoise.validation.names import checked_name, did_you_mean, nearest, quoted
from equipoise.validation.regular_files import check_regular


def own_files(path: Path) -> dict[str, Path]:
    """Return the file or folder of each site of a folder.

    Args:
        path: A folder with one table per site, or with one folder of images or of patients'
            records per site.

    Returns:
        Site -> its own file or folder, sorted by site.

    Raises:
        ValueError: If it is not a folder of sites.
    """
    check_regular(path)
    if not path.is_dir():
        raise ValueError(
            f"{path}: data.apart expects a folder with one file or folder per site, got one "
            "file; make "
            "one file of each site"
        )
    if is_patients(path):
        return _patient_folders(path)
    files = site_files(path)
    if files:
        return _table_files(path, files)
    return _image_folders(path)


def _patient_folders(path: Path) -> dict[str, Path]:
    sites = list(record_folders(path))
    if sites == [""]:
        raise ValueError(
            f"{path}: data.apart expects one folder of patients and events per site, got one "
            "for all; "
            "make a folder of each site"
        )
    return {checked_name(site, "the site of a folder"): path / site for site in sites}


def _table_files(path: Path, files: list[Path]) -> dict[str, Path]:
    if len(files) == 1 and holds_images(path):
        raise ValueError(
            f"{path} holds the table {files[0].name} and folders of images; "
            "move the table elsewhere to use the images, or the images to use the table"
        )
    by_site: dict[str, Path] = {}
    for file in files:
        site = checked_name(file.stem, "the site of a file")
        if site in by_site:
            raise ValueError(
                f"{path}: two site files share a name, {quoted(site)}; "
                "a site's name is its file's name without the ending"
            )
        by_site[site] = file
    return dict(sorted(by_site.items()))


def _image_folders(path: Path) -> dict[str, Path]:
    folder = find_images(path)
    if folder.sites is None or not folder.layout.startswith("FOLDER/SITE/"):
        raise ValueError(
            f"{path}: data.apart expects images as FOLDER/SITE/CLASS/* or "
            f"FOLDER/SITE/{{train,val,test}}/CLASS/*, got {folder.layout}; move them into one "
            "folder per site"
        )
    return {site: path / site for site in sorted(set(folder.sites))}


def own_path(path: Path, site: str) -> Path:
    """Return the file or folder of one site.

    Args:
        path: The file or folder of the site, whatever its name, or a folder of several sites.
        site: The name of the site.

    Raises:
        ValueError: If it is a folder of other sites.
    """
    check_regular(path)
    if not path.exists():
        raise ValueError(f"{path}: expected the files of site {quoted(site)}, got no such file")
    if path.is_file() or _belongs_to_one_site(path):
        return path
    every = own_files(path)
    if site not in every:
        if len(every) == 1:
            (file,) = every.values()
            raise ValueError(
                f"{path}: expected the files of site {quoted(site)}, got {file.name}; if that is "
                f"its file, name it as data: {file}"
            )
        raise nearest(f"site of {path}", site, list(every))
    return every[site]


def _belongs_to_one_site(folder: Path) -> bool:
    """Return True for patients.csv and events.csv in a folder, and for images without sites."""
    if is_patients(folder):
        return "" in record_folders(folder)
    return not site_files(folder) and find_images(folder).sites is None


def read_own(config: DataConfig, site: str, path: Path) -> Dataset:
    """Return the data set of one site, read by the agreed schema.

    Args:
        config: The data section, with `apart`.
        site: The name of the site.
        path: The site's own file or folder.

    Raises:
        ValueError: If the files cannot be read, or do not fit the schema.
    """
    schema = check_complete(config.schema)
    checked_name(site, "the site")
    if path.is_dir() and is_patients(path):
        dataset = _own_patients(config, schema, site, path)
    elif path.is_dir():
        dataset = _own_images(config, schema, site, path)
    else:
        dataset = _own_table(config, schema, site, path)
    # Messages name the site, and the name of its file stays there.
    dataset = replace(dataset.as_task(schema.predicts), name=site)
    return with_schema(dataset, schema)


def _own_table(config: DataConfig, schema: Schema, site: str, path: Path) -> Dataset:
    if config.window is not None:
        raise ValueError(f"data.window: expected a folder of image files, got {path}; leave it out")
    if path.suffix.lower() not in ENDINGS:
        raise ValueError(
            f"{path}: expected the table of site {quoted(site)}, a file ending in "
            f"{', '.join(ENDINGS)}"
        )
    groups = tuple(config.groups)
    sites = read_own_table(path, site, schema, groups)
    is_table = not sites.arrays or sites.tables[site]["x"].ndim == 2
    if is_table and not schema.columns:
        raise ValueError(
            f"{path} is a table, but the schema has no columns; write one with "
            "`equipoise data check --save`"
        )
    if not sites.arrays:
        _check_label(sites, schema, site)
    if schema.predicts == "survival" and schema.label is not None and schema.event is not None:
        sites = with_survival_target(sites, schema.label, schema.event)
    dataset = dataset_from_sites(sites, schema=schema, agreed=True, groups=groups)
    if sites.arrays and is_table:
        dataset = _with_note_on_columns(dataset, schema, site, sites.tables[site]["x"].shape[1])
    return dataset


def _with_note_on_columns(dataset: Dataset, schema: Schema, site: str, columns: int) -> Dataset:
    """Return a data set with a note if its array has columns that the schema does not list.

    Columns of an array have no names, so a further one in front would shift all others.
    """
    listed = {column.name for column in schema.columns}
    left_out = [f"x{number}" for number in range(columns) if f"x{number}" not in listed]
    if not left_out:
        return dataset
    note = (
        f"site {quoted(site)}: the array x has {columns} columns, and {some(left_out)} are not in "
        "the schema and left out; check that all sites have the same columns in the same order"
    )
    return replace(dataset, notes=(*dataset.notes, note))


def _check_label(sites: Sites, schema: Schema, site: str) -> None:
    """Refuse a table without the label column of the schema."""
    label = chosen_label(sites, None, schema)
    table = sites.tables[site]
    if label is None:
        raise ValueError(
            f"site {quoted(site)} ({sites.files[site]}) is a table, but the schema does not name "
            "its `label`, the column to predict; add it"
        )
    if label not in table:
        raise ValueError(
            f"site {quoted(site)} ({sites.files[site]}) lacks the label column {quoted(label)} of "
            f"the schema; it has {some(table, MOST_COLUMNS)}{did_you_mean(label, table)}"
        )


def _own_images(config: DataConfig, schema: Schema, site: str, path: Path) -> Dataset:
    if schema.shape is None or len(schema.shape) != 3 or schema.shape[0] not in (1, 3):
        raise ValueError(
            f"{path} is a folder of images, but the schema has no shape of images (1 or 3 "
            "channels, height, width); write one with `equipoise data check --save`"
        )
    dataset = from_image_folder(path, window=config.window, shape=schema.shape)
    return with_one_site(dataset, site)


def _own_patients(config: DataConfig, schema: Schema, site: str, path: Path) -> Dataset:
    if not schema.codes or schema.events is None:
        raise ValueError(
            f"{path} holds patients' records, which a site can prepare alone only by a schema with "
            "`codes` (each with centre and scale of its values) and `events`; write one with "
            "`equipoise data check --save --statistics`"
        )
    rule = codes.read_rule(config.codes) if config.codes else codes.PANCREATIC_CANCER
    records = read_patients(path, rule=rule, own_site=site)
    vocabulary = tuple(code.name for code in schema.codes)
    return histories.dataset_of(records, path.name, schema.events, vocabulary, source="own files")


def with_one_site(dataset: Dataset, site: str) -> Dataset:
    """Return a data set all of whose samples are of one site."""
    return replace(dataset, site=np.zeros(len(dataset.x), np.int64), site_names=(site,))


def of_site(dataset: Dataset, site: str) -> Dataset:
    """Return the samples of one site.

    Args:
        dataset: A data set; without sites, all its samples are taken.
        site: The name of the site.

    Raises:
        ValueError: If the data set has other sites.
    """
    if dataset.site is None:
        return with_one_site(dataset, site)
    if site not in dataset.site_names:
        raise nearest(f"site of data set {dataset.name}", site, list(dataset.site_names))
    rows = np.flatnonzero(dataset.site == dataset.site_names.index(site))
    if not len(rows):
        raise ValueError(f"data set {dataset.name}: site {quoted(site)} has no samples")
    part = None if dataset.part is None else dataset.part[rows]
    own = replace(
        dataset,
        x=dataset.x[rows],
        y=dataset.y[rows],
        part=part,
        site=np.zeros(len(rows), np.int64),
        site_names=(site,),
        attributes={name: cells[rows] for name, cells in dataset.attributes.items()},
    )
    return own


def joined(name: str, datasets: Mapping[str, Dataset]) -> Dataset:
    """Return one data set of sites that were read alone.

    Args:
        name: The name of the data set.
        datasets: The data set of each site.

    Raises:
        ValueError: If sites differ in the type of their inputs, or only some have official parts.
    """
    every = list(datasets.values())
    first = every[0]
    for site, dataset in datasets.items():
        _check_alike(first, dataset, site)
    marks = [np.full(len(dataset.x), index) for index, dataset in enumerate(every)]
    part = None
    if first.part is not None:
        part = np.concatenate([dataset.part for dataset in every if dataset.part is not None])
    kinds = {kind for dataset in every for kind in dataset.pixel_kinds}
    notes = dict.fromkeys(note for dataset in every for note in dataset.notes)
    return replace(
        first,
        name=name,
        x=torch.cat([dataset.x for dataset in every]),
        y=torch.cat([dataset.y for dataset in every]),
        part=part,
        site=np.concatenate(marks),
        site_names=tuple(datasets),
        notes=tuple(notes),
        pixel_kinds=tuple(sorted(kinds)),
        attributes=_joined_attributes(every),
    )


def of_remaining_sites(dataset: Dataset, without: Sequence[str]) -> Dataset:
    """Return a data set without the samples of some sites, as if there were none.

    Args:
        dataset: The data set.
        without: The sites that are left out.

    Raises:
        ValueError: If it has no such sites, or none remains.
    """
    if not without:
        return dataset
    if dataset.site is None:
        raise ValueError(
            f"data.without: expected data with sites, got {dataset.name}, which has none; "
            "leave it out"
        )
    remaining = without_sites(dataset.site_names, without)
    position = {site: index for index, site in enumerate(remaining)}
    codes = np.array([position.get(site, -1) for site in dataset.site_names])[dataset.site]
    rows = np.flatnonzero(codes >= 0)
    return replace(
        dataset,
        x=dataset.x[rows],
        y=dataset.y[rows],
        part=None if dataset.part is None else dataset.part[rows],
        site=codes[rows],
        site_names=tuple(remaining),
        attributes={name: cells[rows] for name, cells in dataset.attributes.items()},
    )


def _joined_attributes(datasets: Sequence[Dataset]) -> dict[str, np.ndarray]:
    """Return the attributes of all sites' samples, one site after the other."""
    result = {}
    for name in datasets[0].attributes:
        result[name] = join_cells([dataset.attributes[name] for dataset in datasets])
    return result


def _check_alike(first: Dataset, dataset: Dataset, site: str) -> None:
    """Refuse a site whose samples cannot stand in one tensor with those of the first."""
    other = first.site_names[0]
    if dataset.x.dtype != first.x.dtype:
        raise ValueError(
            f"sites {quoted(other)} and {quoted(site)} differ in the type of their inputs, "
            f"{first.x.dtype} and {dataset.x.dtype}; save all images as uint8 (0..255), or all as "
            "fractions (0..1)"
        )
    if dataset.task != first.task or dataset.columns != first.columns:
        raise ValueError(
            f"sites {quoted(other)} and {quoted(site)} describe different tasks: {first.task} and "
            f"{dataset.task}; give both the same schema"
        )
    if (dataset.part is None) != (first.part is None):
        raise ValueError(
            f"only one of the sites {some([quoted(other), quoted(site)])} has an official split; "
            "give both train and test folders, or none of them"
        )

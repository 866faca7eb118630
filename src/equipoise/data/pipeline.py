"""From a `data:` section to a federation: load, deal, split, prepare."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from equipoise.data.arrays.transforms import resized
from equipoise.data.config import DataConfig
from equipoise.data.dataset import TEST, TRAIN, VALIDATION, Dataset
from equipoise.data.federation import Federation, Parts
from equipoise.data.partitions import Partition, Pool, deal, parse
from equipoise.data.preparation import prepared
from equipoise.data.shift import label_distance
from equipoise.data.splits import equal_samples, split
from equipoise.data.tables.schema_inference import with_schema
from equipoise.streams import stream
from equipoise.validation.imports import OWN, Imports
from equipoise.validation.regular_files import check_regular

if TYPE_CHECKING:
    from equipoise.data.tables.sites import Sites

Split = tuple[Parts, Parts, Parts, np.ndarray]  # training, validation, test, shared test


def federate(
    config: DataConfig, seed: int, dataset: Dataset | None = None, imports: Imports = OWN
) -> Federation:
    """Return the clients of an experiment with their data.

    Args:
        config: The data section of the experiment.
        seed: The seed of the experiment.
        dataset: A data set that was made in Python, in place of the one that `config` names.
        imports: The packages from which code that `config` names may be imported.

    Raises:
        ValueError: If the data cannot be read, or not be divided as `config` says.
    """
    return federate_loaded(config, seed, load_with_tables(config, imports, dataset).dataset)


def federate_loaded(config: DataConfig, seed: int, dataset: Dataset) -> Federation:
    """Divide a data set that has been loaded among clients, split it and prepare it."""
    dataset = dataset.as_task(config.task or (config.schema.predicts if config.schema else None))
    config = with_own_split(config, dataset)
    dataset = with_schema(
        _shortened(_resized(dataset, config.image_size), config.events), config.schema
    )
    groups = (
        equal_samples(dataset) if config.duplicates == "together" else np.arange(len(dataset.x))
    )
    _refuse_sameness(groups, dataset)
    pool, shared = _pool(config, seed, dataset, groups)
    if config.samples is not None and config.samples < len(pool):
        pool = np.sort(stream(seed, "samples").choice(pool, config.samples, replace=False))
    dealt = _dealt(config, seed, dataset, pool)
    parts = _split(config, seed, dataset, dealt, groups, shared)
    different = int(np.count_nonzero(np.bincount(dealt.parts.index)))
    metadata = {
        "licence": dataset.licence,
        "source": dataset.source,
        "samples": len(dataset.x),
        "dealt": different,
        "equal_samples": len(groups) - int(np.count_nonzero(np.bincount(groups))),
        "repeats": len(dealt.parts.index) - different,
        "train_equal_to_shared_test": int(np.isin(groups[parts[0].index], groups[parts[3]]).sum()),
        "notes": list(dataset.notes),
        **dealt.metadata,
    }
    if dataset.task.classifies:
        metadata["label_distance"] = (
            label_distance(dataset.y.numpy(), dealt.parts, pool, dataset.task.outputs)
            .round(6)
            .tolist()
        )
    return prepared(dataset, config, dealt.ids, parts, metadata)


@dataclass(frozen=True)
class LoadedData:
    """A data set, with the tables of a user from which it was made.

    Attributes:
        dataset: The data set, before it is divided among clients.
        tables: The tables of the sites; None if the data are no tables with columns.
    """

    dataset: Dataset
    tables: Sites | None = None


def load(config: DataConfig, imports: Imports = OWN) -> Dataset:
    """Return the data set that a `data:` section names.

    It is a registered one, the files of a user, or made by a function ``package.module:name``.
    """
    return load_with_tables(config, imports).dataset


def load_with_tables(
    config: DataConfig, imports: Imports = OWN, dataset: Dataset | None = None
) -> LoadedData:
    """Read the files of an experiment's data once, for training and for the report on them.

    Args:
        config: The data section of the experiment.
        imports: The packages from which code that `config` names may be imported.
        dataset: A data set that was made in Python; then nothing is read.

    Raises:
        ValueError: If the data cannot be read.
    """
    from equipoise.data import sets
    from equipoise.data.patients.records import is_patients

    path = Path(config.name)
    if dataset is None and config.synthetic is None and is_own(config) and is_image_folder(path):
        return LoadedData(_load_images(config))
    _refuse_window(config)
    if dataset is not None:
        return LoadedData(dataset)
    if config.synthetic is not None:
        return LoadedData(sets.synthetic.load(config.synthetic))
    if is_code(config) or not is_own(config):
        return LoadedData(sets.load(config.name, imports))
    check_regular(path)
    if is_patients(path):
        return LoadedData(_load_patients(config))
    return _load_tables(config)


def _load_images(config: DataConfig) -> Dataset:
    from equipoise.data.arrays.image_folders import from_image_folder

    size = config.image_size
    shape = config.schema.shape if config.schema is not None else None
    if size is None and shape is not None and shape[-1] == shape[-2]:
        size = shape[-1]
    return from_image_folder(Path(config.name), size, config.window)


def _load_patients(config: DataConfig) -> Dataset:
    from equipoise.data.patients import codes, histories, records

    path = Path(config.name)
    rule = codes.read_rule(config.codes) if config.codes else codes.PANCREATIC_CANCER
    patients = records.read_patients(path, config.site, rule)
    return histories.dataset_of(patients, path.name, config.events, source="own files")


def _load_tables(config: DataConfig) -> LoadedData:
    from equipoise.data.tables.sites import dataset_of, read_sites

    names = (*([config.label] if config.label else []), *config.categorical)
    sites = read_sites(Path(config.name), config.site, config.schema, names)
    dataset = dataset_of(sites, config.label, config.categorical, config.task, config.schema)
    return LoadedData(dataset, None if sites.arrays else sites)


def is_image_folder(path: Path) -> bool:
    """Return True if a path of the user's is a folder of images, not of tables or patients.

    Raises:
        ValueError: If it holds one table beside folders of images, so that either could be meant.
    """
    from equipoise.data.arrays.image_folders import holds_images
    from equipoise.data.patients.records import is_patients
    from equipoise.data.tables.sites import site_files

    if not path.is_dir() or is_patients(path):
        return False
    files = site_files(path)
    if len(files) == 1 and holds_images(path):
        raise ValueError(
            f"{path} holds the table {files[0].name} and folders of images; move the table elsewhere to use the images, "
            "or name the table itself as data"
        )
    return not files


def with_own_split(config: DataConfig, dataset: Dataset) -> DataConfig:
    """Return the configuration that keeps a user's official split, unless `pool: all` deals everything.

    Clients that are sites are tested on their site's test part, others on one test set for all.
    """
    if not dataset.keeps_parts or config.test != "local" or config.pool == "all":
        return config
    sites = dataset.site is not None and config.partition in ("auto", "natural")
    return config.model_copy(update={"test": "site" if sites else "global"})


def _refuse_window(config: DataConfig) -> None:
    if config.window is not None:
        raise ValueError(
            f"data.window: expected a folder of image files, got {config.name}; leave it out, or scale the numbers yourself"
        )


def is_code(config: DataConfig) -> bool:
    """Whether the data are what a function of the user's returns."""
    return ":" in config.name and not Path(config.name).exists()


def is_own(config: DataConfig) -> bool:
    """Whether the data are a user's files, not a registered set."""
    from equipoise.data import sets

    return config.name not in sets.names() and Path(config.name).exists()


def _resized(dataset: Dataset, size: int | None) -> Dataset:
    if size is None:
        return dataset
    if not dataset.image:
        raise ValueError(f"image_size: {size} is for images and data set {dataset.name} holds none")
    return replace(
        dataset,
        x=resized(dataset.x, size),
        task=replace(dataset.task, shape=(dataset.task.shape[0], size, size)),
    )


def _shortened(dataset: Dataset, events: int | None) -> Dataset:
    from equipoise.data.patients.histories import latest

    if events is None:
        return dataset
    if not dataset.codes:
        raise ValueError(
            f"events: {events} is for patients' records and data set {dataset.name} holds none; leave it out"
        )
    return latest(dataset, events)


def _refuse_sameness(groups: np.ndarray, dataset: Dataset) -> None:
    """One group on one side of a split is right for duplicates, but not when most samples are equal."""
    if len(groups) > 1 and np.bincount(groups).max() > len(groups) / 2:
        raise ValueError(
            f"data set {dataset.name}: more than half of its samples are equal to each other, so they cannot be split without "
            "putting equal samples on both sides; set duplicates: separate if they are different cases"
        )


def _pool(
    config: DataConfig, seed: int, dataset: Dataset, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Which samples are dealt, and which are the shared test set."""
    everything, nothing = np.arange(len(dataset.x)), np.empty(0, np.int64)
    official = dataset.part is not None and bool((dataset.part == TEST).any())
    if config.test == "site" and not (official and dataset.site is not None):
        raise ValueError(
            f"test: site needs official test parts of sites, which data set {dataset.name} has not; use local or global"
        )
    keeps_official = official and config.test != "local"
    if config.pool == "all" and keeps_official:
        raise ValueError(
            f"test: {config.test} keeps the official test part of {dataset.name}, so pool: all would train on it; use pool: train"
        )
    shared = nothing
    if config.test == "global" and official:
        shared = np.flatnonzero(dataset.part == TEST)
    pool = everything
    if dataset.part is not None and (config.pool == "train" or keeps_official):
        # a user's validation images are dealt too: `_split` keeps them apart
        pool = np.flatnonzero(
            dataset.part != TEST if dataset.keeps_parts else dataset.part == TRAIN
        )
    elif config.pool == "train":
        raise ValueError(
            f"pool: train needs an official split, which data set {dataset.name} has not; use pool: all"
        )
    if config.test == "global" and not official:
        if config.split[2] == 0:
            raise ValueError(
                f"data set {dataset.name} has no official test part; give split a test share for the shared test set"
            )
        rest, _, test = split(
            Parts.of([pool]),
            (1 - config.split[2], 0.0, config.split[2]),
            seed,
            _strata(dataset),
            groups,
        )
        return rest[0], test[0]
    return pool, shared


def _dealt(config: DataConfig, seed: int, dataset: Dataset, places: np.ndarray) -> Partition:
    """Who gets which samples of the data set, every client with its name."""
    partition = config.partition
    if partition == "auto":
        partition = "natural" if dataset.site is not None else "iid"
    name = parse(partition)[0] if isinstance(partition, str) else ""
    site = None if dataset.site is None else dataset.site[places]
    pool = Pool(
        y=dataset.y.numpy()[places],
        classes=dataset.task.outputs if dataset.task.classifies else 0,
        site=site,
        site_names=dataset.site_names,
        features=lambda: _features(dataset, places),
    )
    if config.clients is not None and config.clients > len(places):
        raise ValueError(
            f"data.clients: expected at most {len(places)}, the number of samples that are dealt from {dataset.name}, got {config.clients}; "
            "ask for fewer clients, or use more data"
        )
    sites = 0 if site is None else len(np.unique(site))
    usual = {"natural": sites, "domains": 5 * sites, "cla": min(10, pool.classes)}.get(name, 10)
    dealt = deal(partition, pool, config.clients or usual, seed)
    return replace(
        dealt,
        parts=dealt.parts.through(places),
        ids=dealt.ids or tuple(str(k) for k in range(len(dealt.parts))),
    )


def _features(dataset: Dataset, places: np.ndarray) -> np.ndarray:
    """Flattened inputs for partitions that look at them: pixels as stored (large images at 32x32), columns of a table standardised."""
    x = dataset.x[places]
    if dataset.image and x.shape[-1] > 64:
        x = resized(x, 32)
    flat = x.reshape(len(x), -1).numpy()
    if not dataset.columns:
        return np.asarray(flat)
    columns = np.ma.masked_invalid(flat)
    # gaps are 0, the mean; so is a column that does not vary, for a quotient by 0 is a gap too
    return np.asarray(((columns - columns.mean(axis=0)) / columns.std(axis=0)).filled(0))


def _split(
    config: DataConfig,
    seed: int,
    dataset: Dataset,
    dealt: Partition,
    groups: np.ndarray,
    shared: np.ndarray,
) -> Split:
    strata = _strata(dataset)
    if config.test == "local":
        return *split(dealt.parts, config.split, seed, strata, groups), shared
    train_share, validation_share, _ = config.split
    known = train_share + validation_share
    if dataset.keeps_parts and dataset.part is not None and (dataset.part == VALIDATION).any():
        part = dataset.part[dealt.parts.index]
        train, validation = dealt.parts.where(part == TRAIN), dealt.parts.where(part == VALIDATION)
        test = dealt.parts.where(part == TEST)
    else:
        train, validation, test = split(
            dealt.parts, (train_share / known, validation_share / known, 0.0), seed, strata, groups
        )
    if config.test == "site":
        assert dataset.site is not None and dataset.part is not None  # _pool has checked
        site_of = [dataset.site[rows[0]] if len(rows) else -1 for rows in dealt.parts]
        tests = {
            s: np.flatnonzero((dataset.site == s) & (dataset.part == TEST)) for s in set(site_of)
        }
        test = Parts.of([tests[s] for s in site_of])
    return train, validation, test, shared


def _strata(dataset: Dataset) -> np.ndarray | None:
    return np.asarray(dataset.y.numpy()) if dataset.task.classifies else None

"""From a `data:` section to a federation: load, partition, split, prepare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.data.arrays.transforms import resized
from equipoise.data.config import DataConfig
from equipoise.data.dataset import TEST, TRAIN, VALIDATION, Dataset
from equipoise.data.federation import DataSplit, Federation, Parts, join_federations
from equipoise.data.groups import groups_of
from equipoise.data.partitions import Partition, Pool, parse, partition_pool
from equipoise.data.preparation import prepare
from equipoise.data.schema import Schema
from equipoise.data.shift import label_distance
from equipoise.data.splits import equal_samples, split
from equipoise.data.tables.schema_inference import with_schema
from equipoise.streams import stream
from equipoise.validation.imports import OWN, Imports
from equipoise.validation.names import checked_name, nearest, quoted
from equipoise.validation.regular_files import check_regular

if TYPE_CHECKING:
    from equipoise.data.tables.sites import Sites

DEFAULT_CLIENTS = 10
_LARGE_IMAGE = 64  # pixels per side above which partitions see a smaller copy
_SMALL_IMAGE = 32
SERVER_VALIDATION = "server validation"  # names a random stream


def federate(
    config: DataConfig, seed: int, dataset: Dataset | None = None, imports: Imports = OWN
) -> Federation:
    """Load, partition, split and prepare the data of an experiment.

    Args:
        config: The data section.
        seed: The seed of the experiment.
        dataset: A user's data set, in place of the one that `config.name` names.
        imports: The packages from which `config.name` may name a function.

    Returns:
        The data of all clients.

    Raises:
        ValueError: If the data cannot be read, partitioned or split as configured.
    """
    return federate_loaded(config, seed, load_with_tables(config, imports, dataset).dataset)


def federate_loaded(config: DataConfig, seed: int, dataset: Dataset) -> Federation:
    """Partition, split and prepare a data set that has been loaded.

    Args:
        config: The data section.
        seed: The seed of the experiment.
        dataset: The data set.

    Raises:
        ValueError: If the data cannot be partitioned or split as configured.
    """
    if config.apart:
        return _federate_apart(config, seed, dataset)
    return _federate(config, seed, dataset)


def prepare_client(
    config: DataConfig,
    seed: int,
    client: str,
    dataset: Dataset | None = None,
    imports: Imports = OWN,
) -> Federation:
    """Load, split and prepare the data of one client, without any row of another client.

    The result equals this client of `federate`, bit for bit.

    Args:
        config: The data section, with `apart`. Its name is the file or folder of the client,
            whatever it is called; a folder of several sites, of which only this client's is read;
            or a data set with sites.
        seed: The seed of the experiment.
        client: The name of the client, which is the name of its site.
        dataset: Data that were made in Python, in place of those that `config.name` names.
        imports: The packages from which `config.name` may name a function.

    Returns:
        A federation of this client alone.

    Raises:
        ValueError: If `apart` is not set, or the data cannot be read by the schema or split.
    """
    if not config.apart:
        raise ValueError(
            "prepare_client: expected data.apart, by which a client needs no other client's rows, "
            "got a section without it; set apart: true and a schema"
        )
    checked_name(client, "the client")
    config = config.model_copy(update={"clients": None})
    return _federate(config, seed, load_client(config, client, dataset, imports), client)


def load_client(
    config: DataConfig, client: str, dataset: Dataset | None = None, imports: Imports = OWN
) -> Dataset:
    """Return the samples of one client, read by the agreed schema; arguments as above."""
    from equipoise.data.own_files import of_site, own_path, read_own

    if dataset is None and not is_code(config) and is_user_path(config):
        return read_own(config, client, own_path(Path(config.name), client))
    return of_site(load_with_tables(config, imports, dataset).dataset, client)


def _federate_apart(config: DataConfig, seed: int, dataset: Dataset) -> Federation:
    """Return a federation of clients each of which was prepared alone."""
    from equipoise.data.own_files import of_site

    if dataset.site is None:
        raise ValueError(
            f"data.apart: expected data with sites, got {dataset.name}, which has none; give one "
            "file or folder per site"
        )
    present = np.unique(dataset.site)
    clients = [dataset.site_names[site] for site in present]
    if config.clients not in (None, len(clients)):
        raise ValueError(
            f"data.clients: expected {len(clients)}, since data.apart makes one client of each "
            f"site, got {config.clients}; leave it out"
        )
    config = config.model_copy(update={"clients": None})
    federations = [_federate(config, seed, of_site(dataset, client), client) for client in clients]
    rows = [np.flatnonzero(dataset.site == site) for site in present]
    joined = join_federations(dataset.name, federations, rows)
    return replace(joined, metadata=_joined_metadata(dataset, federations, joined))


def _joined_metadata(
    dataset: Dataset, federations: Sequence[Federation], joined: Federation
) -> dict[str, Any]:
    """Return the facts about clients that were prepared alone, as a run records them."""
    metadata = dict(federations[0].metadata)
    for key, value in metadata.items():
        if isinstance(value, int):
            metadata[key] = sum(federation.metadata[key] for federation in federations)
    metadata["notes"] = list(dataset.notes)
    if joined.task.classifies:
        samples = len(joined.y)
        sizes = [len(federation.y) for federation in federations]
        owners = np.repeat(np.arange(len(federations)), sizes)
        parts = Parts.by_owner(owners, len(federations))
        labels = joined.y.numpy()
        distance = label_distance(labels, parts, np.arange(samples), joined.task.outputs)
        metadata["label_distance"] = distance.round(6).tolist()
    return metadata


def _refuse_without_training(client: str, data_split: DataSplit) -> None:
    if not len(data_split.train.index):
        raise ValueError(
            f"client {quoted(client)} has no training rows, so it cannot take part; "
            "add rows, or change data.split"
        )


def _federate(
    config: DataConfig, seed: int, dataset: Dataset, client: str | None = None
) -> Federation:
    """Partition, split and prepare a data set.

    Args:
        config: The data section.
        seed: The seed of the experiment.
        dataset: The data set.
        client: The only client, if its data are prepared alone: it draws from its own stream.
    """
    dataset = dataset.as_task(_task(config)).with_intervals(_intervals(config))
    sample_groups = groups_of(dataset, config.groups)  # before a schema removes columns
    config = with_own_split(config, dataset)
    dataset = _resized(dataset, config.image_size)
    dataset = _with_latest_events(dataset, config.events)
    dataset = with_schema(dataset, config.schema)
    groups = np.arange(len(dataset.x))
    if config.duplicates == "together":
        groups = equal_samples(dataset)
    _refuse_mostly_equal(groups, dataset, client)
    pool, shared_test = _pool_and_shared_test(config, seed, dataset, groups)
    if config.samples is not None and config.samples < len(pool):
        pool = np.sort(stream(seed, "samples").choice(pool, config.samples, replace=False))
    pool, held_out = _hold_out(config, seed, dataset, pool, groups)
    partition = _partition(config, seed, dataset, pool)
    data_split = _split_partition(config, seed, dataset, partition, groups, shared_test, client)
    data_split = replace(data_split, held_out=held_out)
    if client is not None:
        _refuse_without_training(client, data_split)
    metadata = _metadata(dataset, partition, data_split, groups, pool)
    metadata["test"] = _kind_of_test(config, dataset)
    federation = prepare(dataset, config, partition.ids, data_split, metadata)
    if sample_groups is None:
        return federation
    edges = {column: list(own) for column, own in config.groups.items()}
    return replace(
        federation,
        groups=sample_groups.rows(federation.source),
        recipe={**federation.recipe, "groups": edges},
    )


def _task(config: DataConfig) -> str | None:
    """Return the task that the configuration or its schema names."""
    if config.task is None and config.schema is not None:
        return config.schema.predicts
    return config.task


def _intervals(config: DataConfig) -> int | None:
    """Return the intervals of a discrete-time model that the configuration or its schema names."""
    if config.intervals is None and config.schema is not None:
        return config.schema.intervals
    return config.intervals


def _metadata(
    dataset: Dataset,
    partition: Partition,
    data_split: DataSplit,
    groups: np.ndarray,
    pool: np.ndarray,
) -> dict[str, Any]:
    """Return the facts about the data that a run records."""
    used = int(np.count_nonzero(np.bincount(partition.parts.index)))
    test_groups = groups[data_split.shared_test]
    trained_and_tested = np.isin(groups[data_split.train.index], test_groups)
    metadata = {
        "licence": dataset.licence,
        "source": dataset.source,
        "samples": len(dataset.x),
        "dealt": used,  # runs of earlier versions have this key
        "equal_samples": len(groups) - int(np.count_nonzero(np.bincount(groups))),
        "repeats": len(partition.parts.index) - used,
        "train_equal_to_shared_test": int(trained_and_tested.sum()),
        "notes": list(dataset.notes),
        **partition.metadata,
    }
    if len(data_split.held_out):
        metadata["server_validation"] = len(data_split.held_out)
    if dataset.task.classifies:
        distance = label_distance(dataset.y.numpy(), partition.parts, pool, dataset.task.outputs)
        metadata["label_distance"] = distance.round(6).tolist()
    return metadata


@dataclass(frozen=True)
class LoadedData:
    """A data set, with the user's tables from which it was made.

    Attributes:
        dataset: The data set, before it is partitioned.
        tables: The tables of the sites; None if the data are no tables with columns.
    """

    dataset: Dataset
    tables: Sites | None = None


def load(config: DataConfig, imports: Imports = OWN) -> Dataset:
    """Return the data set that a `data:` section names.

    Args:
        config: The data section. Its name is a registered data set, a path to a user's files, or
            package.module:function that makes a data set.
        imports: The packages from which a function may be imported.

    Raises:
        ValueError: If the data cannot be read.
    """
    return load_with_tables(config, imports).dataset


def load_with_tables(
    config: DataConfig,
    imports: Imports = OWN,
    dataset: Dataset | None = None,
    own_site: str | None = None,
) -> LoadedData:
    """Read the files of an experiment's data once, for training and for the report on them.

    Args:
        config: The data section.
        imports: The packages from which a function may be imported.
        dataset: A data set that was made in Python; then nothing is read.
        own_site: The site of all rows, if `config.name` is the file or folder of one site.

    Raises:
        ValueError: If the data cannot be read.
    """
    from equipoise.data import sets
    from equipoise.data.own_files import of_remaining_sites
    from equipoise.data.patients.records import is_patients

    path = Path(config.name)
    if dataset is not None:
        _refuse_window(config)
        return LoadedData(of_remaining_sites(dataset, config.without))
    if config.apart and config.synthetic is None and is_user_path(config):
        return LoadedData(_load_apart(config))
    if config.without and is_user_path(config) and not _are_tables(path):
        raise ValueError(
            f"data.without: expected tables, got {path}, whose sizes or codes follow from all "
            "sites; set data.apart with a schema, or move the files of the site elsewhere"
        )
    if config.synthetic is None and is_user_path(config) and is_image_folder(path):
        return LoadedData(_load_images(config))
    _refuse_window(config)
    if config.synthetic is not None:
        synthetic = sets.synthetic.load(config.synthetic)
        return LoadedData(of_remaining_sites(synthetic, config.without))
    if is_code(config) or not is_user_path(config):
        loaded = sets.load(config.name, imports)
        return LoadedData(of_remaining_sites(loaded, config.without))
    check_regular(path)
    if is_patients(path):
        return LoadedData(_load_patients(config, own_site))
    return _load_tables(config, own_site)


def _are_tables(path: Path) -> bool:
    from equipoise.data.patients.records import is_patients

    return not is_patients(path) and not is_image_folder(path)


def _load_apart(config: DataConfig) -> Dataset:
    """Read the files of every site alone, by the agreed schema, and join the rows."""
    from equipoise.data.own_files import joined, own_files, read_own
    from equipoise.data.tables.sites import without_sites

    path = Path(config.name)
    files = own_files(path)
    datasets = {}
    for site in without_sites(list(files), config.without):
        datasets[site] = read_own(config, site, files[site])
    if config.schema is not None:
        unknown = [site for site in config.schema.sites if site not in files]
        if unknown:
            raise nearest("site under `sites` of the schema", unknown[0], list(files))
    return joined(path.stem, datasets)


def _load_images(config: DataConfig) -> Dataset:
    from equipoise.data.arrays.image_folders import from_image_folder

    size = config.image_size
    if size is None and config.schema is not None and config.schema.shape is not None:
        *_, height, width = config.schema.shape
        size = width if height == width else None
    return from_image_folder(config.name, size, config.window)


def _load_patients(config: DataConfig, own_site: str | None) -> Dataset:
    from equipoise.data.patients import codes, histories
    from equipoise.data.patients.records import read_patients

    path = Path(config.name)
    rule = codes.read_rule(config.codes) if config.codes else codes.PANCREATIC_CANCER
    records = read_patients(path, config.site, rule, own_site=own_site)
    schema = config.schema or Schema()
    vocabulary = tuple(code.name for code in schema.codes) or None
    events = config.events or schema.events
    return histories.dataset_of(records, path.name, events, vocabulary, source="own files")


def _load_tables(config: DataConfig, own_site: str | None) -> LoadedData:
    from equipoise.data.tables.user_tables import dataset_of_tables, read_user_tables

    groups = tuple(config.groups)
    sites = read_user_tables(Path(config.name), config, own_site, groups, config.without)
    dataset = dataset_of_tables(sites, config, groups)
    return LoadedData(dataset, None if sites.arrays else sites)


def is_image_folder(path: Path) -> bool:
    """Return True if a user's path is a folder of images, not of tables or patients.

    Raises:
        ValueError: If it holds one table next to folders of images, so that either could be meant.
    """
    from equipoise.data.arrays.image_folders import holds_images
    from equipoise.data.patients.records import is_patients
    from equipoise.data.tables.sites import site_files

    if not path.is_dir() or is_patients(path):
        return False
    files = site_files(path)
    if len(files) == 1 and holds_images(path):
        raise ValueError(
            f"{path} holds the table {files[0].name} and folders of images; "
            "move the table elsewhere to use the images, or name the table itself as data"
        )
    return not files


def is_code(config: DataConfig) -> bool:
    """Return True if the data are made by a function that the configuration names."""
    return ":" in config.name and not Path(config.name).exists()


def is_user_path(config: DataConfig) -> bool:
    """Return True if the data are a user's files, not a registered data set."""
    from equipoise.data import sets

    return config.name not in sets.names() and Path(config.name).exists()


def with_own_split(config: DataConfig, dataset: Dataset) -> DataConfig:
    """Return the configuration that keeps a user's official split, unless `pool: all` is set.

    Clients that are sites are tested on their site's test part, others on one test set for all.

    Args:
        config: The data section.
        dataset: The data set.
    """
    if not dataset.keeps_parts or config.test != "local" or config.pool == "all":
        return config
    clients_are_sites = dataset.site is not None and config.partition in ("auto", "natural")
    return config.model_copy(update={"test": "site" if clients_are_sites else "global"})


def _refuse_window(config: DataConfig) -> None:
    if config.window is not None:
        raise ValueError(
            f"data.window: expected a folder of image files, got {config.name}; "
            "leave it out, or scale the numbers yourself"
        )


def _resized(dataset: Dataset, size: int | None) -> Dataset:
    if size is None:
        return dataset
    if not dataset.image:
        raise ValueError(f"image_size: {size} is for images and data set {dataset.name} holds none")
    channels = dataset.task.shape[0]
    return replace(
        dataset,
        x=resized(dataset.x, size),
        task=replace(dataset.task, shape=(channels, size, size)),
    )


def _with_latest_events(dataset: Dataset, events: int | None) -> Dataset:
    from equipoise.data.patients.histories import latest

    if events is None:
        return dataset
    if not dataset.codes:
        raise ValueError(
            f"events: {events} is for patients' records and data set {dataset.name} holds none; "
            "leave it out"
        )
    return latest(dataset, events)


def _refuse_mostly_equal(groups: np.ndarray, dataset: Dataset, client: str | None) -> None:
    """Refuse data most of which are one sample: a group of duplicates stays on one side."""
    if len(groups) > 1 and np.bincount(groups).max() > len(groups) / 2:
        owner = f"data set {dataset.name}" if client is None else f"client {quoted(client)}"
        raise ValueError(
            f"{owner}: more than half of its samples are equal to each other, "
            "so they cannot be split without putting equal samples on both sides; "
            "set duplicates: separate if they are different cases"
        )


def _pool_and_shared_test(
    config: DataConfig, seed: int, dataset: Dataset, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples to partition, and the test set that all clients share."""
    has_official_test = _has_official_test(dataset)
    keeps_official_test = has_official_test and config.test != "local"
    _check_test_and_pool(config, dataset, has_official_test, keeps_official_test)
    pool = np.arange(len(dataset.x))
    if dataset.part is not None and (config.pool == "train" or keeps_official_test):
        in_pool = dataset.part == TRAIN
        if dataset.keeps_parts:
            # A user's validation samples are partitioned, too: `_split_partition` separates them.
            in_pool = dataset.part != TEST
        pool = np.flatnonzero(in_pool)
    if config.test != "global":
        return pool, np.empty(0, np.int64)
    if has_official_test:
        return pool, np.flatnonzero(dataset.part == TEST)
    return _split_off_test(config, seed, dataset, pool, groups)


def _has_official_test(dataset: Dataset) -> bool:
    return dataset.part is not None and bool((dataset.part == TEST).any())


def _kind_of_test(config: DataConfig, dataset: Dataset) -> str:
    """Return whose samples clients are tested on: "drawn" is a test set without official part."""
    if config.test == "global" and not _has_official_test(dataset):
        return "drawn"
    return config.test


def _check_test_and_pool(
    config: DataConfig, dataset: Dataset, has_official_test: bool, keeps_official_test: bool
) -> None:
    """Refuse values of `test` and `pool` that the data set does not allow."""
    if config.test == "site" and not (has_official_test and dataset.site is not None):
        raise ValueError(
            f"test: site needs official test parts of sites, which data set {dataset.name} "
            "has not; use local or global"
        )
    if config.pool == "all" and keeps_official_test:
        raise ValueError(
            f"test: {config.test} keeps the official test part of {dataset.name}, "
            "so pool: all would train on it; use pool: train"
        )
    if config.pool == "train" and dataset.part is None:
        raise ValueError(
            f"pool: train needs an official split, which data set {dataset.name} has not; "
            "use pool: all"
        )
    if config.test == "global" and not has_official_test and config.split[2] == 0:
        raise ValueError(
            f"data set {dataset.name} has no official test part; "
            "give split a test share for the shared test set"
        )


def _split_off_test(
    config: DataConfig, seed: int, dataset: Dataset, pool: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pool without a test set for all clients, and that test set."""
    test_share = config.split[2]
    rest, _, test = split(
        Parts.of([pool]), (1 - test_share, 0.0, test_share), seed, _strata(dataset), groups
    )
    return rest[0], test[0]


def _hold_out(
    config: DataConfig, seed: int, dataset: Dataset, pool: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pool without the server's own validation set, and that set.

    It is drawn from a stream of its own, so that data without it stay as they are.
    """
    share = config.server_validation
    if not share:
        return pool, np.empty(0, np.int64)
    shares = (1 - share, share, 0.0)
    rest, held_out, _ = split(
        Parts.of([pool]), shares, seed, _strata(dataset), groups, SERVER_VALIDATION
    )
    if not len(held_out[0]):
        raise ValueError(
            f"data.server_validation: expected a share with at least one of the {len(pool)} "
            f"samples, got {share:g}; use a larger share, or leave it out"
        )
    return rest[0], held_out[0]


def _partition(config: DataConfig, seed: int, dataset: Dataset, rows: np.ndarray) -> Partition:
    """Return the rows of the data set of each client, every client with its name."""
    if config.clients is not None and config.clients > len(rows):
        raise ValueError(
            f"data.clients: expected at most {len(rows)}, the number of samples of {dataset.name} "
            f"that are partitioned, got {config.clients}; ask for fewer clients, or use more data"
        )
    pool = Pool(
        y=dataset.y.numpy()[rows],
        classes=dataset.task.outputs if dataset.task.classifies else 0,
        site=None if dataset.site is None else dataset.site[rows],
        site_names=dataset.site_names,
        features=lambda: _features(dataset, rows),
    )
    rule = config.partition
    if rule == "auto":
        rule = "natural" if dataset.site is not None else "iid"
    clients = config.clients or _default_clients(rule, pool)
    partition = partition_pool(rule, pool, clients, seed)
    ids = partition.ids or tuple(str(k) for k in range(len(partition.parts)))
    return replace(partition, parts=partition.parts.through(rows), ids=ids)


def _default_clients(rule: Any, pool: Pool) -> int:
    """Return the number of clients where the user chose none."""
    name = parse(rule)[0] if isinstance(rule, str) else ""
    sites = 0 if pool.site is None else len(np.unique(pool.site))
    if name == "natural":
        return sites
    if name == "domains":
        return 5 * sites
    if name == "cla":
        return min(DEFAULT_CLIENTS, pool.classes)
    return DEFAULT_CLIENTS


def _features(dataset: Dataset, rows: np.ndarray) -> np.ndarray:
    """Return flattened inputs for partitions that use them.

    Pixels are as stored, with large images at 32x32; columns of a table are standardised.
    """
    x = dataset.x[rows]
    if dataset.image and x.shape[-1] > _LARGE_IMAGE:
        x = resized(x, _SMALL_IMAGE)
    flat = x.reshape(len(x), -1).numpy()
    if not dataset.columns:
        return np.asarray(flat)
    columns = np.ma.masked_invalid(flat)
    standardised = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    # Gaps become 0, the mean. So does a column that does not vary: division by 0 masks it.
    return np.asarray(standardised.filled(0))


def _split_partition(
    config: DataConfig,
    seed: int,
    dataset: Dataset,
    partition: Partition,
    groups: np.ndarray,
    shared_test: np.ndarray,
    client: str | None,
) -> DataSplit:
    """Return the training, validation and test samples of each client.

    A client whose data are prepared alone draws from its own stream.
    """
    strata = _strata(dataset)
    parts = partition.parts
    if config.test == "local":
        return DataSplit(*split(parts, config.split, seed, strata, groups, client), shared_test)
    if dataset.keeps_parts and dataset.part is not None and (dataset.part == VALIDATION).any():
        official = dataset.part[parts.index]
        train = parts.where(official == TRAIN)
        validation = parts.where(official == VALIDATION)
        test = parts.where(official == TEST)
    else:
        train_share, validation_share, _ = config.split
        total = train_share + validation_share
        shares = (train_share / total, validation_share / total, 0.0)
        train, validation, test = split(parts, shares, seed, strata, groups, client)
    if config.test == "site":
        test = _site_tests(dataset, parts)
    return DataSplit(train, validation, test, shared_test)


def _site_tests(dataset: Dataset, parts: Parts) -> Parts:
    """Return for each client the official test samples of its site."""
    assert dataset.site is not None and dataset.part is not None  # checked with the pool
    tests: dict[int, np.ndarray] = {}
    by_client = []
    for rows in parts:
        site = int(dataset.site[rows[0]]) if len(rows) else -1
        if site not in tests:
            tests[site] = np.flatnonzero((dataset.site == site) & (dataset.part == TEST))
        by_client.append(tests[site])
    return Parts.of(by_client)


def _strata(dataset: Dataset) -> np.ndarray | None:
    """Return what a split is stratified by: the class, or in survival analysis the event."""
    if dataset.task.survives:
        return np.asarray(np.signbit(dataset.y.numpy()), np.int64)
    return np.asarray(dataset.y.numpy()) if dataset.task.classifies else None

"""Prepared inputs: samples of a data set as float tensors, and new data prepared alike."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.data.agreement import check_complete, check_scaling, task_of
from equipoise.data.arrays.images import IMAGE_ENDINGS, read_images
from equipoise.data.arrays.npz import read_npz
from equipoise.data.arrays.transforms import NORMALISATIONS, normalised, resized
from equipoise.data.arrays.user_data import images_first
from equipoise.data.config import DataConfig
from equipoise.data.dataset import Column, Dataset
from equipoise.data.federation import DataSplit, Federation, Parts
from equipoise.data.groups import names_of_cells
from equipoise.data.patients import histories
from equipoise.data.patients.codes import PANCREATIC_CANCER, LabelRule, read_rule
from equipoise.data.patients.records import Records, read_patients
from equipoise.data.schema import ColumnSchema, Kind, Schema, schema_from
from equipoise.data.tables import encoding
from equipoise.data.tables.cell_numbers import column_as_numbers
from equipoise.data.tables.repairs import Table
from equipoise.data.tables.schema_inference import schema_of
from equipoise.data.tables.sites import Origin, origin_of, read_new_rows, repair_table
from equipoise.validation.names import quoted

NewData = Path | str | np.ndarray | Tensor
Recipe = dict[str, Any]


@dataclass(frozen=True, eq=False)
class _Inputs:
    """Prepared inputs of all clients.

    Attributes:
        x: The inputs.
        rows: The row of the data set from which each input was made.
        split: The split of the data set, as positions in `x`.
        recipe: The steps that made them, for new data.
    """

    x: Tensor
    rows: np.ndarray
    split: DataSplit
    recipe: Recipe


def prepare(
    dataset: Dataset,
    config: DataConfig,
    ids: tuple[str, ...],
    split: DataSplit,
    metadata: dict[str, Any],
) -> Federation:
    """Return a federation with the prepared samples of all clients, and no others.

    Args:
        dataset: The data set.
        config: The data section.
        ids: The names of the clients.
        split: The samples of the clients, as rows of the data set.
        metadata: Facts about the data that a run records.

    Raises:
        ValueError: If `normalise` or `augment` does not fit the kind of data.
    """
    if dataset.columns:
        inputs = _prepare_table(dataset, config, ids, split)
    elif dataset.codes:
        inputs = _prepare_histories(dataset, config, split)
    else:
        inputs = _prepare_arrays(dataset, config, split)
    task = replace(dataset.task, shape=tuple(inputs.x.shape[1:]))
    recipe = inputs.recipe
    recipe["class_names"] = list(task.class_names)
    recipe["schema"] = (dataset.schema or schema_of(dataset)).plain()
    y = dataset.y[inputs.rows].contiguous()
    if not task.classifies:
        centre, scale = _centre_and_scale(dataset, np.unique(split.train.index))
        task = replace(task, centre=centre, scale=scale)
        y = ((y.double() - centre) / scale).float()
    return Federation(
        name=dataset.name,
        task=task,
        x=inputs.x,
        y=y,
        ids=ids,
        train=inputs.split.train,
        validation=inputs.split.validation,
        test=inputs.split.test,
        shared_test=inputs.split.shared_test,
        augment=config.augment,
        metadata=metadata,
        recipe=recipe,
        source=inputs.rows,
        held_out=inputs.split.held_out,
    )


def _centre_and_scale(dataset: Dataset, train: np.ndarray) -> tuple[float, float]:
    """Return the mean and deviation by which targets are standardised.

    They are those of the schema, else those of all clients' training rows. In survival analysis
    they are 0 and the horizon, which is the longest training time.
    """
    schema = dataset.schema
    if schema is not None and schema.centre is not None and schema.scale is not None:
        return schema.centre, schema.scale
    if not len(train):
        return 0.0, 1.0
    y = dataset.y.double().numpy()[train]
    if dataset.task.survives:
        return 0.0, float(np.abs(y).max()) or 1.0
    return float(y.mean()), float(y.std()) or 1.0


def _prepare_arrays(dataset: Dataset, config: DataConfig, split: DataSplit) -> _Inputs:
    """Prepare images and plain arrays: every row in the same way, whichever client has it."""
    name = "none" if config.normalise == "auto" else config.normalise
    if name not in NORMALISATIONS:
        raise ValueError(
            f"normalise: {name} is for tables and {dataset.name} is none; "
            f"use one of {', '.join(NORMALISATIONS)}"
        )
    if config.augment and not dataset.image:
        raise ValueError(
            f"augment: {', '.join(config.augment)} is for images and {dataset.name} holds none; "
            "leave it out"
        )
    rows = split.used_rows()
    used = dataset.x if len(rows) == len(dataset.x) else dataset.x[rows]
    x = normalised(used, name)
    recipe: Recipe = {
        "kind": "image" if dataset.image else "array",
        "pixels": dataset.x.dtype == torch.uint8,
        "normalise": name,
        "shape": list(x.shape[1:]),
    }
    if dataset.pixel_kinds:
        recipe["pixel_kinds"] = list(dataset.pixel_kinds)
    if config.window is not None:
        recipe["window"] = list(config.window)
    return _Inputs(x, rows, split.through(_positions(rows, len(dataset.x))), recipe)


def recipe_without_data(config: DataConfig) -> Recipe:
    """Return the recipe of inputs that a server without data may keep.

    It follows from the schema and the scaling. No client's statistics are in it.

    Args:
        config: The data section, with `apart`.
    """
    schema = check_complete(config.schema)
    if schema.inputs:
        scaling = "client" if config.normalise == "auto" else config.normalise
        columns = tuple(Column(column.name, column.categories) for column in schema.inputs)
        no_rows = np.empty((0, len(columns)))
        recipe = encoding.fit(no_rows, columns, schema.inputs, Parts.of([]), (), scaling)
    elif schema.codes:
        no_histories = np.empty((0, *task_of(schema).shape))
        names = tuple(code.name for code in schema.codes)
        recipe = histories.agreed(no_histories, names, schema.codes)
    else:
        shape = list(task_of(schema).shape)
        recipe = {
            "kind": "image" if len(shape) == 3 else "array",
            "pixels": False,
            "normalise": "none" if config.normalise == "auto" else config.normalise,
            "shape": shape,
        }
    recipe = {**recipe, "class_names": list(schema.classes), "schema": schema.plain()}
    if config.groups:
        recipe["groups"] = {column: list(edges) for column, edges in config.groups.items()}
    return recipe


def _positions(rows: np.ndarray, total: int) -> np.ndarray:
    """Return for every row of a data set its position among the used rows; -1 if unused."""
    positions = np.full(total, -1)
    positions[rows] = np.arange(len(rows))
    return positions


def _prepare_histories(dataset: Dataset, config: DataConfig, split: DataSplit) -> _Inputs:
    """Prepare patients' histories: values are scaled per code.

    Centre and scale of a code are those of the schema if clients agreed on them, else mean and
    deviation of all clients' training data.
    """
    if config.normalise not in ("auto", "pooled", "agreed") or config.augment:
        raise ValueError(
            f"{dataset.name} holds patients' histories, which are scaled by code over all clients; "
            "leave normalise and augment out"
        )
    rows = split.used_rows()
    raw = dataset.x.numpy()
    if config.apart or config.normalise == "agreed":
        codes = dataset.schema.codes if dataset.schema is not None else ()
        recipe = histories.agreed(raw, dataset.codes, codes)
    else:
        recipe = histories.fit(raw, dataset.codes, split.train)
    if config.codes:  # new patients' events end where those of the training patients did
        recipe["label_codes"] = [list(pair) for pair in read_rule(config.codes).codes]
    x = torch.from_numpy(histories.apply(raw[rows], recipe))
    return _Inputs(x, rows, split.through(_positions(rows, len(dataset.x))), recipe)


def _prepare_table(
    dataset: Dataset, config: DataConfig, ids: tuple[str, ...], split: DataSplit
) -> _Inputs:
    """Prepare tables: a row is scaled by the client that has it, so each has its own copy."""
    scaling = _table_scaling(dataset, config, split)
    raw = dataset.x.numpy()
    schema = dataset.schema or schema_of(dataset)
    recipe = encoding.fit(raw, dataset.columns, schema.inputs, split.train, ids, scaling)
    coded = encoding.recode(raw, dataset.columns, recipe)
    blocks = []
    rows = []
    parts = []
    start = 0
    for part in (split.train, split.validation, split.test):
        for client, client_rows in zip(ids, part, strict=True):
            blocks.append(encoding.apply(coded[client_rows], recipe, client))
        end = start + len(part.index)
        rows.append(part.index)
        parts.append(Parts(np.arange(start, end), part.offsets))
        start = end
    common = []
    for own_rows in (split.shared_test, split.held_out):
        if len(own_rows):
            blocks.append(encoding.apply(coded[own_rows], recipe, None))
            rows.append(own_rows)
        common.append(np.arange(start, start + len(own_rows)))
        start += len(own_rows)
    x = np.concatenate(blocks)
    if scaling == "agreed":
        _check_agreed_scale(x, recipe)
    train, validation, test = parts
    new_split = DataSplit(train, validation, test, *common)
    return _Inputs(torch.from_numpy(x), np.concatenate(rows), new_split, recipe)


def _check_agreed_scale(x: np.ndarray, recipe: Recipe) -> None:
    """Refuse a scale of the schema that is far too small for the numbers of a column."""
    infinite = np.flatnonzero(~np.isfinite(x).all(axis=0))
    if len(infinite):
        raise ValueError(
            f"column {quoted(recipe['features'][infinite[0]])}: its numbers become infinite with "
            "the centre and scale of the schema; correct them there"
        )


def _table_scaling(dataset: Dataset, config: DataConfig, split: DataSplit) -> str:
    """Return the scaling of a table: client, pooled, agreed or none."""
    has_common_rows = len(split.shared_test) > 0 or len(split.held_out) > 0
    scaling = config.normalise
    if scaling == "auto":
        scaling = "pooled" if has_common_rows else "client"
    if scaling not in ("client", "pooled", "agreed", "none"):
        raise ValueError(
            f"normalise: {scaling} is for images and {dataset.name} is a table; "
            "use client, pooled, agreed or none"
        )
    if scaling == "agreed":
        check_scaling(dataset.schema or schema_of(dataset))
    if scaling == "client" and has_common_rows:
        raise ValueError(
            "normalise: client has no statistics for samples that belong to no client, such as a "
            "test set that all share; use pooled, agreed or none, or test: local without "
            "server_validation"
        )
    if config.augment:
        raise ValueError(
            f"augment: {', '.join(config.augment)} is for images and {dataset.name} is a table; "
            "leave it out"
        )
    return scaling


def inputs_from(data: NewData, recipe: Recipe, client: str | None = None) -> Tensor:
    """Return new data as model inputs, by the recipe of a run.

    Args:
        data: Of a table, a CSV, Parquet or NPZ file, or an array with the recipe's columns in
            order; the repairs of the run's schema are applied. Of images, a file, a folder of
            files, an NPZ file with `x`, or an array. Of patients, a folder or an array.
        recipe: The recipe of the run.
        client: The client whose statistics scale a table and, where clients are sites, whose
            repairs it needs.

    Raises:
        ValueError: If the data cannot be read, or do not fit the recipe.
    """
    if recipe["kind"] == "table":
        coded = _coded_columns(data, recipe, client)
        return torch.from_numpy(encoding.apply(coded, recipe, client))
    if recipe["kind"] == "histories":
        return _patient_inputs(data, recipe)
    x = torch.tensor(_read_samples(Path(data) if isinstance(data, str) else data, recipe))
    shape = recipe["shape"]
    if recipe["kind"] == "image" and shape[-2] == shape[-1]:
        x = resized(x, shape[-1])
    if list(x.shape[1:]) != shape:
        raise ValueError(f"expected samples of shape {tuple(shape)}, got {tuple(x.shape[1:])}")
    if recipe["pixels"] and x.dtype != torch.uint8:
        raise ValueError(
            "this model was trained on whole-number pixels 0..255 (uint8), "
            f"got {x.dtype}; convert the images"
        )
    return normalised(x, recipe["normalise"])


def new_groups(data: Path, recipe: Recipe, client: str | None, column: str) -> list[str]:
    """Return the group of each row of new data, for a model whose thresholds differ by group.

    Args:
        data: A table.
        recipe: The recipe of the run.
        client: The client whose repairs are applied.
        column: The column by which rows are grouped.

    Raises:
        ValueError: If the data are no table, or lack the column.
    """
    if recipe["kind"] != "table":
        raise ValueError(
            f"the thresholds of this model differ by {quoted(column)}, which only a table can have"
        )
    names = [entry["name"] for entry in recipe["columns"]]
    schema = schema_from(recipe.get("schema")) or Schema()
    table, _ = read_new_rows(data, schema, [*names, column], client)
    if column not in table:
        raise ValueError(
            f"{data} lacks the column {quoted(column)}; the thresholds of this model differ by it"
        )
    return names_of_cells(table[column], tuple(recipe["groups"].get(column, ())), column)


def new_patients(folder: Path | str, recipe: Recipe) -> Records:
    """Return the patients of a folder for prediction, whatever their site."""
    rule = PANCREATIC_CANCER
    label_codes = recipe.get("label_codes")
    if label_codes:
        rule = LabelRule(tuple((system, code) for system, code in label_codes))
    records = read_patients(folder, rule=rule, anywhere=True)
    for note in records.notes:
        logging.getLogger("equipoise").warning(note)
    return records


def _patient_inputs(data: NewData, recipe: Recipe) -> Tensor:
    if isinstance(data, (str, Path)):
        return histories.inputs_of(new_patients(data, recipe), recipe)
    values = np.asarray(data, np.float32)
    if list(values.shape[1:]) != recipe["shape"]:
        raise ValueError(
            f"expected histories of shape {tuple(recipe['shape'])}, or the folder of patients.csv "
            f"and events.csv, got {values.shape[1:]}"
        )
    return torch.from_numpy(histories.apply(values, recipe))


def _coded_columns(data: NewData, recipe: Recipe, client: str | None) -> np.ndarray:
    """Return the columns of a recipe as numbers, repaired as in training."""
    table, origin = _new_table(data, recipe, client)
    names = [column["name"] for column in recipe["columns"]]
    missing = [name for name in names if name not in table]
    if missing:
        raise ValueError(
            f"{data} lacks the columns {', '.join(missing)}; the model needs {', '.join(names)}"
        )
    numbers = []
    for description in recipe["columns"]:
        column = _column_schema(description)
        numbers.append(column_as_numbers(table[column.name], column, origin.of_row))
    return np.stack(numbers, axis=1)


def _new_table(data: NewData, recipe: Recipe, client: str | None) -> tuple[Table, Origin]:
    """Return new rows with the names and repairs of the run's schema, and their file and lines."""
    names = [column["name"] for column in recipe["columns"]]
    schema = schema_from(recipe.get("schema")) or Schema()  # an older run has none
    _warn_of_site_repairs(schema, recipe, client)
    if isinstance(data, (str, Path)):
        return read_new_rows(Path(data), schema, names, client)
    values = np.asarray(data)
    if values.ndim != 2 or values.shape[1] != len(names):
        raise ValueError(
            f"expected {len(names)} columns ({', '.join(names)}), "
            f"got an array of shape {values.shape}"
        )
    table = {name: values[:, index] for index, name in enumerate(names)}
    origin = origin_of("array", table)
    return repair_table("array", table, schema.repairs_of(client)), origin


def _warn_of_site_repairs(schema: Schema, recipe: Recipe, client: str | None) -> None:
    """Warn if the schema has repairs of single sites and the site of new rows is not known."""
    clients_are_sites = schema.sites.keys() <= recipe["clients"].keys()
    is_site = client in recipe["clients"] and clients_are_sites
    if schema.sites and client not in schema.sites and not is_site:
        logging.getLogger("equipoise").warning(
            "the schema of this run has repairs for single sites (%s), and these rows are read "
            "without them; name the site with --client (in Python client=) if they are from there",
            ", ".join(schema.sites),
        )


def _column_schema(description: dict[str, Any]) -> ColumnSchema:
    """Return the schema of a column of a recipe.

    A run of an older version has no formats of dates, and no category if training saw none.
    """
    formats = tuple(description.get("formats", ()))
    categories = tuple(description["categories"])
    kind: Kind = "number"
    if description["categorical"]:
        kind = "category"
        categories = categories or ("",)
    elif formats:
        kind = "date"
    return ColumnSchema(name=description["name"], kind=kind, categories=categories, formats=formats)


def new_images(data: Path) -> list[Path]:
    """Return the image files to predict for.

    Args:
        data: One file, or a folder whose images lie in it or up to three folders deep, as for
            training.

    Raises:
        ValueError: If a folder holds no image.
    """
    if not data.is_dir():
        return [data]
    files = []
    for depth in ("*", "*/*", "*/*/*", "*/*/*/*"):
        for file in data.glob(depth):
            is_image = file.suffix.lower() in IMAGE_ENDINGS and not file.name.startswith(".")
            if is_image and file.is_file():
                files.append(file)
    if not files:
        raise ValueError(
            f"no images found in {data}, nor in folders inside it; "
            f"expected {', '.join(IMAGE_ENDINGS)}"
        )
    return sorted(files)


def _read_new_images(files: list[Path], recipe: Recipe) -> np.ndarray:
    """Read new images as those of training; runs of older versions have no window."""
    channels, height, width = recipe["shape"]
    window = recipe.get("window")
    images, report = read_images(
        files,
        (height, width),
        channels,
        tuple(window) if window else None,
        recipe.get("pixel_kinds", ()),
    )
    for finding in report.findings():
        logging.getLogger("equipoise").warning(finding.message)
    return images


def _read_samples(data: Path | np.ndarray | Tensor, recipe: Recipe) -> np.ndarray:
    """Return new images or arrays as the model expects them, with a dimension for samples."""
    is_image = recipe["kind"] == "image"
    if isinstance(data, Path) and is_image and data.suffix != ".npz":
        return _read_new_images(new_images(data), recipe)
    values = _read_npz_samples(data) if isinstance(data, Path) else np.asarray(data)
    if values.dtype.kind not in "biuf":
        raise ValueError(f"expected numbers in x, got {values.dtype}")
    if values.dtype != np.uint8:
        values = values.astype(np.float32)
    if is_image:
        return images_first(values if values.ndim > 2 else values[None])
    return values if values.ndim > len(recipe["shape"]) else values[None]


def _read_npz_samples(file: Path) -> np.ndarray:
    if file.suffix != ".npz":
        raise ValueError(f"expected an NPZ file with an array x, got {file}")
    arrays = read_npz(file)
    if "x" not in arrays:
        raise ValueError(f"{file} has no array x; it has {', '.join(arrays)}")
    return np.asarray(arrays["x"])

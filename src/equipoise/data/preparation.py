"""The last step to a federation: rows that somebody holds become float inputs, once."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.data.arrays.images import IMAGE_ENDINGS, read_images
from equipoise.data.arrays.npz import read_npz
from equipoise.data.arrays.transforms import NORMALISATIONS, normalised, resized
from equipoise.data.arrays.user_data import images_first
from equipoise.data.config import DataConfig
from equipoise.data.dataset import Dataset
from equipoise.data.federation import Federation, Parts
from equipoise.data.patients import histories
from equipoise.data.patients.codes import PANCREATIC_CANCER, LabelRule, read_rule
from equipoise.data.patients.records import Records, read_patients
from equipoise.data.schema import ColumnSchema, Kind, Schema, schema_from
from equipoise.data.tables import encoding
from equipoise.data.tables.repairs import Table, repair_cells
from equipoise.data.tables.schema_inference import schema_of
from equipoise.data.tables.sites import Origin, coded, origin_of, read_new_rows


def prepared(
    dataset: Dataset,
    config: DataConfig,
    ids: tuple[str, ...],
    parts: tuple[Parts, Parts, Parts, np.ndarray],
    metadata: dict[str, Any],
) -> Federation:
    """A federation whose tensors hold only what some client or the shared test set needs."""
    make = _table if dataset.columns else _histories if dataset.codes else _array
    x, rows, (train, validation, test, shared), recipe = make(dataset, config, ids, parts)
    task = replace(dataset.task, shape=tuple(x.shape[1:]))
    recipe["class_names"] = list(task.class_names)
    recipe["schema"] = (dataset.schema or schema_of(dataset)).plain()
    y = dataset.y[rows].contiguous()
    if not task.classifies:
        centre, scale = _centre_and_scale(dataset, np.unique(parts[0].index))
        task = replace(task, centre=centre, scale=scale)
        y = ((y.double() - centre) / scale).float()
    return Federation(
        dataset.name,
        task,
        x,
        y,
        ids,
        train,
        validation,
        test,
        shared,
        config.augment,
        metadata,
        recipe,
        rows,
    )


def _centre_and_scale(dataset: Dataset, train: np.ndarray) -> tuple[float, float]:
    """What the targets are standardised by: what the schema says, else mean and deviation of all clients' training rows."""
    schema = dataset.schema
    if schema is not None and schema.centre is not None and schema.scale is not None:
        return schema.centre, schema.scale
    y = dataset.y.double().numpy()[train]
    return (float(y.mean()), float(y.std()) or 1.0) if len(y) else (0.0, 1.0)


def _array(
    dataset: Dataset,
    config: DataConfig,
    ids: tuple[str, ...],
    parts: tuple[Parts, Parts, Parts, np.ndarray],
) -> tuple[Tensor, np.ndarray, tuple[Parts, Parts, Parts, np.ndarray], dict[str, Any]]:
    """Images and plain arrays: every row is prepared alike, whoever holds it."""
    name = "none" if config.normalise == "auto" else config.normalise
    if name not in NORMALISATIONS:
        raise ValueError(
            f"normalise: {name} is for tables and {dataset.name} is none; use one of {', '.join(NORMALISATIONS)}"
        )
    if config.augment and not dataset.image:
        raise ValueError(
            f"augment: {', '.join(config.augment)} is for images and {dataset.name} holds none"
        )
    train, validation, test, shared = parts
    held = np.zeros(len(dataset.x), dtype=bool)
    for index in (train.index, validation.index, test.index, shared):
        held[index] = True
    rows = np.flatnonzero(held)
    place = np.full(len(dataset.x), -1)
    place[rows] = np.arange(len(rows))
    x = normalised(dataset.x if len(rows) == len(dataset.x) else dataset.x[rows], name)
    pixels = dataset.x.dtype == torch.uint8
    recipe: dict[str, Any] = {
        "kind": "image" if dataset.image else "array",
        "pixels": pixels,
        "normalise": name,
        "shape": list(x.shape[1:]),
    }
    if dataset.pixel_kinds:
        recipe["pixel_kinds"] = list(dataset.pixel_kinds)
    if config.window is not None:
        recipe["window"] = list(config.window)
    return (
        x,
        rows,
        (train.through(place), validation.through(place), test.through(place), place[shared]),
        recipe,
    )


def _histories(
    dataset: Dataset,
    config: DataConfig,
    ids: tuple[str, ...],
    parts: tuple[Parts, Parts, Parts, np.ndarray],
) -> tuple[Tensor, np.ndarray, tuple[Parts, Parts, Parts, np.ndarray], dict[str, Any]]:
    """Patients' histories: values on the scale that all clients' training patients give their codes."""
    if config.normalise not in ("auto", "pooled") or config.augment:
        raise ValueError(
            f"{dataset.name} holds patients' histories, which are scaled by code over all clients; leave normalise and augment out"
        )
    train, validation, test, shared = parts
    rows = np.unique(np.concatenate([train.index, validation.index, test.index, shared]))
    place = np.full(len(dataset.x), -1)
    place[rows] = np.arange(len(rows))
    recipe = histories.fit(dataset.x.numpy(), dataset.codes, train)
    if config.codes:  # new patients' events end where those of the training patients did
        recipe["label_codes"] = [list(pair) for pair in read_rule(config.codes).codes]
    x = torch.from_numpy(histories.apply(dataset.x.numpy()[rows], recipe))
    return (
        x,
        rows,
        (train.through(place), validation.through(place), test.through(place), place[shared]),
        recipe,
    )


def _table(
    dataset: Dataset,
    config: DataConfig,
    ids: tuple[str, ...],
    parts: tuple[Parts, Parts, Parts, np.ndarray],
) -> tuple[Tensor, np.ndarray, tuple[Parts, Parts, Parts, np.ndarray], dict[str, Any]]:
    """Tables: a row is prepared by the client that holds it, so each holder has its own copy."""
    train, validation, test, shared = parts
    scaling = config.normalise
    if scaling == "auto":
        scaling = "pooled" if len(shared) else "client"
    if scaling not in ("client", "pooled", "none"):
        raise ValueError(
            f"normalise: {scaling} is for images and {dataset.name} is a table; use client, pooled or none"
        )
    if scaling == "client" and len(shared):
        raise ValueError(
            "normalise: client has no statistics for a test set that all clients share; use pooled or none, or test: local"
        )
    if config.augment:
        raise ValueError(
            f"augment: {', '.join(config.augment)} is for images and {dataset.name} is a table"
        )
    raw = dataset.x.numpy()
    schema = dataset.schema or schema_of(dataset)
    recipe = encoding.fit(raw, dataset.columns, schema.inputs, train, ids, scaling)
    coded = encoding.recode(raw, dataset.columns, recipe)
    blocks, rows, moved, start = [], [], [], 0
    for part in (train, validation, test):
        blocks += [
            encoding.apply(coded[held], recipe, name) for name, held in zip(ids, part, strict=True)
        ]
        rows.append(part.index)
        moved.append(Parts(np.arange(start, start + len(part.index)), part.offsets))
        start += len(part.index)
    if len(shared):
        blocks.append(encoding.apply(coded[shared], recipe, None))
        rows.append(shared)
    x = torch.from_numpy(np.concatenate(blocks))
    return (
        x,
        np.concatenate(rows),
        (moved[0], moved[1], moved[2], np.arange(start, start + len(shared))),
        recipe,
    )


def inputs_from(
    data: Path | str | np.ndarray | Tensor, recipe: dict[str, Any], client: str | None = None
) -> Tensor:
    """New data as model inputs, by the recipe of a run.

    Tables: a CSV, Parquet or NPZ file, or an array with the recipe's columns in order; the repairs of the run's schema are
    applied to them. Images: a file, a folder of files, an NPZ file with `x`, or an array. `client` says whose statistics scale a
    table and, where clients are sites, whose repairs it needs.
    """
    if recipe["kind"] == "table":
        return torch.from_numpy(encoding.apply(_coded(data, recipe, client), recipe, client))
    if recipe["kind"] == "histories":
        return _of_patients(data, recipe)
    values = _values(Path(data) if isinstance(data, str) else data, recipe)
    x = torch.tensor(values)
    if recipe["kind"] == "image" and recipe["shape"][-2] == recipe["shape"][-1]:
        x = resized(x, recipe["shape"][-1])
    if list(x.shape[1:]) != recipe["shape"]:
        raise ValueError(
            f"expected samples of shape {tuple(recipe['shape'])}, got {tuple(x.shape[1:])}"
        )
    if recipe["pixels"] and x.dtype != torch.uint8:
        raise ValueError(
            f"this model was trained on whole-number pixels 0..255 (uint8), got {x.dtype}; convert the images"
        )
    return normalised(x, recipe["normalise"])


def new_patients(folder: Path | str, recipe: dict[str, Any]) -> Records:
    """The patients of a folder that are to be predicted, of whatever site."""
    told = recipe.get("label_codes")
    rule = LabelRule(tuple((system, code) for system, code in told)) if told else PANCREATIC_CANCER
    records = read_patients(folder, rule=rule, anywhere=True)
    for note in records.notes:
        logging.getLogger("equipoise").warning(note)
    return records


def _of_patients(data: Path | str | np.ndarray | Tensor, recipe: dict[str, Any]) -> Tensor:
    if isinstance(data, (str, Path)):
        return histories.inputs_of(new_patients(data, recipe), recipe)
    values = np.asarray(data, np.float32)
    if list(values.shape[1:]) != recipe["shape"]:
        raise ValueError(
            f"expected histories of shape {tuple(recipe['shape'])}, or the folder of patients.csv and events.csv, got {values.shape[1:]}"
        )
    return torch.from_numpy(histories.apply(values, recipe))


def _coded(
    data: Path | str | np.ndarray | Tensor, recipe: dict[str, Any], client: str | None
) -> np.ndarray:
    """The columns of a recipe as numbers, repaired as in training."""
    table, origin = _new_table(data, recipe, client)
    names = [c["name"] for c in recipe["columns"]]
    missing = [name for name in names if name not in table]
    if missing:
        raise ValueError(
            f"{data} lacks the columns {', '.join(missing)}; the model needs {', '.join(names)}"
        )
    columns = [_column(described) for described in recipe["columns"]]
    return np.stack([coded(table[one.name], one, origin.of_row) for one in columns], axis=1)


def _new_table(
    data: Path | str | np.ndarray | Tensor, recipe: dict[str, Any], client: str | None
) -> tuple[Table, Origin]:
    """New rows with the names and repairs of the run's schema, and where they come from."""
    names = [c["name"] for c in recipe["columns"]]
    schema = schema_from(recipe.get("schema")) or Schema()  # an older run has none
    is_site = client in recipe["clients"] and schema.sites.keys() <= recipe["clients"].keys()
    if schema.sites and client not in schema.sites and not is_site:
        logging.getLogger("equipoise").warning(
            "the schema of this run has repairs of its own for %s, and these rows are read without "
            "them; name the site with --client (in Python client=) if they are from there",
            ", ".join(schema.sites),
        )
    if isinstance(data, (str, Path)):
        return read_new_rows(Path(data), schema, names, client)
    values = np.asarray(data)
    if values.ndim != 2 or values.shape[1] != len(names):
        raise ValueError(
            f"expected {len(names)} columns ({', '.join(names)}), got an array of shape {values.shape}"
        )
    table = {name: values[:, j] for j, name in enumerate(names)}
    repairs = schema.repairs_of(client)
    origin = origin_of("array", table)
    return repair_cells({"array": table}, {"array": repairs}, {"array": False}, True)[
        "array"
    ], origin


def _column(described: dict[str, Any]) -> ColumnSchema:
    """A column of a recipe; one of an older run has no formats of dates, and no category if training saw none."""
    formats, categories = tuple(described.get("formats", ())), tuple(described["categories"])
    kind: Kind = "category" if described["categorical"] else "date" if formats else "number"
    return ColumnSchema(
        name=described["name"],
        kind=kind,
        categories=categories or (("",) if kind == "category" else ()),
        formats=formats,
    )


def new_images(data: Path) -> list[Path]:
    """The image files to predict for: one file, or all in a folder, in folders of sites or classes, or laid out as for training."""
    if not data.is_dir():
        return [data]
    files = sorted(
        file
        for depth in ("*", "*/*", "*/*/*", "*/*/*/*")
        for file in data.glob(depth)
        if file.suffix.lower() in IMAGE_ENDINGS and not file.name.startswith(".") and file.is_file()
    )
    if not files:
        raise ValueError(
            f"no images found in {data}, nor in folders inside it; expected {', '.join(IMAGE_ENDINGS)}"
        )
    return files


def _images(files: list[Path], recipe: dict[str, Any]) -> np.ndarray:
    """New images, read as those of training were; runs of older versions have no window."""
    channels, height, width = recipe["shape"]
    window = recipe.get("window")
    trained = recipe.get("pixel_kinds", ())
    images, report = read_images(
        files, (height, width), channels, tuple(window) if window else None, trained
    )
    for finding in report.findings():
        logging.getLogger("equipoise").warning(finding.message)
    return images


def _values(data: Path | np.ndarray | Tensor, recipe: dict[str, Any]) -> np.ndarray:
    if isinstance(data, Path):
        if data.suffix == ".npz":
            stored = read_npz(data)
            if "x" not in stored:
                raise ValueError(f"{data} has no array x; it has {', '.join(stored)}")
            data = stored["x"]
        elif recipe["kind"] == "image":
            return _images(new_images(data), recipe)
        else:
            raise ValueError(f"expected an NPZ file with an array x, got {data}")
    values = np.asarray(data)
    if values.dtype.kind not in "biuf":
        raise ValueError(f"expected numbers in x, got {values.dtype}")
    values = values if values.dtype == np.uint8 else values.astype(np.float32)
    if recipe["kind"] == "image":
        return images_first(values if values.ndim > 2 else values[None])
    return values if values.ndim > len(recipe["shape"]) else values[None]

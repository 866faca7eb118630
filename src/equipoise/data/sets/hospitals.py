"""UCI heart disease: one table from each of four hospitals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from equipoise.data.dataset import Column, Dataset
from equipoise.data.sets.registered import Arrays, RegisteredSet, array_of
from equipoise.task import Task

SITES = {
    "cleveland": "processed.cleveland.data",
    "hungary": "processed.hungarian.data",
    "switzerland": "processed.switzerland.data",
    "va": "processed.va.data",
}
FEATURES = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
)
CATEGORIES = {
    "cp": ("1", "2", "3", "4"),
    "restecg": ("0", "1", "2"),
    "slope": ("1", "2", "3"),
    "thal": ("3", "6", "7"),
}


def prepare(files: dict[str, Path]) -> Arrays:
    """Read the four files: 13 values and the diagnosis 0..4 per line, ? for a missing value."""
    arrays: Arrays = {"feature_names": np.array(FEATURES)}
    for site, name in SITES.items():
        lines = [line.split(",") for line in files[name].read_text(encoding="ascii").split()]
        if any(len(line) != 14 for line in lines):
            raise ValueError(f"{name}: expected 14 values on every line")
        rows = [[np.nan if cell == "?" else float(cell) for cell in line] for line in lines]
        values = np.array(rows, np.float32)
        arrays[f"x_{site}"] = values[:, :13]
        arrays[f"y_{site}"] = values[:, 13].astype(np.uint8)
    return arrays


def _read(entry: RegisteredSet, arrays: Arrays) -> Dataset:
    """Return all four tables; a cholesterol or blood pressure of 0 means "not measured"."""
    x = np.concatenate([array_of(entry, arrays, f"x_{site}") for site in SITES]).astype(np.float32)
    if x.shape[1:] != entry.shape:
        raise ValueError(
            f"data set {entry.name}: expected {entry.shape[0]} columns, "
            f"got samples of shape {x.shape[1:]}"
        )
    disease = np.concatenate([array_of(entry, arrays, f"y_{site}") for site in SITES]) > 0
    for name in ("trestbps", "chol"):
        column = x[:, FEATURES.index(name)]
        column[column == 0] = np.nan
    for name, categories in CATEGORIES.items():
        column = x[:, FEATURES.index(name)]
        known = np.array([float(c) for c in categories])
        if not np.isin(column[~np.isnan(column)], known).all():
            raise ValueError(
                f"data set {entry.name}: column {name} has values outside {', '.join(categories)}"
            )
        column[:] = np.where(np.isnan(column), np.nan, np.searchsorted(known, column))
    site = np.repeat(np.arange(len(SITES)), [len(arrays[f"y_{site}"]) for site in SITES])
    return Dataset(
        entry.name,
        torch.from_numpy(x),
        torch.from_numpy(disease.astype(np.int64)),
        Task("classification", entry.shape, 2, entry.class_names),
        site=site,
        site_names=tuple(SITES),
        columns=tuple(Column(name, CATEGORIES.get(name, ())) for name in FEATURES),
        licence=entry.licence,
        source=entry.cited,
    )


ENTRIES = (
    RegisteredSet(
        "uci_heart_disease",
        "UCI heart disease: 13 findings of 920 patients in four hospitals, disease or none",
        (13,),
        ("no disease", "disease"),
        "303 Cleveland, 294 Hungary, 123 Switzerland, 200 VA Long Beach",
        "CC BY 4.0",
        "import-only, no published checksum was found: "
        "https://archive.ics.uci.edu/dataset/45/heart+disease",
        _read,
        files=tuple(SITES.values()),
        prepare=prepare,
        note="a chol or trestbps of 0 is read as missing",
    ),
)

"""Federations of FLamby: heart disease and breast cancer, with its patients, columns and splits.

Jean Ogier du Terrail et al. FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in
Realistic Healthcare Settings. NeurIPS 2022. https://github.com/owkin/FLamby
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.data.dataset import TEST, TRAIN, Column, Dataset
from equipoise.data.sets import hospitals
from equipoise.data.sets.registered import Arrays, RegisteredSet, Remote, array_of
from equipoise.metrics.survival import signed_times
from equipoise.task import Task

SOURCE = "https://github.com/owkin/FLamby"
HEART_NUMBERS = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak")
# One column for each value but the first.
HEART_INDICATORS = {"cp": (2, 3, 4), "restecg": (1, 2)}
UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
HEART_FILES = {
    "processed.cleveland.data": "2d91a8ff69cfd9616aa47b59d6f843db",
    "processed.hungarian.data": "22e96bee155b5973568101c93b3705f6",
    "processed.switzerland.data": "9a87f7577310b3917730d06ba9349e20",
    "processed.va.data": "4249d03ca7711e84f4444768c9426170",
}
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
TRAIN_SHARE = 0.66
SPLIT_SEED = 43


def _heart_columns() -> tuple[str, ...]:
    names = list(HEART_NUMBERS)
    for column, values in HEART_INDICATORS.items():
        names += [f"{column}={value}" for value in values]
    return tuple(names)


def _heart_inputs(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return eight numbers, three indicators of chest pain and two of the resting ECG."""
    columns = [raw[:, hospitals.FEATURES.index(name)] for name in HEART_NUMBERS]
    for name, values in HEART_INDICATORS.items():
        codes = raw[:, hospitals.FEATURES.index(name)]
        columns += [(codes == value).astype(np.float32) for value in values]
    return np.stack(columns, axis=1)


def _heart_parts(disease: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return FLamby's split of one hospital: stratified, unless a class has two patients or fewer.

    Args:
        disease: The labels of the hospital's patients.
    """
    # Importing scikit-learn takes seconds, which every command would pay for.
    from sklearn.model_selection import train_test_split

    counts = np.bincount(disease)
    is_stratified = len(counts[counts > 0]) > 1 and bool((counts[counts > 0] > 2).all())
    _, test = train_test_split(
        np.arange(len(disease)),
        train_size=TRAIN_SHARE,
        test_size=1.0 - TRAIN_SHARE,
        random_state=SPLIT_SEED,
        shuffle=True,
        stratify=disease if is_stratified else None,
    )
    parts = np.full(len(disease), TRAIN)
    parts[test] = TEST
    return parts


def _read_heart(entry: RegisteredSet, arrays: Arrays) -> Dataset:
    """Return the complete patients of four hospitals.

    Three columns with many gaps are dropped, then patients with a gap. A cholesterol of 0 stays a
    number, as in FLamby.
    """
    inputs: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    parts: list[np.ndarray] = []
    sites: list[np.ndarray] = []
    for number, site in enumerate(hospitals.SITES):
        raw = array_of(entry, arrays, f"x_{site}").astype(np.float32)
        is_complete = ~np.isnan(raw[:, :10]).any(axis=1)
        disease = (array_of(entry, arrays, f"y_{site}")[is_complete] > 0).astype(np.int64)
        inputs.append(_heart_inputs(raw[is_complete]))
        labels.append(disease)
        parts.append(_heart_parts(disease))
        sites.append(np.full(len(disease), number))
    return Dataset(
        entry.name,
        torch.from_numpy(np.concatenate(inputs)),
        torch.from_numpy(np.concatenate(labels)),
        Task("classification", entry.shape, 2, entry.class_names),
        part=np.concatenate(parts),
        site=np.concatenate(sites),
        site_names=tuple(hospitals.SITES),
        columns=tuple(Column(name) for name in _heart_columns()),
        licence=entry.licence,
        source=entry.cited,
    )


def _prepare_tcga(files: dict[str, Path]) -> Arrays:
    """Read FLamby's table and split; identifiers of patients are not kept."""
    with files["train_test_split.csv"].open(newline="", encoding="utf-8") as opened:
        parts = {row["pid"]: row["fold2"] for row in csv.DictReader(opened)}
    with files["brca.csv"].open(newline="", encoding="utf-8") as opened:
        header, *rows = csv.reader(opened)
    if header[0] != "pid" or header[-2:] != ["E", "T"]:
        raise ValueError("brca.csv: expected the columns pid, ..., E, T")
    unknown = [row[0] for row in rows if row[0] not in parts]
    if unknown:
        raise ValueError(f"train_test_split.csv: {len(unknown)} patients of brca.csv are missing")
    numbers = np.array([row[1:] for row in rows], np.float32)
    folds = [parts[row[0]].split("_") for row in rows]  # such as train_0
    return {
        "x": numbers[:, :-2],
        "event": numbers[:, -2],
        "time": numbers[:, -1],
        "center": np.array([int(center) for _, center in folds], np.int8),
        "train": np.array([part == "train" for part, _ in folds]),
        "feature_names": np.array(header[1:-2]),
        "center_names": np.array(REGIONS),
    }


def _read_tcga(entry: RegisteredSet, arrays: Arrays) -> Dataset:
    """Return the patients of six regions, with the time to death or to the last contact."""
    x = array_of(entry, arrays, "x").astype(np.float32)
    if x.shape[1:] != entry.shape:
        raise ValueError(
            f"data set {entry.name}: expected {entry.shape[0]} columns, "
            f"got samples of shape {x.shape[1:]}"
        )
    target = signed_times(array_of(entry, arrays, "time"), array_of(entry, arrays, "event"))
    names = map(str, array_of(entry, arrays, "feature_names"))
    return Dataset(
        entry.name,
        torch.from_numpy(x),
        torch.from_numpy(target.astype(np.float32)),
        Task("survival", entry.shape, 1),
        part=np.where(array_of(entry, arrays, "train"), TRAIN, TEST),
        site=array_of(entry, arrays, "center").astype(np.int64),
        site_names=REGIONS,
        columns=tuple(Column(name) for name in names),
        licence=entry.licence,
        source=entry.cited,
    )


ENTRIES = (
    RegisteredSet(
        "flamby_heart",
        "UCI heart disease as in FLamby: 740 complete patients of four hospitals, 13 inputs",
        (13,),
        ("no disease", "disease"),
        "199 / 104, 172 / 89, 30 / 16, 85 / 45",
        "CC BY 4.0",
        f"addresses and checksums from {SOURCE}, fed_heart_disease",
        _read_heart,
        tuple(Remote(name, md5, (UCI + name,)) for name, md5 in HEART_FILES.items()),
        prepare=hospitals.prepare,
        packed="uci_heart_disease",
        note="a prepared copy of uci_heart_disease can be used; set test: site for FLamby's split",
    ),
    RegisteredSet(
        "tcga_brca",
        "TCGA-BRCA as in FLamby: survival of 1,088 patients with breast cancer in six regions",
        (39,),
        (),
        "248 / 63, 156 / 40, 164 / 42, 129 / 33, 129 / 33, 40 / 11",
        "open access data of the Genomic Data Commons: no attempt to identify patients",
        f"import-only, no published checksum was found: brca.csv and train_test_split.csv of "
        f"{SOURCE}, flamby/datasets/fed_tcga_brca; their contents are checked",
        _read_tcga,
        files=("brca.csv", "train_test_split.csv"),
        prepare=_prepare_tcga,
        content="d92f3adf463ff6cb0e43072c8fc541bfdfbfd67d9eb0e18416528a04203a4a6b",
        note="task survival: time in days, event is death; set test: site for FLamby's split",
    ),
)

"""Histograms of scores, which clients send at the last evaluation in place of scores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.metrics import life_tables, score_histograms
from equipoise.metrics.performance import softmax
from equipoise.task import Task

# Test samples below which counts would reveal single samples, and show nothing that is certain.
FEWEST = 30
MOST_CLASSES = 20  # beyond which a curve per class cannot be read
FORBIDDEN = "EQUIPOISE_CURVES"  # set to "no" in the environment of a site's process


def allowed() -> bool:
    """Return True if this site sends counts at all, whatever a server asks."""
    return os.environ.get(FORBIDDEN, "").strip().casefold() not in ("no", "0", "false")


def of(task: Task, outputs: Tensor, y: Tensor, model: str) -> dict[str, Tensor]:
    """Return the histogram of a model's scores, by its name; in survival analysis a life table.

    There is none for few samples, many classes, regression, or a model that has diverged.

    Args:
        task: The task.
        outputs: The outputs of the model.
        y: The truth.
        model: The name of the model.
    """
    if len(y) < FEWEST or not bool(torch.isfinite(outputs).all()):
        return {}
    if task.survives:
        table = life_tables.counted(outputs.double().numpy(), y.double().numpy())
        return {model: torch.from_numpy(table.astype(np.int32))}
    if not task.classifies or not 2 <= task.outputs <= MOST_CLASSES:
        return {}
    scores = softmax(outputs.double().numpy())
    counts = score_histograms.counted(scores, y.numpy())
    return {model: torch.from_numpy(counts.astype(np.int32))}


def values_fault(values: Any) -> str | None:
    """Return the fault in clinical measures that a client sent; None if there is none."""
    if not isinstance(values, Mapping):
        return "expected clinical measures by name"
    for name, value in values.items():
        if name not in score_histograms.MEASURES:
            return f"{name!r} is not among the clinical measures"
        if not isinstance(value, float) or not 0 <= value <= 1:
            return f"{name}: expected a share from 0 to 1, got {value!r}"
    return None


def majority(y: Tensor) -> float:
    """Return the share of the most frequent class; 0 without samples."""
    if not len(y):
        return 0.0
    return int(torch.bincount(y).max()) / len(y)


def fault(table: Any, task: Task) -> str | None:
    """Return the fault in a histogram that a client sent; None if there is none."""
    counts = table.numpy() if isinstance(table, Tensor) else table
    if task.survives:
        wrong = life_tables.fault(counts)
        samples = 0 if wrong else life_tables.total(counts)
    else:
        wrong = score_histograms.fault(counts, task.outputs)
        samples = 0 if wrong else score_histograms.total(counts)
    if wrong is None and samples < FEWEST:
        return f"expected {FEWEST} samples or more"
    return wrong


def rows(
    client: str, model: str, split: str, table: Tensor
) -> list[tuple[str, str, str, int, int, int, int, int, int, int]]:
    """Return a histogram as rows of the store, one per class and bin that has samples.

    Of a life table, the class is the risk group, positives are events and negatives censored.
    """
    return bins_of((client, model, split), table)


def bins_of(key: tuple[str, ...], table: Tensor) -> list[Any]:
    """Return the bins of a histogram as rows of the store that begin with a key."""
    counts = table.numpy().astype(np.int64)
    if counts.shape[1] == 2:
        counts = np.concatenate([counts, np.zeros_like(counts)], axis=1)
    bins = counts.shape[-1]
    rows = []
    for label, score in np.argwhere(counts[:, :2].any(1)):
        positives, negatives, true, false = map(int, counts[label, :, score])
        rows.append((*key, int(label), int(score), positives, negatives, true, false, bins))
    return rows

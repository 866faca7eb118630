"""Histograms of scores and clinical measures, which clients send at the last measurement in place of scores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.metrics import score_histograms
from equipoise.metrics.performance import softmax
from equipoise.task import Task

FEWEST = 30  # test samples below which counts would say too much of single ones, and nothing that is sure
MOST_CLASSES = 20  # beyond which nobody looks at a curve per class
FORBIDDEN = "EQUIPOISE_CURVES"  # a site's own word, in the environment of its process: no


def allowed() -> bool:
    """Whether this site sends counts at all, whatever a server asks."""
    return os.environ.get(FORBIDDEN, "").strip().casefold() not in ("no", "0", "false")


def of(task: Task, outputs: Tensor, y: Tensor, model: str) -> dict[str, Tensor]:
    """The table of counts of a model, by its name; nothing for few samples, many classes, numbers to predict or a model that has diverged."""
    if (
        not task.classifies
        or not 2 <= task.outputs <= MOST_CLASSES
        or len(y) < FEWEST
        or not bool(torch.isfinite(outputs).all())
    ):
        return {}
    return {
        model: torch.from_numpy(
            score_histograms.counted(softmax(outputs.double().numpy()), y.numpy()).astype(np.int32)
        )
    }


def values_fault(values: Any) -> str | None:
    """Return what is wrong with the clinical measures that a client sent; None if nothing is."""
    if not isinstance(values, Mapping):
        return "expected clinical measures by name"
    for name, value in values.items():
        if name not in score_histograms.MEASURES:
            return f"{name!r} is not among the clinical measures"
        if not isinstance(value, float) or not 0 <= value <= 1:
            return f"{name}: expected a share from 0 to 1, got {value!r}"
    return None


def majority(y: Tensor) -> float:
    """The share of the most frequent class: what always naming it would reach; 0 without samples."""
    return int(torch.bincount(y).max()) / len(y) if len(y) else 0.0


def fault(table: Any, task: Task) -> str | None:
    """What is wrong with a table that a client sent; None if it could be one."""
    found = table.numpy() if isinstance(table, Tensor) else table
    wrong = score_histograms.fault(found, task.outputs)
    return (
        f"expected {FEWEST} samples or more"
        if wrong is None and score_histograms.total(found) < FEWEST
        else wrong
    )


def rows(
    client: str, model: str, split: str, table: Tensor
) -> list[tuple[str, str, str, int, int, int, int, int, int, int]]:
    """As the store keeps a table: one row per class and bin of scores that occurs."""
    found = table.numpy().astype(np.int64)
    filled = np.argwhere(found[:, :2].any(1))
    rows = []
    for c, score in filled:
        positives, negatives, true, false = map(int, found[c, :, score])
        place = (client, model, split, int(c), int(score))
        rows.append((*place, positives, negatives, true, false, found.shape[-1]))
    return rows

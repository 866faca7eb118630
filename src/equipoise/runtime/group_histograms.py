"""Histograms of scores by group of samples, which clients send at the last evaluation.

A client withholds groups with few samples. Since it also sends the histogram of all its samples, a
single withheld group would follow by subtraction. So it withholds further groups until those of a
column that it withholds have enough samples together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.data.group_columns import LONGEST_NAME
from equipoise.data.groups import MISSING, MOST_GROUPS, UNKNOWN, Groups
from equipoise.metrics import score_histograms
from equipoise.metrics.performance import softmax
from equipoise.task import Task
from equipoise.validation.names import is_unicode

FEWEST = 10  # samples of a group below which it is withheld, unless an experiment says otherwise
OWN_MINIMUM = "EQUIPOISE_GROUP_MINIMUM"  # a larger number in the environment of a site's process


@dataclass(frozen=True)
class Cell:
    """A group of a client's samples that the client sends.

    Attributes:
        column: The column by which samples are grouped.
        group: The name of the group.
        positions: The positions of its samples.
    """

    column: str
    group: str
    positions: np.ndarray


@dataclass
class GroupCounts:
    """The histograms of a client's groups.

    Attributes:
        cells: Column and name of each group.
        tables: Served model -> histograms of the groups, shape (groups, classes, 4, bins).
    """

    cells: list[list[str]] = field(default_factory=list)
    tables: dict[str, Tensor] = field(default_factory=dict)


def minimum(requested: int) -> int:
    """Return the fewest samples of a group that this site sends, whatever a server asks."""
    own = os.environ.get(OWN_MINIMUM, "").strip()
    return max(requested, int(own)) if own.isdecimal() else requested


def sent_cells(groups: Groups | None, fewest: int) -> list[Cell]:
    """Return the groups of some samples that may be sent.

    Args:
        groups: The groups of the samples.
        fewest: The fewest samples of a group.
    """
    if groups is None:
        return []
    cells = []
    for index, column in enumerate(groups.columns):
        codes = groups.codes[:, index]
        names = dict(enumerate(groups.names[index])) | {UNKNOWN: MISSING}
        for code in _sent_codes(codes, fewest):
            cells.append(Cell(column, names[code], np.flatnonzero(codes == code)))
    return cells


def _sent_codes(codes: np.ndarray, fewest: int) -> list[int]:
    """Return the groups of one column that may be sent, in the order of their codes.

    >>> _sent_codes(np.repeat([0, 1, 2], [30, 20, 3]), 10)
    [0]
    >>> _sent_codes(np.repeat([0, 1, 2, 3], [30, 20, 6, 7]), 10)
    [0, 1]
    """
    present, counts = np.unique(codes, return_counts=True)
    order = np.argsort(counts, kind="stable")  # the smallest group first
    withheld = 0
    sent = []
    for code, count in zip(present[order].tolist(), counts[order].tolist(), strict=True):
        if count < fewest or 0 < withheld < fewest:
            withheld += count
        else:
            sent.append(code)
    return sorted(sent)


def counted(outputs: Tensor, y: Tensor, cells: Sequence[Cell]) -> Tensor:
    """Return the histograms of a model's scores in each cell.

    Args:
        outputs: The outputs of the model, all of them finite.
        y: The classes.
        cells: The groups to count.
    """
    scores = softmax(outputs.double().numpy())
    labels = y.numpy()
    tables = [score_histograms.counted(scores[c.positions], labels[c.positions]) for c in cells]
    return torch.from_numpy(np.stack(tables).astype(np.int32))


def fault(counts: GroupCounts, columns: Mapping[str, Any], task: Task, fewest: int) -> str | None:
    """Return the fault in histograms of groups that a client sent; None if there is none.

    Args:
        counts: The histograms.
        columns: The columns of the experiment.
        task: The task.
        fewest: The fewest samples of a group.
    """
    if not _are_cells(counts.cells, columns):
        return "expected groups of the columns under data.groups, each once"
    for model, tables in counts.tables.items():
        if not isinstance(tables, Tensor) or len(tables) != len(counts.cells):
            return f"model {model!r}: expected one histogram for each of the groups"
        for table in tables:
            wrong = score_histograms.fault(table.numpy(), task.outputs)
            if wrong is not None:
                return wrong
            if score_histograms.total(table.numpy()) < fewest:
                return f"expected groups of {fewest} samples or more"
    return None


def _are_cells(cells: Any, columns: Mapping[str, Any]) -> bool:
    """Return True for pairs of a known column and a short name, each once."""
    most = len(columns) * (MOST_GROUPS + 1)
    if not isinstance(cells, list) or len(cells) > most:
        return False
    for cell in cells:
        if not isinstance(cell, list) or len(cell) != 2 or cell[0] not in columns:
            return False
        name = cell[1]
        if not isinstance(name, str) or not is_unicode(name) or not 0 < len(name) <= LONGEST_NAME:
            return False
    return len({tuple(cell) for cell in cells}) == len(cells)

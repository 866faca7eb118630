"""Histograms of scores at the end of a run, read from its store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from equipoise.metrics import life_tables, score_histograms
from equipoise.metrics.score_histograms import BINS, ROUNDED, Counts
from equipoise.storage.form import damaged
from equipoise.storage.store import Store
from equipoise.task import Task

Key = TypeVar("Key", str, tuple[str, str, str])
_COUNTS = ("positives", "negatives", "found", "mistaken")


def read_histograms(store: Store, task: Task, model: str, split: str) -> dict[str, Counts]:
    """Return client -> histogram of scores.

    Args:
        store: The store of a run, which may come from anyone.
        task: The task of the run.
        model: The served model.
        split: The part of the data.

    Raises:
        RunError: If the histograms are damaged.
    """
    if not task.classifies:
        return {}
    tables: dict[str, Counts] = {}
    for row in _rows(store, "curves", model, split):
        _add_bin(store, tables, row["client"], row, task.outputs)
    _check(store, tables, task)
    return tables


def read_life_tables(store: Store, task: Task, model: str, split: str) -> dict[str, Counts]:
    """Return client -> life table of two risk groups; arguments as above.

    Raises:
        RunError: If the life tables are damaged.
    """
    tables: dict[str, Counts] = {}
    if not task.survives:
        return tables
    for row in _rows(store, "curves", model, split):
        shape = (len(life_tables.GROUPS), 2, life_tables.BINS)
        table = tables.setdefault(row["client"], np.zeros(shape, np.int64))
        group, time = row["class"], row["score"]
        counts = (row["positives"], row["negatives"])
        if not (0 <= group < shape[0] and 0 <= time < shape[2]) or min(counts) < 0:
            raise damaged(store.folder, f"its life tables name group {group} and time {time}")
        table[group, :, time] = counts
    return tables


def read_group_histograms(
    store: Store, task: Task, model: str, split: str
) -> dict[tuple[str, str, str], Counts]:
    """Return client, column and group -> histogram of scores; arguments as above."""
    tables: dict[tuple[str, str, str], Counts] = {}
    for row in _rows(store, "group_curves", model, split):
        key = (row["client"], row["attribute"], row["category"])
        _add_bin(store, tables, key, row, task.outputs)
    _check(store, tables, task)
    return tables


def _check(store: Store, tables: Mapping[Any, Counts], task: Task) -> None:
    for key, table in tables.items():
        reason = score_histograms.fault(table, task.outputs, bins=table.shape[-1])
        if reason is not None:
            raise damaged(store.folder, f"counts of scores of client {key!r}: {reason}")


def _rows(store: Store, table: str, model: str, split: str) -> list[dict[str, Any]]:
    """Return one row per bin; a run of an older format has none."""
    known = store.rows("select name from sqlite_master where type = 'table' and name = ?", (table,))
    if not known:
        return []
    rows = store.rows(f"select * from {table} order by rowid")
    return [row for row in rows if row["model"] == model and row["split"] == split]


def _add_bin(
    store: Store, tables: dict[Key, Counts], key: Key, row: dict[str, Any], classes: int
) -> None:
    """Add one bin to the histogram of a client or group."""
    bins = row.get("bins", ROUNDED)
    if bins not in (BINS, ROUNDED):
        raise damaged(store.folder, f"its counts of scores have {bins} bins")
    table = tables.setdefault(key, np.zeros((classes, 4, bins), np.int64))
    if table.shape[-1] != bins:
        raise damaged(store.folder, f"counts of scores of client {key!r} have two kinds of bins")
    if not (0 <= row["class"] < classes and 0 <= row["score"] < bins):
        raise damaged(
            store.folder,
            f"its counts of scores name class {row['class']} and score {row['score']}",
        )
    table[row["class"], :, row["score"]] = [row[name] for name in _COUNTS]

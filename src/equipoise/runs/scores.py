"""Histograms of scores at the end of a run, read from its store."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.metrics import life_tables, score_histograms
from equipoise.metrics.score_histograms import BINS, ROUNDED, Counts
from equipoise.storage.form import damaged
from equipoise.storage.store import Store
from equipoise.task import Task

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
    for row in _rows(store):
        if row["model"] == model and row["split"] == split:
            _add_bin(store, tables, row, task.outputs)
    for client, table in tables.items():
        reason = score_histograms.fault(table, task.outputs, bins=table.shape[-1])
        if reason is not None:
            raise damaged(store.folder, f"counts of scores of client {client!r}: {reason}")
    return tables


def read_life_tables(store: Store, task: Task, model: str, split: str) -> dict[str, Counts]:
    """Return client -> life table of two risk groups; arguments as above.

    Raises:
        RunError: If the life tables are damaged.
    """
    tables: dict[str, Counts] = {}
    if not task.survives:
        return tables
    for row in _rows(store):
        if row["model"] != model or row["split"] != split:
            continue
        shape = (len(life_tables.GROUPS), 2, life_tables.BINS)
        table = tables.setdefault(row["client"], np.zeros(shape, np.int64))
        group, time = row["class"], row["score"]
        counts = (row["positives"], row["negatives"])
        if not (0 <= group < shape[0] and 0 <= time < shape[2]) or min(counts) < 0:
            raise damaged(store.folder, f"its life tables name group {group} and time {time}")
        table[group, :, time] = counts
    return tables


def _rows(store: Store) -> list[dict[str, Any]]:
    """Return one row per bin; a run of a format before 4 has none."""
    known = store.rows("select name from sqlite_master where type = 'table' and name = 'curves'")
    return store.rows("select * from curves order by rowid") if known else []


def _add_bin(store: Store, tables: dict[str, Counts], row: dict[str, Any], classes: int) -> None:
    """Add one bin to the histogram of its client."""
    client = row["client"]
    bins = row.get("bins", ROUNDED)
    if bins not in (BINS, ROUNDED):
        raise damaged(store.folder, f"its counts of scores have {bins} bins")
    table = tables.setdefault(client, np.zeros((classes, 4, bins), np.int64))
    if table.shape[-1] != bins:
        raise damaged(store.folder, f"counts of scores of client {client!r} have two kinds of bins")
    if not (0 <= row["class"] < classes and 0 <= row["score"] < bins):
        raise damaged(
            store.folder,
            f"its counts of scores name class {row['class']} and score {row['score']}",
        )
    table[row["class"], :, row["score"]] = [row[name] for name in _COUNTS]

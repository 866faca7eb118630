"""Counts of scores at the end of a run, as its store has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.metrics import score_histograms
from equipoise.storage.form import damaged
from equipoise.storage.store import Store
from equipoise.task import Task


def counted(store: Store) -> list[dict[str, Any]]:
    """The rows of counts; a run of a format before 4 has none."""
    known = store.rows("select name from sqlite_master where type = 'table' and name = 'curves'")
    return store.rows("select * from curves order by rowid") if known else []


def tables(store: Store, task: Task, model: str, split: str) -> dict[str, score_histograms.Counts]:
    """Client -> table of counts; a store may come from anyone, so a table that cannot be is refused."""
    found: dict[str, score_histograms.Counts] = {}
    classes = task.outputs
    for row in counted(store):
        if row["model"] != model or row["split"] != split:
            continue
        bins = row.get("bins", score_histograms.ROUNDED)
        if bins not in (score_histograms.BINS, score_histograms.ROUNDED):
            raise damaged(store.folder, f"its counts of scores have {bins} bins")
        table = found.setdefault(row["client"], np.zeros((classes, 4, bins), np.int64))
        if table.shape[-1] != bins:
            raise damaged(
                store.folder, f"counts of scores of client {row['client']!r} have two kinds of bins"
            )
        if not (0 <= row["class"] < classes and 0 <= row["score"] < bins):
            raise damaged(
                store.folder,
                f"its counts of scores name class {row['class']} and score {row['score']}",
            )
        table[row["class"], :, row["score"]] = [
            row[name] for name in ("positives", "negatives", "found", "mistaken")
        ]
    for client, table in found.items():
        wrong = score_histograms.fault(table, classes, bins=table.shape[-1])
        if wrong is not None:
            raise damaged(store.folder, f"counts of scores of client {client!r}: {wrong}")
    return found

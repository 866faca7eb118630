"""What a run says to clinical readers: measures beside accuracy where classes are unequal, from the counts of scores that its clients sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from equipoise.metrics import score_histograms
from equipoise.metrics.intervals import Interval
from equipoise.runs.run import Run
from equipoise.runtime.client_histograms import FEWEST

UNEQUAL = 1.2  # times its even share: from there on the most frequent class makes accuracy shine
DRAWS_SEED = 0  # the same run says the same


def unequal(found: Mapping[str, score_histograms.Counts]) -> bool:
    """Whether accuracy alone would mislead: the classes of all test data together are unequal or, of two classes, those of any client."""
    if not found:
        return False
    whole = score_histograms.pooled(list(found.values()))
    return any(
        score_histograms.majority(table) * len(table) > UNEQUAL
        for table in (whole, *(found.values() if len(whole) == 2 else ()))
    )


def derived(run: Run) -> dict[str, dict[str, float]]:
    """Metric -> client -> value, of metrics that the run did not measure itself; empty where classes are equal or nothing was counted."""
    found = run.counts()
    if not unequal(found):
        return {}
    measured = {
        row["metric"]
        for row in run.store.rows(
            "select distinct metric from measurements where phase = 'received'"
        )
    }
    by_client = {client: score_histograms.measures(table) for client, table in found.items()}
    values = {
        name: {client: float(one[name]) for client, one in by_client.items()}
        for name in score_histograms.MEASURES
        if name not in measured
    }
    return {
        name: {client: value for client, value in some.items() if not np.isnan(value)}
        for name, some in values.items()
    }


def clinical(run: Run, model: str | None = None) -> dict[str, dict[str, Interval]]:
    """Client -> measure -> value with its interval over other test sets of that size; empty where classes are equal or nothing was counted."""
    found = run.counts(model)
    return (
        {client: score_histograms.intervals(table, DRAWS_SEED) for client, table in found.items()}
        if unequal(found)
        else {}
    )


def silent(clients: Collection[str], counted: Collection[str]) -> str:
    """Who is missing among the measures from counts, and why: a sentence, empty if nobody is.

    >>> silent(["north", "south"], ["north"])
    '1 of 2 clients sent no counts: fewer than 30 test samples, or they may not'
    """
    missing = len(set(clients) - set(counted))
    return (
        f"{missing} of {len(clients)} clients sent no counts: fewer than {FEWEST} test samples, or they may not"
        if missing
        else ""
    )


def classes_of(run: Run) -> list[tuple[int, str]]:
    """The classes that have a curve, with their names: of two the second one, else all."""
    names = run.task.class_names or tuple(map(str, range(run.task.outputs)))
    return [(1, names[1])] if len(names) == 2 else list(enumerate(names))


def thresholds(table: score_histograms.Counts, of: int) -> list[dict[str, Any]]:
    """Sensitivity, specificity, PPV and NPV at some thresholds on the score of a class."""
    return [
        {"threshold": percent, **score_histograms.at_threshold(table[of, 0], table[of, 1], percent)}
        for percent in (10, 20, 30, 50, 70, 80, 90)
    ]

"""The main numbers of a single round, for progress lines and experiment trackers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from equipoise.metrics import UndefinedMetric
from equipoise.metrics.registry import Metric, find, main_of
from equipoise.runs.aggregates import level
from equipoise.storage.tables import RoundRecord


@dataclass(frozen=True)
class RoundSummary:
    """The main metric of a round over clients.

    Attributes:
        metric: The main metric.
        average: Its mean over clients.
        worst: Its worst value over clients.
    """

    metric: Metric
    average: float
    worst: float


def summarise_round(record: RoundRecord, main: str | None = None) -> RoundSummary | None:
    """Return the main numbers of a round; None if it was not measured on test data.

    They are those of the main model, on the shared test set if there is one.

    Args:
        record: The round.
        main: The main metric, if the experiment names one.
    """
    phase = "final" if record.finish else "received"
    by_split: dict[str, dict[str, list[float]]] = {}  # split -> metric -> values
    for _, model, its_phase, split, name, value in record.measurements:
        if model == record.main and its_phase == phase and split in ("test", "shared"):
            by_split.setdefault(split, {}).setdefault(name, []).append(value)
    if not by_split:
        return None
    names = [name for values in by_split.values() for name in values]
    metric = find(main_of(names, main))
    values = by_split.get("shared", by_split.get("test", {})).get(metric.name)
    if not values:
        return None
    with warnings.catch_warnings():  # a diverged model is seen in the numbers
        warnings.simplefilter("ignore", UndefinedMetric)
        numbers = level(values, metric)
    return RoundSummary(metric, numbers["average"], numbers["worst"])

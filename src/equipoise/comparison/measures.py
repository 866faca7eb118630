"""What is said about one run: how good it is, how even, who it harmed against training alone, and what it cost."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from equipoise.data.roster import SHARED
from equipoise.metrics import (
    Metric,
    UndefinedMetric,
    collaborative_fairness,
    negative_transfer,
    spread,
)
from equipoise.runs import Run
from equipoise.runs.summary import diverged

NAN = float("nan")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Measure:
    """A column of the table: its heading, how a number is written, and which way is better (None: not ranked)."""

    title: str
    lower: bool | None = False
    scale: float = 1.0  # from the number to what is written
    digits: int = 1
    against_alone: bool = False  # needs the Standalone run, and says nothing about that run itself
    signed: bool = False  # a change, written with its sign


def in_unit_of(metric: Metric, title: str = "value", **more: Any) -> Measure:
    """A measure in the metric's own unit: shares in percent with one digit behind the point, errors with four."""
    return Measure(
        title, metric.lower_is_better, metric.scale, 1 if metric.unit == "%" else 4, **more
    )


def measures(metric: Metric) -> dict[str, Measure]:
    """The columns of a table about this metric."""
    return {
        "average": in_unit_of(metric, "average"),
        **(
            {"majority": replace(in_unit_of(metric, "majority class"), lower=None)}
            if metric.name == "accuracy"
            else {}
        ),
        "worst": in_unit_of(metric, "worst client"),
        "std": replace(in_unit_of(metric, "std"), lower=True),
        "change": in_unit_of(metric, "change", against_alone=True, signed=True),
        "worst_change": in_unit_of(metric, "worst change", against_alone=True, signed=True),
        "harmed": Measure("harmed %", lower=True, scale=100.0, against_alone=True),
        "cf": Measure("CF", against_alone=True),
        "best": in_unit_of(metric, "best client"),
        "p10_change": in_unit_of(metric, "P10 of change", against_alone=True, signed=True),
        "p90_change": in_unit_of(metric, "P90 of change", against_alone=True, signed=True),
        "best_round": Measure("best round", lower=None),
        "rounds_to_target": Measure("rounds to target", lower=True),
        "d_cos": Measure("D_cos", lower=True, digits=4),
        "d_man": Measure("D_man", lower=True, digits=2),
        "megabytes": Measure("MB", lower=None),
        "seconds": Measure("seconds", lower=None),
    }


COST = ("megabytes", "seconds")  # the same whatever the metric
DISTANCES = ("d_cos", "d_man")  # measured where evaluation.distances is set
ASKED = (
    "best",
    "p10_change",
    "p90_change",
    "best_round",
    "rounds_to_target",
    *DISTANCES,
)  # columns on request, in CSV and JSON always
EXTREMES = ("worst", "best", "worst_change", "p10_change", "p90_change")  # over clients
NO_TARGET = "no target was named; --target 0.8, say"
RANKED = ("average", "worst", "std", "change", "worst_change", "harmed", "cf")


def measure_run(
    together: Mapping[str, float], alone: Mapping[str, float] | None, metric: Metric
) -> tuple[dict[str, float], dict[str, str]]:
    """The measures of one run from its values by client, and for each that does not exist the reason.

    >>> from equipoise.metrics.registry import find
    >>> found, why = measure_run({"a": 0.8, "b": 0.6}, {"a": 0.7, "b": 0.7}, find("accuracy"))
    >>> {name: round(value, 3) for name, value in found.items() if value == value}
    {'average': 0.7, 'worst': 0.6, 'std': 0.1, 'best': 0.8, 'change': 0.0, 'worst_change': -0.1, 'harmed': 0.5, 'p10_change': -0.08, 'p90_change': 0.08}
    >>> why["cf"]
    'collaborative fairness is undefined: all clients have the same value 0.7 in `alone`'
    """
    lower = metric.lower_is_better
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UndefinedMetric)
        level = spread(list(together.values()), lower)
        found = {
            "average": level["mean"],
            "worst": level["max" if lower else "min"],
            "std": level["std"],
        }
        found["best"] = level["min" if lower else "max"]
        if alone is None:
            change, cf = dict.fromkeys(("average", "worst", "harmed", "p10", "p90"), NAN), NAN
        else:
            a, t = pairs(alone, together)
            change, cf = negative_transfer(a, t, lower), collaborative_fairness(a, t)
    found |= {
        "change": change["average"],
        "worst_change": change["worst"],
        "harmed": change["harmed"],
        "cf": cf,
    }
    found |= {"p10_change": change["p10"], "p90_change": change["p90"]}
    reasons = (
        [diverged(metric.name, together)]
        if diverged(metric.name, together)
        else [str(item.message) for item in caught]
    )
    return found, {
        name: reasons[-1] for name, value in found.items() if np.isnan(value) and reasons
    }


def pairs(
    alone: Mapping[str, float], together: Mapping[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Values of the clients that both have, in the order of the first."""
    both = [client for client in alone if client in together]
    return np.array([alone[client] for client in both]), np.array(
        [together[client] for client in both]
    )


def values_by_client(
    run: Run, metric: str | None = None, split: str | None = None
) -> dict[str, float]:
    """Client -> value at the end; a model that all share, measured once on one test set for all, is what each client has."""
    return for_each(run, run.final(metric, split=split))


def for_each(run: Run, found: dict[str, Value]) -> dict[str, Value]:
    """What was found once, on a test set for all, is what each client has."""
    return dict.fromkeys(run.clients, found[SHARED]) if list(found) == [SHARED] else found


def distances_of(run: Run) -> dict[str, float]:
    """Mean over clients, after the last round, of angle and Manhattan distance between the mean features of a client's data under its own and the new
    global model; NaN where they were not measured."""
    rows = run.store.rows(
        """select metric, avg(value) as value from measurements where phase = 'after_local' and split = 'embedding' and round =
           (select max(round) from measurements where phase = 'after_local' and split = 'embedding') group by metric"""
    )
    found = {row["metric"]: row["value"] for row in rows}
    return {"d_cos": found.get("angle", NAN), "d_man": found.get("manhattan", NAN)}


def cost_of(run: Run) -> dict[str, float]:
    """Megabytes sent both ways, and seconds of training, transport and aggregation; measuring and saving are not counted."""
    rounds = run.rounds() + run.finish()
    moved = sum(row["bytes_down"] + row["bytes_up"] for row in rounds)
    seconds = sum(
        row["seconds"].get(phase, 0.0)
        for row in rounds
        for phase in ("clients", "transport", "aggregation")
    )
    return {"megabytes": moved / 1e6, "seconds": seconds}

"""Measures: the columns of the table of a comparison, and how their numbers are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from equipoise.metrics import Metric

CLIENT_SECONDS = ("seconds_per_client", "seconds_per_client_std")
COST = ("steps", "megabytes", "seconds", *CLIENT_SECONDS)  # the same for every metric
# measured if evaluation.distances is set
DISTANCES = ("d_cos", "d_man", "embedding_angle", "embedding_manhattan")
# by group of samples (data.groups)
BY_SAMPLE_GROUP = ("worst_group", "parity_gap", "opportunity_gap", "odds_gap", "accuracy_gap")
# columns on request; CSV and JSON always have them
OPTIONAL = (
    "best",
    "p10_change",
    "p90_change",
    "best_round",
    "best_average",
    "rounds_to_target",
    "speed_up",
    *DISTANCES,
    *CLIENT_SECONDS,
    *BY_SAMPLE_GROUP,
)
EXTREMES = ("worst", "best", "worst_change", "p10_change", "p90_change")  # over clients
NO_TARGET = "no target was named (--target 0.8, say), or the run that sets it failed"
NO_RIVAL = "no run of the baseline method to compare rounds with"
NOT_REACHED = "the target was not reached"
NO_MODELS = "no distances: a model diverged, or clients have none to compare with the global one"
BY_GROUP = ("average", "change")  # columns for single groups of clients, as `average[mnist]`
MOST_GROUPS = 8  # above, groups are columns only if they are named
RANKED = ("average", "worst", "std", "change", "worst_change", "harmed", "cf")


@dataclass(frozen=True)
class Measure:
    """A column of the table.

    Attributes:
        title: The heading.
        lower: True if lower is better, False if higher is, None if methods are not ranked by it.
        scale: Factor from the number to what is written.
        digits: Digits behind the point.
        against_alone: True if it needs the run of training alone and says nothing about that run.
        signed: True for a change, which is written with its sign.
    """

    title: str
    lower: bool | None = False
    scale: float = 1.0
    digits: int = 1
    against_alone: bool = False
    signed: bool = False


def in_unit_of(metric: Metric, title: str = "value", **more: Any) -> Measure:
    """Return a measure in the unit of a metric: shares in percent, errors with four digits."""
    digits = 1 if metric.unit == "%" else 4
    return Measure(title, metric.lower_is_better, metric.scale, digits, **more)


def change_of(metric: Metric, title: str) -> Measure:
    """Return a measure of changes in a metric; a positive change is an improvement."""
    measure = in_unit_of(metric, title, against_alone=True, signed=True)
    return replace(measure, lower=False)


def is_of_group(name: str) -> bool:
    """Return True for a measure of a group of clients, such as `average[mnist]`."""
    measure, bracket, _ = name.partition("[")
    return bool(bracket) and name.endswith("]") and measure in BY_GROUP


_SAMPLE_GROUP_MEASURES = {
    "worst_group": Measure("worst group", scale=100.0),
    "parity_gap": Measure("parity gap", lower=True, scale=100.0),
    "opportunity_gap": Measure("opportunity gap", lower=True, scale=100.0),
    "odds_gap": Measure("odds gap", lower=True, scale=100.0),
    "accuracy_gap": Measure("accuracy gap", lower=True, scale=100.0),
}


def measures(
    metric: Metric, groups: Sequence[str] = (), sample_groups: bool = False
) -> dict[str, Measure]:
    """Return name -> column of a table about a metric.

    Args:
        metric: The metric.
        groups: Groups of clients that have columns of their own.
        sample_groups: True if results by group of samples are known.
    """
    columns = _measures(metric)
    if sample_groups:
        columns |= _SAMPLE_GROUP_MEASURES
    for name in BY_GROUP:
        for group in groups:
            title = f"{columns[name].title}, {group}"
            columns[f"{name}[{group}]"] = replace(columns[name], title=title)
    return columns


def _measures(metric: Metric) -> dict[str, Measure]:
    columns = {"average": in_unit_of(metric, "average")}
    if metric.name == "accuracy":
        columns["majority"] = replace(in_unit_of(metric, "majority class"), lower=None)
    return columns | {
        "worst": in_unit_of(metric, "worst client"),
        "std": replace(in_unit_of(metric, "std"), lower=True),
        "change": change_of(metric, "change"),
        "worst_change": change_of(metric, "worst change"),
        "harmed": Measure("harmed %", lower=True, scale=100.0, against_alone=True),
        "cf": Measure("CF", against_alone=True),
        "best": in_unit_of(metric, "best client"),
        "p10_change": change_of(metric, "P10 of change"),
        "p90_change": change_of(metric, "P90 of change"),
        "best_round": Measure("best round", lower=None),
        "best_average": in_unit_of(metric, "best average (chosen by test data)"),
        "rounds_to_target": Measure("rounds to target", lower=True),
        "speed_up": Measure("speed-up", digits=2),
        "d_cos": Measure("D_cos", lower=True, digits=4),
        "d_man": Measure("D_man", lower=True, digits=2),
        "embedding_angle": Measure("angle of features", lower=True, digits=4),
        "embedding_manhattan": Measure("Manhattan of features", lower=True, digits=2),
        "steps": Measure("steps", lower=None, digits=0),
        "megabytes": Measure("MB", lower=None),
        "seconds": Measure("seconds", lower=None),
        "seconds_per_client": Measure("seconds per client", lower=None, digits=3),
        "seconds_per_client_std": Measure("their std", lower=None, digits=3),
    }

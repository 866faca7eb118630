"""Served models as rows of a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.comparison.plan import ALL, VALIDATION, Cell
from equipoise.metrics import Metric
from equipoise.runs import Run, RunResult
from equipoise.runs.result import for_each_client
from equipoise.storage.store import RunError

SEPARATOR = " · "
SELECTED = "selected"


@dataclass(frozen=True)
class ServedRow:
    """One row that a run has in a table.

    Attributes:
        label: Its name: the method, or method and model.
        model: The served model.
        selected: True if the model was chosen on validation data.
    """

    label: str
    model: str
    selected: bool = False


def served_rows(cell: Cell, result: RunResult) -> list[ServedRow]:
    """Return the rows of a run.

    A method that serves one model, or none of those to list, has one row for its main model. The
    main model comes before others, and the model that is chosen on validation data last.

    Args:
        cell: The run in the plan, with the models to list.
        result: Its result.
    """
    rows = []
    names = _main_first(result)
    if cell.models != (ALL,):
        names = [name for name in names if name in cell.models]
    if len(result.models) > 1:
        for name in names if cell.models else ():
            rows.append(ServedRow(f"{cell.label}{SEPARATOR}{name}", name))
    if not rows:
        rows.append(ServedRow(cell.label, result.main_model))
    if cell.select:
        label = f"{cell.label}{SEPARATOR}{SELECTED}"
        rows.append(ServedRow(label, best_on_validation(result), selected=True))
    return rows


def best_on_validation(result: RunResult) -> str:
    """Return the served model with the best mean over clients on validation data.

    The clients are those that have a value under all models, as in the choice of grid points. Of
    equal ones it is the main model. A model that diverged is not chosen.

    Raises:
        RunError: The run has no value on validation data.
    """
    run = Run(result.folder)
    try:
        values = {
            name: validation_values(run, result.main_metric, name) for name in _main_first(result)
        }
    finally:
        run.store.close()
    means = {name: common_mean(own, values.values()) for name, own in values.items()}
    return best_model(means, result.main.metric) or result.main_model


def best_model(means: Mapping[str, float], metric: Metric) -> str | None:
    """Return the model with the best mean; of equal ones the first. None if all are NaN.

    >>> from equipoise.metrics.registry import find
    >>> best_model({"global": 0.7, "teacher": 0.8, "proxy": float("nan")}, find("accuracy"))
    'teacher'
    """
    sign = -1 if metric.lower_is_better else 1
    known = {name: sign * mean for name, mean in means.items() if not math.isnan(mean)}
    return max(known, key=lambda name: known[name]) if known else None


def validation_values(run: Run, metric: str, model: str | None = None) -> dict[str, float]:
    """Return client -> value on validation data at the end of a run.

    Args:
        run: An open run.
        metric: The metric.
        model: The served model; by default the main one.

    Raises:
        RunError: There is no such value.
    """
    values = for_each_client(run, run.final(metric, model, split=VALIDATION))
    if not values:
        raise RunError(
            f"{run.folder} has no {metric} on validation data to choose by; give clients a share "
            "with data.split, such as [0.7, 0.1, 0.2]"
        )
    return values


def common_mean(values: Mapping[str, float], rivals: Iterable[Mapping[str, float]]) -> float:
    """Return the mean over the clients that have a value under all settings or models.

    F1, say, may exist for a client under one of them and not under another.

    Args:
        values: Client -> value.
        rivals: Client -> value of each that it is compared with; it may be among them.

    >>> common_mean({"a": 0.5, "b": 0.7}, [{"a": 0.2}])
    0.5
    """
    common = set(values).intersection(*rivals)
    if not common:
        return float("nan")
    return float(np.mean([values[client] for client in values if client in common]))


def _main_first(result: RunResult) -> list[str]:
    return sorted(result.models, key=lambda name: name != result.main_model)


def tested_row(labels: Sequence[str], baseline: str) -> str:
    """Return the row of the method that others are tested against.

    It is the first one, which belongs to the main model, if the method has several.
    """
    if baseline in labels:
        return baseline
    for label in labels:
        if label.startswith(baseline + SEPARATOR):
            return label
    return baseline

"""Targets of a comparison: the mean over clients whose first round is counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from equipoise.comparison.entries import Entry
from equipoise.comparison.plan import ALL, Cell
from equipoise.comparison.served import SELECTED, SEPARATOR, tested_row
from equipoise.composition import served_names
from equipoise.experiment import ConfigurationError
from equipoise.runs import RunResult
from equipoise.runs.result import condition_name
from equipoise.validation.names import nearest, quoted

BEST = ".best"
Target = float | str | Mapping[str, float | str]


def checked_target(value: Any) -> Target | None:
    """Return a target of a comparison.

    Args:
        value: A number; `METHOD.best` for the best mean of that method; or a mapping from
            partitions to these.

    Raises:
        ConfigurationError: It is none of these.

    >>> checked_target("0.8"), checked_target("fedavg.best")
    (0.8, 'fedavg.best')
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {str(partition): _checked_single(target) for partition, target in value.items()}
    return _checked_single(value)


def _checked_single(value: Any) -> float | str:
    if isinstance(value, str) and value.endswith(BEST):
        return value
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise ConfigurationError(
        f"target: expected a number such as 0.8, or the best mean of a method such as fedavg.best, "
        f"got {quoted(value)}"
    )


def with_targets(entries: Sequence[Entry], target: Target | None, baseline: str) -> list[Entry]:
    """Return the entries with their targets, and with the run that speed-ups are counted against.

    A target that is the best mean of a run without a result is none.

    Args:
        entries: The entries of a comparison.
        target: Its target.
        baseline: The row that others are compared with.
    """
    runs: dict[tuple[str, tuple[str, int]], RunResult] = {}
    for entry in entries:
        runs[entry.label, entry.run.condition] = entry.run
    labels = [entry.label for entry in entries]
    completed = []
    for entry in entries:
        condition = entry.run.condition
        goal: float | str | RunResult | None = _of_condition(target, entry.run)
        if isinstance(goal, str):
            row = tested_row(labels, goal.removesuffix(BEST))
            goal = runs.get((row, condition))
        rival = runs.get((baseline, condition))
        completed.append(replace(entry, target=goal, rival=rival))
    return completed


def _of_condition(target: Target | None, run: RunResult) -> float | str | None:
    """Return the target for the partition of a run.

    The most exact name counts: a file may say "auto", and with a sweep leave out the value.
    """
    if not isinstance(target, Mapping):
        return target
    written = str(run.config["data"]["partition"])
    for name in (run.partition, written):
        for varied in (run.varied.items(), ()):
            if condition_name(name, varied) in target:
                return target[condition_name(name, varied)]
    return None


def check_target(target: Target | None, cells: Sequence[Cell]) -> None:
    """Refuse a target that names a row or a partition which the comparison does not have.

    Args:
        target: The target.
        cells: The runs of the comparison.

    Raises:
        ValueError: It names the nearest one.
    """
    values = target.values() if isinstance(target, Mapping) else [target]
    for value in values:
        if isinstance(value, str):
            _check_row(value.removesuffix(BEST), cells)
    if isinstance(target, Mapping):
        known = dict.fromkeys(name for cell in cells for name in _partition_names(cell))
        for partition in target:
            if partition not in known:
                raise nearest("partition of the target", partition, list(known))


def _check_row(row: str, cells: Sequence[Cell]) -> None:
    label, _, model = row.partition(SEPARATOR)
    own = [cell for cell in cells if cell.label == label]
    if not own:
        labels = dict.fromkeys(cell.label for cell in cells)
        raise nearest("method of the target", label, list(labels))
    known = [_models_of_rows(cell) for cell in own]
    names = dict.fromkeys(name for models in known for name in models or ())
    if model and None not in known and model not in names:
        rows = [f"{label}{SEPARATOR}{name}" for name in names]
        raise nearest("row of the target", row, [label, *rows])


def _models_of_rows(cell: Cell) -> list[str] | None:
    """Return the served models that have rows of their own; None if only the run will tell."""
    names = list(cell.models)
    if ALL in names:
        served = served_names(cell.experiment.build_method())
        if served is None:
            return None
        names = sorted(served)
    return [*names, SELECTED] if cell.select else names


def _partition_names(cell: Cell) -> list[str]:
    """Return the names by which a target may call the partition of a run."""
    names = [cell.experiment.data.partition_name]
    if names == ["auto"]:
        names += ["iid", "natural"]  # The data tell which of them it is.
    return [condition_name(name, varied) for name in names for varied in (cell.sweep, ())]

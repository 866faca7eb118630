"""Targets of a comparison: the mean over clients whose first round is counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from equipoise.comparison.entries import Entry
from equipoise.comparison.served import SEPARATOR
from equipoise.experiment import ConfigurationError
from equipoise.runs import RunResult
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

    Args:
        entries: The entries of a comparison.
        target: Its target.
        baseline: The row that others are compared with.

    Raises:
        ValueError: The target names a method or a partition that the comparison does not have.
    """
    runs: dict[tuple[str, tuple[str, int]], RunResult] = {}
    for entry in entries:
        runs[entry.label, entry.run.condition] = entry.run
    if isinstance(target, Mapping):
        target = _by_name(target, entries)
        _check_partitions(target, [entry.run.condition[0] for entry in entries])
    completed = []
    for entry in entries:
        condition = entry.run.condition
        own = target.get(condition[0]) if isinstance(target, Mapping) else target
        if isinstance(own, str):
            label = own.removesuffix(BEST)
            _check_label(label, [entry.label for entry in entries])
            goal: float | RunResult | None = runs.get((label, condition))
        else:
            goal = own
        rival = runs.get((baseline, condition))
        completed.append(replace(entry, target=goal, rival=rival))
    return completed


def _by_name(target: Mapping[str, Any], entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the targets by the names of partitions, where a file may say "auto"."""
    names = {str(entry.run.config["data"]["partition"]): entry.run.partition for entry in entries}
    return {names.get(partition, partition): value for partition, value in target.items()}


def check_target(target: Target | None, methods: Sequence[str]) -> None:
    """Refuse a target that names a method which the comparison does not have.

    Args:
        target: The target.
        methods: The labels of all methods.
    """
    values = target.values() if isinstance(target, Mapping) else [target]
    for value in values:
        if isinstance(value, str):
            _check_label(value.removesuffix(BEST).partition(SEPARATOR)[0], methods)


def _check_label(label: str, labels: Sequence[str]) -> None:
    if label not in labels:
        raise nearest("method of the target", label, list(dict.fromkeys(labels)))


def _check_partitions(target: Mapping[str, Any], partitions: Sequence[str]) -> None:
    for partition in target:
        if partition not in partitions:
            raise nearest("partition of the target", partition, list(dict.fromkeys(partitions)))

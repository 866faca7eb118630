"""The runs that a study needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.comparison.plan import (
    OVERRIDES,
    Cell,
    alone_for,
    check_validation,
    folder_name,
    split_overrides,
    with_overrides,
)
from equipoise.experiment import ConfigurationError, Experiment, experiment, with_settings
from equipoise.runs.baseline import ALONE
from equipoise.study.definition import Scale, Study
from equipoise.validation.names import nearest

SETTINGS = (*OVERRIDES, "evaluation", "serves", "select")
"""Keys of a method in a study that are no hyper-parameters."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study.

    Attributes:
        method: The method's key in the study; `ALONE` for the baseline.
        condition: Name of the condition.
        seed: The seed.
        cell: The run as comparisons execute it.
        baseline: Name of the run of training alone; empty without one.
    """

    method: str
    condition: str
    seed: int
    cell: Cell
    baseline: str


@dataclass(frozen=True)
class Refusal:
    """A method that cannot run with the settings of a condition.

    Attributes:
        method: The method's key in the study.
        condition: Name of the condition.
        reason: Why it refuses.
    """

    method: str
    condition: str
    reason: str


@dataclass(frozen=True)
class StudyPlan:
    """All runs of a study at one scale, and the methods that refuse their settings."""

    runs: tuple[PlannedRun, ...]
    refusals: tuple[Refusal, ...]


def plan_study(study: Study, scale: Scale, only: Sequence[str] = ()) -> StudyPlan:
    """Return the runs of a study, baselines first.

    A method that refuses the settings of a condition is listed with its reason; the others run.

    Args:
        study: The study.
        scale: One of its scales.
        only: Methods to run; all if empty.

    Raises:
        ConfigurationError: If `only` names an unknown method, or the shared experiment is wrong.
    """
    for name in only:
        if name not in study.file.methods:
            raise nearest("method", name, list(study.file.methods))
    runs: list[PlannedRun] = []
    refusals: list[Refusal] = []
    for condition in study.conditions(scale):
        config = study.config(scale, condition)
        seeds = study.seeds(scale, condition)
        baselines = _baselines(study, config, condition, seeds)
        runs.extend(baselines.values())
        for method, spec in study.file.methods.items():
            if only and method not in only:
                continue
            try:
                experiments = [_experiment(study, config, spec, seed) for seed in seeds]
            except ConfigurationError as error:
                refusals.append(Refusal(method, condition, str(error)))
                continue
            for seed, built in zip(seeds, experiments, strict=True):
                baseline = baselines[seed].cell.name if seed in baselines else ""
                runs.append(_planned(method, condition, seed, built, baseline))
    return StudyPlan(tuple(_distinct(runs)), tuple(refusals))


def _baselines(
    study: Study, config: Mapping[str, Any], condition: str, seeds: Sequence[int]
) -> dict[int, PlannedRun]:
    if study.file.baselines == "none":
        # A mistake of the shared experiment is no method's refusal, so it is looked for here.
        _experiment(study, config, "fedavg", seeds[0])
        return {}
    planned = {}
    for seed in seeds:
        built = _experiment(study, config, alone_for(config), seed)
        planned[seed] = _planned(ALONE, condition, seed, built, "")
    return planned


def _experiment(study: Study, config: Mapping[str, Any], spec: Any, seed: int) -> Experiment:
    """Return the experiment of one method and seed."""
    method, overrides = split_overrides(spec, SETTINGS, study.imports)
    overrides.pop("serves", None)
    select = overrides.pop("select", None)
    own = with_overrides(with_settings(config, {"seed": seed, "workers": 0}), overrides)
    built = experiment({**own, "method": method}, study.imports)
    if select is not None:
        check_validation(built)
    return built


def _planned(
    method: str, condition: str, seed: int, built: Experiment, baseline: str
) -> PlannedRun:
    name = folder_name(built)
    cell = Cell(method, condition, seed, built, name, baseline)
    return PlannedRun(method, condition, seed, cell, baseline)


def _distinct(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the runs without repetitions: Standalone may be a row and the baseline at once."""
    by_key = {(run.method, run.condition, run.seed): run for run in runs}
    return list(by_key.values())

"""The runs that a study needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from equipoise.composition import served_names
from equipoise.experiment import ConfigurationError, Experiment, experiment, with_settings
from equipoise.experiment.specifications import method_spec
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
        models: The served models that rows of the study name.
    """

    method: str
    condition: str
    seed: int
    cell: Cell
    baseline: str
    models: frozenset[str] = frozenset()


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
    Unknown methods, parameters, settings and served models are mistakes of the file.

    Args:
        study: The study.
        scale: One of its scales.
        only: Methods to run; all if empty.

    Raises:
        ConfigurationError: If a method or the shared experiment is wrong, naming file and key.
        UnknownName: If `only` names an unknown method.
    """
    for name in only:
        if name not in study.file.methods:
            raise nearest("method", name, list(study.file.methods))
    _check_methods(study)
    runs: list[PlannedRun] = []
    refusals: list[Refusal] = []
    for condition in study.conditions(scale):
        config, baselines = _shared(study, scale, condition)
        runs.extend(baselines.values())
        seeds = study.seeds(scale, condition)
        for method, spec in study.file.methods.items():
            if only and method not in only:
                continue
            try:
                experiments = [_experiment(study, config, spec, seed) for seed in seeds]
            except ConfigurationError as error:
                _check_settings(study, config, method, seeds[0])
                refusals.append(Refusal(method, condition, str(error)))
                continue
            for seed, built in zip(seeds, experiments, strict=True):
                baseline = baselines[seed].cell.name if seed in baselines else ""
                planned = _planned(method, condition, seed, built, baseline)
                runs.append(replace(planned, models=models_of(study, method)))
    return StudyPlan(tuple(_distinct(runs)), tuple(refusals))


def models_of(study: Study, method: str) -> frozenset[str]:
    """Return the served models of a method that rows of a study name."""
    return frozenset(row.model for row in study.rows if row.method == method and row.model)


def _check_methods(study: Study) -> None:
    """Refuse methods that do not exist or cannot be made, whatever the condition."""
    mistakes = []
    for row, spec in study.file.methods.items():
        try:
            _check_method(study, spec)
        except ValueError as error:
            reason = str(error).removeprefix("method: ")
            mistakes.append(f"{study.path}: methods.{row}: {reason}")
    if mistakes:
        raise ConfigurationError("\n".join(mistakes))


def _check_method(study: Study, spec: Any) -> None:
    method, settings = split_overrides(spec, SETTINGS, study.imports)
    served = served_names(method_spec(method, study.imports).method)
    if served is None:
        return  # A class of the user that does not declare the names.
    for model in settings.get("serves", ()):
        if model not in served:
            raise ValueError(f"serves: {nearest('served model', model, sorted(served))}")


def _check_settings(study: Study, config: Mapping[str, Any], row: str, seed: int) -> None:
    """Refuse settings of a row that are wrong with every method, such as an unknown key.

    Args:
        study: The study.
        config: The experiment of a condition, which is correct.
        row: The row of a method that could not be built.
        seed: A seed.
    """
    _, settings = split_overrides(study.file.methods[row], SETTINGS, study.imports)
    for key in ("serves", "select"):
        settings.pop(key, None)
    try:
        _experiment(study, with_overrides(config, settings), None, seed)
    except ConfigurationError as error:
        raise _located(f"{study.path}: methods.{row}", error) from None


def _shared(
    study: Study, scale: Scale, condition: str
) -> tuple[dict[str, Any], dict[int, PlannedRun]]:
    """Return the experiment of a condition, and its runs of training alone by seed.

    Raises:
        ConfigurationError: If the experiment is wrong; that is no method's refusal.
    """
    try:
        config = study.config(scale, condition)
        seeds = study.seeds(scale, condition)
        if study.file.baselines == "none":
            _experiment(study, config, None, seeds[0])
            return config, {}
        baselines = {}
        for seed in seeds:
            built = _experiment(study, config, None, seed)
            baselines[seed] = _planned(ALONE, condition, seed, built, "")
        return config, baselines
    except ConfigurationError as error:
        raise _located(f"{study.path}: experiment at {condition}", error) from None


def _located(location: str, error: ConfigurationError) -> ConfigurationError:
    """Return an error whose lines begin with a location."""
    return ConfigurationError("\n".join(f"{location}: {line}" for line in str(error).split("\n")))


def _experiment(study: Study, config: Mapping[str, Any], spec: Any, seed: int) -> Experiment:
    """Return the experiment of one method and seed; of training alone if the method is None."""
    if spec is None:
        is_mapping = isinstance(config.get("models", {}), Mapping)
        spec = alone_for(config) if is_mapping else ALONE  # else the experiment refuses `models`
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
    cell = Cell(method, condition, seed, built, name)
    return PlannedRun(method, condition, seed, cell, baseline)


def _distinct(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the runs without repetitions: Standalone may be a row and the baseline at once."""
    by_key = {(run.method, run.condition, run.seed): run for run in runs}
    return list(by_key.values())

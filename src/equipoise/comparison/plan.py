"""The plan of a comparison: every method, partition, seed and grid point on identical data."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from equipoise.comparison.labels import labels
from equipoise.composition import compose, parts
from equipoise.experiment import ConfigurationError, Experiment, experiment, flat, with_settings
from equipoise.experiment.specifications import method_from, method_spec, name_is_local, spec_of
from equipoise.method import Method
from equipoise.runs.baseline import ALONE
from equipoise.validation.imports import OWN, FromFile, Imports
from equipoise.validation.names import nearest, quoted

OPERATIONAL = ("workers", "keep", "memory")  # settings that never change a result
Setting = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Cell:
    """One run of a comparison.

    Attributes:
        label: The name of its method in the table.
        partition: The partition.
        seed: The seed.
        experiment: The experiment.
        name: Its folder; it follows from the content, so that a rerun finds it again.
        alone: The name of the run of training alone that shares everything but the method.
        setting: The grid point.
    """

    label: str
    partition: str
    seed: int
    experiment: Experiment = field(repr=False)
    name: str
    alone: str
    setting: Setting = ()


def plan(
    base: Experiment | Mapping[str, Any],
    methods: Sequence[Any],
    seeds: Sequence[int] = (),
    partitions: Sequence[str] = (),
    grid: Mapping[str, Sequence[Any]] | None = None,
    imports: Imports = OWN,
) -> list[Cell]:
    """Return all runs of a comparison, training alone first; it is added if it is missing.

    Args:
        base: The settings that all runs share.
        methods: Names of methods, mappings with parameters, or Method objects.
        seeds: The seeds; by default that of `base`.
        partitions: The partitions; by default that of `base`.
        grid: Setting -> values to choose from.
        imports: The packages that code of methods may be imported from.

    Raises:
        ConfigurationError: There is no method, or a list or the grid is wrong.
        ValueError: A method or a key of the grid is unknown.

    >>> grid = {"method.mu": [0.01, 0.1]}
    >>> cells = plan({"rounds": 2}, ["fedavg", "fedprox"], seeds=[1, 2], grid=grid)
    >>> [(cell.label, dict(cell.setting)) for cell in cells if cell.seed == 1]
    ... # doctest: +NORMALIZE_WHITESPACE
    [('standalone', {}), ('fedavg', {}), ('fedprox', {'method.mu': 0.01}),
     ('fedprox', {'method.mu': 0.1})]
    """
    config = as_config(base)
    grid = grid or {}
    _check_lists(seeds, partitions, grid)
    listed, alone = _with_baseline(config, methods, imports)
    _check_grid(grid, listed)
    shared = experiment(config, imports)
    all_seeds = list(dict.fromkeys(seeds)) or [shared.seed]
    all_partitions = list(dict.fromkeys(partitions)) or [shared.data.partition]
    names = labels([{"method": _spec(method)} for method in listed])
    cells: dict[str, Cell] = {}  # two grid points may lead to the same experiment
    for partition, seed in itertools.product(all_partitions, all_seeds):
        fixed = {"data.partition": partition, "seed": seed, "workers": 0}
        for label, method in zip(names, listed, strict=True):
            for setting in _settings(grid, method):
                settings = with_settings(config, fixed | _of_experiment(setting))
                tuned = _tuned(method, _of_method(setting))
                own = experiment({**settings, "method": tuned}, imports)
                baseline = experiment({**dict(own), "method": alone}, imports)
                name = folder_name(own)
                cells[name] = Cell(
                    label,
                    own.data.partition_name,
                    seed,
                    own,
                    name,
                    folder_name(baseline),
                    setting,
                )
    _check_same_optimiser(list(cells.values()))
    return list(cells.values())


def _with_baseline(
    config: Mapping[str, Any], methods: Sequence[Any], imports: Imports
) -> tuple[list[Any], Any]:
    """Return the methods without repetitions, training alone first; and training alone."""
    if not methods:
        raise ConfigurationError(
            "methods: expected at least one, got none; `equipoise methods` lists them"
        )
    listed = []
    for method in methods:
        listed.append(as_method(alone_for(config) if method == ALONE else method, imports))
    alone = next((method for method in listed if _name(method) == ALONE), None)
    if alone is None:
        alone = as_method(alone_for(config))
    return _distinct([alone, *listed]), alone


def _check_same_optimiser(cells: Sequence[Cell]) -> None:
    if len({cell.experiment.training.keep_optimiser for cell in cells}) > 1:
        raise ConfigurationError(
            "grid: training.keep_optimiser must be the same in all runs of a comparison, else a "
            "change against training alone would be the optimiser's memory and not the method; "
            "set it once for all: training.keep_optimiser=true, or compare twice"
        )


def default_baseline(labels: Sequence[str]) -> str:
    """Return the method that others are tested against by default.

    It is fedavg if it is there, else the first that is not training alone.
    """
    if "fedavg" in labels:
        return "fedavg"
    return next((label for label in labels if label != ALONE), ALONE)


_KINDS: dict[str, tuple[Any, str]] = {  # of settings that are no list: type, and its name
    "grid": (Mapping, "mapping"),
    "baseline": (str, "name"),
    "measure": (str, "name"),
    "level": ((int, float), "number"),
    "target": ((int, float), "number"),
}


def from_file(config: FromFile, **typed: Any) -> tuple[FromFile, dict[str, Any]]:
    """Split the file of a comparison.

    Args:
        config: The content of the file.
        typed: Lists and settings that replace those of the file, unless they are empty.

    Returns:
        The settings that all runs share, and the lists and settings of the comparison.

    Raises:
        ConfigurationError: A setting has the wrong type.
    """
    settings = {}
    for name, value in typed.items():
        settings[name] = value or config.get(name) or value
        kind, noun = _KINDS.get(name, ((list, tuple), "list"))
        if settings[name] and not isinstance(settings[name], kind):
            raise ConfigurationError(f"{name}: expected a {noun}, got {quoted(settings[name])}")
    shared = {key: value for key, value in config.items() if key not in typed}
    return config.changed(shared, typed.values()), settings


def as_config(base: Experiment | Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as nested mappings; Python objects in it stay as they are."""
    return {
        key: as_config(value) if isinstance(value, BaseModel) else value  # type: ignore[arg-type]
        for key, value in dict(base).items()
    }


def alone_for(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return training alone as the baseline of a configuration.

    Of several models it trains the one that clients keep.
    """
    several = list(config.get("models") or {})
    if not several:
        return {"name": ALONE}
    return {
        "name": ALONE,
        "model": next((name for name in ("private", "model") if name in several), several[0]),
    }


def as_method(method: Any, imports: Imports = OWN) -> Any:
    """Return a method as plain data with all its parameters.

    A Method object that another process could not import is returned as it is.

    Args:
        method: A name, a mapping with parameters, or a Method object.
        imports: The packages that its code may be imported from.

    Raises:
        ValueError: There is no such method, or a parameter is wrong.
    """
    built = method
    if not isinstance(method, Method):
        built = method_from(method_spec(method, imports), imports)
    return built if name_is_local(built) else spec_of(built)


def content(experiment: Experiment) -> dict[str, Any]:
    """Return all that the result of a run depends on, as plain data."""
    spec = {key: value for key, value in experiment.to_spec().items() if key not in OPERATIONAL}
    plain: dict[str, Any] = json.loads(json.dumps(spec, default=str))
    if experiment.dataset is not None:
        digest = hashlib.blake2b(digest_size=8)
        for tensor in (experiment.dataset.x, experiment.dataset.y):
            digest.update(tensor.contiguous().numpy().data)
        plain["dataset"] = digest.hexdigest()
    objects = {}
    for name, architecture in experiment.architectures().items():
        if not isinstance(architecture, (str, dict)):
            objects[name] = getattr(architecture, "__qualname__", repr(architecture))
    if objects:
        plain["objects"] = objects
    return plain


def folder_name(experiment: Experiment) -> str:
    """Return a readable name that two experiments share exactly if their content is the same."""
    text = json.dumps(content(experiment), sort_keys=True)
    method = spec_of(experiment.build_method())["name"].rpartition(":")[2].lower()
    digest = hashlib.blake2b(text.encode(), digest_size=5).hexdigest()
    return f"{method}-s{experiment.seed}-{digest}"


def default_folder(base: Experiment | Mapping[str, Any], imports: Imports = OWN) -> Path:
    """Return the default folder of a comparison.

    The same settings lead to the same folder, so that a rerun completes it.
    """
    own = experiment(as_config(base), imports)
    shared = {key: value for key, value in content(own).items() if key not in ("method", "seed")}
    shared["data"].pop("partition")
    digest = hashlib.blake2b(json.dumps(shared, sort_keys=True).encode(), digest_size=4).hexdigest()
    return Path("comparisons") / f"{Path(own.data.name).name}-{digest}"


def _spec(method: Any) -> dict[str, Any]:
    return spec_of(method) if isinstance(method, Method) else method


def _name(method: Any) -> str:
    return str(_spec(method)["name"])


def _distinct(methods: Sequence[Any]) -> list[Any]:
    """Return the methods without repetitions, in their order."""
    by_content = {}
    for method in methods:
        key = json.dumps(_spec(method), sort_keys=True, default=str)
        by_content[key] = method
    return list(by_content.values())


def _is_of_method(key: str) -> bool:
    return key.startswith("method.")


def _of_method(setting: Setting) -> dict[str, Any]:
    """Return the parameters of the method in a grid point."""
    return {key.removeprefix("method."): value for key, value in setting if _is_of_method(key)}


def _of_experiment(setting: Setting) -> dict[str, Any]:
    """Return the other settings in a grid point."""
    return {key: value for key, value in setting if not _is_of_method(key)}


def _tuned(method: Any, parameters: Mapping[str, Any]) -> Any:
    if not parameters:
        return method
    if not isinstance(method, Method):
        return with_settings(method, parameters)
    base, guests = parts(method)
    of_base = {key: value for key, value in parameters.items() if "." not in key}
    tuned = {}
    for slot, guest in guests.items():
        of_guest = {
            key.removeprefix(f"{slot}."): value
            for key, value in parameters.items()
            if key.startswith(f"{slot}.")
        }
        tuned[slot] = replace(guest, **of_guest)
    return compose(replace(base, **of_base), **tuned)


def _applies(key: str, method: Any) -> bool:
    """Return True if a grid key concerns a method, as `method.mu` does if the method has a mu."""
    return not _is_of_method(key) or key.removeprefix("method.") in flat(_spec(method))


def _check_lists(seeds: Sequence[Any], partitions: Sequence[Any], grid: Mapping[str, Any]) -> None:
    for name, values, kind, what in (
        ("seeds", seeds, int, "whole numbers"),
        ("partitions", partitions, str, "texts"),
    ):
        wrong = [value for value in values if not isinstance(value, kind)]
        if wrong:
            raise ConfigurationError(f"{name}: expected {what}, got {quoted(wrong[0])}")
    for key, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise ConfigurationError(
                f"grid: expected a list of values for {key}, got {quoted(values)}"
            )
        several = [value for value in values if isinstance(value, (list, Mapping))]
        if several:
            raise ConfigurationError(
                f"grid: expected numbers or texts for {key}, got {quoted(several[0])}"
            )


def _check_grid(grid: Mapping[str, Sequence[Any]], listed: Sequence[Any]) -> None:
    for key, values in grid.items():
        if not values:
            raise ConfigurationError(
                f"grid: expected values for {key}, got none; write {key}=0.01,0.1"
            )
        if key in ("seed", "data.partition", "method", "method.name"):
            raise ConfigurationError(
                f"grid: {key} is not a setting to tune; use the seeds, partitions and methods of "
                "the comparison"
            )
        if key == "evaluation" or key.startswith("evaluation."):
            raise ConfigurationError(
                f"grid: {key} is not a setting to tune: all runs of a comparison are measured "
                "alike; set it for all"
            )
        if not any(_applies(key, method) for method in listed):
            known = sorted({f"method.{name}" for method in listed for name in flat(_spec(method))})
            raise nearest("grid key", key, [name for name in known if name != "method.name"])


def _settings(grid: Mapping[str, Sequence[Any]], method: Any) -> list[Setting]:
    concerned = {key: values for key, values in grid.items() if _applies(key, method)}
    return [
        tuple(zip(concerned, values, strict=True))
        for values in itertools.product(*concerned.values())
    ]

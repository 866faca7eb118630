"""What a comparison has to run: every method, partition, seed and grid point on the same data, initial model and cohorts."""

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

OPERATIONAL = ("workers", "keep", "memory")  # change how a run is carried out, never what comes out
Setting = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Cell:
    """One run of a comparison; its name follows from its content, so a rerun finds it again."""

    label: str
    partition: str
    seed: int
    experiment: Experiment = field(repr=False)
    name: str
    alone: str  # the name of the Standalone run that shares everything but the method
    setting: Setting = ()  # the grid point


def plan(
    base: Experiment | Mapping[str, Any],
    methods: Sequence[Any],
    seeds: Sequence[int] = (),
    partitions: Sequence[str] = (),
    grid: Mapping[str, Sequence[Any]] | None = None,
    imports: Imports = OWN,
) -> list[Cell]:
    """All runs of a comparison, Standalone first; it is added where it is not among the methods. `imports`: what their code may be taken from.

    >>> cells = plan({"rounds": 2}, ["fedavg", "fedprox"], seeds=[1, 2], grid={"method.mu": [0.01, 0.1]})
    >>> [(cell.label, cell.seed, dict(cell.setting)) for cell in cells if cell.seed == 1]
    [('standalone', 1, {}), ('fedavg', 1, {}), ('fedprox', 1, {'method.mu': 0.01}), ('fedprox', 1, {'method.mu': 0.1})]
    """
    config = as_config(base)
    _check_lists(seeds, partitions, grid or {})
    if not methods:
        raise ConfigurationError(
            "methods: expected at least one, got none; `equipoise methods` lists them"
        )
    listed = _distinct(
        [as_method(alone_for(config) if method == ALONE else method, imports) for method in methods]
    )
    reference = next((method for method in listed if _name(method) == ALONE), None) or as_method(
        alone_for(config)
    )
    listed = _distinct([reference, *listed])
    _check_grid(grid or {}, listed)
    shared = experiment(config, imports)
    seeds, dealt = (
        list(dict.fromkeys(seeds)) or [shared.seed],
        list(dict.fromkeys(partitions)) or [shared.data.partition],
    )
    names = labels([{"method": _spec(method)} for method in listed])
    cells = []
    for partition, seed, (label, method) in itertools.product(
        dealt, seeds, zip(names, listed, strict=True)
    ):
        for setting in _settings(grid or {}, method):
            fixed = {"data.partition": partition, "seed": seed, "workers": 0} | {
                k: v for k, v in setting if not _of_method(k)
            }
            tuned = _tuned(
                method,
                {key.removeprefix("method."): value for key, value in setting if _of_method(key)},
            )
            wanted = experiment({**with_settings(config, fixed), "method": tuned}, imports)
            alone = folder_name(experiment({**dict(wanted), "method": reference}, imports))
            cells.append(
                Cell(
                    label,
                    wanted.data.partition_name,
                    seed,
                    wanted,
                    folder_name(wanted),
                    alone,
                    setting,
                )
            )
    if len({cell.experiment.training.keep_optimiser for cell in cells}) > 1:
        raise ConfigurationError(
            "grid: training.keep_optimiser must be the same in all runs of a comparison, else a change against training alone would be the "
            "optimiser's memory and not the method; set it once for all: training.keep_optimiser=true, or compare twice"
        )
    return list({cell.name: cell for cell in cells}.values())


def default_baseline(labels: Sequence[str]) -> str:
    """The method that others are tested against unless told: fedavg, else the first that is not training alone."""
    return (
        "fedavg"
        if "fedavg" in labels
        else next((label for label in labels if label != ALONE), ALONE)
    )


def from_file(config: FromFile, **given: Any) -> tuple[FromFile, dict[str, Any]]:
    """A comparison's file without its lists, and the lists: what was given stands in place of what the file says."""
    found = {name: value or config.get(name) or value for name, value in given.items()}
    kinds: dict[str, tuple[Any, str]] = {
        "grid": (Mapping, "mapping"), "baseline": (str, "name"), "measure": (str, "name"), "level": ((int, float), "number"),
        "target": ((int, float), "number"),
    }  # fmt: skip
    for name, value in found.items():
        kind, word = kinds.get(name, ((list, tuple), "list"))
        if value and not isinstance(value, kind):
            raise ConfigurationError(f"{name}: expected a {word}, got {quoted(value)}")
    return config.changed(
        {key: value for key, value in config.items() if key not in given}, given.values()
    ), found


def as_config(base: Experiment | Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as a mapping whose sections are mappings; Python objects in it stay what they are."""
    return {
        key: as_config(value) if isinstance(value, BaseModel) else value  # type: ignore[arg-type]
        for key, value in dict(base).items()
    }


def alone_for(config: Mapping[str, Any]) -> dict[str, Any]:
    """Standalone as the reference of a configuration: of several models it trains the one that clients keep."""
    several = list(config.get("models") or {})
    if not several:
        return {"name": ALONE}
    return {
        "name": ALONE,
        "model": next((name for name in ("private", "model") if name in several), several[0]),
    }


def as_method(given: Any, imports: Imports = OWN) -> Any:
    """A method as given, checked: as plain data with all its parameters, or as it is where another process could not import it."""
    method = (
        given if isinstance(given, Method) else method_from(method_spec(given, imports), imports)
    )
    return method if name_is_local(method) else spec_of(method)


def content(wanted: Experiment) -> dict[str, Any]:
    """All that the result of a run depends on, as plain data."""
    found: dict[str, Any] = json.loads(
        json.dumps(
            {key: value for key, value in wanted.to_spec().items() if key not in OPERATIONAL},
            default=str,
        )
    )
    if wanted.dataset is not None:
        digest = hashlib.blake2b(digest_size=8)
        for tensor in (wanted.dataset.x, wanted.dataset.y):
            digest.update(tensor.contiguous().numpy().data)
        found["dataset"] = digest.hexdigest()
    objects = {
        name: spec
        for name, spec in wanted.architectures().items()
        if not isinstance(spec, (str, dict))
    }
    if objects:
        found["objects"] = {
            name: getattr(spec, "__qualname__", repr(spec)) for name, spec in objects.items()
        }
    return found


def folder_name(wanted: Experiment) -> str:
    """A readable name that two experiments share exactly when their content is the same."""
    text = json.dumps(content(wanted), sort_keys=True)
    method = spec_of(wanted.build_method())["name"].rpartition(":")[2].lower()
    return f"{method}-s{wanted.seed}-{hashlib.blake2b(text.encode(), digest_size=5).hexdigest()}"


def default_folder(base: Experiment | Mapping[str, Any], imports: Imports = OWN) -> Path:
    """Where a comparison goes unless told: the same settings lead to the same folder, so that a rerun completes it."""
    wanted = experiment(as_config(base), imports)
    shared = {key: value for key, value in content(wanted).items() if key not in ("method", "seed")}
    shared["data"].pop("partition")
    digest = hashlib.blake2b(json.dumps(shared, sort_keys=True).encode(), digest_size=4).hexdigest()
    return Path("comparisons") / f"{Path(wanted.data.name).name}-{digest}"


def _spec(method: Any) -> dict[str, Any]:
    return spec_of(method) if isinstance(method, Method) else method


def _name(method: Any) -> str:
    return str(_spec(method)["name"])


def _distinct(given: Sequence[Any]) -> list[Any]:
    """The methods without repetitions, in their order."""
    keys = [json.dumps(_spec(method), sort_keys=True, default=str) for method in given]
    return list(dict(zip(keys, given, strict=True)).values())


def _of_method(key: str) -> bool:
    return key.startswith("method.")


def _tuned(method: Any, parameters: Mapping[str, Any]) -> Any:
    if not parameters:
        return method
    if not isinstance(method, Method):
        return with_settings(method, parameters)
    base, guests = parts(method)
    of_base = {key: value for key, value in parameters.items() if "." not in key}
    of_guests = {
        slot: {
            key.removeprefix(f"{slot}."): value
            for key, value in parameters.items()
            if key.startswith(f"{slot}.")
        }
        for slot in guests
    }
    return compose(
        replace(base, **of_base),
        **{slot: replace(guest, **of_guests[slot]) for slot, guest in guests.items()},
    )


def _applies(key: str, method: Any) -> bool:
    """Whether a grid key concerns a method: `method.mu` does where the method has a mu, `training.lr` always."""
    return not _of_method(key) or key.removeprefix("method.") in flat(_spec(method))


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
                f"grid: {key} is not a setting to tune; use the seeds, partitions and methods of the comparison"
            )
        if key == "evaluation" or key.startswith("evaluation."):
            raise ConfigurationError(
                f"grid: {key} is not a setting to tune: all runs of a comparison are measured alike; set it for all"
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

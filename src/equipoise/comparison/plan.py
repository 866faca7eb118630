"""Runs of a comparison: methods, partitions, seeds and grid points on identical data and models."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from equipoise import methods as known_methods
from equipoise.comparison.labels import labels
from equipoise.comparison.objects import dataset_digest, model_identities
from equipoise.composition import compose, parts, served_names
from equipoise.experiment import ConfigurationError, Experiment, experiment, flat, with_settings
from equipoise.experiment.files import with_locations
from equipoise.experiment.specifications import method_from, method_spec, name_is_local, spec_of
from equipoise.method import Method
from equipoise.runs.baseline import ALONE
from equipoise.runs.result import condition_name
from equipoise.validation.imports import OWN, FromFile, Imports, NotAllowed
from equipoise.validation.names import nearest, quoted

OPERATIONAL = ("workers", "keep", "memory")  # settings that do not change results
OVERRIDES = ("training", "model", "models", "rounds", "participation")
"""Keys of a method in a comparison that replace shared settings for its rows."""
ALL = "all"
NONE = "none"
VALIDATION = "validation"
# Section -> the settings of version 0.2, which are always part of a run's name. A later one is part
# of it only if it differs from its default. So a new version finds the runs of an older one.
NAMED_SETTINGS = {
    "": "data device evaluation faults method model models participation rounds seed training",
    "data": """
        augment categorical clients duplicates image_size label name normalise partition pool
        samples schema site split task test
    """,
    "data.schema": "centre classes columns label scale shape task",
    "training": """
        batch betas clip epochs eps focal_gamma keep_optimiser loss lr lr_decay momentum nesterov
        optimiser precision steps weight_decay
    """,
    "participation": "availability deadline floor fraction number script tries",
    "faults": "corrupt corruption deadline dropout script slowdown stragglers",
    "evaluation": "after_local clients distances every main metrics splits",
}
Setting = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Cell:
    """One run of a comparison; its name follows from its content, so a rerun finds it again.

    Attributes:
        label: The name of the method in the table.
        partition: The partition of the data.
        seed: The seed.
        experiment: The experiment to run.
        name: The name of its folder.
        alone: The row of training alone that it is compared with; empty without one.
        setting: The grid point.
        overrides: Settings of this method that differ from the shared ones.
        models: The served models to list as rows; the main one if there is none.
        select: True if a row shows the served model that is best on validation data.
        sweep: The value of the setting that a sweep varies.
    """

    label: str
    partition: str
    seed: int
    experiment: Experiment = field(repr=False)
    name: str
    alone: str = ""
    setting: Setting = ()
    overrides: Setting = ()
    models: tuple[str, ...] = ()
    select: bool = False
    sweep: Setting = ()


@dataclass(frozen=True)
class Refusal:
    """A method that cannot run with its settings.

    Attributes:
        method: Its name in the table.
        reason: Why it refuses.
    """

    method: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """All runs of a comparison, training alone first, and the refusals of methods."""

    cells: list[Cell]
    refusals: list[Refusal]


@dataclass(frozen=True)
class ListedMethod:
    """A method in the list of a comparison.

    Attributes:
        method: Its checked mapping, or the object if other processes cannot import its class.
        overrides: Settings that replace the shared ones for its rows.
        models: The served models to list as rows; by default those of the comparison.
        select: True if a row shows the served model that is best on validation data.
    """

    method: Any
    overrides: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    select: bool = False

    @property
    def spec(self) -> dict[str, Any]:
        """The method as plain data."""
        return spec_of(self.method) if isinstance(self.method, Method) else self.method

    @property
    def is_baseline(self) -> bool:
        """True if clients train alone with the shared settings."""
        return bool(self.spec["name"] == ALONE and not self.overrides)


def plan_comparison(
    base: Experiment | Mapping[str, Any],
    methods: Sequence[Any],
    seeds: Sequence[int] = (),
    partitions: Sequence[str] = (),
    grid: Mapping[str, Sequence[Any]] | None = None,
    imports: Imports = OWN,
    models: Sequence[str] | str = (),
    baselines: str | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
) -> Plan:
    """Return the runs of a comparison, training alone first, and the methods that refuse.

    Args:
        base: The settings that all runs share.
        methods: Names of methods, mappings with hyper-parameters and settings of their own, or
            Method objects. Training alone is added where it is not among them.
        seeds: The seeds; by default that of `base`.
        partitions: The partitions; by default that of `base`.
        grid: Settings to choose on validation data.
        imports: The packages from which code that they name may be imported.
        models: Names of served models that are rows of their own; "all" for all.
        baselines: "none" if training alone is not to be added.
        sweep: One setting and the values that it takes.

    Raises:
        ConfigurationError: A setting is wrong, or all methods refuse theirs.
        ValueError: A method is unknown, or no method serves a model that `models` names.

    >>> grid = {"method.mu": [0.01, 0.1]}
    >>> planned = plan_comparison({"rounds": 2}, ["fedavg", "fedprox"], seeds=[1], grid=grid)
    >>> for cell in planned.cells:
    ...     print(cell.label, dict(cell.setting))
    standalone {}
    fedavg {}
    fedprox {'method.mu': 0.01}
    fedprox {'method.mu': 0.1}
    """
    config = as_config(base)
    grid = grid or {}
    _check_lists(seeds, partitions, grid)
    if not methods:
        raise ConfigurationError(
            "methods: expected at least one, got none; `equipoise methods` lists them"
        )
    listed = _all_listed(methods, config, imports)
    if baselines not in (None, ALONE, NONE):
        raise ConfigurationError(f"baselines: expected {ALONE} or {NONE}, got {quoted(baselines)}")
    listed = _with_standalone(listed, config, add=baselines != NONE)
    _check_grid(grid, listed)
    _check_sweep(sweep or {}, grid, listed)
    shared = experiment(config, imports)
    planner = _Planner(
        config=config,
        imports=imports,
        shared=shared,
        partitions=list(dict.fromkeys(partitions)) or [shared.data.partition],
        seeds=list(dict.fromkeys(seeds)) or [shared.seed],
        grid=grid,
        models=_model_names(models, "models"),
        sweep=sweep or {},
    )
    return planner.plan(listed)


@dataclass(frozen=True)
class _Planner:
    """The settings that all methods of a comparison share."""

    config: Mapping[str, Any]
    imports: Imports
    shared: Experiment
    partitions: Sequence[Any]
    seeds: Sequence[int]
    grid: Mapping[str, Sequence[Any]]
    models: tuple[str, ...]
    sweep: Mapping[str, Sequence[Any]]

    def plan(self, listed: Sequence[ListedMethod]) -> Plan:
        cells: list[Cell] = []
        refusals = []
        errors = []
        names = _labels(listed)
        alone = names[0] if listed[0].is_baseline else ""
        for label, method in zip(names, listed, strict=True):
            try:
                cells += [replace(cell, alone=alone) for cell in self._cells(label, method)]
            except ConfigurationError as error:
                if method.is_baseline:
                    raise  # Training alone has the shared settings only: they are wrong.
                refusals.append(Refusal(label, str(error)))
                errors.append(error)
        if errors and len(errors) == sum(not method.is_baseline for method in listed):
            raise errors[0]
        ordered = _by_condition(cells)
        _check_memory(ordered)
        if not refusals:
            _check_models(ordered)
        return Plan(ordered, refusals)

    def _cells(self, label: str, listed: ListedMethod) -> list[Cell]:
        cells = []
        sweeps = _points(self.sweep)
        for partition, sweep, seed in itertools.product(self.partitions, sweeps, self.seeds):
            shared = {"data.partition": partition, "seed": seed, "workers": 0, **dict(sweep)}
            for setting in _settings(self.grid, listed):
                cells.append(self._cell(label, listed, shared, setting, sweep))
        return cells

    def _cell(
        self,
        label: str,
        listed: ListedMethod,
        shared: Mapping[str, Any],
        setting: Setting,
        sweep: Setting,
    ) -> Cell:
        settings = {**shared, **dict(setting)}
        fixed = {key: value for key, value in settings.items() if not _of_method(key)}
        parameters = {
            key.removeprefix("method."): value
            for key, value in settings.items()
            if _of_method(key) and _applies(key, listed)
        }
        config = with_settings(self.config, fixed)
        own = with_overrides(config, listed.overrides)
        method = _tuned(listed.method, parameters)
        built = experiment({**own, "method": method}, self.imports)
        if listed.select:
            check_validation(built)
        return Cell(
            label=label,
            partition=condition_name(built.data.partition_name, sweep),
            seed=built.seed,
            experiment=built,
            name=folder_name(built),
            setting=setting,
            overrides=self._differences(built, listed),
            models=listed.models or self.models,
            select=listed.select,
            sweep=sweep,
        )

    def _differences(self, built: Experiment, listed: ListedMethod) -> Setting:
        """Return the settings of a method that differ from the shared ones."""
        if not listed.overrides:
            return ()
        shared = flat(self.shared.model_dump(mode="json", include=set(OVERRIDES)))
        own = flat(built.model_dump(mode="json", include=set(OVERRIDES)))
        tuned = {key for key in (*self.grid, *self.sweep) if not _of_method(key)}
        return tuple(
            (key, value)
            for key, value in own.items()
            if shared.get(key) != value and key not in tuned
        )


def _by_condition(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells by partition and seed, without repetitions.

    Two rows may show the same run, such as a method that is listed with a default written out.
    """
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.partition, cell.seed), []).append(cell)
    distinct = {}
    for group in groups.values():
        for cell in group:
            row = (cell.label, cell.partition, cell.models, cell.select)
            distinct[cell.name, row] = cell
    return list(distinct.values())


def check_validation(built: Experiment) -> None:
    """Refuse to choose among served models without validation data."""
    if VALIDATION not in built.evaluation.splits or not built.data.split[1]:
        raise ConfigurationError(
            "select: the served model is chosen on validation data, but there are none; give "
            "clients a share with data.split, such as [0.7, 0.1, 0.2], and keep `validation` in "
            "evaluation.splits"
        )
    check_held_out("select", built)


def check_held_out(purpose: str, built: Experiment) -> None:
    """Refuse to choose on validation data that the method trains on.

    Args:
        purpose: The option that chooses, "select" or "grid".
        built: The experiment.
    """
    method = built.build_method()
    if method.held_out_rounds(built.rounds) is not None:
        raise ConfigurationError(
            f"{purpose}: {method.title} trains on validation data, so they cannot choose; hold "
            "them out (fold: false of poise, validation: false of finetune), or leave it out of "
            f"{purpose}"
        )


def _check_models(cells: Sequence[Cell]) -> None:
    """Refuse names of models that no method of the comparison may serve.

    A method of a user may serve models that it does not declare. Then names are checked against the
    results of the runs.
    """
    known: set[str] = set()
    for cell in cells:
        names = served_names(cell.experiment.build_method())
        if names is None:
            return
        known |= names
    check_model_names(cells, known)


def check_model_names(cells: Sequence[Cell], served: Collection[str]) -> None:
    """Refuse names of models that are not served.

    Args:
        cells: The runs, with the models to list as rows.
        served: The names of models that some run serves.

    Raises:
        ValueError: It names the models that are served.
    """
    for cell in cells:
        for name in cell.models:
            if name != ALL and name not in served:
                raise nearest("served model", name, sorted(served))


def _check_memory(cells: Sequence[Cell]) -> None:
    if len({cell.experiment.training.keep_optimiser for cell in cells}) > 1:
        raise ConfigurationError(
            "training.keep_optimiser must be the same in all runs of a comparison, else a change "
            "against training alone would be the optimiser's memory and not the method; set it "
            "once for all: training.keep_optimiser=true, or compare twice"
        )


def _all_listed(
    methods: Sequence[Any], config: Mapping[str, Any], imports: Imports
) -> list[ListedMethod]:
    """Check a list of methods.

    Raises:
        ConfigurationError: A file names methods that may not be imported. The error also names all
            mistakes in the shared settings, so that one permission after the other is not needed.
    """
    listed = []
    refused: dict[str, None] = {}
    for method in methods:
        try:
            listed.append(_listed(method, config, imports))
        except NotAllowed as error:
            refused[with_locations(f"methods: {error}", config)] = None
    if refused:
        lines = list(refused)
        try:
            experiment(config, imports)
        except ConfigurationError as error:
            lines.append(str(error))
        raise ConfigurationError("\n".join(lines))
    return listed


def _listed(value: Any, config: Mapping[str, Any], imports: Imports) -> ListedMethod:
    """Check one item of a list of methods."""
    if value == ALONE:
        value = alone_for(config)
    method, overrides = split_overrides(value, (*OVERRIDES, "serves", "select"), imports)
    models = _model_names(overrides.pop("serves", ()), "serves")
    select = overrides.pop("select", None)
    if select not in (None, VALIDATION):
        raise ConfigurationError(f"select: expected {VALIDATION}, got {quoted(select)}")
    if isinstance(method, Mapping) and "evaluation" in method:
        raise ConfigurationError(
            f"methods: {quoted(method.get('name'))} has settings of evaluation, but all runs of a "
            "comparison are measured alike; set evaluation for all"
        )
    return ListedMethod(as_method(method, imports), overrides, models, select is not None)


def _model_names(value: Any, key: str) -> tuple[str, ...]:
    """Return names of served models, given as `all`, as one name or as a list."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            f"{key}: expected `all` or names of served models such as [global, teacher], "
            f"got {quoted(value)}"
        )
    return (ALL,) if ALL in names else tuple(dict.fromkeys(names))


def split_overrides(
    method: Any, keys: Sequence[str] = OVERRIDES, imports: Imports = OWN
) -> tuple[Any, dict[str, Any]]:
    """Return a method without settings of its own, and these settings.

    Args:
        method: A name, a mapping or a Method.
        keys: The keys that are settings. A hyper-parameter of the method with such a name, as
            `model` of training alone, is one only if its value is a mapping.
        imports: The packages from which the method may be imported.

    >>> split_overrides({"name": "feddc", "alpha": 1, "training": {"optimiser": "sgd", "lr": 0.1}})
    ({'name': 'feddc', 'alpha': 1}, {'training': {'optimiser': 'sgd', 'lr': 0.1}})
    """
    if not isinstance(method, Mapping):
        return method, {}
    parameters = _parameters(method, imports)
    own = dict(method)
    overrides = {}
    for key in keys:
        is_parameter = key in parameters and not isinstance(own.get(key), Mapping)
        if key in own and not is_parameter:
            overrides[key] = own.pop(key)
    return own, overrides


def _parameters(method: Mapping[str, Any], imports: Imports) -> set[str]:
    """Return the names of a method's hyper-parameters; none if there is no such method."""
    try:
        kind = known_methods.find(str(method.get("name")), imports)
    except ValueError:
        return set()  # The name is refused where the method is made.
    return {parameter.name for parameter in dataclasses.fields(kind)}


def with_overrides(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the settings of one method.

    A section such as `training` is changed key by key. A model is replaced as a whole, and so are
    all models of an experiment that has several.
    """
    settings: dict[str, Any] = {}
    for key, value in overrides.items():
        if isinstance(value, Mapping) and key not in ("model", "models"):
            settings |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            settings[key] = value
    return with_settings(dict(config), settings)


def _with_standalone(
    listed: Sequence[ListedMethod], config: Mapping[str, Any], add: bool
) -> list[ListedMethod]:
    """Return distinct methods, training alone with the shared settings first.

    Args:
        listed: The methods.
        config: The shared settings.
        add: Add training alone where it is not among the methods.
    """
    for method in listed:
        if method.is_baseline:
            return _distinct([method, *listed])
    if not add:
        return _distinct(listed)
    return _distinct([ListedMethod(as_method(alone_for(config))), *listed])


def _distinct(listed: Sequence[ListedMethod]) -> list[ListedMethod]:
    """Return the methods without repetitions, in their order."""
    keys = []
    for method in listed:
        own = [method.spec, method.overrides, method.models, method.select]
        keys.append(json.dumps(own, sort_keys=True, default=str))
    return list(dict(zip(keys, listed, strict=True)).values())


def _labels(listed: Sequence[ListedMethod]) -> list[str]:
    """Return the names of methods in the table.

    Settings are named only where the same method is listed several times; else a note below the
    table names them.
    """
    names = labels([{"method": method.spec} for method in listed])
    if len(set(names)) == len(names):
        return names
    detailed = labels([{"method": method.spec, **method.overrides} for method in listed])
    return [
        detail if names.count(name) > 1 else name
        for name, detail in zip(names, detailed, strict=True)
    ]


def default_baseline(labels: Sequence[str]) -> str:
    """Return the method that others are tested against by default.

    It is fedavg, else the first that is not training alone.
    """
    if "fedavg" in labels:
        return "fedavg"
    return next((label for label in labels if label != ALONE), ALONE)


_KINDS: dict[str, tuple[Any, str]] = {
    "grid": (Mapping, "mapping"),
    "sweep": (Mapping, "mapping"),
    "baselines": (str, "name"),
    "baseline": (str, "name"),
    "measure": (str, "name"),
    "models": ((str, list, tuple), "list"),
    "level": ((int, float), "number"),
    "target": ((int, float, str, Mapping), "number, name or mapping"),
}  # of settings in the file of a comparison; the others are lists


def from_file(config: FromFile, **arguments: Any) -> tuple[FromFile, dict[str, Any]]:
    """Separate the file of a comparison into the experiment and the settings of the comparison.

    Args:
        config: The content of the file.
        arguments: Settings of the comparison; one that is not empty replaces that of the file.

    Raises:
        ConfigurationError: A setting has the wrong type.
    """
    settings = {}
    for name, value in arguments.items():
        settings[name] = value or config.get(name) or value
    if "models" in arguments and isinstance(config.get("models"), Mapping):
        # These are the networks of the experiment, not served models.
        settings["models"] = arguments["models"]
    for name, value in settings.items():
        kind, word = _KINDS.get(name, ((list, tuple), "list"))
        if value and not isinstance(value, kind):
            raise ConfigurationError(f"{name}: expected a {word}, got {quoted(value)}")
    shared = {
        key: value
        for key, value in config.items()
        if key not in arguments or (key == "models" and isinstance(value, Mapping))
    }
    return config.changed(shared, arguments.values()), settings


def as_config(base: Experiment | Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration whose sections are mappings; Python objects in it stay as they are.

    One of a file still knows the lines of its keys, for messages.
    """
    if isinstance(base, FromFile):
        return base
    config = {}
    for key, value in dict(base).items():
        config[key] = as_config(value) if isinstance(value, BaseModel) else value  # type: ignore[arg-type]
    return config


def alone_for(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return training alone as the baseline of a configuration.

    Of several models it trains the one that clients keep.
    """
    models = list(config.get("models") or {})
    if not models:
        return {"name": ALONE}
    for name in ("private", "model"):
        if name in models:
            return {"name": ALONE, "model": name}
    return {"name": ALONE, "model": models[0]}


def as_method(value: Any, imports: Imports = OWN) -> Any:
    """Return a checked method.

    Args:
        value: A name, a mapping or a Method.
        imports: The packages from which it may be imported.

    Returns:
        Plain data with all its parameters, or the object where another process could not import
        its class.
    """
    method = value
    if not isinstance(value, Method):
        method = method_from(method_spec(value, imports), imports)
    return method if name_is_local(method) else spec_of(method)


def content(built: Experiment) -> dict[str, Any]:
    """Return all that the result of a run depends on, as plain data."""
    spec = {key: value for key, value in built.to_spec().items() if key not in OPERATIONAL}
    _drop_later_defaults(spec, built)
    plain: dict[str, Any] = json.loads(json.dumps(spec, default=str))
    if built.dataset is not None:
        plain["dataset"] = dataset_digest(built.dataset)
    objects = model_identities(built.architectures())
    if objects:
        plain["objects"] = objects
    return plain


def _drop_later_defaults(spec: dict[str, Any], section: BaseModel, name: str = "") -> None:
    """Remove settings that version 0.2 did not have and that have their default."""
    named = NAMED_SETTINGS[name].split()
    for key in list(spec):
        field = type(section).model_fields[key]
        value = getattr(section, key)
        is_later = key not in named
        if is_later and value == field.get_default(call_default_factory=True):
            del spec[key]
            continue
        path = f"{name}.{key}".strip(".")
        if isinstance(value, BaseModel) and path in NAMED_SETTINGS:
            _drop_later_defaults(spec[key], value, path)


def folder_name(built: Experiment) -> str:
    """Return a readable name that two experiments share exactly if their content is the same."""
    text = json.dumps(content(built), sort_keys=True)
    method = spec_of(built.build_method())["name"].rpartition(":")[2].lower()
    return f"{method}-s{built.seed}-{hashlib.blake2b(text.encode(), digest_size=5).hexdigest()}"


def default_folder(base: Experiment | Mapping[str, Any], imports: Imports = OWN) -> Path:
    """Return the default folder of a comparison.

    The same shared settings lead to the same folder, so that a rerun completes it.
    """
    built = experiment(as_config(base), imports)
    shared = {key: value for key, value in content(built).items() if key not in ("method", "seed")}
    shared["data"].pop("partition")
    digest = hashlib.blake2b(json.dumps(shared, sort_keys=True).encode(), digest_size=4).hexdigest()
    return Path("comparisons") / f"{Path(built.data.name).name}-{digest}"


def _of_method(key: str) -> bool:
    return key.startswith("method.")


def _tuned(method: Any, parameters: Mapping[str, Any]) -> Any:
    """Return a method with other hyper-parameters."""
    if not parameters:
        return method
    if not isinstance(method, Method):
        return with_settings(method, parameters)
    base, guests = parts(method)
    own = {key: value for key, value in parameters.items() if "." not in key}
    tuned_guests = {}
    for slot, guest in guests.items():
        prefix = f"{slot}."
        changes = {
            key.removeprefix(prefix): value
            for key, value in parameters.items()
            if key.startswith(prefix)
        }
        tuned_guests[slot] = replace(guest, **changes)
    return compose(replace(base, **own), **tuned_guests)


def _applies(key: str, listed: ListedMethod) -> bool:
    """Return True if a grid key concerns a method.

    `method.mu` concerns the methods that have a mu, `training.lr` all that do not set it
    themselves.
    """
    if _of_method(key):
        return key.removeprefix("method.") in flat(listed.spec)
    return key not in flat(listed.overrides)


def _check_lists(seeds: Sequence[Any], partitions: Sequence[Any], grid: Mapping[str, Any]) -> None:
    for name, values, kind, expected in (
        ("seeds", seeds, int, "whole numbers"),
        ("partitions", partitions, str, "texts"),
    ):
        wrong = [value for value in values if not isinstance(value, kind)]
        if wrong:
            raise ConfigurationError(f"{name}: expected {expected}, got {quoted(wrong[0])}")
    for key, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise ConfigurationError(
                f"grid: expected a list of values for {key}, got {quoted(values)}"
            )
        nested = [value for value in values if isinstance(value, (list, Mapping))]
        if nested:
            raise ConfigurationError(
                f"grid: expected numbers or texts for {key}, got {quoted(nested[0])}"
            )


def _check_grid(grid: Mapping[str, Sequence[Any]], listed: Sequence[ListedMethod]) -> None:
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
            known = {f"method.{name}" for method in listed for name in flat(method.spec)}
            raise nearest("grid key", key, sorted(known - {"method.name"}))


def _settings(grid: Mapping[str, Sequence[Any]], listed: ListedMethod) -> list[Setting]:
    """Return the grid points of a method."""
    return _points({key: values for key, values in grid.items() if _applies(key, listed)})


def _points(values: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Return all combinations of the values of several settings."""
    combinations = itertools.product(*values.values())
    return [tuple(zip(values, combination, strict=True)) for combination in combinations]


def _check_sweep(
    sweep: Mapping[str, Any], grid: Mapping[str, Any], listed: Sequence[ListedMethod]
) -> None:
    if len(sweep) > 1:
        raise ConfigurationError(
            f"sweep: expected one setting, got {', '.join(sweep)}; compare once for each"
        )
    for key, values in sweep.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigurationError(
                f"sweep: expected a list of values for {key}, got {quoted(values)}"
            )
        fixed = ("seed", "data.partition", "data.name", "method", "method.name")
        if key in fixed or key.startswith("evaluation") or key in grid:
            raise ConfigurationError(
                f"sweep: {key} cannot be varied within one table; use the seeds, partitions and "
                "methods of the comparison, or compare several times"
            )
        if not any(_applies(key, method) for method in listed):
            known = {f"method.{name}" for method in listed for name in flat(method.spec)}
            raise nearest("sweep key", key, sorted(known - {"method.name"}))

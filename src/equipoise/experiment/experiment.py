"""The configuration of a run, checked once, at the edge.

An experiment is data, partition, models, method, schedule and seed: a YAML file that is enough to repeat a run. Unknown keys are refused
with the nearest valid one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from pydantic import (
    Field,
    PrivateAttr,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)
from torch import nn

from equipoise.composition import parts
from equipoise.data import DataConfig, Dataset
from equipoise.data.arrays.objects import with_own_data
from equipoise.experiment.files import ConfigurationError
from equipoise.experiment.sections import Evaluation, Faults, Participation, Section
from equipoise.experiment.specifications import method_from, method_spec, name_is_local, spec_of
from equipoise.losses.registry import DEFAULT
from equipoise.method import Method, mistake
from equipoise.models.registry import AUTO, REGISTRY, chosen
from equipoise.training import Training
from equipoise.validation.imports import Imports, NotAllowed, permission, permitted
from equipoise.validation.names import checked_name, closest, quoted

MOST_MISTAKES = 20  # that one error tells
OWN_DATA = "its data set is a Python object"


class Experiment(Section):
    """Data + partition + model(s) + method + schedule + seed."""

    data: DataConfig = DataConfig()
    model: Any = Field(
        "auto",
        description="a model's name, or a mapping with its name and options, or a module of yours; auto: cnn for images, else mlp",
    )
    models: dict[str, Any] = Field(
        default_factory=dict,
        max_length=100,
        description="several models by name (private, proxy), for methods that need them",
    )
    method: Any = Field(
        {"name": "fedavg"},
        description="a method's name, or a mapping with its name and hyper-parameters, or a Method",
    )
    training: Training = Training()
    participation: Participation = Participation()
    faults: Faults = Faults()
    evaluation: Evaluation = Evaluation()
    rounds: int = Field(50, ge=1, le=1_000_000_000)
    seed: int = Field(0, ge=0, lt=2**63)
    workers: int | None = Field(
        None, ge=0, le=256, description="worker processes; none: one per core; 0: in process"
    )
    device: str = Field("cpu", description="cpu or cuda")
    keep: int = Field(2, ge=1, lt=2**31, description="checkpoints kept")
    memory: int = Field(
        512,
        ge=1,
        lt=2**31,
        description="megabytes of replies held in memory; above it they go through files",
    )
    dataset: Dataset | None = Field(
        None, exclude=True, description="a data set of yours in place of data.name"
    )
    _imports: Imports = PrivateAttr(default_factory=lambda: permission.get())

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            found = error.errors()
            more = (
                [f"... and {len(found) - MOST_MISTAKES} more mistakes"]
                if len(found) > MOST_MISTAKES
                else []
            )
            raise ConfigurationError(
                "\n".join([*map(_explain, found[:MOST_MISTAKES]), *more])
            ) from None

    @model_validator(mode="before")
    @classmethod
    def _own_data(cls, values: Any) -> Any:
        return with_own_data(values)

    @field_validator("device")
    @classmethod
    def _device(cls, value: str) -> str:
        if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", value):
            raise ValueError(f"expected cpu, cuda or cuda:1, say, got {quoted(value)}")
        return value

    @field_validator("data", mode="before")
    @classmethod
    def _data(cls, value: Any) -> Any:
        value = {"name": str(value)} if isinstance(value, (str, Path)) else value
        name = value.get("name") if isinstance(value, Mapping) else getattr(value, "name", None)
        if isinstance(name, str) and ":" in name and not Path(name).exists():
            permission.get().check(name, "data set")
        return value

    @field_validator("method", mode="before")
    @classmethod
    def _method(cls, value: Any) -> Any:
        return value if isinstance(value, Method) else method_spec(value, permission.get())

    @field_validator("model", mode="before")
    @classmethod
    def _model(cls, value: Any) -> Any:
        return checked_model(value, "model")

    @field_validator("models", mode="before")
    @classmethod
    def _models(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError(
                f"models: expected a mapping from name to model, got {quoted(value)}; for one model use `model`"
            )
        for name in value:
            if "@" in checked_name(name, "the name of a model"):
                raise ValueError(
                    f"models: expected names without @, got {name!r}; {name.replace('@', '-')!r}, say"
                )
        return {name: checked_model(spec, f"models.{name}") for name, spec in value.items()}

    @field_serializer("method")
    def _plain_method(self, value: Any) -> Any:
        return spec_of(value) if isinstance(value, Method) else value

    @field_serializer("model", "models")
    def _plain_model(self, value: Any) -> Any:
        if isinstance(value, dict):
            # Options of a named model are plain already; other models are given by name, or by client under `clients`.
            return {
                key: self._plain_model(one) if "name" not in value or key == "clients" else one
                for key, one in value.items()
            }
        return value if isinstance(value, str) else f"<{type(value).__name__} given in Python>"

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        method = self.build_method()
        base, guests = parts(method)
        for part in (base, *guests.values()):
            wrong = mistake(type(part))
            if wrong:
                raise ValueError(wrong)
        if "sgd" in method.needs and not self.training.plain_sgd:
            raise ValueError(
                f"{method.title} needs plain sgd, got optimiser={self.training.optimiser}, momentum={self.training.momentum}, "
                f"weight_decay={self.training.weight_decay}, clip={self.training.clip}: it reads a gradient off the update divided by the learning rate; set training.optimiser=sgd without them"
            )
        if method.own_objective and self.training.loss != DEFAULT:
            raise ValueError(
                f"training.loss: {method.title} minimises an objective of its own, so expected {DEFAULT}, got {quoted(self.training.loss)}"
            )
        return self

    def build_method(self) -> Method:
        return (
            self.method
            if isinstance(self.method, Method)
            else method_from(self.method, self._imports)
        )

    def to_spec(self) -> dict[str, Any]:
        """All of it as plain data, the method with all its parameters: what another process is told."""
        return self.model_dump(mode="json") | {"method": spec_of(self.build_method())}

    @property
    def imports(self) -> Imports:
        """What this experiment may import."""
        return self._imports

    def architectures(self) -> dict[str, Any]:
        """Model name -> specification; a single model is called `model`."""
        return dict(self.models) if self.models else {"model": self.model}

    def with_model(self, shape: tuple[int, ...]) -> Experiment:
        """The same with the name of the model that `auto` stands for, so that its file says what was trained."""
        return (
            self
            if self.models or self.model != AUTO
            else self.model_copy(update={"model": chosen(shape)})
        )

    @property
    def local(self) -> str | None:
        """Why another process cannot do this experiment's work; None if it can."""
        by_client = [
            spec.get("clients", {})
            for spec in self.architectures().values()
            if isinstance(spec, dict)
        ]
        specs = [
            *self.architectures().values(),
            *(own for clients in by_client for own in clients.values()),
        ]
        if any(not isinstance(spec, (str, dict)) for spec in specs):
            return "its model is a Python object"
        method = self.build_method()
        if name_is_local(method):
            return f"its method {method.title} is defined in a notebook or script"
        for kind, name in (("metric", self.evaluation.local), ("loss", self.training.local)):
            if name is not None:
                return f"its {kind} {name} is defined in a notebook or script"
        local_model = next((one for one in map(_local_model, specs) if one), None)
        if local_model is not None:
            return f"its model {local_model} is defined in a notebook or script"
        return self.data.local

    @property
    def portable(self) -> str | None:
        """Why this experiment cannot be rebuilt from its file alone; None if it can."""
        return (
            " and ".join(
                reason
                for reason in (OWN_DATA if self.dataset is not None else None, self.local)
                if reason
            )
            or None
        )


def _local_model(spec: Any) -> str | None:
    """The name of a model that only this process knows."""
    name = str(spec["name"] if isinstance(spec, dict) else spec)
    return name if REGISTRY.is_local(name) else None


def checked_model(value: Any, where: str) -> Any:
    if isinstance(value, str):
        value = {"name": value}
        return _checked_spec(value, where)["name"]
    if isinstance(value, (nn.Module, Callable)):  # type: ignore[arg-type]
        return value
    if isinstance(value, Mapping) and ("name" in value):
        return _checked_spec(dict(value), where)
    raise ValueError(
        f"{where}: expected a name, a mapping with `name` and options, or a torch module, got {quoted(value)}"
    )


def _checked_spec(spec: dict[str, Any], where: str) -> dict[str, Any]:
    """A model by name; code that may not be imported is refused here, before anything is prepared."""
    if not isinstance(spec["name"], str):
        raise ValueError(f"{where}.name: expected text, got {quoted(spec['name'])}")
    spec["name"] = REGISTRY.portable(spec["name"])
    if ":" in spec["name"]:
        permission.get().check(spec["name"], "model")
    if "clients" in spec:
        if not isinstance(spec["clients"], Mapping):
            raise ValueError(
                f"{where}.clients: expected a mapping from client to model, got {quoted(spec['clients'])}"
            )
        spec["clients"] = {
            client: checked_model(own, f"{where}.clients.{client}")
            for client, own in spec["clients"].items()
        }
    return spec


def experiment(config: Mapping[str, Any], imports: Imports | None = None) -> Experiment:
    """A checked experiment, or an error that names every wrong key.

    Code that a file names is imported if `imports` says so; what a mapping made in Python names is the caller's own.
    """
    wrong = [key for key in config if not isinstance(key, str)]
    if wrong:
        raise ConfigurationError(f"expected text as keys, got {quoted(wrong[0])}")
    before = permission.set(imports or permitted(config))
    try:
        return Experiment(**config)
    finally:
        permission.reset(before)


def _explain(detail: Any) -> str:
    path = [str(part) for part in detail["loc"]]
    key = ".".join(path) or "experiment"
    if detail["type"] == "extra_forbidden":
        section: Any = Experiment
        for part in path[:-1]:
            # A place in a tuple or a mapping of sections (faults.script.0, participation.script.3) leads to what these are of.
            inner = (
                get_args(section)[1 if get_origin(section) is dict else 0]
                if get_origin(section) in (tuple, dict)
                else None
            )
            section = section.model_fields[part].annotation if inner is None else inner
            # a section or none
            section = get_args(section)[0] if isinstance(section, UnionType) else section
        valid = list(section.model_fields)
        close = closest(path[-1], valid)
        hint = f"; did you mean {'.'.join([*path[:-1], close])}?" if close else "."
        return f"{key}: unknown key{hint} Known here: {', '.join(valid)}"
    message = detail["msg"].removeprefix("Value error, ")
    named = message.startswith((f"{key}: ", f"{key}."))
    told = (
        "got" in message
        or "unknown" in message
        or isinstance(detail.get("ctx", {}).get("error"), NotAllowed)
    )
    return (message if named else f"{key}: {message}") + (
        "" if told else f", got {quoted(detail['input'])}"
    )

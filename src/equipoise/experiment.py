"""The configuration of a run, checked once, at the edge.

An experiment is data, partition, models, method, schedule and seed: a YAML file that is enough to repeat a run. Unknown keys are refused
with the nearest valid one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, overload

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_serializer, field_validator, model_validator
from torch import nn

from equipoise import methods
from equipoise.checked import plainyaml
from equipoise.checked.imports import OWN, FromFile, Imports, NotAllowed, permitted
from equipoise.checked.names import checked_name, quoted
from equipoise.composition import SLOTS, compose, parts
from equipoise.data import DataConfig, Dataset
from equipoise.method import Method, mistake
from equipoise.metrics import registry
from equipoise.training import Training

MOST_MISTAKES = 20  # that one error tells
OWN_DATA = "its data set is a Python object"
# What the experiment that is being made may import. Not a field: no key of a file may reach it.
_permission: ContextVar[Imports] = ContextVar("permission", default=OWN)


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)


class Scripted(Section):
    """The cohort of one round, given and not drawn; `attempt` is the one that counted, where earlier ones were given up."""

    clients: tuple[str, ...]
    attempt: int = Field(0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _ids_alone(cls, value: Any) -> Any:
        return {"clients": value} if isinstance(value, (list, tuple)) else value


class Participation(Section):
    """Who is asked in a round, and how many must answer."""

    fraction: float = Field(1.0, gt=0, le=1, description="share of the clients asked in each round")
    number: int | None = Field(None, ge=1, description="a number of clients in place of a fraction")
    availability: float = Field(1.0, gt=0, le=1, description="chance that a client can be asked at all in a round")
    floor: int = Field(1, ge=1, description="replies below which a round is repeated with a new cohort")
    tries: int = Field(3, ge=1, description="cohorts tried for one round before the run stops")
    deadline: float = Field(3600.0, gt=0, description="seconds that a client's step may take; with workers=0 kept in the main thread only")
    script: dict[int, Scripted] = Field(default_factory=dict, description="round -> the clients asked in it, in place of a draw")

    def size(self, clients: int) -> int:
        return min(clients, self.number if self.number is not None else max(1, int(clients * self.fraction + 1e-9)))


class Fault(Section):
    """One fault at one place, for tests and rehearsals."""

    round: int = Field(ge=1)
    client: str
    kind: Literal["drop", "nan", "shape", "names", "kill"]
    exchange: int = Field(1, ge=1, description="of the round's exchanges")
    attempt: int = Field(0, ge=0, description="at the round")


class Faults(Section):
    """Simulated faults, drawn from named streams: a run with faults repeats like any other."""

    dropout: float = Field(0.0, ge=0, lt=1, description="chance that a client does not answer in a round")
    corrupt: float = Field(0.0, ge=0, lt=1, description="chance that a client's reply is damaged")
    corruption: Literal["nan", "shape", "names"] = Field("nan", description="how it is damaged")
    stragglers: float = Field(0.0, ge=0, le=1, description="share of clients that are slow")
    slowdown: float = Field(10.0, ge=1, description="how many times slower a straggler is")
    deadline: float | None = Field(
        None, gt=0, description="virtual seconds after which a reply is late; 1 = a thousand samples at full speed"
    )
    script: tuple[Fault, ...] = Field((), description="faults at given rounds and clients")

    @property
    def any(self) -> bool:
        return bool(self.dropout or self.corrupt or self.script or (self.stragglers and self.deadline))


class Evaluation(Section):
    """What is measured and how often; the last round is always measured."""

    every: int = Field(1, ge=0, description="rounds between measurements; 0: after the last round only")
    clients: Literal["all", "cohort"] = Field("all", description="whose models are measured")
    splits: tuple[Literal["train", "validation", "test"], ...] = Field(("validation", "test"), description="parts of a client's data")
    metrics: tuple[str, ...] = Field((), description="default: accuracy and loss, or rmse and loss; the main one is always measured")
    main: str | None = Field(
        None, description="the metric that results are about; default: accuracy or rmse, else the first of `metrics` that is not loss"
    )
    after_local: bool = Field(False, description="measure each client's model right after its local training, too")
    distances: bool = Field(False, description="angle and Manhattan distance between each client's model and the new global one")

    @field_validator("metrics", "main")
    @classmethod
    def _known(cls, given: tuple[str, ...] | str | None) -> tuple[str, ...] | str | None:
        for name in (given,) if isinstance(given, str) else given or ():
            registry.find(name)
        return given


class Experiment(Section):
    """Data + partition + model(s) + method + schedule + seed."""

    data: DataConfig = DataConfig()
    model: Any = Field("mlp", description="a model's name, or a mapping with its name and options, or a module of yours")
    models: dict[str, Any] = Field(
        default_factory=dict, max_length=100, description="several models by name (private, proxy), for methods that need them"
    )
    method: Any = Field({"name": "fedavg"}, description="a method's name, or a mapping with its name and hyper-parameters, or a Method")
    training: Training = Training()
    participation: Participation = Participation()
    faults: Faults = Faults()
    evaluation: Evaluation = Evaluation()
    rounds: int = Field(20, ge=1, le=1_000_000_000)
    seed: int = Field(0, ge=0, lt=2**63)
    workers: int | None = Field(None, ge=0, le=256, description="worker processes; none: one per core; 0: in process")
    device: str = Field("cpu", description="cpu or cuda")
    keep: int = Field(2, ge=1, lt=2**31, description="checkpoints kept")
    memory: int = Field(512, ge=1, lt=2**31, description="megabytes of replies held in memory; above it they go through files")
    dataset: Dataset | None = Field(None, exclude=True, description="a data set of yours in place of data.name")
    _imports: Imports = PrivateAttr(default_factory=lambda: _permission.get())

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            found = error.errors()
            more = [f"... and {len(found) - MOST_MISTAKES} more mistakes"] if len(found) > MOST_MISTAKES else []
            raise ConfigurationError("\n".join([*map(_explain, found[:MOST_MISTAKES]), *more])) from None

    @field_validator("device")
    @classmethod
    def _device(cls, value: str) -> str:
        if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", value):
            raise ValueError(f"expected cpu, cuda or cuda:1, say, got {quoted(value)}")
        return value

    @field_validator("data", mode="before")
    @classmethod
    def _data(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, (str, Path)) else value

    @field_validator("method", mode="before")
    @classmethod
    def _method(cls, value: Any) -> Any:
        return value if isinstance(value, Method) else method_spec(value, _permission.get())

    @field_validator("model", mode="before")
    @classmethod
    def _model(cls, value: Any) -> Any:
        return checked_model(value, "model")

    @field_validator("models", mode="before")
    @classmethod
    def _models(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError(f"models: expected a mapping from name to model, got {quoted(value)}; for one model use `model`")
        for name in value:
            if "@" in checked_name(name, "the name of a model"):
                raise ValueError(f"models: expected names without @, got {name!r}; {name.replace('@', '-')!r}, say")
        return {name: checked_model(spec, f"models.{name}") for name, spec in value.items()}

    @field_serializer("method")
    def _plain_method(self, value: Any) -> Any:
        return spec_of(value) if isinstance(value, Method) else value

    @field_serializer("model", "models")
    def _plain_model(self, value: Any) -> Any:
        if isinstance(value, dict):
            # Options of a named model are plain already; other models are given by name, or by client under `clients`.
            return {key: self._plain_model(one) if "name" not in value or key == "clients" else one for key, one in value.items()}
        return value if isinstance(value, str) else f"<{type(value).__name__} given in Python>"

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        method = self.build_method()
        base, guests = parts(method)
        for part in (base, *guests.values()):
            wrong = mistake(type(part))
            if wrong:
                raise ValueError(wrong)
        if method.needs_plain_sgd and not self.training.plain_sgd:
            raise ValueError(
                f"{method.title} needs plain sgd, got optimiser={self.training.optimiser}, momentum={self.training.momentum}, "
                f"weight_decay={self.training.weight_decay}, clip={self.training.clip}: it reads a gradient off the update divided by the learning rate; set training.optimiser=sgd without them"
            )
        return self

    def build_method(self) -> Method:
        return self.method if isinstance(self.method, Method) else method_from(self.method, self._imports)

    @property
    def imports(self) -> Imports:
        """What this experiment may import."""
        return self._imports

    def architectures(self) -> dict[str, Any]:
        """Model name -> specification; a single model is called `model`."""
        return dict(self.models) if self.models else {"model": self.model}

    @property
    def local(self) -> str | None:
        """Why another process cannot do this experiment's work; None if it can."""
        by_client = [spec.get("clients", {}) for spec in self.architectures().values() if isinstance(spec, dict)]
        specs = [*self.architectures().values(), *(own for clients in by_client for own in clients.values())]
        if any(not isinstance(spec, (str, dict)) for spec in specs):
            return "its model is a Python object"
        method = self.build_method()
        return f"its method {method.title} is defined in a notebook or script" if name_is_local(method) else None

    @property
    def portable(self) -> str | None:
        """Why this experiment cannot be rebuilt from its file alone; None if it can."""
        return " and ".join(reason for reason in (OWN_DATA if self.dataset is not None else None, self.local) if reason) or None


def checked_model(value: Any, where: str) -> Any:
    if isinstance(value, str):
        value = {"name": value}
        return _checked_spec(value, where)["name"]
    if isinstance(value, (nn.Module, Callable)):  # type: ignore[arg-type]
        return value
    if isinstance(value, Mapping) and ("name" in value):
        return _checked_spec(dict(value), where)
    raise ValueError(f"{where}: expected a name, a mapping with `name` and options, or a torch module, got {quoted(value)}")


def _checked_spec(spec: dict[str, Any], where: str) -> dict[str, Any]:
    """A model by name; code that may not be imported is refused here, before anything is prepared."""
    if not isinstance(spec["name"], str):
        raise ValueError(f"{where}.name: expected text, got {quoted(spec['name'])}")
    if ":" in spec["name"]:
        _permission.get().check(spec["name"], "model")
    if "clients" in spec:
        if not isinstance(spec["clients"], Mapping):
            raise ValueError(f"{where}.clients: expected a mapping from client to model, got {quoted(spec['clients'])}")
        spec["clients"] = {client: checked_model(own, f"{where}.clients.{client}") for client, own in spec["clients"].items()}
    return spec


def method_spec(value: Any, imports: Imports = OWN) -> dict[str, Any]:
    """A method as given (a name or a mapping) as a checked mapping; guests are nested mappings under their slots."""
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping) or "name" not in value:
        raise ValueError(f"method: expected a name or a mapping with `name`, got {quoted(value)}; `equipoise methods` lists the names")
    spec = dict(value)
    for slot in SLOTS:
        if spec.get(slot) is not None:
            spec[slot] = method_spec(spec[slot], imports)
        elif slot in spec:
            del spec[slot]
    made = method_from(spec, imports)
    # A name that `register` gave is known in this process only; the file of a run says where the class is.
    return spec if name_is_local(made) else {**spec, "name": methods.name_of(parts(made)[0])}


def method_from(spec: Mapping[str, Any], imports: Imports = OWN) -> Method:
    guests = {slot: method_from(spec[slot], imports) for slot in SLOTS if slot in spec}
    own = {key: value for key, value in spec.items() if key not in ("name", *SLOTS)}
    return compose(methods.make(spec["name"], own, imports), **guests)


def spec_of(method: Method) -> dict[str, Any]:
    """The mapping from which `method_from` makes an equal method, here or in another process."""
    base, guests = parts(method)
    return {"name": methods.name_of(base), **methods.parameters_of(base), **{slot: spec_of(guest) for slot, guest in guests.items()}}


def name_is_local(method: Method) -> bool:
    """Whether another process could not import a part of this method."""
    base, guests = parts(method)
    return any(type(part).__module__ == "__main__" or "<locals>" in type(part).__qualname__ for part in (base, *guests.values()))


class ConfigurationError(ValueError):
    """A configuration that cannot be run: names the key, the value and what is allowed."""


def load(path: Path | str) -> FromFile:
    """The mapping in a YAML file."""
    try:
        if not Path(path).exists():
            raise ConfigurationError(
                f"no experiment file {path}; give the path of a YAML file, or flags such as --data digits --method fedavg"
            )
        found = plainyaml.read(path)
    except (plainyaml.Unreadable, OSError) as error:
        raise ConfigurationError(str(error)) from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path}: expected a mapping such as `method: fedavg`, got {type(found).__name__}")
    return FromFile(found)


@overload
def with_settings(config: FromFile, settings: Mapping[str, Any]) -> FromFile: ...
@overload
def with_settings(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]: ...
def with_settings(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with dotted keys changed: {"method.mu": 0.1}; names that it brings in are the caller's."""
    result: dict[str, Any] = dict(config)
    for key, value in settings.items():
        *parents, last = key.split(".")
        place = result
        for parent in parents:
            inner = place.get(parent)
            # `method: fedprox` is short for a mapping with that name.
            inner = {"name": inner} if isinstance(inner, str) else {} if inner is None else inner
            if not isinstance(inner, Mapping):
                raise ConfigurationError(f"{key}: {parent} is {quoted(inner)}, which has no parts; set {parent} itself")
            inner = dict(inner)
            place[parent] = inner
            place = inner
        place[last] = value
    return config.changed(result, settings.values()) if isinstance(config, FromFile) else result


def experiment(config: Mapping[str, Any], imports: Imports | None = None) -> Experiment:
    """A checked experiment, or an error that names every wrong key.

    Code that a file names is imported if `imports` says so; what a mapping made in Python names is the caller's own.
    """
    wrong = [key for key in config if not isinstance(key, str)]
    if wrong:
        raise ConfigurationError(f"expected text as keys, got {quoted(wrong[0])}")
    before = _permission.set(imports or permitted(config))
    try:
        return Experiment(**config)
    finally:
        _permission.reset(before)


def _explain(detail: Any) -> str:
    path = [str(part) for part in detail["loc"]]
    key = ".".join(path) or "experiment"
    if detail["type"] == "extra_forbidden":
        section: Any = Experiment
        for part in path[:-1]:
            # A place in a tuple of sections (faults.script.0) leads to what the tuple is of.
            section = get_args(section)[0] if part.isdigit() else section.model_fields[part].annotation
        valid = list(section.model_fields)
        close = get_close_matches(path[-1], valid, 1, 0.5)
        hint = f"; did you mean {'.'.join([*path[:-1], close[0]])}?" if close else "."
        return f"{key}: unknown key{hint} Known here: {', '.join(valid)}"
    message = detail["msg"].removeprefix("Value error, ")
    named = message.startswith((f"{key}: ", f"{key}."))
    told = "got" in message or "unknown" in message or isinstance(detail.get("ctx", {}).get("error"), NotAllowed)
    return (message if named else f"{key}: {message}") + ("" if told else f", got {quoted(detail['input'])}")

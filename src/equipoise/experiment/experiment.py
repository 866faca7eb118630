"""The configuration of a run, checked once, at the edge.

An experiment is data, partition, models, method, schedule and seed: a YAML file that is enough to
repeat a run. Unknown keys are refused with the nearest valid one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin

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
from equipoise.experiment.files import ConfigurationError, with_locations
from equipoise.experiment.sections import Budget, Evaluation, Faults, Participation, Section
from equipoise.experiment.specifications import method_from, method_spec, name_is_local, spec_of
from equipoise.losses.registry import DEFAULT
from equipoise.method import Method, mistake
from equipoise.models.registry import AUTO, REGISTRY, chosen
from equipoise.training import Training
from equipoise.validation.imports import Imports, NotAllowed, permission, permitted
from equipoise.validation.names import checked_name, closest, quoted
from equipoise.validation.settings import plain_reason

MOST_MISTAKES = 20  # in one error message
OWN_DATA = "its data set is a Python object"


class Experiment(Section):
    """Configuration of a run: data, partition, models, method, schedule and seed.

    All keys have defaults; the fields of this class document them. `equipoise.experiment`
    makes one from a mapping, such as the content of a YAML file.

    Raises:
        ConfigurationError: If a value is wrong or a key is unknown; it names every mistake.

    Example:
        >>> Experiment(method="fedprox", rounds=20).method["name"]
        'fedprox'
    """

    data: DataConfig = DataConfig()
    model: Any = Field(
        default="auto",
        description="a model's name, or a mapping with its name and options, or a torch module; "
        "auto: cnn for images, else mlp",
    )
    models: dict[str, Any] = Field(
        default_factory=dict,
        max_length=100,
        description="several models by name (private, proxy), for methods that need them",
    )
    method: Any = Field(
        default={"name": "fedavg"},
        validate_default=True,
        description="a method's name, or a mapping with its name and hyper-parameters, or a Method",
    )
    training: Training = Training()
    participation: Participation = Participation()
    faults: Faults = Faults()
    evaluation: Evaluation = Evaluation()
    rounds: int = Field(
        default=50, ge=1, le=1_000_000_000, description="number of federated rounds"
    )
    budget: Budget | None = Field(
        default=None, description="training time after which a run ends before its last round"
    )
    seed: int = Field(
        default=0,
        ge=0,
        lt=2**63,
        description="seed of all random numbers; the same seed repeats a run",
    )
    workers: int | None = Field(
        default=None,
        ge=0,
        le=256,
        description="worker processes; none: one per core; 0: in process",
    )
    device: str = Field(default="cpu", description="cpu or cuda")
    keep: int = Field(default=2, ge=1, lt=2**31, description="checkpoints kept")
    memory: int = Field(
        default=512,
        ge=1,
        lt=2**31,
        description="megabytes of replies held in memory; above it they go through files",
    )
    dataset: Dataset | None = Field(
        default=None, exclude=True, description="a data set of yours in place of data.name"
    )
    _imports: Imports = PrivateAttr(default_factory=lambda: permission.get())

    if TYPE_CHECKING:
        # Sections may also be given as mappings, which pydantic converts. Type checkers know this
        # signature, so that rounds="x" is an error without a plugin.
        def __init__(
            self,
            *,
            data: DataConfig | Mapping[str, Any] | Any = ...,
            model: Any = ...,
            models: Mapping[str, Any] = ...,
            method: Method | Mapping[str, Any] | str = ...,
            training: Training | Mapping[str, Any] = ...,
            participation: Participation | Mapping[str, Any] = ...,
            faults: Faults | Mapping[str, Any] = ...,
            evaluation: Evaluation | Mapping[str, Any] = ...,
            rounds: int = ...,
            budget: Budget | Mapping[str, Any] | None = ...,
            seed: int = ...,
            workers: int | None = ...,
            device: str = ...,
            keep: int = ...,
            memory: int = ...,
            dataset: Dataset | None = ...,
        ) -> None: ...

    else:

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigurationError(_explain_all(error.errors())) from None

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
        if isinstance(value, (str, Path)):
            value = {"name": str(value)}
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
                f"models: expected a mapping from name to model, got {quoted(value)}; "
                "for one model use `model`"
            )
        for name in value:
            if "@" in checked_name(name, "the name of a model"):
                raise ValueError(
                    f"models: expected names without @, got {name!r}; "
                    f"{name.replace('@', '-')!r}, say"
                )
        return {name: checked_model(spec, f"models.{name}") for name, spec in value.items()}

    @field_serializer("method")
    def _plain_method(self, value: Any) -> Any:
        return spec_of(value) if isinstance(value, Method) else value

    @field_serializer("model", "models")
    def _plain_model(self, value: Any) -> Any:
        if isinstance(value, str):
            return value
        if not isinstance(value, dict):
            return f"<{type(value).__name__} given in Python>"
        if "name" not in value:  # several models, by their name or by client
            return {key: self._plain_model(model) for key, model in value.items()}
        spec = dict(value)  # the options of a named model are plain data already
        if "clients" in spec:
            spec["clients"] = self._plain_model(spec["clients"])
        return spec

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        method = self.build_method()
        base, guests = parts(method)
        for part in (base, *guests.values()):
            wrong = mistake(type(part))
            if wrong:
                raise ValueError(wrong)
        training = self.training
        if "sgd" in method.needs and not training.plain_sgd:
            raise ValueError(
                f"{method.title} needs plain sgd, got optimiser={training.optimiser}, "
                f"momentum={training.momentum}, weight_decay={training.weight_decay}, "
                f"clip={training.clip}: it reads a gradient off the update divided by the "
                "learning rate; set training.optimiser=sgd without them"
            )
        if method.own_objective and training.loss != DEFAULT:
            raise ValueError(
                f"training.loss: {method.title} minimises an objective of its own, "
                f"so expected {DEFAULT}, got {quoted(training.loss)}"
            )
        return self

    def build_method(self) -> Method:
        """Return the method; all calls return the same object."""
        if isinstance(self.method, Method):
            return self.method
        return method_from(self.method, self._imports)

    def to_spec(self) -> dict[str, Any]:
        """Return the experiment as plain data for another process.

        Unlike in the file of a run, the method has all its parameters.
        """
        return self.model_dump(mode="json") | {"method": spec_of(self.build_method())}

    @property
    def imports(self) -> Imports:
        """The packages from which this experiment may import code."""
        return self._imports

    def architectures(self) -> dict[str, Any]:
        """Return the specification of each model by name; a single model is called `model`."""
        return dict(self.models) if self.models else {"model": self.model}

    def with_model(self, shape: tuple[int, ...]) -> Experiment:
        """Return the experiment with the name of the model that `auto` stands for.

        So the file of a run says what was trained.

        Args:
            shape: The shape of one input.
        """
        if self.models or self.model != AUTO:
            return self
        return self.model_copy(update={"model": chosen(shape)})

    @property
    def why_not_remote(self) -> str | None:
        """The reason why another process cannot execute clients; None if it can."""
        specs = self._model_specs()
        if any(not isinstance(spec, (str, dict)) for spec in specs):
            return "its model is a Python object"
        method = self.build_method()
        local_parts = {
            f"method {method.title}": name_is_local(method),
            f"metric {self.evaluation.local_metric}": self.evaluation.local_metric is not None,
            f"loss {self.training.local_loss}": self.training.local_loss is not None,
        }
        for spec in specs:
            name = str(spec["name"] if isinstance(spec, dict) else spec)
            local_parts[f"model {name}"] = REGISTRY.is_local(name)
        for part, is_local in local_parts.items():
            if is_local:
                return f"its {part} is defined in a notebook or script"
        return self.data.why_not_remote

    @property
    def why_not_portable(self) -> str | None:
        """The reason why the experiment cannot be rebuilt from its file; None if it can."""
        reasons = [OWN_DATA] if self.dataset is not None else []
        if self.why_not_remote is not None:
            reasons.append(self.why_not_remote)
        return " and ".join(reasons) or None

    def _model_specs(self) -> list[Any]:
        """Return the specifications of all models, also of those for some clients only."""
        specs = list(self.architectures().values())
        for spec in self.architectures().values():
            if isinstance(spec, dict):
                specs += spec.get("clients", {}).values()
        return specs


def checked_model(value: Any, key: str) -> Any:
    """Check the specification of a model.

    Args:
        value: A name, a mapping with `name` and options, a torch module, or a function that
            makes one.
        key: The key of the experiment, for messages.

    Returns:
        The specification; a name that was registered in this process is replaced by the place
        from which other processes can import it.

    Raises:
        ValueError: If it is none of these, or names code that may not be imported.
    """
    if isinstance(value, str):
        return _checked_spec({"name": value}, key)["name"]
    if isinstance(value, nn.Module) or callable(value):
        return value
    if isinstance(value, Mapping) and "name" in value:
        return _checked_spec(dict(value), key)
    raise ValueError(
        f"{key}: expected a name, a mapping with `name` and options, or a torch module, "
        f"got {quoted(value)}"
    )


def _checked_spec(spec: dict[str, Any], key: str) -> dict[str, Any]:
    """Check a model by name; code that may not be imported is refused before data are read."""
    if not isinstance(spec["name"], str):
        raise ValueError(f"{key}.name: expected text, got {quoted(spec['name'])}")
    spec["name"] = REGISTRY.portable(spec["name"])
    if ":" in spec["name"]:
        permission.get().check(spec["name"], "model")
    if "clients" in spec:
        if not isinstance(spec["clients"], Mapping):
            raise ValueError(
                f"{key}.clients: expected a mapping from client to model, "
                f"got {quoted(spec['clients'])}"
            )
        spec["clients"] = {
            client: checked_model(model, f"{key}.clients.{client}")
            for client, model in spec["clients"].items()
        }
    return spec


def experiment(config: Mapping[str, Any], imports: Imports | None = None) -> Experiment:
    """Return the checked experiment of a configuration.

    Args:
        config: Keys and values as in a YAML file.
        imports: The packages from which code that it names may be imported. By default
            everything that a mapping made in Python names, and nothing that a file names.

    Raises:
        ConfigurationError: If a value is wrong or a key is unknown; it names every mistake.
    """
    wrong = [key for key in config if not isinstance(key, str)]
    if wrong:
        raise ConfigurationError(f"expected text as keys, got {quoted(wrong[0])}")
    before = permission.set(imports or permitted(config))
    try:
        return Experiment(**config)
    except ConfigurationError as error:
        raise ConfigurationError(with_locations(str(error), config)) from None
    finally:
        permission.reset(before)


def _explain_all(details: list[Any]) -> str:
    """Return a line for each of the first mistakes."""
    lines = [_explain(detail) for detail in details[:MOST_MISTAKES]]
    if len(details) > MOST_MISTAKES:
        lines.append(f"... and {len(details) - MOST_MISTAKES} more mistakes")
    return "\n".join(lines)


def _explain(detail: Any) -> str:
    """Return one mistake as a sentence that names its key."""
    path = [str(part) for part in detail["loc"]]
    if detail["type"] == "extra_forbidden":
        return _explain_unknown_key(path)
    key = ".".join(path) or "experiment"
    message = plain_reason(str(detail["msg"]))
    names_value = "got" in message or "unknown" in message
    is_permission = isinstance(detail.get("ctx", {}).get("error"), NotAllowed)
    if not (names_value or is_permission):
        message += f", got {quoted(detail['input'])}"
    if message.startswith((f"{key}: ", f"{key}.")):
        return message
    return f"{key}: {message}"


def _explain_unknown_key(path: list[str]) -> str:
    *parents, last = path
    known = list(_section_at(parents).model_fields)
    close = closest(last, known)
    hint = f"; did you mean {'.'.join([*parents, close])}?" if close else "."
    return f"{'.'.join(path)}: unknown key{hint} Known here: {', '.join(known)}"


def _section_at(path: list[str]) -> Any:
    """Return the class of the section at a path such as ("participation", "script", "3")."""
    section: Any = Experiment
    for part in path:
        container = get_origin(section)
        if container is dict:
            section = get_args(section)[1]
        elif container is tuple:
            section = get_args(section)[0]
        else:
            section = section.model_fields[part].annotation
        if isinstance(section, UnionType):  # a section or None
            section = get_args(section)[0]
    return section

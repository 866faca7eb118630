"""The sections of an experiment: who takes part, which faults are simulated, what is measured."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from equipoise.metrics.registry import REGISTRY, Metric, name_of, resolve
from equipoise.validation.imports import permission
from equipoise.validation.registry import import_name
from equipoise.validation.settings import Settings


class Section(Settings):
    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False
    )


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
    availability: float = Field(
        1.0, gt=0, le=1, description="chance that a client can be asked at all in a round"
    )
    floor: int = Field(
        1, ge=1, description="replies below which a round is repeated with a new cohort"
    )
    tries: int = Field(3, ge=1, description="cohorts tried for one round before the run stops")
    deadline: float = Field(
        3600.0,
        gt=0,
        description="seconds that a client's step may take; with workers=0 kept in the main thread only",
    )
    script: dict[int, Scripted] = Field(
        default_factory=dict, description="round -> the clients asked in it, in place of a draw"
    )

    def attempts(self, number: int) -> range:
        """The attempts at a round; a script names the one that counted, where earlier ones were given up."""
        first = self.script[number].attempt if number in self.script else 0
        return range(first, first + self.tries)

    def size(self, clients: int) -> int:
        return min(
            clients,
            self.number if self.number is not None else max(1, int(clients * self.fraction + 1e-9)),
        )


class Fault(Section):
    """One fault at one place, for tests and rehearsals."""

    round: int = Field(ge=1)
    client: str
    kind: Literal["drop", "nan", "shape", "names", "kill"]
    exchange: int = Field(1, ge=1, description="of the round's exchanges")
    attempt: int = Field(0, ge=0, description="at the round")


class Faults(Section):
    """Simulated faults, drawn from named streams: a run with faults repeats like any other."""

    dropout: float = Field(
        0.0, ge=0, lt=1, description="chance that a client does not answer in a round"
    )
    corrupt: float = Field(0.0, ge=0, lt=1, description="chance that a client's reply is damaged")
    corruption: Literal["nan", "shape", "names"] = Field("nan", description="how it is damaged")
    stragglers: float = Field(0.0, ge=0, le=1, description="share of clients that are slow")
    slowdown: float = Field(10.0, ge=1, description="how many times slower a straggler is")
    deadline: float | None = Field(
        None,
        gt=0,
        description="virtual seconds after which a reply is late; 1 = a thousand samples at full speed",
    )
    script: tuple[Fault, ...] = Field((), description="faults at given rounds and clients")

    @property
    def any(self) -> bool:
        return bool(
            self.dropout or self.corrupt or self.script or (self.stragglers and self.deadline)
        )


class Evaluation(Section):
    """What is measured and how often; the last round is always measured."""

    every: int = Field(
        1, ge=0, description="rounds between measurements; 0: after the last round only"
    )
    clients: Literal["all", "cohort"] = Field("all", description="whose models are measured")
    splits: tuple[Literal["train", "validation", "test"], ...] = Field(
        ("validation", "test"), description="parts of a client's data"
    )
    metrics: tuple[Any, ...] = Field(
        (),
        description="names, package.module:name or Metrics; default: accuracy and loss, or rmse and loss; the main one is always measured",
    )
    main: Any = Field(
        None,
        description="the metric that results are about; default: accuracy or rmse, else the first of `metrics` that is not loss",
    )
    after_local: bool = Field(
        False, description="measure each client's model right after its local training, too"
    )
    curves: bool = Field(
        True,
        description="clinical measures and histograms of scores at the end, from clients with at least 30 test samples",
    )
    no_curves: tuple[str, ...] = Field(
        (),
        description="clients that send no counts of scores; a site may also set EQUIPOISE_CURVES=no",
    )
    distances: bool = Field(
        False,
        description="angle and Manhattan distance between each client's model and the new global one",
    )

    @field_validator("metrics")
    @classmethod
    def _known(cls, given: tuple[Any, ...]) -> tuple[str | Metric, ...]:
        found: dict[str, Metric] = {}
        for one in given:
            metric = resolve(one, imports=permission.get())
            if found.setdefault(metric.name, metric) is not metric:
                raise ValueError(
                    f"expected one metric of a name, got two that are called {metric.name!r}"
                )
        return tuple(map(_portable, given))

    @field_validator("main")
    @classmethod
    def _known_main(cls, given: Any, info: ValidationInfo) -> Any:
        listed = info.data.get("metrics", ())
        if given is None or given in map(name_of, listed):
            return given
        metric = resolve(given, imports=permission.get())
        if any(name_of(one) == metric.name and resolve(one) is not metric for one in listed):
            raise ValueError(
                f"expected one metric of a name, got another than in evaluation.metrics that is called {metric.name!r}"
            )
        return _portable(given)

    @field_serializer("metrics", "main")
    def _plain(self, given: Any) -> Any:
        if isinstance(given, tuple):
            return [self._plain(one) for one in given]
        # One that no import finds is written by its name, for readers; `local` says that it cannot be measured elsewhere.
        return import_name(given) or given.name if isinstance(given, Metric) else given

    @property
    def local(self) -> str | None:
        """Return the name of a metric that only this process knows; None if there is none."""
        for one in (*self.metrics, *([self.main] if self.main else [])):
            if import_name(one) is None if isinstance(one, Metric) else REGISTRY.is_local(one):
                return name_of(one)
        return None


def _portable(given: str | Metric) -> str | Metric:
    return given if isinstance(given, Metric) else REGISTRY.portable(given)

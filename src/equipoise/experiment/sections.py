"""Sections of an experiment: participation, simulated faults and evaluation."""

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
    """Base of an experiment's sections: frozen, and without unknown keys or infinite numbers."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False
    )


class Scripted(Section):
    """The cohort of one round, given and not drawn."""

    clients: tuple[str, ...] = Field(description="the clients of the round")
    attempt: int = Field(
        default=0, ge=0, description="the attempt that counted, after earlier ones were aborted"
    )

    @model_validator(mode="before")
    @classmethod
    def _ids_alone(cls, value: Any) -> Any:
        return {"clients": value} if isinstance(value, (list, tuple)) else value


class Participation(Section):
    """Client sampling: the number of clients in a round, and how many must reply."""

    fraction: float = Field(
        default=1.0, gt=0, le=1, description="share of the clients in each round"
    )
    number: int | None = Field(
        default=None, ge=1, description="a number of clients in place of a fraction"
    )
    availability: float = Field(
        default=1.0, gt=0, le=1, description="probability that a client is available in a round"
    )
    floor: int = Field(
        default=1, ge=1, description="replies below which a round is repeated with a new cohort"
    )
    tries: int = Field(
        default=3, ge=1, description="cohorts tried for one round before the run stops"
    )
    deadline: float = Field(
        default=3600.0,
        gt=0,
        description="seconds that a client's step may take; "
        "with workers=0 kept in the main thread only",
    )
    script: dict[int, Scripted] = Field(
        default_factory=dict, description="round -> its clients, instead of a random sample"
    )

    def attempts(self, number: int) -> range:
        """Return the attempts at a round; a scripted round begins with the one that counted."""
        first = self.script[number].attempt if number in self.script else 0
        return range(first, first + self.tries)

    def size(self, clients: int) -> int:
        """Return the number of clients in a round.

        Args:
            clients: The number of all clients.
        """
        if self.number is not None:
            return min(clients, self.number)
        share = int(clients * self.fraction + 1e-9)
        return min(clients, max(1, share))


class Fault(Section):
    """A fault of one client in one exchange, for tests and rehearsals."""

    round: int = Field(ge=1, description="the round of the fault")
    client: str = Field(description="the client of the fault")
    kind: Literal["drop", "nan", "shape", "names", "kill", "restart"] = Field(
        description="restart: the client begins the round without its state"
    )
    exchange: int = Field(
        default=1, ge=0, description="of the round's exchanges; 0: its evaluation"
    )
    attempt: int = Field(default=0, ge=0, description="at the round")

    @model_validator(mode="after")
    def _evaluations_are_dropped_only(self) -> Fault:
        if self.exchange == 0 and self.kind != "drop":
            raise ValueError(
                f"expected kind drop for exchange 0, the evaluation of a round, got {self.kind}"
            )
        return self


class Faults(Section):
    """Simulated faults, drawn from named streams: a run with faults repeats like any other."""

    dropout: float = Field(
        default=0.0, ge=0, lt=1, description="chance that a client does not answer in a round"
    )
    corrupt: float = Field(
        default=0.0, ge=0, lt=1, description="chance that a client's reply is damaged"
    )
    corruption: Literal["nan", "shape", "names"] = Field(
        default="nan", description="how it is damaged"
    )
    stragglers: float = Field(default=0.0, ge=0, le=1, description="share of clients that are slow")
    slowdown: float = Field(default=10.0, ge=1, description="how many times slower a straggler is")
    deadline: float | None = Field(
        default=None,
        gt=0,
        description="virtual seconds after which a reply is late; "
        "1 = a thousand samples at full speed",
    )
    script: tuple[Fault, ...] = Field(default=(), description="faults at given rounds and clients")

    @property
    def any(self) -> bool:
        """True if a fault can occur."""
        can_be_late = self.stragglers > 0 and self.deadline is not None
        return bool(self.dropout or self.corrupt or self.script or can_be_late)


class Budget(Section):
    """Limit of a run besides its number of rounds."""

    seconds: float | None = Field(
        default=None,
        gt=0,
        description="training time (clients and aggregation, evaluation excluded) after which "
        "training ends, at the end of a round",
    )
    rounds: int | None = Field(
        default=None,
        ge=1,
        description="the round after which training ends, in place of seconds; a replay has the "
        "round in which the time was up",
    )

    @model_validator(mode="after")
    def _limits(self) -> Budget:
        if self.seconds is None and self.rounds is None:
            raise ValueError("expected seconds, such as {seconds: 60}, got none")
        return self


class Evaluation(Section):
    """Metrics, splits and interval of evaluation; the last round is always evaluated."""

    every: int = Field(
        default=1, ge=0, description="rounds between measurements; 0: after the last round only"
    )
    clients: Literal["all", "cohort"] = Field(
        default="all", description="whose models are measured"
    )
    splits: tuple[Literal["train", "validation", "test"], ...] = Field(
        default=("validation", "test"), description="parts of a client's data"
    )
    metrics: tuple[Any, ...] = Field(
        default=(),
        description="names, package.module:name or Metrics; default: accuracy and loss, "
        "or rmse and loss; the main one is always measured",
    )
    main: Any = Field(
        default=None,
        description="the metric that results are about; default: accuracy or rmse, "
        "else the first of `metrics` that is not loss",
    )
    after_local: bool = Field(
        default=False, description="measure each client's model right after its local training, too"
    )
    curves: bool = Field(
        default=True,
        description="clinical measures and histograms of scores at the end, "
        "from clients with at least 30 test samples",
    )
    no_curves: tuple[str, ...] = Field(
        default=(),
        description="clients that send no counts of scores; a site may also set "
        "EQUIPOISE_CURVES=no",
    )
    group_minimum: int = Field(
        default=10,
        ge=2,
        le=1_000_000,
        description="test samples below which a client withholds a group of `data.groups`; a site "
        "may set a larger EQUIPOISE_GROUP_MINIMUM",
    )
    threshold: int = Field(
        default=50,
        ge=1,
        le=99,
        description="the score in whole per cent from which on the second of two classes counts "
        "as predicted, in results by group",
    )
    distances: bool = Field(
        default=False,
        description="angle and Manhattan distance between each client's model and the new global "
        "one, in the rounds that are measured",
    )

    @field_validator("metrics")
    @classmethod
    def _known(cls, metrics: tuple[Any, ...]) -> tuple[str | Metric, ...]:
        by_name: dict[str, Metric] = {}
        for entry in metrics:
            metric = resolve(entry, imports=permission.get())
            if by_name.setdefault(metric.name, metric) is not metric:
                raise ValueError(
                    f"expected one metric of a name, got two that are called {metric.name!r}"
                )
        return tuple(_portable(entry) for entry in metrics)

    @field_validator("main")
    @classmethod
    def _known_main(cls, main: Any, info: ValidationInfo) -> Any:
        if "metrics" not in info.data:
            # They were refused, and `main` may be the short name of one of them.
            return main
        listed = info.data["metrics"]
        if main is None or main in [name_of(entry) for entry in listed]:
            return main
        metric = resolve(main, imports=permission.get())
        for entry in listed:
            if name_of(entry) == metric.name and resolve(entry) is not metric:
                raise ValueError(
                    "expected one metric of a name, got another than in evaluation.metrics "
                    f"that is called {metric.name!r}"
                )
        return _portable(main)

    @field_serializer("metrics", "main")
    def _plain(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return [self._plain(entry) for entry in value]
        if isinstance(value, Metric):
            # A metric that cannot be imported is written by its name, for readers;
            # `local_metric` says that it cannot be computed elsewhere.
            return import_name(value) or value.name
        return value

    def is_due(self, round: int, rounds: int) -> bool:
        """Return True if a round is measured; the last of all rounds always is."""
        return round >= rounds or bool(self.every and round % self.every == 0)

    @property
    def local_metric(self) -> str | None:
        """The name of a metric that only this process knows; None if there is none."""
        entries = [*self.metrics, self.main] if self.main else self.metrics
        for entry in entries:
            if _is_local(entry):
                return name_of(entry)
        return None


def _is_local(metric: str | Metric) -> bool:
    if isinstance(metric, Metric):
        return import_name(metric) is None
    return REGISTRY.is_local(metric)


def _portable(metric: str | Metric) -> str | Metric:
    return metric if isinstance(metric, Metric) else REGISTRY.portable(metric)

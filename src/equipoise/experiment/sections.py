"""The sections of an experiment: who takes part, which faults are simulated, what is measured."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from equipoise.metrics import registry
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
    metrics: tuple[str, ...] = Field(
        (),
        description="default: accuracy and loss, or rmse and loss; the main one is always measured",
    )
    main: str | None = Field(
        None,
        description="the metric that results are about; default: accuracy or rmse, else the first of `metrics` that is not loss",
    )
    after_local: bool = Field(
        False, description="measure each client's model right after its local training, too"
    )
    curves: bool = Field(
        True,
        description="counts of scores at the end, from clients with at least 30 test samples: for ROC and calibration curves",
    )
    no_curves: tuple[str, ...] = Field(
        (),
        description="clients that send no counts of scores; a site may also set EQUIPOISE_CURVES=no",
    )
    distances: bool = Field(
        False,
        description="angle and Manhattan distance between each client's model and the new global one",
    )

    @field_validator("metrics", "main")
    @classmethod
    def _known(cls, given: tuple[str, ...] | str | None) -> tuple[str, ...] | str | None:
        for name in (given,) if isinstance(given, str) else given or ():
            registry.find(name)
        return given

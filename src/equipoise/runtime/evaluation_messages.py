"""What a server asks a client to evaluate, and what the client says of its models.

Each request is a dataclass on both sides. Between them it travels as the record of a step of its own.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Self

from torch import Tensor

from equipoise.records import Down, Record, Up
from equipoise.tree import Tree


@dataclass(frozen=True)
class EvaluationRequest:
    """A request to evaluate, which trains nothing and writes no state."""

    step: ClassVar[str]  # names the request on its way; no step of a method begins so

    def record(self) -> Record:
        """Return the request as it travels: the fields that differ from their defaults."""
        values = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if one.default is MISSING or value != one.default:
                values[one.name] = value
        return Record(values)

    @classmethod
    def of(cls, record: Record) -> Self:
        """Read a request from what travelled."""
        return cls(**record)


@dataclass(frozen=True)
class EvaluateModels(EvaluationRequest):
    """Evaluate the models that the client serves on its own data, and its own models on the shared test set."""

    step: ClassVar[str] = "@measure"
    down: Down
    splits: list[str]
    metrics: list[str]
    alike: bool  # whether all clients are delivered the same
    ending: bool = False  # whether this is the last evaluation of the run
    curves: bool = False  # whether to send histograms of scores


@dataclass(frozen=True)
class PredictShared(EvaluationRequest):
    """Send the outputs of a model that is the same for all, on a slice of the shared test set."""

    step: ClassVar[str] = "@outputs"
    down: Down
    model: str
    start: int
    stop: int


@dataclass(frozen=True)
class SendModel(EvaluationRequest):
    """Send a model that is the same for all, to a server that holds the shared test set itself."""

    step: ClassVar[str] = "@handed"
    down: Down
    model: str


@dataclass(frozen=True)
class FeatureDistance(EvaluationRequest):
    """Compare the mean features of the client's data under its own and under the new global model."""

    step: ClassVar[str] = "@distance"
    down: Down
    local: Tree
    new: Tree


@dataclass(frozen=True)
class CheckState(EvaluationRequest):
    """Read the client's state, and nothing else."""

    step: ClassVar[str] = "@present"


@dataclass(frozen=True)
class ServedModel:
    """What a client says of a model that it serves."""

    common: bool  # the same for all clients
    main: bool  # the one that the method is for


@dataclass(frozen=True)
class ModelsEvaluated:
    """The answer to `EvaluateModels`, beside the values of metrics."""

    served: dict[str, ServedModel]
    majority: float | None = None  # share of the most frequent class in the test data
    curves: dict[str, Tensor] = field(default_factory=dict)  # model -> histogram of scores
    # model -> clinical measures of the scores themselves
    clinical: dict[str, dict[str, float]] = field(default_factory=dict)

    def up(self) -> Up:
        """Return the answer as it travels."""
        more: dict[str, Any] = {} if self.majority is None else {"majority": self.majority}
        if self.curves:
            more["curves"] = self.curves
            more["clinical"] = self.clinical
        return Up(served={name: dict(vars(one)) for name, one in self.served.items()}, **more)

    @classmethod
    def of(cls, up: Up) -> ModelsEvaluated:
        """Read an answer, which may come from a stranger: a majority that is no share is left out."""
        share = up.get("majority")
        valid = isinstance(share, float) and 0 < share <= 1
        served = {name: ServedModel(**one) for name, one in up["served"].items()}
        curves, clinical = dict(up.get("curves", {})), dict(up.get("clinical", {}))
        return cls(served, share if valid else None, curves, clinical)

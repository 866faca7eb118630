"""Messages of evaluation: the server's requests, and a client's statements on its models.

Each request is a dataclass on both sides. Between them it travels as the record of a step of its
own.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Self

from torch import Tensor

from equipoise.records import Down, Record, Up
from equipoise.runtime.group_histograms import GroupCounts
from equipoise.tree import Tree


@dataclass(frozen=True)
class EvaluationRequest:
    """A request to evaluate, which trains nothing and writes no state."""

    step: ClassVar[str]  # names the request on its way; no step of a method begins so

    def record(self) -> Record:
        """Return the request as it travels: the fields that differ from their defaults."""
        values = {}
        for attribute in fields(self):
            value = getattr(self, attribute.name)
            if attribute.default is MISSING or value != attribute.default:
                values[attribute.name] = value
        return Record(values)

    @classmethod
    def of(cls, record: Record) -> Self:
        """Read a request from what travelled."""
        return cls(**record)


@dataclass(frozen=True)
class EvaluateModels(EvaluationRequest):
    """Evaluate the models that a client serves.

    All are evaluated on its own data; those that only it has, also on the shared test set.
    """

    step: ClassVar[str] = "@measure"
    down: Down
    splits: list[str]
    metrics: list[str]
    alike: bool  # all clients receive the same
    ending: bool = False  # this is the last evaluation of the run
    curves: bool = False  # send histograms of scores
    groups: int = 0  # with them, send groups of at least so many samples; 0: no groups


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
    """Compare the mean features of the client's data under its own and the new global model."""

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
    """A model that a client serves, as the server sees it."""

    common: bool  # the same for all clients
    main: bool  # the one that the method is for


@dataclass(frozen=True)
class ModelsEvaluated:
    """The answer to `EvaluateModels` apart from the values of metrics."""

    served: dict[str, ServedModel]
    majority: float | None = None  # share of the most frequent class in the test data
    curves: dict[str, Tensor] = field(default_factory=dict)  # model -> histogram of scores
    # model -> clinical measures of the scores themselves
    clinical: dict[str, dict[str, float]] = field(default_factory=dict)
    groups: GroupCounts = field(default_factory=GroupCounts)

    def up(self) -> Up:
        """Return the answer as it travels."""
        entries: dict[str, Any] = {
            "served": {name: dict(vars(model)) for name, model in self.served.items()}
        }
        if self.majority is not None:
            entries["majority"] = self.majority
        if self.curves:
            entries["curves"] = self.curves
            entries["clinical"] = self.clinical
        if self.groups.cells:
            entries["groups"] = {"cells": self.groups.cells, "tables": self.groups.tables}
        return Up(entries)

    @classmethod
    def of(cls, up: Up) -> ModelsEvaluated:
        """Read an answer, which may come from a stranger; an invalid majority is left out."""
        majority = up.get("majority")
        if not (isinstance(majority, float) and 0 < majority <= 1):
            majority = None
        served = {name: ServedModel(**model) for name, model in up["served"].items()}
        groups = GroupCounts()
        if "groups" in up:
            groups = GroupCounts(up["groups"]["cells"], dict(up["groups"]["tables"]))
        curves = dict(up.get("curves", {}))
        return cls(served, majority, curves, dict(up.get("clinical", {})), groups)

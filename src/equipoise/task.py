"""The task: the one fact that data, models, losses and metrics share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

TaskKind = Literal["classification", "regression", "survival"]


@dataclass(frozen=True)
class Task:
    """Classification into `outputs` classes, regression of one number, or survival analysis.

    In regression a model has one output. Targets and outputs are (number - centre) / scale in
    training, and in the unit of the number wherever they are reported. Centre and scale follow from
    the training rows of a seed, so they are not compared: two seeds have the same task.

    In survival analysis a target is the time of the event, or minus the time at which a patient was
    last seen without it (censored). -0.0 is a patient who was censored at time 0. Times are divided
    by the scale, which is the horizon: the longest training time. A model with one output
    estimates the log risk of the Cox model. A model with more outputs estimates the logit of the
    hazard in each of as many intervals of equal length, from 0 to the horizon.

    Attributes:
        kind: Classification, regression or survival.
        shape: The shape of one sample; images have their channels first.
        outputs: The number of outputs of a model.
        class_names: The names of the classes, if they are known.
        centre: The centre of the number to predict.
        scale: The scale of the number to predict.
    """

    kind: TaskKind
    shape: tuple[int, ...]
    outputs: int
    class_names: tuple[str, ...] = ()
    centre: float = field(default=0.0, compare=False)
    scale: float = field(default=1.0, compare=False)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Task:
        """Return the task that plain data describe.

        Runs of older versions have neither centre nor scale, and were trained without.
        """
        return cls(
            data["kind"],
            tuple(data["shape"]),
            data["outputs"],
            tuple(data["class_names"]),
            data.get("centre", 0.0),
            data.get("scale", 1.0),
        )

    @property
    def classifies(self) -> bool:
        """True for classification."""
        return self.kind == "classification"

    @property
    def survives(self) -> bool:
        """True for survival analysis."""
        return self.kind == "survival"

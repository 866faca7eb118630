"""What is to be learnt: the one fact that data, models, losses and metrics share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Task:
    """Classification into `outputs` classes, or regression of one number (`outputs` = 1)."""

    kind: Literal["classification", "regression"]
    shape: tuple[int, ...]  # of one sample; images have their channels first
    outputs: int
    class_names: tuple[str, ...] = ()
    # Of a number that is predicted: targets and outputs are (number - centre) / scale in training, and in its own unit wherever they are
    # reported. Not compared: a simulation takes them from the training rows of its seed, and two seeds have one task.
    centre: float = field(default=0.0, compare=False)
    scale: float = field(default=1.0, compare=False)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Task:
        """From plain data; runs of older versions have neither centre nor scale, and were trained without."""
        return cls(
            given["kind"],
            tuple(given["shape"]),
            given["outputs"],
            tuple(given["class_names"]),
            given.get("centre", 0.0),
            given.get("scale", 1.0),
        )

    @property
    def classifies(self) -> bool:
        """True for classification."""
        return self.kind == "classification"

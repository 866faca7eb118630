"""What is to be learnt: the one fact that data, models, losses and metrics share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Task:
    """Classification into `outputs` classes, or regression of one number (`outputs` = 1)."""

    kind: Literal["classification", "regression"]
    shape: tuple[int, ...]  # of one sample; images have their channels first
    outputs: int
    class_names: tuple[str, ...] = ()

    @property
    def classifies(self) -> bool:
        return self.kind == "classification"

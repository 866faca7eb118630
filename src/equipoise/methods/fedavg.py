"""FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from equipoise.method import Method, Ups, Weights
from equipoise.records import State
from equipoise.server import Server


@dataclass(frozen=True)
class FedAvg(Method):
    """Average the locally trained copies of one model."""

    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"

    composable_weights: ClassVar[bool] = True
    composable_update: ClassVar[bool] = True

    average: Literal["size", "uniform"] = "size"  # how replies are weighed: by training samples, or all alike

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return super().weights(server, state, ups) if self.average == "size" else Weights(np.ones(len(ups)))

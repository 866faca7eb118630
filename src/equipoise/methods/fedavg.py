"""FedAvg (McMahan et al., 2017).

H. Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson and Blaise Agüera y Arcas.
Communication-Efficient Learning of Deep Networks from Decentralized Data. Proceedings of the 20th
International Conference on Artificial Intelligence and Statistics (AISTATS), PMLR 54, pages
1273-1282, 2017. https://arxiv.org/abs/1602.05629
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from equipoise.client import Client
from equipoise.method import Method, Ups, Weights
from equipoise.records import Down, State, Up
from equipoise.server import Server


@dataclass(frozen=True)
class FedAvg(Method):
    """Average the locally trained copies of one model.

    Comments give the lines of Algorithm 1. The remaining lines are the defaults of `Method`: w_0
    is the initial model, and w_t is sent to each client of S_t.

    Attributes:
        average: Aggregation weights: the number of training samples n_k ("size", Algorithm 1) or
            equal weights ("uniform").
    """

    paper = (
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized "
        "Data, AISTATS 2017, Algorithm 1"
    )
    family = "reference"
    year = 2017
    fairness = "none"
    passes = "E·T"
    composable_weights: ClassVar[bool] = True
    composable_update: ClassVar[bool] = True

    average: Literal["size", "uniform"] = "size"

    def client(self, client: Client, down: Down) -> Up:
        """Train the received model: ClientUpdate(k, w)."""
        model = client.load(down.model)
        # for each local epoch, for each batch b of P_k: w <- w - eta grad l(w; b)
        client.fit(model)
        return Up(model=model)  # return w to the server

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return n_k for each client, or equal weights."""
        if self.average == "uniform":
            return Weights(np.ones(len(ups)))
        sizes = [server.sizes[client] for client in ups.ids]
        return Weights(np.array(sizes, dtype=np.float64))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Return the weighted mean: w_{t+1} <- sum of n_k / m_t w_{t+1}^k over k in S_t."""
        mean = ups.mean("model", weights.shares)
        if weights.step != 1:  # The weight rule of another method may take a shorter step.
            mean = (state.model + weights.step * (mean - state.model)).with_rest(mean.rest)
        return state.with_(model=mean)

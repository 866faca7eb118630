"""Communication-Efficient Learning of Deep Networks from Decentralized Data (FedAvg).

H. Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson and Blaise Agüera y Arcas. Proceedings of the 20th International Conference on
Artificial Intelligence and Statistics (AISTATS), PMLR 54, pages 1273-1282, 2017. https://arxiv.org/abs/1602.05629
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

    Comments give the lines of Algorithm 1. The others are `Method`'s own: w_0 is the initial model, and w_t goes to each client of S_t.
    """

    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, Algorithm 1"
    family, year, fairness, passes = "reference", 2017, "none", "E·T"
    composable_weights: ClassVar[bool] = True
    composable_update: ClassVar[bool] = True

    # how replies are weighed: by training samples, or all alike
    average: Literal["size", "uniform"] = "size"

    def client(self, client: Client, down: Down) -> Up:
        """ClientUpdate(k, w)"""
        model = client.load(down.model)
        # for each local epoch, for each batch b of P_k: w <- w - eta grad l(w; b)
        client.fit(model)
        return Up(model=model)  # return w to the server

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        sizes = np.array([server.sizes[client] for client in ups.ids], dtype=np.float64)  # n_k
        return Weights(sizes if self.average == "size" else np.ones(len(ups)))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        # w_{t+1} <- sum over k of S_t of n_k / m_t w_{t+1}^k, where m_t is the sum of n_k
        mean = ups.mean("model", weights.shares)
        if weights.step != 1:  # weights of another method may step less far
            mean = (state.model + weights.step * (mean - state.model)).with_rest(mean.rest)
        return state.with_(model=mean)

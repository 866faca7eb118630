"""Pa3Fed: Period-Aware Adaptive Aggregation for Improved Federated Learning.

Chengxiang Huang and Bingyan Liu. AAAI Conference on Artificial Intelligence 2025, pages 17395-17403.
https://doi.org/10.1609/aaai.v39i16.33912

A reconstruction: neither its equations nor its code were to be had. What is here follows its abstract and the settings that others report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from equipoise.client import Client
from equipoise.method import Fraction, Method, NonNegative, Ups, Weights
from equipoise.records import PerClient, State, Up
from equipoise.server import Server
from equipoise.tree import Tree
from equipoise.weighting.shares import softmax

FIRST = 2  # rounds that are critical before any change can be seen


@dataclass(frozen=True)
class Pa3Fed(Method):
    """A reconstruction: in critical periods, clients that the global model serves worse than before count more.

    A round is critical if the clients' updates grew or shrank by more than a threshold since the round before. Do not compare it
    with published numbers of Pa3Fed.
    """

    paper = "Huang and Liu, Pa3Fed: Period-Aware Adaptive Aggregation for Improved Federated Learning, AAAI 2025 (reconstruction)"
    family, year, fairness, passes = "aggregation", 2025, "none", "E·T + F"
    composable_weights: ClassVar[bool] = True
    reconstruction: ClassVar[bool] = True

    # relative change of the updates' squared norm from which on a round is critical
    delta: NonNegative = 0.01
    beta: Fraction = 0.3  # share of the weights that goes by change of loss in critical rounds
    # whether updates that shrink make a round critical, too, or only those that grow
    change: Literal["abs", "signed"] = "abs"

    def start(self, server: Server) -> State:
        return super().start(server).with_(losses=PerClient(), movement=0.0, critical=True)

    def before(self, client: Client, received: Tree | None) -> Up:
        assert received is not None
        return Up(loss=client.loss(client.load(received)))

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        assert received is not None and uploaded is not None
        return Up(drift=(received - uploaded).norm())

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        losses = {
            client: [state.losses.get(client, [loss])[-1], loss]
            for client, loss in ups.table("loss").items()
        }  # its last round's, and this
        sizes = super().weights(server, state, ups).shares
        # Gamma_t, the mean squared norm of the updates
        movement = float(sizes @ ups.numbers("drift") ** 2 / max(1.0, sizes.sum()))
        grown = movement - state.movement
        changed = (abs(grown) if self.change == "abs" else grown) >= self.delta * state.movement
        critical = bool(server.round <= FIRST or changed)
        return state.with_(losses=state.losses.put(losses), movement=movement, critical=critical)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        sizes = super().weights(server, state, ups).shares
        if not state.critical:
            return Weights(sizes)
        last, now = np.array([state.losses[client] for client in ups.ids]).T
        worse = softmax((now - last) / (last + 1e-12))  # v_k is 0 in a client's first round
        # (1 - beta) p_k + beta s_k, counted in samples: where beta is 0 these are FedAvg's weights, bit for bit.
        return Weights((1 - self.beta) * sizes + self.beta * sizes.sum() * worse)

"""Pa3Fed (Huang and Liu, 2025).

Chengxiang Huang and Bingyan Liu. Pa3Fed: Period-Aware Adaptive Aggregation for Improved Federated
Learning. AAAI Conference on Artificial Intelligence 2025, pages 17395-17403.
https://doi.org/10.1609/aaai.v39i16.33912

A reconstruction: neither its equations nor its code were available. This follows its abstract and
the settings that others report.
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

FIRST_ROUNDS = 2  # Rounds that are critical before any change can be measured.


@dataclass(frozen=True)
class Pa3Fed(Method):
    """A reconstruction: in critical periods, clients whose loss grew count more.

    A round is critical if the clients' updates grew or shrank by more than a threshold since the
    round before. Do not compare it with published numbers of Pa3Fed.

    Attributes:
        delta: Relative change of the squared norm of updates, Gamma, from which a round is
            critical (others report 0.001 on Digits, 0.01 on Office-Caltech and PACS).
        beta: Share beta of the weights that is by change of loss in critical rounds; 0 is FedAvg.
        change: "abs" also counts updates that shrink, "signed" only those that grow.
    """

    paper = (
        "Huang and Liu, Pa3Fed: Period-Aware Adaptive Aggregation for Improved Federated "
        "Learning, AAAI 2025 (reconstruction)"
    )
    family = "aggregation"
    year = 2025
    fairness = "none"
    passes = "E·T + F"
    composable_weights: ClassVar[bool] = True
    reconstruction: ClassVar[bool] = True

    delta: NonNegative = 0.01
    beta: Fraction = 0.3
    change: Literal["abs", "signed"] = "abs"

    def start(self, server: Server) -> State:
        """Return the initial model without losses of clients."""
        return super().start(server).with_(losses=PerClient(), movement=0.0, critical=True)

    def before(self, client: Client, received: Tree | None) -> Up:
        """Report the loss of the received model."""
        assert received is not None
        return Up(loss=client.loss(client.load(received)))

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        """Report the length of the client's update."""
        assert received is not None and uploaded is not None
        return Up(drift=(received - uploaded).norm())

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        """Store each client's last and current loss, and decide if the round is critical."""
        losses = {}
        for client, loss in ups.table("loss").items():
            previous = state.losses.get(client, [loss])[-1]
            losses[client] = [previous, loss]
        sizes = super().weights(server, state, ups).shares
        # Gamma_t, the mean squared norm of the updates
        movement = float(sizes @ ups.numbers("drift") ** 2 / max(1.0, sizes.sum()))
        growth = movement - state.movement
        change = abs(growth) if self.change == "abs" else growth
        changed = change >= self.delta * state.movement
        critical = bool(server.round <= FIRST_ROUNDS or changed)
        return state.with_(losses=state.losses.put(losses), movement=movement, critical=critical)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return (1 - beta) p_k + beta s_k in critical rounds, otherwise the sizes.

        The shares are counted in samples: with beta = 0 they are FedAvg's, bit for bit.
        """
        sizes = super().weights(server, state, ups).shares
        if not state.critical:
            return Weights(sizes)
        last, now = np.array([state.losses[client] for client in ups.ids]).T
        s = softmax((now - last) / (last + 1e-12))  # The change is 0 in a client's first round.
        return Weights((1 - self.beta) * sizes + self.beta * sizes.sum() * s)

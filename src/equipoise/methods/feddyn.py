"""Federated Learning Based on Dynamic Regularization.

Durmus Alp Emre Acar, Yue Zhao, Ramon Matas Navarro, Matthew Mattina, Paul N. Whatmough and Venkatesh Saligrama. The Ninth International
Conference on Learning Representations (ICLR), 2021. https://arxiv.org/abs/2111.04263
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from equipoise.client import Client
from equipoise.losses.terms import proximity, supervised
from equipoise.method import Method, NonNegative, Positive, Ups, Weights
from equipoise.records import Down, State, Up
from equipoise.server import Server

log = logging.getLogger("equipoise")


@dataclass(frozen=True)
class FedDyn(Method):
    """A linear and a quadratic term make each client's optimum agree with the common one, and the server extrapolates.

    The server's h is the mean of all clients' duals after every round, whoever took part. The step -h / alpha does not depend on
    alpha, so the updates of all rounds add up: what keeps them small is that clients come to rest, which few rounds of Adam do not do.
    With `by_size` clients divide alpha by their size over the mean size, and the server still uses alpha itself: then h is not the mean
    of the duals but of the duals times that ratio.
    """

    paper = (
        "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1"
    )
    family, year, fairness, passes = "drift", 2021, "none", "E·T"

    alpha: Positive = 0.01  # strength of the regularisation
    # divide a client's alpha by its size over the mean size, as the authors' code does
    by_size: bool = False
    # largest norm of a gradient, where training.clip does not say; 0: none
    clip: NonNegative = 10.0

    def start(self, server: Server) -> State:
        if server.training.optimiser != "sgd":
            log.warning(
                "FedDyn adds up the clients' updates of all rounds, and %s updates hardly shrink: expected training.optimiser=sgd; "
                "the model may leave its data far behind",
                server.training.optimiser,
            )
        state = super().start(server)
        return state.with_(h=0 * state.model)

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        return Down(
            model=state.model,
            **({"mean_size": float(np.mean(list(server.sizes.values())))} if self.by_size else {}),
        )

    def client(self, client: Client, down: Down) -> Up:
        model, dual = client.load(down.model), client.state.get("dual", 0 * down.model)
        alpha = (
            self.alpha * down.mean_size / max(1, len(client.train)) if self.by_size else self.alpha
        )
        clip = client.training.clip or self.clip or None
        # The least F(w) - <dual, w> + alpha / 2 |w - received|^2: Algorithm 1, at a client.
        client.fit(
            model,
            supervised + alpha * proximity(down.model),
            gradient=lambda name, g: g - dual[name].to(g.device),
            clip=clip,
        )
        # the gradient of F there, if it is the least
        client.state["dual"] = dual - alpha * (model.tree() - down.model)
        return Up(model=model)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(np.ones(len(ups)))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        mean = ups.mean("model", weights.shares)
        # by all clients, not by the cohort
        h = state.h - (self.alpha * len(ups) / len(server.ids)) * (mean - state.model)
        return state.with_(model=mean + (-1 / self.alpha) * h, h=h)

"""FedDyn (Acar et al., 2021).

Durmus Alp Emre Acar, Yue Zhao, Ramon Matas Navarro, Matthew Mattina, Paul N. Whatmough and
Venkatesh Saligrama. Federated Learning Based on Dynamic Regularization. The Ninth International
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
from equipoise.training import Correction

log = logging.getLogger("equipoise")


@dataclass(frozen=True)
class FedDyn(Method):
    """Align each client's optimum with the common one by a linear and a quadratic term.

    The server's h is the mean of all clients' duals after every round, also of clients that did
    not take part. The server's step -h / alpha does not depend on alpha, so the updates of all
    rounds add up: they stay small because clients converge, which few rounds of Adam do not do.

    Attributes:
        alpha: Weight alpha of the regularisation. The authors tune it between 0.001 and 0.1.
        by_size: Divide a client's alpha by its size over the mean size, as the authors' code
            does. The server still uses alpha itself, so that h is then the mean of the duals
            times that ratio.
        clip: Largest norm of a gradient, unless `training.clip` is set; 0 disables it. Default
            from the authors' code.
    """

    paper = (
        "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1"
    )
    family = "drift"
    year = 2021
    fairness = "none"
    passes = "E·T"

    alpha: Positive = 0.01
    by_size: bool = False
    clip: NonNegative = 10.0

    def start(self, server: Server) -> State:
        """Return the initial model with h = 0; warn about other optimisers than SGD."""
        if server.training.optimiser != "sgd":
            log.warning(
                "FedDyn adds up the clients' updates of all rounds, and %s updates hardly shrink: "
                "expected training.optimiser=sgd; the model may diverge",
                server.training.optimiser,
            )
        state = super().start(server)
        return state.with_(h=0 * state.model)

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Send the model and, if alpha depends on it, the mean size."""
        down = Down(model=state.model)
        if not self.by_size:
            return down
        return down.with_(mean_size=float(np.mean(list(server.sizes.values()))))

    def client(self, client: Client, down: Down) -> Up:
        """Minimise F(w) - <dual, w> + alpha / 2 |w - received|^2 and renew the dual."""
        model = client.load(down.model)
        dual = client.state.get("dual", 0 * down.model)
        alpha = self.alpha
        if self.by_size:
            alpha = self.alpha * down.mean_size / max(1, len(client.train))
        client.fit(
            model,
            supervised + alpha * proximity(down.model),
            gradient=Correction(minus=dual),
            clip=client.training.clip or self.clip or None,
        )
        # At the minimum this is the gradient of F.
        client.state["dual"] = dual - alpha * (model.tree() - down.model)
        return Up(model=model)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return equal weights."""
        return Weights(np.ones(len(ups)))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Renew h and return mean - h / alpha."""
        mean = ups.mean("model", weights.shares)
        # Divided by the number of all clients, not of the cohort.
        h = state.h - (self.alpha * len(ups) / len(server.ids)) * (mean - state.model)
        return state.with_(model=mean + (-1 / self.alpha) * h, h=h)

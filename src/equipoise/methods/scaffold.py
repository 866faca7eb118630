"""SCAFFOLD (Karimireddy et al., 2020).

Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank J. Reddi, Sebastian U. Stich and
Ananda Theertha Suresh. SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
Proceedings of the 37th International Conference on Machine Learning (ICML), PMLR 119, pages
5132-5143, 2020. https://arxiv.org/abs/1910.06378
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.client import Client
from equipoise.method import Method, Positive, Ups, Weights
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.training import Correction


@dataclass(frozen=True)
class Scaffold(Method):
    """Correct client drift by control variates (Algorithm 1, option II).

    The control of the server, c, is the mean of the controls c_i of all clients after every
    round, also of clients that did not take part: the replies of a cohort move it by their sum
    divided by the number of all clients.

    Attributes:
        server_rate: Global step size eta_g; 1 in the paper's experiments.
    """

    paper = (
        "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, "
        "ICML 2020, Algorithm 1"
    )
    family = "drift"
    year = 2020
    fairness = "none"
    passes = "E·T"
    needs = ("sgd",)

    server_rate: Positive = 1.0

    def start(self, server: Server) -> State:
        """Return the initial model with control c = 0 (line 1)."""
        state = super().start(server)
        return state.with_(control=0 * state.model)

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Send (x, c) to the client (line 4)."""
        return Down(model=state.model, control=state.control)

    def client(self, client: Client, down: Down) -> Up:
        """Train with corrected gradients and renew the client's control (lines 7 to 14)."""
        c = down.control
        c_i = client.state.get("control", 0 * down.control)
        model = client.load(down.model)
        # line 10: y_i <- y_i - eta_l (g_i(y_i) - c_i + c)
        fit = client.fit(model, gradient=Correction(minus=c_i, plus=c))
        if not fit.steps:
            return Up(model=model, control=0 * c_i)
        # line 12, option II: c_i+ <- c_i - c + (x - y_i) / (K eta_l)
        new = c_i - c + (down.model - model.tree()) * (1 / (fit.steps * client.lr))
        client.state["control"] = new
        return Up(model=model, control=new - c_i)  # line 13

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return equal weights (line 16)."""
        return Weights(np.ones(len(ups)))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Move model and control by the mean changes (lines 16 and 17)."""
        all_clients = len(server.ids)
        control = state.control + ups.sum("control", np.ones(len(ups)) / all_clients)
        step = weights.times(self.server_rate)
        return super().update(server, state.with_(control=control), ups, step)

"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.

Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank J. Reddi, Sebastian U. Stich and Ananda Theertha Suresh. Proceedings of the 37th
International Conference on Machine Learning (ICML), PMLR 119, pages 5132-5143, 2020. https://arxiv.org/abs/1910.06378
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.client import Client
from equipoise.method import Method, Positive, Ups, Weights
from equipoise.records import Down, State, Up
from equipoise.server import Server


@dataclass(frozen=True)
class Scaffold(Method):
    """Control variates remove the drift of clients; option II of Algorithm 1.

    The server's control c is the mean of all clients' controls c_i after every round, whoever took part: replies of a cohort move it by
    their sum divided by the number of all clients.
    """

    paper = "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, Algorithm 1"
    family, year, fairness, passes = "drift", 2020, "none", "E·T"
    needs = ("sgd",)

    server_rate: Positive = 1.0  # global step size

    def start(self, server: Server) -> State:
        state = super().start(server)
        return state.with_(control=0 * state.model)

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        return Down(model=state.model, control=state.control)

    def client(self, client: Client, down: Down) -> Up:
        c, own = down.control, client.state.get("control", 0 * down.control)
        model = client.load(down.model)
        done = client.fit(model, gradient=lambda name, g: g - own[name] + c[name])  # line 10
        if not done.steps:
            return Up(model=model, control=0 * own)
        # line 12, option II
        new = own - c + (down.model - model.tree()) * (1 / (done.steps * client.lr))
        client.state["control"] = new
        return Up(model=model, control=new - own)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(np.ones(len(ups)))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        control = state.control + ups.sum("control", np.ones(len(ups)) / len(server.ids))  # line 17
        return super().update(
            server, state.with_(control=control), ups, weights.times(self.server_rate)
        )

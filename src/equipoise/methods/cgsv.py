"""Gradient-Driven Rewards to Guarantee Fairness in Collaborative Machine Learning (CGSV, the cosine gradient Shapley value).

Xinyi Xu, Lingjuan Lyu, Xingjun Ma, Chenglin Miao, Chuan Sheng Foo and Bryan Kian Hsiang Low. Advances in Neural Information Processing
Systems 34 (NeurIPS), pages 16104-16117, 2021. https://proceedings.neurips.cc/paper/2021/hash/8682cc30db9c025ecd3fee433f8ab54c-Abstract.html
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.client import Client
from equipoise.method import Fraction, Method, Positive, Served, Ups, Weights
from equipoise.models import Model
from equipoise.records import Down, PerClient, State, Up
from equipoise.server import Server
from equipoise.tree import Tree
from equipoise.weighting import cosines, largest

LEAST = 1e-3  # a reputation never falls to zero: whoever turns useful can come back


@dataclass(frozen=True)
class CGSV(Method):
    """Each client has its own model and is paid in numbers of the common step: the more its update points along it, the more of them.

    Clients upload directions of one length. The server keeps every client's model, so it needs no data and clients keep no state.
    """

    paper = "Xu et al., Gradient-Driven Rewards to Guarantee Fairness in Collaborative Machine Learning, NeurIPS 2021"
    family, year, fairness, passes = "rewards", 2021, "collaborative", "E·T"
    uploads_model = False

    gamma: Positive = 0.5  # length of every uploaded step, so that a round moves no model farther (the authors: 0.15 on CIFAR-10)
    alpha: Fraction = 0.9  # how much of a reputation stays from round to round
    beta: Positive = 1.0  # altruism: the larger, the more alike are the rewards (1e7: all alike)

    def start(self, server: Server) -> State:
        return super().start(server).with_(models=PerClient(), reputation=PerClient())

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        return Down(model=_model(server, state, client_id))

    def client(self, client: Client, down: Down) -> Up:
        model = client.load(down.model)
        client.fit(model)
        trained = model.tree()
        step = trained - down.model  # w_i itself is left as it was: the reward is all that moves it
        return Up(step=self.gamma / (step.norm() + 1e-7) * step, rest=trained.rest)  # u_i

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """r_i, shared out over the clients that answered; n_i / n for one that has no reputation yet."""
        total = sum(server.sizes.values())
        return Weights(
            np.array(
                [state.reputation.get(client, server.sizes[client] / total) for client in ups.ids]
            )
        )

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        step = ups.mean("step", weights.shares)  # u_N
        rest = ups.mean("rest", weights.shares)
        contribution = cosines(ups.gram("step", [step]))[:-1, -1]  # phi_i
        # of all reputations, which sum to 1: those of absent clients stay
        held = weights.shares.sum()
        before = np.array([state.reputation.get(client, 0.0) for client in ups.ids]) / held
        reputation = np.maximum(self.alpha * before + (1 - self.alpha) * contribution, LEAST)
        reputation /= reputation.sum()
        quota = np.tanh(self.beta * reputation)
        quota /= quota.max()  # q_i
        models = {
            client: (
                _model(server, state, client) + largest(step, float(share), per_tensor=True)
            ).with_rest(rest)  # w_i + v_i
            for client, share in zip(ups.ids, quota, strict=True)
        }
        return state.with_(
            model=(state.model + step).with_rest(rest),
            models=state.models.put(models),
            reputation=state.reputation.put(
                dict(zip(ups.ids, (held * reputation).tolist(), strict=True))
            ),
        )

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        return {"personal": Served(client.load(down.model), main=True)}


def _model(server: Server, state: State, client: str) -> Tree:
    """The model that a client holds: the initial one, and on it every reward so far."""
    model: Tree = state.models.get(client, server.initial())
    return model

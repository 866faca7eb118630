"""CGSV, the cosine gradient Shapley value (Xu et al., 2021).

Xinyi Xu, Lingjuan Lyu, Xingjun Ma, Chenglin Miao, Chuan Sheng Foo and Bryan Kian Hsiang Low.
Gradient-Driven Rewards to Guarantee Fairness in Collaborative Machine Learning. Advances in Neural
Information Processing Systems 34 (NeurIPS), pages 16104-16117, 2021.
https://proceedings.neurips.cc/paper/2021/hash/8682cc30db9c025ecd3fee433f8ab54c-Abstract.html
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

MIN_REPUTATION = 1e-3  # Above 0, so that a client that becomes useful can recover.


@dataclass(frozen=True)
class CGSV(Method):
    """Reward each client with more entries of the common step the more its update points along it.

    Each client has its own model. Clients upload directions of equal length. The server keeps
    every client's model, so it needs no data and clients keep no state.

    Attributes:
        gamma: Length of every uploaded step, Gamma in the paper; a round moves no model farther
            (the authors: 0.15 on CIFAR-10).
        alpha: Share of a reputation that remains from round to round, alpha in the paper (the
            authors: 0.95).
        beta: Altruism beta: the larger, the more equal are the rewards; at 1e7 they are equal.
    """

    paper = (
        "Xu et al., Gradient-Driven Rewards to Guarantee Fairness in Collaborative Machine "
        "Learning, NeurIPS 2021"
    )
    family = "rewards"
    year = 2021
    fairness = "collaborative"
    passes = "E·T"
    served_models = ("personal",)
    uploads_model = False

    gamma: Positive = 0.5
    alpha: Fraction = 0.9
    beta: Positive = 1.0

    def start(self, server: Server) -> State:
        """Return the initial model without models and reputations of clients."""
        return super().start(server).with_(models=PerClient(), reputation=PerClient())

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Send the client's own model w_i."""
        return Down(model=_model(server, state, client_id))

    def client(self, client: Client, down: Down) -> Up:
        """Train and upload the step u_i, scaled to the length gamma.

        The client's model w_i does not change: only rewards move it.
        """
        model = client.load(down.model)
        client.fit(model)
        trained = model.tree()
        step = trained - down.model
        return Up(step=self.gamma / (step.norm() + 1e-7) * step, rest=trained.rest)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return the reputations r_i; n_i / n for a client that has none yet."""
        total = sum(server.sizes.values())
        reputation = [
            state.reputation.get(client, server.sizes[client] / total) for client in ups.ids
        ]
        return Weights(np.array(reputation))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Renew reputations r_i by the cosine Shapley values and pay the rewards v_i."""
        step = ups.mean("step", weights.shares)  # u_N
        rest = ups.mean("rest", weights.shares)
        contribution = cosines(ups.gram("step", [step]))[:-1, -1]  # phi_i
        # All reputations sum to 1. These clients share what they held together, so that those of
        # absent clients stay.
        total = weights.shares.sum()
        before = np.array([state.reputation.get(client, 0.0) for client in ups.ids]) / total
        reputation = self.alpha * before + (1 - self.alpha) * contribution
        reputation = np.maximum(reputation, MIN_REPUTATION)
        reputation /= reputation.sum()
        quota = np.tanh(self.beta * reputation)
        quota /= quota.max()  # q_i
        models = {}
        for client, share in zip(ups.ids, quota, strict=True):
            reward = largest(step, float(share), per_tensor=True)  # v_i
            models[client] = (_model(server, state, client) + reward).with_rest(rest)
        renewed = dict(zip(ups.ids, (total * reputation).tolist(), strict=True))
        server.log_contributions("reputation", renewed)
        return state.with_(
            model=(state.model + step).with_rest(rest),
            models=state.models.put(models),
            reputation=state.reputation.put(renewed),
        )

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Return the client's own model."""
        return {"personal": Served(client.load(down.model), main=True)}


def _model(server: Server, state: State, client: str) -> Tree:
    """Return the model of a client: the initial one plus all its rewards so far."""
    model: Tree = state.models.get(client, server.initial())
    return model

"""Ditto: Fair and Robust Federated Learning Through Personalization.

Tian Li, Shengyuan Hu, Ahmad Beirami and Virginia Smith. Proceedings of the 38th International Conference on Machine Learning (ICML), PMLR
139, pages 6357-6368, 2021. https://arxiv.org/abs/2012.04221
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from equipoise.client import Client
from equipoise.losses.terms import proximity, supervised
from equipoise.method import Method, NonNegative, Served, Ups, Weights
from equipoise.models import Model
from equipoise.records import Down, State, Up
from equipoise.server import Server


@dataclass(frozen=True)
class Ditto(Method):
    """A global model as in FedAvg, and beside it a personal model of each client that is pulled towards the global one.

    The pull reaches personal models only: the global model is that of FedAvg, whatever its strength.
    """

    paper = "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, Algorithm 1"
    family, year, fairness, passes = "personal", 2021, "even accuracy", "2E·T"
    # its two steps are written as one gradient
    needs = property(lambda self: ("sgd",) if self.preset == "gfedplat" else ())

    pull: NonNegative = 0.1  # strength of the pull (the paper's lambda); 0 is local training
    # how replies are weighed: all alike, or by training samples
    average: Literal["uniform", "size"] = "uniform"
    # gfedplat: what a platform called Ditto, without personal models; to reproduce it
    preset: Literal["original", "gfedplat"] = "original"

    def client(self, client: Client, down: Down) -> Up:
        model = client.load(down.model)
        if self.preset == "gfedplat":
            return self._gfedplat(client, down, model)
        personal = client.load(client.state.get("personal"))  # at first the initial model
        # h_k(v; w) = F_k(v) + pull / 2 |v - w|^2
        client.fit(personal, supervised + self.pull * proximity(down.model))
        client.state["personal"] = personal
        client.fit(model)  # F_k(w), on the same batches
        return Up(model=model)

    def _gfedplat(self, client: Client, down: Down, model: Model) -> Up:
        """A step w' = w - lr g, then w' - lr (g + pull (w' - received)) with the same g: together one step along this gradient."""
        own, received, twice = model.trained, down.model, 2 - self.pull * client.lr
        client.fit(
            model,
            gradient=lambda name, g: (
                twice * g + self.pull * (own[name] - received[name].to(g.device))
            ),
        )
        return Up(model=model)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        # reply after reply the model moves by 1/N of the way, N being all clients
        if self.preset == "gfedplat":
            stays = 1 - 1 / len(server.ids)
            shares = stays ** np.arange(len(ups) - 1, -1, -1) / len(server.ids)
            return Weights(shares, step=float(shares.sum()))
        return (
            Weights(np.ones(len(ups)))
            if self.average == "uniform"
            else super().weights(server, state, ups)
        )

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        shared = Served(client.load(down.model), same_for_all=True)
        if self.preset == "gfedplat":
            return {"global": shared}
        return {
            "personal": Served(client.load(client.state.get("personal", down.model)), main=True),
            "global": shared,
        }

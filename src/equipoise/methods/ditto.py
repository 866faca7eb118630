"""Ditto (Li et al., 2021).

Tian Li, Shengyuan Hu, Ahmad Beirami and Virginia Smith. Ditto: Fair and Robust Federated Learning
Through Personalization. Proceedings of the 38th International Conference on Machine Learning
(ICML), PMLR 139, pages 6357-6368, 2021. https://arxiv.org/abs/2012.04221
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from equipoise.client import Client
from equipoise.losses.terms import proximity, supervised
from equipoise.method import Method, NonNegative, Served, Ups, Weights
from equipoise.models import Model
from equipoise.records import Down, State, Up
from equipoise.server import Server


@dataclass(frozen=True)
class Ditto(Method):
    """A global model as in FedAvg, and a personal model per client that is pulled towards it.

    The pull reaches personal models only: the global model is that of FedAvg, whatever its
    strength.

    Attributes:
        pull: Weight of the pull towards the global model, lambda in the paper; 0 is local
            training.
        average: Aggregation weights: equal, or by training samples.
        preset: "gfedplat" reproduces the method that the GFedPlat platform calls Ditto, which
            has no personal models.
    """

    paper = (
        "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, "
        "ICML 2021, Algorithm 1"
    )
    family = "personal"
    year = 2021
    fairness = "even accuracy"
    passes = "2E·T"
    served_models = ("personal", "global")

    pull: NonNegative = 0.1
    average: Literal["uniform", "size"] = "uniform"
    preset: Literal["original", "gfedplat"] = "original"

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Plain SGD for the preset "gfedplat", whose two steps are written as one gradient."""
        return ("sgd",) if self.preset == "gfedplat" else ()

    def client(self, client: Client, down: Down) -> Up:
        """Train the personal model v_k and the global model w on the same batches."""
        if self.preset == "gfedplat":
            return self._gfedplat(client, down)
        personal = client.load(client.state.get("personal"))  # v_k: at first the initial model
        # h_k(v; w) = F_k(v) + lambda / 2 |v - w|^2
        client.fit(personal, supervised + self.pull * proximity(down.model))
        client.state["personal"] = personal
        model = client.load(down.model)
        client.fit(model)  # F_k(w)
        return Up(model=model)

    def _gfedplat(self, client: Client, down: Down) -> Up:
        """Take GFedPlat's double step as a single step along one gradient.

        The platform steps to w' = w - lr g, then to w' - lr (g + lambda (w' - received)) with the
        same g.
        """
        model = client.load(down.model)
        parameters = model.trained
        received = down.model
        twice = 2 - self.pull * client.lr

        def double_step(name: str, g: Tensor) -> Tensor:
            pull: Tensor = self.pull * (parameters[name] - received[name].to(g.device))
            return twice * g + pull

        client.fit(model, gradient=double_step)
        return Up(model=model)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return the aggregation weights of the global model."""
        if self.preset == "gfedplat":
            # Reply after reply the model moves 1/N of the way, where N counts all clients.
            remaining = 1 - 1 / len(server.ids)
            shares = remaining ** np.arange(len(ups) - 1, -1, -1) / len(server.ids)
            return Weights(shares, step=float(shares.sum()))
        if self.average == "uniform":
            return Weights(np.ones(len(ups)))
        return super().weights(server, state, ups)

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Return the personal model and the global one."""
        shared = Served(client.load(down.model), same_for_all=True)
        if self.preset == "gfedplat":
            return {"global": shared}
        personal = client.load(client.state.get("personal", down.model))
        return {"personal": Served(personal, main=True), "global": shared}

"""Federated Optimization in Heterogeneous Networks (FedProx).

Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar and Virginia Smith. Proceedings of Machine Learning and Systems 2
(MLSys), pages 429-450, 2020. https://arxiv.org/abs/1812.06127
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.client import Client
from equipoise.losses.terms import proximity, supervised
from equipoise.method import NonNegative
from equipoise.methods.fedavg import FedAvg
from equipoise.records import Down, Up


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a pull of every client towards the model it received."""

    paper = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Eq. 2"
    family, year, fairness, passes = "drift", 2020, "none", "E·T"

    mu: NonNegative = 0.01  # strength of the pull

    def client(self, client: Client, down: Down) -> Up:
        model = client.load(down.model)
        client.fit(model, supervised + self.mu * proximity(down.model))
        return Up(model=model)

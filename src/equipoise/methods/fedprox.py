"""FedProx (Li et al., 2020).

Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar and Virginia Smith.
Federated Optimization in Heterogeneous Networks. Proceedings of Machine Learning and Systems 2
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
    """FedAvg with a proximal term that keeps every client near the model it received.

    Attributes:
        mu: Weight mu of the proximal term; 0 is FedAvg. The paper tries 0.001, 0.01, 0.1 and 1.
    """

    paper = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Eq. 2"
    family = "drift"
    year = 2020
    fairness = "none"
    passes = "E·T"

    mu: NonNegative = 0.01

    def client(self, client: Client, down: Down) -> Up:
        """Minimise h_k(w; w^t) = F_k(w) + mu / 2 |w - w^t|^2 (Eq. 2)."""
        model = client.load(down.model)
        client.fit(model, supervised + self.mu * proximity(down.model))
        return Up(model=model)

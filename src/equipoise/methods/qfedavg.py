"""Fair Resource Allocation in Federated Learning (q-FFL, q-FedAvg).

Tian Li, Maziar Sanjabi, Ahmad Beirami and Virginia Smith. International Conference on Learning Representations (ICLR) 2020.
https://arxiv.org/abs/1905.10497, https://github.com/litian96/fair_flearn
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.client import Client
from equipoise.method import Method, NonNegative, Ups, Weights
from equipoise.records import State, Up
from equipoise.server import Server
from equipoise.tree import Tree

FLOOR = 1e-10  # added to every loss: F^(q - 1) of a loss of 0 is not finite


@dataclass(frozen=True)
class QFedAvg(Method):
    """Clients with a higher loss count more, by the power q, and the step shrinks with the curvature that this costs.

    It minimises the sum of F_k^(q + 1) / (q + 1). Data sizes do not enter; with q = 0 it is FedAvg(average="uniform").
    """

    paper = "Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, Algorithm 2"
    family, year, fairness, passes = "aggregation", 2020, "even accuracy", "E·T + F"
    composable_weights: ClassVar[bool] = True
    # 1 / learning rate stands for the Lipschitz constant of the losses' gradients
    needs = ("sgd",)

    # how much fairness counts; the higher, the more the worst-served client decides
    q: NonNegative = 0.1

    def before(self, client: Client, received: Tree | None) -> Up:
        assert received is not None
        return Up(loss=client.loss(client.load(received)))  # F_k(w^t)

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        assert received is not None and uploaded is not None
        # |w^t - w_k|, so that G_k = L (w^t - w_k) has the norm L * drift
        return Up(drift=(received - uploaded).norm())

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        loss, drift, lipschitz = ups.numbers("loss") + FLOOR, ups.numbers("drift"), 1 / server.lr
        # Of Delta_k = F^q G and h_k = q F^(q-1) |G|^2 + L F^q the common factors L and max F^q are taken out: then q = 0 steps by exactly 1,
        # and no loss is too large for any q.
        power = (loss / loss.max()) ** self.q
        h = power * (1 + self.q * lipschitz * drift**2 / loss)
        return Weights(power, step=float(power.sum() / h.sum()))  # w^t - sum Delta_k / sum h_k

"""q-FedAvg (Li et al., 2020).

Tian Li, Maziar Sanjabi, Ahmad Beirami and Virginia Smith. Fair Resource Allocation in Federated
Learning. International Conference on Learning Representations (ICLR) 2020.
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

FLOOR = 1e-10  # Added to every loss: F^(q - 1) of a loss of 0 is not finite.


@dataclass(frozen=True)
class QFedAvg(Method):
    """Weigh clients by a power of their loss, and shorten the step by the curvature this adds.

    It minimises the sum of F_k^(q + 1) / (q + 1). Data sizes do not enter; with q = 0 it is
    FedAvg(average="uniform").

    Attributes:
        q: Exponent q of the objective: the larger, the more the client with the largest loss
            counts. The comparison in CoRe-Fed uses 0.1 and 1.
    """

    paper = "Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, Algorithm 2"
    family = "aggregation"
    year = 2020
    fairness = "even accuracy"
    passes = "E·T + F"
    composable_weights: ClassVar[bool] = True
    # 1 / learning rate stands for the Lipschitz constant of the losses' gradients.
    needs = ("sgd",)

    q: NonNegative = 0.1

    def before(self, client: Client, received: Tree | None) -> Up:
        """Report the loss of the received model, F_k(w^t)."""
        assert received is not None
        return Up(loss=client.loss(client.load(received)))

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        """Report |w^t - w_k|, so that |G_k| = L |w^t - w_k|."""
        assert received is not None and uploaded is not None
        return Up(drift=(received - uploaded).norm())

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return F_k^q as weights, and the step of w^t - sum Delta_k / sum h_k.

        From Delta_k = F^q G and h_k = q F^(q-1) |G|^2 + L F^q the common factors L and max F^q
        are taken out. Then q = 0 steps by exactly 1, and no loss is too large for any q.
        """
        loss = ups.numbers("loss") + FLOOR
        drift = ups.numbers("drift")
        lipschitz = 1 / server.lr
        power = (loss / loss.max()) ** self.q
        h = power * (1 + self.q * lipschitz * drift**2 / loss)
        return Weights(power, step=float(power.sum() / h.sum()))

"""FedAdam (Reddi et al., 2021).

Sashank J. Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub Konečný, Sanjiv
Kumar and H. Brendan McMahan. Adaptive Federated Optimization. International Conference on Learning
Representations (ICLR) 2021. https://arxiv.org/abs/2003.00295
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equipoise.method import Fraction, Positive
from equipoise.methods.fedadagrad import FedAdagrad


@dataclass(frozen=True)
class FedAdam(FedAdagrad):
    """Adam at the server: FedAdagrad whose second moment is a moving average.

    Attributes:
        beta1: Decay beta_1 of the first moment; 0.9 in the paper.
        beta2: Decay beta_2 of the second moment; 0.99 in the paper, 0.999 in FLamby.
        server_rate: Learning rate eta of the server; the paper selects it per data set.
    """

    paper = "Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2"
    family = "reference"
    year = 2021
    fairness = "none"
    passes = "E·T"

    beta1: Fraction = 0.9
    beta2: Fraction = 0.99
    server_rate: Positive = 0.01

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        """Return v <- beta_2 v + (1 - beta_2) delta^2."""
        return self.beta2 * v + (1 - self.beta2) * delta.square()

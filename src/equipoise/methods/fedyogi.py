"""FedYogi (Reddi et al., 2021).

Sashank J. Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub Konečný, Sanjiv
Kumar and H. Brendan McMahan. Adaptive Federated Optimization. International Conference on Learning
Representations (ICLR) 2021. https://arxiv.org/abs/2003.00295
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equipoise.methods.fedadam import FedAdam


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """Yogi at the server: FedAdam whose second moment changes in bounded steps.

    Its parameters are those of FedAdam.
    """

    family = "reference"
    year = 2021
    fairness = "none"
    passes = "E·T"

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        """Return v <- v - (1 - beta_2) delta^2 sign(v - delta^2)."""
        square = delta.square()
        return v - (1 - self.beta2) * square * (v - square).sign()

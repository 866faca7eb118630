"""FedAdagrad (Reddi et al., 2021).

Sashank J. Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub Konečný, Sanjiv
Kumar and H. Brendan McMahan. Adaptive Federated Optimization. International Conference on Learning
Representations (ICLR) 2021. https://arxiv.org/abs/2003.00295
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.method import Fraction, Positive, Ups, Weights
from equipoise.methods.fedavg import FedAvg
from equipoise.records import State
from equipoise.server import Server


@dataclass(frozen=True)
class FedAdagrad(FedAvg):
    """Adagrad at the server: steps along the mean update, scaled by the sum of its squares.

    Moments cover parameters; buffers such as batch-norm statistics take the plain mean. FedAdam and
    FedYogi change the second moment only.

    Attributes:
        beta1: Decay beta_1 of the first moment; 0 in the paper, 0.9 in FLamby.
        tau: Adaptivity tau, added to the root of the second moment; 0.001 in the paper.
        server_rate: Learning rate eta of the server; the paper selects it per data set.
    """

    paper = "Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2"
    family = "reference"
    year = 2021
    fairness = "none"
    passes = "E·T"

    beta1: Fraction = 0.0
    tau: Positive = 0.001
    server_rate: Positive = 0.1

    def start(self, server: Server) -> State:
        """Return the initial model with moments m = 0 and v = tau^2."""
        state = super().start(server)
        first = 0 * state.model
        second = first.apply(lambda entry: torch.full_like(entry, self.tau**2))
        return state.with_(first_moment=first, second_moment=second)

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        """Return v <- v + delta^2."""
        return v + delta.square()

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Take a server step: x <- x + eta m / (sqrt(v) + tau)."""
        mean = ups.mean("model", weights.shares)
        delta = mean - state.model
        first = self.beta1 * state.first_moment + (1 - self.beta1) * delta
        second = state.second_moment.apply(self.second_moment, delta)
        direction = first.apply(lambda m, v: m / (v.sqrt() + self.tau), second)
        moved = state.model + (self.server_rate * weights.step) * direction
        return state.with_(
            model=moved.with_rest(mean.rest), first_moment=first, second_moment=second
        )

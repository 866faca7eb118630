"""FedAvgM (Hsu et al., 2019).

Tzu-Ming Harry Hsu, Hang Qi and Matthew Brown. Measuring the Effects of Non-Identical Data
Distribution for Federated Visual Classification. Preprint, 2019. https://arxiv.org/abs/1909.06335
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.method import Fraction, Positive, Ups, Weights
from equipoise.methods.fedavg import FedAvg
from equipoise.records import State
from equipoise.server import Server


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvg with heavy-ball momentum at the server.

    Momentum covers parameters; buffers such as batch-norm statistics take the plain mean.

    Attributes:
        beta: Momentum beta. Without dampening the steady-state gain is 1 / (1 - beta).
        dampening: Dampening of the newest update. 0 in the paper; equal to `beta` it is the
            exponential average of MOON's code.
        server_rate: Learning rate of the server along its velocity; 1 in the paper.
    """

    paper = (
        "Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated "
        "Visual Classification, 2019"
    )
    family = "reference"
    year = 2019
    fairness = "none"
    passes = "E·T"

    beta: Fraction = 0.9
    dampening: Fraction = 0.0
    server_rate: Positive = 1.0

    def start(self, server: Server) -> State:
        """Return the initial model with velocity v = 0."""
        state = super().start(server)
        return state.with_(velocity=0 * state.model)

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Take a momentum step: v <- beta v + delta w, then w <- w - v."""
        mean = ups.mean("model", weights.shares)
        velocity = self.beta * state.velocity + (1 - self.dampening) * (state.model - mean)
        # Without momentum the step is the mean itself, bit for bit, not mean plus rounding.
        if self.beta == 0 and self.dampening == 0 and self.server_rate * weights.step == 1:
            return state.with_(model=mean, velocity=velocity)
        moved = state.model + (-self.server_rate * weights.step) * velocity
        return state.with_(model=moved.with_rest(mean.rest), velocity=velocity)

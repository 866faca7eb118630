"""FedDC (Gao et al., 2022).

Liang Gao, Huazhu Fu, Li Li, Yingwen Chen, Ming Xu and Cheng-Zhong Xu. FedDC: Federated Learning
with Non-IID Data via Local Drift Decoupling and Correction. IEEE/CVF Conference on Computer Vision
and Pattern Recognition (CVPR), pages 10112-10121, 2022. https://arxiv.org/abs/2203.11751
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from equipoise.client import Client
from equipoise.losses.terms import proximity, supervised
from equipoise.method import Method, NonNegative, Ups, Weights
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.training import Correction

log = logging.getLogger("equipoise")


@dataclass(frozen=True)
class FedDC(Method):
    """Each client tracks its drift from the global model; training and the server correct for it.

    Training is pulled to the point where the drift is undone, and the server adds the mean drift.
    The server's drift is the mean of all clients' drifts h_i, and its control the mean of all
    clients' controls, each times its client's size over the mean size, also of clients that did
    not take part.

    Attributes:
        alpha: Weight alpha of the pull; a client divides it by its size over the mean size.
            Default: the authors' value for MNIST.
        grad_correction: Correct gradients by controls, as SCAFFOLD does.
    """

    paper = (
        "Gao et al., FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and "
        "Correction, CVPR 2022, Algorithm 1"
    )
    family = "drift"
    year = 2022
    fairness = "none"
    passes = "E·T"

    alpha: NonNegative = 0.1
    grad_correction: bool = True

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Plain SGD where gradients are corrected."""
        return ("sgd",) if self.grad_correction else ()

    def start(self, server: Server) -> State:
        """Return the initial model with drift and control 0; warn if the pull would overshoot."""
        smallest = min((size for size in server.sizes.values() if size), default=1)
        step = server.lr * self.alpha * _mean_size(server) / smallest
        if step >= 1:
            log.warning(
                "FedDC: alpha times the learning rate is %.2g at the smallest client, expected "
                "below 1; lower method.alpha",
                step,
            )
        state = super().start(server)
        state = state.with_(drift=0 * state.model)
        if not self.grad_correction:
            return state
        return state.with_(control=state.drift)

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Send the model, the mean size and, for the gradient correction, the control."""
        down = Down(model=state.model, mean_size=_mean_size(server))
        if not self.grad_correction:
            return down
        return down.with_(control=state.control)

    def client(self, client: Client, down: Down) -> Up:
        """Train with penalty and gradient correction, then renew drift h_i and control.

        Minimises F(w) + alpha / (2 share) |w - (received - h_i)|^2 + <w, c / share - c_i>, where
        share is the client's size over the mean size.
        """
        model = client.load(down.model)
        zero = 0 * down.model
        share = max(1, len(client.train)) / down.mean_size
        drift = client.state.get("drift", zero)
        control = client.state.get("control", zero)
        correction = down.control / share - control if self.grad_correction else None
        gradient = None if correction is None else Correction(plus=correction)
        penalty = (self.alpha / share) * proximity(down.model + -drift)
        fit = client.fit(model, supervised + penalty, gradient=gradient)
        moved = model.tree() - down.model
        client.state["drift"] = drift + moved
        if correction is None:
            return Up(model=model)
        new = control
        if fit.steps:
            new = -correction - moved / (fit.steps * client.lr)
        client.state["control"] = new
        return Up(model=model, control=share * (new - control))

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return equal weights."""
        return Weights(np.ones(len(ups)))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Return the mean of the models with their drifts added."""
        all_clients = len(server.ids)
        mean = ups.mean("model", weights.shares)
        drift = state.drift + (len(ups) / all_clients) * (mean - state.model)
        if self.grad_correction:
            control = state.control + ups.sum("control", np.ones(len(ups)) / all_clients)
            state = state.with_(control=control)
        return state.with_(model=mean + drift, drift=drift)


def _mean_size(server: Server) -> float:
    return float(np.mean(list(server.sizes.values())))

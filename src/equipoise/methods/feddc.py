"""FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction.

Liang Gao, Huazhu Fu, Li Li, Yingwen Chen, Ming Xu and Cheng-Zhong Xu. IEEE/CVF Conference on Computer Vision and Pattern Recognition
(CVPR), pages 10112-10121, 2022. https://arxiv.org/abs/2203.11751
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

log = logging.getLogger("equipoise")


@dataclass(frozen=True)
class FedDC(Method):
    """Each client tracks how far it drifts from the global model: training is pulled to where the drift is undone, the server adds it.

    The server's control is the mean of all clients' controls, each times its client's size over the mean size, and its drift the mean of
    all clients' drifts, whoever took part.
    """

    paper = "Gao et al., FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction, CVPR 2022, Algorithm 1"
    family, year, fairness, passes = "drift", 2022, "none", "E·T"
    needs = property(lambda self: ("sgd",) if self.grad_correction else ())

    # strength of the pull; of a client, divided by its size over the mean size. The authors' value for MNIST
    alpha: NonNegative = 0.1
    grad_correction: bool = True  # correct gradients by the controls, as SCAFFOLD does

    def start(self, server: Server) -> State:
        sizes = [size for size in server.sizes.values() if size]
        step = (
            server.lr
            * self.alpha
            * float(np.mean(list(server.sizes.values())))
            / min(sizes, default=1)
        )
        if step >= 1:
            log.warning(
                "FedDC: alpha times the learning rate is %.2g at the smallest client, expected below 1; lower method.alpha",
                step,
            )
        state = super().start(server)
        state = state.with_(drift=0 * state.model)
        return state.with_(control=state.drift) if self.grad_correction else state

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        down = Down(model=state.model, mean_size=float(np.mean(list(server.sizes.values()))))
        return down.with_(control=state.control) if self.grad_correction else down

    def client(self, client: Client, down: Down) -> Up:
        model, nothing = client.load(down.model), 0 * down.model
        share = max(1, len(client.train)) / down.mean_size  # the size over the mean size
        drift, own = client.state.get("drift", nothing), client.state.get("control", nothing)
        correction = down.control / share - own if self.grad_correction else None
        hook = None if correction is None else lambda name, g: g + correction[name].to(g.device)
        anchor = down.model + -drift
        # F(w) + alpha / (2 share) |w - (received - drift)|^2 + <w, control / share - own>
        done = client.fit(
            model, supervised + (self.alpha / share) * proximity(anchor), gradient=hook
        )
        moved = model.tree() - down.model
        client.state["drift"] = drift + moved
        if correction is None:
            return Up(model=model)
        new = own if not done.steps else -correction - moved / (done.steps * client.lr)
        client.state["control"] = new
        return Up(model=model, control=share * (new - own))

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(np.ones(len(ups)))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        mean = ups.mean("model", weights.shares)
        drift = state.drift + (len(ups) / len(server.ids)) * (mean - state.model)
        if self.grad_correction:
            state = state.with_(
                control=state.control + ups.sum("control", np.ones(len(ups)) / len(server.ids))
            )
        return state.with_(model=mean + drift, drift=drift)  # the mean of models with their drifts

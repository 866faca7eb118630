"""Beyond Federated Prototype Learning: Learnable Semantic Anchors with Hyperspherical Contrast for Domain-Skewed Data (FedLSA).

Lele Fu, Sheng Huang, Yanyi Lai, Tianchi Liao, Chuanfu Zhang and Chuan Chen. AAAI Conference on Artificial Intelligence 2025.
https://doi.org/10.1609/aaai.v39i16.33829
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log, prod
from typing import Annotated, Any, ClassVar, cast

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from equipoise.client import Client
from equipoise.losses.terms import supervised, term
from equipoise.method import Count, Method, NonNegative, Positive, Ups, Weights
from equipoise.models import Network, shape_after
from equipoise.models.network import evaluating, frozen
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.task import Task


@dataclass(frozen=True)
class FedLsa(Method):
    """The server learns an anchor per class from the common head, without data; clients draw features of length 1 to their class's anchor.

    Features are scaled to length 1 before the head, in training and in use; anchors lie on the same sphere, apart from each other.
    """

    paper = "Fu et al., Beyond Federated Prototype Learning: Learnable Semantic Anchors with Hyperspherical Contrast, AAAI 2025, Algorithm 1"
    family, year, fairness, passes = "features", 2025, "none", "E·T"
    needs = ("classes", "head")
    composable_update: ClassVar[bool] = True

    # weight of the contrast with the anchors; 0: FedAvg on features of length 1
    lambda_anchor: NonNegative = 0.1
    alpha: NonNegative = 0.02  # weight of the anchors' separation
    temperature: Positive = 0.1  # of both; small: only the nearest anchor matters
    steps: Count = 500  # of the anchors' training in each round
    server_lr: Positive = 0.01  # learning rate of the anchors' training, which is plain SGD
    # size of a class's learnable vector, of which two layers make its anchor
    anchor_dim: Count = 64
    # size of a linear projection between features and head; 0: none
    proj_dim: Annotated[int, Ge(0)] = 0

    def check(self, task: Task) -> None:
        if task.classifies and task.outputs < 2:
            raise ValueError(
                f"FedLsa sets classes apart, which takes two or more, but the task has {task.outputs}; choose another method"
            )

    def models(
        self, task: Task, others: Mapping[str, Callable[[], nn.Module]]
    ) -> Mapping[str, Callable[[], nn.Module]]:
        """The experiment's model with features of length 1 (by a hook: the names of its parameters stay), and the anchors."""

        def spherical() -> Network:
            net = cast(Network, others["model"]())
            if not list(net.head.parameters()):
                raise ValueError(
                    f"FedLsa learns anchors from a trained `head`, but the model's is {net.head}; split the model so"
                )
            if self.proj_dim:
                projection = nn.Linear(prod(shape_after(net.features, task.shape)), self.proj_dim)
                net = Network(
                    nn.Sequential(net.features, nn.Flatten(), projection),
                    nn.Linear(self.proj_dim, task.outputs),
                )
            net.features.register_forward_hook(
                lambda module, inputs, features: _on_sphere(features)
            )
            return net

        if "model" not in others:
            return {}
        return {
            "model": spherical,
            "anchors": lambda: Anchors(
                task.outputs, self.anchor_dim, shape_after(spherical().features, task.shape)
            ),
        }

    def start(self, server: Server) -> State:
        return self._anchored(server, super().start(server))  # so that round 1 has anchors

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        return Down(model=state.model, anchors=state.anchors)

    def client(self, client: Client, down: Down) -> Up:
        model, anchors = client.load(down.model), down.anchors.flatten(1).to(client.device)
        contrast = term(
            lambda outputs, batch: cross_entropy(
                outputs.features.flatten(1) @ anchors.T / self.temperature, batch.y
            )
        )
        client.fit(model, supervised + self.lambda_anchor * contrast)  # L = L_CE + lambda L_con
        return Up(model=model)

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        return self._anchored(server, super().update(server, state, ups, weights))

    def _anchored(self, server: Server, state: State) -> State:
        """The anchors after this round's training against the common head, which stays as it is, and what makes them."""
        head = cast(Network, server.load(state.model).net).head
        maker = server.load(state.get("maker"), model="anchors")

        def loss(step: int) -> Tensor:
            anchors = maker.net()
            classes = torch.arange(len(anchors), device=anchors.device)
            return cross_entropy(head(anchors), classes) + self.alpha * separation(
                anchors.flatten(1), self.temperature
            )  # Eq. 4

        if self.lambda_anchor:  # else nobody looks at them
            with evaluating(head), frozen(head):
                server.minimise(maker.trained, loss, self.steps, lr=self.server_lr, optimiser="sgd")
        with torch.no_grad():
            return state.with_(maker=maker, anchors=maker.net())


def separation(anchors: Tensor, temperature: float) -> Tensor:
    """The mean over anchors i of log of the mean over the others j of exp(a_i . a_j / temperature): 0 where they are orthogonal.

    >>> float(separation(torch.eye(3), 0.1))
    0.0
    """
    others = ~torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
    products = (anchors @ anchors.T / temperature)[others].view(len(anchors), -1)
    return (torch.logsumexp(products, 1) - log(len(anchors) - 1)).mean()


class Anchors(nn.Module):
    """One point of length 1 per class, in the shape of the features: two layers over a learnable vector each."""

    def __init__(self, classes: int, size: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.vectors = nn.Parameter(torch.randn(classes, size))  # R
        # Theta
        self.layers = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, prod(shape)))

    def forward(self) -> Any:
        return normalize(self.layers(self.vectors), dim=1).view(-1, *self.shape)


def _on_sphere(features: Tensor) -> Tensor:
    """Each sample's features scaled to length 1, a map as one vector; features that are all 0 stay."""
    return normalize(features.flatten(1), dim=1).view(features.shape)

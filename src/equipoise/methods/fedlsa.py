"""FedLSA (Fu et al., 2025).

Lele Fu, Sheng Huang, Yanyi Lai, Tianchi Liao, Chuanfu Zhang and Chuan Chen. Beyond Federated
Prototype Learning: Learnable Semantic Anchors with Hyperspherical Contrast for Domain-Skewed Data.
AAAI Conference on Artificial Intelligence 2025. https://doi.org/10.1609/aaai.v39i16.33829
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, ClassVar, cast

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from equipoise.client import Client
from equipoise.losses import separation
from equipoise.losses.terms import Batch, supervised, term
from equipoise.method import Count, Method, NonNegative, Positive, Ups, Weights
from equipoise.models import Network, Outputs, shape_after
from equipoise.models.anchors import Anchors
from equipoise.models.network import evaluating, frozen
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.task import Task


@dataclass(frozen=True)
class FedLsa(Method):
    """The server learns one anchor per class without data; clients draw features to the anchors.

    Features are scaled to length 1 before the head, in training and in use. Anchors lie on the
    same sphere, apart from each other; the server learns them from the common head.

    Attributes:
        lambda_anchor: Weight lambda of the contrast with the anchors; 0 is FedAvg on features of
            length 1 (the comparison on Office-Caltech: 0.7).
        alpha: Weight alpha of the anchors' separation (the authors' grid: 0.02, 0.4).
        temperature: Temperature tau of contrast and separation (the authors' grid: 0.1, 0.2).
        steps: Steps E_s of the anchors' training in each round.
        server_lr: Learning rate of the anchors' training, which is plain SGD.
        anchor_dim: Size of a class's learnable vector, from which two layers compute its anchor:
            columns of R and width of Theta.
        proj_dim: Size of a linear projection between features and head; 0 adds none.
    """

    paper = (
        "Fu et al., Beyond Federated Prototype Learning: Learnable Semantic Anchors with "
        "Hyperspherical Contrast, AAAI 2025, Algorithm 1"
    )
    family = "features"
    year = 2025
    fairness = "none"
    passes = "E·T"
    needs = ("classes", "head")
    composable_update: ClassVar[bool] = True

    lambda_anchor: NonNegative = 0.1
    alpha: NonNegative = 0.02
    temperature: Positive = 0.1
    steps: Count = 500
    server_lr: Positive = 0.01
    anchor_dim: Count = 64
    proj_dim: Annotated[int, Ge(0)] = 0

    def check(self, task: Task) -> None:
        """Refuse a task with fewer than two classes."""
        if task.classifies and task.outputs < 2:
            raise ValueError(
                "FedLsa sets classes apart, which takes two or more, but the task has "
                f"{task.outputs}; choose another method"
            )

    def models(
        self, task: Task, others: Mapping[str, Callable[[], nn.Module]]
    ) -> Mapping[str, Callable[[], nn.Module]]:
        """Return the experiment's model with features of length 1, and the anchors.

        The scaling is a hook, so that the names of the model's parameters stay.
        """
        if "model" not in others:
            return {}

        def spherical() -> Network:
            net = cast(Network, others["model"]())
            if not list(net.head.parameters()):
                raise ValueError(
                    "FedLsa learns anchors from a trained `head`, but the model's is "
                    f"{net.head}; split the model so"
                )
            if self.proj_dim:
                net = self._projected(net, task)
            net.features.register_forward_hook(
                lambda module, inputs, features: _on_sphere(features)
            )
            return net

        def anchors() -> Anchors:
            shape = shape_after(spherical().features, task.shape)
            return Anchors(task.outputs, self.anchor_dim, shape)

        return {"model": spherical, "anchors": anchors}

    def _projected(self, net: Network, task: Task) -> Network:
        """Return the features of a network with a linear projection and a new head."""
        projection = nn.Linear(prod(shape_after(net.features, task.shape)), self.proj_dim)
        features = nn.Sequential(net.features, nn.Flatten(), projection)
        return Network(features, nn.Linear(self.proj_dim, task.outputs))

    def start(self, server: Server) -> State:
        """Return the initial model with its anchors, so that round 1 has some."""
        return self.with_anchors(server, super().start(server))

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Send the model and the anchors."""
        return Down(model=state.model, anchors=state.anchors)

    def client(self, client: Client, down: Down) -> Up:
        """Minimise L = L_CE + lambda L_con."""
        model = client.load(down.model)
        anchors = down.anchors.flatten(1).to(client.device)

        def contrast(outputs: Outputs, batch: Batch) -> Tensor:
            similarity = outputs.features.flatten(1) @ anchors.T / self.temperature
            return cross_entropy(similarity, batch.y)

        client.fit(model, supervised + self.lambda_anchor * term(contrast))
        return Up(model=model)

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Average the models, then train the anchors against the new head."""
        return self.with_anchors(server, super().update(server, state, ups, weights))

    def with_anchors(self, server: Server, state: State) -> State:
        """Train the anchors against the frozen common head (Eq. 4)."""
        head = cast(Network, server.load(state.model).net).head
        maker = server.load(state.get("maker"), model="anchors")

        def loss(step: int) -> Tensor:
            anchors = maker.net()
            classes = torch.arange(len(anchors), device=anchors.device)
            recognised = cross_entropy(head(anchors), classes)
            return recognised + self.alpha * separation(anchors.flatten(1), self.temperature)

        if self.lambda_anchor:  # Otherwise no client uses them.
            with evaluating(head), frozen(head):
                server.minimise(maker.trained, loss, self.steps, lr=self.server_lr, optimiser="sgd")
        with torch.no_grad():
            return state.with_(maker=maker, anchors=maker.net())


def _on_sphere(features: Tensor) -> Tensor:
    """Scale each sample's features to length 1; features that are all 0 stay."""
    return normalize(features.flatten(1), dim=1).view(features.shape)

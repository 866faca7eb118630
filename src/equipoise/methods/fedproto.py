"""FedProto (Tan et al., 2022).

Yue Tan, Guodong Long, Lu Liu, Tianyi Zhou, Qinghua Lu, Jing Jiang and Chengqi Zhang. FedProto:
Federated Prototype Learning across Heterogeneous Clients. AAAI Conference on Artificial
Intelligence 2022, pages 8432-8440. https://arxiv.org/abs/2105.00243,
https://github.com/yuetan031/fedproto

This variant also averages models, as https://github.com/WenkeHuang/MarsFL does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.client import Client
from equipoise.losses import class_means
from equipoise.losses.terms import Batch, Loss, supervised, term
from equipoise.method import Method, NonNegative, Ups
from equipoise.models import Outputs
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.tree import Tree


@dataclass(frozen=True)
class FedProto(Method):
    """Clients share the mean feature of each class and draw features to the mean over clients.

    This variant also averages the models, so that there is a global one. The original keeps the
    models separate and predicts by the nearest prototype.

    Attributes:
        lambda_proto: Weight lambda of the distance to the prototypes. 0 is FedAvg; no prototypes
            are computed then.
    """

    paper = (
        "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, "
        "AAAI 2022; with averaged models"
    )
    family = "features"
    year = 2022
    fairness = "none"
    passes = "E·T + F"
    needs = ("classes",)

    lambda_proto: NonNegative = 1.0

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Send the model and the global prototypes, which exist from round 2 on."""
        down = Down(model=state.model)
        if "prototypes" not in state:
            return down
        return down.with_(prototypes=state.prototypes, known=state.known)

    def client(self, client: Client, down: Down) -> Up:
        """Minimise cross-entropy + lambda times the distance to the prototypes."""
        model = client.load(down.model)
        loss = supervised
        if self.lambda_proto and "prototypes" in down:
            prototypes = down.prototypes.to(client.device)
            known = down.known.to(client.device)
            loss += self.lambda_proto * prototype_distance(prototypes, known)
        client.fit(model, loss)
        return Up(model=model)

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        """Report the mean feature of each class; zeros for a class that the client lacks."""
        if not self.lambda_proto:
            return Up()
        features = client.features(client.load(uploaded))
        prototypes, counts = class_means(features, client.train.y, client.task.outputs)
        return Up(prototypes=prototypes, present=(counts > 0).to(prototypes))

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        """Average each class over the clients that have it, with equal weights.

        A class that no client of this round has keeps its prototype.
        """
        if not self.lambda_proto:
            return state
        ones = np.ones(len(ups))
        sums = ups.sum("prototypes", ones)
        owners = ups.sum("present", ones)
        means = sums / owners.clamp(min=1).unsqueeze(1)
        previous = state.get("prototypes", means)
        known = state.get("known", owners > 0)
        prototypes = torch.where(owners.unsqueeze(1) > 0, means, previous)
        return state.with_(prototypes=prototypes, known=known | (owners > 0))


def prototype_distance(prototypes: Tensor, known: Tensor) -> Loss:
    """Return the mean squared distance between features and the prototypes of their labels.

    Args:
        prototypes: One row per class.
        known: True for each class that has a prototype; samples of other classes count 0.
    """

    def value(outputs: Outputs, batch: Batch) -> Tensor:
        gaps = outputs.features.flatten(1) - prototypes[batch.y]
        return (gaps * known[batch.y].unsqueeze(1)).square().mean()

    return term(value)

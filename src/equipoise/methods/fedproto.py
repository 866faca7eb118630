"""FedProto: Federated Prototype Learning across Heterogeneous Clients.

Yue Tan, Guodong Long, Lu Liu, Tianyi Zhou, Qinghua Lu, Jing Jiang and Chengqi Zhang. AAAI Conference on Artificial Intelligence 2022, pages
8432-8440. https://arxiv.org/abs/2105.00243, https://github.com/yuetan031/fedproto

Here with averaged models, as in https://github.com/WenkeHuang/MarsFL.
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
    """Clients share the mean feature of each class, and draw the features of their samples to the mean over all clients.

    This is the variant that also averages the models, so that there is a global one; the original keeps models apart and predicts by the
    nearest prototype.
    """

    paper = "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022; with averaged models"
    family, year, fairness, passes = "features", 2022, "none", "E·T + F"
    needs = ("classes",)

    # weight of the distance to the prototypes; 0: FedAvg, without prototypes
    lambda_proto: NonNegative = 1.0

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        return Down(
            model=state.model,
            **{name: state[name] for name in ("prototypes", "known") if name in state},
        )  # none in round 1

    def client(self, client: Client, down: Down) -> Up:
        model, loss = client.load(down.model), supervised
        if self.lambda_proto and "prototypes" in down:
            loss += self.lambda_proto * _distance(
                down.prototypes.to(client.device), down.known.to(client.device)
            )
        client.fit(model, loss)
        return Up(model=model)

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        if not self.lambda_proto:
            return Up()
        features = client.features(client.load(uploaded))
        # g_k,c: zeros for a class the client lacks
        prototypes, counts = class_means(features, client.train.y, client.task.outputs)
        return Up(prototypes=prototypes, present=(counts > 0).to(prototypes))

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        if not self.lambda_proto:
            return state
        everyone = np.ones(len(ups))
        sums, owners = ups.sum("prototypes", everyone), ups.sum("present", everyone)
        means = sums / owners.clamp(min=1).unsqueeze(
            1
        )  # over the clients that have the class, all alike
        before, known = state.get("prototypes", means), state.get("known", owners > 0)
        # a class that nobody had this round keeps its own
        kept = torch.where(owners.unsqueeze(1) > 0, means, before)
        return state.with_(prototypes=kept, known=known | (owners > 0))


def _distance(prototypes: Tensor, known: Tensor) -> Loss:
    """The mean over samples and dimensions of (z - prototype of the label)^2; 0 for a class without one."""

    def value(outputs: Outputs, batch: Batch) -> Tensor:
        gaps = outputs.features.flatten(1) - prototypes[batch.y]
        return (gaps * known[batch.y].unsqueeze(1)).square().mean()

    return term(value)

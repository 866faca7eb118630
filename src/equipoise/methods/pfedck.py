"""pFedCK (Zhang and Shi, 2024).

Jianfei Zhang and Yongqiang Shi. A Personalized Federated Learning Method Based on Clustering and
Knowledge Distillation. Electronics, volume 13, number 5, article 857, 2024.
https://doi.org/10.3390/electronics13050857

A reconstruction: its full text was not available, so this follows its abstract and a port by
others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from equipoise.client import Client
from equipoise.losses import distillation_loss
from equipoise.losses.terms import Batch, Loss, supervised, term
from equipoise.method import Count, Method, NonNegative, Positive, Served, Ups, Weights
from equipoise.models import Model, Outputs
from equipoise.records import Down, PerClient, State, Up
from equipoise.server import Server
from equipoise.tree import Tree, combine, gram
from equipoise.weighting import clusters, cosines


@dataclass(frozen=True)
class PFedCK(Method):
    """A personal and an interactive model teach each other; clusters average interactive models.

    Clients whose interactive models moved in similar directions form a cluster, computed anew in
    every round. Each member adds the cluster's mean step to its own model.

    Attributes:
        lambda_p: Weight lambda_p of the distillation between the two models' predictions.
        lambda_f: Weight lambda_f of the distillation between their features.
        temperature: Temperature of the predictions.
        clusters: Largest number of clusters; 1 is FedAvg of the interactive models.
        cluster_mean: Average steps, or models, so that every member gets the same model.
    """

    paper = (
        "Zhang and Shi, A Personalized Federated Learning Method Based on Clustering and "
        "Knowledge Distillation, Electronics 2024"
    )
    family = "personal"
    year = 2024
    fairness = "none"
    passes = "2E·T"
    needs = ("labels",)
    served_models = ("personal", "interactive")
    reconstruction: ClassVar[bool] = True

    lambda_p: NonNegative = 1.0
    lambda_f: NonNegative = 1.0
    temperature: Positive = 1.0
    clusters: Count = 3
    cluster_mean: Literal["steps", "models"] = "steps"

    def start(self, server: Server) -> State:
        """Return the state without interactive models."""
        return State(models=PerClient(), clusters={})

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Send the client's interactive model."""
        return Down(model=_model(server, state, client_id))

    def client(self, client: Client, down: Down) -> Up:
        """Train both models on the same batches, each with the other as its teacher."""
        interactive = client.load(down.model)
        personal = client.load(client.state.get("personal"))  # at first the initial model
        losses = [supervised + self._taught_by(1), supervised + self._taught_by(0)]
        client.fit([interactive, personal], losses)
        client.state["personal"] = personal
        return Up(model=interactive)

    def _taught_by(self, peer: int) -> Loss:
        """Return lambda_p KL(peer's predictions || own) + lambda_f MSE(features).

        The peer is the one before this step.
        """

        def predictions(own: Outputs, batch: Batch) -> Tensor:
            return self.prediction_gap(own.logits, own.peers[peer].logits.detach())

        def features(own: Outputs, batch: Batch) -> Tensor:
            return (own.features - own.peers[peer].features.detach()).square().mean()

        return self.lambda_p * term(predictions) + self.lambda_f * term(features)

    def prediction_gap(self, own: Tensor, other: Tensor) -> Tensor:
        """Return the distillation loss, or the squared error for a single output (regression)."""
        if own.shape[1] == 1:
            return (own - other).square().mean()
        return distillation_loss(own, other, self.temperature)

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Average the interactive models within each cluster."""
        before = {client: _model(server, state, client) for client in ups.ids}
        share = dict(zip(ups.ids, weights.shares.tolist(), strict=True))
        models = {}
        numbers = {}
        for number, members in enumerate(self._members(server, ups, before)):
            in_order = [client for client in ups.ids if client in members]
            shares = [share[client] for client in in_order]
            mean = ups.of(members).mean("model", shares)
            start = combine([before[client] for client in in_order], shares, sum(shares))
            for client in members:
                numbers[client] = number
                models[client] = mean
                if self.cluster_mean == "steps":
                    # The mean step from the member's own model, written so that members that
                    # started from one model get the mean itself, bit for bit.
                    models[client] = mean + (before[client] - start)
        return state.with_(models=state.models.put(models), clusters=numbers)

    def _members(self, server: Server, ups: Ups, before: dict[str, Tree]) -> list[list[str]]:
        """Return the clients of each cluster.

        A client that did not move has no direction: unless there is only one cluster, it is in
        none and keeps its model.
        """
        ids = sorted(ups.ids)  # A random choice must not depend on the order of the cohort.
        if self.clusters == 1:
            return [ids]
        end = ups.table("model")
        products = gram([end[client] - before[client] for client in ids])
        moved = np.flatnonzero(np.diag(products))
        if not len(moved):
            return []
        similarity = cosines(products[np.ix_(moved, moved)])
        labels = clusters(similarity, self.clusters, server.seed("clusters"))
        members: list[list[str]] = [[] for _ in range(max(labels) + 1)]
        for position, label in zip(moved, labels, strict=True):
            members[label].append(ids[position])
        return members

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Return the personal model and the interactive one."""
        personal = client.load(client.state.get("personal", down.model))
        return {
            "personal": Served(personal, main=True),
            "interactive": Served(client.load(down.model), same_for_all=True),
        }


def _model(server: Server, state: State, client: str) -> Tree:
    """Return the interactive model that a client receives."""
    model: Tree = state.models[client] if client in state.models else server.initial()
    return model

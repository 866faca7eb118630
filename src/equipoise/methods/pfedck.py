"""A Personalized Federated Learning Method Based on Clustering and Knowledge Distillation (pFedCK).

Jianfei Zhang and Yongqiang Shi. Electronics, volume 13, number 5, article 857, 2024. https://doi.org/10.3390/electronics13050857

A reconstruction: its full text was not at hand, so what is here follows its abstract and a port by others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from equipoise.client import Client
from equipoise.losses import distillation_loss
from equipoise.losses.terms import Loss, supervised, term
from equipoise.method import Count, Method, NonNegative, Positive, Served, Ups, Weights
from equipoise.models import Model
from equipoise.records import Down, PerClient, State, Up
from equipoise.server import Server
from equipoise.tree import Tree, combine, gram
from equipoise.weighting import clusters, cosines


@dataclass(frozen=True)
class PFedCK(Method):
    """A personal and an interactive model teach each other at every client; the server averages interactive models within clusters.

    Clients whose interactive models moved in like directions are in one cluster, found anew in every round. Each member takes the
    cluster's mean step from where it stood.
    """

    paper = "Zhang and Shi, A Personalized Federated Learning Method Based on Clustering and Knowledge Distillation, Electronics 2024"
    family, year, fairness, passes = "personal", 2024, "none", "2E·T"
    reconstruction: ClassVar[bool] = True

    lambda_p: NonNegative = 1.0  # weight of what one model learns from the other's predictions
    lambda_f: NonNegative = 1.0  # weight of what one model learns from the other's features
    temperature: Positive = 1.0  # of the predictions
    clusters: Count = 3  # at most so many; 1 is FedAvg of the interactive models
    # what a cluster averages; models: every member gets the same model
    cluster_mean: Literal["steps", "models"] = "steps"

    def start(self, server: Server) -> State:
        return State(models=PerClient(), clusters={})

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        return Down(model=_model(server, state, client_id))

    def client(self, client: Client, down: Down) -> Up:
        interactive, personal = (
            client.load(down.model),
            client.load(client.state.get("personal")),
        )  # at first both the initial model
        client.fit(
            [interactive, personal],
            [supervised + self._taught_by(1), supervised + self._taught_by(0)],
        )
        client.state["personal"] = personal
        return Up(model=interactive)

    def _taught_by(self, peer: int) -> Loss:
        """What a model learns from another as it stood before this step: lambda_p KL(its predictions || own) + lambda_f MSE(features)."""
        predictions = term(
            lambda own, batch: self._gap(own.logits, own.peers[peer].logits.detach())
        )
        features = term(
            lambda own, batch: (own.features - own.peers[peer].features.detach()).square().mean()
        )
        return self.lambda_p * predictions + self.lambda_f * features

    def _gap(self, own: Tensor, other: Tensor) -> Tensor:
        return (
            (own - other).square().mean()
            if own.shape[1] == 1
            else distillation_loss(own, other, self.temperature)
        )  # 1: regression

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        before = {client: _model(server, state, client) for client in ups.ids}
        share = dict(zip(ups.ids, weights.shares.tolist(), strict=True))
        models, names = {}, {}
        for name, members in enumerate(self._groups(server, ups, before)):
            shares = [share[client] for client in ups.ids if client in members]
            mean = ups.of(members).mean("model", shares)
            began = combine(
                [before[client] for client in ups.ids if client in members], shares, sum(shares)
            )
            for client in members:
                # The mean step from where the member stood, written so that members that stood together get the mean itself, bit for bit.
                models[client] = (
                    mean + (before[client] - began) if self.cluster_mean == "steps" else mean
                )
                names[client] = name
        return state.with_(models=state.models.put(models), clusters=names)

    def _groups(self, server: Server, ups: Ups, before: dict[str, Tree]) -> list[list[str]]:
        """The clients of each cluster. One that did not move has no direction: among several clusters it is in none, and keeps its model."""
        ids = sorted(ups.ids)  # by name, so that no random choice depends on a place in the cohort
        if self.clusters == 1:
            return [ids]
        end = ups.table("model")
        products = gram([end[client] - before[client] for client in ids])
        moved = np.flatnonzero(np.diag(products))
        if not len(moved):
            return []
        found = clusters(
            cosines(products[np.ix_(moved, moved)]), self.clusters, server.seed("clusters")
        )
        return [
            [ids[place] for place, group in zip(moved, found, strict=True) if group == one]
            for one in range(max(found) + 1)
        ]

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        interactive = Served(client.load(down.model), same_for_all=True)
        return {
            "personal": Served(client.load(client.state.get("personal", down.model)), main=True),
            "interactive": interactive,
        }


def _model(server: Server, state: State, client: str) -> Tree:
    """The interactive model that a client receives."""
    model: Tree = state.models[client] if client in state.models else server.initial()
    return model

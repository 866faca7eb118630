"""CoRe-Fed: Bridging Collaborative and Representation Fairness via Federated Embedding Distillation.

Noorain Mukhtiar, Adnan Mahmood and Quan Z. Sheng. AAAI Conference on Artificial Intelligence 2026. https://arxiv.org/abs/2602.00647,
https://github.com/Noorain1/CoRe-Fed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from equipoise.client import Client
from equipoise.losses import (
    cohort_contrast,
    embedding_contrast,
    embedding_target,
    mean_direction,
    refined_alignment,
)
from equipoise.losses.terms import supervised, term
from equipoise.method import Fraction, Method, NonNegative, Positive, Ups, Weights
from equipoise.models import shape_after
from equipoise.records import Down, PerClient, State, Up
from equipoise.server import Server
from equipoise.tree import Tree, combine
from equipoise.weighting import (
    participation_alignment,
    participation_frequency,
    participation_window,
)


@dataclass(frozen=True)
class CoReFed(Method):
    """Clients that were rarely asked of late, and whose mean feature agrees with the cohort's, count more.

    As the paper's text says, local training also pulls features towards the cohort's mean and away from other clients'. In its equations
    these losses and the reused gradients reach no model: rep="literal" follows them, and reuse="window" makes gradients of absent clients count.
    """

    paper = "Mukhtiar, Mahmood and Sheng, CoRe-Fed: Bridging Collaborative and Representation Fairness, AAAI 2026, Algorithm 1"
    family, year, fairness, passes = "aggregation", 2026, "participation, representation", "E·T + F"

    gamma: NonNegative = 0.5  # how much rare participation is rewarded
    k: NonNegative = 2.0  # slope of the sigmoid on alignment
    beta: Fraction = 0.5  # how far embeddings are drawn towards the cohort's mean
    temperature: Positive = 0.07  # of the contrastive loss
    include_positive: bool = False  # whether the positive pair stands in the contrast's denominator too; the paper leaves it out
    # representation losses: part of local training (the paper's text), or a diagnostic at the server (its equations)
    rep: Literal["client", "literal"] = "client"
    lambda_con: NonNegative = 0.1  # weight of the contrast in local training (rep = client)
    # weight of embedding distillation in local training (rep = client)
    lambda_kd: NonNegative = 1.0
    # whose updates are summed: this cohort's, or also those of clients lately absent
    reuse: Literal["active", "window"] = "active"
    # co_fed: weights by participation alone; re_fed: weights by size, as FedAvg
    ablation: Literal["none", "co_fed", "re_fed"] = "none"
    # released: what the authors' code computes, for reproduction only
    preset: Literal["paper", "released"] = "paper"

    # else the two rest on each other
    composable_weights = composable_update = property(lambda self: self.reuse == "active")

    def __post_init__(self) -> None:
        partial = (self.preset, self.ablation) != ("paper", "none")
        if self.reuse == "window" and partial:
            raise ValueError(
                f"corefed: reuse='window' needs the whole method; got {self}; drop one of them"
            )
        if self.ablation == "re_fed" and self.rep == "literal":
            raise ValueError(
                "corefed: ablation='re_fed' with rep='literal' equals FedAvg, since the representation losses then reach no model; "
                "use rep='client', or the method fedavg"
            )

    def start(self, server: Server) -> State:
        return (
            super()
            .start(server)
            .with_(cohort={}, contrast={}, gradients=PerClient(), embeddings=PerClient())
        )

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        return Down(model=state.model, **({"cohort": state.cohort} if self.rep == "client" else {}))

    def client(self, client: Client, down: Down) -> Up:
        model, loss = client.load(down.model), supervised
        if down.get("cohort"):  # embeddings of the previous round: none in the first
            embeddings, options = (
                torch.stack(list(down.cohort.values())),
                (self.temperature, self.include_positive),
            )
            common, others = (
                embeddings.mean(0),
                embeddings[[name != client.id for name in down.cohort]],
            )
            contrast = term(
                lambda outputs, batch: embedding_contrast(
                    mean_direction(outputs.features), common, others, *options
                )
            )
            distilled = term(
                lambda outputs, batch: _gap(mean_direction(outputs.features), common, self.beta)
            )
            # Eq. 6 and 8-9 on a batch
            loss = supervised + self.lambda_con * contrast + self.lambda_kd * distilled
        client.fit(model, loss)
        return Up(model=model)

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        if self.ablation == "co_fed":
            return Up()
        model = client.load(received if self.preset == "released" else uploaded)
        if not len(client.train):
            shape = shape_after(model.net.features, client.task.shape)  # type: ignore[arg-type]
            return Up(embedding=torch.zeros(int(np.prod(shape))))
        if self.preset == "released":  # the first batch alone, lengths as they are
            return Up(embedding=client.features(model)[: client.training.batch].flatten(1).mean(0))
        return Up(embedding=mean_direction(client.features(model)))  # Eq. 4

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        if self.ablation == "co_fed" or self.preset == "released":
            return state
        # Eq. 6, line 13
        losses = cohort_contrast(ups.stack("embedding"), self.temperature, self.include_positive)
        state = state.with_(
            cohort=ups.table("embedding"), contrast=dict(zip(ups.ids, losses.tolist(), strict=True))
        )
        if self.reuse == "active":
            return state
        gradients = {
            client: (state.model - up.model) / _rate(server)
            for client, up in zip(ups.ids, ups, strict=True)
        }
        return state.with_(
            gradients=state.gradients.put(gradients), embeddings=state.embeddings.put(state.cohort)
        )

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        if self.ablation == "re_fed":
            return super().weights(server, state, ups)
        absent, shares = self._shares(server, state, ups)
        return Weights(
            shares[: len(ups)], absent=dict(zip(absent, shares[len(ups) :].tolist(), strict=True))
        )

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        if not weights.absent:
            # Eq. 13 with sum w = 1: the mean of the models
            return super().update(server, state, ups, weights)
        gradients = [state.gradients[client] for client in weights.absent]
        # Eq. 12
        reused = combine(gradients, [share * _rate(server) for share in weights.absent.values()])
        moved = super().update(server, state, ups, weights.times(float(weights.shares.sum())))
        return moved.with_(model=moved.model + -reused)

    def _shares(self, server: Server, state: State, ups: Ups) -> tuple[list[str], np.ndarray]:
        """Absent clients whose last gradient is at most a window old, and the weights of the cohort, then of these (Eq. 10-11)."""
        joined, released = [*server.joined, ups.ids], self.preset == "released"
        window = participation_window(joined)
        recent = dict.fromkeys(client for ids in joined[-1 - window :] for client in ids)
        absent = [client for client in recent if self.reuse == "window" and client not in ups.ids]
        frequency = participation_frequency(joined, [*ups.ids, *absent]).clip(min=1 / window)
        rho = torch.zeros(len(frequency))
        if self.ablation != "co_fed":
            own = ups.stack("embedding")
            everyone = torch.stack(
                [*own, *(state.embeddings[client].double() for client in absent)]
            )
            rho = refined_alignment(
                everyone, own[0] if released else own.mean(0), 0.0 if released else self.beta
            )  # Eq. 5, 8-9
        return absent, participation_alignment(
            frequency, rho, 0.0 if released else self.gamma, self.k
        )  # released: frequencies are 1


def _rate(server: Server) -> float:
    # what turns a step into a gradient
    return server.lr if server.training.optimiser == "sgd" else 1.0


def _gap(own: torch.Tensor, common: torch.Tensor, beta: float) -> torch.Tensor:
    return (own - embedding_target(own, common, beta).detach()).square().sum()

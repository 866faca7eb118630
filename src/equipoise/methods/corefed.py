"""CoRe-Fed (Mukhtiar et al., 2026).

Noorain Mukhtiar, Adnan Mahmood and Quan Z. Sheng. CoRe-Fed: Bridging Collaborative and
Representation Fairness via Federated Embedding Distillation. AAAI Conference on Artificial
Intelligence 2026. https://arxiv.org/abs/2602.00647, https://github.com/Noorain1/CoRe-Fed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.client import Client
from equipoise.losses import (
    cohort_contrast,
    embedding_contrast,
    embedding_gap,
    mean_direction,
    refined_alignment,
)
from equipoise.losses.terms import Batch, Loss, supervised, term
from equipoise.method import Fraction, Method, NonNegative, Positive, Ups, Weights
from equipoise.models import Outputs, shape_after
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
    """Weigh clients more that took part rarely and whose mean feature agrees with the cohort's.

    As the paper's text says, local training also pulls features towards the cohort's mean and
    away from other clients'. In its equations these losses and the reused gradients reach no
    model: rep="literal" follows them, and reuse="window" lets gradients of absent clients count.

    Attributes:
        gamma: Exponent gamma of the reward for rare participation (the paper: 0.5 or 2).
        k: Slope k of the sigmoid on alignment (the paper: 0.5 or 2).
        beta: Share beta by which embeddings are drawn towards the cohort's mean.
        temperature: Temperature tau of the contrastive loss.
        include_positive: Include the positive pair in the denominator of the contrast, which the
            paper leaves out.
        rep: Representation losses as part of local training ("client", the paper's text) or only
            computed at the server ("literal", its equations).
        lambda_con: Weight of the contrast in local training with rep="client"; not in the paper.
        lambda_kd: Weight of the embedding distillation with rep="client"; not in the paper.
        reuse: Updates that are summed: those of this cohort ("active"), or also the last ones of
            recently absent clients ("window").
        ablation: "co_fed" leaves contrast and distillation out and keeps the weights of Eq. 11,
            with the plain cosine as alignment; "re_fed" weighs by size as FedAvg.
        preset: "released" computes what the authors' code does, to reproduce it.
    """

    paper = (
        "Mukhtiar, Mahmood and Sheng, CoRe-Fed: Bridging Collaborative and Representation "
        "Fairness, AAAI 2026, Algorithm 1"
    )
    family = "aggregation"
    year = 2026
    fairness = "participation, representation"
    passes = "E·T + F"

    gamma: NonNegative = 0.5
    k: NonNegative = 2.0
    beta: Fraction = 0.5
    temperature: Positive = 0.07
    include_positive: bool = False
    rep: Literal["client", "literal"] = "client"
    lambda_con: NonNegative = 0.1
    lambda_kd: NonNegative = 1.0
    reuse: Literal["active", "window"] = "active"
    ablation: Literal["none", "co_fed", "re_fed"] = "none"
    preset: Literal["paper", "released"] = "paper"

    # With reuse="window", weights and update depend on each other.
    composable_weights = composable_update = property(lambda self: self.reuse == "active")

    def __post_init__(self) -> None:
        partial = (self.preset, self.ablation) != ("paper", "none")
        if self.reuse == "window" and partial:
            raise ValueError(
                f"corefed: reuse='window' needs the whole method; got {self}; drop one of them"
            )
        if self.ablation == "re_fed" and self.rep == "literal":
            raise ValueError(
                "corefed: ablation='re_fed' with rep='literal' equals FedAvg, since the "
                "representation losses then reach no model; use rep='client', or the method fedavg"
            )

    def start(self, server: Server) -> State:
        """Return the initial model without embeddings and gradients."""
        state = super().start(server)
        return state.with_(cohort={}, contrast={}, gradients=PerClient(), embeddings=PerClient())

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Send the model and the embeddings of the previous cohort."""
        down = Down(model=state.model)
        if self.rep == "literal" or self.ablation == "co_fed":
            return down
        return down.with_(cohort=state.cohort)

    def client(self, client: Client, down: Down) -> Up:
        """Train the model, from round 2 on with the representation losses of Eq. 6 and 8-9."""
        model = client.load(down.model)
        loss = supervised
        if down.get("cohort"):
            loss = loss + self._representation_loss(client.id, down.cohort)
        client.fit(model, loss)
        return Up(model=model)

    def _representation_loss(self, client_id: str, cohort: Mapping[str, Tensor]) -> Loss:
        """Return the weighted sum of contrast and embedding distillation on a batch."""
        embeddings = torch.stack(list(cohort.values()))
        common = embeddings.mean(0)
        others = embeddings[[name != client_id for name in cohort]]

        def contrast(outputs: Outputs, batch: Batch) -> Tensor:
            embedding = mean_direction(outputs.features)
            return embedding_contrast(
                embedding, common, others, self.temperature, self.include_positive
            )

        def distilled(outputs: Outputs, batch: Batch) -> Tensor:
            return embedding_gap(mean_direction(outputs.features), common, self.beta)

        return self.lambda_con * term(contrast) + self.lambda_kd * term(distilled)

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        """Report the client's embedding, the mean direction of its features (Eq. 4)."""
        model = client.load(received if self.preset == "released" else uploaded)
        if not len(client.train):
            shape = shape_after(model.net.features, client.task.shape)  # type: ignore[arg-type]
            return Up(embedding=torch.zeros(int(np.prod(shape))))
        features = client.features(model)
        if self.preset == "released":  # the first batch alone, without normalisation
            return Up(embedding=features[: client.training.batch].flatten(1).mean(0))
        return Up(embedding=mean_direction(features))

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        """Store the embeddings and their contrast (Eq. 6, line 13), and gradients to reuse."""
        if self.preset == "released":
            return state
        losses = cohort_contrast(ups.stack("embedding"), self.temperature, self.include_positive)
        contrast = dict(zip(ups.ids, losses.tolist(), strict=True))
        state = state.with_(cohort=ups.table("embedding"), contrast=contrast)
        if self.reuse == "active":
            return state
        rate = gradient_rate(server)
        gradients = {
            client: (state.model - model) / rate for client, model in ups.table("model").items()
        }
        return state.with_(
            gradients=state.gradients.put(gradients), embeddings=state.embeddings.put(state.cohort)
        )

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return the weights of the cohort and of absent clients whose gradients count again."""
        if self.ablation == "re_fed":
            return super().weights(server, state, ups)
        absent = self._recently_absent(server, ups)
        shares = self._shares(server, state, ups, absent)
        present = len(ups)
        reused = dict(zip(absent, shares[present:].tolist(), strict=True))
        return Weights(shares[:present], absent=reused)

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Take the step of Eq. 12-13; without reuse it ends at the weighted mean of the models."""
        if not weights.absent:
            return super().update(server, state, ups, weights)
        gradients = [state.gradients[client] for client in weights.absent]
        rate = gradient_rate(server)
        reused = combine(gradients, [share * rate for share in weights.absent.values()])  # Eq. 12
        moved = super().update(server, state, ups, weights.times(float(weights.shares.sum())))
        return moved.with_(model=moved.model + -reused)

    def _recently_absent(self, server: Server, ups: Ups) -> list[str]:
        """Return the absent clients whose last gradient is at most a window old."""
        if self.reuse == "active":
            return []
        joined = [*server.joined, ups.ids]
        window = participation_window(joined)
        recent = dict.fromkeys(client for ids in joined[-1 - window :] for client in ids)
        return [client for client in recent if client not in ups.ids]

    def _shares(
        self, server: Server, state: State, ups: Ups, absent: list[str]
    ) -> NDArray[np.float64]:
        """Return the weights of the cohort, then of the absent clients (Eq. 10-11)."""
        joined = [*server.joined, ups.ids]
        window = participation_window(joined)
        frequency = participation_frequency(joined, [*ups.ids, *absent]).clip(min=1 / window)
        rho = self._alignment(state, ups, absent)
        # In the released code all frequencies are 1, which an exponent of 0 reproduces.
        gamma = 0.0 if self.preset == "released" else self.gamma
        return participation_alignment(frequency, rho, gamma, self.k)

    def _alignment(self, state: State, ups: Ups, absent: list[str]) -> Tensor:
        """Return the alignment rho of each embedding with the mean of the cohort (Eq. 5, 8-9)."""
        present = ups.stack("embedding")
        stored = [state.embeddings[client].double() for client in absent]
        embeddings = torch.stack([*present, *stored])
        if self.preset == "released":
            return refined_alignment(embeddings, present[0], 0.0)
        beta = 0.0 if self.ablation == "co_fed" else self.beta
        return refined_alignment(embeddings, present.mean(0), beta)


def gradient_rate(server: Server) -> float:
    """Return the number by which a step is divided to obtain a gradient."""
    return server.lr if server.training.optimiser == "sgd" else 1.0

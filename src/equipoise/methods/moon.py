"""MOON (Li et al., 2021).

Qinbin Li, Bingsheng He and Dawn Song. Model-Contrastive Federated Learning. IEEE/CVF Conference on
Computer Vision and Pattern Recognition (CVPR), pages 10713-10722, 2021.
https://arxiv.org/abs/2103.16257, https://github.com/QinbinLi/MOON
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equipoise.client import Client
from equipoise.losses import model_contrast
from equipoise.losses.terms import Batch, Loss, frozen_features, supervised, term
from equipoise.method import Method, NonNegative, Positive
from equipoise.models import Model, Outputs
from equipoise.records import Down, Up


@dataclass(frozen=True)
class MOON(Method):
    """Draw features to those of the received model and away from those of the last upload.

    In a client's first round there is no earlier upload, and it trains as in FedAvg.

    Attributes:
        mu: Weight mu of the contrast; 0 is FedAvg. The paper tries 0.1, 1, 5 and 10.
        temperature: Temperature tau of the contrast, 0.5 in the paper. A small value lets only
            the nearer of the two models count.
    """

    paper = "Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021, Algorithm 1"
    family = "features"
    year = 2021
    fairness = "none"
    passes = "E·T + 2F"

    mu: NonNegative = 5.0
    temperature: Positive = 0.5

    def client(self, client: Client, down: Down) -> Up:
        """Minimise cross-entropy + mu l_con (Algorithm 1, PartyLocalTraining)."""
        model = client.load(down.model)
        loss = supervised
        if self.mu and "previous" in client.state:
            shared = client.feature_teacher(client.load(down.model))
            previous = client.feature_teacher(client.load(client.state["previous"]))
            loss += self.mu * self._contrast(shared, previous)
        client.fit(model, loss)
        if self.mu:
            client.state["previous"] = model
        return Up(model=model)

    def _contrast(self, shared: Tensor | Model, previous: Tensor | Model) -> Loss:
        """Return the batch mean of l_con for frozen features of the two models (Eq. 3)."""

        def value(outputs: Outputs, batch: Batch) -> Tensor:
            z_glob = frozen_features(shared, batch)
            z_prev = frozen_features(previous, batch)
            contrast: Tensor = model_contrast(outputs.features, z_glob, z_prev, self.temperature)
            return contrast.mean()

        return term(value)

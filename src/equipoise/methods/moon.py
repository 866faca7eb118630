"""Model-Contrastive Federated Learning (MOON).

Qinbin Li, Bingsheng He and Dawn Song. IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR), pages 10713-10722, 2021.
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
    """A client's features are drawn to those of the received model, and away from those of the model it uploaded last.

    Without an earlier upload (in a client's first round) it trains as in FedAvg.
    """

    paper = "Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021, Algorithm 1"
    family, year, fairness, passes = "features", 2021, "none", "E·T + 2F"

    mu: NonNegative = 5.0  # weight of the contrast
    temperature: Positive = 0.5  # of the contrast; small: only the nearer of the two models matters

    def client(self, client: Client, down: Down) -> Up:
        model, loss = client.load(down.model), supervised
        if self.mu and "previous" in client.state:
            shared, previous = client.load(down.model), client.load(client.state["previous"])
            loss += self.mu * self._contrast(
                client.feature_teacher(shared), client.feature_teacher(previous)
            )
        client.fit(model, loss)  # cross-entropy + mu * mean of l_con
        if self.mu:
            client.state["previous"] = model
        return Up(model=model)

    def _contrast(self, shared: Tensor | Model, previous: Tensor | Model) -> Loss:
        def value(outputs: Outputs, batch: Batch) -> Tensor:
            near, far = frozen_features(shared, batch), frozen_features(previous, batch)
            # l_con: near is z_glob, far is z_prev
            contrast: Tensor = model_contrast(outputs.features, near, far, self.temperature)
            return contrast.mean()

        return term(value)

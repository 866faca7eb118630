"""FedType (Wang et al., 2024).

Jiaqi Wang, Chenxu Zhao, Lingjuan Lyu, Quanzeng You, Mengdi Huai and Fenglong Ma. FedType: Bridging
Model Heterogeneity in Federated Learning via Uncertainty-based Asymmetrical Reciprocity Learning.
Proceedings of the 41st International Conference on Machine Learning (ICML), PMLR 235, 2024.
https://arxiv.org/abs/2407.03247
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Gt, Lt
from torch import Tensor, nn

from equipoise.client import Client
from equipoise.losses.conformal import Conformal, calibrated, consensus, ranking_loss
from equipoise.losses.terms import (
    Batch,
    Loss,
    distillation,
    frozen_logits,
    proximity,
    supervised,
    term,
)
from equipoise.method import Count, Method, NonNegative, Served, Ups, Weights
from equipoise.methods.fedekd import (
    initial_proxy,
    private_and_proxy,
    private_model,
    served_proxy_and_private,
    store_private,
)
from equipoise.models import Model, Outputs
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.task import Task


@dataclass(frozen=True)
class FedType(Method):
    """A private model teaches a small proxy, which is averaged and returns sets of likely classes.

    The experiment names two models, `private` and `proxy`; with a single `model` both have its
    architecture. Only the proxy is uploaded.

    Attributes:
        alpha: Share alpha of calibration samples whose label may lie outside of their set.
        k_reg: Number k_reg of classes of a set without a penalty; at most one less than there are
            classes.
        penalty_private: Penalty lambda of every further class in a private model's sets.
        penalty_proxy: Penalty lambda of every further class in the proxy's sets.
        mu: Weight mu of the pull of the proxy towards the global one, as in FedProx; above 0 it is
            the paper's "FedProx+FedType".
        rank_loss: "released" is the loss of the authors' code, a constant without gradient.
        calibration: Samples on which sets are calibrated; "train" as in the authors' code.
    """

    paper = (
        "Wang et al., Bridging Model Heterogeneity in Federated Learning via Uncertainty-based "
        "Asymmetrical Reciprocity Learning, ICML 2024"
    )
    family = "distillation"
    year = 2024
    fairness = "none"
    passes = "2E·T + 2E·F, and 2 passes over the client's validation data"
    served_models = ("proxy", "personal")
    needs = ("classes",)

    alpha: Annotated[float, Gt(0), Lt(1)] = 0.1
    k_reg: Count = 5
    penalty_private: NonNegative = 1.0
    penalty_proxy: NonNegative = 0.5
    mu: NonNegative = 0.0
    rank_loss: Literal["intended", "released"] = "intended"
    calibration: Literal["validation", "train"] = "validation"

    def models(
        self, task: Task, others: Mapping[str, Callable[[], nn.Module]]
    ) -> Mapping[str, Callable[[], nn.Module]]:
        """Return the experiment's `model` for `private` and `proxy` where they are not named."""
        return private_and_proxy(others)

    def start(self, server: Server) -> State:
        """Return the initial proxy."""
        return initial_proxy(server)

    def client(self, client: Client, down: Down) -> Up:
        """Train private model and proxy in turns, one epoch each.

        The sets of both models are calibrated at the start of the round.
        """
        private = private_model(client)
        proxy = client.load(down.model)
        private_sets = self.calibrated_sets(client, private, self.penalty_private)
        proxy_sets = self.calibrated_sets(client, proxy, self.penalty_proxy)
        private_memory: Mapping[str, Any] | None = client.state.get("optimiser")
        proxy_memory: Mapping[str, Any] | None = None
        # With a number of steps in the settings there is one turn of so many steps.
        steps = client.training.steps
        turns = 1 if steps else client.training.epochs
        length: dict[str, Any] = {} if steps else {"epochs": 1}
        for turn in range(turns):
            ranked = self.ranking(client.teacher(proxy), private_sets, proxy_sets)
            private_memory = client.fit(
                private,
                supervised + ranked,
                memory=private_memory,
                purpose=f"batches {turn}" if turn else "batches",
                **length,
            ).memory
            distilled = distillation(client.teacher(private))
            proxy_memory = client.fit(
                proxy,
                supervised + distilled + self.mu * proximity(down.model),
                memory=proxy_memory,
                purpose=f"proxy {turn}",
                **length,
            ).memory
        store_private(client, private, private_memory)
        return Up(model=proxy)

    def calibrated_sets(self, client: Client, model: Model, penalty: float) -> Conformal:
        """Return the conformal sets of a model; they stay fixed while the model trains."""
        samples = client.validation if self.calibration == "validation" else client.train
        rule: Literal["released", "converged"] = "converged"
        if self.rank_loss == "released":
            rule = "released"
        return calibrated(
            client.predict(model, samples),
            samples.y,
            self.alpha,
            min(self.k_reg, client.task.outputs - 1),
            penalty,
            rule,
        )

    def ranking(
        self, teacher: Tensor | Model, private_sets: Conformal, proxy_sets: Conformal
    ) -> Loss:
        """Return kappa L_rank.

        It ranks the classes in the proxy's set before all others, weighed by the agreement kappa
        of the two models' sets.
        """

        def value(outputs: Outputs, batch: Batch) -> Tensor:
            target = frozen_logits(teacher, batch)
            sets = proxy_sets.sets(target)
            own_sets = private_sets.sets(outputs.logits.detach())
            kappa = consensus(own_sets, sets).to(outputs.logits)
            # The authors' code ranks the frozen proxy's own logits, with the sign reversed.
            scores = outputs.logits if self.rank_loss == "intended" else -target
            ranked: Tensor = ranking_loss(scores, sets)
            return kappa * ranked

        return term(value)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return equal weights."""
        return Weights(np.ones(len(ups)))

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Return the global proxy and the private model."""
        return served_proxy_and_private(client, down)

"""FedType: Bridging Model Heterogeneity in Federated Learning via Uncertainty-based Asymmetrical Reciprocity Learning.

Jiaqi Wang, Chenxu Zhao, Lingjuan Lyu, Quanzeng You, Mengdi Huai and Fenglong Ma. Proceedings of the 41st International Conference on
Machine Learning (ICML), PMLR 235, 2024. https://arxiv.org/abs/2407.03247
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
from equipoise.models import Model, Outputs
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.task import Task


@dataclass(frozen=True)
class FedType(Method):
    """A private model stays at each client and teaches a small proxy, which is averaged; back it learns which classes the proxy deems possible.

    The experiment names two models, `private` and `proxy`; with a single `model` both have its architecture. Only the proxy is uploaded.
    """

    paper = "Wang et al., Bridging Model Heterogeneity in Federated Learning via Uncertainty-based Asymmetrical Reciprocity Learning, ICML 2024"
    family, year, fairness, passes = (
        "distillation",
        2024,
        "none",
        "2E·T + 2E·F, and 2 passes over the client's validation data",
    )
    needs = ("classes",)

    # share of calibration samples whose label may lie outside of the sets
    alpha: Annotated[float, Gt(0), Lt(1)] = 0.1
    k_reg: Count = 5  # classes of a set without a penalty; at most one less than there are
    penalty_private: NonNegative = 1.0  # of every further class in a private model's sets
    penalty_proxy: NonNegative = 0.5  # the same for the proxy
    mu: NonNegative = 0.0  # pull of the proxy towards the global one, as in FedProx
    # released: as the authors' code has it, a constant that teaches nothing
    rank_loss: Literal["intended", "released"] = "intended"
    # samples that sets are calibrated on; train: as the authors' code does
    calibration: Literal["validation", "train"] = "validation"

    def models(
        self, task: Task, others: Mapping[str, Callable[[], nn.Module]]
    ) -> Mapping[str, Callable[[], nn.Module]]:
        return {
            name: others["model"]
            for name in ("private", "proxy")
            if name not in others and "model" in others
        }

    def start(self, server: Server) -> State:
        return State(model=server.load(None, model="proxy").tree())

    def client(self, client: Client, down: Down) -> Up:
        private, proxy = self._private(client), client.load(down.model)
        own, common = (
            self._calibrated(client, private, self.penalty_private),
            self._calibrated(client, proxy, self.penalty_proxy),
        )
        memory: Mapping[str, Any] | None = client.state.get("optimiser")
        proxy_memory: Mapping[str, Any] | None = None
        steps = client.training.steps  # of one stage, where training says so
        for epoch in range(1 if steps else client.training.epochs):
            once: dict[str, Any] = {} if steps else {"epochs": 1}
            ranked = supervised + self._ranked(client.teacher(proxy), own, common)
            memory = client.fit(
                private,
                ranked,
                memory=memory,
                purpose=f"batches {epoch}" if epoch else "batches",
                **once,
            ).memory
            taught = (
                supervised + distillation(client.teacher(private)) + self.mu * proximity(down.model)
            )
            proxy_memory = client.fit(
                proxy, taught, memory=proxy_memory, purpose=f"proxy {epoch}", **once
            ).memory
        client.state["private"] = private
        if client.training.keep_optimiser:  # as Standalone does
            client.state["optimiser"] = memory
        return Up(model=proxy)

    def _calibrated(self, client: Client, model: Model, penalty: float) -> Conformal:
        """A model's sets of this round: temperature and threshold stay while the model trains."""
        samples = client.validation if self.calibration == "validation" else client.train
        rule: Literal["released", "converged"] = (
            "released" if self.rank_loss == "released" else "converged"
        )
        return calibrated(
            client.predict(model, samples),
            samples.y,
            self.alpha,
            min(self.k_reg, client.task.outputs - 1),
            penalty,
            rule,
        )

    def _ranked(self, teacher: Tensor | Model, own: Conformal, common: Conformal) -> Loss:
        """kappa * L_rank: the private model's classes in the proxy's set before all others, as far as the two models' sets agree."""

        def value(outputs: Outputs, batch: Batch) -> Tensor:
            target = frozen_logits(teacher, batch)
            sets = common.sets(target)
            agreed = consensus(own.sets(outputs.logits.detach()), sets).to(outputs.logits)
            # The authors' code ranks the frozen proxy's own logits, with the sign reversed.
            ranked: Tensor = ranking_loss(
                outputs.logits if self.rank_loss == "intended" else -target, sets
            )
            return agreed * ranked

        return term(value)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(np.ones(len(ups)))  # not by size

    def _private(self, client: Client) -> Model:
        return client.load(client.state.get("private"), model="private")

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        return {
            "proxy": Served(client.load(down.model), same_for_all=True),
            "personal": Served(self._private(client), main=True),
        }

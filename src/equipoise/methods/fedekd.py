"""FedeKD: Energy-Based Gating for Robust Federated Knowledge Distillation under Heterogeneous Settings.

Quang-Huy Nguyen, Jiaqi Wang and Wei-Shinn Ku. Preprint, 2026. https://arxiv.org/abs/2605.05553
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn

from equipoise.client import Client, FitResult
from equipoise.losses import energy, kl_divergence, trust
from equipoise.losses.energies import OF_CLASSES
from equipoise.losses.terms import Batch, Loss, distillation, frozen_logits, supervised, term
from equipoise.method import Cohort, Method, NonNegative, Served, Ups, Weights
from equipoise.models import Model, Outputs, shape_after
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.task import Task

Energy = Literal["auto", "kl", "sqerr", "entropy", "margin", "lse", "feat", "none", "constant_half"]


@dataclass(frozen=True)
class FedeKD(Method):
    """A private model stays at each client; small proxies are averaged and teach it back, sample by sample as far as they agree.

    The experiment names two models, `private` and `proxy`; with a single `model` both have its architecture. Only the proxy is uploaded.
    """

    paper = "Nguyen, Wang and Ku, FedeKD: Energy-Based Gating for Robust Federated Knowledge Distillation, 2026, Algorithm 1"
    family, year, fairness, passes = "distillation", 2026, "no harm", "2E·T + 2F"
    exchanges = "2"

    lambda_kd: NonNegative = 1.0  # weight of what the global proxy teaches; 0 is local training
    # how sharply trust falls with energy; 0 trusts every sample by one half
    beta: NonNegative = 1.0
    energy: Energy = "auto"  # auto: kl or sqerr
    rated: Literal["proxy", "private"] = "proxy"  # whose logits entropy, margin and lse look at
    # of private features for feat: random, or least squares
    projection: Literal["frozen", "fit"] = "frozen"
    forward_epochs: Annotated[int, Ge(0)] = 0  # of the proxy in each round; 0: as in training
    # of the private model in each round; 0: as in training
    backward_epochs: Annotated[int, Ge(0)] = 0
    warmup_epochs: Annotated[int, Ge(0)] = 0  # of the private model alone, before its first round
    proxy_labels: NonNegative = 0.0  # weight of the supervised loss in the proxy's training; the paper's proxy sees no labels
    # where the proxy's training begins in each round
    proxy_start: Literal["global", "own"] = "global"

    def check(self, task: Task) -> None:
        if not task.classifies and self.energy in OF_CLASSES:
            raise ValueError(
                f"fedekd: energy={self.energy!r} needs classes, got regression; use auto, sqerr, feat, none or constant_half"
            )

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

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        state = super().round(server, state, cohort)  # lines 1-6
        # lines 7-16
        cohort.run(self.backward, each=lambda client: self.deliver(server, state, client))
        return state

    def client(self, client: Client, down: Down) -> Up:
        """The forward stage: the proxy learns to predict as the frozen private model does (lines 2-4)."""
        private = self._private(client)
        if self.warmup_epochs and "private" not in client.state:
            self._keep(
                client, private, client.fit(private, purpose="warm-up", **_for(self.warmup_epochs))
            )
        proxy = client.load(client.state.get("proxy", down.model))
        loss = distillation(client.teacher(private)) + self.proxy_labels * supervised
        client.fit(proxy, loss, purpose="forward", **_for(self.forward_epochs))
        if self.proxy_start == "own":
            client.state["proxy"] = proxy
        if self.energy == "feat" and self.projection == "fit" and len(client.train):
            own, shared = (client.features(model).flatten(1).double() for model in (private, proxy))
            client.state["_projection"] = torch.linalg.lstsq(
                own, shared, driver="gelsd"
            ).solution.float()
        return Up(model=proxy)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(np.ones(len(ups)))  # line 6: not by size

    def backward(self, client: Client, down: Down) -> None:
        """The backward stage: the frozen global proxy teaches the private model (lines 9-15)."""
        private, proxy = self._private(client), client.load(down.model)
        loss = supervised + self.lambda_kd * self._gated(client, private, proxy)  # Eq. 4-5
        self._keep(
            client,
            private,
            client.fit(
                private, loss, memory=client.state.get("optimiser"), **_for(self.backward_epochs)
            ),
        )

    def _gated(self, client: Client, private: Model, proxy: Model) -> Loss:
        kind = self.energy if self.energy != "auto" else "kl" if client.task.classifies else "sqerr"
        teacher = client.teacher(proxy)
        if kind == "feat":
            projection = client.state.get("_projection", _random_map(client, private, proxy))
            shared: Model | Tensor
            if client.random_inputs:
                shared = Model(proxy.net.features, "proxy features")  # type: ignore[arg-type]
            else:
                shared = client.features(proxy)

        def value(outputs: Outputs, batch: Batch) -> Tensor:
            target = frozen_logits(teacher, batch)
            own, other = outputs.logits, target
            if kind == "feat":
                own, other = (
                    outputs.features.flatten(1) @ projection,
                    frozen_logits(shared, batch).flatten(1),
                )
            # Eq. 1-3
            weights = trust(energy(own.double(), other.double(), kind, self.rated), self.beta, kind)
            gaps = (
                kl_divergence(target, outputs.logits)
                if client.task.classifies
                else (outputs.logits - target).square().sum(1)
            )
            return (weights.to(gaps) * gaps).mean()

        return term(value)

    def _private(self, client: Client) -> Model:
        return client.load(client.state.get("private"), model="private")

    def _keep(self, client: Client, private: Model, done: FitResult) -> None:
        client.state["private"] = private
        # as Standalone does, so that lambda_kd = 0 is training alone
        if client.training.keep_optimiser:
            client.state["optimiser"] = done.memory

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        return {
            "proxy": Served(client.load(down.model), same_for_all=True),
            "personal": Served(self._private(client), main=True),
        }


def _for(epochs: int) -> dict[str, Any]:
    return {} if not epochs else {"epochs": epochs, "steps": None}


def _random_map(client: Client, private: Model, proxy: Model) -> Tensor:
    """A fixed linear map from private to proxy features: the same for all clients whose features have these sizes."""
    sizes = []
    for model in (private, proxy):
        shape = shape_after(model.net.features, client.task.shape)  # type: ignore[arg-type]
        sizes.append(int(np.prod(shape)))
    return torch.randn(*sizes, generator=client.common_stream("fedekd projection", *sizes)).div(
        sizes[0] ** 0.5
    )

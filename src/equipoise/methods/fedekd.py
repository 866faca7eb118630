"""FedeKD (Nguyen et al., 2026).

Quang-Huy Nguyen, Jiaqi Wang and Wei-Shinn Ku. FedeKD: Energy-Based Gating for Robust Federated
Knowledge Distillation under Heterogeneous Settings. Preprint, 2026.
https://arxiv.org/abs/2605.05553
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn

from equipoise.client import Client
from equipoise.losses import energy, kl_divergence, trust
from equipoise.losses.energies import OF_CLASSES
from equipoise.losses.terms import (
    Batch,
    Loss,
    distillation,
    frozen_features,
    frozen_logits,
    supervised,
    term,
)
from equipoise.method import Cohort, Method, NonNegative, Served, Ups, Weights
from equipoise.models import Model, Outputs, shape_after
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.task import Task

Energy = Literal["auto", "kl", "sqerr", "entropy", "margin", "lse", "feat", "none", "constant_half"]


@dataclass(frozen=True)
class FedeKD(Method):
    """A private model stays at each client; averaged proxies teach it, gated sample by sample.

    The experiment names two models, `private` and `proxy`; with a single `model` both have its
    architecture. Only the proxy is uploaded.

    Attributes:
        lambda_kd: Weight lambda of the distillation from the global proxy (Eq. 5); 0 is local
            training.
        beta: Slope beta at which trust falls with energy (Eq. 3); 0 trusts every sample by 1/2.
        energy: Energy of Eq. 1-2; "auto" is "kl" for classes and "sqerr" for regression.
        rated: The model whose logits the energies "entropy", "margin" and "lse" use.
        projection: Map of private features for the energy "feat": random, or least squares.
        forward_epochs: Epochs of the proxy in each round; 0 as in training.
        backward_epochs: Epochs of the private model in each round; 0 as in training.
        warmup_epochs: Epochs of the private model alone before its first round.
        proxy_labels: Weight of the supervised loss in the proxy's training; in the paper the
            proxy sees no labels.
        proxy_start: The model from which the proxy's training starts in each round.
    """

    paper = (
        "Nguyen, Wang and Ku, FedeKD: Energy-Based Gating for Robust Federated Knowledge "
        "Distillation, 2026, Algorithm 1"
    )
    family = "distillation"
    year = 2026
    fairness = "no harm"
    passes = "2E·T + 2F"
    needs = ("labels",)
    served_models = ("proxy", "personal")
    exchanges = "2"

    lambda_kd: NonNegative = 1.0
    beta: NonNegative = 1.0
    energy: Energy = "auto"
    rated: Literal["proxy", "private"] = "proxy"
    projection: Literal["frozen", "fit"] = "frozen"
    forward_epochs: Annotated[int, Ge(0)] = 0
    backward_epochs: Annotated[int, Ge(0)] = 0
    warmup_epochs: Annotated[int, Ge(0)] = 0
    proxy_labels: NonNegative = 0.0
    proxy_start: Literal["global", "own"] = "global"

    def check(self, task: Task) -> None:
        """Refuse an energy of classes for regression."""
        if not task.classifies and self.energy in OF_CLASSES:
            raise ValueError(
                f"fedekd: energy={self.energy!r} needs classes, got regression; use auto, sqerr, "
                "feat, none or constant_half"
            )

    def models(
        self, task: Task, others: Mapping[str, Callable[[], nn.Module]]
    ) -> Mapping[str, Callable[[], nn.Module]]:
        """Return the experiment's `model` for `private` and `proxy` where they are not named."""
        return private_and_proxy(others)

    def start(self, server: Server) -> State:
        """Return the initial proxy."""
        return initial_proxy(server)

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        """Do the forward stage (lines 1-6), then the backward stage (lines 7-16)."""
        state = super().round(server, state, cohort)
        cohort.run(self.backward, each=lambda client: self.deliver(server, state, client))
        return state

    def client(self, client: Client, down: Down) -> Up:
        """Train the proxy to predict as the frozen private model does (forward, lines 2-4)."""
        private = private_model(client)
        if self.warmup_epochs and "private" not in client.state:
            fit = client.fit(private, purpose="warm-up", **_epochs(self.warmup_epochs))
            store_private(client, private, fit.memory)
        proxy = client.load(client.state.get("proxy", down.model))
        loss = distillation(client.teacher(private)) + self.proxy_labels * supervised
        client.fit(proxy, loss, purpose="forward", **_epochs(self.forward_epochs))
        if self.proxy_start == "own":
            client.state["proxy"] = proxy
        if self.energy == "feat" and self.projection == "fit" and len(client.train):
            client.state["_projection"] = _fitted_map(client, private, proxy)
        return Up(model=proxy)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return equal weights (line 6)."""
        return Weights(np.ones(len(ups)))

    def backward(self, client: Client, down: Down) -> None:
        """Distil the frozen global proxy into the private model (lines 9-15, Eq. 4-5)."""
        private = private_model(client)
        proxy = client.load(down.model)
        loss = supervised + self.lambda_kd * self.gated_distillation(client, private, proxy)
        memory = client.state.get("optimiser")
        fit = client.fit(private, loss, memory=memory, **_epochs(self.backward_epochs))
        store_private(client, private, fit.memory)

    def gated_distillation(self, client: Client, private: Model, proxy: Model) -> Loss:
        """Return the distillation from the proxy, each sample weighed by its trust (Eq. 1-4)."""
        classifies = client.task.classifies
        kind: str = self.energy
        if kind == "auto":
            kind = "kl" if classifies else "sqerr"
        teacher = client.teacher(proxy)
        if kind == "feat":
            projection = client.state.get("_projection", _random_map(client, private, proxy))
            proxy_features = client.feature_teacher(proxy)

        def value(outputs: Outputs, batch: Batch) -> Tensor:
            target = frozen_logits(teacher, batch)
            own, other = outputs.logits, target
            if kind == "feat":
                own = outputs.features.flatten(1) @ projection
                other = frozen_features(proxy_features, batch)
            trusted = trust(energy(own.double(), other.double(), kind, self.rated), self.beta, kind)
            if classifies:
                gaps = kl_divergence(target, outputs.logits)
            else:
                gaps = (outputs.logits - target).square().sum(1)
            return (trusted.to(gaps) * gaps).mean()

        return term(value)

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Return the global proxy and the private model."""
        return served_proxy_and_private(client, down)


def private_and_proxy(
    others: Mapping[str, Callable[[], nn.Module]],
) -> dict[str, Callable[[], nn.Module]]:
    """Return the experiment's `model` for `private` and `proxy` where they are not named.

    Args:
        others: The models that the experiment names.
    """
    if "model" not in others:
        return {}
    return {name: others["model"] for name in ("private", "proxy") if name not in others}


def initial_proxy(server: Server) -> State:
    """Return the state of a server before round 1: a proxy with its initial parameters."""
    return State(model=server.load(None, model="proxy").tree())


def private_model(client: Client) -> Model:
    """Return the private model of a client, with its initial parameters before it has trained."""
    return client.load(client.state.get("private"), model="private")


def store_private(client: Client, private: Model, memory: Mapping[str, Any] | None) -> None:
    """Keep the private model and, as Standalone does, the memory of its optimiser.

    Args:
        client: The client.
        private: The model.
        memory: The memory of its optimiser.
    """
    client.state["private"] = private
    if client.training.keep_optimiser:
        client.state["optimiser"] = memory


def served_proxy_and_private(client: Client, down: Down) -> dict[str, Model | Served]:
    """Return the served models: the global proxy, and the private model as the main one."""
    return {
        "proxy": Served(client.load(down.model), same_for_all=True),
        "personal": Served(private_model(client), main=True),
    }


def _epochs(epochs: int) -> dict[str, Any]:
    """Return the settings of a fit with so many epochs; 0 leaves them as they are."""
    return {"epochs": epochs, "steps": None} if epochs else {}


def _fitted_map(client: Client, private: Model, proxy: Model) -> Tensor:
    """Return the least-squares map from private to proxy features."""
    own = client.features(private).flatten(1).double()
    shared = client.features(proxy).flatten(1).double()
    solution: Tensor = torch.linalg.lstsq(own, shared, driver="gelsd").solution
    return solution.float()


def _random_map(client: Client, private: Model, proxy: Model) -> Tensor:
    """Return a random map from private to proxy features.

    It is the same for all clients whose features have these sizes.
    """
    sizes = []
    for model in (private, proxy):
        shape = shape_after(model.net.features, client.task.shape)  # type: ignore[arg-type]
        sizes.append(int(np.prod(shape)))
    generator = client.common_stream("fedekd projection", *sizes)
    return torch.randn(*sizes, generator=generator).div(sizes[0] ** 0.5)

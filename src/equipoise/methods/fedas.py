"""FedAS: Bridging Inconsistency in Personalized Federated Learning.

Xiyuan Yang, Wenke Huang and Mang Ye. IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR), pages 11986-11995, 2024.
https://openaccess.thecvf.com/content/CVPR2024/html/Yang_FedAS_Bridging_Inconsistency_in_Personalized_Federated_Learning_CVPR_2024_paper.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from equipoise.client import Client
from equipoise.losses.fisher import summed_loss
from equipoise.losses.terms import Batch, Loss, term
from equipoise.method import Method, NonNegative, Served, Ups, Weights
from equipoise.models import Model, Outputs
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.tree import Tree

PLAIN: dict[str, Any] = {
    "optimiser": "sgd",
    "momentum": 0.0,
    "nesterov": False,
    "weight_decay": 0.0,
    "clip": None,
}


@dataclass(frozen=True)
class FedAS(Method):
    """Clients share the base of a network and keep its head; a received base is first aligned with what the client's own base knew.

    Replies are weighed by the trace of their Fisher information: a client that fits its data well counts little. In the slot `weights`
    of another method this rule stands alone.
    """

    paper = "Yang et al., FedAS: Bridging Inconsistency in Personalized Federated Learning, CVPR 2024, Algorithm 1"
    family, year, fairness, passes = "personal", 2024, "none", "E·T + 2T + F"
    needs = ("classes",)
    composable_weights: ClassVar[bool] = True

    # learning rate of the alignment, which is plain SGD; 0: none, as in FedPer
    align_lr: NonNegative = 0.01
    # the trace over batches; mean: clients with more batches do not count more
    fim: Literal["sum", "mean"] = "sum"

    def client(self, client: Client, down: Down) -> Up:
        old, model = (
            client.load(client.state.get("personal")),
            client.load(down.model),
        )  # the old one is at first the initial model
        own = old.tree()
        if self.align_lr and any(name.startswith("features.") for name in model.trained):
            client.fit(
                model,
                _alignment(self._prototypes(client, old)),
                purpose="alignment",
                lr=self.align_lr,
                batch=16,
                epochs=1,
                **PLAIN,
            )
        model.put(_with_head(model.tree(), own))
        client.fit(model)
        client.state["personal"] = model
        return Up(model=model)

    def _prototypes(self, client: Client, old: Model) -> Tensor:
        """The mean feature of each class under the client's previous base; zeros for a class it lacks, which no batch asks for."""
        features, y = client.features(old).flatten(1).double(), client.train.y
        sums = torch.zeros(client.task.outputs, features.shape[1], dtype=torch.float64).index_add(
            0, y, features
        )
        return (
            (sums / torch.bincount(y, minlength=client.task.outputs).clamp(min=1)[:, None])
            .float()
            .to(client.device)
        )

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        """The trace of the Fisher information: the squared gradients of the batches' mean losses, added up over batches and parameters."""
        model, trace, batches = client.load(uploaded), 0.0, 0
        model.net.eval()
        for batch in client.batches():
            loss = summed_loss(model(batch.x).logits, batch.y) / len(batch.y)
            gradients = torch.autograd.grad(loss, list(model.trained.values()), allow_unused=True)
            trace += sum(
                float(gradient.double().square().sum())
                for gradient in gradients
                if gradient is not None
            )
            batches += 1
        return Up(trace=trace if self.fim == "sum" else trace / max(1, batches))

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        traces = ups.numbers("trace")
        # all fit their data: by size
        return Weights(traces) if traces.any() else super().weights(server, state, ups)

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        personal = client.load(client.state.get("personal", down.model))
        return {
            "personal": Served(personal, main=True),
            "global": Served(client.load(down.model), same_for_all=True),
        }


def _alignment(prototypes: Tensor) -> Loss:
    """For each class of a batch the mean squared difference between its samples' features and its prototype, added up over classes."""

    def value(outputs: Outputs, batch: Batch) -> Tensor:
        gaps = (outputs.features.flatten(1) - prototypes[batch.y]).square().mean(1)
        return (gaps / torch.bincount(batch.y)[batch.y]).sum()

    return term(value)


def _with_head(tree: Tree, own: Tree) -> Tree:
    """The base of one model, its buffers included, with the head of another."""
    return Tree(
        {name: own[name] if name.startswith("head.") else tree[name] for name in tree},
        tree.model,
        tree.untrained,
    )

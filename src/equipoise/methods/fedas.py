"""FedAS (Yang et al., 2024).

Xiyuan Yang, Wenke Huang and Mang Ye. FedAS: Bridging Inconsistency in Personalized Federated
Learning. IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR), pages 11986-11995,
2024.
https://openaccess.thecvf.com/content/CVPR2024/html/Yang_FedAS_Bridging_Inconsistency_in_Personalized_Federated_Learning_CVPR_2024_paper.html
"""

from __future__ import annotations

from collections.abc import Sequence
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

PLAIN_SGD: dict[str, Any] = {
    "optimiser": "sgd",
    "momentum": 0.0,
    "nesterov": False,
    "weight_decay": 0.0,
    "clip": None,
}


@dataclass(frozen=True)
class FedAS(Method):
    """Clients share the base of a network and keep its head; a received base is aligned first.

    The alignment trains the received base to give the features that the client's previous base
    gave on average for each class. Replies are weighed by the trace of their Fisher information:
    a client that fits its data well counts little. The weight rule can be used by other methods.

    Attributes:
        align_lr: Learning rate of the alignment, which is plain SGD; 0 disables it, as in FedPer.
        fim: Trace summed over batches (the paper), or its mean, so that clients with more batches
            do not count more.
    """

    paper = (
        "Yang et al., FedAS: Bridging Inconsistency in Personalized Federated Learning, "
        "CVPR 2024, Algorithm 1"
    )
    family = "personal"
    year = 2024
    fairness = "none"
    passes = "E·T + 2T + F"
    served_models = ("personal", "global")
    needs = ("classes",)
    composable_weights: ClassVar[bool] = True

    align_lr: NonNegative = 0.01
    fim: Literal["sum", "mean"] = "sum"

    def client(self, client: Client, down: Down) -> Up:
        """Align the received base, join it with the client's own head, and train both."""
        previous = client.load(client.state.get("personal"))  # at first the initial model
        model = client.load(down.model)
        own = previous.tree()
        has_base = any(name.startswith("features.") for name in model.trained)
        if self.align_lr and has_base:
            client.fit(
                model,
                _alignment(_prototypes(client, previous)),
                purpose="alignment",
                lr=self.align_lr,
                batch=16,
                epochs=1,
                **PLAIN_SGD,
            )
        model.put(_with_head(model.tree(), own))
        client.fit(model)
        client.state["personal"] = model
        return Up(model=model)

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        """Report the trace of the Fisher information of the uploaded model.

        It sums the squared gradients of the mean losses of batches over batches and parameters.
        """
        model = client.load(uploaded)
        model.net.eval()
        parameters = list(model.trained.values())
        trace = 0.0
        batches = 0
        for batch in client.batches():
            loss = summed_loss(model(batch.x).logits, batch.y) / len(batch.y)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            trace += _squared_norm(gradients)
            batches += 1
        if self.fim == "mean":
            trace = trace / max(1, batches)
        return Up(trace=trace)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return the traces, or the sizes if every client fits its data."""
        traces = ups.numbers("trace")
        if not traces.any():
            return super().weights(server, state, ups)
        return Weights(traces)

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Return the personal model and the global one."""
        personal = client.load(client.state.get("personal", down.model))
        return {
            "personal": Served(personal, main=True),
            "global": Served(client.load(down.model), same_for_all=True),
        }


def _prototypes(client: Client, previous: Model) -> Tensor:
    """Return the mean feature of each class under the client's previous base.

    The row of a class that the client lacks is 0; no batch uses it.
    """
    features = client.features(previous).flatten(1).double()
    classes = client.task.outputs
    y = client.train.y
    sums = torch.zeros(classes, features.shape[1], dtype=torch.float64).index_add(0, y, features)
    counts = torch.bincount(y, minlength=classes).clamp(min=1)
    return (sums / counts[:, None]).float().to(client.device)


def _alignment(prototypes: Tensor) -> Loss:
    """Return the mean squared difference to the prototype per class of a batch, summed."""

    def value(outputs: Outputs, batch: Batch) -> Tensor:
        gaps = (outputs.features.flatten(1) - prototypes[batch.y]).square().mean(1)
        return (gaps / torch.bincount(batch.y)[batch.y]).sum()

    return term(value)


def _squared_norm(gradients: Sequence[Tensor | None]) -> float:
    return sum(float(g.double().square().sum()) for g in gradients if g is not None)


def _with_head(base: Tree, head: Tree) -> Tree:
    """Return the base of one model, its buffers included, with the head of another."""
    entries = {name: head[name] if name.startswith("head.") else base[name] for name in base}
    return Tree(entries, base.model, base.untrained)

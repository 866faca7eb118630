"""FedMPR (Göksu and Pugeault, 2024).

Özgü Göksu and Nicolas Pugeault. Robust Federated Learning in the Face of Covariate Shift: A
Magnitude Pruning with Hybrid Regularization Framework for Enhanced Model Aggregation. Preprint,
2024. https://arxiv.org/abs/2412.15010

A reconstruction: the full text was not available. The strengths of dropout and noise, and where
they act, are assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Lt
from torch import Tensor, nn
from torch.nn import functional

from equipoise.client import Client
from equipoise.method import Method, NonNegative
from equipoise.records import Down, Up
from equipoise.task import Task
from equipoise.tree import Tree

BelowOne = Annotated[float, Ge(0), Lt(1)]


@dataclass(frozen=True)
class FedMPR(Method):
    """Train with dropout, noise and weight decay, and prune the smallest weights of every upload.

    Attributes:
        rho: Share rho of the weights of two or more dimensions that is set to zero in every
            upload. Assumed.
        dropout: Probability that an input of the last linear layer is dropped in training.
            Assumed.
        noise: Standard deviation of the noise after every ReLU in training. Assumed.
        weight_decay: Weight decay that is added to the experiment's. Assumed.
    """

    paper = (
        "Göksu and Pugeault, Robust Federated Learning in the Face of Covariate Shift: A "
        "Magnitude Pruning with Hybrid Regularization Framework, 2024"
    )
    family = "drift"
    year = 2024
    fairness = "none"
    passes = "E·T"
    reconstruction: ClassVar[bool] = True

    rho: BelowOne = 0.1
    dropout: BelowOne = 0.1
    noise: NonNegative = 0.1
    weight_decay: NonNegative = 1e-4

    def models(
        self, task: Task, others: Mapping[str, Callable[[], nn.Module]]
    ) -> Mapping[str, Callable[[], nn.Module]]:
        """Return the experiment's model with hooks that act in training only.

        Its parameters and their names stay.
        """
        if "model" not in others or not (self.dropout or self.noise):
            return {}

        def regularised() -> nn.Module:
            net = others["model"]()
            if self.noise:
                for module in _modules(net, nn.ReLU, "adds noise after", "noise"):
                    module.register_forward_hook(self._add_noise)
            if self.dropout:
                linear = _modules(net, nn.Linear, "drops inputs of the last", "dropout")
                linear[-1].register_forward_pre_hook(self._drop_inputs)
            return net

        return {"model": regularised}

    def _add_noise(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if not module.training:
            return output
        return output + self.noise * torch.randn_like(output)

    def _drop_inputs(self, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (functional.dropout(inputs[0], self.dropout, module.training),)

    def client(self, client: Client, down: Down) -> Up:
        """Train with the stronger weight decay and upload the pruned model."""
        model = client.load(down.model)
        client.fit(model, weight_decay=client.training.weight_decay + self.weight_decay)
        return Up(model=pruned(model.tree(), self.rho))


def _modules(net: nn.Module, kind: type[nn.Module], use: str, parameter: str) -> list[nn.Module]:
    """Return the modules of a kind.

    Raises:
        ValueError: If there is none.
    """
    modules = [module for module in net.modules() if isinstance(module, kind)]
    if not modules:
        raise ValueError(
            f"FedMPR {use} modules nn.{kind.__name__}, but the model has none; set {parameter}=0 "
            "or use such a module"
        )
    return modules


def pruned(tree: Tree, rho: float) -> Tree:
    """Return a tree with its smallest weights of two or more dimensions set to zero.

    Weights are compared over all layers.

    Args:
        tree: The weights.
        rho: The share of them that is set to zero, rounded down to whole weights.

    >>> tree = Tree({"w": torch.tensor([[3.0, -1.0], [2.0, -4.0]]), "b": torch.tensor([0.5])})
    >>> pruned(tree, 0.5)["w"].tolist()
    [[3.0, 0.0], [0.0, -4.0]]
    """
    names = [name for name in tree.trained if tree[name].ndim > 1]
    if not names:
        return tree
    flat = torch.cat([tree[name].reshape(-1) for name in names])
    count = math.floor(round(rho * len(flat), 6))  # 0.29 of 100 is 28.999... in floating point.
    # A rank, not a threshold: ties must not change the count.
    flat[flat.abs().argsort(stable=True)[:count]] = 0
    parts = torch.split(flat, [tree[name].numel() for name in names])
    zeroed = {name: part.reshape(tree[name].shape) for name, part in zip(names, parts, strict=True)}
    return Tree({**tree, **zeroed}, tree.model, tree.untrained)

"""Robust Federated Learning in the Face of Covariate Shift: A Magnitude Pruning with Hybrid Regularization Framework for Enhanced Model
Aggregation (FedMPR).

Özgü Göksu and Nicolas Pugeault. Preprint, 2024. https://arxiv.org/abs/2412.15010

A reconstruction: its full text was not at hand. Strengths of dropout and noise, and where they act, are assumed.
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
    """Clients train with dropout, noise and weight decay, and set their smallest weights to zero before the models are averaged."""

    paper = "Göksu and Pugeault, Robust Federated Learning in the Face of Covariate Shift: A Magnitude Pruning with Hybrid Regularization Framework, 2024"
    family, year, fairness, passes = "drift", 2024, "none", "E·T"
    reconstruction: ClassVar[bool] = True

    # share of the weights of two or more dimensions that is set to zero in every upload
    rho: BelowOne = 0.1
    dropout: BelowOne = 0.1  # chance that an input of the last linear layer is dropped in training
    noise: NonNegative = 0.1  # standard deviation of the noise behind every ReLU in training
    weight_decay: NonNegative = 1e-4  # added to the experiment's own

    def models(
        self, task: Task, others: Mapping[str, Callable[[], nn.Module]]
    ) -> Mapping[str, Callable[[], nn.Module]]:
        """The experiment's model with hooks that act in training only: its parameters and their names stay."""
        if "model" not in others or not (self.dropout or self.noise):
            return {}

        def regularised() -> nn.Module:
            net = others["model"]()
            rectifiers = [module for module in net.modules() if isinstance(module, nn.ReLU)]
            linear = [module for module in net.modules() if isinstance(module, nn.Linear)]
            if self.noise and not rectifiers:
                raise ValueError(
                    "FedMPR adds noise behind modules nn.ReLU, but the model has none; set noise=0 or use such modules"
                )
            if self.dropout and not linear:
                raise ValueError(
                    "FedMPR drops inputs of the last module nn.Linear, but the model has none; set dropout=0 or use such a module"
                )
            for module in rectifiers if self.noise else []:
                module.register_forward_hook(self._add_noise)
            if self.dropout:
                linear[-1].register_forward_pre_hook(self._drop_inputs)
            return net

        return {"model": regularised}

    def _add_noise(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output + self.noise * torch.randn_like(output) if module.training else output

    def _drop_inputs(self, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (functional.dropout(inputs[0], self.dropout, module.training),)

    def client(self, client: Client, down: Down) -> Up:
        model = client.load(down.model)
        client.fit(model, weight_decay=client.training.weight_decay + self.weight_decay)
        return Up(model=pruned(model.tree(), self.rho))


def pruned(tree: Tree, rho: float) -> Tree:
    """The tree with the share rho, rounded down, of its weights of two or more dimensions set to zero: the smallest ones, over all layers.

    >>> pruned(Tree({"w": torch.tensor([[3.0, -1.0], [2.0, -4.0]]), "b": torch.tensor([0.5])}), 0.5)["w"].tolist()
    [[3.0, 0.0], [0.0, -4.0]]
    """
    names = [name for name in tree.trained if tree[name].ndim > 1]
    if not names:
        return tree
    flat = torch.cat([tree[name].reshape(-1) for name in names])
    count = math.floor(round(rho * len(flat), 6))  # 0.29 of 100 is 28.999... in floating point
    # a rank, not a threshold: ties must not change the count
    flat[flat.abs().argsort(stable=True)[:count]] = 0
    parts = torch.split(flat, [tree[name].numel() for name in names])
    zeroed = {name: part.reshape(tree[name].shape) for name, part in zip(names, parts, strict=True)}
    return Tree({**tree, **zeroed}, tree.model, tree.untrained)

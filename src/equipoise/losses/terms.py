"""Loss terms, which are added and weighed as in the papers.

A term is a function of (outputs, batch), as in `supervised + 0.5 * distillation(logits)`. All terms
of a loss see the same forward pass. A term with weight 0 is not evaluated, so that `alpha = 0` is
plain training bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from equipoise.losses.distillation import distillation_loss
from equipoise.models import Model, Outputs
from equipoise.models.network import Network, evaluating
from equipoise.tree import Tree


@dataclass
class Batch:
    """Some training samples of a client.

    Attributes:
        x: The inputs.
        y: The targets.
        indices: Their positions in the client's training data.
        supervise: The loss of the task, from outputs and targets.
        epoch: The epoch of the fit.
        step: The step, counted over the whole fit.
        position: The step, counted within the epoch.
        noise: A generator for terms that draw random numbers.
    """

    x: Tensor
    y: Tensor
    indices: Tensor  # their positions in the client's training data
    supervise: Callable[[Tensor, Tensor], Tensor]  # the task's own loss
    epoch: int = 0
    step: int = 0  # counted over the whole fit
    position: int = 0  # counted within the epoch
    noise: torch.Generator | None = None  # for terms that draw random numbers


TermFunction = Callable[[Outputs, Batch], Tensor]


@dataclass(frozen=True)
class Loss:
    """A weighted sum of terms."""

    terms: tuple[tuple[float, TermFunction], ...] = field(default=())

    def __add__(self, other: Loss) -> Loss:
        return Loss(self.terms + other.terms)

    def __rmul__(self, weight: float) -> Loss:
        return Loss(tuple((weight * own, term) for own, term in self.terms if weight != 0))

    def __call__(self, outputs: Outputs, batch: Batch) -> Tensor:
        """Return the weighted sum of the terms."""
        total: Tensor | None = None
        for weight, term in self.terms:
            value = term(outputs, batch)
            value = value if weight == 1 else weight * value
            total = value if total is None else total + value
        # Nothing to minimise: a zero that still has a gradient, so that the caller's loop needs no
        # exception.
        return outputs.logits.sum() * 0 if total is None else total


def term(function: TermFunction) -> Loss:
    """Return a function of (outputs, batch) as a loss that can be added and weighed."""
    return Loss(((1.0, function),))


def supervised_value(outputs: Outputs, batch: Batch) -> Tensor:
    """Return the loss of the task on a batch."""
    return batch.supervise(outputs.logits, batch.y)


supervised = term(supervised_value)


def frozen_logits(teacher: Tensor | Model, batch: Batch) -> Tensor:
    """Return the logits of a frozen teacher on a batch.

    They are looked up by sample, or computed if inputs are random.

    Args:
        teacher: The result of `Client.teacher`.
        batch: The batch.
    """
    return (
        _looked_up(teacher, batch) if isinstance(teacher, Tensor) else _answered(teacher.net, batch)
    )


def frozen_features(teacher: Tensor | Model, batch: Batch) -> Tensor:
    """Return the features of a frozen teacher on a batch, one row per sample.

    Args:
        teacher: The result of `Client.feature_teacher`.
        batch: The batch.
    """
    features = (
        _looked_up(teacher, batch)
        if isinstance(teacher, Tensor)
        else _answered(cast(Network, teacher.net).features, batch)
    )
    return features.flatten(1)


def _looked_up(values: Tensor, batch: Batch) -> Tensor:
    return values.index_select(0, batch.indices).to(batch.x.device)


def _answered(net: nn.Module, batch: Batch) -> Tensor:
    with torch.no_grad(), evaluating(net):
        outputs: Tensor = net(batch.x)
    return outputs


@dataclass(frozen=True, eq=False)
class Distillation:
    """The term that `distillation` returns as a loss.

    Attributes:
        teacher: The result of `Client.teacher`.
        temperature: The temperature.
    """

    teacher: Tensor | Model
    temperature: float

    def __call__(self, outputs: Outputs, batch: Batch) -> Tensor:
        """Return the divergence of the student from the teacher on a batch."""
        target = frozen_logits(self.teacher, batch)
        if target.shape[1] == 1:
            return (outputs.logits - target).square().mean()
        result: Tensor = distillation_loss(outputs.logits, target, self.temperature)
        return result


@dataclass(frozen=True, eq=False)
class Proximity:
    """The term that `proximity` returns as a loss.

    Attributes:
        anchor: The parameters from which the distance is measured.
    """

    anchor: Tree

    def __call__(self, outputs: Outputs, batch: Batch) -> Tensor:
        """Return half the squared distance of the parameters to the anchor."""
        distances: list[Any] = [
            (parameter - self.anchor[name].to(parameter.device)).square().sum()
            for name, parameter in outputs.model.trained.items()
        ]
        return 0.5 * torch.stack(distances).sum()


def distillation(teacher: Tensor | Model, temperature: float = 1.0) -> Loss:
    """Return tau^2 times the batch mean of KL(teacher || student); squared error for one output.

    Args:
        teacher: The result of `Client.teacher`.
        temperature: The temperature tau.
    """
    return term(Distillation(teacher, temperature))


def proximity(anchor: Tree) -> Loss:
    """Return half the squared distance of the parameters to an anchor, as in FedProx and Ditto."""
    return term(Proximity(anchor))

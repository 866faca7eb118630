"""Losses of several clients with their gradients, by direct calls of torch's kernels.

A loss has direct kernels if it is a weighted sum of the supervised cross-entropy, the distillation
from stored outputs and the distance to an anchor, each at most once. Values and gradients have the
bits that autograd computes for one client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.losses.distillation import kl_divergence
from equipoise.losses.terms import Distillation, Loss, Proximity, supervised_value
from equipoise.training.direct import stacked_cross_entropy

_ONE = torch.ones(())


@dataclass(frozen=True)
class Objective:
    """A loss that has direct kernels.

    Attributes:
        weights: The kind and the weight of each term, in the order of their sum.
        distillation: The term of this kind, if there is one.
        proximity: The term of this kind, if there is one.
    """

    weights: tuple[tuple[str, float], ...]
    distillation: Distillation | None = None
    proximity: Proximity | None = None

    @classmethod
    def of(cls, loss: Loss) -> Objective | None:
        """Return the objective of a loss; None if it has other terms, or two of a kind.

        Args:
            loss: The loss of a fit.
        """
        weights: dict[str, float] = {}
        distillation = None
        proximity = None
        for weight, term in loss.terms:
            if term is supervised_value:
                kind = "supervised"
            elif isinstance(term, Distillation) and isinstance(term.teacher, Tensor):
                kind = "distillation"
                distillation = term
            elif isinstance(term, Proximity):
                kind = "proximity"
                proximity = term
            else:
                return None
            if kind in weights:
                return None
            weights[kind] = weight
        if not weights.keys() - {"proximity"}:
            return None  # Nothing depends on the outputs.
        return cls(tuple(weights.items()), distillation, proximity)

    @property
    def form(self) -> tuple[object, ...]:
        """The part that is equal for all clients of a stack."""
        temperature = None if self.distillation is None else self.distillation.temperature
        return (self.weights, temperature)


class StackedLoss:
    """The losses of several clients whose objectives have one form.

    Args:
        objectives: The objective of each client.
        names: The names of the parameters.
        samples: The largest number of samples of a client.
    """

    def __init__(self, objectives: Sequence[Objective], names: Sequence[str], samples: int) -> None:
        self._weights = dict(objectives[0].weights)
        self._teachers: list[Tensor] = []
        self._targets = torch.empty(0)
        self._temperature = 1.0
        self._anchors: list[Tensor] = []
        distillations = [own.distillation for own in objectives if own.distillation is not None]
        if distillations:
            self._teachers = [_plain(own.teacher) for own in distillations]
            self._temperature = distillations[0].temperature
            outputs = self._teachers[0].shape[1]
            self._targets = torch.zeros(len(objectives), samples, outputs)
        anchors = [own.proximity.anchor for own in objectives if own.proximity is not None]
        if anchors:
            for name in names:
                self._anchors.append(torch.stack([_plain(anchor[name]) for anchor in anchors]))

    def shuffle(self, client: int, positions: Tensor) -> None:
        """Arrange the stored outputs of a client's teacher in the order of an epoch.

        Args:
            client: The position of the client.
            positions: The positions of its samples in this order.
        """
        if self._teachers:
            targets = self._teachers[client].index_select(0, positions)
            self._targets[client, : len(positions)] = targets

    def of_outputs(
        self, outputs: Tensor, y: Tensor, clients: slice, batch: slice
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the values of the terms of each client, and the gradient of the outputs.

        Args:
            outputs: The outputs, of shape (clients, batch, classes).
            y: The classes, of shape (clients, batch).
            clients: The clients.
            batch: The positions of the batch in the order of the epoch.
        """
        values = {}
        gradients = []
        if "supervised" in self._weights:
            scale = self._scale("supervised")
            values["supervised"], gradient = stacked_cross_entropy(outputs, y, scale)
            gradients.append(gradient)
        if self._teachers:
            scale = self._scale("distillation")
            values["distillation"], gradient = _distillation(
                outputs, self._targets[clients, batch], self._temperature, scale
            )
            gradients.append(gradient)
        total = gradients[0]
        for gradient in gradients[1:]:
            total = total + gradient
        return values, total

    def of_parameters(
        self, parameters: Sequence[Tensor], clients: slice
    ) -> tuple[Tensor, list[Tensor]] | None:
        """Return the proximal term of each client and its gradients; None without this term.

        Args:
            parameters: Stacks of the parameters of these clients.
            clients: The clients.
        """
        if not self._anchors:
            return None
        anchors = [stack[clients] for stack in self._anchors]
        return _proximity(parameters, anchors, self._scale("proximity"))

    def total(self, values: dict[str, Tensor]) -> list[float]:
        """Return the loss of each client from the values of its terms."""
        total: Tensor | None = None
        for kind, weight in self._weights.items():
            value = values[kind] if weight == 1 else weight * values[kind]
            total = value if total is None else total + value
        assert total is not None
        losses: list[float] = total.tolist()
        return losses

    def _scale(self, kind: str) -> Tensor:
        """Return the gradient of the loss with respect to a term."""
        weight = self._weights[kind]
        return _ONE if weight == 1 else _ONE * weight


def _plain(tensor: Tensor | object) -> Tensor:
    """Return a tensor of single precision.

    Raises:
        TypeError: If it is another one, which autograd would convert.
    """
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.float32:
        raise TypeError(f"expected a tensor of type float32, got {type(tensor).__name__}")
    return tensor


def _distillation(
    outputs: Tensor, targets: Tensor, temperature: float, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the distillation loss of each client, and the gradient of the outputs.

    Args:
        outputs: The outputs, of shape (clients, batch, classes).
        targets: Those of the teachers, of the same shape.
        temperature: The temperature.
        scale: The gradient of the loss with respect to this term.
    """
    if outputs.shape != targets.shape:
        raise ValueError(f"expected targets {tuple(outputs.shape)}, got {tuple(targets.shape)}")
    student = outputs / temperature
    teacher = targets / temperature
    divergences: Tensor = kl_divergence(teacher, student)
    values = divergences.mean(1) * temperature**2
    # The gradient of a sample is softmax(student) - softmax(teacher), written as autograd does.
    share = scale * temperature**2 / outputs.shape[1]
    expected = torch.exp(teacher - torch.logsumexp(teacher, -1, keepdim=True))
    predicted = torch.exp(student - torch.logsumexp(student, -1, keepdim=True))
    gradient = (share * predicted + -(share * expected)) / temperature
    return values, gradient


def _proximity(
    parameters: Sequence[Tensor], anchors: Sequence[Tensor], scale: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Return half the squared distance to an anchor of each client, and the gradients.

    Args:
        parameters: Stacks of parameters.
        anchors: Stacks of the same shapes.
        scale: The gradient of the loss with respect to this term.
    """
    distances = []
    gradients = []
    for parameter, anchor in zip(parameters, anchors, strict=True):
        difference = parameter - anchor
        distances.append(difference.square().flatten(1).sum(1))
        gradients.append(scale * 0.5 * (2 * difference))
    return 0.5 * torch.stack(distances, 1).sum(1), gradients

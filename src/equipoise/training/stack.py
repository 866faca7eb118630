"""Stacks: fits of several clients in one computation, for networks with small matrix products.

A small product takes less time than its call. The parameters of several clients are stacked, so
that one batched product computes a layer of all of them. Under MKL's reproducible mode each client
gets the bits that it gets alone.

A step cannot be halted at its fit, but it can be repeated, since it depends on its request only. So
a step is executed until its first fit, which is planned (`FitPlanned`). The planned fits of several
clients are trained here. Then each step is executed again, and its fit returns what was trained.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from equipoise.data.samples import Samples
from equipoise.training.dense import (
    LossGradient,
    gradients_of,
    relu_backward,
    stacked_cross_entropy,
)
from equipoise.training.progress import Progress
from equipoise.training.settings import Training
from equipoise.training.steps import Stepper

log = logging.getLogger("equipoise")

# torch computes batched products below this number of multiplications by another kernel.
_FEWEST_MULTIPLICATIONS = 400
# Above this number, a product takes so much longer than its call that a stack gains nothing.
_MOST_MULTIPLICATIONS = 2**22
_MOST_NUMBERS = 2**20  # of the inputs of one client, which are copied into the stack


@dataclass(eq=False)
class PlannedFit:
    """A supervised fit of a fully connected network, and its result once it is trained.

    Attributes:
        names: The names of the parameters.
        tensors: The parameters: weight and bias of each layer. Trained in place of the network's.
        samples: The training data.
        positions: The samples to use.
        order: The random stream of the batch order.
        training: The settings.
        lr: The learning rate.
        loss: The loss and its gradient.
        progress: The steps and losses of the trained fit.
        memory: The optimiser's memory after it.
        seconds: The time that the client's own share took.
        trained: True once the fit is trained.
    """

    names: list[str]
    tensors: list[Tensor]
    samples: Samples
    positions: Tensor
    order: torch.Generator
    training: Training
    lr: float
    loss: LossGradient
    progress: Progress = field(default_factory=Progress)
    memory: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    trained: bool = False

    @property
    def batches(self) -> int:
        """The number of full batches in an epoch."""
        return len(self.positions) // self.training.batch

    @property
    def key(self) -> tuple[Any, ...]:
        """The shapes and settings that the fits of one stack have in common."""
        shapes = tuple(tensor.shape for tensor in self.tensors)
        # The setting of the loss may be a mapping, which has no hash; its function is compared.
        settings = tuple(value for name, value in self.training if name != "loss")
        return (shapes, self.lr, self.loss, settings)

    def can_be_stacked(self, numbers: int) -> bool:
        """Return True if a stack trains this fit, with the bits that it has alone.

        Args:
            numbers: The numbers in one input.
        """
        training = self.training
        if training.steps or len(self.positions) * numbers > _MOST_NUMBERS:
            return False
        largest = max(weight.numel() for weight in self.tensors[::2])
        if training.batch * largest > _MOST_MULTIPLICATIONS:
            return False
        batch = min(training.batch, len(self.positions))
        return _has_same_bits(batch, self.tensors)


@dataclass
class Deferral:
    """Order to a client: plan the first fit, or return the one that was trained.

    Attributes:
        fit: The trained fit; None if it shall be planned.
    """

    fit: PlannedFit | None = None


class FitPlanned(BaseException):
    """Ends a step at a fit that is trained in a stack.

    It is no Exception, so that a method that catches those does not catch this.

    Attributes:
        fit: The planned fit.
    """

    def __init__(self, fit: PlannedFit) -> None:
        super().__init__("a fit was planned")
        self.fit = fit


def _has_same_bits(batch: int, parameters: Sequence[Tensor]) -> bool:
    """Return True if products of a stack have the bits of products of one client.

    torch has other kernels for very small batched products, and for products with a vector.

    Args:
        batch: The number of samples.
        parameters: The weight and bias of each layer, or stacks of them.
    """
    if batch < 2:
        return False
    for weight in parameters[::2]:
        outputs, inputs = weight.shape[-2:]
        if min(outputs, inputs) < 2 or batch * outputs * inputs < _FEWEST_MULTIPLICATIONS:
            return False
    return True


def train_stacks(fits: Sequence[PlannedFit]) -> None:
    """Train fits that have the same form together; others stay untrained.

    Args:
        fits: Fits of several clients.
    """
    groups: dict[tuple[Any, ...], list[PlannedFit]] = {}
    for fit in fits:
        groups.setdefault(fit.key, []).append(fit)
    for group in groups.values():
        if len(group) > 1:
            _train(group)


def _train(fits: list[PlannedFit]) -> None:
    began = time.perf_counter()
    # The clients that still have full batches are always the first ones.
    fits = sorted(fits, key=lambda fit: -len(fit.positions))
    try:
        with torch.no_grad():
            stack = _Stack(fits)
            for _ in range(fits[0].training.epochs):
                stack.train_epoch()
            stack.hand_back()
    except Exception as error:  # Each client is trained alone, and its own error is reported.
        log.debug("clients are trained alone: %s", error)
        return
    seconds = time.perf_counter() - began
    steps = sum(fit.progress.steps for fit in fits)
    for fit in fits:
        fit.seconds += seconds * fit.progress.steps / steps
        fit.trained = True


class _Stack:
    """Parameters and data of several clients, one behind another.

    Args:
        fits: Fits of one form, those with most samples first.
    """

    def __init__(self, fits: list[PlannedFit]) -> None:
        self.fits = fits
        self.training = fits[0].training
        self.loss = fits[0].loss
        first = fits[0]
        self.parameters = [
            torch.stack([fit.tensors[position] for fit in fits])
            for position in range(len(first.tensors))
        ]
        self.progress = [Progress() for _ in fits]
        # Parts of the stacks: what is trained alone changes them in place.
        self._own = [[stack[client] for stack in self.parameters] for client in range(len(fits))]
        self.steppers = []
        for own in self._own:
            tensors = dict(zip(first.names, own, strict=True))
            self.steppers.append(Stepper(tensors, self.training, first.lr))
        self._x = torch.zeros(len(fits), len(first.positions), first.tensors[0].shape[1])
        self._y = torch.zeros(len(fits), len(first.positions), dtype=torch.int64)

    def train_epoch(self) -> None:
        """Train every client for one epoch."""
        self._shuffle()
        size = self.training.batch
        for step in range(self.fits[0].batches):
            active = sum(fit.batches > step for fit in self.fits)
            self._step(slice(0, active), slice(step * size, (step + 1) * size))
        # Clients of one size end with short batches of one size, and are neighbours.
        first = 0
        for samples, clients in groupby(self.fits, lambda fit: len(fit.positions)):
            last = first + len(list(clients))
            if samples % size:
                self._step(slice(first, last), slice(samples - samples % size, samples))
            first = last

    def _shuffle(self) -> None:
        for client, fit in enumerate(self.fits):
            count = len(fit.positions)
            shuffled = fit.positions[torch.randperm(count, generator=fit.order)]
            x, y = fit.samples.at(shuffled)
            self._x[client, :count] = x.flatten(1)
            self._y[client, :count] = y

    def _step(self, clients: slice, batch: slice) -> None:
        """Take a step of some clients, each on a batch of its own samples."""
        size = batch.stop - batch.start
        together = clients.stop - clients.start > 1 and _has_same_bits(size, self.parameters)
        if together:
            self._step_together(clients, batch)
            return
        for client in range(clients.start, clients.stop):
            self._step_alone(client, batch)

    def _step_together(self, clients: slice, batch: slice) -> None:
        parameters = [stack[clients] for stack in self.parameters]
        losses, gradients = _stacked_gradients(
            parameters, self._x[clients, batch], self._y[clients, batch]
        )
        if self.training.plain_sgd:
            self.steppers[0].move(parameters, gradients, {})
        else:  # The kernels of other rules round the last numbers of a tensor in another way.
            own_gradients = zip(*(gradient.unbind() for gradient in gradients), strict=True)
            for stepper, own in zip(self.steppers[clients], own_gradients, strict=True):
                stepper.apply_gradients(list(own))
        for progress, loss in zip(self.progress[clients], losses, strict=True):
            progress.add(batch.stop - batch.start, loss)

    def _step_alone(self, client: int, batch: slice) -> None:
        x, y = self._x[client, batch], self._y[client, batch]
        value, gradients = gradients_of(self._own[client], x, y, self.loss)
        self.steppers[client].apply_gradients(gradients)
        self.progress[client].add(len(y), value.item())

    def hand_back(self) -> None:
        """Give each fit its parameters, its progress and its optimiser's memory."""
        for client, fit in enumerate(self.fits):
            fit.tensors = self._own[client]
            fit.progress = self.progress[client]
            fit.memory = self.steppers[client].state()


def _stacked_gradients(
    parameters: list[Tensor], x: Tensor, y: Tensor
) -> tuple[list[float], list[Tensor]]:
    """Return the cross-entropy of each client over its batch, and the stacked gradients.

    Args:
        parameters: Stacks of weights and biases, layer after layer.
        x: The inputs, of shape (clients, batch, columns).
        y: The classes, of shape (clients, batch).
    """
    weights = parameters[::2]
    inputs = _stacked_inputs(x, weights, parameters[1::2])
    losses, gradient = stacked_cross_entropy(inputs.pop(), y)
    gradients: list[Tensor] = []  # from the last layer to the first, bias before weight
    for position in range(len(weights) - 1, -1, -1):
        gradients.append(gradient.sum(1))
        gradients.append(torch.bmm(gradient.transpose(1, 2), inputs[position]))
        if position:
            gradient = torch.bmm(gradient, weights[position])
            gradient = relu_backward(gradient, inputs[position], 0)
    gradients.reverse()
    return losses, gradients


def _stacked_inputs(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> list[Tensor]:
    """Return the inputs of all layers, and the outputs of the last one."""
    values = [x]
    last = len(weights) - 1
    for position, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
        if position < last:
            x = torch.relu_(x)
        values.append(x)
    return values

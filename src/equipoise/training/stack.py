"""Stacks: fits of several clients in one computation, for networks with small matrix products.

A small product takes less time than its call. The parameters of several clients are stacked, so
that one batched product computes a layer of all of them. Under MKL's reproducible mode each client
gets the bits that it gets alone.

A step cannot be halted at a fit, but it can be repeated, since it depends on its request only. So
a step is executed until its first fit, which is planned (`FitPlanned`). The planned fits of several
clients are trained here. Then each step is executed again, and its fit returns what was trained, up
to the next fit or to its end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from equipoise.data.samples import Samples
from equipoise.training.direct import gradients_of_layers, inputs_of_layers, relu_backward
from equipoise.training.objective import Objective, StackedLoss
from equipoise.training.progress import Progress
from equipoise.training.settings import Training
from equipoise.training.steps import Correction, Stepper
from equipoise.tree import Tree

log = logging.getLogger("equipoise")

# torch computes batched products below this number of multiplications by another kernel.
_FEWEST_MULTIPLICATIONS = 400
# Above this number, a product takes so much longer than its call that a stack gains nothing.
_MOST_MULTIPLICATIONS = 2**22
_MOST_NUMBERS = 2**19  # of the inputs of one client, which are copied: 50 MB for 25 clients


@dataclass(eq=False)
class PlannedFit:
    """A fit of a fully connected network, and its result once it is trained.

    Attributes:
        names: The names of the parameters.
        tensors: The parameters: weight and bias of each layer. Trained in place of the network's.
        samples: The training data.
        positions: The samples to use.
        order: The random stream of the batch order.
        training: The settings.
        lr: The learning rate.
        objective: The loss.
        correction: The hook of the gradient, if there is one.
        memory: The optimiser's memory before the fit; after it, once it is trained.
        progress: The steps and losses of the trained fit.
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
    objective: Objective
    correction: Correction | None = None
    memory: Mapping[str, Any] | None = None
    progress: Progress = field(default_factory=Progress)
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
        hook = self.correction or Correction()
        has_terms = (hook.minus is not None, hook.plus is not None)
        return (shapes, self.lr, self.objective.form, has_terms, settings)

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
    """Results of a step that is executed several times, so that none is computed twice.

    Attributes:
        plans: True if the next fit that is not among the results shall be planned.
        results: The trained fits and the outputs of models, in the order of the step.
    """

    plans: bool = True
    results: list[PlannedFit | Tensor] = field(default_factory=list)
    _position: int = 0

    def repeat(self) -> None:
        """Begin the step again."""
        self._position = 0

    def trained_fit(self) -> PlannedFit | None:
        """Return the trained fit that comes next in the step; None if it is not trained yet."""
        result = self._next()
        if isinstance(result, Tensor):
            raise _not_repeated()
        return result

    def outputs(self, compute: Callable[[], Tensor]) -> Tensor:
        """Return the outputs of a model that come next in the step.

        Args:
            compute: Returns them, at the first time.
        """
        result = self._next()
        if result is None:
            result = compute()
            self.results.append(result)
            self._position += 1
        if not isinstance(result, Tensor):
            raise _not_repeated()
        return result.clone()  # A method may change its outputs.

    def _next(self) -> PlannedFit | Tensor | None:
        if self._position == len(self.results):
            return None
        self._position += 1
        return self.results[self._position - 1]


def _not_repeated() -> RuntimeError:
    return RuntimeError(
        "expected the step to do the same when it is repeated, but it trained or evaluated "
        "models in another order; let it depend on its client and its message only"
    )


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
        first = fits[0]
        samples = len(first.positions)
        self.parameters = [
            torch.stack([fit.tensors[position] for fit in fits])
            for position in range(len(first.tensors))
        ]
        self.loss = StackedLoss([fit.objective for fit in fits], first.names, samples)
        self.progress = [Progress() for _ in fits]
        # Parts of the stacks: what is trained alone changes them in place.
        self._own = [[stack[client] for stack in self.parameters] for client in range(len(fits))]
        self.steppers = []
        for fit, own in zip(fits, self._own, strict=True):
            tensors = dict(zip(first.names, own, strict=True))
            stepper = Stepper(tensors, self.training, first.lr, fit.memory, fit.correction)
            self.steppers.append(stepper)
        self._x = torch.zeros(len(fits), samples, first.tensors[0].shape[1])
        self._y = torch.zeros(len(fits), samples, dtype=torch.int64)
        corrections = [fit.correction for fit in fits if fit.correction is not None]
        self._minus = _stacked_trees([own.minus for own in corrections], first.names)
        self._plus = _stacked_trees([own.plus for own in corrections], first.names)

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
            self.loss.shuffle(client, shuffled)

    def _step(self, clients: slice, batch: slice) -> None:
        """Take a step of some clients, each on a batch of its own samples."""
        if _has_same_bits(batch.stop - batch.start, self.parameters):
            self._step_together(clients, batch)
            return
        for client in range(clients.start, clients.stop):
            self._step_together(slice(client, client + 1), batch)

    def _step_together(self, clients: slice, batch: slice) -> None:
        parameters = [stack[clients] for stack in self.parameters]
        x = self._x[clients, batch]
        y = self._y[clients, batch]
        inputs = _inputs_of_layers(x, parameters)
        values, gradient = self.loss.of_outputs(inputs.pop(), y, clients, batch)
        gradients = _gradients_of_layers(gradient, inputs, parameters[::2])
        distance = self.loss.of_parameters(parameters, clients)
        if distance is not None:
            values["proximity"], pulls = distance
            gradients = list(torch._foreach_add(gradients, pulls))
        self._move(clients, parameters, gradients)
        for progress, loss in zip(self.progress[clients], self.loss.total(values), strict=True):
            progress.add(batch.stop - batch.start, loss)

    def _move(self, clients: slice, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Correct the gradients of some clients and step along them."""
        if self.training.plain_sgd:
            if self._minus:
                minus = [stack[clients] for stack in self._minus]
                gradients = list(torch._foreach_sub(gradients, minus))
            if self._plus:
                plus = [stack[clients] for stack in self._plus]
                gradients = list(torch._foreach_add(gradients, plus))
            self.steppers[0].move(parameters, gradients, {})
            return
        # The kernels of other rules round the last numbers of a tensor in another way.
        own_gradients = zip(*(gradient.unbind() for gradient in gradients), strict=True)
        for stepper, own in zip(self.steppers[clients], own_gradients, strict=True):
            stepper.apply_gradients(list(own))

    def hand_back(self) -> None:
        """Give each fit its parameters, its progress and its optimiser's memory."""
        for client, fit in enumerate(self.fits):
            fit.tensors = self._own[client]
            fit.progress = self.progress[client]
            fit.memory = self.steppers[client].state()


def _stacked_trees(trees: Sequence[Tree | None], names: Sequence[str]) -> list[Tensor]:
    """Return a stack per name; none if there are no trees."""
    present = [tree for tree in trees if tree is not None]
    if not present:
        return []
    return [torch.stack([tree[name] for tree in present]) for name in names]


def _inputs_of_layers(x: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """Return the inputs of all layers, and the outputs of the last one.

    Args:
        x: The inputs, of shape (clients, batch, columns).
        parameters: Stacks of weights and biases, layer after layer.
    """
    if len(x) == 1:
        return [values.unsqueeze(0) for values in inputs_of_layers(x[0], _first(parameters))]
    values = [x]
    last = parameters[-2]
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        x = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
        if weight is not last:
            x = torch.relu_(x)
        values.append(x)
    return values


def _gradients_of_layers(
    gradient: Tensor, inputs: list[Tensor], weights: list[Tensor]
) -> list[Tensor]:
    """Return the stacked gradients of weights and biases, layer after layer.

    Args:
        gradient: The gradient of the outputs, of shape (clients, batch, classes).
        inputs: The inputs of the layers.
        weights: Stacks of their weights.
    """
    if len(gradient) == 1:
        _, alone = gradients_of_layers(gradient[0], _first(inputs), _first(weights))
        return [values.unsqueeze(0) for values in alone]
    gradients: list[Tensor] = []  # from the last layer to the first, bias before weight
    for position in range(len(weights) - 1, -1, -1):
        gradients.append(gradient.sum(1))
        gradients.append(torch.bmm(gradient.transpose(1, 2), inputs[position]))
        if position:
            gradient = torch.bmm(gradient, weights[position])
            gradient = relu_backward(gradient, inputs[position], 0)
    gradients.reverse()
    return gradients


def _first(stacks: list[Tensor]) -> list[Tensor]:
    """Return the values of the first client."""
    return [stack[0] for stack in stacks]

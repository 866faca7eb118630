"""The client as a method sees it: its data, its state between rounds, and the training loop.

`Client.fit` is the only training loop of the package.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.data import augment
from equipoise.data.samples import Samples
from equipoise.losses.terms import Batch, Loss, supervised
from equipoise.models import Model, Outputs
from equipoise.records import plain
from equipoise.streams import Turn, default_generator, number, torch_stream
from equipoise.training import (
    Correction,
    GradientHook,
    Stepper,
    Training,
    backward,
    minimise,
)
from equipoise.training.direct import DirectNetwork, LossGradient, loss_gradient
from equipoise.training.objective import Objective
from equipoise.training.progress import Progress
from equipoise.training.stack import Deferral, FitPlanned, PlannedFit
from equipoise.training.workbench import Workbench
from equipoise.tree import Tree

_READ_TOGETHER = 2**20  # numbers of inputs that are read from the data at once


@dataclass(frozen=True)
class Inputs:
    """A transform of the inputs of networks.

    Attributes:
        train: The transform of training batches; it may draw random numbers.
        other: The transform everywhere else. A torch module with its constants as buffers can
            be exported together with a trained model.
        random: False if `train` always does the same to a sample.
    """

    train: Callable[[Tensor, torch.Generator], Tensor]
    other: Callable[[Tensor], Tensor]
    random: bool = True


@dataclass(frozen=True)
class FitResult:
    """The result of `Client.fit`.

    Attributes:
        steps: The number of optimiser steps.
        loss: The mean loss of the first model over all samples visited.
        skipped: The number of batches of one sample that a batch norm could not take.
        memory: The state of the optimiser, which a later fit can continue with.
    """

    steps: int
    loss: float
    skipped: int
    memory: dict[str, Any]


class ClientState(MutableMapping[str, Any]):
    """The state of a client between rounds.

    Changes count once the server has accepted the reply. Keys with a leading underscore are
    dropped at the end of the round.
    """

    def __init__(self, values: Mapping[str, Any], whole: ClientState | None = None) -> None:
        self._values = dict(values)
        self.whole = whole or self  # of a guest: the state of the whole composition
        self.changed = False

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        value = plain(value, f"client.state[{name!r}]")
        self._values[name] = value
        self.changed = True

    def __delitem__(self, name: str) -> None:
        del self._values[name]
        self.changed = True

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Client:
    """One data holder that executes one request.

    Methods receive a client; they never create one.

    Attributes:
        id: The client's name.
        round: The current round, from 1.
        rounds: The number of rounds of the run.
        task: Shape, classes and kind of the task.
        training: The training settings of the experiment.
        lr: The learning rate of this round.
        state: What the client remembers between rounds, see `ClientState`.
        inputs: The method's transform of inputs, or None.
        steps: The optimiser steps taken in this request.
        skipped: The batches skipped in this request.
    """

    def __init__(
        self,
        bench: Workbench,
        id: str,
        round: int,
        rounds: int,
        state: Mapping[str, Any],
        attempt: int = 0,
        deferral: Deferral | None = None,
    ) -> None:
        self.id, self.round, self.rounds, self.attempt = id, round, rounds, attempt
        self._bench = bench.without_data
        # Read on first use; as in `Samples`, functions do not show the data of others.
        self._sources: dict[str, Callable[[], Samples]] = {}
        if bench.federation is not None:
            self._sources["train"] = lambda: bench.part(id, "train")
            self._sources["validation"] = lambda: bench.part(id, "validation")
        self._own: dict[str, Samples] = {}
        self._deferral = deferral
        self._has_computed = False
        self.task, self.training, self.metrics = bench.task, bench.training, bench.metrics
        # After the last round the learning rate stays that of the last round.
        self.lr = bench.training.rate(min(round, rounds))
        self.state = ClientState(state)
        self.inputs: Inputs | None = None
        self._on_all = False
        self.steps = 0
        self.skipped = 0

    @property
    def device(self) -> str:
        """The torch device of networks."""
        return self._bench.device

    @property
    def train(self) -> Samples:
        """The training data; within `training_on_all` also the validation data."""
        if self._on_all:
            return self._part("train").with_(self._part("validation"))
        return self._part("train")

    @property
    def validation(self) -> Samples:
        """The validation data."""
        return self._part("validation")

    def _part(self, name: str) -> Samples:
        if name not in self._sources:
            raise RuntimeError(
                f"client {self.id}: expected {name} data in this process, but none are loaded"
            )
        if name not in self._own:
            self._own[name] = self._sources[name]()
        return self._own[name]

    @contextmanager
    def training_on_all(self, active: bool = True) -> Iterator[None]:
        """Add the validation data to the training data inside a ``with`` block.

        For models that are trained after the validation data have been used to select.

        Args:
            active: False changes nothing.
        """
        before = self._on_all
        self._on_all = before or active
        try:
            yield
        finally:
            self._on_all = before

    @contextmanager
    def guest_state(self, owner: str) -> Iterator[None]:
        """Make `state` the own state of a guest of a composition inside a ``with`` block."""
        whole = self.state
        self.state = ClientState(whole.get(owner, {}), whole)
        try:
            yield
            if self.state.changed:
                whole[owner] = dict(self.state)
        finally:
            self.state = whole

    @contextmanager
    def host_state(self) -> Iterator[None]:
        """Make `state` the state of the whole composition inside a ``with`` block."""
        branch, self.state = self.state, self.state.whole
        try:
            yield
        finally:
            self.state = branch

    def _names(self, purpose: str) -> tuple[str | int, ...]:
        # A round that a kill cut off is repeated bit for bit: the attempt is part of the name only
        # if an earlier attempt was aborted.
        attempt = (f"attempt {self.attempt}",) if self.attempt else ()
        return ("client", self.round, *attempt, self.id, purpose)

    def stream(self, purpose: str) -> torch.Generator:
        """Return a generator that depends on seed, round, client and purpose only.

        Args:
            purpose: A name; the same name gives the same numbers.
        """
        return torch_stream(self._bench.seed, *self._names(purpose))

    def seed(self, purpose: str) -> int:
        """Return an integer seed that depends on seed, round, client and purpose only."""
        return number(self._bench.seed, *self._names(purpose))

    def common_stream(self, *purpose: str | int) -> torch.Generator:
        """Return a generator that is the same at every client and in every round."""
        return torch_stream(self._bench.seed, *purpose)

    def initial(self, model: str = "model") -> Tree:
        """Return the initial weights of a model, in the client's own architecture if it has one."""
        return self._bench.initial(self._bench.key(model, self.id))

    def load(self, tree: Tree | None, model: str = "model") -> Model:
        """Return a network with the given weights.

        Args:
            tree: Parameters and buffers; None takes the initial weights.
            model: The name of the model to initialise if `tree` is None.
        """
        if tree is None:
            return self._bench.take(self._bench.key(model, self.id))
        return self._bench.take(tree.model, tree)

    def fit(
        self,
        model: Model | Sequence[Model],
        loss: Loss | Sequence[Loss] = supervised,
        *,
        on: Tensor | None = None,
        gradient: GradientHook | None = None,
        memory: Mapping[str, Any] | None = None,
        purpose: str = "batches",
        after_epoch: Callable[[int], None] | None = None,
        **changes: Any,
    ) -> FitResult:
        """Train one model, or several on the same batches, each with its own loss.

        Args:
            model: The model to train, or several.
            loss: Its loss, or one for each model; the supervised loss of the task by default.
            on: A mask or the positions of the samples to use; all training data by default.
            gradient: A function ``(name, gradient) -> gradient``, applied before clipping.
            memory: The state of the optimiser, as an earlier fit returned it.
            purpose: The name of the random stream of the batch order. Two fits with one purpose
                see the same batches.
            after_epoch: A function of the number of epochs so far, called after each; it may read
                the models.
            **changes: Training settings for this fit, such as ``lr``, ``batch``, ``epochs``,
                ``steps``, ``clip`` or ``optimiser``.

        Returns:
            Steps, mean loss, skipped batches and the state of the optimiser.
        """
        models = [model] if isinstance(model, Model) else list(model)
        losses = [loss] if isinstance(loss, Loss) else list(loss)
        trained = self._deferral.trained_fit() if self._deferral is not None else None
        if trained is not None:
            return self._trained_in_stack(models[0], trained)
        training = self.training.changed(changes) if changes else self.training
        samples = self.train
        positions = _positions(on, len(samples))
        lr = changes.get("lr", self.lr)
        order, noise = self.stream(purpose), self.stream(f"{purpose} inputs")
        if len(models) == 1 and after_epoch is None and self._plans:
            self._plan(models[0], losses[0], positions, order, training, lr, gradient, memory)
        self._has_computed = True
        takes_single = all(m.takes_single for m in models)
        steppers = _steppers(models, training, lr, memory, gradient)
        done = Progress()
        with default_generator(self._bench.seed, *self._names(f"{purpose} torch")):
            step = self._step_of(models, losses, steppers)
            while len(positions) and not done.is_over(training):
                steps_before = done.steps
                shuffled = positions[torch.randperm(len(positions), generator=order)]
                batches = self._batches_of(samples, shuffled, training.batch)
                for position, (chosen, x, y) in enumerate(batches):
                    size = chosen.shape[0]
                    if size == 1 and not takes_single:
                        done.skipped += 1
                        continue
                    x = self._training_inputs(x.to(self.device), noise)
                    y = y.to(self.device)
                    supervise = self._bench.supervise
                    batch = Batch(x, y, chosen, supervise, done.epoch, done.steps, position, noise)
                    done.add(size, step(batch))
                    if training.steps and done.steps >= training.steps:
                        break
                done.epoch += 1
                if after_epoch is not None:
                    after_epoch(done.epoch)
                if done.steps == steps_before:
                    break  # Every batch was skipped: more epochs would not help.
        self.steps, self.skipped = self.steps + done.steps, self.skipped + done.skipped
        return FitResult(done.steps, done.mean_loss, done.skipped, _optimiser_state(steppers))

    def _batches_of(
        self, samples: Samples, positions: Tensor, size: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield positions, inputs and targets of batches; several small ones are read together."""
        numbers = max(1, math.prod(self.task.shape))
        together = max(1, _READ_TOGETHER // (size * numbers))
        for read in positions.unsafe_split(size * together):
            x, y = samples.at(read)
            # `unsafe_split` is `split` without its checks for views in autograd, and much faster.
            yield from zip(
                read.unsafe_split(size), x.unsafe_split(size), y.unsafe_split(size), strict=True
            )

    def _step_of(
        self, models: list[Model], losses: list[Loss], steppers: list[Stepper]
    ) -> Callable[[Batch], float]:
        """Return the function that takes one step on a batch and returns the first model's loss."""
        network, gradient_of = self._direct_network(models, losses)
        if network is not None and gradient_of is not None:
            return self._direct_step(network, gradient_of, models[0], steppers[0])
        for model in models:
            model.net.train()
        if len(models) == 1:
            return partial(self._single_step, models[0], losses[0], steppers[0])
        # With dropout, each model draws the numbers that it would draw alone.
        turns = [Turn() for _ in models]
        return partial(self._joint_step, models, losses, steppers, turns)

    def _direct_network(
        self, models: list[Model], losses: list[Loss]
    ) -> tuple[DirectNetwork | None, LossGradient | None]:
        """Return the network and the gradient of its loss if they need no autograd, else None."""
        is_supervised = len(models) == 1 and losses[0] is supervised
        if not is_supervised or self.training.precision != "float32":
            return None, None
        return DirectNetwork.of(models[0]), loss_gradient(self._bench.supervise)

    @property
    def _plans(self) -> bool:
        """True if the next fit of this step may be trained in a stack."""
        if self._deferral is None or not self._deferral.plans:
            return False
        has_raw_inputs = self.inputs is None and not self._bench.augment
        is_cross_entropy = self._bench.supervise is F.cross_entropy
        if not has_raw_inputs or not is_cross_entropy or self.training.precision != "float32":
            return False
        # What a step has computed before a fit would be computed again.
        return not self._has_computed

    def _plan(
        self,
        model: Model,
        loss: Loss,
        positions: Tensor,
        order: torch.Generator,
        training: Training,
        lr: float,
        gradient: GradientHook | None,
        memory: Mapping[str, Any] | None,
    ) -> None:
        """Plan a fit that can be trained in a stack.

        Raises:
            FitPlanned: If it can.
        """
        objective = Objective.of(loss)
        if objective is None or not isinstance(gradient, Correction | None):
            return
        network = DirectNetwork.of(model)
        if network is None or not network.is_dense:
            return
        if not network.flattens and len(self.task.shape) != 1:
            return
        fit = PlannedFit(
            list(model.trained),
            network.tensors,
            self.train,
            positions,
            order,
            training,
            lr,
            objective,
            gradient,
            memory,
        )
        if fit.can_be_stacked(math.prod(self.task.shape)):
            fit.tensors = [tensor.clone() for tensor in network.tensors]
            raise FitPlanned(fit)

    def _trained_in_stack(self, model: Model, fit: PlannedFit) -> FitResult:
        """Return the result of a fit of this step that was trained in a stack."""
        with torch.no_grad():
            torch._foreach_copy_(list(model.trained.values()), fit.tensors)
        self.steps += fit.progress.steps
        memory = _copied(fit.memory or {})
        return FitResult(fit.progress.steps, fit.progress.mean_loss, 0, memory)

    def _direct_step(
        self, network: DirectNetwork, gradient_of: LossGradient, model: Model, stepper: Stepper
    ) -> Callable[[Batch], float]:
        """Return a step without autograd, which has the bits of one with it."""

        def step(batch: Batch) -> float:
            if not network.fits(batch.x):
                return self._single_step(model, supervised, stepper, batch)
            with torch.no_grad():
                value, gradients = network.gradients(batch.x, batch.y, gradient_of)
                stepper.apply_gradients(gradients)
            return value.item()

        return step

    def _forward(self, model: Model, x: Tensor) -> Outputs:
        if self.training.precision == "float32":
            return model(x)
        with torch.autocast(x.device.type, torch.bfloat16):
            outputs = model(x)
        # Losses are computed in full precision.
        outputs.features, outputs.logits = outputs.features.float(), outputs.logits.float()
        return outputs

    def _single_step(self, model: Model, loss: Loss, stepper: Stepper, batch: Batch) -> float:
        value = loss(self._forward(model, batch.x), batch)
        stepper.step(value)
        return value.item()

    def _joint_step(
        self,
        models: list[Model],
        losses: list[Loss],
        steppers: list[Stepper],
        turns: list[Turn],
        batch: Batch,
    ) -> float:
        passes = []
        for model, turn in zip(models, turns, strict=True):
            with turn:
                passes.append(self._forward(model, batch.x))
        outputs = tuple(passes)
        values = []
        for loss, output, turn in zip(losses, outputs, turns, strict=True):
            output.peers = outputs
            with turn:
                values.append(loss(output, batch))
        for stepper in steppers:
            for tensor in stepper.tensors:
                tensor.grad = None
        # One backward pass over the sum: a loss that detaches its peers reaches its own model only.
        backward(torch.stack(values).sum())
        for stepper in steppers:
            stepper.apply()
        return values[0].item()

    def _training_inputs(self, x: Tensor, noise: torch.Generator) -> Tensor:
        if self._bench.augment:
            x = augment(x, self._bench.augment, noise)
        return self.inputs.train(x, noise) if self.inputs is not None else x

    @property
    def random_inputs(self) -> bool:
        """True if inputs are transformed at random, so that outputs cannot be cached."""
        return bool(self._bench.augment) or (self.inputs is not None and self.inputs.random)

    @property
    def _other(self) -> Callable[[Tensor], Tensor] | None:
        return self.inputs.other if self.inputs is not None else None

    def predict(self, model: Model, on: Samples | None = None) -> Tensor:
        """Return the logits of a model in evaluation mode.

        Args:
            model: The model.
            on: The samples; the training data by default.
        """
        return self._outputs(model, on, features=False)

    def features(self, model: Model, on: Samples | None = None) -> Tensor:
        """Return the features before the head in evaluation mode; arguments as for `predict`."""
        return self._outputs(model, on, features=True)

    def _outputs(self, model: Model, on: Samples | None, features: bool) -> Tensor:
        samples = self.train if on is None else on
        compute = partial(self._bench.outputs, model, samples, self._other, features)
        return compute() if self._deferral is None else self._deferral.outputs(compute)

    def teacher(self, model: Model) -> Tensor | Model:
        """Return a teacher for distillation.

        Its logits on the training data, computed once; the model itself if inputs are random.
        """
        return model if self.random_inputs else self.predict(model)

    def feature_teacher(self, model: Model) -> Tensor | Model:
        """Return a teacher for a loss on features, see `losses.terms.frozen_features`."""
        return model if self.random_inputs else self.features(model)

    def batches(self, size: int | None = None) -> Iterator[Batch]:
        """Yield the training data in order, with the inputs of evaluation.

        Args:
            size: The batch size; that of training by default.
        """
        self._has_computed = True
        samples = self.train
        everything = torch.arange(len(samples))
        for position, chosen in enumerate(torch.split(everything, size or self.training.batch)):
            x, y = samples.at(chosen)
            x = x.to(self.device)
            if self._other is not None:
                x = self._other(x)
            y = y.to(self.device)
            supervise = self._bench.supervise
            yield Batch(x, y, chosen, supervise, position=position, step=position)

    def loss(self, model: Model) -> float:
        """Return the task's loss over the training data in evaluation mode; 0 without data."""
        logits = self.predict(model)
        return float(self._bench.supervise(logits, self.train.y)) if len(logits) else 0.0

    def gradient(self, model: Model) -> Tree:
        """Return the gradient of the loss over all training data in evaluation mode."""
        model.net.eval()
        samples = len(self.train)
        model.net.zero_grad(set_to_none=True)
        for batch in self.batches():
            outputs: Outputs = model(batch.x)
            backward(batch.supervise(outputs.logits, batch.y) * (len(batch.y) / samples))
        gradients = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.detach().cpu().clone()
            for name, p in model.trained.items()
        }
        model.net.zero_grad(set_to_none=True)
        return Tree(gradients, model.name)

    minimise = staticmethod(minimise)


def _steppers(
    models: Sequence[Model],
    training: Training,
    lr: float,
    memory: Mapping[str, Any] | None,
    gradient: GradientHook | None,
) -> list[Stepper]:
    """Return the optimiser of each model, with its state after an earlier fit if there is one."""
    memories = [memory]
    if len(models) > 1:
        memories = [(memory or {}).get(str(k)) for k in range(len(models))]
    return [
        Stepper(model.trained, training, lr, own, gradient)
        for model, own in zip(models, memories, strict=True)
    ]


def _optimiser_state(steppers: Sequence[Stepper]) -> dict[str, Any]:
    """Return the state of the optimisers that a later fit can continue with."""
    if len(steppers) == 1:
        return steppers[0].state()
    return {str(k): stepper.state() for k, stepper in enumerate(steppers)}


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an optimiser's state, many times faster than `copy.deepcopy`."""
    copied: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Mapping):
            copied[name] = _copied(value)
        elif isinstance(value, Tensor):
            copied[name] = value.clone()
        else:
            copied[name] = value
    return copied


def _positions(on: Tensor | None, samples: int) -> Tensor:
    """Return the positions of the samples to train on, given a mask, positions or None for all."""
    if on is None:
        return torch.arange(samples)
    return on.nonzero().squeeze(1) if on.dtype == torch.bool else on

"""Workbench: the networks with which one process executes clients, one after another.

A simulation of ten thousand clients needs the network of one. Modules are built once per process,
provided to a step and returned when it ends. Between steps only trees are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.data import Federation
from equipoise.data.samples import Samples
from equipoise.metrics import Metric
from equipoise.models import Model, build, wrap
from equipoise.streams import default_generator
from equipoise.task import Task
from equipoise.training.settings import Training
from equipoise.tree import Tree
from equipoise.validation.imports import OWN, Imports

Factory = Callable[[], nn.Module]


@dataclass
class Workbench:
    """Networks, data and settings that a step needs besides its request.

    Attributes:
        task: The task.
        architectures: Functions that build networks, by model.
        training: The settings of training.
        seed: The seed of the experiment.
        federation: The data, on a client runtime only.
        device: The device of networks.
        overrides: Other architectures by model and client.
        augment: The augmentations of training images.
        metrics: The metrics of the experiment.
    """

    task: Task
    architectures: Mapping[str, Factory]
    training: Training
    seed: int
    federation: Federation | None = None
    device: str = "cpu"
    overrides: Mapping[str, Mapping[str, Factory]] = field(default_factory=dict)
    augment: tuple[str, ...] = ()
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    _free: dict[str, list[Model]] = field(default_factory=dict)
    _lent: list[Model] = field(default_factory=list)
    _initial: dict[str, Tree] = field(default_factory=dict)

    @cached_property
    def position(self) -> dict[str, int]:
        """The position of each client in the federation."""
        if self.federation is None:
            return {}
        return {client: position for position, client in enumerate(self.federation.ids)}

    def part(self, client: str, name: str) -> Samples:
        """Return a part of a client's data (train, validation, test), or the shared test set."""
        assert self.federation is not None
        if name == "shared":
            return Samples.of(self.federation, self.federation.shared_test)
        parts = getattr(self.federation, name)
        return Samples.of(self.federation, parts[self.position[client]])

    @cached_property
    def without_data(self) -> Workbench:
        """The workbench for methods, from which nothing leads to the data."""
        return replace(self, federation=None)

    def key(self, model: str, client: str | None) -> str:
        """Return the name of a model's architecture at a client, its own if it has one."""
        if client is not None and client in self.overrides.get(model, {}):
            return f"{model}@{client}"
        return model

    def _factory(self, key: str) -> Factory:
        model, _, client = key.partition("@")
        factories = self.overrides.get(model, {}) if client else self.architectures
        factory = factories.get(client or model)
        if factory is None:
            raise KeyError(
                f"no model {key!r}: this experiment has {sorted(self.architectures)}; "
                "name it under `models` in the experiment"
            )
        return factory

    def _build(self, key: str) -> Model:
        # One stream for all names: models of one architecture start alike, so that a private model
        # and the model of another method can be compared.
        with default_generator(self.seed, "initial model"):
            net = self._factory(key)()
        net = net.to(self.device)
        if prefers_channels_last(net, self.task):
            net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        model = Model(net, key)
        self._initial.setdefault(key, model.tree())
        model.takes_single = self._takes_single(net)
        # The trial of a single sample may have changed running statistics.
        return model.put(self._initial[key])

    def _takes_single(self, net: nn.Module) -> bool:
        if not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules()):
            return True
        try:
            net.train()
            with torch.no_grad():
                net(torch.zeros(1, *self.task.shape, device=self.device))
        except ValueError:  # "expected more than 1 value per channel"
            return False
        except (RuntimeError, TypeError):  # not a network of the task's inputs: a generator, say
            return True
        return True

    def take(self, key: str, tree: Tree | None = None) -> Model:
        """Lend a module until the step ends, with a tree's parameters or the initial ones."""
        free = self._free.setdefault(key, [])
        model = free.pop() if free else self._build(key)
        self._lent.append(model)
        return model.put(tree if tree is not None else self._initial[key])

    def initial(self, key: str) -> Tree:
        """Return the parameters before round 1, equal for all clients and methods of a seed."""
        if key not in self._initial:
            self._free.setdefault(key, []).append(self._build(key))
        return self._initial[key]

    @contextmanager
    def lending(self) -> Iterator[None]:
        """Return the modules that were provided within this context."""
        before = len(self._lent)
        try:
            yield
        finally:
            for model in self._lent[before:]:
                model.clear_gradients()
                self._free.setdefault(model.name, []).append(model)
            del self._lent[before:]

    @cached_property
    def supervise(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The loss of outputs and targets that training minimises."""
        return self.training.supervised_loss(self.task)

    def outputs(
        self,
        model: Model,
        samples: Samples,
        transform: Callable[[Tensor], Tensor] | None = None,
        features: bool = False,
    ) -> Tensor:
        """Return the logits or features of all samples, in evaluation mode and in order.

        Args:
            model: The model.
            samples: The samples.
            transform: Changes inputs.
            features: True for features in place of logits.
        """
        model.net.eval()
        parts: list[Tensor] = []
        with torch.no_grad():
            for positions in samples.chunks():
                x = samples.at(positions)[0].to(self.device)
                out = model(x if transform is None else transform(x))
                parts.append((out.features if features else out.logits).cpu())
        if parts:
            return torch.cat(parts)
        with torch.no_grad():  # no samples: as many columns as one sample of zeros would give
            out = model(torch.zeros(1, *self.task.shape, device=self.device))
        return (out.features if features else out.logits)[:0].cpu()


def prefers_channels_last(net: nn.Module, task: Task) -> bool:
    """Return True if convolutions run in the channels-last layout.

    The layout changes bits, so the rule depends on model and data only.
    """
    return len(task.shape) == 3 and any(isinstance(module, nn.Conv2d) for module in net.modules())


def factories(specs: Mapping[str, Any], task: Task, imports: Imports = OWN) -> dict[str, Factory]:
    """Return functions that build networks.

    Args:
        specs: By model a registered name, a mapping with options, or a torch module.
        task: The task.
        imports: The packages from which code may be imported.
    """

    def factory(spec: Any) -> Factory:
        if isinstance(spec, nn.Module):
            return lambda: wrap(copy.deepcopy(spec))
        if callable(spec):
            return lambda: wrap(spec())
        return lambda: build(spec, task, imports)

    return {name: factory(spec) for name, spec in specs.items()}


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one torch thread; the setting is restored on exit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""The form of every model: features, then a head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from equipoise.task import Task


class Network(nn.Module):
    """A model in two parts.

    Args:
        features: A module from inputs to a representation.
        head: A module from that to outputs of shape (batch, outputs).
    """

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the head."""
        outputs: torch.Tensor = self.head(self.features(x))
        return outputs


class Prepared(nn.Module):
    """A network with the input transform of the method that trained it.

    `run.model` and `export` return it, so that it predicts as in its evaluation. Constants of the
    transform are entries of its state if the method gave them as a module, for example
    `inputs.mean`.
    """

    def __init__(self, inputs: Callable[[torch.Tensor], torch.Tensor], net: nn.Module) -> None:
        super().__init__()
        self.inputs = inputs
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs for untransformed inputs."""
        outputs: torch.Tensor = self.net(self.inputs(x))
        return outputs


class InUnit(nn.Module):
    """The last step of a regression network: from the standardised target to its own unit."""

    centre: torch.Tensor
    scale: torch.Tensor

    def __init__(self, centre: float, scale: float) -> None:
        super().__init__()
        self.register_buffer("centre", torch.tensor(centre))
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs in the unit of the target."""
        return outputs * self.scale + self.centre


def in_unit(net: nn.Module, task: Task) -> nn.Module:
    """Return a network whose outputs are in the unit of the target; a classifier stays as it is."""
    if task.kind != "regression" or (task.centre, task.scale) == (0.0, 1.0):
        return net
    own = wrap(net)
    return Network(own.features, nn.Sequential(own.head, InUnit(task.centre, task.scale)))


def wrap(module: nn.Module) -> Network:
    """Return any module as a Network.

    Its own `features` and `head` are used if it has both; otherwise the whole module is features.

    >>> list(wrap(nn.Linear(2, 1)).state_dict())
    ['features.weight', 'features.bias']
    """
    if isinstance(module, Network):
        return module
    parts = {name: getattr(module, name, None) for name in ("features", "head")}
    features, head = parts["features"], parts["head"]
    if not (isinstance(features, nn.Module) and isinstance(head, nn.Module)):
        return Network(module, nn.Identity())
    elsewhere = [name for name in module.state_dict() if name.split(".")[0] not in parts]
    if elsewhere:
        raise ValueError(
            f"{type(module).__name__} has `features` and `head`, but also {', '.join(elsewhere)} "
            "outside of them, which would be lost; "
            "move these into `features` or `head`, or rename one of the two so that the whole "
            "module is taken as features"
        )
    return Network(features, head)


def shape_after(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of one sample's output.

    Zeros are passed through the module; its state and mode do not change.

    >>> shape_after(nn.Conv2d(3, 6, 5), (3, 32, 32))
    (6, 28, 28)
    """
    return tuple(trial(module, shape).shape[1:])


def trial(module: nn.Module, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the outputs for one sample of zeros.

    The module is in evaluation mode, so that no statistic changes and no random number is drawn.
    """
    with evaluating(module), torch.no_grad():
        outputs: torch.Tensor = module(torch.zeros(1, *shape))
    return outputs


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode for a while; afterwards every part is in its former mode."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Give the parameters of a module no gradients for a while; gradients still pass through it."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)

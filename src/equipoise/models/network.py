"""The shape every model has here: features, then a head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from equipoise.task import Task


class Network(nn.Module):
    """A model in two parts: `features` maps inputs to a representation, `head` maps that to outputs of shape (B, outputs)."""

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.features(x))
        return outputs


class Prepared(nn.Module):
    """A network behind the inputs of the method that trained it: what `run.model` and `export` give, so that it predicts as it was measured.

    The constants of the inputs are entries of its state if the method gave them as a module (`inputs.mean`, say).
    """

    def __init__(self, inputs: Callable[[torch.Tensor], torch.Tensor], net: nn.Module) -> None:
        super().__init__()
        self.inputs = inputs
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.net(self.inputs(x))
        return outputs


class InUnit(nn.Module):
    """The last step of a network that predicts a number: from the standardised number that it was trained on to the number's own unit."""

    centre: torch.Tensor
    scale: torch.Tensor

    def __init__(self, centre: float, scale: float) -> None:
        super().__init__()
        self.register_buffer("centre", torch.tensor(centre))
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs * self.scale + self.centre


def in_unit(net: nn.Module, task: Task) -> nn.Module:
    """A trained network whose outputs are in the target's own unit; of classes, the network itself."""
    if task.classifies or (task.centre, task.scale) == (0.0, 1.0):
        return net
    own = wrap(net)
    return Network(own.features, nn.Sequential(own.head, InUnit(task.centre, task.scale)))


def wrap(module: nn.Module) -> Network:
    """Turn any module into a Network: its own `features` and `head` if it has both, else the whole of it as features.

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
            f"{type(module).__name__} has `features` and `head`, but also {', '.join(elsewhere)} outside of them, which would be lost; "
            "move these into `features` or `head`, or rename one of the two so that the whole module is taken as features"
        )
    return Network(features, head)


def shape_after(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one sample's output, found by passing zeros through the module; changes neither its state nor its mode.

    >>> shape_after(nn.Conv2d(3, 6, 5), (3, 32, 32))
    (6, 28, 28)
    """
    return tuple(trial(module, shape).shape[1:])


def trial(module: nn.Module, shape: tuple[int, ...]) -> torch.Tensor:
    """Outputs for one sample of zeros, in evaluation mode so that no statistic moves and no random number is drawn."""
    with evaluating(module), torch.no_grad():
        outputs: torch.Tensor = module(torch.zeros(1, *shape))
    return outputs


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Within it the module is in evaluation mode; after it every part is in the mode it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """What is computed within it gives the module's parameters no gradient, but passes it on to what came before."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)

"""A network in use during a step, and the outputs of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equipoise.tree import Tree


class Model:
    """A network in use, with the name of its trees."""

    def __init__(self, net: nn.Module, name: str) -> None:
        self.net, self.name = net, name
        self.trained: dict[str, nn.Parameter] = {
            key: p for key, p in net.named_parameters() if p.requires_grad
        }
        self._entries: dict[str, Tensor] = dict(net.state_dict(keep_vars=True))
        self._tensors = [entry.detach() for entry in self._entries.values()]
        self.untrained = frozenset(self._entries.keys() - self.trained.keys())
        self.takes_single = True  # whether it can train on a batch of one

    def tree(self) -> Tree:
        """Return a copy of its parameters and buffers as plain data."""
        return Tree(
            {
                name: tensor.cpu().clone(memory_format=torch.contiguous_format)
                for name, tensor in zip(self._entries, self._tensors, strict=True)
            },
            self.name,
            self.untrained,
        )

    def put(self, tree: Tree) -> Model:
        """Copy the parameters and buffers of a tree into the network, and return the model."""
        try:
            torch._foreach_copy_(self._tensors, [tree[name] for name in self._entries])
        except (KeyError, RuntimeError) as error:
            raise ValueError(
                f"a tree of {tree.model!r} does not fit the model {self.name!r}: "
                f"{mismatch(tree, self.tree()) or error}"
            ) from error
        return self

    def clear_gradients(self) -> None:
        """Remove the gradients of the trained parameters; others never have one."""
        for parameter in self.trained.values():
            parameter.grad = None

    def __call__(self, x: Tensor) -> Outputs:
        """Return features and logits for a batch of inputs."""
        features = self.net.features(x)  # type: ignore[operator]
        return Outputs(self, features, self.net.head(features))  # type: ignore[operator]


def mismatch(tree: Tree, template: Tree) -> str | None:
    """Return a sentence about how a tree differs from its model, or None if it fits.

    Trained entries alone fit, too.
    """
    if list(tree) != list(template):  # else the names need no comparison as sets
        difference = _mismatch_of_names(set(tree), template)
        if difference is not None:
            return difference
    for name, tensor in tree.items():
        expected = template[name]
        if tensor.shape != expected.shape:
            shapes = tuple(expected.shape), tuple(tensor.shape)
            return f"{name}: expected shape {shapes[0]}, got {shapes[1]}"
        if tensor.dtype != expected.dtype:
            return f"{name}: expected {expected.dtype}, got {tensor.dtype}"
    return None


def _mismatch_of_names(names: set[str], template: Tree) -> str | None:
    expected = set(template)
    if names in (expected, set(template.trained), set(template.untrained)):
        return None
    missing = sorted(set(template.trained) - names)
    unknown = sorted(names - expected)
    return (
        f"expected the entries of {template.model!r}; missing {missing[:3] or 'none'}, "
        f"unknown {unknown[:3] or 'none'}"
    )


@dataclass
class Outputs:
    """One forward pass of one model over one batch.

    Attributes:
        model: The model.
        features: The features before the head.
        logits: The outputs.
        peers: The outputs of all models that are trained together.
    """

    model: Model
    features: Tensor
    logits: Tensor
    peers: tuple[
        Outputs, ...
    ] = ()  # the passes of all models stepped on this batch, this one included

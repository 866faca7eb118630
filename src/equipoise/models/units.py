"""The hidden units of a network and their rows in its weights, for submodels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from equipoise.tree import Tree

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


def hidden_units(net: nn.Module) -> dict[str, list[str]]:
    """Return for each hidden layer the entries of the state that have one row per unit.

    A unit is an output of a linear layer or a channel of a convolution; the last layer gives the
    network's outputs and has none. A norm belongs to the layer before it: without its shift a unit
    that is left out would still give a constant. Layers follow each other in the order of
    registration.

    >>> convolution = nn.Conv2d(1, 4, 3, bias=False)
    >>> net = nn.Sequential(convolution, nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    >>> hidden_units(net)
    {'0': ['0.weight', '1.weight', '1.bias', '1.running_mean', '1.running_var']}
    """
    layers: dict[str, list[str]] = {}
    last, size = "", 0
    for name, module in net.named_modules():
        if isinstance(module, LAYERS):
            last, size = name, len(module.weight)
            layers[last] = []
        elif not isinstance(module, NORMS) or not last:
            continue
        entries = module.state_dict()
        # The counter of a batch norm has no rows; a norm over something else than this layer's
        # outputs has as many as that.
        layers[last] += [
            f"{name}.{key}".lstrip(".")
            for key, entry in entries.items()
            if entry.ndim and len(entry) == size
        ]
    layers.pop(last, None)
    return layers


def unit_rows(units: Mapping[str, Sequence[str]], tree: Tree, values: Tensor) -> dict[str, Tensor]:
    """Return one value per unit as factors of the entries that have rows.

    Args:
        units: The entries of each layer, see `hidden_units`.
        tree: The weights.
        values: One value per unit, in the order of the layers.

    Returns:
        A tensor of shape (rows, 1, ...) per entry.

    >>> tree = Tree({"0.weight": torch.zeros(2, 3), "0.bias": torch.zeros(2)})
    >>> rows = unit_rows({"0": ["0.weight", "0.bias"]}, tree, torch.ones(2))
    >>> {name: tuple(row.shape) for name, row in rows.items()}
    {'0.weight': (2, 1), '0.bias': (2,)}
    """
    values_by_layer = torch.split(values, unit_counts(units, tree))
    rows = {}
    for names, layer_values in zip(units.values(), values_by_layer, strict=True):
        for name in names:
            further_dimensions = [1] * (tree[name].ndim - 1)
            rows[name] = layer_values.reshape(-1, *further_dimensions)
    return rows


def unit_counts(units: Mapping[str, Sequence[str]], tree: Tree) -> list[int]:
    """Return the number of units of each hidden layer."""
    return [len(tree[names[0]]) for names in units.values()]


def with_units(tree: Tree, units: Mapping[str, Sequence[str]], mask: Tensor) -> Tree:
    """Return a tree with the rows of masked units set to 0, with their running statistics.

    Args:
        tree: The parameters and buffers of a model.
        units: The entries of each hidden layer, as `hidden_units` returns them.
        mask: 1 for each unit that stays and 0 for the others, in the order of the layers.
    """
    rows = unit_rows(units, tree, mask)
    entries = {}
    for name in tree:
        entries[name] = tree[name] * rows[name] if name in rows else tree[name]
    return Tree(entries, tree.model, tree.untrained)

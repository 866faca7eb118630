"""The entries of largest magnitude of a tree."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.tree import Tree

TO_SPARE = 1e-9  # 0.07 of 100 numbers are 7, though 0.07 * 100 is a little more in floating point


def largest(tree: Tree, share: float, per_tensor: bool = False) -> Tree:
    """Return the trained entries with all but those of largest magnitude set to 0.

    Of entries of equal magnitude the first are kept, in the order of the tree.

    Args:
        tree: The weights or the update.
        share: The share that is kept: floor(share * P) of all P numbers.
        per_tensor: Keep ceil(share * P) of each tensor instead.

    >>> tree = Tree({"a": torch.tensor([3.0, -4.0, 1.0]), "b": torch.tensor([[-1.0, 0.5]])})
    >>> dict(largest(tree, 0.6))
    {'a': tensor([ 3., -4.,  1.]), 'b': tensor([[0., 0.]])}
    >>> dict(largest(tree, 0.6, per_tensor=True))
    {'a': tensor([ 3., -4.,  0.]), 'b': tensor([[-1.0000,  0.5000]])}
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a share of a tree's numbers lies between 0 and 1; got {share}")
    if per_tensor:
        return tree.apply(
            lambda tensor: _kept(
                tensor.reshape(-1), math.ceil(share * tensor.numel() - TO_SPARE)
            ).reshape(tensor.shape)
        )
    return tree.with_flat(_kept(tree.flat(), math.floor(share * tree.count() + TO_SPARE)))


def _kept(numbers: Tensor, count: int) -> Tensor:
    if count == 0:
        return torch.zeros_like(numbers)
    sizes = numbers.abs()
    least = sizes.topk(count).values[-1]
    above, tied = sizes > least, sizes == least
    # for the first of those that are exactly as large as the least one kept
    room = count - int(above.sum())
    return torch.where(above | (tied & (tied.cumsum(0) <= room)), numbers, 0)

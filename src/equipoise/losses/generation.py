"""What a generator of features is trained with: pools of labels, the diversity of what it makes, and the heads that judge it (KDIA, Eq. 3-4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from equipoise.models import Model, Network
from equipoise.tree import Tree


def label_pool(
    samples: int, classes: int, epochs: int, small: bool, generator: torch.Generator
) -> Tensor:
    """Uniform labels (epochs, samples): the same ones shuffled for every epoch or, at a small client, new ones (Algorithm 2, lines 2-5).

    >>> label_pool(3, 10, 2, False, torch.Generator().manual_seed(0)).sort(1).values.unique(dim=0).shape
    torch.Size([1, 3])
    """
    if small:
        return torch.randint(classes, (epochs, samples), generator=generator)
    pool = torch.randint(classes, (samples,), generator=generator)
    return torch.stack([pool[torch.randperm(samples, generator=generator)] for _ in range(epochs)])


def diversity_loss(noise: Tensor, features: Tensor) -> Tensor:
    """How little the features of two halves of a batch differ, for the difference of their noise (Eq. 4, as a ratio of means).

    >>> round(float(diversity_loss(torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [3.0]]))), 4)
    2.0
    """
    made, drawn = (
        (first - second).abs().mean() for first, second in (features.chunk(2), noise.chunk(2))
    )
    return 1 / (made / drawn + 1e-5)


def heads(model: Model, trees: Sequence[Tree], shares: np.ndarray) -> Callable[[Tensor], Tensor]:
    """The weighted mean of the frozen heads' logits, all heads in one call (Eq. 3, without the factor 1/K that would flatten it)."""
    head = cast(Network, model.net).head.eval()
    device = next(head.parameters()).device
    stacked = {
        name: torch.stack([tree[f"head.{name}"] for tree in trees]).to(device)
        for name in head.state_dict()
    }
    normalised = torch.as_tensor(shares / shares.sum(), dtype=torch.float32, device=device)
    each = vmap(
        lambda entries, features: functional_call(head, entries, (features,)), in_dims=(0, None)
    )
    return lambda features: torch.tensordot(normalised, each(stacked, features), 1)

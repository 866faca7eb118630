"""Generated samples: their labels (FedCOG), and a feature generator's training (KDIA, Eq. 3-4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from equipoise.models import Model, Network
from equipoise.tree import Tree


def lacking_labels(counts: Tensor, images: int) -> Tensor:
    """Return the labels of the images to generate (FedCOG).

    Class c gets the share (max n - n_c) / sum of these, rounded down; a client with equally many
    samples of all classes generates none.

    Args:
        counts: The client's samples of each class.
        images: The number of images at most.

    >>> lacking_labels(torch.tensor([5, 0, 2]), 10).bincount(minlength=3).tolist()
    [0, 6, 3]
    """
    lacking = counts.max() - counts
    per_class = images * lacking // max(1, int(lacking.sum()))
    return torch.repeat_interleave(torch.arange(len(counts)), per_class)


def label_pool(
    samples: int, classes: int, epochs: int, small: bool, generator: torch.Generator
) -> Tensor:
    """Return uniform labels (epochs, samples) (KDIA, Algorithm 2, lines 2-5).

    Args:
        samples: Labels per epoch.
        classes: The number of classes.
        epochs: The number of epochs.
        small: Draw new labels for every epoch; otherwise the same ones are shuffled.
        generator: The random generator.

    >>> labels = label_pool(3, 10, 2, False, torch.Generator().manual_seed(0))
    >>> labels.sort(1).values.unique(dim=0).shape
    torch.Size([1, 3])
    """
    if small:
        return torch.randint(classes, (epochs, samples), generator=generator)
    pool = torch.randint(classes, (samples,), generator=generator)
    return torch.stack([pool[torch.randperm(samples, generator=generator)] for _ in range(epochs)])


def diversity_loss(noise: Tensor, features: Tensor) -> Tensor:
    """Return the distance of noise over the distance of features of two half batches (Eq. 4).

    >>> round(float(diversity_loss(torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [3.0]]))), 4)
    2.0
    """
    made, drawn = (
        (first - second).abs().mean() for first, second in (features.chunk(2), noise.chunk(2))
    )
    return 1 / (made / drawn + 1e-5)


def heads(model: Model, trees: Sequence[Tree], shares: np.ndarray) -> Callable[[Tensor], Tensor]:
    """Return a function for the weighted mean of the logits of frozen heads (Eq. 3).

    It leaves out the factor 1/K, which would flatten the mean.

    Args:
        model: A model whose head is evaluated.
        trees: The weights of the models.
        shares: One weight per model.
    """
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

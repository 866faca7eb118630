"""Similarity of the losses on two data sets, batch by batch (FedAVE)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def batch_losses(logits: Tensor, y: Tensor, size: int) -> list[float]:
    """Return the mean cross-entropy of each batch, in the order of the data."""
    batches = zip(torch.split(logits, size), torch.split(y, size), strict=True) if len(y) else ()
    return [float(functional.cross_entropy(*batch)) for batch in batches]


def loss_divergence(own: list[float], other: list[float]) -> float | None:
    """Return the KL divergence of two lists of losses, each scaled to sum 1.

    Both are cut to the length of the shorter one. None if fewer than two are left.

    >>> round(loss_divergence([1.0, 3.0, 9.0], [1.0, 1.0]), 12)
    0.130812035941
    """
    length = min(len(own), len(other))
    if length < 2:
        return None
    first, second = (np.array(losses[:length]) + 1e-12 for losses in (own, other))
    first, second = first / first.sum(), second / second.sum()
    return max(float((first * np.log(first / second)).sum()), 1e-6)

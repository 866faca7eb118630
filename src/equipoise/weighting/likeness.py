"""How much the losses on two sets of data are alike, batch by batch: a stand-in for how much the data are (FedAVE)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def batch_losses(logits: Tensor, y: Tensor, size: int) -> list[float]:
    """The mean cross-entropy of each batch, in the order of the data."""
    batches = zip(torch.split(logits, size), torch.split(y, size), strict=True) if len(y) else ()
    return [float(functional.cross_entropy(*batch)) for batch in batches]


def loss_divergence(own: list[float], other: list[float]) -> float | None:
    """KL of two lists of losses, cut to the shorter one and each scaled to sum 1; None if fewer than two are left.

    >>> round(loss_divergence([1.0, 3.0, 9.0], [1.0, 1.0]), 12)
    0.130812035941
    """
    length = min(len(own), len(other))
    if length < 2:
        return None
    first, second = (np.array(losses[:length]) + 1e-12 for losses in (own, other))
    first, second = first / first.sum(), second / second.sum()
    return max(float((first * np.log(first / second)).sum()), 1e-6)

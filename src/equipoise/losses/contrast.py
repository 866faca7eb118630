"""Contrast of features between models (MOON), and separation of anchors (FedLSA)."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from equipoise.validation.arrays import Numbers, Values, like, tensor

LEAST_NORM = 1e-8


def model_contrast(
    features: Values, positive: Numbers, negative: Numbers, temperature: float = 0.5
) -> Values:
    """Return -log(e^p / (e^p + e^n)) of each sample (MOON, Eq. 3).

    p and n are its cosines with the features of two other models, divided by the temperature. It is
    computed as softplus(n - p), which cannot overflow. A sample without active features has cosine
    0 with everything and no gradient.

    Args:
        features: The features of the model in training.
        positive: The features to resemble.
        negative: The features to differ from.
        temperature: The temperature tau.

    >>> import numpy as np
    >>> own, shared, previous = np.array([[[1.0, 0.0]], [[2.0, 0.0]], [[0.0, 3.0]]])
    >>> model_contrast(own, shared, previous).round(6)
    array([0.126928])
    """
    own, near, far = (
        _direction(tensor(values).flatten(1)) for values in (features, positive, negative)
    )
    # One product with the difference: where the two agree, value and gradient are exactly those of
    # indifference.
    return like(functional.softplus((own * (far - near).to(own)).sum(1) / temperature), features)


def separation(anchors: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the mean over anchors i of log mean over j != i of exp(a_i . a_j / temperature).

    It is 0 for orthogonal anchors.

    >>> float(separation(torch.eye(3), 0.1))
    0.0
    """
    others = ~torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
    products = (anchors @ anchors.T / temperature)[others].view(len(anchors), -1)
    return (torch.logsumexp(products, 1) - math.log(len(anchors) - 1)).mean()


def _direction(rows: torch.Tensor) -> torch.Tensor:
    lengths = rows.norm(dim=1, keepdim=True)
    return torch.where(
        lengths > LEAST_NORM, rows / lengths.clamp(min=LEAST_NORM), torch.zeros_like(rows)
    )

"""Embeddings of clients in CoRe-Fed: their alignment with the cohort, and losses on them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from equipoise.validation.arrays import Numbers, Values, like, tensor

LEAST_NORM = 1e-12


def mean_direction(features: Values) -> Values:
    """Return the mean of the samples' features, each scaled to length 1 (CoRe-Fed, Eq. 4).

    A sample without any activation adds 0.

    Raises:
        ValueError: If there is no sample.

    >>> import numpy as np
    >>> mean_direction(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([0.3, 0.4])
    """
    flat = tensor(features).flatten(1)
    if len(flat) == 0:
        raise ValueError("an embedding needs the features of at least one sample; got none")
    return like(functional.normalize(flat, dim=1, eps=LEAST_NORM).mean(0), features)


def alignment(embeddings: Values, reference: Numbers) -> Values:
    """Return the cosine of each embedding with a reference (CoRe-Fed, A_i).

    It is 0 where either is 0.

    Args:
        embeddings: Embeddings in the last dimension.
        reference: The reference.

    >>> import numpy as np
    >>> alignment(np.array([[1.0, 0.0], [0.0, 0.0]]), [3.0, 0.0])
    array([1., 0.])
    """
    return like(_cosine(*_pair(embeddings, reference)), embeddings)


def embedding_target(embeddings: Values, reference: Numbers, beta: float = 0.5) -> Values:
    """Return embeddings drawn towards a reference (CoRe-Fed, Eq. 8-9).

    These are (1 - beta) z + beta A z_g, with A the cosine of z and z_g.

    Args:
        embeddings: Embeddings z in the last dimension.
        reference: The reference z_g.
        beta: The share of the reference.

    >>> import numpy as np
    >>> embedding_target(np.array([1.0, 0.0]), [2.0, 0.0], beta=0.5)
    array([1.5, 0. ])
    """
    own, common = _pair(embeddings, reference)
    return like((1 - beta) * own + beta * _cosine(own, common).unsqueeze(-1) * common, embeddings)


def refined_alignment(embeddings: Values, reference: Numbers, beta: float = 0.5) -> Values:
    """Return the cosine of the drawn embeddings with the reference: rho of CoRe-Fed's weights.

    >>> import numpy as np
    >>> refined_alignment(np.array([[1.0, 1.0], [0.0, 1.0]]), [1.0, 0.0], beta=1.0)
    array([1., 0.])
    """
    return alignment(embedding_target(embeddings, reference, beta), reference)


def embedding_contrast(
    embedding: Values,
    reference: Numbers,
    others: Numbers,
    temperature: float = 0.07,
    include_positive: bool = False,
) -> Values:
    """Return the contrastive loss of one client (CoRe-Fed, Eq. 6).

    The paper leaves the positive pair out of the denominator, so the loss may be negative. Without
    others it is 0.

    Args:
        embedding: The embedding of the client.
        reference: The embedding to resemble.
        others: The embeddings to differ from, one per row.
        temperature: The temperature.
        include_positive: Include the positive pair in the denominator.

    >>> import numpy as np
    >>> own = np.array([1.0, 0.0])
    >>> round(float(embedding_contrast(own, [1.0, 0.0], [[1.0, 0.0], [1.0, 0.0]])), 6)
    0.693147
    """
    own, common = _pair(embedding, reference)
    rest = tensor(others).to(own).reshape(-1, own.shape[-1])
    if len(rest) == 0:
        return like(own.sum() * 0, embedding)
    positive = _cosine(own, common) / temperature
    against = _cosine(rest, own) / temperature
    if include_positive:
        against = torch.cat([against, positive.reshape(1)])
    return like(torch.logsumexp(against, dim=0) - positive, embedding)


def cohort_contrast(
    embeddings: Values, temperature: float = 0.07, include_positive: bool = False
) -> Values:
    """Return the contrastive loss of every client against mean and rest of its cohort.

    >>> import numpy as np
    >>> cohort_contrast(np.eye(2)).round(4)
    array([-10.1015, -10.1015])
    """
    own = tensor(embeddings)
    reference = own.mean(0)
    losses = [
        embedding_contrast(
            embedding,
            reference,
            torch.cat([own[:position], own[position + 1 :]]),
            temperature,
            include_positive,
        )
        for position, embedding in enumerate(own)
    ]
    return like(torch.stack(losses), embeddings)


def embedding_gap(embedding: torch.Tensor, common: torch.Tensor, beta: float) -> torch.Tensor:
    """Return the squared distance between an embedding and its frozen target (Eq. 8-9)."""
    target = embedding_target(embedding, common, beta).detach()
    return (embedding - target).square().sum()


def _pair(embeddings: Any, reference: Any) -> tuple[torch.Tensor, torch.Tensor]:
    own = tensor(embeddings)
    common = tensor(reference).to(own)
    if common.ndim != 1 or own.shape[-1:] != common.shape:
        raise ValueError(
            "embeddings and their reference need the same last size; got shapes "
            f"{tuple(own.shape)} and {tuple(common.shape)}"
        )
    return own, common


def _cosine(own: torch.Tensor, common: torch.Tensor) -> torch.Tensor:
    unit, direction = (
        functional.normalize(vector, dim=-1, eps=LEAST_NORM) for vector in (own, common)
    )
    return (unit * direction).sum(-1)

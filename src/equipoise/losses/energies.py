"""Energies and trust of FedeKD: the disagreement of two models about each sample."""

from __future__ import annotations

import torch

from equipoise.validation.arrays import Numbers, Values, like, tensor
from equipoise.validation.names import nearest

KINDS = ("kl", "sqerr", "entropy", "margin", "lse", "feat", "none", "constant_half")
OF_CLASSES = ("kl", "entropy", "margin", "lse")
LEAST_ENTROPY = LEAST_SPREAD = 1e-8


@torch.no_grad()
def energy(private: Values, proxy: Numbers, kind: str = "kl", rated: str = "proxy") -> Values:
    """Return one number per sample that grows with disagreement or uncertainty.

    See FedeKD, Eq. 1-2 and 6-9. It is computed in float64.

    Args:
        private: Logits (samples, classes) for "kl", "entropy", "margin" and "lse", outputs for
            "sqerr", projected features for "feat".
        proxy: The same of the proxy.
        kind: A name of `KINDS`; "none" and "constant_half" give 0.
        rated: The model that "entropy", "margin" and "lse" use, "proxy" or "private".

    Raises:
        ValueError: If shapes differ or the kind does not fit.

    >>> import numpy as np
    >>> energy(np.log([[0.9, 0.1]]), np.log([[0.1, 0.9]])).round(5)
    array([2.70359])
    """
    _check(kind)
    if rated not in ("proxy", "private"):
        raise ValueError(f"rated has to be 'proxy' or 'private'; got {rated!r}")
    first, second = (_rows(tensor(values)) for values in (private, proxy))
    if first.shape != second.shape:
        raise ValueError(
            f"private and proxy need the same samples and sizes; got shapes {tuple(first.shape)} "
            f"and {tuple(second.shape)}"
        )
    if kind in OF_CLASSES and first.shape[1] < 2:
        raise ValueError(
            f"energy {kind!r} needs logits of at least 2 classes; for regression use 'sqerr', "
            "'feat' or 'none'"
        )
    result = _energies(first, second, kind, second if rated == "proxy" else first)
    return like(_as_given(result, tensor(private)), private)


@torch.no_grad()
def trust(energy: Values, beta: float = 1.0, kind: str = "kl") -> Values:
    """Return sigmoid(-beta * standardised energy), one weight per sample (FedeKD, Eq. 3).

    It is computed in float64. The mean is about 1/2, and exactly 1/2 for equal energies or a single
    sample.

    Args:
        energy: One energy per sample.
        beta: The slope.
        kind: The kind of energy; for "none" every weight is 1.

    >>> import numpy as np
    >>> trust(np.array([2.0, 5.0])).round(6)
    array([0.731059, 0.268941])
    """
    _check(kind)
    values = tensor(energy).double()
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(
            f"trust needs one energy per sample, and at least one; got shape {tuple(values.shape)}"
        )
    # changes no weight, and makes equal energies exactly 0 whatever their size
    values = values - values.min()
    deviation = values - values.mean()
    spread = deviation.square().mean().sqrt()
    weights = (
        torch.ones_like(values)
        if kind == "none"
        else torch.sigmoid(-beta * deviation / (spread + LEAST_SPREAD))
    )
    return like(_as_given(weights, tensor(energy)), energy)


def _check(kind: str) -> None:
    if kind not in KINDS:
        raise nearest("energy", kind, list(KINDS))


def _energies(
    private: torch.Tensor, proxy: torch.Tensor, kind: str, rated: torch.Tensor
) -> torch.Tensor:
    if kind == "kl":
        return _symmetric_divergence(private, proxy)
    if kind == "sqerr":
        return (private - proxy).square().sum(1) / 2
    if kind == "feat":
        return (proxy - private).square().sum(1).sqrt()
    if kind == "entropy":
        return _entropy(torch.log_softmax(rated, 1))
    if kind == "margin":
        highest = rated.topk(2, dim=1).values
        return highest[:, 1] - highest[:, 0]
    if kind == "lse":
        return -torch.logsumexp(rated, 1)
    return torch.zeros_like(private[:, 0])


def _symmetric_divergence(private: torch.Tensor, proxy: torch.Tensor) -> torch.Tensor:
    """Return the mean of KL(p || q) and KL(q || p), relative to the entropies.

    Every summand is at least 0, so nothing cancels.
    """
    first, second = torch.log_softmax(private, 1), torch.log_softmax(proxy, 1)
    divergence = ((first.exp() - second.exp()) * (first - second)).sum(1) / 2
    return divergence / (_entropy(first) + _entropy(second) + LEAST_ENTROPY)


def _entropy(log_chances: torch.Tensor) -> torch.Tensor:
    return -(log_chances.exp() * log_chances).sum(1)


def _rows(values: torch.Tensor) -> torch.Tensor:
    return values.double().reshape(len(values), -1)


def _as_given(result: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    return result.to(original.dtype) if original.is_floating_point() else result

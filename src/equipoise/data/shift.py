"""Differences between clients: Gaussian divergence and label distance.

Definitions are those of FedAKD (KDD 2025), Section 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from equipoise.data.federation import Parts


def gaussian_kl(mean: np.ndarray, cov: np.ndarray, mean0: np.ndarray, cov0: np.ndarray) -> float:
    """Return KL(N(mean, cov) || N(mean0, cov0)), the divergence of two Gaussians in nats.

    >>> gaussian_kl(np.array([3.0]), np.eye(1), np.array([1.0]), np.eye(1))
    2.0
    """
    mean_shift = np.asarray(mean, np.float64) - np.asarray(mean0, np.float64)
    cov0 = np.asarray(cov0, np.float64)
    return kl_gaussian_exact(mean_shift, np.asarray(cov, np.float64) - cov0, cov0)


def kl_gaussian_exact(mean_shift: np.ndarray, cov_shift: np.ndarray, cov: np.ndarray) -> float:
    """Return KL(N(mu + mean_shift, cov + cov_shift) || N(mu, cov)), exact for small shifts, too.

    With X = L^-1 cov_shift L^-T and cov = L L^T it is half the sum of (e - log(1 + e)) over the
    eigenvalues e of X, plus half of mean_shift . cov^-1 mean_shift.

    Raises:
        ValueError: If the shifted covariance is not positive definite.

    >>> kl_gaussian_exact(np.array([2.0]), np.zeros((1, 1)), np.eye(1))
    2.0
    """
    relative, mean_part = _relative(mean_shift, cov_shift, cov)
    values = np.linalg.eigvalsh(relative)
    if values.min() <= -1:
        raise ValueError(
            "the shifted covariance is not positive definite: "
            f"its smallest relative eigenvalue is {1 + values.min():.3g}"
        )
    return float(0.5 * (values - np.log1p(values)).sum() + mean_part)


def kl_theorem22(
    mean_shift: np.ndarray,
    cov_shift: np.ndarray,
    cov: np.ndarray,
    samples: float,
    variant: Literal["corrected", "paper"] = "corrected",
) -> float:
    """Return the expansion of Theorem 2.2 for a Gaussian fitted to draws from a shifted one.

    corrected: tr X^2 / 4 - tr X^3 / 6 + mean part + M(M+3) / (4 samples). paper: Eq. 1 as printed,
    whose quadratic term is not invariant under a change of units, whose cubic coefficient is 1/2
    and whose mixed term belongs to the reverse KL.

    Args:
        mean_shift: The shift of the mean.
        cov_shift: The shift of the covariance.
        cov: The covariance of the reference.
        samples: The number of draws.
        variant: `corrected` or `paper`.

    >>> round(kl_theorem22(np.zeros(2), np.zeros((2, 2)), np.eye(2), samples=100), 4)
    0.025
    """
    if variant not in ("corrected", "paper"):
        raise ValueError(f"variant must be corrected or paper, got {variant!r}")
    m = len(mean_shift)
    sampling = m * (m + 3) / (4 * samples)
    relative, mean_part = _relative(mean_shift, cov_shift, cov)
    cubic = np.trace(relative @ relative @ relative)
    if variant == "corrected":
        return float(np.sum(relative**2) / 4 - cubic / 6 + mean_part + sampling)
    inverse = np.linalg.inv(cov)
    printed = inverse @ cov_shift @ inverse
    return float(
        np.sum(printed**2) / 4
        - cubic / 2
        + mean_part
        - 0.5 * mean_shift @ printed @ mean_shift
        + sampling
    )


def kl_gaussian_fitted(
    mean_shift: np.ndarray, cov_shift: np.ndarray, cov: np.ndarray, samples: int
) -> float:
    """Return the expected KL(fitted || base) of a Gaussian fitted to `samples` draws.

    The fit is by maximum likelihood. The value is exact, and infinite for too few samples.
    """
    from scipy.special import digamma

    m = len(mean_shift)
    if samples <= m:
        return float("inf")
    degrees = (samples - np.arange(1, m + 1)) / 2
    return kl_gaussian_exact(mean_shift, cov_shift, cov) + 0.5 * float(
        -digamma(degrees).sum() - m * np.log(2 / samples)
    )


def label_distance(
    labels: np.ndarray, parts: Parts, reference: np.ndarray, classes: int
) -> np.ndarray:
    """Return the total variation between each client's label shares and those of a reference.

    It is 0 for a client without samples.

    Args:
        labels: The class of every sample.
        parts: The samples of each client.
        reference: The reference samples.
        classes: The number of classes.

    >>> from equipoise.data.federation import Parts
    >>> parts = Parts.of([np.array([0, 1]), np.array([0, 2])])
    >>> label_distance(np.array([0, 0, 1, 1]), parts, np.arange(4), classes=2)
    array([0.5, 0. ])
    """
    counts = np.bincount(
        parts.owners * classes + labels[parts.index], minlength=len(parts) * classes
    ).reshape(len(parts), classes)
    whole = np.bincount(labels[reference], minlength=classes) / max(len(reference), 1)
    shares = counts / np.maximum(parts.sizes, 1)[:, None]
    return np.where(parts.sizes > 0, 0.5 * np.abs(shares - whole).sum(axis=1), 0.0)


def realised_shift(scores: np.ndarray, parts: Parts) -> np.ndarray:
    """Return the squared length of each client's mean in whitened scores.

    This is the shift that was realised, to be reported with the requested one.

    >>> from equipoise.data.federation import Parts
    >>> realised_shift(np.array([[1.0], [3.0], [0.0]]), Parts.of([np.array([0, 1]), np.array([2])]))
    array([4., 0.])
    """
    shifts = []
    for rows in parts:
        shifts.append(float((scores[rows].mean(axis=0) ** 2).sum()) if len(rows) else 0.0)
    return np.array(shifts)


def _relative(
    mean_shift: np.ndarray, cov_shift: np.ndarray, cov: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return X = L^-1 cov_shift L^-T, symmetric, and half of mean_shift . cov^-1 mean_shift."""
    from scipy.linalg import solve_triangular

    lower = np.linalg.cholesky(cov)
    half = solve_triangular(lower, cov_shift, lower=True)
    relative = solve_triangular(lower, half.T, lower=True)
    white = solve_triangular(lower, mean_shift, lower=True)
    return 0.5 * (relative + relative.T), float(0.5 * white @ white)

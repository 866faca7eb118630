"""Distances of clients from all data in size, labels and features, and their value by chance.

A Gaussian that is fitted to n samples in M dimensions differs from its source by about M(M+3)/(4n)
even if clients are alike; this value is reported with every divergence. Below 2M samples the
covariance is shrunk towards that of all data, and below M/2 samples there is no divergence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import erf

from equipoise.data.shift import kl_gaussian_fitted, kl_theorem22

DRAWS = 400  # simulated clients per size, where no formula gives the value by chance


@dataclass(frozen=True)
class Moments:
    """Number, mean and covariance (divisor: the number) of some samples."""

    number: float
    mean: np.ndarray
    cov: np.ndarray

    @classmethod
    def of(cls, number: float, total: np.ndarray, second: np.ndarray) -> Moments:
        """Return the moments of samples with this number, sum and sum of outer products."""
        mean = total / max(number, 1)
        return cls(number, mean, second / max(number, 1) - np.outer(mean, mean))


@dataclass(frozen=True)
class Distance:
    """The distance of a client's features from a reference, in nats.

    Attributes:
        kl: The divergence; None if there are too few samples.
        chance: The expected divergence of a client of this size if nothing differs.
        shrinkage: The share of the reference in the client's covariance.
        flat: The number of directions in which the client hardly varies, so that a lower bound
            keeps the divergence finite.
    """

    kl: float | None
    chance: float = 0.0
    shrinkage: float = 0.0
    flat: int = 0

    @property
    def excess(self) -> float | None:
        """The divergence beyond chance."""
        return None if self.kl is None else self.kl - self.chance


def distance(client: Moments, reference: Moments) -> Distance:
    """Return the Gaussian KL of a client to a reference.

    It is exact, with a covariance that is shrunk below 2M samples; it is never infinite, and None
    below M/2 samples.
    """
    m = len(reference.mean)
    n = client.number
    if not m or n < max(2, m / 2):
        return Distance(None)
    share = shrinkage(n, m)
    cov = (1 - share) * client.cov + share * reference.cov
    kl, flat = _kl(client.mean - reference.mean, cov, reference.cov, n)
    return Distance(kl, chance(int(n), m), share, flat)


def shrinkage(n: float, m: int) -> float:
    """Return the share of all data in a client's covariance, which gives it full rank.

    It is 0 from 2M samples on, and 1 without samples.

    >>> shrinkage(20, 10), shrinkage(10, 10), shrinkage(500, 10)
    (0.0, 0.5, 0.0)
    """
    return max(0.0, 1 - n / (2 * m))


def _kl(shift: np.ndarray, cov: np.ndarray, cov0: np.ndarray, n: float) -> tuple[float, int]:
    """Return the exact KL, and the number of directions whose variance was raised.

    A variance below 1/n of the reference's is set to 1/n of it, since n samples cannot show that
    it is smaller.
    """
    values, vectors = np.linalg.eigh(cov0)
    white = vectors / np.sqrt(np.maximum(values, 1e-12 * values[-1]))
    variances = np.linalg.eigvalsh(white.T @ cov @ white)
    bounded = np.maximum(variances, 1 / n)
    spread_part = 0.5 * (bounded - 1 - np.log(bounded)).sum()
    mean_part = 0.5 * ((white.T @ shift) ** 2).sum()
    return float(spread_part + mean_part), int((variances < 1 / n).sum())


@cache
def chance(n: int, m: int) -> float:
    """Return the expected KL of n samples of the reference.

    It is computed with the digamma function, or simulated where the covariance is shrunk.
    """
    if n >= 2 * m and n > m:
        return kl_gaussian_fitted(np.zeros(m), np.zeros((m, m)), np.eye(m), n)
    rng = np.random.Generator(np.random.PCG64([n, m]))
    share = shrinkage(n, m)
    divergences = []
    for _ in range(DRAWS):
        z = rng.standard_normal((n, m))
        moments = Moments.of(n, z.sum(0), z.T @ z)
        cov = (1 - share) * moments.cov + share * np.eye(m)
        divergences.append(_kl(moments.mean, cov, np.eye(m), n)[0])
    return float(np.mean(divergences))


def approximations(client: Moments, whole: Moments) -> tuple[float, float]:
    """Return Theorem 2.2 at the observed shift, corrected and as printed.

    The sampling term M(M+3)/(4n) is left out: an observed shift contains the part by chance, which
    the term would count twice.
    """
    shift = client.mean - whole.mean
    change = client.cov - whole.cov
    corrected = kl_theorem22(shift, change, whole.cov, np.inf)
    printed = kl_theorem22(shift, change, whole.cov, np.inf, "paper")
    return corrected, printed


def by_labels(numbers: np.ndarray, groups: list[Moments], whole: Moments) -> Moments:
    """Return the moments of a client with these labels if its classes are like all clients'.

    Then labels differ, and nothing else.

    Args:
        numbers: The client's samples per class.
        groups: The moments of each class over all clients.
        whole: The moments of all samples.
    """
    shares = numbers / max(numbers.sum(), 1)
    mean = np.zeros_like(whole.mean)
    second = np.zeros_like(whole.cov)
    for share, group in zip(shares, groups, strict=True):
        if share:
            mean = mean + share * group.mean
            second = second + share * (group.cov + np.outer(group.mean, group.mean))
    return Moments(float(numbers.sum()), mean, second - np.outer(mean, mean))


def label_distances(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the total variation of each client's label shares, and its value by chance.

    Args:
        counts: Samples per client and class.
    """
    sizes = counts.sum(1)
    whole = counts.sum(0) / max(counts.sum(), 1)
    shares = counts / np.maximum(sizes, 1)[:, None]
    observed = np.where(sizes > 0, 0.5 * np.abs(shares - whole).sum(1), 0.0)
    # By chance it is the mean absolute deviation of a nearly Gaussian share. The factor accounts
    # for the client being part of the whole.
    factor = np.sqrt(np.maximum(0.0, 1 - sizes / max(sizes.sum(), 1)))
    deviation = np.sqrt(whole * (1 - whole) / (2 * np.pi)).sum()
    by_chance = factor / np.sqrt(np.maximum(sizes, 1)) * deviation
    return observed, np.minimum(by_chance, 1.0)


def imbalance(sizes: np.ndarray) -> float:
    """Return 1 - (effective number of clients) / (number of clients).

    It is 0 if all have equal sizes, and near 1 if one has nearly all samples.

    >>> imbalance(np.array([5, 5])), round(imbalance(np.array([99, 1])), 3)
    (0.0, 0.49)
    """
    sizes = np.asarray(sizes, np.float64)
    if not sizes.any():
        return 0.0
    return float(1 - sizes.sum() ** 2 / (len(sizes) * (sizes**2).sum()))


def as_overlap(kl: float) -> float:
    """Return a divergence as the total variation of two Gaussians with shifted means.

    It lies between 0 (alike) and 1 (apart), and is comparable with the distance of labels.

    >>> as_overlap(0.0), round(as_overlap(0.5), 2)
    (0.0, 0.38)
    """
    return float(erf(np.sqrt(max(0.0, kl)) / 2))

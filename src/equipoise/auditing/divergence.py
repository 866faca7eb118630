"""From clients' summaries to how far each is from the whole: size, labels, features; and what would be seen of equal clients of these sizes.

A Gaussian that is fitted to n samples in M dimensions differs from its source by about M(M+3)/(4n) even where nothing differs; that is
told beside every divergence. Below 2M samples the covariance is drawn towards the whole's, and below M/2 nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import erf

from equipoise.data.shift import kl_gaussian_fitted, kl_theorem22

DRAWS = 400  # simulated clients of a size, where no formula knows what chance alone does


@dataclass(frozen=True)
class Moments:
    """Number, mean and covariance (divisor: the number) of some samples."""

    number: float
    mean: np.ndarray
    cov: np.ndarray

    @classmethod
    def of(cls, number: float, total: np.ndarray, second: np.ndarray) -> Moments:
        mean = total / max(number, 1)
        return cls(number, mean, second / max(number, 1) - np.outer(mean, mean))


@dataclass(frozen=True)
class Distance:
    """How far a client's features are from a reference, in nats."""

    kl: float | None  # None: too few to tell
    chance: float = 0.0  # what a client of this size would show if nothing differed
    shrinkage: float = 0.0  # share of the reference in the client's covariance
    flat: int = 0  # directions in which the client hardly varies, so that a floor keeps the divergence finite

    @property
    def excess(self) -> float | None:
        return None if self.kl is None else self.kl - self.chance


def distance(client: Moments, reference: Moments) -> Distance:
    """The Gaussian KL of a client to a reference: exact, shrunk below 2M samples, never infinite, None below M/2."""
    m, n = len(reference.mean), client.number
    if not m or n < max(2, m / 2):
        return Distance(None)
    share = shrinkage(n, m)
    kl, flat = _kl(
        client.mean - reference.mean,
        (1 - share) * client.cov + share * reference.cov,
        reference.cov,
        n,
    )
    return Distance(kl, chance(int(n), m), share, flat)


def shrinkage(n: float, m: int) -> float:
    """The share of the whole in a client's covariance: from 0 at 2M samples to 1 at none, so that it is of full rank.

    >>> shrinkage(20, 10), shrinkage(10, 10), shrinkage(500, 10)
    (0.0, 0.5, 0.0)
    """
    return max(0.0, 1 - n / (2 * m))


def _kl(shift: np.ndarray, cov: np.ndarray, cov0: np.ndarray, n: float) -> tuple[float, int]:
    """The exact KL; a variance below 1/n of the reference's counts as 1/n of it, since n samples cannot show that it is smaller."""
    values, vectors = np.linalg.eigh(cov0)
    white = vectors / np.sqrt(np.maximum(values, 1e-12 * values[-1]))
    seen = np.linalg.eigvalsh(white.T @ cov @ white)
    kept = np.maximum(seen, 1 / n)
    return float(0.5 * (kept - 1 - np.log(kept)).sum() + 0.5 * ((white.T @ shift) ** 2).sum()), int(
        (seen < 1 / n).sum()
    )


@cache
def chance(n: int, m: int) -> float:
    """The expected KL of n samples of the reference itself: by the digamma function, or simulated where the covariance is shrunk."""
    if n >= 2 * m and n > m:
        return kl_gaussian_fitted(np.zeros(m), np.zeros((m, m)), np.eye(m), n)
    draw, share, found = np.random.Generator(np.random.PCG64([n, m])), shrinkage(n, m), []
    for _ in range(DRAWS):
        z = draw.standard_normal((n, m))
        own = Moments.of(n, z.sum(0), z.T @ z)
        found.append(_kl(own.mean, (1 - share) * own.cov + share * np.eye(m), np.eye(m), n)[0])
    return float(np.mean(found))


def approximations(client: Moments, whole: Moments) -> tuple[float, float]:
    """Theorem 2.2 at the observed shift, corrected and as printed.

    Without its sampling term M(M+3)/(4n): an observed shift contains what chance did, and the term would count it twice.
    """
    shift, change = client.mean - whole.mean, client.cov - whole.cov
    return kl_theorem22(shift, change, whole.cov, np.inf), kl_theorem22(
        shift, change, whole.cov, np.inf, "paper"
    )


def by_labels(numbers: np.ndarray, groups: list[Moments], whole: Moments) -> Moments:
    """What a client with these label shares would look like if each of its classes were like everybody's: labels differ, and nothing else."""
    shares = numbers / max(numbers.sum(), 1)
    mean = sum(
        (s * g.mean for s, g in zip(shares, groups, strict=True) if s), np.zeros_like(whole.mean)
    )
    second = sum(
        (s * (g.cov + np.outer(g.mean, g.mean)) for s, g in zip(shares, groups, strict=True) if s),
        np.zeros_like(whole.cov),
    )
    return Moments(float(numbers.sum()), mean, second - np.outer(mean, mean))


def label_distances(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Total variation between each client's label shares and the whole's, and what chance alone would give a client of its size."""
    sizes, whole = counts.sum(1), counts.sum(0) / max(counts.sum(), 1)
    shares = counts / np.maximum(sizes, 1)[:, None]
    seen = np.where(sizes > 0, 0.5 * np.abs(shares - whole).sum(1), 0.0)
    # the mean absolute deviation of a share, nearly Gaussian; a client is part of the whole, which lowers it by the factor below
    apart = np.sqrt(np.maximum(0.0, 1 - sizes / max(sizes.sum(), 1)))
    by_chance = (
        apart / np.sqrt(np.maximum(sizes, 1)) * np.sqrt(whole * (1 - whole) / (2 * np.pi)).sum()
    )
    return seen, np.minimum(by_chance, 1.0)


def imbalance(sizes: np.ndarray) -> float:
    """1 - (how many clients of equal size would weigh the same) / (how many there are): 0 where all are equal, near 1 where one has all.

    >>> imbalance(np.array([5, 5])), round(imbalance(np.array([99, 1])), 3)
    (0.0, 0.49)
    """
    sizes = np.asarray(sizes, np.float64)
    return float(1 - sizes.sum() ** 2 / (len(sizes) * (sizes**2).sum())) if sizes.any() else 0.0


def as_overlap(kl: float) -> float:
    """A divergence as the total variation of two Gaussians that differ in their means by as much: 0 alike, 1 apart; comparable with labels.

    >>> as_overlap(0.0), round(as_overlap(0.5), 2)
    (0.0, 0.38)
    """
    return float(erf(np.sqrt(max(0.0, kl)) / 2))

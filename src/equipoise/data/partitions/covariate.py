"""Covariate shift: clients that see different regions of the input space (FedAKD, Algorithm 2).

Algorithm 2 as printed weights samples by a shifted Gaussian density in the full input space and
draws with replacement. That collapses onto a few images (singular covariance, vanishing weights),
reaches half the requested shift, and gives the same image to several clients. The default
implementation tilts exponentially along directions in the leading principal components and draws
without replacement. The printed form, in the same components, is available as ics_literal and
bcs_literal.
"""

from __future__ import annotations

import numpy as np

from equipoise.data.federation import Parts
from equipoise.data.partitions.pool import Partition, Pool
from equipoise.data.partitions.sizes import equal_sizes, fraction_sizes, power_sizes
from equipoise.data.shift import kl_gaussian_exact, realised_shift
from equipoise.streams import stream

BLOCK = 4096  # rows that are converted to float64 at once


def ics(
    pool: Pool, clients: int, seed: int, *, c: float, q: int = 10, fraction: float = 0.5
) -> Partition:
    """Shift every client's inputs by squared Mahalanobis length `c`, with power-law sizes."""
    sizes = fraction_sizes(pool, fraction, clients, power_sizes, "ics")
    return _shifted(pool, sizes, seed, "ics", c, q)


def bcs(
    pool: Pool, clients: int, seed: int, *, c: float = 5.0, q: int = 10, fraction: float = 0.5
) -> Partition:
    """Shift every client's inputs by squared Mahalanobis length `c`, with equal sizes."""
    sizes = fraction_sizes(pool, fraction, clients, equal_sizes, "bcs")
    return _shifted(pool, sizes, seed, "bcs", c, q)


def ics_literal(
    pool: Pool, clients: int, seed: int, *, c: float, q: int = 10, fraction: float = 0.5
) -> Partition:
    """Follow Algorithm 2 as printed (density weights, repeated samples), with power-law sizes."""
    sizes = fraction_sizes(pool, fraction, clients, power_sizes, "ics")
    return _shifted(pool, sizes, seed, "ics_literal", c, q, literal=True)


def bcs_literal(
    pool: Pool, clients: int, seed: int, *, c: float = 5.0, q: int = 10, fraction: float = 0.5
) -> Partition:
    """Follow Algorithm 2 as printed (density weights, repeated samples), with equal sizes."""
    sizes = fraction_sizes(pool, fraction, clients, equal_sizes, "bcs")
    return _shifted(pool, sizes, seed, "bcs_literal", c, q, literal=True)


def pc1_sorted(
    pool: Pool, clients: int, seed: int, *, sizes: str = "equal", fraction: float = 0.5
) -> Partition:
    """Cut samples sorted by their first principal component into blocks, lowest first.

    This is the partition of FedAKD's released code. The component's sign, which no library
    promises, is fixed: brighter images score higher.
    """
    if sizes not in ("equal", "pow"):
        raise ValueError(f"partition pc1_sorted: sizes must be equal or pow, got {sizes!r}")
    rule = equal_sizes if sizes == "equal" else power_sizes
    blocks = fraction_sizes(pool, fraction, clients, rule, "pc1_sorted")
    scores = whitened(pool.inputs(), 1)[:, 0]
    order = np.argsort(scores, kind="stable")[: blocks.sum()]
    owner = np.full(len(pool), -1)
    owner[order] = np.repeat(np.arange(clients), blocks)
    return Partition(Parts.by_owner(owner, clients))


def whitened(x: np.ndarray, q: int) -> np.ndarray:
    """Return scores of the leading principal components, with mean 0 and covariance I.

    The sign of each component is fixed: its sum is positive.

    Args:
        x: The inputs (n, d).
        q: The number of components.

    Raises:
        ValueError: If the inputs vary in fewer directions.
    """
    from scipy.linalg import eigh

    n, d = x.shape
    q = min(q, d)
    total = np.zeros(d)
    gram = np.zeros((d, d))
    for start in range(0, n, BLOCK):
        # In float64, sums of whole-number pixels are exact, whatever the number of threads.
        block = x[start : start + BLOCK].astype(np.float64)
        total += block.sum(axis=0)
        gram += block.T @ block
    mean = total / n
    values, vectors = eigh(gram / n - np.outer(mean, mean), subset_by_index=[d - q, d - 1])
    if values[0] <= 1e-12 * values[-1]:
        rank = int((values > 1e-12 * values[-1]).sum())
        raise ValueError(
            f"the inputs vary in {rank} directions only, {q} were requested; "
            f"use q={max(rank, 1)} or less"
        )
    vectors = vectors * np.where(vectors.sum(axis=0) < 0, -1, 1) / np.sqrt(values)
    vectors = vectors[:, ::-1]
    scores = [(x[start : start + BLOCK] - mean) @ vectors for start in range(0, n, BLOCK)]
    return np.concatenate(scores)


def directions(clients: int, q: int, c: float, rng: np.random.Generator) -> np.ndarray:
    """Return one shift per client, uniform in direction, of squared length exactly c.

    This is Algorithm 2, step 5.

    >>> (directions(3, 4, 5.0, np.random.default_rng(0)) ** 2).sum(axis=1).round(9)
    array([5., 5., 5.])
    """
    draws = rng.standard_normal((clients, q))
    return np.asarray(np.sqrt(c) * draws / np.linalg.norm(draws, axis=1, keepdims=True))


def tilted(
    z: np.ndarray, shifts: np.ndarray, sizes: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Draw disjoint samples for each client k in proportion to exp(shift_k . z).

    Sampling is without replacement, by Gumbel top-k among the unused samples. exp(shift . z) is,
    up to a constant, the ratio N(z; shift, I) / N(z; 0, I), so that the target is a shifted
    Gaussian.
    """
    chosen: list[np.ndarray] = [np.empty(0, np.int64)] * len(sizes)
    free = np.arange(len(z))
    for k in rng.permutation(len(sizes)):
        keys = z[free] @ shifts[k] + rng.gumbel(size=len(free))
        rest = len(free) - sizes[k]
        top = np.argpartition(keys, rest)[rest:]
        chosen[k] = np.sort(free[top])
        free = np.delete(free, top)
    return chosen


def density_weighted(
    z: np.ndarray, shifts: np.ndarray, sizes: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Draw samples with replacement in proportion to the density N(z; shift, I).

    This is Algorithm 2 as printed.
    """
    chosen = []
    for shift, size in zip(shifts, sizes, strict=True):
        logs = -0.5 * ((z - shift) ** 2).sum(axis=1)
        weights = np.exp(logs - logs.max())
        chosen.append(np.sort(rng.choice(len(z), size=size, p=weights / weights.sum())))
    return chosen


def _shifted(
    pool: Pool, sizes: np.ndarray, seed: int, name: str, c: float, q: int, literal: bool = False
) -> Partition:
    if c < 0 or q < 1:
        raise ValueError(
            f"partition {name}: c must be 0 or more and q at least 1, got c={c}, q={q}"
        )
    z = whitened(pool.inputs(), q)
    rng = stream(seed, "partition", name)
    shifts = directions(len(sizes), z.shape[1], c, rng)
    draw = density_weighted if literal else tilted
    chosen = draw(z, shifts, sizes, rng)
    parts = Parts.of(chosen)
    metadata = {
        "asked_shift": c,  # runs of earlier versions have this key
        "realised_shift": realised_shift(z, parts).round(6).tolist(),
        "gaussian_kl": [divergence_from_whole(z[rows]) for rows in chosen],
        "repeat_rate": [round(1 - len(np.unique(rows)) / len(rows), 6) for rows in chosen],
    }
    return Partition(parts, metadata)


def divergence_from_whole(scores: np.ndarray) -> float | None:
    """Return the KL divergence of a client's Gaussian from that of the whole set.

    It is None if the client has too few samples for a covariance of full rank.
    """
    q = scores.shape[1]
    if len(np.unique(scores, axis=0)) <= q:
        return None
    covariance = np.atleast_2d(np.cov(scores, rowvar=False, ddof=0))
    return round(kl_gaussian_exact(scores.mean(axis=0), covariance - np.eye(q), np.eye(q)), 6)

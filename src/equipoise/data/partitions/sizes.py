"""Partitions in which clients differ in size only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from equipoise.data.federation import Parts
from equipoise.data.partitions.pool import Partition, Pool
from equipoise.streams import stream

_CFFL_EXPONENT = 1.659


def max_attempts(draws: int) -> int:
    """Return how often to redraw at most.

    Args:
        draws: How many random numbers one attempt takes.

    Returns:
        10,000, or fewer where that would take long.
    """
    return min(10_000, max(20, 5_000_000 // max(draws, 1)))


def equal_sizes(total: int, clients: int) -> np.ndarray:
    """Return sizes as equal as whole numbers allow, the larger ones first.

    >>> equal_sizes(10, 4)
    array([3, 3, 2, 2])
    """
    return total // clients + (np.arange(clients) < total % clients)


def power_sizes(total: int, clients: int) -> np.ndarray:
    """Return sizes proportional to 1/k, rounded down; the first clients get one more each.

    This is the rule of FedAKD, section 4.2.

    >>> power_sizes(30_000, 10).tolist()
    [10243, 5122, 3415, 2560, 2048, 1707, 1463, 1280, 1138, 1024]
    """
    shares = 1 / np.arange(1, clients + 1)
    sizes = np.floor(total * shares / shares.sum() + 1e-9).astype(np.int64)
    remainder = total - sizes.sum()
    return np.asarray(sizes + (np.arange(clients) < remainder))


def check_enough(samples: int, clients: int, min_size: int, partition: str) -> None:
    """Refuse a minimum size that no draw can satisfy.

    Raises:
        ValueError: If there are fewer samples than clients times `min_size`.
    """
    needed = clients * min_size
    if samples < needed:
        raise ValueError(
            f"partition {partition}: {clients} clients with at least {min_size} samples need "
            f"{needed}, there are {samples}; ask for at most {samples // max(min_size, 1)} clients "
            f"or set a smaller min_size ({partition}:...,min_size=1)"
        )


def iid(pool: Pool, clients: int, seed: int) -> Partition:
    """Assign samples at random, in equal sizes."""
    check_enough(len(pool), clients, 1, "iid")
    return _assign_at_random(len(pool), equal_sizes(len(pool), clients), seed, "iid")


def pow(pool: Pool, clients: int, seed: int, *, fraction: float = 0.5) -> Partition:
    """Assign a fraction of the data at random, in power-law sizes.

    FedAKD's POW uses all of the data: `pow:1` (section 4.2).
    """
    sizes = fraction_sizes(pool, fraction, clients, power_sizes, "pow")
    return _assign_at_random(len(pool), sizes, seed, "pow")


def pow_cffl(pool: Pool, clients: int, seed: int, *, size: int = 600) -> Partition:
    """Assign samples at random, in the power-law sizes of CFFL, CGSV and FedAVE.

    The sizes lie between the 1 % and 99 % quantiles of the density a x^(a-1), a = 1.659.
    """
    if size * clients > len(pool):
        raise ValueError(
            f"partition pow_cffl: {clients} clients of {size} samples on average exceed "
            f"the {len(pool)} available ones; use a smaller size"
        )
    lowest = 0.01 ** (1 / _CFFL_EXPONENT)
    highest = 0.99 ** (1 / _CFFL_EXPONENT)
    points = np.linspace(lowest, highest, clients)
    sizes = np.floor(points / points.sum() * size * clients).astype(np.int64)
    if sizes.min() < 1:
        raise ValueError(
            f"partition pow_cffl: size {size} leaves a client without samples; use a larger size"
        )
    return _assign_at_random(len(pool), sizes, seed, "pow_cffl")


def quantity(pool: Pool, clients: int, seed: int, *, alpha: float, min_size: int = 10) -> Partition:
    """Assign samples at random, in sizes drawn from a symmetric Dirichlet distribution."""
    check_positive(alpha, "quantity")
    check_enough(len(pool), clients, min_size, "quantity")
    limit = max_attempts(clients)
    for attempt in range(limit):
        shares = stream(seed, "partition", "quantity", attempt).dirichlet(np.full(clients, alpha))
        sizes = np.diff(np.floor(np.cumsum(shares) * len(pool)).astype(np.int64), prepend=0)
        sizes[-1] += len(pool) - sizes.sum()
        if sizes.min() >= min_size:
            partition = _assign_at_random(len(pool), sizes, seed, "quantity")
            return Partition(partition.parts, {"redraws": attempt})
    raise ValueError(too_many_draws("quantity", limit, alpha, clients, min_size))


def fraction_sizes(
    pool: Pool,
    fraction: float,
    clients: int,
    rule: Callable[[int, int], np.ndarray],
    partition: str,
) -> np.ndarray:
    """Return sizes that add up to a fraction of the pool.

    Args:
        pool: The samples.
        fraction: The fraction, above 0 and at most 1.
        clients: The number of clients.
        rule: A function (total, clients) such as `equal_sizes` or `power_sizes`.
        partition: The name of the partition, for errors.

    Raises:
        ValueError: If the fraction is out of range, or a client would have no sample.
    """
    if not 0 < fraction <= 1:
        raise ValueError(
            f"partition {partition}: fraction must be above 0 and at most 1, got {fraction}"
        )
    total = int(np.floor(len(pool) * fraction + 1e-9))
    sizes = rule(total, clients)
    if sizes.min() < 1:
        raise ValueError(
            f"partition {partition}: {total} samples leave some of {clients} clients with none; "
            "ask for fewer clients or a larger fraction"
        )
    return sizes


def check_positive(alpha: float, partition: str) -> None:
    """Refuse an alpha that is not positive."""
    if not alpha > 0:
        raise ValueError(f"partition {partition}: alpha must be above 0, got {alpha}")


def too_many_draws(partition: str, draws: int, alpha: float, clients: int, min_size: int) -> str:
    """Return the message for a minimum size that no draw reached."""
    return (
        f"partition {partition}: {draws} draws with alpha={alpha} never gave each of {clients} "
        f"clients {min_size} samples; use a larger alpha, fewer clients, or a smaller min_size "
        f"({partition}:{alpha},min_size={min_size // 2})"
    )


def _assign_at_random(samples: int, sizes: np.ndarray, seed: int, name: str) -> Partition:
    order = stream(seed, "partition", name, "order").permutation(samples)
    owner = np.full(samples, -1)
    owner[order[: sizes.sum()]] = np.repeat(np.arange(len(sizes)), sizes)
    return Partition(Parts.by_owner(owner, len(sizes)))

"""Partitions that differ in size only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from equipoise.data.federation import Parts
from equipoise.data.partitions.pool import Partition, Pool
from equipoise.streams import stream


def attempts(draws: int) -> int:
    """How often to redraw at most, given how many numbers one draw takes: 10,000 times, less where that would take long."""
    return min(10_000, max(20, 5_000_000 // max(draws, 1)))


def equal_sizes(total: int, clients: int) -> np.ndarray:
    """As equal as whole numbers allow, the larger ones first.

    >>> equal_sizes(10, 4)
    array([3, 3, 2, 2])
    """
    return total // clients + (np.arange(clients) < total % clients)


def power_sizes(total: int, clients: int) -> np.ndarray:
    """Sizes proportional to 1/k, rounded down, the rest one by one to the first clients (FedAKD, section 4.2).

    >>> power_sizes(30_000, 10).tolist()
    [10243, 5122, 3415, 2560, 2048, 1707, 1463, 1280, 1138, 1024]
    """
    shares = 1 / np.arange(1, clients + 1)
    sizes = np.floor(total * shares / shares.sum() + 1e-9).astype(np.int64)
    return np.asarray(sizes + (np.arange(clients) < total - sizes.sum()))


def check_enough(samples: int, clients: int, least: int, partition: str) -> None:
    """Refuse what no draw can satisfy."""
    if samples < clients * least:
        raise ValueError(
            f"partition {partition}: {clients} clients with at least {least} samples need {clients * least}, there are {samples}; "
            f"ask for at most {samples // max(least, 1)} clients or set a smaller min_size ({partition}:...,min_size=1)"
        )


def iid(pool: Pool, clients: int, seed: int) -> Partition:
    """A random deal in equal sizes."""
    check_enough(len(pool), clients, 1, "iid")
    return _random_deal(len(pool), equal_sizes(len(pool), clients), seed, "iid")


def pow(pool: Pool, clients: int, seed: int, *, fraction: float = 0.5) -> Partition:
    """Power-law sizes, random samples, of a fraction of the data, half by default.

    FedAKD's POW deals all of the data: `pow:1` (section 4.2).
    """
    return _random_deal(
        len(pool), fraction_sizes(pool, fraction, clients, power_sizes, "pow"), seed, "pow"
    )


def pow_cffl(pool: Pool, clients: int, seed: int, *, size: int = 600) -> Partition:
    """The power-law sizes of CFFL, CGSV and FedAVE: between the 1 % and 99 % quantiles of the density a x^(a-1), a = 1.659."""
    if size * clients > len(pool):
        raise ValueError(
            f"partition pow_cffl: {clients} clients of {size} samples on average exceed the {len(pool)} there are; use a smaller size"
        )
    points = np.linspace(0.01 ** (1 / 1.659), 0.99 ** (1 / 1.659), clients)
    sizes = np.floor(points / points.sum() * size * clients).astype(np.int64)
    if sizes.min() < 1:
        raise ValueError(
            f"partition pow_cffl: size {size} leaves a client without samples; use a larger size"
        )
    return _random_deal(len(pool), sizes, seed, "pow_cffl")


def quantity(pool: Pool, clients: int, seed: int, *, alpha: float, min_size: int = 10) -> Partition:
    """Quantity skew: sizes drawn from a symmetric Dirichlet distribution, samples at random."""
    check_positive(alpha, "quantity")
    check_enough(len(pool), clients, min_size, "quantity")
    for attempt in range(attempts(clients)):
        shares = stream(seed, "partition", "quantity", attempt).dirichlet(np.full(clients, alpha))
        sizes = np.diff(np.floor(np.cumsum(shares) * len(pool)).astype(np.int64), prepend=0)
        sizes[-1] += len(pool) - sizes.sum()
        if sizes.min() >= min_size:
            deal = _random_deal(len(pool), sizes, seed, "quantity")
            return Partition(deal.parts, {"redraws": attempt})
    raise ValueError(gave_up("quantity", attempts(clients), alpha, clients, min_size))


def fraction_sizes(
    pool: Pool,
    fraction: float,
    clients: int,
    rule: Callable[[int, int], np.ndarray],
    partition: str,
) -> np.ndarray:
    """Sizes by a rule (`equal_sizes`, `power_sizes`) that add up to a fraction of the pool."""
    if not 0 < fraction <= 1:
        raise ValueError(
            f"partition {partition}: fraction must be above 0 and at most 1, got {fraction}"
        )
    total = int(np.floor(len(pool) * fraction + 1e-9))
    sizes = rule(total, clients)
    if sizes.min() < 1:
        raise ValueError(
            f"partition {partition}: {total} samples leave some of {clients} clients with none; ask for fewer clients or a larger fraction"
        )
    return sizes


def check_positive(alpha: float, partition: str) -> None:
    if not alpha > 0:
        raise ValueError(f"partition {partition}: alpha must be above 0, got {alpha}")


def gave_up(partition: str, draws: int, alpha: float, clients: int, min_size: int) -> str:
    return (
        f"partition {partition}: {draws} draws with alpha={alpha} never gave each of {clients} clients {min_size} samples; "
        f"use a larger alpha, fewer clients, or a smaller min_size ({partition}:{alpha},min_size={min_size // 2})"
    )


def _random_deal(samples: int, sizes: np.ndarray, seed: int, name: str) -> Partition:
    owner = np.full(samples, -1)
    owner[stream(seed, "partition", name, "order").permutation(samples)[: sizes.sum()]] = np.repeat(
        np.arange(len(sizes)), sizes
    )
    return Partition(Parts.by_owner(owner, len(sizes)))

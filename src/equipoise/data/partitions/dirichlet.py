"""Dirichlet partitions: each class, or cluster of inputs, is divided among clients at random."""

from __future__ import annotations

import warnings

import numpy as np

from equipoise.data.federation import Parts
from equipoise.data.partitions.pool import Partition, Pool
from equipoise.data.partitions.sizes import (
    check_enough,
    check_positive,
    max_attempts,
    too_many_draws,
)
from equipoise.streams import number, stream


def dirichlet(
    pool: Pool,
    clients: int,
    seed: int,
    *,
    alpha: float,
    min_size: int = 10,
    leftovers: str = "assign",
) -> Partition:
    """Divide every class in shares drawn from Dir(alpha).

    Shares are rounded. leftovers=assign gives the remaining samples to clients; leftovers=drop
    rounds every share down and leaves the rest out (FedAKD's DIR).
    """
    if leftovers == "deal":
        warnings.warn("leftovers=deal is now leftovers=assign", DeprecationWarning, stacklevel=2)
        leftovers = "assign"
    if leftovers not in ("assign", "drop"):
        raise ValueError(
            f"partition dirichlet: expected leftovers=assign or leftovers=drop, got {leftovers!r}"
        )
    return _divide(
        pool.labels("dirichlet"),
        clients,
        seed,
        "dirichlet",
        alpha,
        min_size,
        drop=leftovers == "drop",
    )


def dirichlet_balanced(
    pool: Pool, clients: int, seed: int, *, alpha: float, min_size: int = 10
) -> Partition:
    """Divide every class in shares drawn from Dir(alpha), with nearly equal client sizes.

    A client that holds its even share gets no samples of later classes (MOON, KDIA, CoRe-Fed).
    """
    return _divide(
        pool.labels("dirichlet_balanced"),
        clients,
        seed,
        "dirichlet_balanced",
        alpha,
        min_size,
        balanced=True,
    )


def dirichlet_bins(
    pool: Pool, clients: int, seed: int, *, alpha: float, bins: int = 5, min_size: int = 10
) -> Partition:
    """Divide k-means clusters of the inputs in shares drawn from Dir(alpha), for regression.

    This is the partition of FedeKD, section 4.1 and Appendices G and H.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    if not 1 <= bins <= len(pool):
        raise ValueError(
            f"partition dirichlet_bins: bins must lie in 1..{len(pool)} (the number of samples), "
            f"got {bins}"
        )
    random_state = number(seed, "partition", "bins") % 2**32
    # Sums over several threads change the last bits and so, now and then, a cluster.
    with threadpool_limits(1):
        model = KMeans(bins, n_init=10, random_state=random_state)
        clusters = model.fit_predict(pool.inputs())
    partition = _divide(clusters.astype(np.int64), clients, seed, "dirichlet_bins", alpha, min_size)
    bin_sizes = np.bincount(clusters, minlength=bins).tolist()
    return Partition(partition.parts, {**partition.metadata, "bin_sizes": bin_sizes})


def _divide(
    kinds: np.ndarray,
    clients: int,
    seed: int,
    name: str,
    alpha: float,
    min_size: int,
    *,
    balanced: bool = False,
    drop: bool = False,
) -> Partition:
    """Divide every kind of samples among clients in random shares.

    Counts are drawn until every client has enough. Samples are assigned after that, so that a
    rejected draw costs microseconds.
    """
    check_positive(alpha, name)
    check_enough(len(kinds), clients, min_size, name)
    totals = np.bincount(kinds)
    limit = max_attempts(clients * len(totals))
    for attempt in range(limit):
        rng = stream(seed, "partition", name, attempt)
        counts = draw_counts(totals, clients, alpha, rng, balanced=balanced, drop=drop)
        if counts is not None and counts.sum(axis=0).min() >= min_size:
            break
    else:
        raise ValueError(too_many_draws(name, limit, alpha, clients, min_size))
    rng = stream(seed, "partition", name, "order")
    owner = np.full(len(kinds), -1)
    for kind, count in enumerate(counts):
        members = rng.permutation(np.flatnonzero(kinds == kind))
        owner[members[: count.sum()]] = np.repeat(np.arange(clients), count)
    return Partition(Parts.by_owner(owner, clients), {"redraws": attempt})


def draw_counts(
    totals: np.ndarray,
    clients: int,
    alpha: float,
    rng: np.random.Generator,
    *,
    balanced: bool,
    drop: bool,
) -> np.ndarray | None:
    """Return how many samples of each class every client gets (classes x clients).

    The result is None if the draw cannot be used.
    """
    shares = rng.dirichlet(np.full(clients, alpha), size=len(totals))
    if not balanced:
        return round_shares(shares, totals, drop)
    counts = np.zeros((len(totals), clients), np.int64)
    even_share = totals.sum() / clients
    for kind in range(len(totals)):
        has_room = counts.sum(axis=0) < even_share
        rounded = round_shares((shares[kind] * has_room)[None], totals[[kind]], drop)
        if rounded is None:
            return None
        counts[kind] = rounded[0]
    return counts


def round_shares(shares: np.ndarray, totals: np.ndarray, drop: bool) -> np.ndarray | None:
    """Return whole numbers in proportion to each row of shares.

    With `drop` they are rounded down, else cut at cumulative shares so that they add up to the
    totals. The result is None if all shares of a row are 0: a tiny alpha underflows, or only
    clients without room have a share.
    """
    sums = shares.sum(axis=1, keepdims=True)
    if not (sums > 0).all():
        return None
    shares = shares / sums
    if drop:
        return np.asarray(np.floor(shares * totals[:, None]), np.int64)
    cuts = np.floor(np.cumsum(shares, axis=1) * totals[:, None]).astype(np.int64)
    cuts = np.minimum(cuts, totals[:, None])
    cuts[:, -1] = totals
    return np.asarray(np.diff(cuts, axis=1, prepend=0))

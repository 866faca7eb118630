"""Dirichlet partitions: each class (or bin of inputs) is cut among the clients in random shares."""

from __future__ import annotations

import numpy as np

from equipoise.data.federation import Parts
from equipoise.data.partitions.pool import Partition, Pool
from equipoise.data.partitions.sizes import attempts, check_enough, check_positive, gave_up
from equipoise.streams import number, stream


def dirichlet(
    pool: Pool,
    clients: int,
    seed: int,
    *,
    alpha: float,
    min_size: int = 10,
    leftovers: str = "deal",
) -> Partition:
    """Plain Dirichlet by label: shares of every class ~ Dir(alpha); leftovers=drop rounds every share down (FedAKD's DIR)."""
    if leftovers not in ("deal", "drop"):
        raise ValueError(f"partition dirichlet: leftovers must be deal or drop, got {leftovers!r}")
    return _deal(
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
    """Self-balancing Dirichlet by label: a client that holds its even share gets no more of later classes (MOON, KDIA, CoRe-Fed)."""
    return _deal(
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
    """Dirichlet over k-means clusters of the inputs, for regression (FedeKD, section 4.1 and Appendices G and H)."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    if not 1 <= bins <= len(pool):
        raise ValueError(
            f"partition dirichlet_bins: bins must lie in 1..{len(pool)} (the number of samples), got {bins}"
        )
    # one thread, because sums over threads change the last bits and so, now and then, a cluster
    with threadpool_limits(1):
        clusters = KMeans(
            bins, n_init=10, random_state=number(seed, "partition", "bins") % 2**32
        ).fit_predict(pool.inputs())
    deal = _deal(clusters.astype(np.int64), clients, seed, "dirichlet_bins", alpha, min_size)
    return Partition(
        deal.parts, {**deal.metadata, "bin_sizes": np.bincount(clusters, minlength=bins).tolist()}
    )


def _deal(
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
    """Draw counts until every client has enough; only then are samples dealt, so a rejected draw costs microseconds."""
    check_positive(alpha, name)
    check_enough(len(kinds), clients, min_size, name)
    totals = np.bincount(kinds)
    limit = attempts(clients * len(totals))
    for attempt in range(limit):
        counts = _counts(
            totals,
            clients,
            alpha,
            stream(seed, "partition", name, attempt),
            balanced=balanced,
            drop=drop,
        )
        if counts is not None and counts.sum(axis=0).min() >= min_size:
            break
    else:
        raise ValueError(gave_up(name, limit, alpha, clients, min_size))
    rng = stream(seed, "partition", name, "order")
    owner = np.full(len(kinds), -1)
    for kind, count in enumerate(counts):
        owner[rng.permutation(np.flatnonzero(kinds == kind))[: count.sum()]] = np.repeat(
            np.arange(clients), count
        )
    return Partition(Parts.by_owner(owner, clients), {"redraws": attempt})


def _counts(
    totals: np.ndarray,
    clients: int,
    alpha: float,
    rng: np.random.Generator,
    *,
    balanced: bool,
    drop: bool,
) -> np.ndarray | None:
    """How many samples of each class every client gets (classes x clients); None if the draw cannot be used."""
    shares = rng.dirichlet(np.full(clients, alpha), size=len(totals))
    if not balanced:
        return _cut(shares, totals, drop)
    counts = np.zeros((len(totals), clients), np.int64)
    for kind in range(len(totals)):
        room = counts.sum(axis=0) < totals.sum() / clients
        cut = _cut((shares[kind] * room)[None], totals[[kind]], drop)
        if cut is None:
            return None
        counts[kind] = cut[0]
    return counts


def _cut(shares: np.ndarray, totals: np.ndarray, drop: bool) -> np.ndarray | None:
    """Whole numbers in proportion to each row of shares, cut at cumulative shares or rounded down."""
    sums = shares.sum(axis=1, keepdims=True)
    if not (sums > 0).all():  # a tiny alpha underflows, or only clients without room drew a share
        return None
    shares = shares / sums
    if drop:
        return np.asarray(np.floor(shares * totals[:, None]), np.int64)
    cuts = np.floor(np.cumsum(shares, axis=1) * totals[:, None]).astype(np.int64)
    cuts = np.minimum(cuts, totals[:, None])
    cuts[:, -1] = totals
    return np.asarray(np.diff(cuts, axis=1, prepend=0))

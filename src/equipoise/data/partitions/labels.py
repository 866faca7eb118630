"""Partitions by class: nested classes, shards, a fixed number of classes per client."""

from __future__ import annotations

import numpy as np

from equipoise.data.federation import Parts
from equipoise.data.partitions.pool import Partition, Pool
from equipoise.data.partitions.sizes import equal_sizes
from equipoise.streams import stream


def cla(pool: Pool, clients: int, seed: int, *, size: int = 600) -> Partition:
    """Give client k (1, 2, ...) the first k classes, equally many of each (CFFL, FedAVE, FedAKD).

    Every client has `size` samples. Clients share no sample unless a class is too small for all
    of them; then each draws from the whole class.
    """
    labels = pool.labels("cla")
    if clients > pool.classes:
        raise ValueError(
            f"partition cla gives client k the first k classes: {clients} clients need {clients} "
            f"classes, there are {pool.classes}"
        )
    needs = _nested_needs(clients, pool.classes, size)
    _check_needs(needs, labels, size)
    rng = stream(seed, "partition", "cla")
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    reused = []
    for kind in range(pool.classes):
        members = np.flatnonzero(labels == kind)
        needed = needs[:, kind]
        if needed.sum() > len(members):
            reused.append(kind)
            draws = [rng.permutation(members)[:need] for need in needed]
        else:
            chosen = rng.permutation(members)[: needed.sum()]
            draws = np.split(chosen, np.cumsum(needed[:-1]))
        for part, draw in zip(parts, draws, strict=True):
            part.append(draw)
    joined = [np.sort(np.concatenate(part)) for part in parts]
    return Partition(Parts.of(joined), {"reused_classes": reused})


def _nested_needs(clients: int, classes: int, size: int) -> np.ndarray:
    """Return how many samples of each class every client needs (clients x classes)."""
    needs = np.zeros((clients, classes), np.int64)
    for k in range(clients):
        needs[k, : k + 1] = size // (k + 1)
        needs[k, k] += size % (k + 1)
    return needs


def _check_needs(needs: np.ndarray, labels: np.ndarray, size: int) -> None:
    """Refuse a size for which a class is too small, or which is smaller than the classes."""
    clients, classes = needs.shape
    available = np.bincount(labels, minlength=classes)
    too_small = np.flatnonzero(needs.max(axis=0) > available)
    if len(too_small):
        reason = f"class {too_small[0]} has {available[too_small[0]]} samples"
    elif size < clients:
        reason = "the last client would miss a class"
    else:
        return
    raise ValueError(
        f"partition cla: {reason}, which does not fit {size} samples per client; "
        "choose another size (cla:SIZE)"
    )


def shards(pool: Pool, clients: int, seed: int, *, per_client: int = 2) -> Partition:
    """Cut samples sorted by label into equal shards, `per_client` of them for each client.

    This is the partition of McMahan et al., 2017.
    """
    labels = pool.labels("shards")
    count = clients * per_client
    if per_client < 1 or count > len(pool):
        raise ValueError(
            f"partition shards: {clients} clients times {per_client} shards do not fit "
            f"{len(pool)} samples; use fewer clients, or a per_client of at least 1"
        )
    rng = stream(seed, "partition", "shards")
    order = np.lexsort((rng.random(len(pool)), labels))
    client_of_shard = rng.permutation(np.repeat(np.arange(clients), per_client))
    owner = np.empty(len(pool), np.int64)
    owner[order] = np.repeat(client_of_shard, equal_sizes(len(pool), count))
    return Partition(Parts.by_owner(owner, clients))


def pathological(pool: Pool, clients: int, seed: int, *, labels: int = 2) -> Partition:
    """Give every client exactly `labels` classes; divide each class equally among its clients."""
    kinds = pool.labels("pathological")
    if not 1 <= labels <= pool.classes:
        raise ValueError(
            f"partition pathological: labels per client must lie in 1..{pool.classes}, got {labels}"
        )
    rng = stream(seed, "partition", "pathological")
    holds = np.zeros((clients, pool.classes), bool)
    for k in range(clients):
        # The rarest classes so far, ties at random: all classes get almost as many clients.
        holders_so_far = holds[:k].sum(axis=0)
        chosen = np.lexsort((rng.random(pool.classes), holders_so_far))[:labels]
        holds[k, chosen] = True
    owner = np.full(len(pool), -1)
    for kind in range(pool.classes):
        members = np.flatnonzero(kinds == kind)
        holders = rng.permutation(np.flatnonzero(holds[:, kind]))
        if len(holders) > len(members):
            raise ValueError(
                f"partition pathological: class {kind} has {len(members)} samples for "
                f"{len(holders)} clients; ask for fewer clients"
            )
        if len(holders):
            sizes = equal_sizes(len(members), len(holders))
            owner[rng.permutation(members)] = np.repeat(holders, sizes)
    return Partition(Parts.by_owner(owner, clients))

"""Partitions by class: nested classes, shards, a fixed number of labels per client."""

from __future__ import annotations

import numpy as np

from equipoise.data.federation import Parts
from equipoise.data.partitions.pool import Partition, Pool
from equipoise.data.partitions.sizes import equal_sizes
from equipoise.streams import stream


def cla(pool: Pool, clients: int, seed: int, *, size: int = 600) -> Partition:
    """Client k (1, 2, ...) has the first k classes, equally many of each, `size` samples in all (CFFL, FedAVE, FedAKD's CLA).

    Clients share no sample unless a class is too small for all of them; then each draws from the whole class.
    """
    labels = pool.labels("cla")
    if clients > pool.classes:
        raise ValueError(
            f"partition cla gives client k the first k classes: {clients} clients need {clients} classes, there are {pool.classes}"
        )
    needs = np.zeros((clients, pool.classes), np.int64)
    for k in range(clients):
        needs[k, : k + 1] = size // (k + 1)
        needs[k, k] += size % (k + 1)
    have = np.bincount(labels, minlength=pool.classes)
    short = np.flatnonzero(needs.max(axis=0) > have)
    if size < clients or len(short):
        why = (
            f"class {short[0]} has {have[short[0]]} samples"
            if len(short)
            else "the last client would miss a class"
        )
        raise ValueError(
            f"partition cla: {why}, which does not fit {size} samples per client; choose another size (cla:SIZE)"
        )
    rng = stream(seed, "partition", "cla")
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    reused = []
    for kind in range(pool.classes):
        members = np.flatnonzero(labels == kind)
        if needs[:, kind].sum() > len(members):
            reused.append(kind)
            draws = [rng.permutation(members)[:need] for need in needs[:, kind]]
        else:
            draws = np.split(
                rng.permutation(members)[: needs[:, kind].sum()], np.cumsum(needs[:-1, kind])
            )
        for part, draw in zip(parts, draws, strict=True):
            part.append(draw)
    return Partition(
        Parts.of([np.sort(np.concatenate(part)) for part in parts]), {"reused_classes": reused}
    )


def shards(pool: Pool, clients: int, seed: int, *, per_client: int = 2) -> Partition:
    """Samples sorted by label and cut into equal shards, `per_client` of them to each client (McMahan et al., 2017)."""
    labels = pool.labels("shards")
    count = clients * per_client
    if per_client < 1 or count > len(pool):
        raise ValueError(
            f"partition shards: {clients} clients times {per_client} shards do not fit {len(pool)} samples"
        )
    rng = stream(seed, "partition", "shards")
    order = np.lexsort((rng.random(len(pool)), labels))
    client_of_shard = rng.permutation(np.repeat(np.arange(clients), per_client))
    owner = np.empty(len(pool), np.int64)
    owner[order] = np.repeat(client_of_shard, equal_sizes(len(pool), count))
    return Partition(Parts.by_owner(owner, clients))


def pathological(pool: Pool, clients: int, seed: int, *, labels: int = 2) -> Partition:
    """Exactly `labels` classes per client, every class dealt in equal parts to those who have it."""
    kinds = pool.labels("pathological")
    if not 1 <= labels <= pool.classes:
        raise ValueError(
            f"partition pathological: labels per client must lie in 1..{pool.classes}, got {labels}"
        )
    rng = stream(seed, "partition", "pathological")
    holds = np.zeros((clients, pool.classes), bool)
    for k in range(clients):
        # the classes held least so far, ties at random: all classes end up with almost as many holders
        holds[k, np.lexsort((rng.random(pool.classes), holds[:k].sum(axis=0)))[:labels]] = True
    owner = np.full(len(pool), -1)
    for kind in range(pool.classes):
        members, holders = (
            np.flatnonzero(kinds == kind),
            rng.permutation(np.flatnonzero(holds[:, kind])),
        )
        if len(holders) > len(members):
            raise ValueError(
                f"partition pathological: class {kind} has {len(members)} samples for {len(holders)} clients; ask for fewer clients"
            )
        if len(holders):
            owner[rng.permutation(members)] = np.repeat(
                holders, equal_sizes(len(members), len(holders))
            )
    return Partition(Parts.by_owner(owner, clients))

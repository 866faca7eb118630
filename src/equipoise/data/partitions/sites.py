"""Partitions along natural owners: hospitals, domains."""

from __future__ import annotations

import numpy as np

from equipoise.data.federation import Parts
from equipoise.data.partitions.pool import Partition, Pool
from equipoise.data.partitions.sizes import equal_sizes
from equipoise.streams import stream


def natural(pool: Pool, clients: int, seed: int) -> Partition:
    """One site, one client, under the site's name."""
    site = pool.sites("natural")
    present, place = np.unique(site, return_inverse=True)
    if clients != len(present):
        raise ValueError(
            f"partition natural makes one client of each of the {len(present)} sites; leave clients out or set it to {len(present)}"
        )
    return Partition(Parts.by_owner(place, clients), ids=tuple(pool.site_names[s] for s in present))


def domains(
    pool: Pool, clients: int, seed: int, *, fraction: float = 0.0, all_classes: int = 0
) -> Partition:
    """Each client one domain, equally many clients per domain, domains in random order over the clients, no sample shared.

    `fraction` is what each client gets of its domain (FedHEAL, FedEquilibria: 0.01 or 0.1); 0 deals the domain out equally.
    all_classes=1 swaps samples within a domain until each of its clients has every class (FedHEAL's rule for Office).
    """
    site = pool.sites("domains")
    present = np.unique(site)
    if clients % len(present):
        raise ValueError(
            f"partition domains needs equally many clients per domain: {clients} is no multiple of {len(present)} domains"
        )
    each = clients // len(present)
    if not 0 <= fraction * each <= 1 + 1e-9:
        raise ValueError(
            f"partition domains: {each} clients with a fraction {fraction} each exceed their domain; at most {1 / each:.4g}"
        )
    rng = stream(seed, "partition", "domains")
    domain_of_client = rng.permutation(np.repeat(present, each))
    owner = np.full(len(pool), -1)
    for domain in present:
        members, holders = (
            rng.permutation(np.flatnonzero(site == domain)),
            np.flatnonzero(domain_of_client == domain),
        )
        sizes = (
            np.full(each, int(fraction * len(members) + 1e-9))
            if fraction
            else equal_sizes(len(members), each)
        )
        if sizes.min() < 1:
            raise ValueError(
                f"partition domains: fraction {fraction} of {pool.site_names[domain]} ({len(members)} samples) is less than one sample"
            )
        owner[members[: sizes.sum()]] = np.repeat(holders, sizes)
        if all_classes:
            _swap_in_classes(
                pool.labels("domains"), owner, members, holders, pool.site_names[domain]
            )
    names = [pool.site_names[d] for d in domain_of_client]
    return Partition(Parts.by_owner(owner, clients), {"domains": names})


def _swap_in_classes(
    labels: np.ndarray, owner: np.ndarray, members: np.ndarray, holders: np.ndarray, domain: str
) -> None:
    """Give each holder a sample of every class of the domain, in exchange for one of its largest class."""
    classes = np.unique(labels[members])
    for client in holders:
        for kind in classes:
            mine = members[owner[members] == client]
            if (labels[mine] == kind).any():
                continue
            counts = np.bincount(labels[mine])
            # from nobody's samples first, then from a holder that keeps at least one
            having = {
                giver: int(((owner[members] == giver) & (labels[members] == kind)).sum())
                for giver in (-1, *holders)
            }
            givers = [giver for giver, count in having.items() if count > (giver != -1)]
            if counts.max() < 2 or not givers:
                raise ValueError(
                    f"partition domains: {domain} has too few samples to give each of its clients every class; use a larger fraction"
                )
            wanted = members[(owner[members] == givers[0]) & (labels[members] == kind)][0]
            given = mine[labels[mine] == counts.argmax()][0]
            owner[wanted], owner[given] = client, givers[0]

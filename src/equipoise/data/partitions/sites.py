"""Partitions by the sites or domains of the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from equipoise.data.federation import Parts
from equipoise.data.partitions.pool import Partition, Pool
from equipoise.data.partitions.sizes import equal_sizes
from equipoise.streams import stream


def natural(pool: Pool, clients: int, seed: int) -> Partition:
    """Make one client of every site, with the site's name."""
    present, index = np.unique(pool.sites("natural"), return_inverse=True)
    if clients != len(present):
        raise ValueError(
            f"partition natural makes one client of each of the {len(present)} sites; "
            f"leave clients out or set it to {len(present)}"
        )
    names = tuple(pool.site_names[site] for site in present)
    return Partition(Parts.by_owner(index, clients), ids=names)


def domains(
    pool: Pool, clients: int, seed: int, *, fraction: float = 0.0, all_classes: int = 0
) -> Partition:
    """Give every client samples of one domain, with equally many clients per domain.

    Domains are assigned to clients in random order, and no sample is shared. Clients are called
    `mnist-0`, `mnist-1` and so on. `fraction` is each
    client's fraction of its domain (FedHEAL, FedEquilibria: 0.01 or 0.1); 0 divides the domain
    equally. all_classes=1 swaps samples within a domain until each of its clients has every class
    (FedHEAL's rule for Office).
    """
    site = pool.sites("domains")
    present = np.unique(site)
    if clients % len(present):
        raise ValueError(
            f"partition domains needs equally many clients per domain: "
            f"{clients} is no multiple of {len(present)} domains"
        )
    per_domain = clients // len(present)
    if not 0 <= fraction * per_domain <= 1 + 1e-9:
        raise ValueError(
            f"partition domains: {per_domain} clients with a fraction {fraction} each exceed "
            f"their domain; at most {1 / per_domain:.4g}"
        )
    rng = stream(seed, "partition", "domains")
    domain_of_client = rng.permutation(np.repeat(present, per_domain))
    owner = np.full(len(pool), -1)
    for domain in present:
        members = rng.permutation(np.flatnonzero(site == domain))
        holders = np.flatnonzero(domain_of_client == domain)
        sizes = equal_sizes(len(members), per_domain)
        if fraction:
            sizes = np.full(per_domain, int(fraction * len(members) + 1e-9))
        if sizes.min() < 1:
            raise ValueError(
                f"partition domains: fraction {fraction} of {pool.site_names[domain]} "
                f"({len(members)} samples) is less than one sample; use a larger fraction"
            )
        owner[members[: sizes.sum()]] = np.repeat(holders, sizes)
        if all_classes:
            labels = pool.labels("domains")
            swap_in_classes(labels, owner, members, holders, pool.site_names[domain])
    names = [pool.site_names[domain] for domain in domain_of_client]
    return Partition(Parts.by_owner(owner, clients), {"domains": names}, ids=_numbered(names))


def _numbered(domains: Sequence[str]) -> tuple[str, ...]:
    """Return names of clients: their domain with a number.

    >>> _numbered(["usps", "mnist", "usps"])
    ('usps-0', 'mnist-0', 'usps-1')
    """
    counts: Counter[str] = Counter()
    names = []
    for domain in domains:
        names.append(f"{domain}-{counts[domain]}")
        counts[domain] += 1
    return tuple(names)


def swap_in_classes(
    labels: np.ndarray, owner: np.ndarray, members: np.ndarray, holders: np.ndarray, domain: str
) -> None:
    """Give each holder a sample of every class of the domain, for one of its largest class.

    Args:
        labels: The class of every sample.
        owner: The client of every sample; changed in place.
        members: The samples of the domain.
        holders: The clients of the domain.
        domain: The name of the domain, for errors.
    """
    for client in holders:
        for kind in np.unique(labels[members]):
            samples = members[owner[members] == client]
            if (labels[samples] == kind).any():
                continue
            counts = np.bincount(labels[samples])
            giver = _find_giver(labels[members] == kind, owner[members], holders)
            if counts.max() < 2 or giver is None:
                raise ValueError(
                    f"partition domains: {domain} has too few samples to give each of its clients "
                    "every class; use a larger fraction"
                )
            received = members[(owner[members] == giver) & (labels[members] == kind)][0]
            returned = samples[labels[samples] == counts.argmax()][0]
            owner[received] = client
            owner[returned] = giver


def _find_giver(has_class: np.ndarray, owner: np.ndarray, holders: np.ndarray) -> int | None:
    """Return who can give a sample of a class away: -1 for unused samples, else a client.

    A client gives only if it keeps at least one sample of the class.
    """
    if (has_class & (owner == -1)).any():
        return -1
    for holder in holders:
        if (has_class & (owner == holder)).sum() > 1:
            return int(holder)
    return None

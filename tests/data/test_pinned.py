"""A seed gives the same partition in every version: digests of who has what, for partitions and
splits that need no linear algebra.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from equipoise.data.partitions import Pool, partition_pool
from equipoise.data.splits import split

PINNED = {
    "iid": "5d720d6b1b8f7124",
    "quantity:0.5": "596d08bbc56fa0ae",
    "dirichlet:0.5": "c9c9a58042d842c5",
    "dirichlet_balanced:0.5": "2947273d03d3204e",
    "shards:2": "a2bd9e9c5e929df0",
    "pow": "aee290af5e18ff80",
    "pow_cffl:20": "6302cef398f99f71",
    "pathological:2": "486f289582f49528",
    "cla:60": "ce82245cbd28a7bb",
    "domains:0.1": "baa8517cb6ef28d0",
    "domains:0.02,all_classes=1": "c550465cc6212d44",
    "dirichlet:0.5,leftovers=drop": "ca254aa88d0cf875",
}
Y = np.arange(1200) * 7 % 10
POOL = Pool(Y, 10, np.arange(1200) % 4, ("a", "b", "c", "d"))


def digests(partition: str) -> str:
    parts = partition_pool(partition, POOL, 8 if partition.startswith("domains") else 6, 5).parts
    three = split(parts, (0.6, 0.15, 0.25), 5, strata=Y)
    whole = hashlib.blake2b(digest_size=8)
    for part in (parts, *three):
        whole.update(part.index.astype("<i8").tobytes() + part.sizes.astype("<i8").tobytes())
    return whole.hexdigest()


@pytest.mark.parametrize(("partition", "digest"), PINNED.items())
def test_who_has_what(partition: str, digest: str) -> None:
    assert digests(partition) == digest

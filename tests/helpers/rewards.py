"""What tests of methods that pay clients in parts of a step share: plain checks of what was paid,
and a server with validation data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.data.samples import Samples
from equipoise.method import Ups
from equipoise.records import Up
from equipoise.server import Server, ServerData
from equipoise.tree import Tree
from tests.helpers.images import bench

IDS = ["a", "b", "c", "d", "e"]


def vectors(trees: Sequence[Tree]) -> np.ndarray:
    """One row of trained numbers per tree, in float64."""
    return np.array(
        [
            np.concatenate([tree[name].numpy().astype(np.float64).ravel() for name in tree.trained])
            for tree in trees
        ]
    )


def assert_largest(
    paid: Mapping[str, Tensor], whole: Mapping[str, Tensor], counts: Mapping[str, int] | int
) -> None:
    """What was paid are so many numbers of largest magnitude (per tensor, or of all), as they stand
    in the whole, and zeros.
    """
    groups = {"all": list(whole)} if isinstance(counts, int) else {name: [name] for name in whole}
    for group, names in groups.items():
        given = np.concatenate([paid[name].double().numpy().ravel() for name in names])
        full = np.concatenate([whole[name].double().numpy().ravel() for name in names])
        count = counts if isinstance(counts, int) else counts[group]
        kept = given != 0
        assert kept.sum() == min(count, (full != 0).sum()), (group, kept.sum(), count)
        np.testing.assert_allclose(given[kept], full[kept], rtol=1e-5, atol=1e-7)
        assert (
            not kept.any()
            or kept.all()
            or np.abs(full[kept]).min() >= np.abs(full[~kept]).max() - 1e-7
        ), group


def ceilings(share: float, tree: Mapping[str, Tensor]) -> dict[str, int]:
    """How many numbers a share of each tensor is, rounded up."""
    return {name: math.ceil(round(share * tree[name].numel(), 7)) for name in tree}


def server_for(
    method: Any,
    ids: Sequence[str] = IDS,
    sizes: Mapping[str, int] | None = None,
    network: str = "mlp",
) -> Server:
    """A server in round 1 with clients of these sizes, and validation data."""
    workbench, _ = bench(method, network)
    assert workbench.federation is not None
    validation = Samples.of(workbench.federation, np.arange(0, 60, 2))
    return Server(
        workbench,
        list(ids),
        dict(sizes or dict.fromkeys(ids, 10)),
        3,
        1,
        data=ServerData(validation),
    )


def drawn(server: Server, seed: int, size: float = 0.1) -> Tree:
    """A random step of the server's model."""
    draw = torch.Generator().manual_seed(seed)
    like = server.initial()
    return like.params.with_flat(size * torch.randn(like.count(), generator=draw))


def replies(
    server: Server, steps: Mapping[str, Tree], name: str = "step", **more: Mapping[str, Any]
) -> Ups:
    rest = server.initial().rest
    return Ups(
        [
            (c, Up({name: step, "rest": rest, **{key: given[c] for key, given in more.items()}}))
            for c, step in steps.items()
        ]
    )

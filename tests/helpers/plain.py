"""Trees compared, and averaged, written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Bit for bit, buffers included."""
    return set(first) == set(second) and all(
        torch.equal(first[name], second[name]) for name in first
    )


def assert_near(
    tree: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 1e-6
) -> None:
    """Rounding is relative to the size of a number, so the tolerance is both."""
    assert set(tree) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(
            tree[name].double(),
            value.double(),
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, n=name: f"{n}: {text}",
        )


def assert_equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    """Bit for bit."""
    assert set(first) == set(second)
    assert all(torch.equal(first[name], second[name]) for name in first), [
        n for n in first if not torch.equal(first[n], second[n])
    ]


def plain_mean(
    trees: Sequence[Mapping[str, Tensor]], weights: Sequence[float]
) -> dict[str, Tensor]:
    """Entry by entry in float64; counters take the maximum."""
    shares = np.array(weights, dtype=np.float64) / np.sum(weights)
    return {
        name: sum(share * tree[name].double() for share, tree in zip(shares, trees, strict=True))
        if first.is_floating_point()
        else torch.stack([tree[name] for tree in trees]).amax(0)
        for name, first in trees[0].items()
    }

"""Seeded k-means: never worse than every partition tried, than scikit-learn, and the same for any
seed that finds the best.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from sklearn.cluster import KMeans

from equipoise.weighting import clusters


def spread(points: np.ndarray, groups: list[int]) -> float:
    """The sum of squared distances to the means of the groups, point by point."""
    total = 0.0
    for point, group in zip(points, groups, strict=True):
        members = [other for other, its in zip(points, groups, strict=True) if its == group]
        total += float(((point - np.mean(members, axis=0)) ** 2).sum())
    return total


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.thorough
def test_no_partition_is_better(seed: int, k: int) -> None:
    points = np.random.Generator(np.random.PCG64(seed)).standard_normal((7, 3))
    best = min(spread(points, list(groups)) for groups in product(range(k), repeat=7))
    assert spread(points, clusters(points, k, seed)) == pytest.approx(best)


def test_no_worse_than_scikit_learn() -> None:
    draw = np.random.Generator(np.random.PCG64(0))
    points = np.concatenate(
        [draw.standard_normal((15, 4)) + 4 * draw.standard_normal(4) for _ in range(5)]
    )
    theirs = KMeans(5, n_init=10, random_state=0).fit(points)
    assert spread(points, clusters(points, 5, seed=1)) <= theirs.inertia_ * (1 + 1e-9)


def test_the_same_seed_gives_the_same_groups_numbered_as_they_appear() -> None:
    points = np.random.Generator(np.random.PCG64(3)).standard_normal((40, 2))
    found = clusters(points, 6, seed=5)
    assert found == clusters(points, 6, seed=5)
    firsts = [found.index(group) for group in range(max(found) + 1)]
    assert firsts == sorted(firsts) and firsts[0] == 0
    assert any(found != clusters(points, 6, seed=other) for other in range(20)), (
        "the seed has no effect"
    )


def test_points_that_coincide_make_fewer_groups() -> None:
    assert clusters([[1.0, 2.0]] * 4, k=3) == [0, 0, 0, 0]
    assert clusters([[1.0], [5.0], [1.0]], k=3) == [0, 1, 0]
    assert clusters([[1.0]], k=5) == [0]


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one group, got 0"):
        clusters([[1.0]], k=0)
    with pytest.raises(ValueError, match="one row of finite numbers"):
        clusters([[np.nan]], k=1)
    with pytest.raises(ValueError, match=r"got shape \(2,\)"):
        clusters([1.0, 2.0], k=1)

"""Properties of partitions, over random pools: cover, disjointness, sizes, seeds, bounds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data.federation import Parts
from equipoise.data.partitions import PARTITIONS, Pool, partition_pool
from equipoise.data.splits import split

COVERS = (
    "iid",
    "quantity:0.5,min_size=0",
    "dirichlet:0.5,min_size=0",
    "dirichlet_balanced:0.5,min_size=0",
    "shards:2",
    "domains",
    "natural",
)
DISJOINT = (
    *COVERS,
    "pow",
    "pow_cffl:20",
    "pathological:1",
    "ics:3,q=2",
    "bcs:3,q=2",
    "pc1_sorted",
    "pc1_sorted:pow",
    "domains:0.1",
    "dirichlet:1,0,drop",
)
SEEDED = (
    *DISJOINT,
    "ics_literal:3,q=2",
    "bcs_literal:3,q=2",
    "cla:6",
    "dirichlet_bins:1,bins=2,min_size=0",
)
quick = settings(max_examples=15, deadline=None, derandomize=True)


@st.composite
def pools(draw: st.DrawFn) -> tuple[Pool, int]:
    """A pool with labels, two sites and inputs, and an even number of clients it can serve."""
    n, classes, seed = (
        draw(st.integers(160, 400)),
        draw(st.integers(2, 6)),
        draw(st.integers(0, 2**16)),
    )
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(classes).repeat(8), rng.integers(0, classes, n - 8 * classes)])
    x = rng.normal(size=(n, 3))
    pool = Pool(y, classes, np.arange(n) % 2, ("a", "b"), lambda: x)
    return pool, draw(st.sampled_from([2, 4, 6]))


def dealt(text: str, pool: Pool, clients: int, seed: int = 1) -> Parts:
    if text == "natural":
        clients = 2
    if text.startswith("cla"):
        clients = min(clients, pool.classes)
    return partition_pool(text, pool, clients, seed).parts


def test_the_lists_name_every_partition() -> None:
    assert {text.partition(":")[0] for text in SEEDED} == set(PARTITIONS)


@pytest.mark.parametrize("text", COVERS)
@quick
@given(pools())
def test_every_sample_goes_to_exactly_one_client(text: str, given: tuple[Pool, int]) -> None:
    pool, clients = given
    assert np.array_equal(np.sort(dealt(text, pool, clients).index), np.arange(len(pool)))


@pytest.mark.parametrize("text", DISJOINT)
@quick
@given(pools())
def test_no_sample_goes_to_two_clients(text: str, given: tuple[Pool, int]) -> None:
    pool, clients = given
    index = dealt(text, pool, clients).index
    assert len(np.unique(index)) == len(index)


@pytest.mark.parametrize("text", SEEDED)
@quick
@given(pools())
def test_the_seed_decides_and_places_exist(text: str, given: tuple[Pool, int]) -> None:
    pool, clients = given
    first, again = dealt(text, pool, clients, 3), dealt(text, pool, clients, 3)
    assert np.array_equal(first.index, again.index)
    assert np.array_equal(first.offsets, again.offsets)
    assert first.index.min() >= 0
    assert first.index.max() < len(pool)


@pytest.mark.parametrize(
    "text", [text for text in SEEDED if text != "natural" and not text.startswith("pc1")]
)
def test_another_seed_gives_another_deal(text: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    pool = Pool(np.arange(300) % 3, 3, np.arange(300) % 2, ("a", "b"), lambda: x)
    clients = 2 if text.startswith("cla") else 4
    first, other = dealt(text, pool, clients, 1), dealt(text, pool, clients, 2)
    assert not np.array_equal(first.index, other.index) or not np.array_equal(
        first.offsets, other.offsets
    )


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_balanced", "quantity"])
@quick
@given(pools(), st.integers(1, 15))
def test_everyone_has_at_least_the_least_size(
    name: str, given: tuple[Pool, int], least: int
) -> None:
    pool, clients = given
    assert dealt(f"{name}:2,min_size={least}", pool, clients).sizes.min() >= least


@quick
@given(pools())
def test_equal_and_half_sizes(given: tuple[Pool, int]) -> None:
    pool, clients = given
    sizes = dealt("iid", pool, clients).sizes
    assert sizes.max() - sizes.min() <= 1
    for text in ("pow", "ics:3,q=2", "bcs:3,q=2", "pc1_sorted"):
        assert dealt(text, pool, clients).sizes.sum() == len(pool) // 2


@quick
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=12),
    st.integers(0, 99),
    st.sampled_from([(0.7, 0.1, 0.2), (0.6, 0.2, 0.2), (1.0, 0.0, 0.0)]),
)
def test_splits_have_the_sizes_of_the_rule_and_lose_nothing(
    sizes: list[int], seed: int, shares: tuple[float, float, float]
) -> None:
    bounds = np.cumsum([0, *sizes])
    parts = Parts.of([np.arange(a, b) for a, b in pairwise(bounds)])
    train, validation, test = split(parts, shares, seed)
    for k, m in enumerate(sizes):
        assert len(test[k]) == int(shares[2] * m + 1e-9)
        assert len(validation[k]) == int(shares[1] * m + 1e-9)
        assert np.array_equal(np.sort(np.concatenate([train[k], validation[k], test[k]])), parts[k])


@quick
@given(st.integers(5, 80), st.integers(1, 6), st.integers(0, 99))
def test_strata_are_kept_within_one_sample_each(n: int, classes: int, seed: int) -> None:
    strata = np.random.default_rng(seed).integers(0, classes, n)
    _, _, test = split(Parts.of([np.arange(n)]), (0.75, 0.0, 0.25), seed, strata)
    for kind in range(classes):
        wanted = int(0.25 * n) / n * (strata == kind).sum()
        assert abs((strata[test[0]] == kind).sum() - wanted) < 1


@quick
@given(st.integers(2, 5), st.integers(20, 60), st.integers(0, 99))
def test_a_group_is_never_on_both_sides_anywhere(clients: int, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, n // 2, n)
    # samples repeat within and between clients
    parts = Parts.of([rng.integers(0, n, 15) for _ in range(clients)])
    sides = [set(groups[part.index]) for part in split(parts, (0.5, 0.2, 0.3), seed, groups=groups)]
    assert not sides[0] & sides[1]
    assert not sides[0] & sides[2]
    assert not sides[1] & sides[2]

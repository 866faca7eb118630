"""What partitions compute, number by number: defaults, bounds at which they refuse, whole numbers
out of shares, and the facts they record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats

from equipoise.data.federation import Parts
from equipoise.data.partitions import PARTITIONS, Pool, parameters, parse, partition_pool
from equipoise.data.partitions.covariate import (
    density_weighted,
    divergence_from_whole,
    tilted,
    whitened,
)
from equipoise.data.partitions.dirichlet import draw_counts, round_shares
from equipoise.data.partitions.sites import swap_in_classes
from equipoise.streams import stream

SIGNS = np.array([[a, b, c] for a in (1.0, -1.0) for b in (1.0, -1.0) for c in (1.0, -1.0)])
NEEDED = "a value is needed"
DEFAULTS: dict[str, dict[str, Any]] = {
    "iid": {},
    "pow": {"fraction": 0.5},
    "pow_cffl": {"size": 600},
    "quantity": {"alpha": NEEDED, "min_size": 10},
    "dirichlet": {"alpha": NEEDED, "min_size": 10, "leftovers": "assign"},
    "dirichlet_balanced": {"alpha": NEEDED, "min_size": 10},
    "dirichlet_bins": {"alpha": NEEDED, "bins": 5, "min_size": 10},
    "cla": {"size": 600},
    "shards": {"per_client": 2},
    "pathological": {"labels": 2},
    "ics": {"c": NEEDED, "q": 10, "fraction": 0.5},
    "bcs": {"c": 5.0, "q": 10, "fraction": 0.5},
    "ics_literal": {"c": NEEDED, "q": 10, "fraction": 0.5},
    "bcs_literal": {"c": 5.0, "q": 10, "fraction": 0.5},
    "pc1_sorted": {"sizes": "equal", "fraction": 0.5},
    "natural": {},
    "domains": {"fraction": 0.0, "all_classes": 0},
}


def pool(n: int = 100, classes: int = 2, d: int = 3) -> Pool:
    """Inputs with other deviations in each column, two sites of 60 and 40 per cent."""
    x = np.random.default_rng(0).normal(size=(n, d)) * (1 + np.arange(d)) + np.arange(d)
    return Pool(
        np.arange(n) % classes,
        classes,
        (np.arange(n) >= 0.6 * n).astype(int),
        ("a", "b"),
        lambda: x,
    )


def test_what_is_not_said_is_what_the_papers_do() -> None:
    found = {
        name: {
            p.name: NEEDED if p.default is p.empty else p.default for p in parameters(name).values()
        }
        for name in PARTITIONS
    }
    assert found == DEFAULTS


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("auto", ("auto", {})),
        ("iid", ("iid", {})),
        ("dirichlet:0.5,3,drop", ("dirichlet", {"alpha": 0.5, "min_size": 3, "leftovers": "drop"})),
        ("dirichlet:0.5,leftovers=drop", ("dirichlet", {"alpha": 0.5, "leftovers": "drop"})),
        ("quantity:min_size=4,alpha=2", ("quantity", {"min_size": 4, "alpha": 2.0})),
        ("bcs:-1", ("bcs", {"c": -1.0})),
    ],
)
def test_values_are_taken_in_order_or_by_name(text: str, given: tuple[str, dict[str, Any]]) -> None:
    assert parse(text) == given


@pytest.mark.parametrize(
    "text",
    [
        "dirichlet:inf",
        "dirichlet:nan",
        "dirichlet:-inf",
        "dirichlet:1,min_size=2.5",
        "dirichlet:1,min_size=",
    ],
)
def test_a_parameter_is_a_finite_number_of_its_type(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be of type (float|int) and finite, got"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "clients", "said"),
    [
        ("iid", 101, "partition iid: 101 clients with at least 1 samples need 101, there are 100"),
        ("pow:0", 2, "fraction must be above 0 and at most 1, got 0.0"),
        ("pow:1.01", 2, "fraction must be above 0 and at most 1, got 1.01"),
        ("bcs:fraction=0.05,q=2", 6, "partition bcs: 5 samples leave some of 6 clients with none"),
        (
            "pow:0.05",
            4,
            "partition pow: 5 samples leave some of 4 clients with none",
        ),  # the last share: 5 / 4 / 2.083, below 1, and no rest
        ("quantity:0", 2, "partition quantity: alpha must be above 0"),
        ("dirichlet_balanced:0", 2, "partition dirichlet_balanced: alpha must be above 0"),
        (
            "quantity:1,min_size=51",
            2,
            "partition quantity: 2 clients with at least 51 samples need 102, there are 100",
        ),
        ("dirichlet:1,leftovers=keep", 2, "leftovers=assign or leftovers=drop, got 'keep'"),
        ("dirichlet_bins:1,bins=0", 2, r"bins must lie in 1\.\.100 .* got 0"),
        ("dirichlet_bins:1,bins=101", 2, r"bins must lie in 1\.\.100 .* got 101"),
        ("shards:0", 2, "2 clients times 0 shards do not fit 100 samples"),
        ("pathological:0", 2, r"labels per client must lie in 1\.\.2, got 0"),
        ("pathological:3", 2, r"labels per client must lie in 1\.\.2, got 3"),
        ("ics:-0.1,q=2", 2, "partition ics: c must be 0 or more and q at least 1, got c=-0.1, q=2"),
        ("bcs:1,q=0", 2, "partition bcs: c must be 0 or more and q at least 1, got c=1.0, q=0"),
        ("pc1_sorted:big", 2, "sizes must be equal or pow, got 'big'"),
        (
            "pc1_sorted:fraction=0.02",
            3,
            "partition pc1_sorted: 2 samples leave some of 3 clients with none",
        ),
        ("natural", 1, "one client of each of the 2 sites"),
        ("domains:-0.1", 2, "1 clients with a fraction -0.1 each exceed their domain; at most 1"),
        ("domains:0.51", 4, "2 clients with a fraction 0.51 each exceed their domain; at most 0.5"),
        ("domains:0.02", 2, r"fraction 0.02 of b \(40 samples\) is less than one sample"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, clients: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        partition_pool(text, pool(), clients, 1)


@pytest.mark.parametrize(
    ("text", "clients", "sizes"),
    [
        ("iid", 100, [1] * 100),
        ("iid", 3, [34, 33, 33]),
        ("pow:0.29", 1, [29]),  # in floating point 28.999...
        ("pow:1", 2, [67, 33]),
        ("pow:0.07", 3, [4, 2, 1]),
        ("bcs:fraction=0.05,q=2", 5, [1] * 5),
        ("bcs:0,q=1,fraction=1", 4, [25] * 4),
        ("ics:0,q=1,fraction=1", 2, [67, 33]),
        ("ics_literal:1,q=1,fraction=0.07", 3, [4, 2, 1]),
        ("bcs_literal:1,q=1,fraction=0.07", 3, [3, 2, 2]),
        ("pc1_sorted:pow,1", 2, [67, 33]),
        ("pc1_sorted:fraction=0.02", 2, [1, 1]),
        ("quantity:1e9,min_size=50", 2, [50, 50]),
        ("dirichlet_balanced:1e12,min_size=50", 2, [50, 50]),
        ("dirichlet:1e12,min_size=50", 2, [50, 50]),
        ("pathological:2", 2, [50, 50]),
        ("shards:50", 2, [50, 50]),
        ("cla:30", 2, [30, 30]),
    ],
)
def test_what_just_fits_is_dealt(text: str, clients: int, sizes: list[int]) -> None:
    assert (
        sorted(partition_pool(text, pool(), clients, 1).parts.sizes.tolist(), reverse=True) == sizes
    )


@pytest.mark.parametrize(
    ("text", "a", "b"),
    [("domains:0.5", 30, 20), ("domains:0.025", 1, 1), ("domains", 30, 20), ("domains:0.05", 3, 2)],
)
def test_a_domain_gives_each_of_its_clients_as_much(text: str, a: int, b: int) -> None:
    dealt = partition_pool(text, pool(), 4, 1)
    assert (
        sorted(zip(dealt.metadata["domains"], dealt.parts.sizes.tolist(), strict=True))
        == [("a", a)] * 2 + [("b", b)] * 2
    )


def test_fractions_of_a_domain_lose_nothing_to_rounding() -> None:
    whole = Pool(np.zeros(100, np.int64), 1, np.zeros(100, np.int64), ("a",))
    # in floating point 28.999...
    assert partition_pool("domains:0.29", whole, 1, 1).parts.sizes.tolist() == [29]
    assert partition_pool("domains:0.1", whole, 10, 1).parts.sizes.tolist() == [10] * 10
    assert partition_pool("domains", whole, 3, 1).parts.sizes.tolist() == [34, 33, 33]


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_balanced", "quantity"])
def test_draws_that_leave_somebody_with_too_little_are_counted(name: str) -> None:
    """The number that is recorded is that of the first draw by which everybody has enough."""
    dealt = partition_pool(f"{name}:0.7,min_size=12", pool(), 4, 3)
    enough = []
    for attempt in range(100):
        rng = stream(3, "partition", name, attempt)
        if name == "quantity":
            shares = rng.dirichlet([0.7] * 4)
            sizes = np.diff([0, *(int(100 * share) for share in np.cumsum(shares)[:-1]), 100])
        else:
            sizes = draw_counts(
                np.array([50, 50]), 4, 0.7, rng, balanced=name != "dirichlet", drop=False
            ).sum(axis=0)  # type: ignore[union-attr]
        enough.append(sizes.min() >= 12)
    assert dealt.metadata == {"redraws": enough.index(True)} and dealt.metadata["redraws"] > 0
    assert dealt.parts.sizes.sum() == 100


@pytest.mark.parametrize(
    ("shares", "totals", "drop", "counts"),
    [
        ([[0.5, 0.3, 0.2]], [7], False, [[3, 2, 2]]),  # cut at 3.5 and 5.6
        ([[0.5, 0.3, 0.2]], [7], True, [[3, 2, 1]]),
        (
            [[1, 1, 2], [3, 1, 0]],
            [8, 4],
            False,
            [[2, 2, 4], [3, 1, 0]],
        ),  # rows need not add up to 1
        ([[1, 1, 2], [3, 1, 0]], [8, 4], True, [[2, 2, 4], [3, 1, 0]]),
        ([[0.1] * 3 + [0.7]], [10], False, [[1, 1, 1, 7]]),
        ([[1, 1], [0, 0]], [8, 4], False, None),
    ],
)
def test_shares_become_whole_numbers(
    shares: list[list[float]], totals: list[int], drop: bool, counts: list[list[int]] | None
) -> None:
    found = round_shares(np.array(shares, float), np.array(totals), drop)
    assert found is None if counts is None else found is not None and found.tolist() == counts


@pytest.mark.parametrize("clients", range(2, 60))
def test_no_sample_is_lost_where_equal_shares_do_not_quite_add_up(clients: int) -> None:
    found = round_shares(np.full((1, clients), 1 / clients), np.array([clients]), False)
    assert found is not None and found.sum() == clients


class Told:
    """A generator that draws scripted values."""

    def __init__(self, *shares: list[float]) -> None:
        self.shares = np.array(shares)

    def dirichlet(self, alpha: np.ndarray, size: int) -> np.ndarray:
        assert (len(alpha), size) == self.shares.shape[::-1]
        return self.shares


@pytest.mark.parametrize(
    ("shares", "counts"),
    [
        (
            [[1, 0], [0.5, 0.5]],
            [[5, 0], [0, 5]],
        ),  # the first holds its even share of 5: all of the next class goes to the other
        ([[0.8, 0.2], [0.6, 0.4]], [[4, 1], [3, 2]]),  # 4 of 5: there is room
        ([[1, 0], [1, 0]], None),  # only who has no room drew a share
    ],
)
def test_a_client_with_its_even_share_gets_no_more(
    shares: list[list[float]], counts: list[list[int]] | None
) -> None:
    found = draw_counts(np.array([5, 5]), 2, 1.0, Told(*shares), balanced=True, drop=False)  # type: ignore[arg-type]
    assert found is None if counts is None else found is not None and found.tolist() == counts


def test_sizes_between_quantiles_of_a_power_law_to_the_sample() -> None:
    """So many samples that a tenth of a per cent of the density shows; and so few that the smallest
    client has one.
    """
    for size, n in ((9000, 100_000), (12, 120), (11, 110)):
        law = scipy.stats.powerlaw(1.659)
        points = np.linspace(law.ppf(0.01), law.ppf(0.99), 10)
        wanted = np.floor(10 * size * points / points.sum()).astype(int).tolist()
        assert (
            partition_pool(f"pow_cffl:{size}", Pool(np.zeros(n), 0), 10, 1).parts.sizes.tolist()
            == wanted
        )
    assert wanted[0] == 1


def test_without_classes_nothing_is_dealt_by_label() -> None:
    with pytest.raises(
        ValueError, match="partition shards needs class labels but the targets are numbers"
    ):
        partition_pool("shards", Pool(np.zeros(10)), 2, 1)


def test_bins_of_inputs_are_counted() -> None:
    x = np.repeat([[0.0], [100.0], [200.0]], [6, 3, 1], axis=0) + np.arange(10)[:, None] / 100
    lone = Pool(np.arange(10.0), 0, features=lambda: x)
    assert sorted(
        partition_pool("dirichlet_bins:1e6,bins=3,min_size=0", lone, 2, 1).metadata["bin_sizes"]
    ) == [1, 3, 6]
    assert (
        partition_pool("dirichlet_bins:1e6,bins=10,min_size=0", lone, 2, 1).metadata["bin_sizes"]
        == [1] * 10
    )
    one = partition_pool("dirichlet_bins:1e6,bins=1,min_size=4", lone, 2, 1)
    assert one.metadata == {"redraws": 0, "bin_sizes": [10]} and one.parts.sizes.tolist() in (
        [5, 5],
        [4, 6],
    )


def test_whitened_scores_are_principal_components_with_their_sums_positive() -> None:
    x = pool(200, d=4).inputs() @ np.random.default_rng(1).normal(size=(4, 4))
    values, vectors = np.linalg.eigh(np.cov(x, rowvar=False, ddof=0))
    for q in (1, 3, 4, 9):
        kept = min(q, 4)
        chosen = vectors[:, ::-1][:, :kept] * np.sign(vectors[:, ::-1][:, :kept].sum(axis=0))
        assert np.allclose(
            whitened(x, q), (x - x.mean(axis=0)) @ chosen / np.sqrt(values[::-1][:kept]), atol=1e-9
        )


def test_directions_that_hardly_vary_do_not_count() -> None:
    """Below a millionth of the largest deviation."""
    assert whitened(SIGNS * [1, 1.2e-6, 1.2e-6], 3).shape == (8, 3)
    with pytest.raises(
        ValueError, match="vary in 2 directions only, 3 were requested; use q=2 or less"
    ):
        whitened(SIGNS * [9, 9 * 1.2e-6, 9 * 0.9e-6], 3)
    assert whitened(SIGNS * [0.2, 0.2 * 1.2e-6, 1], 2).shape == (8, 2)
    with pytest.raises(
        ValueError, match="vary in 1 directions only, 3 were requested; use q=1 or less"
    ):
        whitened(SIGNS * [1, 0.9e-6, 0.9e-6], 3)
    with pytest.raises(
        ValueError, match="vary in 0 directions only, 1 were requested; use q=1 or less"
    ):
        whitened(np.ones((5, 2)), 1)


def test_tilting_may_take_all_and_takes_nothing_twice() -> None:
    z = np.linspace(-3, 3, 40)[:, None]
    low, high = tilted(z, np.array([[-1e3], [1e3]]), np.array([10, 30]), np.random.default_rng(0))
    assert low.tolist() == list(range(10)) and high.tolist() == list(range(10, 40))
    assert tilted(z, np.array([[1.0]]), np.array([40]), np.random.default_rng(0))[
        0
    ].tolist() == list(range(40))


def test_densities_far_from_every_sample_are_still_compared() -> None:
    z = np.array([[100.0], [101.0], [99.0]])
    assert (
        density_weighted(z, np.zeros((1, 1)), np.array([5]), np.random.default_rng(0))[0].tolist()
        == [2] * 5
    )


def test_the_shift_that_was_reached_is_recorded() -> None:
    given = pool(400)
    z = whitened(given.inputs(), 2)
    for name in ("ics", "bcs_literal"):
        dealt = partition_pool(f"{name}:3,q=2", given, 3, 1)
        facts = dealt.metadata
        assert facts["asked_shift"] == 3.0
        for k, rows in enumerate(dealt.parts):
            mean, spread = z[rows].mean(axis=0), np.cov(z[rows], rowvar=False, ddof=0)
            assert facts["realised_shift"][k] == pytest.approx((mean**2).sum(), abs=1e-6)
            assert facts["gaussian_kl"][k] == pytest.approx(
                0.5 * (np.trace(spread) + mean @ mean - 2 - np.log(np.linalg.det(spread))), abs=1e-6
            )
            assert facts["repeat_rate"][k] == pytest.approx(
                1 - len(set(rows.tolist())) / len(rows), abs=1e-6
            )
        assert (max(facts["repeat_rate"]) > 0) == (name == "bcs_literal")
        assert all(
            round(value, 6) == value
            for fact in ("realised_shift", "gaussian_kl", "repeat_rate")
            for value in facts[fact]
        )
    assert partition_pool("bcs:q=2", given, 3, 1).metadata["asked_shift"] == 5.0


def test_a_covariance_needs_more_different_samples_than_directions() -> None:
    assert divergence_from_whole(np.array([[0.0, 0], [1, 0], [1, 0], [1, 0]])) is None
    assert divergence_from_whole(np.array([[0.0, 0], [1, 0], [0, 1], [0, 1]])) is not None
    assert divergence_from_whole(np.array([[-2.0], [2.0]])) == pytest.approx(
        0.5 * (4 - 1 - np.log(4)), abs=1e-6
    )


def swapped(labels: list[int], owner: list[int], holders: list[int]) -> list[int]:
    """Who owns what after classes were swapped; the whole is one domain."""
    after = np.array(owner)
    swap_in_classes(np.array(labels), after, np.arange(len(labels)), np.array(holders), "clipart")
    return after.tolist()


def test_a_missing_class_comes_from_nobodys_samples_first() -> None:
    # Client 4 lacks class 1: it gives its first of class 0, which it has most of, and gets
    # nobody's, although client 7 has two.
    assert swapped([0, 0, 2, 1, 1, 1, 0, 2], [4, 4, 4, -1, 7, 7, 7, 7], [4, 7]) == [
        -1,
        4,
        4,
        4,
        7,
        7,
        7,
        7,
    ]
    # Nobody's are none: client 7, who keeps one, gives its first.
    assert swapped([0, 0, 2, 1, 1, 0, 2], [4, 4, 4, 7, 7, 7, 7], [4, 7]) == [7, 4, 4, 4, 7, 7, 7]
    # All have all: nothing moves.
    assert swapped([0, 1, 0, 1], [4, 4, 7, 7], [4, 7]) == [4, 4, 7, 7]


@pytest.mark.parametrize(
    ("labels", "owner"),
    [
        ([0, 0, 1, 0], [4, 4, 7, 7]),  # who has one of class 1 does not give it away
        ([0, 2, 1, 1, 0, 2], [4, 4, 7, 7, 7, 7]),  # client 4 has no class twice
    ],
)
def test_classes_that_cannot_be_swapped_in_are_refused(labels: list[int], owner: list[int]) -> None:
    with pytest.raises(
        ValueError,
        match=(
            "clipart has too few samples to give each of its clients every class; use a larger "
            "fraction"
        ),
    ):
        swapped(labels, owner, [4, 7])


def test_the_sorted_scores_are_cut_into_blocks_by_size() -> None:
    x = np.arange(12.0)[:, None] * [1, 2]
    dealt = partition_pool(
        "pc1_sorted:pow,fraction=0.75", Pool(np.zeros(12, np.int64), 1, features=lambda: x), 2, 1
    )
    assert [part.tolist() for part in dealt.parts] == [[0, 1, 2, 3, 4, 5], [6, 7, 8]]
    assert isinstance(dealt.parts, Parts) and dealt.ids == () and dealt.metadata == {}

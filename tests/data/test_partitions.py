from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from equipoise.data.partitions import Pool, parse, partition_pool
from equipoise.data.partitions.covariate import density_weighted, directions, tilted, whitened
from equipoise.data.partitions.sizes import max_attempts, power_sizes


def labels_pool(per_class: int = 100, classes: int = 10) -> Pool:
    return Pool(np.tile(np.arange(classes), per_class), classes)


def gaussian_pool(n: int = 4000, d: int = 6, seed: int = 0) -> Pool:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 3
    return Pool(np.zeros(n, np.int64), 1, features=lambda: x)


@pytest.mark.parametrize(
    ("total", "sizes"),
    [
        (30_000, [10243, 5122, 3415, 2560, 2048, 1707, 1463, 1280, 1138, 1024]),
        (25_000, [8536, 4268, 2846, 2134, 1708, 1422, 1219, 1066, 948, 853]),
        (35_000, [11950, 5975, 3984, 2988, 2390, 1992, 1707, 1493, 1327, 1194]),
    ],
)
def test_power_law_sizes_are_those_of_the_paper(total: int, sizes: list[int]) -> None:
    assert power_sizes(total, 10).tolist() == sizes


def test_pow_deals_half_by_default_and_all_when_asked() -> None:
    assert (
        partition_pool("pow", labels_pool(), 10, 1).parts.sizes.tolist()
        == power_sizes(500, 10).tolist()
    )
    assert partition_pool("pow:1", labels_pool(), 10, 1).parts.sizes.sum() == 1000


def test_pow_cffl_sizes_ascend_and_average_to_the_size_asked_for() -> None:
    sizes = partition_pool("pow_cffl:90", labels_pool(), 10, 1).parts.sizes
    assert np.all(np.diff(sizes) > 0)
    assert 890 <= sizes.sum() <= 900


def test_pow_cffl_sizes_lie_between_the_quantiles_of_a_power_law() -> None:
    law = scipy.stats.powerlaw(1.659)
    points = np.linspace(law.ppf(0.01), law.ppf(0.99), 10)
    assert (
        partition_pool("pow_cffl:90", labels_pool(), 10, 1).parts.sizes.tolist()
        == np.floor(900 * points / points.sum()).tolist()
    )


def test_a_draw_that_gives_just_the_smallest_size_is_taken() -> None:
    """With so large an alpha all clients get the same share: of 105 samples of each of two classes
    10 or 11.
    """
    dealt = partition_pool("dirichlet:1e12,min_size=20", labels_pool(105, 2), 10, 1)
    assert dealt.parts.sizes.min() == 20 and dealt.metadata["redraws"] == 0


def test_pow_cffl_takes_all_there_is_and_refuses_more() -> None:
    """1,000 samples: 10 clients of 100 on average are the most."""
    parts = partition_pool("pow_cffl:100", labels_pool(), 10, 1).parts
    assert 990 <= parts.sizes.sum() <= 1000 and len(np.unique(parts.index)) == parts.sizes.sum()
    with pytest.raises(
        ValueError,
        match="10 clients of 101 samples on average exceed the 1000 .*; use a smaller size",
    ):
        partition_pool("pow_cffl:101", labels_pool(), 10, 1)
    with pytest.raises(
        ValueError, match="size 1 leaves a client without samples; use a larger size"
    ):
        partition_pool("pow_cffl:1", labels_pool(), 10, 1)


def test_dirichlet_drop_loses_less_than_one_sample_per_client_and_class() -> None:
    parts = partition_pool("dirichlet:1,leftovers=drop,min_size=1", labels_pool(), 10, 1).parts
    assert 900 < parts.sizes.sum() < 1000


def test_large_alpha_approaches_equal_shares_of_every_class() -> None:
    pool = labels_pool(1000)
    for part in partition_pool("dirichlet:100000", pool, 4, 1).parts:
        assert np.abs(np.bincount(pool.y[part], minlength=10) - 250).max() <= 5


def test_self_balancing_gives_nothing_more_to_a_client_that_is_full() -> None:
    pool = labels_pool(100)
    parts = partition_pool("dirichlet_balanced:0.1,min_size=1", pool, 10, 3).parts
    assert len(parts) == 10
    for part in parts:
        counts = np.bincount(pool.y[part], minlength=10)
        before_last_class = len(part) - counts[np.flatnonzero(counts)[-1]]
        assert before_last_class < 100  # the even share: once it is reached no later class is added


@pytest.mark.thorough
def test_impossible_requests_end_in_an_explained_error() -> None:
    with pytest.raises(
        ValueError, match="200 clients with at least 10 samples need 2000, there are 1000"
    ):
        partition_pool("dirichlet:0.5", labels_pool(), 200, 1)
    with pytest.raises(
        ValueError,
        match=(
            r"^partition dirichlet: \d+ draws with alpha=0.01 never gave each of 99 clients 10 "
            r"samples"
        ),
    ):
        partition_pool("dirichlet:0.01", labels_pool(), 99, 1)
    with pytest.raises(ValueError, match="alpha must be above 0"):
        partition_pool("dirichlet:0", labels_pool(), 2, 1)


@pytest.mark.thorough
def test_an_alpha_so_small_that_shares_underflow_is_no_endless_loop() -> None:
    with pytest.raises(ValueError, match="never gave"):
        partition_pool("dirichlet_balanced:1e-320", labels_pool(100, 2), 10, 1)


def test_dirichlet_bins_keeps_clusters_apart() -> None:
    x = np.concatenate([np.zeros((50, 2)), np.full((50, 2), 100.0)]) + np.random.default_rng(
        0
    ).normal(size=(100, 2))
    pool = Pool(np.linspace(0, 1, 100, dtype=np.float32), 0, features=lambda: x)
    dealt = partition_pool("dirichlet_bins:0.05,bins=2,min_size=1", pool, 2, 1)
    assert dealt.metadata["bin_sizes"] == [50, 50]
    # at so small an alpha one client takes almost all of a bin, far from the even 25
    low = np.array([(part < 50).sum() for part in dealt.parts])
    assert max(low.max(), (dealt.parts.sizes - low).max()) >= 45
    with pytest.raises(ValueError, match="use dirichlet_bins"):
        partition_pool("dirichlet:0.5", pool, 2, 1)


def test_cla_client_k_has_the_first_k_classes_in_equal_numbers() -> None:
    pool = labels_pool(400)
    dealt = partition_pool("cla:100", pool, 10, 1)
    for k, part in enumerate(dealt.parts, start=1):
        counts = np.bincount(pool.y[part], minlength=10)
        assert counts[: k - 1].tolist() == [100 // k] * (k - 1)
        assert counts[k - 1] == 100 // k + 100 % k
        assert not counts[k:].any()
    # 2.93 * 100 of class 0 fit into 400: nobody shares
    assert len(np.unique(dealt.parts.index)) == 1000
    assert dealt.metadata["reused_classes"] == []


def test_cla_shares_a_class_across_clients_only_where_it_is_too_small() -> None:
    pool = labels_pool(200)
    dealt = partition_pool("cla:100", pool, 10, 1)
    assert dealt.metadata["reused_classes"] == [0]
    for part in dealt.parts:
        assert len(np.unique(part)) == len(part) == 100


def test_cla_refuses_more_clients_than_classes_and_classes_too_small() -> None:
    with pytest.raises(ValueError, match="11 clients need 11 classes"):
        partition_pool("cla:50", labels_pool(), 11, 1)
    with pytest.raises(ValueError, match="class 0 has 20 samples"):
        partition_pool("cla:50", labels_pool(20), 10, 1)


def test_partitions_by_label_fit_exactly() -> None:
    """No sample is shared if each client can have its own, and a partition that just fits works."""
    # Client 1 wants 12 of class 0, client 2 has 6 + 6, client 3 has 4 + 4 + 4: 22 of class 0, 10 of
    # class 1, 4 of class 2.
    exact = partition_pool("cla:12", Pool(np.repeat([0, 1, 2], [22, 10, 4]), 3), 3, 1)
    assert exact.metadata["reused_classes"] == [] and sorted(exact.parts.index) == list(range(36))
    short = partition_pool("cla:12", Pool(np.repeat([0, 1, 2], [21, 10, 4]), 3), 3, 1)
    assert short.metadata["reused_classes"] == [0]
    # The most that one client wants of a class is all of it.
    least = partition_pool("cla:12", Pool(np.repeat([0, 1, 2], [12, 6, 4]), 3), 3, 1)
    assert least.metadata["reused_classes"] == [0, 1] and least.parts.sizes.tolist() == [12] * 3
    with pytest.raises(ValueError, match="class 0 has 11 samples"):
        partition_pool("cla:12", Pool(np.repeat([0, 1, 2], [11, 6, 4]), 3), 3, 1)
    # As many clients as samples: one sample per client in the whole set, in a class, of a size.
    assert partition_pool("shards:1", labels_pool(1, 6), 6, 1).parts.sizes.tolist() == [1] * 6
    assert partition_pool("pathological:1", labels_pool(2, 3), 6, 1).parts.sizes.tolist() == [1] * 6
    assert partition_pool("cla:3", labels_pool(5, 3), 3, 1).parts.sizes.tolist() == [3] * 3
    assert len(partition_pool("cla:10", labels_pool(), 10, 1).parts) == 10
    with pytest.raises(ValueError, match="do not fit 6 samples"):
        partition_pool("shards:1", labels_pool(1, 6), 7, 1)
    with pytest.raises(ValueError, match="ask for fewer clients"):
        partition_pool("pathological:1", labels_pool(2, 3), 7, 1)
    with pytest.raises(ValueError, match="the last client would miss a class"):
        partition_pool("cla:2", labels_pool(5, 3), 3, 1)


def test_shards_hold_few_labels_and_pathological_exactly_as_many_as_asked() -> None:
    pool = labels_pool()
    assert (
        max(len(np.unique(pool.y[part])) for part in partition_pool("shards:2", pool, 10, 1).parts)
        <= 4
    )
    assert {
        len(np.unique(pool.y[part])) for part in partition_pool("pathological:3", pool, 10, 1).parts
    } == {3}


def test_natural_is_one_client_per_site_under_its_name() -> None:
    pool = Pool(np.zeros(5, np.int64), 1, np.array([2, 0, 2, 0, 0]), ("a", "unused", "b"))
    dealt = partition_pool("natural", pool, 2, 1)
    assert dealt.ids == ("a", "b")
    assert [part.tolist() for part in dealt.parts] == [[1, 3, 4], [0, 2]]
    with pytest.raises(ValueError, match="each of the 2 sites"):
        partition_pool("natural", pool, 3, 1)
    with pytest.raises(ValueError, match="this set has none"):
        partition_pool("natural", labels_pool(), 2, 1)


def domain_pool() -> Pool:
    site = np.repeat([0, 1], [600, 300])
    return Pool(np.arange(900) % 10, 10, site, ("large", "small"))


def test_domains_gives_each_client_a_fraction_of_one_domain() -> None:
    pool = domain_pool()
    dealt = partition_pool("domains:0.1", pool, 6, 1)
    assert sorted(dealt.metadata["domains"]) == ["large"] * 3 + ["small"] * 3
    assert sorted(dealt.ids) == ["large-0", "large-1", "large-2", "small-0", "small-1", "small-2"]
    for name, client in zip(dealt.metadata["domains"], dealt.ids, strict=True):
        assert client.startswith(f"{name}-")
    assert pool.site is not None
    for name, part in zip(dealt.metadata["domains"], dealt.parts, strict=True):
        assert {pool.site_names[s] for s in pool.site[part]} == {name}
        assert len(part) == {"large": 60, "small": 30}[name]
    assert len(np.unique(dealt.parts.index)) == len(dealt.parts.index)
    assert partition_pool("domains", pool, 6, 1).parts.sizes.sum() == 900


def test_domains_can_make_sure_that_every_client_has_every_class() -> None:
    pool = domain_pool()
    plain = partition_pool("domains:0.04", pool, 6, 1).parts
    assert any(len(np.unique(pool.y[part])) < 10 for part in plain)
    swapped = partition_pool("domains:0.04,all_classes=1", pool, 6, 1).parts
    assert all(len(np.unique(pool.y[part])) == 10 for part in swapped)
    assert swapped.sizes.tolist() == plain.sizes.tolist()
    assert len(np.unique(swapped.index)) == len(swapped.index)


def test_domains_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="no multiple of 2 domains"):
        partition_pool("domains:0.1", domain_pool(), 5, 1)
    with pytest.raises(ValueError, match=r"at most 0\.3333"):
        partition_pool("domains:0.5", domain_pool(), 6, 1)


@pytest.mark.parametrize(
    ("draws", "times"),
    [(0, 10_000), (10, 10_000), (500, 10_000), (1000, 5000), (250_000, 20), (10**8, 20)],
)
def test_redraws_are_fewer_where_one_takes_long(draws: int, times: int) -> None:
    assert max_attempts(draws) == times


def test_whitened_scores_have_mean_zero_and_unit_covariance() -> None:
    z = whitened(gaussian_pool().inputs(), 4)
    assert np.abs(z.mean(axis=0)).max() < 1e-9
    assert np.abs(np.cov(z, rowvar=False, ddof=0) - np.eye(4)).max() < 1e-9


def test_whitening_refuses_more_directions_than_the_inputs_have() -> None:
    flat = np.column_stack([np.arange(50.0), np.arange(50.0), np.zeros(50)])
    with pytest.raises(ValueError, match="vary in 1 directions only"):
        whitened(flat, 2)
    assert whitened(flat, 1).shape == (50, 1)
    signs = np.array([[a, b, c] for a in (1, -1) for b in (1, -1) for c in (1, -1)])
    with pytest.raises(
        ValueError, match="vary in 1 directions only, 3 were requested; use q=1 or less"
    ):
        whitened(signs * [1.0, 1e-7, 2e-7], 3)  # next to the first, the others are negligible
    assert whitened(signs * [1.0, 1e-5, 2e-5], 3).shape == (8, 3)


def test_shifts_have_exactly_the_length_asked_for() -> None:
    lengths = (directions(8, 5, 7.0, np.random.default_rng(1)) ** 2).sum(axis=1)
    assert np.abs(lengths - 7).max() < 1e-9


def test_realised_shift_grows_with_the_shift_asked_for() -> None:
    means = [
        np.mean(partition_pool(f"ics:{c},q=4", gaussian_pool(), 5, 1).metadata["realised_shift"])
        for c in (0, 1, 4)
    ]
    assert means[0] < 0.1 < means[1] < means[2]


def test_no_shift_means_uniform_sampling() -> None:
    # with c = 0 the chosen half must not depend on the inputs: its mean is that of the whole within
    # sampling error
    dealt = partition_pool("bcs:0,q=4", gaussian_pool(), 1, 1)
    assert dealt.metadata["realised_shift"][0] < 4 * 4 / 2000


def test_tilting_reaches_the_shift_and_density_weights_half_of_it() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(200_000, 2))
    shift = np.array([[1.0, 0.0]])
    sizes = np.array([4000])
    ratio, density = (
        z[tilted(z, shift, sizes, rng)[0]],
        z[density_weighted(z, shift, sizes, rng)[0]],
    )
    assert np.abs(ratio.mean(axis=0) - [1, 0]).max() < 0.08
    assert np.abs(np.cov(ratio, rowvar=False) - np.eye(2)).max() < 0.1
    assert np.abs(density.mean(axis=0) - [0.5, 0]).max() < 0.05
    assert np.abs(np.cov(density, rowvar=False) - np.eye(2) / 2).max() < 0.05


def test_the_literal_form_repeats_samples_and_says_so() -> None:
    dealt = partition_pool("ics_literal:5,q=4", gaussian_pool(), 5, 1)
    assert dealt.metadata["repeat_rate"][0] > 0
    assert len(np.unique(dealt.parts[0])) < len(dealt.parts[0])


def test_covariate_facts_stay_plain_for_clients_too_small_for_a_covariance() -> None:
    facts = partition_pool("ics:2,q=4,fraction=0.02", gaussian_pool(1000), 5, 1).metadata
    assert facts["gaussian_kl"][-1] is None


def test_pc1_sorted_takes_the_darkest_in_order() -> None:
    x = np.arange(100.0)[::-1, None] * np.ones((1, 3))
    dealt = partition_pool("pc1_sorted", Pool(np.zeros(100, np.int64), 1, features=lambda: x), 5, 1)
    assert [sorted(part.tolist()) for part in dealt.parts] == [
        list(range(90 - 10 * k, 100 - 10 * k)) for k in range(5)
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dirichlt:0.3", "did you mean 'dirichlet'"),
        ("dirichlet", "needs a value for alpha"),
        ("dirichlet:x", "alpha must be of type float"),
        ("dirichlet:1,minsize=3", "did you mean 'min_size'"),
        ("dirichlet:1,alpha=2", "gives alpha twice"),
        ("iid:3", "more values than iid has parameters"),
    ],
)
def test_wrong_partition_texts_are_refused_with_a_hint(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text)


@pytest.mark.parametrize(
    ("partition", "sentence"),
    [
        ("ics:5", "needs the inputs of samples"),
        ("natural", "needs data with sites or domains and this set has none"),
    ],
)
def test_a_partition_that_lacks_what_it_looks_at_is_refused(partition: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        partition_pool(partition, labels_pool(), 3, 0)


def test_a_number_that_a_float_cannot_hold_exactly_is_refused() -> None:
    assert parse(f"dirichlet:{2**53 - 1}")[1] == {"alpha": 2.0**53 - 1}
    with pytest.raises(ValueError, match="alpha must be of type float and finite"):
        parse(f"dirichlet:{2**53}")


def test_the_earlier_name_of_partition_pool_still_works() -> None:
    with pytest.warns(DeprecationWarning, match="partition_pool"):
        from equipoise.data.partitions import deal
    assert deal is partition_pool

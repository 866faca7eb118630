"""Fairness and transfer measures against the values and rules of their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.metrics import (
    UndefinedMetric,
    angle,
    collaborative_fairness,
    effective_clients,
    gini,
    jain,
    negative_transfer,
    spread,
)
from equipoise.streams import stream

ALONE = [0.62, 0.65, 0.66, 0.70, 0.71]
TOGETHER = [0.70, 0.69, 0.75, 0.72, 0.73]
accuracies = st.lists(st.floats(0.01, 1), min_size=2, max_size=12)


@pytest.mark.parametrize(
    ("domains", "mean", "std", "lowest"),
    [  # rows of FedEquilibria's Tables 1 and 2
        ([94.44, 93.17, 79.07, 39.60], 76.57, 22.18, 39.60),
        ([90.87, 94.37, 80.90, 50.00], 79.04, 17.48, 50.00),
        ([73.16, 63.33, 56.70, 51.72], 61.23, 8.03, 51.72),
    ],
)
def test_spread_gives_published_averages_and_deviations(
    domains: list[float], mean: float, std: float, lowest: float
) -> None:
    result = spread(domains)
    assert (result["mean"], result["std"], result["min"]) == pytest.approx(
        (mean, std, lowest), abs=0.0051
    )
    assert result["max"] == max(domains)


@pytest.mark.parametrize(
    ("clients", "worst", "best"),
    [(1, 1, 1), (10, 1, 10), (11, 1.5, 10.5), (20, 1.5, 19.5), (30, 2, 29)],
)
def test_worst_decile_is_the_mean_of_the_worst_tenth_rounded_up(
    clients: int, worst: float, best: float
) -> None:
    values = np.arange(1, clients + 1)[::-1]
    assert spread(values)["worst_decile"] == worst
    assert spread(values, lower_is_better=True)["worst_decile"] == best


@pytest.mark.parametrize("values", [[], [0.5, float("nan")], [0.5, float("inf")]])
def test_spread_and_transfer_of_missing_values_are_nan_with_a_reason(values: list[float]) -> None:
    with pytest.warns(UndefinedMetric, match="no values|not finite"):
        assert np.isnan(list(spread(values).values())).all()
    with pytest.warns(UndefinedMetric, match="no values|not finite"):
        assert np.isnan(list(negative_transfer([0.5] * len(values), values).values())).all()


def test_cf_is_pearson_and_spearman() -> None:
    from scipy.stats import pearsonr, spearmanr

    assert collaborative_fairness(ALONE, TOGETHER) == pytest.approx(
        100 * pearsonr(ALONE, TOGETHER)[0]
    )
    tied = [0.7, 0.7, 0.75, 0.72, 0.72]
    assert collaborative_fairness(ALONE, tied, rank=True) == pytest.approx(
        100 * spearmanr(ALONE, tied)[0]
    )


@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=12, unique=True),
    st.floats(0.01, 100),
    st.floats(-10, 10),
)
def test_cf_of_a_linear_image_is_its_sign(alone: list[int], slope: float, offset: float) -> None:
    s = np.array(alone) / 1000
    assert collaborative_fairness(s, s) == pytest.approx(100)
    assert collaborative_fairness(s, slope * s + offset) == pytest.approx(100)
    assert collaborative_fairness(s, -slope * s + offset, rank=True) == pytest.approx(-100)


def test_cf_is_blind_to_halved_accuracy_and_to_the_order_of_clients() -> None:
    assert collaborative_fairness(ALONE, np.array(ALONE) / 2) == pytest.approx(100)
    order = [3, 0, 4, 1, 2]
    shuffled = collaborative_fairness(np.array(ALONE)[order], np.array(TOGETHER)[order])
    assert shuffled == pytest.approx(collaborative_fairness(ALONE, TOGETHER))


@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from([0.3, -0.3]))
def test_two_clients_have_cf_of_plus_or_minus_100(first: float, other: float, step: float) -> None:
    assert collaborative_fairness([first, first + 0.1], [other, other + step]) == pytest.approx(
        100 * np.sign(step)
    )


@pytest.mark.parametrize(
    ("alone", "together", "reason"),
    [
        (ALONE, [0.1] * 5, "same value 0.1 in `together`"),  # the mean of five 0.1 is not 0.1
        ([0.1 + 0.2, 0.3, 0.3], [0.1, 0.2, 0.3], "in `alone`"),
        ([0.5], [0.6], "needs two clients"),
        ([], [], "no values"),
        ([0.5, float("nan"), 0.6], [0.5, 0.6, 0.7], r"positions \[1\]"),
    ],
)
def test_undefined_cf_is_nan_and_says_why(
    alone: list[float], together: list[float], reason: str
) -> None:
    for rank in (False, True):
        with pytest.warns(UndefinedMetric, match=reason):
            assert np.isnan(collaborative_fairness(alone, together, rank))


def test_cf_stays_in_range_for_tiny_and_nearly_equal_values() -> None:
    s = np.array([1.0, 2.0, 3.0, 5.0])
    assert collaborative_fairness(s * 1e-200, s * 1e-200) == pytest.approx(100)
    assert -100 <= collaborative_fairness(s, 0.7 * s) <= 100


def test_cf_of_unrelated_accuracies_has_a_standard_error_of_33_points_with_ten_clients() -> None:
    draws = stream(1, "null").normal(size=(2000, 2, 10))
    assert np.std([collaborative_fairness(s, p) for s, p in draws]) == pytest.approx(
        100 / 3, rel=0.05
    )


def test_unequal_lengths_and_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match="equal length, got 2 and 3"):
        collaborative_fairness([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match=r"got shape \(2, 2\)"):
        spread([[1, 2], [3, 4]])


def test_percentiles_of_six_clients_are_means_of_two() -> None:
    change = np.arange(6) / 10
    result = negative_transfer(np.zeros(6), change)
    assert (result["p10"], result["p90"]) == pytest.approx((0.05, 0.45))
    assert (result["worst"], result["average"], result["harmed"]) == pytest.approx((0.0, 0.25, 0.0))


def test_for_errors_a_rise_is_the_harm() -> None:
    result = negative_transfer(
        alone=[1.2, 1.0, 1.1, 1.0], together=[1.5, 0.9, 1.1, 1.1], lower_is_better=True
    )
    assert (result["worst"], result["harmed"], result["average"]) == pytest.approx(
        (-0.3, 0.5, -0.075)
    ), "a positive change is an improvement"
    assert negative_transfer([1.2, 1.0], [1.5, 0.9])["worst"] == pytest.approx(-0.1)


@given(accuracies)
def test_local_training_itself_transfers_nothing(values: list[float]) -> None:
    assert set(negative_transfer(values, values).values()) == {0.0}


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=9))
def test_worst_p10_p90_are_ordered(pairs: list[tuple[float, float]]) -> None:
    alone, together = zip(*pairs, strict=True)
    result = negative_transfer(alone, together)
    assert result["worst"] <= result["p10"] <= result["p90"]
    assert result["worst"] <= result["average"] + 1e-12


@given(accuracies)
def test_angle_is_the_arccos_of_its_definition(values: list[float]) -> None:
    a = np.array(values)
    cosine = min(1.0, a.sum() / (np.linalg.norm(a) * np.sqrt(len(a))))
    assert angle(values) == pytest.approx(np.arccos(cosine), abs=1e-7)
    assert angle(7 * a) == pytest.approx(angle(a))


@given(accuracies)
def test_gini_and_jain_are_their_definitions(values: list[float]) -> None:
    x = np.array(values)
    assert gini(x) == pytest.approx(np.abs(x[:, None] - x).mean() / (2 * x.mean()), abs=1e-12)
    assert jain(x) == pytest.approx(x.sum() ** 2 / (len(x) * (x**2).sum()))
    w = x / x.sum()
    assert effective_clients(x) == pytest.approx(1 / (w**2).sum())


@pytest.mark.parametrize("measure", [gini, jain, angle, effective_clients])
def test_all_zero_or_no_values_are_undefined(measure: object) -> None:
    for values in ([], [0.0, 0.0]):
        with pytest.warns(UndefinedMetric):
            assert np.isnan(measure(values))  # type: ignore[operator]


@pytest.mark.parametrize("measure", [gini, jain])
def test_shares_of_negative_amounts_are_refused(measure: object) -> None:
    with pytest.raises(ValueError, match=r"got -0\.1"):
        measure([0.5, -0.1])  # type: ignore[operator]
    assert measure([5.0]) == {gini: 0.0, jain: 1.0}[measure]  # type: ignore[operator, index]


def test_tensors_with_gradients_and_half_precision_are_taken() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.bfloat16, requires_grad=True)
    assert spread(values) == spread([1, 2, 3, 4])


def test_the_angle_of_one_client_with_all() -> None:
    """The angle between a unit vector and the diagonal."""
    assert angle([1, 0]) == pytest.approx(np.pi / 4)
    for clients in (3, 10):
        assert angle(np.eye(clients)[1]) == pytest.approx(np.arccos(1 / np.sqrt(clients)))

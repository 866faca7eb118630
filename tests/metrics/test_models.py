"""Representation, participation, convergence and cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.metrics import (
    UndefinedMetric,
    angle_between,
    best_and_last,
    divergence,
    feature_similarity,
    manhattan,
    participation,
    rounds_to,
    speed_up,
    weights_received,
)

numbers = st.floats(-10, 10).map(lambda x: round(x, 3))
vectors = st.integers(1, 8).flatmap(
    lambda n: st.tuples(*[st.lists(numbers, min_size=n, max_size=n)] * 2)
)


@given(vectors.filter(lambda pair: any(pair[0]) and any(pair[1])), st.floats(0.1, 10))
def test_distances_follow_their_definitions_and_are_symmetric(
    pair: tuple[list[float], list[float]], scale: float
) -> None:
    a, b = map(np.array, pair)
    cosine = np.clip(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)), -1, 1)
    assert angle_between(a, b) == pytest.approx(np.arccos(cosine), abs=1e-6)
    assert angle_between(a, b) == pytest.approx(angle_between(b, a), abs=1e-12)
    assert angle_between(a, scale * a) == pytest.approx(0, abs=1e-12)
    assert manhattan(a, b) == manhattan(b, a) == pytest.approx(np.abs(a - b).sum())
    assert (angle_between(a, a), manhattan(a, a)) == (0, 0)


def test_opposite_and_orthogonal_directions() -> None:
    assert angle_between([1, 0], [0, 3]) == pytest.approx(np.pi / 2)
    assert angle_between([1, 2], [-2, -4]) == pytest.approx(np.pi)


def test_mappings_are_matched_by_name_not_by_order() -> None:
    first = {"w": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([3.0])}
    second = {"b": torch.tensor([3.0]), "w": torch.tensor([[1.0, 4.0]])}
    assert manhattan(first, second) == 2
    assert angle_between(first, second) == pytest.approx(angle_between([1, 2, 3], [1, 4, 3]))


def test_unlike_models_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\['b', 'c'\] are in one only"):
        manhattan({"w": [1], "b": [1]}, {"w": [1], "c": [1]})
    with pytest.raises(ValueError, match="one shape"):
        angle_between({"w": [[1, 2]]}, {"w": [[1], [2]]})
    with pytest.raises(TypeError, match="one of each"):
        manhattan({"w": [1]}, [1])


def test_angles_without_direction_are_undefined() -> None:
    for first, reason in (
        ([0.0, 0.0], "zero"),
        ([np.nan, 1.0], "not finite"),
        ([np.inf, 1.0], "not finite"),
    ):
        with pytest.warns(UndefinedMetric, match=reason):
            assert np.isnan(angle_between(first, [1.0, 1.0]))
    with pytest.warns(UndefinedMetric):
        assert np.isnan(angle_between({}, {}))


def test_divergence_is_the_mean_over_clients() -> None:
    result = divergence([[0, 1], [2, 0]], [1, 0])
    assert result == pytest.approx({"angle": np.pi / 4, "manhattan": 1.5})
    with pytest.warns(UndefinedMetric, match="no clients"):
        assert np.isnan(divergence([], [1, 0])["angle"])


def test_participation_counts_each_round_once_and_refuses_strangers() -> None:
    assert participation([["a", "a"], [], ["b", "a"]], ["b", "a"]) == {"b": 1, "a": 2}
    assert participation([], ["a"]) == {"a": 0}
    with pytest.raises(ValueError, match=r"\['z'\] besides"):
        participation([["z"]], ["a"])


def test_weights_of_every_round_count_alike() -> None:
    received = weights_received(
        [{"a": 300.0, "b": 100.0}, {"b": 0.5, "c": 0.5}], ["a", "b", "c", "d"]
    )
    assert received == pytest.approx({"a": 0.375, "b": 0.375, "c": 0.25, "d": 0})
    assert weights_received([], ["a"]) == {"a": 0}
    with pytest.raises(ValueError, match="got 0 in round 1"):
        weights_received([{"a": 0.0}], ["a"])
    for broken in (np.inf, np.nan):
        with pytest.raises(
            ValueError, match=f"finite sum in every round, got {broken:g} in round 2"
        ):
            weights_received([{"a": 1.0}, {"a": broken, "b": 1.0}], ["a", "b"])


@given(st.lists(st.integers(0, 20), min_size=1, max_size=20))
def test_the_maximum_is_reached_where_it_first_occurs(curve: list[int]) -> None:
    assert rounds_to(curve, max(curve)) == curve.index(max(curve)) + 1
    assert rounds_to(curve, max(curve) + 1) is None
    assert rounds_to(curve, min(curve), lower_is_better=True) == curve.index(min(curve)) + 1


def test_rounds_to_passes_over_unmeasured_rounds() -> None:
    assert rounds_to([np.nan, 0.3, np.nan, 0.7], 0.5) == 4
    assert rounds_to([], 0.5) is None
    with pytest.raises(ValueError, match="got NaN"):
        rounds_to([0.1], float("nan"))


@pytest.mark.parametrize(
    ("slow", "fast", "printed"), [(186, 73, 2.5), (194, 43, 4.5), (184, 123, 1.5), (190, 190, 1.0)]
)
def test_speed_up_gives_published_factors(slow: int, fast: int, printed: float) -> None:
    """KDIA, Table 4, from curves that first reach the target in the printed rounds."""
    baseline, curve = np.zeros(200), np.zeros(200)
    baseline[slow - 1], curve[fast - 1 :] = 0.6, 0.7
    assert round(speed_up(curve, baseline) or 0, 1) == printed


def test_speed_up_is_none_where_the_target_is_never_reached() -> None:
    assert speed_up([0.1, 0.2], [0.1, 0.3]) is None
    assert speed_up([0.9], [0.1, 0.3], target=0.5) is None
    assert speed_up([0.4, 0.2], [0.5, 0.4, 0.3, 0.2], lower_is_better=True) == 2
    with pytest.warns(UndefinedMetric, match="no round was measured"):
        assert speed_up([0.9], []) is None


def test_best_and_last() -> None:
    curve = [0.1, np.nan, 0.9, 0.9, 0.5, 0.7]
    assert best_and_last(curve, window=2) == pytest.approx(
        {"best": 0.9, "best_round": 3, "last": 0.7, "last_mean": 0.6}
    )
    assert best_and_last([2.0, 1.0, 3.0], lower_is_better=True)["best_round"] == 2
    assert best_and_last([1.0, 2.0])["last_mean"] == 1.5
    with pytest.raises(ValueError, match="got 0"):
        best_and_last(curve, window=0)


def test_unknown_clients_are_named_five_at_most_and_weights_may_be_any_positive_sum() -> None:
    with pytest.raises(ValueError, match=r"got \['b', 'c', 'd', 'e', 'f'\] besides"):
        participation([list("gfedcba")], ["a"])
    with pytest.raises(ValueError, match=r"got \['z'\] besides"):
        weights_received([{"z": 1.0}], ["a"])
    with pytest.raises(ValueError, match="got -1 in round 1"):
        weights_received([{"a": -1.0}], ["a"])
    assert weights_received([{"a": 1e-9, "b": 3e-9}], ["a", "b"]) == pytest.approx(
        {"a": 0.25, "b": 0.75}
    )


def test_directions_in_which_curves_are_better() -> None:
    falling = [3.0, 2.0, 1.0, 2.0]
    assert (
        rounds_to(falling, 2.0) == 1
        and rounds_to(falling, 2.0, lower_is_better=True) == 2
        and rounds_to(falling, 1.9, True) == 3
    )
    assert best_and_last(falling)["best_round"] == 1 and best_and_last(falling, True)["best"] == 1.0
    assert (
        speed_up([3, 1], falling, lower_is_better=True) == 1.5 and speed_up([3, 1], falling) == 1.0
    )
    assert speed_up([0, 0.5], [0, 0, 0, 0.5], target=0.4) == 2.0
    curve = list(range(1, 13))
    assert (
        best_and_last(curve)["last_mean"] == np.mean(curve[-10:])
        and best_and_last(curve, window=1)["last_mean"] == 12
    )
    with pytest.warns(UndefinedMetric, match="no round was measured"):
        assert np.isnan(list(best_and_last([np.nan]).values())).all()


def test_angles_of_both_sides_and_features_of_no_length() -> None:
    for first, second in (([1.0, 1.0], [0.0, 0.0]), ([1.0, 1.0], [np.nan, 1.0])):
        with pytest.warns(UndefinedMetric):
            assert np.isnan(angle_between(first, second))
    found = feature_similarity(
        [[0.0, 0.0], [3.0, 4.0]], [0, 1], [[1.0, 0.0], [6.0, 8.0]], [0, 1], classes=2
    )
    assert found.tolist() == pytest.approx([0.0, 1.0])
    assert feature_similarity(
        [[1e-6, 0.0]], [0], [[2e-6, 0.0]], [0], classes=1
    ).tolist() == pytest.approx([1.0])
    with pytest.warns(UndefinedMetric):
        assert np.isnan(divergence([], [1, 0])["manhattan"])

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.streams import stream
from equipoise.weighting import (
    participation_alignment,
    participation_frequency,
    participation_window,
)


def cohorts(seen_counts, size):
    """Rounds of `size` clients after which so many distinct clients were seen."""
    rounds, known = [], 0
    for seen in seen_counts:
        fresh = [f"c{i}" for i in range(known, seen)]
        rounds.append((fresh + [f"c{i}" for i in range(size)])[:size])
        known = seen
    return rounds


@pytest.mark.parametrize(
    "seen, window", [([20], 1), ([20, 39], 1), ([20, 40], 2), ([20, 40, 60, 80, 100, 100], 5)]
)
def test_window_of_twenty_in_a_hundred(seen, window):
    assert participation_window(cohorts(seen, 20)) == window


def test_window_never_reaches_before_the_first_round():
    assert participation_window([["a", "b", "c", "d", "e"], ["a"]]) == 2


def test_full_participation_has_frequency_one():
    joined = [["a", "b"]] * 4
    assert participation_frequency(joined, ["b", "a"]).tolist() == [1.0, 1.0]


def test_frequency_counts_the_window_only():
    joined = [["a", "b"], ["a", "b"], ["c", "d"], ["c", "a"]]
    assert participation_window(joined) == 2
    assert participation_frequency(joined, ["a", "b", "c", "d"]).tolist() == [0.5, 0.0, 1.0, 0.5]


def test_those_of_the_current_round_never_have_frequency_zero():
    draw = stream(0, "cohorts")
    joined = [[f"c{i}" for i in draw.choice(30, 6, replace=False)] for _ in range(15)]
    for last in range(1, 16):
        window = participation_window(joined[:last])
        assert (participation_frequency(joined[:last], joined[last - 1]) >= 1 / window).all()


@pytest.mark.parametrize("joined", [[], [["a"], []]])
def test_a_round_without_clients_is_refused(joined):
    with pytest.raises(ValueError, match="at least one client"):
        participation_window(joined)


def test_weights_hand_values():
    np.testing.assert_allclose(
        participation_alignment([0.2, 1.0], [0.3, 0.9], gamma=2, k=0), [25 / 26, 1 / 26], rtol=1e-14
    )
    np.testing.assert_allclose(
        participation_alignment([0.2, 0.6, 1.0], [0.1, 0.5, 0.9], gamma=0, k=0),
        np.full(3, 1 / 3),
        rtol=1e-14,
    )


@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.floats(-1, 1)), min_size=1, max_size=10),
    st.floats(0, 3),
    st.floats(-5, 5),
)
def test_weights_against_plain_loops(rows, gamma, k):
    raw = [rate**-gamma / (1 + math.exp(-k * agreement)) for rate, agreement in rows]
    frequency, alignment = map(np.array, zip(*rows, strict=True))
    weights = participation_alignment(frequency, alignment, gamma, k)
    np.testing.assert_allclose(weights, [one / sum(raw) for one in raw], rtol=1e-10)
    assert abs(weights.sum() - 1) <= 1e-12


def test_kind_in_kind_out_and_default_parameters():
    weights = participation_alignment(torch.tensor([0.25, 1.0]), torch.tensor([0.0, 0.0]))
    assert isinstance(weights, torch.Tensor)
    np.testing.assert_allclose(weights.numpy(), [2 / 3, 1 / 3], rtol=1e-14)
    sigmoid = 1 / (1 + math.exp(-2))
    np.testing.assert_allclose(
        participation_alignment([1.0, 1.0], [0.0, 1.0]),
        np.array([0.5, sigmoid]) / (0.5 + sigmoid),
        rtol=1e-14,
    )


@pytest.mark.parametrize(
    "frequency, alignment, sentence",
    [
        ([0.0, 1.0], [0.5, 0.5], "have to be positive"),
        ([math.inf, 1.0], [0.5, 0.5], "have to be positive"),
        ([0.5], [math.nan], "alignments finite"),
        ([0.5], [0.5, 0.5], "one number per client"),
        ([[0.5, 0.5]], [[0.5, 0.5]], "one number per client"),
        ([], [], "one number per client"),
    ],
)
def test_refuses(frequency, alignment, sentence):
    with pytest.raises(ValueError, match=sentence):
        participation_alignment(frequency, alignment)

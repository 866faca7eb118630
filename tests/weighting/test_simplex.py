from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.streams import stream
from equipoise.weighting import cosines, min_norm, min_norm_box


def gram_of(*vectors):
    return np.array([[np.dot(a, b) for b in vectors] for a in vectors], dtype=np.float64)


def enumerated(gram, lower, upper):
    """The minimiser, from every choice of weights at a bound, solved for the free ones."""
    size, best, value = len(gram), None, np.inf
    for places in product(("low", "free", "high"), repeat=size):
        free = [i for i in range(size) if places[i] == "free"]
        weights = np.array(
            [lower[i] if places[i] == "low" else upper[i] for i in range(size)], dtype=np.float64
        )
        weights[free] = 0
        if free:
            system = np.zeros((len(free) + 1, len(free) + 1))
            right = np.zeros(len(free) + 1)
            for row, i in enumerate(free):
                for column, j in enumerate(free):
                    system[row, column] = gram[i, j]
                system[row, -1], system[-1, row] = -1, 1
                right[row] = -sum(gram[i, j] * weights[j] for j in range(size) if j not in free)
            right[-1] = 1 - weights.sum()
            weights[free] = np.linalg.lstsq(system, right, rcond=None)[0][:-1]
        feasible = (
            abs(weights.sum() - 1) < 1e-9
            and (weights >= np.array(lower) - 1e-12).all()
            and (weights <= np.array(upper) + 1e-12).all()
        )
        if feasible and weights @ gram @ weights < value:
            best, value = weights, weights @ gram @ weights
    return best


def vectors(seed, count, size, spread=0.0, positive=False):
    draw = stream(seed, "vectors")
    made = draw.normal(size=(count, size))
    return (np.abs(made) if positive else made) * 10.0 ** draw.uniform(
        -spread, spread, size=(count, 1)
    )


@pytest.mark.parametrize(
    "a, b",
    [
        ([1.0, 0.0], [0.0, 2.0]),
        ([1.0, 1.0], [3.0, 3.5]),
        ([3.0, 1.0], [0.5, 0.4]),
        ([1.0, 0.0], [-2.0, 0.1]),
    ],
)
def test_two_vectors_closed_form(a, b):
    a, b = np.array(a), np.array(b)
    share = np.clip(np.dot(b - a, b) / np.dot(a - b, a - b), 0, 1)
    np.testing.assert_allclose(min_norm(gram_of(a, b)), [share, 1 - share], atol=1e-12)


def test_diagonal_gram_weights_by_inverse():
    inverse = np.array([1.0, 1 / 4, 1 / 10])
    np.testing.assert_allclose(
        min_norm(np.diag([1.0, 4.0, 10.0])), inverse / inverse.sum(), atol=1e-13
    )


def test_equal_entries_give_uniform_weights():
    np.testing.assert_allclose(
        min_norm(np.full((4, 4), 0.3) + np.eye(4)), np.full(4, 0.25), atol=1e-13
    )


def test_identical_vectors_share_evenly():
    np.testing.assert_allclose(min_norm(np.ones((5, 5))), np.full(5, 0.2), atol=1e-5)


def test_dominated_case_puts_all_weight_on_the_smallest():
    assert min_norm(gram_of([1.0, 0.0], [2.0, 1.0], [3.0, -5.0])).tolist() == [1.0, 0.0, 0.0]


def test_lengths_many_decades_apart_keep_their_digits():
    np.testing.assert_allclose(
        min_norm(np.diag([1e-14, 2e-14, 1.0])), [2 / 3, 1 / 3, 2e-14 / 3], rtol=1e-9
    )


@pytest.mark.parametrize(
    "gram", [np.zeros((3, 3)), np.full((3, 3), np.nan), np.diag([1.0, np.inf, 1.0])]
)
def test_nothing_to_weigh_gives_uniform(gram):
    np.testing.assert_array_equal(min_norm(gram), np.full(3, 1 / 3))


def test_one_client():
    assert min_norm([[3.0]]).tolist() == [1.0]


def test_a_vector_of_zeros_takes_all():
    assert min_norm(gram_of([1.0, 2.0], [0.0, 0.0], [1.0, 0.0])).tolist() == [0.0, 1.0, 0.0]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 30),
    size=st.integers(1, 40),
    spread=st.sampled_from([0.0, 1.5]),
    positive=st.booleans(),
)
def test_on_the_simplex_and_optimal(seed, count, size, spread, positive):
    gram = gram_of(*vectors(seed, count, size, spread, positive))
    weights = min_norm(gram)
    assert (weights >= 0).all() and abs(weights.sum() - 1) <= 1e-12
    value, slopes, scale = weights @ gram @ weights, gram @ weights, np.trace(gram) / count
    assert (slopes >= value - 1e-8 * scale).all()
    assert (np.abs(slopes - value)[weights > 1e-6] <= 1e-7 * scale).all()


@pytest.mark.parametrize("seed", range(6))
def test_against_enumeration(seed):
    gram = gram_of(*vectors(seed, 5, 8, spread=0.5, positive=seed % 2 == 0))
    np.testing.assert_allclose(
        min_norm(gram), enumerated(gram, np.zeros(5), np.ones(5)), atol=1e-11
    )


def test_a_common_factor_changes_nothing():
    gram = gram_of(*vectors(3, 6, 9))
    np.testing.assert_allclose(min_norm(gram * 1e-40), min_norm(gram), atol=1e-12)


def test_a_longer_vector_gains_no_weight():
    made = vectors(4, 6, 5, positive=True)
    before = min_norm(gram_of(*made))
    for client in range(6):
        longer = made.copy()
        longer[client] *= 3
        assert min_norm(gram_of(*longer))[client] <= before[client] + 1e-9


def test_length_of_one_vector_does_not_matter_among_cosines():
    made = vectors(5, 6, 9, positive=True)
    before = min_norm(cosines(gram_of(*made)))
    made[2] *= 1e4
    np.testing.assert_allclose(min_norm(cosines(gram_of(*made))), before, atol=1e-11)
    unlike = cosines(gram_of([2.0, 0.0], [0.0, 0.0], [3.0, 3.0]))
    np.testing.assert_allclose(
        unlike, [[1, 0, np.sqrt(0.5)], [0, 1, 0], [np.sqrt(0.5), 0, 1]], rtol=1e-14
    )


def test_kind_in_kind_out():
    weights = min_norm(torch.eye(2))
    assert isinstance(weights, torch.Tensor) and weights.dtype == torch.float64
    assert isinstance(min_norm([[1.0, 0.0], [0.0, 1.0]]), np.ndarray)


@pytest.mark.thorough
def test_a_thousand_clients():
    gram = np.eye(1000) + 0.5
    np.testing.assert_allclose(min_norm(gram), np.full(1000, 1e-3), rtol=1e-9)


@pytest.mark.parametrize(
    "gram", [np.zeros((2, 3)), np.zeros((0, 0)), np.array([[1.0, 5.0], [0.0, 1.0]])]
)
def test_refuses_what_is_no_gram_matrix(gram):
    with pytest.raises(ValueError, match="Gram matrix"):
        min_norm(gram)


@pytest.mark.parametrize("seed", range(6))
def test_box_against_enumeration(seed):
    gram = gram_of(*vectors(seed, 4, 6))
    start = stream(seed, "start").dirichlet(np.ones(4))
    lower, upper = np.clip(start - 0.1, 0, 1), np.clip(start + 0.1, 0, 1)
    found = min_norm_box(gram, lower, upper)
    np.testing.assert_allclose(found, enumerated(gram, lower, upper), atol=1e-9)
    assert (found >= lower).all() and (found <= upper).all() and abs(found.sum() - 1) < 1e-9


def test_box_of_width_zero_and_the_whole_simplex():
    gram, start = gram_of(*vectors(1, 5, 7)), np.array([0.1, 0.2, 0.3, 0.25, 0.15])
    np.testing.assert_allclose(min_norm_box(gram, start, start), start, atol=1e-12)
    np.testing.assert_allclose(min_norm_box(gram, 0.0, 1.0), min_norm(gram), atol=1e-9)


def test_box_with_opposite_vectors_and_with_none():
    np.testing.assert_allclose(
        min_norm_box(gram_of([1.0, 0.0], [-1.0, 0.0]), 0.0, 1.0), [0.5, 0.5], atol=1e-8
    )
    np.testing.assert_allclose(
        min_norm_box(np.zeros((4, 4)), 0.0, 1.0), np.full(4, 0.25), atol=1e-9
    )


def test_box_of_short_vectors_counts_their_lengths():
    np.testing.assert_allclose(min_norm_box(np.diag([1e-6, 4e-6]), 0.0, 1.0), [0.8, 0.2], atol=1e-9)


def test_box_holds_the_sum_at_one_where_more_would_be_shorter():
    """w1 - 2 w2 on the first axis: with w1 at its bound of 0.9, w2 = 0.45 would cancel it."""
    np.testing.assert_allclose(
        min_norm_box(gram_of([1.0, 0.1], [-2.0, 0.1]), [0.9, 0.0], 1.0), [0.9, 0.1], atol=1e-9
    )
    np.testing.assert_allclose(
        min_norm_box(gram_of([1.0, 0.0], [1.0, 2.0]), 0.0, [0.3, 1.0]), [0.3, 0.7], atol=1e-9
    )


@pytest.mark.parametrize(
    ("lower", "upper"), [(0.5, 1.0), (0.0, 0.3), ([0.6, 0.0, 0.0], [0.5, 1.0, 1.0])]
)
def test_box_that_holds_no_weights_is_refused(lower, upper):
    with pytest.raises(ValueError, match="widen the bounds"):
        min_norm_box(np.eye(3), lower, upper)


def test_box_that_holds_one_point_and_bounds_beyond_the_simplex():
    for bounds in ((1 / 3, 1.0), (0.0, 1 / 3), (1 / 3, 1 / 3)):
        np.testing.assert_allclose(
            min_norm_box(np.diag([1.0, 4.0, 9.0]), *bounds), np.full(3, 1 / 3), atol=1e-9
        )
    np.testing.assert_allclose(
        min_norm_box([[1.0, 0.0], [0.0, 4.0]], -1.0, 3.0), [0.8, 0.2], atol=1e-9
    )
    assert min_norm_box([[2.0]], 1.5, 2.0).tolist() == [1.0]


def test_rounding_may_leave_a_gram_matrix_a_little_asymmetric():
    """By a ten-thousandth of its largest number; the mean of both halves counts."""
    for size in (0.01, 1.0, 100.0):
        found = cosines(size * np.array([[1.0, 0.00009], [0.0, 1.0]]))
        np.testing.assert_allclose(found, [[1.0, 0.000045], [0.000045, 1.0]], rtol=1e-12)
    with pytest.raises(ValueError, match="symmetric"):
        cosines([[1.0, 0.00011], [0.0, 1.0]])

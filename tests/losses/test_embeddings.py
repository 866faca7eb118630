from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from equipoise.losses import (
    alignment,
    cohort_contrast,
    embedding_contrast,
    embedding_target,
    mean_direction,
    refined_alignment,
)
from equipoise.streams import stream, torch_stream


def positive(count=5, size=4):
    return np.abs(stream(1, "embeddings").normal(size=(count, size)))


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(
        sum(x * x for x in a) * sum(y * y for y in b)
    )


def test_mean_direction_of_plain_loops_and_dead_samples():
    features = positive()
    features[2] = 0
    lengths = [math.sqrt(sum(one * one for one in row)) for row in features]
    expected = [
        sum(row[j] / length for row, length in zip(features, lengths, strict=True) if length) / 5
        for j in range(4)
    ]
    np.testing.assert_allclose(mean_direction(features), expected, rtol=1e-14)
    assert np.linalg.norm(mean_direction(features)) <= 1


def test_mean_direction_flattens_maps_and_passes_gradients():
    features = torch.rand(3, 2, 2, 2, generator=torch_stream(0, "map"), requires_grad=True)
    assert mean_direction(features).shape == (8,)
    mean_direction(features).sum().backward()
    assert features.grad.any()


def test_mean_direction_refuses_no_samples():
    with pytest.raises(ValueError, match="at least one"):
        mean_direction(torch.zeros(0, 3))


def test_alignment_is_the_cosine():
    embeddings = positive()
    np.testing.assert_allclose(
        alignment(embeddings, embeddings.mean(0)),
        [cosine(one, embeddings.mean(0)) for one in embeddings],
        rtol=1e-13,
    )


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
def test_refined_alignment_closed_form(beta):
    embeddings = positive()
    reference = embeddings.mean(0)
    for found, one in zip(refined_alignment(embeddings, reference, beta), embeddings, strict=True):
        a, b, agreement = np.linalg.norm(one), np.linalg.norm(reference), cosine(one, reference)
        below = (
            (1 - beta) ** 2 * a**2
            + 2 * (1 - beta) * beta * agreement**2 * a * b
            + beta**2 * agreement**2 * b**2
        )
        assert found == pytest.approx(
            agreement * ((1 - beta) * a + beta * b) / math.sqrt(below), rel=1e-12
        )
        assert found >= agreement - 1e-12


def test_refined_alignment_ends():
    embeddings = positive()
    reference = embeddings.mean(0)
    np.testing.assert_allclose(
        refined_alignment(embeddings, reference, 0.0), alignment(embeddings, reference), rtol=1e-14
    )
    np.testing.assert_allclose(refined_alignment(embeddings, reference, 1.0), 1.0, rtol=1e-14)
    assert refined_alignment(np.array([[1.0, 0.0]]), [0.0, 1.0], 1.0).tolist() == [0.0]


def test_pull_towards_the_target_has_the_stated_gradient():
    own = torch.tensor([0.2, 0.9, 0.4], dtype=torch.float64, requires_grad=True)
    reference, beta = torch.tensor([0.5, 0.1, 0.7], dtype=torch.float64), 0.3
    (own - embedding_target(own, reference, beta).detach()).square().sum().backward()
    expected = 2 * beta * (own.detach() - cosine(own.tolist(), reference.tolist()) * reference)
    torch.testing.assert_close(own.grad, expected)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_contrast_of_equal_embeddings(count):
    np.testing.assert_allclose(
        cohort_contrast(np.ones((count, 3))), math.log(count - 1), atol=1e-12
    )
    np.testing.assert_allclose(
        cohort_contrast(np.ones((count, 3)), include_positive=True), math.log(count), atol=1e-12
    )


def test_contrast_of_two_orthonormal_embeddings_and_of_one():
    np.testing.assert_allclose(cohort_contrast(np.eye(2)), -1 / math.sqrt(2) / 0.07, rtol=1e-12)
    assert cohort_contrast(np.array([[0.3, 0.4]])).tolist() == [0.0]


@pytest.mark.parametrize("include_positive", [False, True])
def test_contrast_against_plain_loops(include_positive):
    embeddings = positive()
    reference = embeddings.mean(0)
    for place, found in enumerate(cohort_contrast(embeddings, 0.5, include_positive)):
        own = embeddings[place]
        near = cosine(own, reference) / 0.5
        far = sum(
            math.exp(cosine(own, one) / 0.5)
            for other, one in enumerate(embeddings)
            if other != place
        )
        assert found == pytest.approx(
            -near + math.log(far + include_positive * math.exp(near)), rel=1e-12
        )
        assert not include_positive or found >= 0


def test_contrast_passes_gradients_to_the_embedding():
    own = torch.tensor([1.0, 0.2], requires_grad=True)
    embedding_contrast(own, [0.0, 1.0], [[1.0, 0.0]]).backward()
    assert own.grad[1] < 0 < own.grad[0]  # a descent step turns it towards the reference


def test_kind_in_kind_out_and_sizes_checked():
    assert isinstance(refined_alignment(torch.eye(2), [1.0, 0.0]), torch.Tensor)
    with pytest.raises(ValueError, match="same last size"):
        alignment(np.ones((2, 3)), [1.0, 2.0])


def test_defaults_are_the_papers():
    own, reference, others = np.array([0.6, 0.8]), [1.0, 0.0], [[0.0, 1.0]]
    assert float(embedding_contrast(own, reference, others)) == pytest.approx((0.8 - 0.6) / 0.07)
    np.testing.assert_allclose(embedding_target(own, reference), [0.5 * 0.6 + 0.5 * 0.6, 0.4])
    assert float(refined_alignment(own, reference)) == pytest.approx(0.6 / math.hypot(0.6, 0.4))


def test_contrast_without_others_is_zero_and_still_has_a_gradient():
    own = torch.tensor([1.0, 0.2], requires_grad=True)
    loss = embedding_contrast(own, [0.0, 1.0], np.empty((0, 2)))
    loss.backward()
    assert loss.item() == 0 and own.grad.tolist() == [0.0, 0.0]


def test_cosines_are_of_the_last_axis():
    own = positive(8, 3)
    found = alignment(own.reshape(2, 4, 3), [1.0, 2.0, 0.5])
    np.testing.assert_allclose(found.reshape(8), alignment(own, [1.0, 2.0, 0.5]))
    drawn = embedding_target(own.reshape(2, 4, 3), [1.0, 2.0, 0.5], 0.3)
    np.testing.assert_allclose(drawn.reshape(8, 3), embedding_target(own, [1.0, 2.0, 0.5], 0.3))
    with pytest.raises(ValueError, match="same last size"):
        alignment(np.ones((2, 3)), np.ones((1, 3)))


@pytest.mark.parametrize(
    ("length", "counted"), [(0.0, 0.0), (0.5e-12, 0.5), (1.5e-12, 1.0), (1e-3, 1.0)]
)
def test_the_shortest_features_are_not_blown_up(length, counted):
    np.testing.assert_allclose(mean_direction(np.array([[length, 0.0]])), [counted, 0.0])
    np.testing.assert_allclose(alignment(np.array([[length, 0.0]]), [2.0, 0.0]), [counted])

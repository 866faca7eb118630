"""Class means of features, against loops over samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from equipoise.losses import class_means


@pytest.mark.parametrize("shape", [(40, 7), (40, 2, 3, 3), (1, 4)])
def test_means_are_those_of_a_loop(shape: tuple[int, ...]) -> None:
    draw = np.random.Generator(np.random.PCG64(1))
    features, labels = draw.standard_normal(shape) + 5, draw.integers(0, 5, shape[0])
    labels[labels == 3] = 2
    means, counts = class_means(features, labels, 6)
    assert isinstance(means, np.ndarray) and means.shape == (6, int(np.prod(shape[1:])))
    for label in range(6):
        own = [row.reshape(-1) for row, y in zip(features, labels, strict=True) if y == label]
        assert counts[label] == len(own)
        np.testing.assert_allclose(
            means[label], sum(own) / len(own) if own else np.zeros(means.shape[1]), rtol=1e-12
        )


def test_tensors_keep_their_kind_and_many_samples_their_digits() -> None:
    features = torch.full((200_000, 1), 0.1)
    means, counts = class_means(features, torch.zeros(200_000, dtype=torch.int64), 2)
    assert means.dtype == torch.float32 and counts.tolist() == [200_000, 0]
    assert torch.equal(means, torch.tensor([[0.1], [0.0]]))


def test_no_samples_at_all() -> None:
    means, counts = class_means(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 2)
    assert means.tolist() == [[0.0] * 3] * 2 and counts.tolist() == [0, 0]

"""Contrast between models: what counts as features, and of which length."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.losses import model_contrast


@pytest.mark.parametrize(
    ("length", "cosine"), [(0.0, 0.0), (0.9e-8, 0.0), (1.5e-8, 1.0), (1.0, 1.0), (1e8, 1.0)]
)
def test_features_shorter_than_rounding_have_no_direction(length: float, cosine: float) -> None:
    """Along the received model and across the last one, so that the loss is softplus(-cosine /
    temperature).
    """
    for scaled in ([[length, 0.0]], [[1.0, 0.0]]):
        near = [[1.0, 0.0]] if scaled[0][0] == length else [[length, 0.0]]
        found = model_contrast(np.array(scaled), np.array(near), np.array([[0.0, 1.0]]))
        assert found.tolist() == pytest.approx([math.log1p(math.exp(-cosine / 0.5))])


def test_whose_features_repel() -> None:
    found = model_contrast(
        np.array([[3.0, 4.0]]), np.array([[1.0, 0.0]]), np.array([[0.0, 2.0]]), temperature=0.1
    )
    assert found.tolist() == pytest.approx([math.log1p(math.exp((0.8 - 0.6) / 0.1))])

"""Handwritten digits of scikit-learn: 1,797 images of 8x8 pixels that need no download."""

from __future__ import annotations

import numpy as np
import torch

from equipoise.data.dataset import Dataset
from equipoise.task import Task


def load() -> Dataset:
    """Return the images, with values in [0, 1] and shape (1, 8, 8)."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    x = torch.tensor(loaded.images[:, None] / 16, dtype=torch.float32)
    task = Task("classification", (1, 8, 8), 10, tuple(str(digit) for digit in range(10)))
    y = torch.tensor(np.asarray(loaded.target), dtype=torch.int64)
    return Dataset(
        "digits",
        x,
        y,
        task,
        licence="CC BY 4.0",
        source="UCI Optical Recognition of Handwritten Digits, test part, in scikit-learn",
    )

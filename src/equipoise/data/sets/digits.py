"""scikit-learn's handwritten digits: 1,797 real images of 8x8 pixels that come with its wheel, so no download."""

from __future__ import annotations

import numpy as np
import torch

from equipoise.data.dataset import Dataset
from equipoise.task import Task


def load() -> Dataset:
    """The images with values in [0, 1], shape (1, 8, 8)."""
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

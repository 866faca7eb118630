"""Prototypes: class means of features."""

from __future__ import annotations

import torch

from equipoise.validation.arrays import Numbers, Values, like, tensor


def class_means(features: Values, labels: Numbers, classes: int) -> tuple[Values, Values]:
    """Return the mean feature of every class, one flat row each, and the number of its samples.

    The row of a class without samples is 0.

    Args:
        features: One row of features per sample.
        labels: The labels of the samples.
        classes: The number of classes.

    >>> import numpy as np
    >>> means, counts = class_means(np.array([[1.0, 0.0], [3.0, 2.0], [5.0, 5.0]]), [0, 0, 2], 3)
    >>> means.tolist(), counts.tolist()
    ([[2.0, 1.0], [0.0, 0.0], [5.0, 5.0]], [2, 0, 1])
    """
    rows, classes_of_rows = tensor(features).flatten(1), tensor(labels).long()
    counts = torch.bincount(classes_of_rows, minlength=classes)
    # In float64: the mean of many samples must not depend on how many were summed before.
    sums = torch.zeros(classes, rows.shape[1], dtype=torch.float64, device=rows.device).index_add_(
        0, classes_of_rows, rows.double()
    )
    return like((sums / counts.clamp(min=1).unsqueeze(1)).to(rows.dtype), features), like(
        counts, features
    )

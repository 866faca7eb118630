"""Histograms of scores as older versions made them: 101 bins, scores rounded to whole per cent."""

from __future__ import annotations

import numpy as np


def rounded_table(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Count samples by class, kind and score in whole per cent."""
    p, y = np.asarray(probabilities), np.asarray(labels)
    percent, predicted = np.rint(100 * p).astype(int), p.argmax(1)
    table = np.zeros((p.shape[1], 4, 101), np.int64)
    for sample, row in enumerate(percent):
        for c, score in enumerate(row):
            own, named = y[sample] == c, predicted[sample] == c
            table[c, 0 if own else 1, score] += 1
            if named:
                table[c, 2 if own else 3, score] += 1
    return table

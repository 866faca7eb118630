"""Metrics from sufficient statistics: a few numbers per batch, which merge in any order.

An evaluator need not keep the outputs of all samples, and parts that were evaluated in different
places merge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import numpy as np
import torch
import torch.nn.functional as F

from equipoise.metrics.performance import classified, hits, softmax
from equipoise.validation.arrays import Array, vectors


class Statistic(Protocol):
    """A sufficient statistic of some samples for a metric.

    `zero().merge(s)` is `s`, and the order of merging does not matter except for rounding.

    Attributes:
        exact: True if the order does not matter at all, as for counts: then clients evaluate batch
            by batch, and the recorded bits do not depend on the batches.

    >>> odd, even = Hits.from_batch([[0, 1]], [1]), Hits.from_batch([[0, 1], [1, 0]], [0, 0])
    >>> odd.merge(even).result()
    0.6666666666666666
    """

    exact: ClassVar[bool]

    @classmethod
    def zero(cls) -> Self:
        """Return the statistic of no samples."""
        ...

    @classmethod
    def from_batch(cls, outputs: Array, y: Array) -> Self:
        """Return the statistic of some samples.

        Args:
            outputs: The outputs of the network, one row per sample.
            y: The targets.
        """
        ...

    def merge(self, other: Self) -> Self:
        """Return the statistic of both sets of samples."""
        ...

    def result(self) -> float:
        """Return the metric; NaN where it does not exist."""
        ...


@dataclass(frozen=True)
class Hits:
    """Accuracy: the numbers of samples and of correct ones."""

    right: int = 0
    samples: int = 0
    exact: ClassVar[bool] = True

    @classmethod
    def zero(cls) -> Self:
        """Return the statistic of no samples."""
        return cls()

    @classmethod
    def from_batch(cls, outputs: Array, y: Array) -> Self:
        """Return the counts of a batch of logits."""
        z, labels = classified(outputs, y, "logits")
        return cls(int(hits(z, labels).sum()), len(labels))

    def merge(self, other: Self) -> Self:
        """Return the counts of both."""
        return type(self)(self.right + other.right, self.samples + other.samples)

    def result(self) -> float:
        """Return the share of correct samples."""
        return self.right / self.samples if self.samples else math.nan


@dataclass(frozen=True)
class HitsByClass:
    """Balanced accuracy: the numbers of samples and of correct ones of each class that occurs."""

    counts: tuple[tuple[int, int, int], ...] = ()  # class, right, samples
    exact: ClassVar[bool] = True

    @classmethod
    def zero(cls) -> Self:
        """Return the statistic of no samples."""
        return cls()

    @classmethod
    def from_batch(cls, outputs: Array, y: Array) -> Self:
        """Return the counts of a batch of logits."""
        p, labels = classified(softmax(outputs), y, "logits")
        right = hits(p, labels)
        classes = np.unique(labels).tolist()
        return cls(
            tuple((c, int(right[labels == c].sum()), int((labels == c).sum())) for c in classes)
        )

    def merge(self, other: Self) -> Self:
        """Return the counts of both."""
        total: dict[int, tuple[int, int]] = {}
        for c, right, samples in (*self.counts, *other.counts):
            before = total.get(c, (0, 0))
            total[c] = (before[0] + right, before[1] + samples)
        return type(self)(tuple((c, *total[c]) for c in sorted(total)))

    def result(self) -> float:
        """Return the mean recall over the classes that occur."""
        shares = [right / samples for _, right, samples in self.counts]
        return float(np.mean(shares)) if shares else math.nan


@dataclass(frozen=True)
class Mean:
    """A sum over samples and their number.

    The sum is rounded, so the order of merging may change the last bit.
    """

    total: float = 0.0
    samples: int = 0
    exact: ClassVar[bool] = False

    @classmethod
    def zero(cls) -> Self:
        """Return the statistic of no samples."""
        return cls()

    def merge(self, other: Self) -> Self:
        """Return the sum over both."""
        return type(self)(self.total + other.total, self.samples + other.samples)

    def result(self) -> float:
        """Return the mean."""
        return self.total / self.samples if self.samples else math.nan


class LogLoss(Mean):
    """Mean cross-entropy in nats; NaN for a model that has diverged."""

    @classmethod
    def from_batch(cls, outputs: Array, y: Array) -> Self:
        """Return the sum over a batch of logits."""
        z, labels = classified(outputs, y, "logits")
        if not len(labels):
            return cls.zero()
        if not np.isfinite(z.max(1)).all():
            return cls(math.nan, len(labels))
        total = F.cross_entropy(torch.tensor(z), torch.tensor(labels), reduction="sum")
        return cls(float(total), len(labels))


class SquaredError(Mean):
    """Mean squared error."""

    @classmethod
    def from_batch(cls, outputs: Array, y: Array) -> Self:
        """Return the sum over a batch of values."""
        errors, truth = vectors(outputs, y, ("outputs", "targets"))
        return cls(float(np.sum((errors - truth) ** 2)), len(truth))


class RootSquaredError(SquaredError):
    """Root of the mean squared error."""

    def result(self) -> float:
        """Return the root of the mean over all samples."""
        return math.sqrt(super().result())


class AbsoluteError(Mean):
    """Mean absolute error."""

    @classmethod
    def from_batch(cls, outputs: Array, y: Array) -> Self:
        """Return the sum over a batch of values."""
        errors, truth = vectors(outputs, y, ("outputs", "targets"))
        return cls(float(np.sum(np.abs(errors - truth))), len(truth))

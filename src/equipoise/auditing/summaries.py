"""Summaries that a client sends in an audit: counts, means and second moments.

All clients use the same projection, and no sample leaves a client.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from equipoise.client import Client
from equipoise.task import Task

WIDEST = 1024  # features; more are reduced by a random projection first
DIRECT = 128  # features whose second moments are all sent; of more, those along some directions
CODES = 256  # buckets over which the codes of patients' events are counted
# Bins of a number to predict, equally likely under a Gaussian with its mean and deviation.
BINS = 10
MOST_CLASSES = 200  # above this, moments are not split by class
BATCH = 4096


@dataclass(frozen=True)
class Projection:
    """The mapping of samples to features, which follows from the task and a seed.

    So it is the same at every client.

    Attributes:
        shape: The shape of a sample.
        seed: The seed of the random projection.
        histories: True if samples are patients' histories (see models/gru.py).
        basis: The leading directions (width x directions), once they are known.
    """

    shape: tuple[int, ...]
    seed: int
    histories: bool = False
    basis: np.ndarray | None = None

    @property
    def width(self) -> int:
        """The number of features before the leading directions are taken."""
        return CODES + 5 if self.histories else min(WIDEST, int(np.prod(self.shape)))

    def __call__(self, x: Tensor) -> np.ndarray:
        """Return one row of float64 features per sample."""
        if self.histories:
            features = history_features(x).numpy()
        else:
            features = self._reduced(x.flatten(1).double()).numpy()
        return features if self.basis is None else features @ self.basis

    def _reduced(self, flat: Tensor) -> Tensor:
        """Return at most 1,024 features.

        Each of more features is added, with a random sign, to one of 1,024 sums, which preserves
        distances on average.
        """
        if flat.shape[1] <= WIDEST:
            return flat
        rng = np.random.Generator(np.random.PCG64(self.seed))
        target = torch.from_numpy(rng.integers(0, WIDEST, flat.shape[1]))
        sign = torch.from_numpy(rng.choice(np.array([-1.0, 1.0]), flat.shape[1]))
        sums = torch.zeros(len(flat), WIDEST, dtype=torch.float64)
        return sums.index_add_(1, target, flat * sign)

    def probe(self, directions: int) -> np.ndarray:
        """Return random directions, equal at all clients, as a start for the leading ones."""
        rng = np.random.Generator(np.random.PCG64([self.seed, 1]))
        return rng.standard_normal((self.width, directions))


def history_features(x: Tensor) -> Tensor:
    """Return features of patients' histories.

    They are the shares of codes (in buckets), mean value, age and gaps, the number of events
    and the sex.
    """
    events = x[:, 1:].double()
    count = x[:, 0, 2].long().clamp(0, events.shape[1])
    is_event = (torch.arange(events.shape[1]) < count[:, None]).double()
    code = events[..., 0].long() % CODES
    occurrences = torch.zeros(len(x), CODES, dtype=torch.float64).scatter_add_(1, code, is_event)
    total = count.clamp(min=1).double()
    means = [(events[..., column] * is_event).sum(1) / total for column in (1, 2, 3)]
    others = torch.stack([*means, torch.log1p(count.double()), x[:, 0, 0].double()], 1)
    return torch.cat([occurrences / total[:, None], others], 1)


def labels_of(y: Tensor, task: Task) -> np.ndarray:
    """Return the class of each sample; of a number to predict, its bin among ten."""
    if task.classifies:
        return np.asarray(y.numpy())
    # Targets have mean 0 and deviation 1.
    return np.searchsorted(norm.ppf(np.arange(1, BINS) / BINS), y.double().numpy())


def classes_of(task: Task) -> int:
    """Return the number of classes, or of bins of a number to predict."""
    return task.outputs if task.classifies else BINS


def rows(client: Client, projection: Projection) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield a client's training samples as features and classes, in batches."""
    if len(client.train):
        for batch in client.batches(BATCH):
            yield projection(batch.x.cpu()), labels_of(batch.y.cpu(), client.task)


def probed(client: Client, projection: Projection, directions: np.ndarray) -> dict[str, Any]:
    """Return number, sum, sum of squares, and second moments times some directions.

    From these of all clients the server finds the leading directions.
    """
    number = 0
    total = np.zeros(projection.width)
    square = 0.0
    moments = np.zeros(directions.shape)
    for z, _ in rows(client, projection):
        number += len(z)
        total = total + z.sum(0)
        square += float((z * z).sum())
        moments = moments + z.T @ (z @ directions)
    return {
        "number": number,
        "sum": torch.from_numpy(total),
        "square": square,
        "moments": torch.from_numpy(moments),
    }


def summarised(client: Client, projection: Projection, least: int) -> dict[str, Tensor]:
    """Return the number of samples per class, and moments of groups of samples.

    A group is a class with `least` samples or more; the last group has all smaller classes
    together. Other samples are in no group, so that no sum is of fewer samples than `least`.
    """
    assert projection.basis is not None
    classes = classes_of(client.task)
    width = projection.basis.shape[1]
    counts = np.bincount(labels_of(client.train.y.cpu(), client.task), minlength=classes)
    group_of_class = groups_of(counts, least)
    group_count = 1 + (classes if classes <= MOST_CLASSES else 0)
    numbers = np.zeros(group_count, np.int64)
    sums = np.zeros((group_count, width))
    seconds = np.zeros((group_count, width, width))
    for z, y in rows(client, projection):
        groups = group_of_class[y]
        for group in np.unique(groups[groups >= 0]):
            members = z[groups == group]
            numbers[group] += len(members)
            sums[group] += members.sum(0)
            seconds[group] += members.T @ members
    return {
        "counts": torch.from_numpy(counts),
        "numbers": torch.from_numpy(numbers),
        "sums": torch.from_numpy(sums),
        "seconds": torch.from_numpy(seconds),
    }


def groups_of(counts: np.ndarray, least: int) -> np.ndarray:
    """Return the group of each class: its own, the last one for rare classes, or -1.

    It is -1 if all rare classes together have fewer than `least` samples.

    >>> groups_of(np.array([9, 2, 0, 4, 7]), least=5)
    array([0, 5, 5, 5, 4])
    >>> groups_of(np.array([9, 2, 0, 0, 7]), least=5)
    array([ 0, -1, -1, -1,  4])
    """
    classes = len(counts)
    if classes > MOST_CLASSES:  # no moments by class: all samples are one group
        return np.full(classes, 0 if counts.sum() >= least else -1)
    rest = classes if counts[counts < least].sum() >= least else -1
    return np.where(counts >= least, np.arange(classes), rest)


def leading(covariance_times: np.ndarray, directions: np.ndarray, count: int) -> np.ndarray:
    """Return the leading directions within the span of orthonormal ones (Rayleigh-Ritz).

    Directions without variance are left out. The sign of each, which no library promises, is
    fixed: its entries have a positive sum.

    Args:
        covariance_times: The covariance times the directions.
        directions: Orthonormal directions.
        count: The number of leading directions.
    """
    small = directions.T @ covariance_times
    values, vectors = np.linalg.eigh((small + small.T) / 2)
    values = values[::-1]
    vectors = vectors[:, ::-1]
    varying = int((values > 1e-9 * max(values[0], 0.0)).sum())
    basis = directions @ vectors[:, : min(count, varying)]
    return np.asarray(basis * np.where(basis.sum(0) < 0, -1.0, 1.0))

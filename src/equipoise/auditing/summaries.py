"""What a client says of its data in an audit: counts, means and second moments in a projection that all clients share. No sample leaves it."""

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

WIDEST = 1024  # features above which a random projection comes first
DIRECT = 128  # features up to which all second moments are sent; above, only those in the leading directions
CODES = 256  # buckets over which the codes of patients' events are counted
# of a number that is predicted, equally likely under a Gaussian of its mean and deviation
BINS = 10
MOST_CLASSES = 200  # above, moments are not kept by class
BATCH = 4096


@dataclass(frozen=True)
class Projection:
    """From a sample to the numbers that are summarised: the same at every client, since it follows from the task and a seed."""

    shape: tuple[int, ...]
    seed: int
    # samples are patients' histories (see models/gru.py), of which codes are counted
    histories: bool = False
    basis: np.ndarray | None = None  # width x directions

    @property
    def width(self) -> int:
        """How many features there are before the leading directions are taken."""
        return CODES + 5 if self.histories else min(WIDEST, int(np.prod(self.shape)))

    def __call__(self, x: Tensor) -> np.ndarray:
        """One row of float64 features per sample."""
        features = counted(x) if self.histories else self._narrowed(x.flatten(1).double())
        return features.numpy() if self.basis is None else features.numpy() @ self.basis

    def _narrowed(self, flat: Tensor) -> Tensor:
        """Above 1,024 features: every feature is added, with a random sign, to one of 1,024 sums. Distances are kept on average."""
        if flat.shape[1] <= WIDEST:
            return flat
        draw = np.random.Generator(np.random.PCG64(self.seed))
        place = torch.from_numpy(draw.integers(0, WIDEST, flat.shape[1]))
        sign = torch.from_numpy(draw.choice(np.array([-1.0, 1.0]), flat.shape[1]))
        return torch.zeros(len(flat), WIDEST, dtype=torch.float64).index_add_(1, place, flat * sign)

    def probe(self, directions: int) -> np.ndarray:
        """Random directions, the same for all, with which a search for the leading ones begins."""
        draw = np.random.Generator(np.random.PCG64([self.seed, 1]))
        return draw.standard_normal((self.width, directions))


def counted(x: Tensor) -> Tensor:
    """Features of histories: how often codes occur (as shares, codes in buckets), how many events, mean age and value, gaps, sex."""
    events = x[:, 1:].double()
    count = x[:, 0, 2].long().clamp(0, events.shape[1])
    real = (torch.arange(events.shape[1]) < count[:, None]).double()
    code = events[..., 0].long() % CODES
    shares = torch.zeros(len(x), CODES, dtype=torch.float64).scatter_add_(1, code, real)
    total = count.clamp(min=1).double()
    means = [(events[..., place] * real).sum(1) / total for place in (1, 2, 3)]
    return torch.cat(
        [
            shares / total[:, None],
            torch.stack([*means, torch.log1p(count.double()), x[:, 0, 0].double()], 1),
        ],
        1,
    )


def labels_of(y: Tensor, task: Task) -> np.ndarray:
    """The class of each sample; of a number that is predicted, which of ten bins it lies in."""
    if task.classifies:
        return np.asarray(y.numpy())
    # targets have mean 0 and deviation 1
    return np.searchsorted(norm.ppf(np.arange(1, BINS) / BINS), y.double().numpy())


def classes_of(task: Task) -> int:
    return task.outputs if task.classifies else BINS


def rows(client: Client, projection: Projection) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """A client's training samples as features and classes, some at a time."""
    if len(client.train):
        for batch in client.batches(BATCH):
            yield projection(batch.x.cpu()), labels_of(batch.y.cpu(), client.task)


def probed(client: Client, projection: Projection, directions: np.ndarray) -> dict[str, Any]:
    """Number, sum, sum of squares, and second moments times some directions: what finds the leading directions of all clients together."""
    n, total, square, moments = 0, np.zeros(projection.width), 0.0, np.zeros(directions.shape)
    for z, _ in rows(client, projection):
        n, total, square, moments = (
            n + len(z),
            total + z.sum(0),
            square + float((z * z).sum()),
            moments + z.T @ (z @ directions),
        )
    return {
        "number": n,
        "sum": torch.from_numpy(total),
        "square": square,
        "moments": torch.from_numpy(moments),
    }


def summarised(client: Client, projection: Projection, least: int) -> dict[str, Tensor]:
    """How many samples of each class; and for groups of samples their number, sum and second moments.

    A group is a class with `least` samples or more, or, in the last place, all smaller classes together; what is left is in no group, so that
    no sum is of fewer samples than `least`.
    """
    assert projection.basis is not None
    classes, width = classes_of(client.task), projection.basis.shape[1]
    counts = np.bincount(labels_of(client.train.y.cpu(), client.task), minlength=classes)
    groups, last = groups_of(counts, least), (classes if classes <= MOST_CLASSES else 0)
    numbers, sums, seconds = (
        np.zeros(last + 1, np.int64),
        np.zeros((last + 1, width)),
        np.zeros((last + 1, width, width)),
    )
    for z, y in rows(client, projection):
        group = groups[y]
        for place in np.unique(group[group >= 0]):
            chosen = z[group == place]
            numbers[place] += len(chosen)
            sums[place] += chosen.sum(0)
            seconds[place] += chosen.T @ chosen
    found = {"counts": counts, "numbers": numbers, "sums": sums, "seconds": seconds}
    return {name: torch.from_numpy(value) for name, value in found.items()}


def groups_of(counts: np.ndarray, least: int) -> np.ndarray:
    """The group of each class: itself, the last one for what is rare, or -1 where even all that is rare is too few.

    >>> groups_of(np.array([9, 2, 0, 4, 7]), least=5), groups_of(np.array([9, 2, 0, 0, 7]), least=5)
    (array([0, 5, 5, 5, 4]), array([ 0, -1, -1, -1,  4]))
    """
    classes = len(counts)
    if classes > MOST_CLASSES:  # no moments by class: all samples are one group
        return np.full(classes, 0 if counts.sum() >= least else -1)
    rest = classes if counts[counts < least].sum() >= least else -1
    return np.where(counts >= least, np.arange(classes), rest)


def leading(covariance_times: np.ndarray, directions: np.ndarray, wanted: int) -> np.ndarray:
    """The leading directions within the span of orthonormal ones, given the covariance times these (Rayleigh and Ritz).

    Directions without variance are left out; each points to where its entries sum to a positive number, which no library promises.
    """
    small = directions.T @ covariance_times
    values, vectors = np.linalg.eigh((small + small.T) / 2)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = min(wanted, int((values > 1e-9 * max(values[0], 0.0)).sum()))
    basis = directions @ vectors[:, :kept]
    return np.asarray(basis * np.where(basis.sum(0) < 0, -1.0, 1.0))

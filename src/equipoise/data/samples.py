"""Samples of a federation: the training data of a client, or the validation data of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.data.federation import Federation
from equipoise.data.groups import Groups

# Fixed, so that batch boundaries of evaluation, selection and cached logits follow from the data.
EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Samples:
    """Some samples of a federation, which are never copied per client.

    The tensors are accessed through functions that return these samples only, so that their
    holder has no way to reach the others.

    Attributes:
        index: The positions of the samples in the federation.
        groups: The groups of these samples; None unless `data.groups` is set.
    """

    index: Tensor
    _x: Callable[[Tensor], Tensor]  # positions among these samples -> inputs
    _y: Callable[[Tensor], Tensor]  # positions among these samples -> labels
    groups: Groups | None = None

    @classmethod
    def of(cls, federation: Federation, index: np.ndarray) -> Samples:
        """Return the samples of a federation at some positions."""
        rows = torch.from_numpy(np.array(index, dtype=np.int64))
        x = federation.x
        y = federation.y
        return cls(
            rows.clone(),
            lambda positions: x.index_select(0, rows[positions]),
            lambda positions: y.index_select(0, rows[positions]),
            None if federation.groups is None else federation.groups.rows(rows.numpy()),
        )

    def __len__(self) -> int:
        return len(self.index)

    @property
    def x(self) -> Tensor:
        """All inputs."""
        return self._x(torch.arange(len(self)))

    @property
    def y(self) -> Tensor:
        """All labels."""
        return self._y(torch.arange(len(self)))

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels at some positions."""
        return self._x(positions), self._y(positions)

    def some(self, positions: Tensor) -> Samples:
        """Return the samples at some positions."""
        x = self._x
        y = self._y
        return Samples(
            self.index[positions],
            lambda chosen: x(positions[chosen]),
            lambda chosen: y(positions[chosen]),
            None if self.groups is None else self.groups.rows(positions.numpy()),
        )

    def with_(self, others: Samples) -> Samples:
        """Return these samples, followed by others of the same federation."""
        return Samples(
            torch.cat([self.index, others.index]),
            _followed_by(len(self), self._x, others._x),
            _followed_by(len(self), self._y, others._y),
            _chained(self.groups, others.groups),
        )

    def chunks(self) -> Iterator[Tensor]:
        """Yield the positions of all samples in order, in batches of a fixed size."""
        if len(self):
            yield from torch.split(torch.arange(len(self)), EVALUATION_BATCH)


def _chained(first: Groups | None, second: Groups | None) -> Groups | None:
    """Return the groups of samples of one federation, followed by those of others."""
    if first is None or second is None:
        return None
    return Groups(first.columns, first.names, np.concatenate([first.codes, second.codes]))


def _followed_by(
    length: int, first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """Return a function that reads positions below `length` by `first`, others by `second`."""

    def read(positions: Tensor) -> Tensor:
        is_second = positions >= length
        values = torch.cat([first(positions[~is_second]), second(positions[is_second] - length)])
        order = torch.cat([(~is_second).nonzero(), is_second.nonzero()]).flatten()
        return values[torch.argsort(order)]

    return read

"""Some samples of a federation: what a client trains on, what the server evaluates models on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.data.federation import Federation

EVALUATION_BATCH = 256  # fixed: batch boundaries of evaluation, selection and cached logits follow from the data alone


@dataclass(frozen=True)
class Samples:
    """Some samples of the federation: data are shared by all clients and never copied per client.

    The tensors lie behind functions that give these samples only: whoever holds some has no way to the others.
    """

    index: Tensor  # where they stand in the federation
    _x: Callable[[Tensor], Tensor]  # positions among these samples -> inputs
    _y: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, federation: Federation, index: np.ndarray) -> Samples:
        own, x, y = torch.from_numpy(np.array(index, dtype=np.int64)), federation.x, federation.y
        return cls(
            own.clone(),
            lambda positions: x.index_select(0, own[positions]),
            lambda positions: y.index_select(0, own[positions]),
        )

    def __len__(self) -> int:
        return len(self.index)

    @property
    def x(self) -> Tensor:
        return self._x(torch.arange(len(self)))

    @property
    def y(self) -> Tensor:
        return self._y(torch.arange(len(self)))

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._x(positions), self._y(positions)

    def some(self, positions: Tensor) -> Samples:
        """Those at these positions."""
        x, y = self._x, self._y
        return Samples(
            self.index[positions],
            lambda chosen: x(positions[chosen]),
            lambda chosen: y(positions[chosen]),
        )

    def with_(self, others: Samples) -> Samples:
        """These and others of the same federation, behind them."""
        return Samples(
            torch.cat([self.index, others.index]),
            _behind(len(self), self._x, others._x),
            _behind(len(self), self._y, others._y),
        )

    def chunks(self) -> Iterator[Tensor]:
        """The positions of all samples in order, in batches that follow from the data alone."""
        return (
            iter(torch.split(torch.arange(len(self)), EVALUATION_BATCH)) if len(self) else iter(())
        )


def _behind(
    first: int, own: Callable[[Tensor], Tensor], others: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """Positions below `first` are asked of `own`, the rest of `others`."""

    def found(positions: Tensor) -> Tensor:
        late = positions >= first
        values = torch.cat([own(positions[~late]), others(positions[late] - first)])
        return values[torch.argsort(torch.cat([(~late).nonzero(), late.nonzero()]).flatten())]

    return found

"""Some samples of a federation: what a client trains on, what the server judges models by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.data.federation import Federation

EVALUATION_BATCH = 256  # fixed: batch boundaries of evaluation, selection and cached logits follow from the data alone


@dataclass
class Samples:
    """Some samples of the federation, by index: data are shared by all clients and never copied per client."""

    source_x: Tensor
    source_y: Tensor
    index: Tensor

    @classmethod
    def of(cls, federation: Federation, index: np.ndarray) -> Samples:
        return cls(federation.x, federation.y, torch.from_numpy(np.array(index, dtype=np.int64)))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def x(self) -> Tensor:
        return self.source_x.index_select(0, self.index)

    @property
    def y(self) -> Tensor:
        return self.source_y.index_select(0, self.index)

    def at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        chosen = self.index[places]
        return self.source_x.index_select(0, chosen), self.source_y.index_select(0, chosen)

    def some(self, places: Tensor) -> Samples:
        """Those at these places."""
        return Samples(self.source_x, self.source_y, self.index[places])

    def with_(self, others: Samples) -> Samples:
        """These and others of the same federation, behind them."""
        return Samples(self.source_x, self.source_y, torch.cat([self.index, others.index]))

    def chunks(self) -> Iterator[Tensor]:
        """The places of all samples in order, in batches that follow from the data alone."""
        return iter(torch.split(torch.arange(len(self)), EVALUATION_BATCH)) if len(self) else iter(())

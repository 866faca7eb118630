"""What a run consumes: prepared tensors, and for each client the positions of its samples in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from equipoise.task import Task


@dataclass(frozen=True, eq=False)
class Parts:
    """One array of positions per client, kept as a single flat array, so that 10,000 clients cost what 10 do."""

    index: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray]) -> Parts:
        """From one array per client.

        >>> Parts.of([np.array([4, 2]), np.array([], int), np.array([7])])[2]
        array([7])
        """
        flat = (
            np.concatenate([np.asarray(a, np.int64) for a in arrays])
            if len(arrays)
            else np.empty(0, np.int64)
        )
        return cls._sized(flat, np.array([len(a) for a in arrays], np.int64))

    @classmethod
    def by_owner(cls, owner: np.ndarray, clients: int) -> Parts:
        """From the owner of every position; -1 means nobody's.

        >>> list(Parts.by_owner(np.array([1, 0, -1, 1]), clients=2))
        [array([1]), array([0, 3])]
        """
        order = np.argsort(owner, kind="stable")
        kept = order[np.searchsorted(owner, 0, sorter=order) :]
        return cls._sized(kept.astype(np.int64), np.bincount(owner[kept], minlength=clients))

    @classmethod
    def _sized(cls, flat: np.ndarray, sizes: np.ndarray) -> Parts:
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        flat.setflags(write=False)
        offsets.setflags(write=False)
        return cls(flat, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, k: int) -> np.ndarray:
        if not 0 <= k < len(self):
            raise IndexError(f"client position {k} is outside 0..{len(self) - 1}")
        return self.index[self.offsets[k] : self.offsets[k + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[k] for k in range(len(self)))

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    @property
    def owners(self) -> np.ndarray:
        """The client of every entry of `index`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def where(self, keep: np.ndarray) -> Parts:
        """Only the entries of `index` that a mask keeps."""
        return self._sized(self.index[keep], np.bincount(self.owners[keep], minlength=len(self)))

    def through(self, positions: np.ndarray) -> Parts:
        """The same clients with every entry i replaced by positions[i]."""
        return self._sized(positions[self.index], self.sizes)


@dataclass(frozen=True, eq=False)
class Federation:
    """Everything a run needs to know of its data; all clients share the tensors x and y."""

    name: str
    task: Task
    x: Tensor
    y: Tensor
    ids: tuple[str, ...]
    train: Parts
    validation: Parts
    test: Parts
    shared_test: np.ndarray
    augment: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    # where each row of x stood in the data set
    source: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def server_validation(self) -> np.ndarray:
        """The validation set of a simulated server: the clients' validation parts together, each sample once."""
        return np.unique(self.validation.index)

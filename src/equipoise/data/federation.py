"""Prepared data of a run: shared tensors, and for each client the positions of its samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.data.groups import Groups
from equipoise.task import Task

OWN_KEYS = ("clients", "pixel_kinds")  # of a recipe, which clients have of their own


@dataclass(frozen=True, eq=False)
class Parts:
    """One array of positions per client, in a single flat array.

    So 10,000 clients cost as much memory as 10.

    Attributes:
        index: The positions of all clients, one client after the other.
        offsets: The start of each client's positions in `index`, and the end of the last.
    """

    index: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray]) -> Parts:
        """Return parts from one array of positions per client.

        >>> Parts.of([np.array([4, 2]), np.array([], int), np.array([7])])[2]
        array([7])
        """
        sizes = np.array([len(array) for array in arrays], np.int64)
        if not len(arrays):
            return cls._sized(np.empty(0, np.int64), sizes)
        flat = np.concatenate([np.asarray(array, np.int64) for array in arrays])
        return cls._sized(flat, sizes)

    @classmethod
    def by_owner(cls, owner: np.ndarray, clients: int) -> Parts:
        """Return parts from the client of every position; -1 means no client.

        >>> list(Parts.by_owner(np.array([1, 0, -1, 1]), clients=2))
        [array([1]), array([0, 3])]
        """
        order = np.argsort(owner, kind="stable")
        owned = order[np.searchsorted(owner, 0, sorter=order) :]
        return cls._sized(owned.astype(np.int64), np.bincount(owner[owned], minlength=clients))

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
        """The number of positions of each client."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> np.ndarray:
        """The client of every entry of `index`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @classmethod
    def chained(cls, parts: Sequence[Parts], lengths: Sequence[int]) -> Parts:
        """Return the clients of several parts, whose positions follow each other in one tensor.

        Args:
            parts: Parts of several federations.
            lengths: The number of samples of each of these federations.

        >>> first, second = Parts.of([np.array([1, 0])]), Parts.of([np.array([2])])
        >>> list(Parts.chained([first, second], [2, 3]))
        [array([1, 0]), array([4])]
        """
        starts = np.concatenate([[0], np.cumsum(lengths)])
        arrays = []
        for part, start in zip(parts, starts, strict=False):
            arrays += [positions + start for positions in part]
        return cls.of(arrays)

    def where(self, keep: np.ndarray) -> Parts:
        """Return the entries of `index` that a mask selects, for the same clients."""
        return self._sized(self.index[keep], np.bincount(self.owners[keep], minlength=len(self)))

    def through(self, positions: np.ndarray) -> Parts:
        """Return the same clients with every entry i replaced by positions[i]."""
        return self._sized(positions[self.index], self.sizes)


@dataclass(frozen=True, eq=False)
class DataSplit:
    """Positions of the training, validation and test samples of all clients.

    Attributes:
        train: The training samples of each client.
        validation: The validation samples of each client.
        test: The test samples of each client; empty parts if all share one test set.
        shared_test: The test samples that all clients share.
        held_out: The validation samples of the server that belong to no client.
    """

    train: Parts
    validation: Parts
    test: Parts
    shared_test: np.ndarray
    held_out: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def used_rows(self) -> np.ndarray:
        """Return the positions of all samples in use, sorted, each once."""
        clients = (self.train.index, self.validation.index, self.test.index)
        return np.unique(np.concatenate([*clients, self.shared_test, self.held_out]))

    def through(self, positions: np.ndarray) -> DataSplit:
        """Return the same split with every position i replaced by positions[i]."""
        return DataSplit(
            self.train.through(positions),
            self.validation.through(positions),
            self.test.through(positions),
            positions[self.shared_test],
            positions[self.held_out],
        )


@dataclass(frozen=True, eq=False)
class Federation:
    """The data of all clients of a run; the tensors x and y are shared.

    Attributes:
        name: The data set.
        task: The task, with the shape of the inputs.
        x: Prepared inputs.
        y: Classes, or standardised numbers to predict.
        ids: The names of the clients.
        train: Positions of each client's training samples in x and y.
        validation: Positions of each client's validation samples.
        test: Positions of each client's test samples.
        shared_test: Positions of the test samples that all clients share.
        augment: Augmentations of training batches.
        metadata: Facts about the data that a run records.
        recipe: How inputs were prepared, to prepare new data in the same way.
        source: The row of the data set from which each row of x was made.
        held_out: Positions of the server's validation samples that belong to no client; empty
            unless `data.server_validation` is set.
        groups: The groups of each row of x; None unless `data.groups` is set.
    """

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
    source: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    held_out: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    groups: Groups | None = None

    @property
    def server_validation(self) -> np.ndarray:
        """The validation set of a simulated server.

        It is what was held out for the server, else all clients' validation samples, each once.
        """
        return self.held_out if len(self.held_out) else np.unique(self.validation.index)


def join_federations(
    name: str, federations: Sequence[Federation], rows: Sequence[np.ndarray]
) -> Federation:
    """Return one federation of clients that were prepared alone.

    Args:
        name: The name of the data set.
        federations: Federations of different clients with the same task and no shared test set.
        rows: The rows of the data set of which each of them was made.

    Returns:
        All clients, in this order. Its metadata are those of the first federation.

    Raises:
        ValueError: If clients differ in their task or in the preparation of inputs.
    """
    first = federations[0]
    for other in federations:
        _check_alike(first, other)
    lengths = [len(federation.x) for federation in federations]
    ids: list[str] = []
    sources = []
    for federation, own_rows in zip(federations, rows, strict=True):
        ids += federation.ids
        sources.append(own_rows[federation.source])
    return Federation(
        name=name,
        task=first.task,
        x=torch.cat([federation.x for federation in federations]),
        y=torch.cat([federation.y for federation in federations]),
        ids=tuple(ids),
        train=Parts.chained([federation.train for federation in federations], lengths),
        validation=Parts.chained([federation.validation for federation in federations], lengths),
        test=Parts.chained([federation.test for federation in federations], lengths),
        shared_test=np.empty(0, np.int64),
        augment=first.augment,
        metadata=first.metadata,
        recipe=_joined_recipe(federations),
        source=np.concatenate(sources),
        groups=_joined_groups(federations),
    )


def _joined_groups(federations: Sequence[Federation]) -> Groups | None:
    """Return the groups of all rows; None if clients have none."""
    parts = [federation.groups for federation in federations if federation.groups is not None]
    return Groups.joined(parts) if parts else None


def _check_alike(first: Federation, other: Federation) -> None:
    """Refuse clients whose inputs mean different things."""
    task = (first.task, first.task.centre, first.task.scale)
    if (other.task, other.task.centre, other.task.scale) != task:
        raise ValueError(
            f"the clients {first.ids[0]!r} and {other.ids[0]!r} have different tasks: "
            f"{first.task} and {other.task}; give both the same schema"
        )
    for key, value in _common_recipe(first).items():
        if other.recipe.get(key) != value:
            raise ValueError(
                f"the inputs of clients {first.ids[0]!r} and {other.ids[0]!r} are prepared in "
                f"different ways: {key} is {value} and {other.recipe.get(key)}; save them alike"
            )


def _common_recipe(federation: Federation) -> dict[str, Any]:
    """Return the recipe without what clients have of their own."""
    return {key: value for key, value in federation.recipe.items() if key not in OWN_KEYS}


def _joined_recipe(federations: Sequence[Federation]) -> dict[str, Any]:
    """Return the recipe of all clients."""
    recipe = dict(federations[0].recipe)
    if "clients" in recipe:
        recipe["clients"] = {}
        for federation in federations:
            recipe["clients"].update(federation.recipe["clients"])
    kinds = {
        kind for federation in federations for kind in federation.recipe.get("pixel_kinds", ())
    }
    if kinds:
        recipe["pixel_kinds"] = sorted(kinds)
    return recipe

"""Training, validation and test inside each client, by stratified systematic sampling over all clients at once."""

from __future__ import annotations

import math

import numpy as np

from equipoise.data.dataset import TEST, TRAIN, VALIDATION, Dataset
from equipoise.data.federation import Parts
from equipoise.streams import stream


def equal_samples(dataset: Dataset) -> np.ndarray:
    """For every sample the place of the first sample equal to it: pictures by their pixels, other data by inputs and label.

    Rows of a table that agree in every value and in the label count as equal, because one patient entered twice looks so.
    """
    rows = (
        _bytes(dataset.x.numpy())
        if dataset.image
        else np.hstack([_bytes(dataset.x.numpy()), _bytes(dataset.y.numpy())])
    )
    rows = (
        np.ascontiguousarray(np.pad(rows, ((0, 0), (0, -rows.shape[1] % 8))))
        if rows.shape[1] % 8
        else rows
    )
    words = rows.view(np.uint64)
    factors = (
        stream(0, "equal samples").integers(2**63, size=words.shape[1], dtype=np.uint64) * 2 + 1
    )
    _, first, inverse = np.unique(words @ factors, return_index=True, return_inverse=True)
    groups: np.ndarray = first[inverse.reshape(-1)]
    again = np.flatnonzero(groups != np.arange(len(rows)))
    if (words[again] == words[groups[again]]).all():
        return groups
    # Two different samples met by chance in one product: compare all bytes.
    places: dict[bytes, int] = {}
    return np.array(
        [places.setdefault(row.tobytes(), place) for place, row in enumerate(rows)], np.int64
    )


def _bytes(array: np.ndarray) -> np.ndarray:
    return (
        np.ascontiguousarray(array).reshape(len(array), math.prod(array.shape[1:])).view(np.uint8)
    )


def split(
    parts: Parts,
    shares: tuple[float, float, float],
    seed: int,
    strata: np.ndarray | None = None,
    groups: np.ndarray | None = None,
) -> tuple[Parts, Parts, Parts]:
    """Each client's training, validation and test part.

    Of m different samples floor(share * m) go to test and to validation and the rest to training, in proportion to the
    strata (classes). Entries of one group (the same sample dealt twice, equal pictures) take the side of the group's
    first entry, in whichever client that is, so nothing that is trained on anywhere is tested on anywhere.

    >>> train, validation, test = split(Parts.of([np.arange(10), np.arange(10, 30)]), (0.7, 0.1, 0.2), seed=1)
    >>> train.sizes, validation.sizes, test.sizes
    (array([ 7, 14]), array([1, 2]), array([2, 4]))
    """
    group = parts.index if groups is None else groups[parts.index]
    _, leads, follow = np.unique(group, return_index=True, return_inverse=True)
    owner = parts.owners[leads]
    stratum = np.zeros(len(leads), np.int64) if strata is None else strata[parts.index[leads]]
    rng = stream(seed, "split")
    order = np.lexsort((rng.random(len(leads)), stratum, owner))
    offsets = rng.integers(0, 2**31, size=(2, len(parts)))

    side = np.full(len(leads), TRAIN)
    counts = np.bincount(owner, minlength=len(parts))
    left = order
    for name, share, start in ((TEST, shares[2], offsets[0]), (VALIDATION, shares[1], offsets[1])):
        wanted = np.floor(share * counts + 1e-9).astype(np.int64)
        chosen = _evenly(owner[left], wanted, start)
        side[left[chosen]] = name
        left = left[~chosen]
    sides = side[follow]
    return parts.where(sides == TRAIN), parts.where(sides == VALIDATION), parts.where(sides == TEST)


def _evenly(owner: np.ndarray, wanted: np.ndarray, start: np.ndarray) -> np.ndarray:
    """A mask over entries sorted by owner that picks exactly wanted[k] of owner k's, evenly spaced from a random start."""
    sizes = np.bincount(owner, minlength=len(wanted))
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    size, want = sizes[owner], wanted[owner]
    # as `place` runs over all remainders modulo size, exactly `want` of them satisfy this
    return np.asarray((place + start[owner] % size) * want % size < want)

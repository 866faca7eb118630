"""Training, validation and test samples of each client, by stratified systematic sampling."""

from __future__ import annotations

import math

import numpy as np

from equipoise.data.dataset import TEST, TRAIN, VALIDATION, Dataset
from equipoise.data.federation import Parts
from equipoise.streams import stream


def equal_samples(dataset: Dataset) -> np.ndarray:
    """Return for every sample the index of the first sample equal to it.

    Images are compared by their pixels, other data by inputs and label: rows of a table that
    agree in every value and in the label count as equal, because a patient who was entered twice
    looks like that.
    """
    rows = _as_bytes(dataset.x.numpy())
    if not dataset.image:
        rows = np.hstack([rows, _as_bytes(dataset.y.numpy())])
    padding = -rows.shape[1] % 8
    if padding:
        rows = np.ascontiguousarray(np.pad(rows, ((0, 0), (0, padding))))
    words = rows.view(np.uint64)
    random = stream(0, "equal samples").integers(2**63, size=words.shape[1], dtype=np.uint64)
    factors = random * 2 + 1
    _, first, inverse = np.unique(words @ factors, return_index=True, return_inverse=True)
    groups: np.ndarray = first[inverse.reshape(-1)]
    repeated = np.flatnonzero(groups != np.arange(len(rows)))
    if (words[repeated] == words[groups[repeated]]).all():
        return groups
    # Two different samples have the same product by chance: compare all bytes.
    first_index: dict[bytes, int] = {}
    exact = [first_index.setdefault(row.tobytes(), index) for index, row in enumerate(rows)]
    return np.array(exact, np.int64)


def _as_bytes(array: np.ndarray) -> np.ndarray:
    flat = np.ascontiguousarray(array).reshape(len(array), math.prod(array.shape[1:]))
    return flat.view(np.uint8)


def split(
    parts: Parts,
    shares: tuple[float, float, float],
    seed: int,
    strata: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    client: str | None = None,
) -> tuple[Parts, Parts, Parts]:
    """Split each client's samples into training, validation and test samples.

    Of m different samples, floor(share * m) go to test and to validation and the rest to
    training, in proportion to the strata. Entries of one group (the same sample at two clients,
    equal images) go to the side of the group's first entry, at whichever client that is. So
    nothing that is trained on anywhere is tested on anywhere.

    Args:
        parts: The samples of each client.
        shares: The shares of training, validation and test.
        seed: The seed of the experiment.
        strata: The class of every sample of the data set; none for no stratification.
        groups: The group of every sample of the data set; none if all samples are different.
        client: The client by which the random stream is named, if its samples are split alone, or
            another name of the stream; none: one stream for all clients.

    Returns:
        Training, validation and test samples.

    >>> parts = Parts.of([np.arange(10), np.arange(10, 30)])
    >>> train, validation, test = split(parts, (0.7, 0.1, 0.2), seed=1)
    >>> train.sizes, validation.sizes, test.sizes
    (array([ 7, 14]), array([1, 2]), array([2, 4]))
    """
    group = parts.index if groups is None else groups[parts.index]
    _, leads, follow = np.unique(group, return_index=True, return_inverse=True)
    owner = parts.owners[leads]
    stratum = np.zeros(len(leads), np.int64) if strata is None else strata[parts.index[leads]]
    rng = stream(seed, "split") if client is None else stream(seed, "split", client)
    order = np.lexsort((rng.random(len(leads)), stratum, owner))
    test_start, validation_start = rng.integers(0, 2**31, size=(2, len(parts)))

    side = np.full(len(leads), TRAIN)
    counts = np.bincount(owner, minlength=len(parts))
    remaining = order
    for name, share, start in (
        (TEST, shares[2], test_start),
        (VALIDATION, shares[1], validation_start),
    ):
        sizes = np.floor(share * counts + 1e-9).astype(np.int64)
        chosen = _choose_evenly(owner[remaining], sizes, start)
        side[remaining[chosen]] = name
        remaining = remaining[~chosen]
    sides = side[follow]
    return parts.where(sides == TRAIN), parts.where(sides == VALIDATION), parts.where(sides == TEST)


def _choose_evenly(owner: np.ndarray, chosen_sizes: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return a mask that chooses chosen_sizes[k] entries of owner k, evenly from a random start.

    Args:
        owner: The owner of each entry, sorted.
        chosen_sizes: How many entries to choose, per owner.
        start: A random number per owner.
    """
    sizes = np.bincount(owner, minlength=len(chosen_sizes))
    position = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    size = sizes[owner]
    chosen = chosen_sizes[owner]
    # As `position` runs over all remainders modulo size, exactly `chosen` of them satisfy this.
    return np.asarray((position + start[owner] % size) * chosen % size < chosen)

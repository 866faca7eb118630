"""Named random streams: every random number of a run comes from a seed and a name.

Two draws with the same name are equal, two with different names are independent, and no global
generator is used. So a run repeats bit for bit however its clients are scheduled, and two methods
that share the name of a draw (the batch order, say) share its numbers. This makes "reduces to
FedAvg" exactly testable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def number(seed: int, *names: str | int) -> int:
    """Return a 63-bit integer that follows from the seed and the names alone.

    Example:
        >>> number(1, "batches", 3) == number(1, "batches", 3) != number(1, "batches", 4)
        True
    """
    text = "\x1f".join(f"{type(name).__name__}:{name}" for name in (seed, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """Return the NumPy generator of a seed and a name."""
    return np.random.Generator(np.random.PCG64(number(seed, *names)))


def torch_stream(seed: int, *names: str | int) -> torch.Generator:
    """Return the torch generator of a seed and a name."""
    generator = torch.Generator()
    generator.manual_seed(number(seed, *names))
    return generator


class Turn:
    """One of several users of torch's default generator, each with its own sequence of numbers."""

    def __init__(self) -> None:
        self._state = torch.random.get_rng_state()

    def __enter__(self) -> None:
        torch.random.set_rng_state(self._state)

    def __exit__(self, *error: object) -> None:
        self._state = torch.random.get_rng_state()


@contextmanager
def default_generator(seed: int, *names: str | int) -> Iterator[None]:
    """Use the stream of a name as torch's default generator, for dropout and initialisation."""
    before = torch.random.get_rng_state()
    torch.default_generator.manual_seed(number(seed, *names))
    try:
        yield
    finally:
        torch.random.set_rng_state(before)

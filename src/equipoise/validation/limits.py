"""Limits on what a file may ask for, checked before memory is taken; a user may raise them."""

from __future__ import annotations

import os

LAYERS = "EQUIPOISE_MAX_LAYERS"
PARAMETERS = "EQUIPOISE_MAX_PARAMETERS"
BYTES = "EQUIPOISE_MAX_BYTES"
_DEFAULTS = {LAYERS: 1_000, PARAMETERS: 1_000_000_000}


class LimitExceeded(ValueError):
    """A size beyond a limit that can be raised."""


def limit(name: str) -> int:
    """Return a limit: what the environment says, or the default.

    Raises:
        ValueError: If the environment holds no whole number of at least 1.
    """
    text = os.environ.get(name, "").strip() or str(_DEFAULTS[name])
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) > 0):
        raise ValueError(f"{name}: expected a whole number of at least 1, got {text[:40]!r}")
    return int(text)


def check_limit(name: str, size: int, items: str) -> None:
    """Refuse a size beyond a limit.

    Args:
        name: The environment variable that raises the limit.
        size: The number of items.
        items: The items, for the message.

    Raises:
        LimitExceeded: If the size is beyond the limit; the message says how to raise it.

    >>> check_limit(LAYERS, 200_000, "hidden layers")
    Traceback (most recent call last):
    equipoise.validation.limits.LimitExceeded: expected at most 1,000 hidden layers, got 200,000; \
if they are intended, raise the limit with the environment variable EQUIPOISE_MAX_LAYERS
    """
    most = limit(name)
    if size > most:
        raise LimitExceeded(
            f"expected at most {most:,} {items}, got {size:,}; "
            f"if they are intended, raise the limit with the environment variable {name}"
        )


def most_bytes() -> int:
    """Return how many bytes the arrays of one data set may take.

    The environment variable EQUIPOISE_MAX_BYTES says it. Without it, half of the machine's
    memory may be taken, because arrays are copied at least once on their way into a model.

    Raises:
        ValueError: If the variable is no whole number of at least 1.
    """
    return limit(BYTES) if bytes_are_stated() else memory() // 2


def bytes_are_stated() -> bool:
    """Return True if the user set the limit on bytes."""
    return bool(os.environ.get(BYTES, "").strip())


def memory() -> int:
    """Return the bytes of memory of this machine; 2**63 where that is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**63


def check_memory(size: int, subject: str) -> None:
    """Refuse data that exceed the memory of this machine.

    Args:
        size: The number of bytes.
        subject: The data, for the message.

    Raises:
        ValueError: If the data exceed the memory.
    """
    if size > memory():
        raise ValueError(
            f"{subject} would take {size / 2**30:,.1f} GB, more than the memory of this machine "
            f"({memory() / 2**30:,.1f} GB); use a smaller one"
        )

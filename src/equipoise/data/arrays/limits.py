"""The limit on memory that users' data may take, known before any of it is taken."""

from __future__ import annotations

import os

from equipoise.validation.names import quoted

VARIABLE = "EQUIPOISE_MAX_BYTES"


def most_bytes() -> int:
    """Return how many bytes the arrays of one data set may take.

    The environment variable EQUIPOISE_MAX_BYTES says it. Without it, half of the machine's
    memory may be taken, because arrays are copied at least once on their way into a model.

    Raises:
        ValueError: If the variable is no positive whole number.
    """
    stated = os.environ.get(VARIABLE, "").strip()
    if not stated:
        return memory() // 2
    if not stated.isdecimal() or len(stated) > 18 or int(stated) < 1:
        raise ValueError(
            f"{VARIABLE}: expected a positive whole number of bytes, got {quoted(stated)}"
        )
    return int(stated)


def is_stated() -> bool:
    """Return True if the user set the limit."""
    return bool(os.environ.get(VARIABLE, "").strip())


def memory() -> int:
    """Return the bytes of memory of this machine; 2**63 where that is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**63

"""Limits on what a file may ask for, checked before memory is taken; a user may raise them."""

from __future__ import annotations

import os

LAYERS = "EQUIPOISE_MAX_LAYERS"
PARAMETERS = "EQUIPOISE_MAX_PARAMETERS"
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


def check_limit(name: str, size: int, what: str) -> None:
    """Refuse a size beyond a limit.

    Raises:
        LimitExceeded: If it is; the sentence says how to raise the limit.

    >>> check_limit(LAYERS, 200_000, "hidden layers")
    Traceback (most recent call last):
    equipoise.validation.limits.LimitExceeded: expected at most 1,000 hidden layers, got 200,000; \
if they are wanted, raise the limit with the environment variable EQUIPOISE_MAX_LAYERS
    """
    most = limit(name)
    if size > most:
        raise LimitExceeded(
            f"expected at most {most:,} {what}, got {size:,}; "
            f"if they are wanted, raise the limit with the environment variable {name}"
        )


def check_memory(size: int, what: str) -> None:
    """Refuse data of so many bytes if they exceed the memory of this machine.

    Raises:
        ValueError: If they do.
    """
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a system that does not tell
        return
    if size > memory:
        raise ValueError(
            f"{what} would take {size / 2**30:,.1f} GB, more than the memory of this machine "
            f"({memory / 2**30:,.1f} GB); use a smaller one"
        )

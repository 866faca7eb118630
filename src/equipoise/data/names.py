"""Helpful refusals of unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that offers the nearest known name, empty if none is near.

    >>> nearest("dirichlt", ["iid", "dirichlet"])
    ', did you mean dirichlet?'
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]}?" if close else ""

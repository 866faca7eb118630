"""Helpful refusals of unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UnknownName(ValueError):
    """A name that nothing here has, with the nearest one that something has."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that offers the nearest known name, empty if none is near.

    >>> did_you_mean("dirichlt", ["iid", "dirichlet"])
    "; did you mean 'dirichlet'?"
    """
    close = get_close_matches(name, list(known), 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def nearest(kind: str, name: str, valid: list[str]) -> UnknownName:
    """The error for an unknown name: what was given, what may have been meant, what there is."""
    return UnknownName(f"unknown {kind} {name!r}{did_you_mean(name, valid) or '.'} Known: {', '.join(valid) or 'none'}")

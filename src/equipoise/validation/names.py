"""Names: which are fit for clients and labels, how they are quoted, and helpful refusals of unknown ones."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 64  # characters of a client's id or a label
SHOWN = 60  # known names that an error lists


class UnknownName(ValueError):
    """A name that nothing here has, with the nearest one that something has."""


def checked_name(name: str, what: str) -> str:
    """The name of a client or a label, if it can stand in a table, a figure and a file's name.

    >>> checked_name("north/1", "client id")
    Traceback (most recent call last):
    ValueError: client id 'north/1': expected 1 to 64 printable characters without / and outer spaces; rename it
    """
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= LONGEST
        or not name.isprintable()
        or "/" in name
        or name != name.strip()
    ):
        reason = " (it is not UTF-8)" if isinstance(name, str) and not is_unicode(name) else ""
        raise ValueError(
            f"{what} {quoted(name)}: expected 1 to {LONGEST} printable characters without / and outer spaces{reason}; rename it"
        )
    return name


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8; the name of a file may hold bytes that are none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def quoted(value: object, most: int = 120) -> str:
    """A value for an error message: on one line, without control characters, not too long, and of an array its shape alone.

    >>> import numpy
    >>> quoted({"data": numpy.zeros((2, 3)), "rounds": 5})
    "{'data': <ndarray of shape (2, 3)>, 'rounds': 5}"
    """
    try:
        text = repr(_without_contents(value))
    except ValueError:  # an integer of thousands of digits
        text = f"<{type(value).__name__}>"
    text = "".join(sign if sign.isprintable() else " " for sign in text)
    return text if len(text) <= most else f"{text[:most]}..."


class _Shape:
    """Stands for an array: what it holds may be somebody's secret."""

    def __init__(self, value: object, shape: object) -> None:
        self.text = f"<{type(value).__name__} of shape {tuple(shape) if isinstance(shape, tuple) else shape}>"

    def __repr__(self) -> str:
        return self.text


def _without_contents(value: object) -> object:
    if isinstance(value, str):
        return str(value)  # NumPy's strings are written otherwise
    shape: object = getattr(value, "shape", None)
    if shape and not isinstance(value, type) and hasattr(value, "__array__"):
        return _Shape(value, shape)
    if type(value) is dict:
        return {key: _without_contents(one) for key, one in list(value.items())[:SHOWN]}
    if type(value) in (list, tuple):
        shown = [_without_contents(one) for one in list(value)[:SHOWN]]  # type: ignore[call-overload]
        return shown if type(value) is list else tuple(shown)
    return value


def closest(name: str, known: Iterable[str], alike: float = 0.5) -> str | None:
    """The known name that is most like this one, if any is like enough."""
    return next(iter(get_close_matches(str(name)[:200], list(known), 1, alike)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that offers the nearest known name, empty if none is near.

    >>> did_you_mean("dirichlt", ["iid", "dirichlet"])
    "; did you mean 'dirichlet'?"
    """
    close = closest(name, known)
    return f"; did you mean {close!r}?" if close else ""


def nearest(kind: str, name: str, valid: list[str]) -> UnknownName:
    """The error for an unknown name: what was given, what may have been meant, what there is."""
    known = ", ".join(valid[:SHOWN]) + (
        f" and {len(valid) - SHOWN} more" if len(valid) > SHOWN else ""
    )
    return UnknownName(
        f"unknown {kind} {quoted(name)}{did_you_mean(name, valid) or '.'} Known: {known or 'none'}"
    )

"""Names of clients and labels, values in messages, and errors for unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 64  # characters of a client's id or a label
SHOWN = 60  # known names that an error lists
FOLDERS = (".", "..")  # names that mean a folder, not a file in it
# Characters with a meaning in paths or patterns of some system.
_UNSAFE_IN_FILES = frozenset('\\:*?"<>|')


class UnknownName(ValueError):
    """An unknown name; the message offers the nearest known one."""


def checked_name(name: str, kind: str) -> str:
    """Check that a name can stand in a table, a figure and the name of a file.

    Args:
        name: The name of a client or a label.
        kind: The kind of name, for the message.

    Returns:
        The name.

    Raises:
        ValueError: If it has other characters, or too many.

    Example:
        >>> checked_name("north/1", "client id")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: client id 'north/1': expected 1 to 64 printable characters without / ...
    """
    is_text = isinstance(name, str)
    if is_valid_name(name):
        return name
    reason = " (it is not UTF-8)" if is_text and not is_unicode(name) else ""
    raise ValueError(
        f"{kind} {quoted(name)}: expected 1 to {LONGEST} printable characters without / "
        f"and outer spaces{reason}; rename it"
    )


def checked_file_name(name: str, kind: str) -> str:
    """Check that a name is also safe as the name of a file or folder on every system.

    Args:
        name: The name of a site, which others may have chosen.
        kind: The kind of name, for the message.

    Returns:
        The name.

    Raises:
        ValueError: If it is not.

    Example:
        >>> checked_file_name("..", "the site")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: the site '..': expected a name that is safe as the name of a file: ...
    """
    checked_name(name, kind)
    if name[0] in ".-" or name[-1] == "." or _UNSAFE_IN_FILES.intersection(name):
        unsafe = " ".join(sorted(_UNSAFE_IN_FILES))
        raise ValueError(
            f"{kind} {quoted(name)}: expected a name that is safe as the name of a file: no . or - "
            f"at its beginning, no . at its end, and none of {unsafe}; rename it"
        )
    return name


def is_valid_name(name: object) -> bool:
    """Return True for a name that can stand in a table, a figure and the name of a file."""
    if not isinstance(name, str):
        return False
    has_length = 0 < len(name) <= LONGEST
    return has_length and name.isprintable() and "/" not in name and name == name.strip()


def is_unicode(text: str) -> bool:
    """Return True if a text can be written as UTF-8; the name of a file may hold other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def quoted(value: object, most: int = 120) -> str:
    """Return a value for an error message, on one line and without control characters.

    Args:
        value: The value; of an array only the shape is shown.
        most: The number of characters beyond which it is shortened.

    Example:
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
    """Stands for an array in a message, since its content may be secret."""

    def __init__(self, value: object, shape: object) -> None:
        if isinstance(shape, tuple):
            shape = tuple(shape)  # torch's own class is written otherwise
        self.text = f"<{type(value).__name__} of shape {shape}>"

    def __repr__(self) -> str:
        return self.text


def _without_contents(value: object) -> object:
    if isinstance(value, str):
        return str(value)  # NumPy's strings are written otherwise
    shape: object = getattr(value, "shape", None)
    if shape and not isinstance(value, type) and hasattr(value, "__array__"):
        return _Shape(value, shape)
    if type(value) is dict:
        return {key: _without_contents(item) for key, item in list(value.items())[:SHOWN]}
    if type(value) is list:
        return [_without_contents(item) for item in value[:SHOWN]]
    if type(value) is tuple:
        return tuple(_without_contents(item) for item in value[:SHOWN])
    return value


def closest(name: str, known: Iterable[str], alike: float = 0.5) -> str | None:
    """Return the known name that is most similar to a name; None if none is similar enough."""
    matches = get_close_matches(str(name)[:200], list(known), 1, alike)
    return matches[0] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that offers the nearest known name; empty if none is near.

    Example:
        >>> did_you_mean("dirichlt", ["iid", "dirichlet"])
        "; did you mean 'dirichlet'?"
    """
    close = closest(name, known)
    return f"; did you mean {close!r}?" if close else ""


def nearest(kind: str, name: str, valid: list[str]) -> UnknownName:
    """Return the error for an unknown name, which offers the nearest one and lists all.

    Args:
        kind: The kind of thing, such as "metric".
        name: The unknown name.
        valid: All known names.
    """
    known = ", ".join(valid[:SHOWN])
    if len(valid) > SHOWN:
        known += f" and {len(valid) - SHOWN} more"
    return UnknownName(
        f"unknown {kind} {quoted(name)}{did_you_mean(name, valid) or '.'} Known: {known or 'none'}"
    )

"""Parts of sentences that messages about data share: short lists and counts."""

from __future__ import annotations

from collections.abc import Iterable


def some(names: Iterable[str], most: int = 5) -> str:
    """Return the first names of a list, and how many more there are.

    Args:
        names: The names.
        most: How many of them to show.

    Returns:
        The names, separated by commas.

    >>> some("abcdefg")
    'a, b, c, d, e and 2 more'
    """
    every = list(names)
    shown = ", ".join(every[:most])
    if len(every) > most:
        return f"{shown} and {len(every) - most} more"
    return shown


def plural(word: str, count: int) -> str:
    """Return a word in the singular for a count of 1, else with an s.

    >>> plural("site", 1), plural("site", 0)
    ('site', 'sites')
    """
    return word if count == 1 else f"{word}s"


def counted(count: int, word: str, words: str | None = None) -> str:
    """Return a count with its word.

    Args:
        count: The count.
        word: The word in the singular.
        words: The word in the plural; by default with an s.

    >>> counted(1, "row"), counted(1200, "row"), counted(2, "reply", "replies")
    ('1 row', '1,200 rows', '2 replies')
    """
    if count == 1:
        return f"1 {word}"
    return f"{count:,} {words or plural(word, count)}"

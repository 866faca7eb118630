"""Extension of griffe: examples in docstrings are shown as code, wherever they stand."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Puts the heading `Examples:` above doctests that have none."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of a class, function or module."""
        if obj.docstring is not None:
            obj.docstring.value = with_headings(obj.docstring.value)


def with_headings(text: str) -> str:
    """Return a docstring whose doctests are in sections of their own.

    >>> print(with_headings("Add.\\n\\n>>> 1 + 1\\n2"))
    Add.
    <BLANKLINE>
    Examples:
        >>> 1 + 1
        2
    """
    text = re.sub(r"^Example:\n(?=\s+>>>)", "Examples:\n", text, flags=re.MULTILINE)
    paragraphs = text.split("\n\n")
    changed = []
    for number, paragraph in enumerate(paragraphs):
        follows_code = number > 0 and paragraphs[number - 1].lstrip().startswith(">>>")
        if paragraph.startswith(">>>"):
            indented = "\n".join(f"    {line}" for line in paragraph.splitlines())
            changed.append(indented if follows_code else f"Examples:\n{indented}")
        else:
            changed.append(paragraph)
    return "\n\n".join(changed)

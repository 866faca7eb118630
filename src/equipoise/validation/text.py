"""Texts of users escaped for terminals, LaTeX and Markdown.

HTML is escaped by the template engine of the page, figures are drawn with matplotlib's formulas
switched off, and the command line prints texts that rich does not search for its markup.
"""

from __future__ import annotations

import re

_LATEX = {
    **{sign: f"\\{sign}" for sign in "{}&%$#_"},
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def shown(value: object) -> str:
    r"""Return a text for one line of a terminal, with visible escapes for control characters.

    Example:
        >>> shown("a\x1b[31mb\n")
        'a\\x1b[31mb\\n'
    """
    characters = []
    for character in str(value):
        if not character.isprintable():
            character = character.encode("unicode_escape").decode()
        characters.append(character)
    return "".join(characters)


def latex(value: object) -> str:
    r"""Return a text for a LaTeX document.

    Example:
        >>> latex(r"50% of C:\a_b^2")
        '50\\% of C:\\textbackslash{}a\\_b\\textasciicircum{}2'
    """
    return "".join(_LATEX.get(character, character) for character in shown(value))


def markdown(value: object) -> str:
    r"""Return a text for a Markdown table.

    Example:
        >>> markdown("a|b *c*")
        'a\\|b \\*c\\*'
    """
    return re.sub(r"([\\`*|<]|\](?=\())", r"\\\1", shown(value))

"""Names and other words of users in places that read some signs as their own: terminals, LaTeX, Markdown.

HTML is escaped by the page's template engine, figures are drawn with matplotlib's formulas switched off, and the command line prints words as
texts that rich does not search for its markup.
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
    """A text on one line of a terminal: signs that steer it, or that are not UTF-8, become visible.

    >>> shown("a\\x1b[31mb\\n")
    'a\\\\x1b[31mb\\\\n'
    """
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode()
        for sign in str(value)
    )


def latex(value: object) -> str:
    """A text of a LaTeX document.

    >>> latex(r"50% of C:\\a_b^2")
    '50\\\\% of C:\\\\textbackslash{}a\\\\_b\\\\textasciicircum{}2'
    """
    return "".join(_LATEX.get(sign, sign) for sign in shown(value))


def markdown(value: object) -> str:
    """A text in a Markdown table.

    >>> markdown("a|b *c*")
    'a\\\\|b \\\\*c\\\\*'
    """
    return re.sub(r"([\\`*|<]|\](?=\())", r"\\\1", shown(value))

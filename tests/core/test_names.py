"""Names of clients and labels: which are taken, and that what they hold is text wherever it is
shown.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.storage.store import RunError
from equipoise.validation import text
from equipoise.validation.names import checked_name, is_unicode, nearest, quoted
from tests.helpers.stores import made_up_run

GOOD = [
    "a",
    "Zürich",
    "北京",
    "St. Mary's (2)",
    "a" * 64,
    "[bold]",
    "$x$",
    "<b>",
    ":smile:",
    "100 %",
    "..",
    "_a",
    "-",
]
BAD = [
    "",
    "a" * 65,
    "a/b",
    "/",
    "a\nb",
    "a\tb",
    "a\x00b",
    "a\x1b[31m",
    "\x7f",
    "a\u202eb",
    "a\u200bb",
    "\udcff",
    " a",
    "a ",
    "\u2028",
    "\x9b31m",
]


@pytest.mark.parametrize("name", GOOD)
def test_printable_names_are_taken(name: str) -> None:
    assert checked_name(name, "client id") == name
    assert eq.from_sites({name: (np.zeros((2, 3)), [0, 1])}).site_names == (name,)


@pytest.mark.parametrize("name", BAD)
def test_others_are_refused_at_every_door_and_quoted_safely(name: str, tmp_path: Path) -> None:
    doors: list[Any] = [
        lambda: checked_name(name, "client id"),
        lambda: eq.from_sites({name: (np.zeros((2, 3)), [0, 1])}),
        lambda: eq.from_arrays(np.zeros((2, 3)), [0, 1], sites=["a", name]),
        lambda: eq.from_arrays(np.zeros((2, 3)), ["a", name]),
        lambda: eq.from_arrays(np.zeros((2, 3)), [0, 1], class_names=["a", name]),
        lambda: eq.Experiment(models={name: "mlp"}),
    ]
    if is_unicode(name):  # SQLite takes no other text
        doors.append(lambda: eq.Run(made_up_run(tmp_path / "run", clients=["a", name])).clients)
    for door in doors:
        with pytest.raises((ValueError, RunError)) as caught:
            door()
        assert "expected 1 to 64 printable characters without /" in str(caught.value)
        assert str(caught.value).isprintable() and len(str(caught.value)) < 400


def test_what_is_no_text_is_no_name() -> None:
    for wrong in (None, 3, b"a", ["a"]):
        with pytest.raises(ValueError, match="printable"):
            checked_name(wrong, "client id")  # type: ignore[arg-type]


def test_a_quotation_is_one_short_printable_line() -> None:
    for value in (
        10**5000,
        "x" * 10**6,
        "a\n\x1b[2J",
        ["\udcff"],
        {"a": "b\u202e"},
        np.array([1, 2]),
    ):
        found = quoted(value)
        assert found.isprintable() and 0 < len(found) < 130
    assert quoted(np.str_("a")) == "'a'"
    assert len(str(nearest("client", "x" * 10**6, [f"{k:06}" for k in range(10_000)]))) < 1500


@pytest.mark.parametrize("sign", list("\\{}^~&%$#_<>|"))
def test_latex_is_escaped(sign: str) -> None:
    found = text.latex(f"a{sign}b")
    assert re.fullmatch(r"a(\\[{}&%$#_]|\\text[a-z]+\{\})b", found)


def test_latex_of_everything_at_once_escapes_nothing_twice() -> None:
    assert (
        text.latex(r"\{}^~&%$#_")
        == r"\textbackslash{}\{\}\textasciicircum{}\textasciitilde{}\&\%\$\#\_"
    )
    assert text.latex("fedprox (mu=0.1)") == "fedprox (mu=0.1)"


def test_a_name_breaks_no_markdown_table() -> None:
    assert text.markdown("a|b") == r"a\|b" and "\n" not in text.markdown("a\nb")
    assert text.markdown("<img>[x](http://y)`*") == r"\<img>[x\](http://y)\`\*"


def test_signs_that_steer_a_terminal_become_visible() -> None:
    assert text.shown("a\x1b[2J\r\nb\udcff\u202e") == r"a\x1b[2J\r\nb\udcff\u202e"
    assert text.shown("Zürich 北京 😀") == "Zürich 北京 😀"

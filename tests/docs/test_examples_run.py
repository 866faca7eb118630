"""Pages that show commands and code with their output: all of it runs, in the order of the page."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.terminal import Terminal
from tests.helpers.terminal import equipoise as equipoise

ROOT = Path(__file__).parents[2]
SLOW = ("docs/start/first-run.md", "docs/start/own-method.md")
PAGES = [
    "README.md",
    "docs/compare.md",
    "docs/pandas.md",
    "docs/reference/api/index.md",
    *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/start/*.md")),
]
BLOCK = re.compile(r'^```(\w*)(?: title="(\S+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of a page: python, console, or the output of the python before it."""

    language: str
    title: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    for language, title, text in BLOCK.findall((ROOT / page).read_text()):
        yield Block(language, title, text)


def pattern(printed: str) -> str:
    """Output without digits and spaces, since these differ between kinds of CPU; `...` is a gap."""
    text = re.sub(r"[-+–]?\d[\d.,]*", "#", printed)
    text = re.sub(r"\s+", "", text)
    escaped = re.sub(r"([\[\]*?])", r"[\1]", text.replace("...", "\0"))
    return escaped.replace("\0", "*")


def matches(printed: str, output: str) -> bool:
    normal = re.sub(r"\s+", "", re.sub(r"[-+–]?\d[\d.,]*", "#", output))
    return fnmatchcase(normal, pattern(printed))


def typed(text: str) -> Iterator[tuple[list[str], str]]:
    """The commands of a console block, each with the output that the page shows."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield shlex.split(command), printed


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page in SLOW else ()) for page in PAGES],
)
@pytest.mark.thorough
def test_commands_and_code_of_a_page_print_what_it_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Terminal
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    output = ""
    for block in blocks(page):
        if block.title:
            Path(block.title).write_text(block.text)
        elif block.language == "python":
            output = _executed(block.text, names)
        elif block.language == "" and output:
            assert matches(block.text, output), output
            output = ""
        elif block.language == "console":
            for words, printed in typed(block.text):
                if words == ["export", "PYTHONPATH=."]:
                    monkeypatch.syspath_prepend(tmp_path)
                    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
                    continue
                answer = equipoise(*words[1:])
                assert answer.code == 0, answer.err
                assert matches(printed, answer.out), answer.out
    sys.modules.pop("my_methods", None)


def _executed(code: str, names: dict[str, Any]) -> str:
    """Execute code of the page and return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)  # the page's own code
    return printed.getvalue()


def test_the_comparison_of_output_knows_digits_and_gaps() -> None:
    assert matches("average 93.0\n...\nend", "average 92.7\nanything\nend\n")
    assert not matches("average 93.0\nend", "median 93.0\nend")
    assert matches("4 of 10 (0*)", "3 of 10 (1*)")


# Pages whose code another test runs, or which shows a part that needs a long run first.
ELSEWHERE = {
    "docs/custom-method.md": "tests/e2e/test_custom_method_page.py",
    "docs/data.md": "tests/data/test_python.py",
    "docs/extending.md": "tests/docs/test_extending.py",
    "docs/fairness.md": "tests/metrics/test_examples.py",
    "docs/methods/kdia.md": "a run of KDIA on CIFAR-10",
    "docs/network.md": "tests/docs/test_network.py",
    "docs/sites.md": "tests/docs/test_pages.py",
}


def test_every_page_with_python_code_is_run() -> None:
    pages = {
        str(page.relative_to(ROOT))
        for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
        if "```python" in page.read_text()
    }
    assert pages - set(PAGES) == set(ELSEWHERE)
    tests = [place for place in ELSEWHERE.values() if place.startswith("tests/")]
    assert all((ROOT / test).exists() for test in tests)

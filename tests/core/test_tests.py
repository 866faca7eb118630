"""The tests' own house: one package, helpers in one place, names that do not say their folder
again.
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
# a tool that runs the suite in copies of the tree: it must not be imported as a part of it
APART = "mutation"
FILES = [path for path in TESTS.rglob("*.py") if APART not in path.relative_to(TESTS).parts]


def test_every_folder_with_tests_is_a_package() -> None:
    assert len(FILES) > 100
    assert {path.parent for path in FILES if not (path.parent / "__init__.py").exists()} == set()


def test_names_do_not_say_their_folder_again() -> None:
    assert [str(path) for path in FILES if path.stem.startswith(f"test_{path.parent.name}_")] == []


def test_the_path_is_changed_nowhere() -> None:
    changed = re.compile(r"^\s*sys\.path(\.insert|\.append|\[.*\] ?=|\s*[+:]?=)", re.MULTILINE)
    assert [
        str(path)
        for path in FILES
        if changed.search(re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL))
    ] == []


def borrowed(path: Path) -> list[str]:
    """Return the imports of a file from tests of another folder, or from another test."""
    own = rf"{path.parent.name}(?:\.(?!test_)| import (?!test_))"
    foreign = re.compile(rf"^(?:from|import) tests\.(?!helpers|{own})")
    return [line for line in path.read_text().splitlines() if foreign.match(line)]


def test_what_is_shared_comes_from_the_helpers_or_from_one_of_the_same_folder() -> None:
    """Not a test from another: whoever reads one need not know the other."""
    assert {str(path): borrowed(path) for path in FILES if borrowed(path)} == {}


def test_helpers_hold_no_tests() -> None:
    assert [
        str(path)
        for path in (TESTS / "helpers").glob("*.py")
        if re.search(r"^def test_", path.read_text(), re.MULTILINE)
    ] == []

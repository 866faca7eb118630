"""The mutation tool on a small tree whose gaps are known."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from changes import changes
from mutate import _followed, _moves

SUMS = '''
from __future__ import annotations

LIMIT: int = 3


def total(a: int, b: int = 0) -> int:
    """A sum."""
    if a > LIMIT and not b:
        raise ValueError(f"{a - 1} is too much")
    return a + b


def child(a: int) -> int:
    return a * 7


def shared() -> list[int]:
    return [5]


def unseen(a: int) -> int:
    return a - 1


def marked(a: int) -> int:
    return a - 2  # equivalent: nobody needs it
'''

TESTS = """
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise import sums


@pytest.fixture(scope="module")
def made():
    return sums.shared()


def test_total():
    assert sums.total(1, 2) == 3 and sums.total(3) == 3
    with pytest.raises(ValueError):
        sums.total(4)


def test_first(made):
    assert made


def test_second_looks_at_what_the_first_made(made):
    assert made == [5]


def test_that_passes_only_once():
    assert sums.unseen(1) is not None and not Path("was-here").exists()
    Path("was-here").touch()


def test_in_another_process():
    code = "from equipoise.sums import child; print(child(2))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "14\\n"
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b <= c", ["a <= b <= c", "a < b < c"]),
        ("a is None", ["a is not None"]),
        ("a not in b", ["a in b"]),
        ("a + b * c", ["(a - b * c)", "(b / c)"]),
        ("a and b", ["(a or b)"]),
        ("x = not a", ["a"]),
        ("x = 3", ["4"]),
        ("x = 0.0", ["1.0"]),
        ("x = True", ["False"]),
        ("x = f(a, b, c)", ["f(b, a, c)"]),
        ("x = f(a, a)", []),
        ("x = isinstance(a, b)", []),
        ("x += y", ["x -= y", "pass"]),
        ("x.y = z", ["pass"]),
        ("x = y if z else w", ["not (z)"]),
        ("x: Annotated[int, 3] = y", []),
        ("x = f'{a + b}'", []),
        ("x = 'text' + b", []),
        ("if TYPE_CHECKING:\n    f(1)", []),
        ("'''A docstring.'''", []),
        ("x = zip(a, b, strict=True)", ["zip(b, a, strict=True)"]),
        ("x = a <= b + 1e-9", ["(b - 1e-09)"]),
        ("x = 4096", []),
        ("CHUNK_SIZE = 16", []),
        ("assert a is not None and b", []),
        ("time.sleep(0.5)", []),
        ("x = 3  # equivalent: never read", []),
    ],
)
def test_the_changes_of_a_line(source: str, expected: list[str]) -> None:
    found = [change.after for change in changes("a.py", source)]
    # An expression that stands alone can be removed as a statement, too.
    assert [one for one in found if one != "pass" or "pass" in expected] == expected


def test_a_change_is_one_place_of_the_file_and_stays_code() -> None:
    source = "def größe(x):\n    return 'ü', x > 1  # a comment\n"
    (first, second) = changes("a.py", source)
    assert first.applied_to(source.encode()).decode() == source.replace("x > 1", "x >= 1")
    assert second.applied_to(source.encode()).decode() == source.replace(
        "1", "2"
    ) and second.is_code(source.encode())
    assert (first.line, first.scope, first.runs_at_import) == (2, "größe", False)
    assert (
        changes("a.py", "x = 1")[0].runs_at_import
        and changes("a.py", "def f(x=1): ...")[0].runs_at_import
    )


@pytest.mark.slow
def test_gaps_of_a_small_tree_are_found_and_nothing_else(tmp_path: Path) -> None:
    """Changes are caught in the test, in a child process, and by a test of shared fixtures."""
    for name, text in {
        "src/equipoise/__init__.py": "",
        "src/equipoise/sums.py": SUMS,
        "tests/test_sums.py": TESTS,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    options = {"-n": "99", "--jobs": "2", "--root": str(tmp_path), "--tests": "tests"}
    command = [
        sys.executable,
        str(Path(__file__).with_name("mutate.py")),
        *(word for pair in options.items() for word in pair),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1 and not ended.stderr, ended.stderr
    lines = ended.stdout.splitlines()
    tries = {
        found[2]: found[1]
        for line in lines
        if (found := re.match(r" *\d+ (\w+) +\d+ s  src/equipoise/sums.py:\d+  (.*)", line))
        is not None
    }
    assert {change for change, how in tries.items() if how == "survived"} == {
        "a - 1 -> (a + 1)",
        "1 -> 2",
    }
    assert set(tries.values()) == {"caught", "survived"}
    assert (
        "left out from now on, since it does not pass without the change either: "
        "tests/test_sums.py::test_that_passes_only_once" in ended.stdout
    )
    assert {
        "a * 7 -> (a / 7)",
        "7 -> 8",
        "5 -> 6",
        "3 -> 4",
        "0 -> 1",
        "a > LIMIT -> a >= LIMIT",
        "a + b -> (a - b)",
    } <= tries.keys()
    n = len(tries)
    assert f"caught {n - 2} of {n}: {100 * (n - 2) / n:.1f} %" in lines
    assert {line.strip() for line in lines[-4:] if line.startswith("  ")} == {
        "src/equipoise/sums.py unseen: a - 1 -> (a + 1)",
        "src/equipoise/sums.py unseen: 1 -> 2",
    }
    assert (tmp_path / "src/equipoise/sums.py").read_text() == SUMS, "nothing is changed in place"


def test_what_was_learnt_follows_lines_that_move() -> None:
    then, now = (
        {"a.py": "one\ntwo\nthree\n", "b.py": "same\n"},
        {"a.py": "new\none\nTWO\nthree\n", "b.py": "same\n"},
    )
    moved = _moves(then, now)
    assert moved == {"a.py": {1: 2, 3: 4}}
    row = {"test": "t", "lines": {"a.py": [1, 2, 3], "b.py": [1]}, "children": {"a.py": [3]}}
    assert _followed(row, moved) == {
        "test": "t",
        "lines": {"a.py": [2, 4], "b.py": [1]},
        "children": {"a.py": [4]},
    }

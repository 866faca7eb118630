"""The house: which package may import which, how many modules lie at the root, and that the map
names every room.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.package_order import ORDER

SOURCE = Path(__file__).parents[2] / "src"
ROOT = SOURCE / "equipoise"

# Imports inside functions, all of them for the time that a command takes to start: whoever may have
# some, and why.
LATE = {
    "equipoise.cli": "a command imports torch if it needs it, and help never does",
    "equipoise.runs.run": "tables of a run are read without torch",
    "equipoise.storage.files": "as above",
    "equipoise.storage.form": "as above",
    "equipoise.data.config": "partitions come with the first experiment that is dealt",
    "equipoise.data.pipeline": "readers of a format come with the first file of that format",
    "equipoise.data.sets.files": "as above",
    "equipoise.simulate": "Ray comes with the first run on a cluster",
    "equipoise.transports": "a parent of processes imports what its children need once, when it has some",
    "equipoise.comparison.executor": "the program of the child processes is imported by nobody who does not run it",
}
MOST_AT_THE_ROOT = 14


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imported(path: Path, name: str, known: dict[str, Path]) -> Iterator[tuple[str, bool]]:
    """Every module of ours that a file imports, also for the type checker and inside functions
    (True).
    """

    def walk(node: ast.AST, inside: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                base = (
                    ".".join(
                        [*package[: len(package) - child.level + 1], child.module or ""]
                    ).strip(".")
                    if child.level
                    else child.module
                )
                for alias in child.names:
                    yield (
                        f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else str(base),
                        inside,
                    )
            yield from walk(
                child, inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            )

    for module, inside in walk(ast.parse(path.read_text()), False):
        if module.partition(".")[0] == "equipoise" and module != name:
            yield module, inside


def graph(known: dict[str, Path]) -> dict[str, set[str]]:
    return {
        name: {module for module, _ in imported(path, name, known)} for name, path in known.items()
    }


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle; empty if none do."""
    done: set[str] = set()

    def visit(one: str, path: list[str]) -> list[str]:
        if one in path:
            return [*path[path.index(one) :], one]
        if one in done:
            return []
        for other in sorted(edges.get(one, ())):
            found = visit(other, [*path, one])
            if found:
                return found
        done.add(one)
        return []

    return next((found for one in sorted(edges) if (found := visit(one, []))), [])


def room(module: str) -> str:
    """The entry of ORDER under which a module falls; packages in packages may have their own."""
    words = module.split(".")[1:]
    inner = ".".join(words[:2])
    if inner in ORDER:
        return inner
    return words[0] if words else ""


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Counting imports for the type checker and those inside functions."""
    edges = graph(MODULES)
    assert len(edges) > 150 and sum(map(len, edges.values())) > 500, "the walk found too little"
    assert cycle(edges) == []


def test_packages_look_down_only() -> None:
    rooms = {room(name) for name in MODULES}
    assert rooms <= set(ORDER), f"not in ORDER: {rooms - set(ORDER)}"
    up = [
        f"{name} -> {other}"
        for name, others in graph(MODULES).items()
        for other in others
        if ORDER.index(room(other)) > ORDER.index(room(name))
    ]
    assert not up


def test_late_imports_are_listed() -> None:
    late = {
        name
        for name, path in MODULES.items()
        for _, inside in imported(path, name, MODULES)
        if inside
    }
    listed = {
        name for name in late for prefix in LATE if name == prefix or name.startswith(f"{prefix}.")
    }
    assert late == listed, f"import at the top, or say in LATE why not: {sorted(late - listed)}"
    idle = [
        prefix
        for prefix in LATE
        if not any(name == prefix or name.startswith(f"{prefix}.") for name in late)
    ]
    assert not idle, f"nothing is late any more in {idle}"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"a.py": "from equipoise.b import x", "b.py": "import equipoise.c"}, []),
        (
            {"a.py": "from equipoise.b import x", "b.py": "def f():\n    from equipoise import a"},
            ["equipoise.a", "equipoise.b", "equipoise.a"],
        ),
        (
            {"a.py": "from . import b", "b.py": "if TYPE_CHECKING:\n    from equipoise.a import x"},
            ["equipoise.a", "equipoise.b", "equipoise.a"],
        ),
        (
            {"p/__init__.py": "from .q import x", "p/q.py": "from ..p import y"},
            ["equipoise.p", "equipoise.p.q", "equipoise.p"],
        ),
    ],
)
def test_the_walk_sees_a_circle(files: dict[str, str], found: list[str], tmp_path: Path) -> None:
    known = {}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        known[
            "equipoise." + name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        ] = path
    assert cycle(graph(known)) == found


def test_few_modules_lie_at_the_root() -> None:
    assert len(list(ROOT.glob("*.py"))) <= MOST_AT_THE_ROOT


def test_the_map_names_every_package_and_each_that_it_names_is_there() -> None:
    page = (SOURCE.parent / "CONTRIBUTING.md").read_text()
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|$", page, re.MULTILINE)
    named = {name: text for cell, text in rows for name in re.findall(r"`([\w]+)/`", cell)}
    assert packages <= named.keys(), (
        f"CONTRIBUTING.md's map has no row for {sorted(packages - named.keys())}"
    )
    assert all((ROOT / name).is_dir() for name in named), (
        f"there is no {sorted(name for name in named if not (ROOT / name).is_dir())}"
    )


def test_importing_it_warns_of_nothing() -> None:
    words = [
        sys.executable,
        "-W",
        "always::UserWarning",
        "-c",
        "import equipoise; equipoise.Experiment",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr


def test_scikit_learn_is_imported_where_it_is_used() -> None:
    """Its import takes seconds, which every command would pay for."""
    early = []
    for name, path in MODULES.items():
        for statement in ast.parse(path.read_text()).body:
            is_import = isinstance(statement, (ast.Import, ast.ImportFrom))
            if is_import and "sklearn" in ast.unparse(statement):
                early.append(name)
    assert early == []

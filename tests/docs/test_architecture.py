"""docs/architecture.md agrees with the code: packages, a round and the tables of a store."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import equipoise as eq
from tests.helpers.package_order import ORDER
from tests.helpers.runs import played, settings, sites

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "equipoise"
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    below = PAGE.partition(f"## {heading}\n")[2]
    table = re.search(r"^\|.*?(?=\n\n)", below, re.DOTALL | re.MULTILINE)
    assert table is not None
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in table[0].splitlines()[2:]
    ]


def test_the_diagram_names_every_package_and_its_layers_are_in_the_order_of_imports() -> None:
    layers = re.findall(r"subgraph \w+ \[.+\]\n\s+(.+)\n", PAGE)
    packages = [layer.split(" ~~~ ") for layer in reversed(layers)]
    named = {name for layer in packages for name in layer}
    assert {path.parent.name for path in SOURCE.glob("*/__init__.py")} <= named
    positions = [[ORDER.index(name) for name in layer] for layer in packages]
    assert positions == [sorted(layer) for layer in positions]
    for below, above in pairwise(positions):
        assert max(below) < min(above)


def test_the_walk_is_that_of_a_run(tmp_path: Path) -> None:
    """Each function that the page names is called, for the first time, after the one before it.

    What the start calls like a round is not counted.
    """
    walk = [(file.strip("`"), function.strip("`")) for _, file, function, _ in rows("A round")]
    assert len(walk) > 20 and [int(row[0]) for row in rows("A round")] == list(
        range(1, len(walk) + 1)
    )
    called: dict[tuple[str, str], None] = {}

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{SOURCE}/"):
            key = (code.co_filename.removeprefix(f"{SOURCE}/"), code.co_qualname)
            if key == ("engine/rounds.py", "Loop._round"):
                for later in walk[walk.index(key) + 1 :]:
                    called.pop(later, None)
            called.setdefault(key, None)

    config = settings({"name": "fedavg"}, rounds=1)
    dataset = eq.from_sites(sites())
    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        eq.run(eq.Experiment(**config, dataset=dataset), tmp_path / "run")
    finally:
        sys.setprofile(before)
    order = list(called)
    missing = [step for step in walk if step not in called]
    assert not missing
    assert [step for step in order if step in walk] == walk


def test_the_tables_are_those_of_a_store(tmp_path: Path) -> None:
    run = played(settings("fedavg", rounds=1), tmp_path / "run")
    there = {
        row["name"] for row in run.store.rows("select name from sqlite_master where type = 'table'")
    }
    assert {name.strip("`") for name, _ in rows("Database tables")} == there


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/extending.md", "CONTRIBUTING.md"])
def test_every_file_that_is_named_is_there(page: str) -> None:
    """Paths are given from the root of the repository, or from that of the package."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    spans = [
        span
        for span in re.findall(r"`([^`\s]+)`", text)
        if re.fullmatch(r"[\w./-]+(\.py|\.md|\.yaml|/)", span)
    ]
    links = [(ROOT / page).parent / link for link in re.findall(r"\]\(([^)#:]+)\)", text)]
    assert len(spans) > 10
    named = [span for span in spans if "NAME" not in span and span != "hospitals/"]
    assert [
        span for span in named if not (ROOT / span).exists() and not (SOURCE / span).exists()
    ] == []
    assert [str(link) for link in links if not link.exists()] == []
    for span in spans:  # where any name may stand, the folder is there
        assert "NAME" not in span or any(
            (base / span).parent.is_dir() for base in (ROOT, SOURCE)
        ), span

"""The pages of methods name functions that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.stem for path in (ROOT / "docs" / "methods").glob("*.md") if path.stem != "README"
)
SOURCE = ROOT / "src" / "equipoise"


@pytest.mark.parametrize("name", PAGES)
def test_the_code_column_names_code_of_the_method(name: str) -> None:
    page = (ROOT / "docs" / "methods" / f"{name}.md").read_text()
    section = page.partition("## Equations and lines")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    files = [SOURCE / "methods" / f"{name}.py", SOURCE / "method.py"]
    for folder in ("losses", "weighting", "models"):
        files += (SOURCE / folder).glob("*.py")
    code = "\n".join(path.read_text() for path in files)
    cells = [re.split(r"(?<!\\)\|", row)[-2] for row in rows]
    names = {
        identifier
        for cell in cells
        for span in re.findall(r"`([^`]+)`", cell)
        for identifier in re.findall(r"^_?[A-Za-z]\w*(?=$|\()", span)
    }
    assert names or not rows
    assert {identifier for identifier in names if identifier not in code} == set()

"""The example of two sites in docs/data.md, as a reader would type it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from equipoise.data.schema import Schema, schema_from
from equipoise.validation import safe_yaml
from tests.helpers.terminal import equipoise as equipoise

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_example_of_two_sites_runs_and_shows_its_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any
) -> None:
    section = PAGE.read_text().split("## Sites that keep their rows")[1].split("\n## ")[0]
    make, prepare = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    commands = re.findall(r"^equipoise (.*)$", section, re.MULTILINE)
    shown = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(make, names)  # the page's own code
    assert len(commands) == 5
    for command in commands:
        answer = equipoise(*command.split())
        assert answer.code == 0, answer.err
    assert schema_from("all.yaml") == Schema(**safe_yaml.parsed(shown, "the page"))
    exec(prepare, names)
    assert len(names["north"].train[0]) == 42
    assert names["north"].task.shape == (7,)

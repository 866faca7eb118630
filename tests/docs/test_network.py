"""The enrolment of docs/network.md, as a reader would type it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from equipoise.transports.nvflare import parties
from equipoise.transports.nvflare.kits import loosened, open_kit
from equipoise.transports.nvflare.processes import free_port
from tests.helpers.terminal import Terminal
from tests.helpers.terminal import equipoise as equipoise

PAGE = Path(__file__).parents[2] / "docs" / "network.md"
HOSPITALS = ["va", "cleveland", "hungary", "switzerland"]


@pytest.mark.slow
def test_the_commands_of_the_page_bring_four_hospitals_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Terminal
) -> None:
    text = PAGE.read_text().split("## 5.")[0]
    commands = re.findall(r"^\$ equipoise (.+)$", text, re.MULTILINE)
    assert len(commands) == 1 + 3 * 6 + 1
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("typer.confirm", lambda question: True)
    port = str(free_port())
    for command in commands:
        if "SHA256:..." in command:
            root = parties.open_network(Path("consortium")).root
            command = command.replace("SHA256:...", root)
        answer = equipoise(*command.replace("8002", port).split())
        assert answer.code == 0, f"{command}: {answer.err}"
    for hospital in HOSPITALS:
        assert loosened(open_kit(Path(hospital), "site")) == []
    members = parties.open_network(Path("consortium")).parties
    assert [party.name for party in members if party.kind == "site"] == HOSPITALS


def test_the_tables_of_the_page_fit_its_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Terminal
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(code, {})  # the page's own code
    for site in HOSPITALS:
        words = ["data", "check", f"{site}.csv", "--client", site, "--schema", "schema.yaml"]
        answer = equipoise(*words, "--set", "data.apart=true")
        assert answer.code == 0, answer.err

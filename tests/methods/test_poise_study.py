"""What the page of Poise says was measured is what the study's results say, and its defaults are what the protocol's rules chose."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise.methods.poise import Poise

STUDY = Path(__file__).parents[2] / "studies" / "poise"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(STUDY))
    import table

    yield table
    for name in (
        "table",
        "study",
        "settings",
        "variants",
    ):  # names of the study's own, which others may have, too
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_the_page_is_what_the_command_makes_of_the_results(table: Any) -> None:
    text = (STUDY.parents[1] / "docs" / "methods" / "poise.md").read_text()
    assert table.page() == text.partition(table.BEGIN)[2].partition(table.END)[0].strip()


def test_no_run_is_there_twice_and_report_seeds_decided_nothing(table: Any) -> None:
    lines = (STUDY / "results.jsonl").read_text().splitlines()
    assert len(lines) == len(table.known())
    deciding = {key[4] for key in table.known() if key[0] in ("tune", "fold", "prior")}
    assert not deciding & {key[4] for key in table.known() if key[0] in ("report", "ablations")}


def test_the_defaults_are_what_the_rules_chose(table: Any) -> None:
    assert {"folded-all": True, "plain": False}[table.kept()] == Poise().fold
    assert table.prior() == Poise().prior

"""Names that look like markup, and neighbours that may not be read: what the commands print of
them.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from pathlib import Path

import pytest

from equipoise.comparison import formats
from equipoise.comparison.entries import open_runs
from equipoise.comparison.table import Comparison
from tests.helpers.stores import made_up_run
from tests.helpers.terminal import Terminal

STRANGE = ["[bold]x", "[red]", ":smile:", "\\[a]", "[link=x]y", "a\\"]


def test_show_prints_names_as_they_are(equipoise: Terminal, tmp_path: Path) -> None:
    made_up_run(tmp_path / "standalone", "standalone", clients=STRANGE)
    run = made_up_run(tmp_path / "fedavg[red]", clients=STRANGE, level=0.7)
    answer = equipoise("show", run)
    assert answer.code == 0
    assert [line.split("  ")[0] for line in answer.out.splitlines()[3:9]] == STRANGE
    assert "against training alone" in answer.out and "gains" in answer.out
    assert str(run) in equipoise("report", run).out


def test_what_a_strangers_store_says_does_not_steer_the_terminal(
    equipoise: Terminal, tmp_path: Path
) -> None:
    run = made_up_run(tmp_path / "run")
    with sqlite3.connect(run / "run.db") as db:
        db.execute("update measurements set client = 'b\x1b[2J' where client = '1'")
        db.execute("update meta set value = ? where key = 'data'", (json.dumps("d\x1b[2J"),))
    for command in (["show"], ["table"], ["show", "--json"], ["table", "--json"]):
        answer = equipoise(command[0], run, *command[1:])
        assert answer.code == 0 and "\x1b" not in answer.out and "2J" in answer.out


def test_a_comparison_escapes_its_labels_everywhere(equipoise: Terminal, tmp_path: Path) -> None:
    label = r"a_b\c{d}^~&%$#|<i>[bold]"
    first, second = made_up_run(tmp_path / "a"), made_up_run(tmp_path / "b", "fedprox")
    entries = [
        {"method": name, "run": str(run), "alone": None, "setting": {}}
        for name, run in ((label, first), ("other", second))
    ]
    folder = tmp_path / "both"
    folder.mkdir()
    (folder / "comparison.json").write_text(
        json.dumps(
            {"format": 1, "entries": entries, "failures": [], "baseline": "other", "level": 0.95}
        )
    )
    found = Comparison(open_runs([folder]), "other", folder=folder)
    row = next(line for line in formats.latex(found).splitlines() if line.startswith("a"))
    assert row.startswith(
        r"a\_b\textbackslash{}c\{d\}\textasciicircum{}\textasciitilde{}\&\%\$\#\textbar{}\textless{}i\textgreater{}[bold] & "
    )
    row = next(line for line in formats.markdown(found).splitlines() if line.startswith("| a"))
    assert r"\|\<i>" in row and row.replace(r"\|", "").count("|") == formats.markdown(
        found
    ).splitlines()[2].count("|")
    from equipoise.cli import comparison_output

    comparison_output.show(found)
    assert label in equipoise.capture.readouterr().out
    assert equipoise("report", folder).code == 0
    assert "<i>" not in (folder / "report.html").read_text().partition("<main")[2].replace(
        "&lt;i&gt;", ""
    )


def test_show_passes_over_neighbours_that_may_not_be_read(
    equipoise: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_up_run(tmp_path / "fedavg")
    made_up_run(tmp_path / "locked", "standalone")
    broken = {"a": "[", "b": "[]", "c": "method: {}", "d": "x" * 10}
    for name, configuration in broken.items():
        (made_up_run(tmp_path / name, "standalone") / "experiment.yaml").write_text(configuration)
    (made_up_run(tmp_path / "e", "standalone") / "run.db").write_bytes(b"nothing")
    stat = os.stat

    def refusing(path: object, *rest: object, **more: object) -> object:
        # The tests may run as a user who may read everything, so the system's refusal is played.
        if "locked" in os.fspath(path if not isinstance(path, int) else ""):  # type: ignore[call-overload]
            raise PermissionError(13, "Permission denied", path)
        return stat(path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", refusing)
    answer = equipoise("show", run)
    assert answer.code == 0, answer.err
    assert "against" not in answer.out
    monkeypatch.undo()


def test_show_finds_the_neighbour_that_may_be_read(equipoise: Terminal, tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "fedavg")
    made_up_run(tmp_path / "standalone", "standalone")
    assert f"against training alone ({tmp_path / 'standalone'})" in equipoise("show", run).out


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take UTF-8 only")
def test_a_neighbour_whose_name_is_not_utf8_is_shown_escaped(
    equipoise: Terminal, tmp_path: Path
) -> None:
    run = made_up_run(tmp_path / "fedavg")
    made_up_run(tmp_path / os.fsdecode(b"st\xffand"), "standalone")
    answer = equipoise("show", run)
    assert answer.code == 0 and r"st\udcffand" in answer.out

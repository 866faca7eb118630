"""What a terminal shows while a run is going on."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from equipoise.cli import comparison_output, output
from equipoise.transports.measuring import MEASURE


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=200, color_system=None)
    monkeypatch.setattr(output, "Console", lambda **_: console)
    return shown


def last_lines(screen: io.StringIO) -> str:
    return screen.getvalue().replace("\r", "\n")


def test_clients_of_a_round_are_shown_by_node(screen: io.StringIO) -> None:
    with output.progress(False) as watcher:
        watcher.on_start(3, 9)
        watcher.by_place.update({"clients@10.0.0.2:1": 4, "seconds@10.0.0.2:1": 2.5, "clients@10.0.0.1:1": 7, "lost@10.0.0.3:1": 1})
        watcher.on_clients("local", 11, 20)
    shown = last_lines(screen)
    assert "training; this round by node: 10.0.0.1:1 7, 10.0.0.2:1 4" in shown and "11/20" in shown and "2/9" in shown
    assert "10.0.0.3" not in shown and "2.5" not in shown


def test_without_nodes_only_what_is_done_is_shown(screen: io.StringIO) -> None:
    with output.progress(False) as watcher:
        watcher.on_start(1, 4)
        watcher.on_clients(MEASURE, 2, 5)
        measurements = [(client, "global", "received", "test", "accuracy", value) for client, value in (("a", 0.5), ("b", 0.75))]
        watcher.on_round(SimpleNamespace(round=1, finish=False, joined=["a", "b"], main="global", measurements=measurements))
    shown = last_lines(screen)
    assert "measuring" in shown and "by node" not in shown and "training" not in shown and "1/4" in shown and "2/5" in shown
    assert "global accuracy 0.625, lowest 0.500" in shown


def test_quiet_says_nothing(screen: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress(True) as watcher:
        watcher.on_start(1, 4)
        watcher.on_clients(MEASURE, 2, 5)
    assert screen.getvalue() == "" and capsys.readouterr() == ("", "")


def test_a_clinical_measure_has_its_interval_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(output, "console", Console(file=shown, width=160, color_system=None))
    measures = [(0.912, 0.85, 0.96), (0.5, None, None), (None, None, None), (float("nan"), 0.1, 0.2)]
    clinical = {
        f"c{place}": {"auroc": dict(zip(("value", "low", "high"), one, strict=True))}
        for place, one in enumerate([*measures, *measures[:1] * 20])
    }
    output._show_clinical(clinical, list(clinical), most=5)
    rows = [line.split(maxsplit=1) for line in shown.getvalue().splitlines() if line.startswith("c") and line[1:2].isdigit()]
    assert [(name, value.strip()) for name, value in rows] == [
        ("c0", "91.2 (85 to 96)"), ("c1", "50.0"), ("c2", "–"), ("c3", "–"), ("c4", "91.2 (85 to 96)"),
    ]  # fmt: skip
    assert "... and 19 more clients" in shown.getvalue()


def test_best_and_second_best_are_marked_in_a_comparison() -> None:
    styles = [comparison_output._mark("12.0", position).style for position in (1, 2, 3, None)]
    assert styles == ["bold", "underline", "", ""]
    assert [comparison_output._coloured(change).style for change in ("-1.0", "+1.0", "0.0")] == ["red", "green", ""]

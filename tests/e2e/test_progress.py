"""What a terminal shows while a run is going on."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from equipoise.callbacks import CallbackList, ClientProgress, RunStart
from equipoise.cli import comparison_output, output, progress
from equipoise.experiment import ConfigurationError
from equipoise.runs import Run
from equipoise.runs.summary import summarise
from equipoise.runtime.evaluation_messages import EvaluateModels
from equipoise.transports.base import Monitor
from tests.helpers.stores import made_up_run


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=200, color_system=None)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    return shown


@contextmanager
def shown_progress(quiet: bool = False) -> Iterator[CallbackList]:
    callbacks = CallbackList(progress.progress(quiet))
    yield callbacks
    callbacks.on_end(Path("run"), None)


def last_lines(screen: io.StringIO) -> str:
    return screen.getvalue().replace("\r", "\n")


def test_clients_of_a_round_are_shown_by_node(screen: io.StringIO) -> None:
    places = {
        "clients@10.0.0.2:1": 4,
        "seconds@10.0.0.2:1": 2.5,
        "clients@10.0.0.1:1": 7,
        "lost@10.0.0.3:1": 1,
    }
    with shown_progress() as callbacks:
        callbacks.on_start(RunStart(Path("run"), 3, 9))
        Monitor(callbacks, by_place=Counter(places)).on_clients("local", 11, 20)
    shown = last_lines(screen)
    assert (
        "training; this round by node: 10.0.0.1:1 7, 10.0.0.2:1 4" in shown
        and "11/20" in shown
        and "2/9" in shown
    )
    assert "10.0.0.3" not in shown and "2.5" not in shown


def test_without_nodes_only_what_is_done_is_shown(screen: io.StringIO) -> None:
    with shown_progress() as callbacks:
        callbacks.on_start(RunStart(Path("run"), 1, 4))
        callbacks.on_client(ClientProgress(EvaluateModels.step, 2, 5))
        measurements = [
            (client, "global", "received", "test", "accuracy", value)
            for client, value in (("a", 0.5), ("b", 0.75))
        ]
        callbacks.on_round(
            SimpleNamespace(
                round=1, finish=False, joined=["a", "b"], main="global", measurements=measurements
            )
        )
    shown = last_lines(screen)
    assert (
        "evaluating" in shown
        and "by node" not in shown
        and "training" not in shown
        and "1/4" in shown
        and "2/5" in shown
    )
    assert "global accuracy 0.625, lowest 0.500" in shown


def test_quiet_says_nothing(screen: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress(quiet=True) as callbacks:
        callbacks.on_start(RunStart(Path("run"), 1, 4))
        callbacks.on_client(ClientProgress(EvaluateModels.step, 2, 5))
    assert screen.getvalue() == "" and capsys.readouterr() == ("", "")


def test_a_clinical_measure_has_its_interval_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(output, "console", Console(file=shown, width=160, color_system=None))
    measures = [
        (0.912, 0.85, 0.96),
        (0.5, None, None),
        (float("nan"), None, None),
        (float("nan"), 0.1, 0.2),
    ]
    clinical = {
        f"c{place}": {"auroc": dict(zip(("value", "low", "high"), one, strict=True))}
        for place, one in enumerate([*measures, *measures[:1] * 20])
    }
    output._show_clinical(clinical, list(clinical), most=5)
    rows = [
        line.split(maxsplit=1)
        for line in shown.getvalue().splitlines()
        if line.startswith("c") and line[1:2].isdigit()
    ]
    assert [(name, value.strip()) for name, value in rows] == [
        ("c0", "91.2 (85 to 96)"), ("c1", "50.0"), ("c2", "–"), ("c3", "–"), ("c4", "91.2 (85 to 96)"),
    ]  # fmt: skip
    assert "... and 19 more clients" in shown.getvalue()


@pytest.mark.parametrize(("clients", "more"), [(20, False), (21, True)])
def test_of_clinical_measures_twenty_clients_are_listed(
    clients: int, more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(output, "console", Console(file=shown, width=160, color_system=None))
    output._show_clinical(
        {
            f"c{place}": {"auroc": {"value": 0.5, "low": None, "high": None}}
            for place in range(clients)
        },
        (),
    )
    assert ("... and 1 more clients" in shown.getvalue()) == more
    assert (
        sum(line.startswith("c") and line[1:2].isdigit() for line in shown.getvalue().splitlines())
        == 20
    )


@pytest.mark.parametrize(("most", "quantiles"), [(3, True), (4, False)])
def test_quantiles_stand_in_place_of_more_clients_than_are_listed(
    most: int,
    quantiles: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(output, "MOST_LISTED", most)
    output.show(summarise(Run(made_up_run(tmp_path / "run", clients=4)), None))
    assert ("quantiles over clients" in capsys.readouterr().out) == quantiles


@pytest.mark.parametrize("word", ["method.mu", "=0.1", "method.mu=", " =0.1", "method.mu= "])
def test_a_grid_is_a_key_and_its_values(word: str) -> None:
    with pytest.raises(
        ConfigurationError, match="--grid: expected KEY=VALUE,VALUE such as method.mu=0.01,0.1, got"
    ):
        comparison_output.parse_grid([word])


def test_best_and_second_best_are_marked_in_a_comparison() -> None:
    styles = [comparison_output._mark("12.0", position).style for position in (1, 2, 3, None)]
    assert styles == ["bold", "underline", "", ""]
    assert [comparison_output._coloured(change).style for change in ("-1.0", "+1.0", "0.0")] == [
        "red",
        "green",
        "",
    ]

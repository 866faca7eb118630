"""The output on a terminal while a run is in progress."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from equipoise.callbacks import CallbackList, ClientProgress, RunStart
from equipoise.cli import comparison_output, output, progress, run_output
from equipoise.comparison import Comparison
from equipoise.experiment import ConfigurationError
from equipoise.runs import ModelResult, RunResult
from equipoise.runs.clinical import ClinicalValue
from equipoise.runtime.evaluation_messages import EvaluateModels
from equipoise.transports.base import Monitor
from tests.helpers.stores import entry, made_up_result


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
        Monitor(callbacks, by_location=Counter(places)).on_clients("local", 11, 20)
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


def with_clinical(values: list[ClinicalValue]) -> RunResult:
    """Return the result of a run whose clients c0, c1, ... have these values of the AUROC."""
    clients = [f"c{k}" for k in range(len(values))]
    result = made_up_result("fedavg", 1, dict.fromkeys(clients, 0.5))
    measures = {client: {"auroc": value} for client, value in zip(clients, values, strict=True)}
    served = ModelResult("global", result.metrics, measures)
    return replace(result, models={"global": served})


def test_a_clinical_measure_has_its_interval_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(output, "console", Console(file=shown, width=160, color_system=None))
    values = [
        ClinicalValue(0.912, 0.85, 0.96),
        ClinicalValue(0.5),
        ClinicalValue(float("nan"), 0.1, 0.2),
    ]
    run_output.show(with_clinical(values))
    table = shown.getvalue().partition("classes are unequal")[2]
    rows = [line.split(maxsplit=1) for line in table.splitlines() if line[:2] in ("c0", "c1", "c2")]
    assert [value.strip() for _, value in rows] == ["91.2 (85 to 96)", "50.0", "–"]


@pytest.mark.parametrize(("clients", "more"), [(20, False), (21, True)])
def test_of_clinical_measures_twenty_clients_are_listed(
    clients: int, more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(output, "console", Console(file=shown, width=160, color_system=None))
    run_output.show(with_clinical([ClinicalValue(0.5)] * clients))
    table = shown.getvalue().partition("classes are unequal")[2]
    assert ("... and 1 more clients" in table) == more
    assert sum(line[1:2].isdigit() for line in table.splitlines() if line.startswith("c")) == 20


@pytest.mark.parametrize(("clients", "quantiles"), [(50, False), (51, True)])
def test_quantiles_stand_in_place_of_more_clients_than_are_listed(
    clients: int, quantiles: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run_output.show(made_up_result("fedavg", 1, [0.5] * clients))
    assert ("quantiles over clients" in capsys.readouterr().out) == quantiles


@pytest.mark.parametrize("word", ["method.mu", "=0.1", "method.mu=", " =0.1", "method.mu= "])
def test_a_grid_is_a_key_and_its_values(word: str) -> None:
    with pytest.raises(
        ConfigurationError, match="--grid: expected KEY=VALUE,VALUE such as method.mu=0.01,0.1, got"
    ):
        comparison_output.parse_grid([word])


def test_best_and_second_best_are_marked_and_changes_coloured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = io.StringIO()
    screen = Console(
        file=shown, width=200, force_terminal=True, color_system="standard", _environ={}
    )
    monkeypatch.setattr(output, "console", screen)
    alone = made_up_result("standalone", 1, [0.5, 0.5])
    better = made_up_result("fedavg", 1, [0.3, 0.9])
    entries = [entry("standalone", alone), entry("fedavg", better, alone)]
    comparison_output.show(Comparison(entries, "fedavg", folder=Path("c")))
    text = shown.getvalue()
    assert re.search(r"\x1b\[1m *60\.0", text) and re.search(r"\x1b\[4m *50\.0", text)
    assert re.search(r"\x1b\[31m *-20\.0", text) and re.search(r"\x1b\[32m *\+40\.0", text)

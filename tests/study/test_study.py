"""A study of two methods, end to end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml

from equipoise.storage.store import RunError
from equipoise.study.page import study_page
from equipoise.study.run import read_table, run_study

STUDY = {
    "title": "Digits",
    "experiment": {
        "data": {"name": "digits", "clients": 3, "samples": 300},
        "model": {"name": "mlp", "hidden": [8]},
        "training": {"lr": 0.1, "batch": 16, "epochs": 3},
        "participation": {"number": 2},
        "rounds": 4,
    },
    "methods": {
        "fedavg": "fedavg",
        "slow": {"name": "fedavg", "training": {"lr": 0.0001}},
        "kdia": {"name": "kdia", "preset": "quick", "serves": ["global", "teacher"]},
        "scaffold": {"name": "scaffold", "training": {"optimiser": "adam"}},
    },
    "conditions": {"even": {"data.partition": "iid"}},
    "seeds": [0],
    "measures": ["average", "worst", "change", "best_average", "megabytes"],
    "printed": {"even": {"average": {"fedavg": 91.5, "kdia.teacher": [90, 1]}}},
    "claims": ["fedavg.average > slow.average", "kdia.teacher.average > kdia.global.average"],
    "scales": {
        "paper": {"core_hours": 1},
        "small": {"core_hours": 0.01, "settings": {"rounds": 1}},
    },
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    path = folder / "digits.yaml"
    path.write_text(yaml.safe_dump(STUDY))
    return run_study(path, out=folder / "runs", jobs=1)


def test_each_served_model_is_a_row_with_its_own_numbers(outcome):
    samples = outcome.table.samples
    assert samples["fedavg", "even", "average"].values.keys() == {0}
    numbers = [
        [samples[row, "even", measure].values for measure in ("average", "worst", "best_average")]
        for row in ("kdia.teacher", "kdia.global")
    ]
    assert numbers[0] != numbers[1]


def test_settings_of_one_method_change_its_rows_only(outcome):
    samples = outcome.table.samples
    fast, slow = (samples[row, "even", "average"].values[0] for row in ("fedavg", "slow"))
    assert fast > slow + 0.1


def test_a_method_that_refuses_its_settings_is_named_and_the_others_run(outcome):
    assert {refusal.method for refusal in outcome.refusals} == {"scaffold"}
    assert "sgd" in outcome.refusals[0].reason
    assert not outcome.failures


def test_results_are_complete_without_the_runs(outcome):
    table = read_table(outcome.table.study.path)
    assert table.samples == outcome.table.samples
    assert [v.decision for v in table.verdicts] == [v.decision for v in outcome.table.verdicts]


def test_the_page_shows_verdicts_and_printed_numbers_beside_ours(outcome):
    page = study_page(outcome.table)
    assert re.search(r"\| fedavg \| 91.5 \| [\d.]+ \|", page)
    assert re.search(r"\| kdia.teacher \| 90(\.0)? ± 1(\.0)? \| [\d.]+ \|", page)
    assert "fedavg.average > slow.average" in page
    assert "Methods that refused their settings:\n\n- scaffold at even: " in page


def test_runs_lie_in_the_folder_that_was_named(outcome):
    folder = outcome.table.study.path.parent / "runs"
    assert list(folder.glob("*/run.db"))


def test_the_spread_over_clients_is_recorded_by_round(outcome):
    record = outcome.table.records_of("fedavg", "even")[0]
    values = np.array(list(record.values.values()))
    assert len(record.deviations) == len(record.rounds) > 1
    assert record.deviations[-1] == pytest.approx(values.std(), abs=1e-6)
    assert record.means[-1] == pytest.approx(values.mean(), abs=1e-6)


def test_a_second_call_runs_nothing(outcome, tmp_path):
    again = run_study(outcome.table.study.path, out=tmp_path / "elsewhere", jobs=1)
    assert again.table.samples == outcome.table.samples
    assert not list((tmp_path / "elsewhere").glob("*/run.db"))


def test_a_killed_study_continues_to_the_same_results(outcome, tmp_path):
    path = tmp_path / "digits.yaml"
    methods = {"fedavg": "fedavg", "slow": STUDY["methods"]["slow"]}
    small = {**STUDY, "methods": methods, "printed": {}, "claims": STUDY["claims"][:1]}
    path.write_text(yaml.safe_dump(small))
    results = tmp_path / "results" / "digits.paper.jsonl"
    command = [sys.executable, "-m", "equipoise", "study", str(path), "--jobs", "1"]
    child = subprocess.Popen([*command, "--out", str(tmp_path / "runs")], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not results.exists():
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    with results.open("a") as file:
        file.write('{"run": "cut o')
    finished = run_study(path, out=tmp_path / "runs", jobs=1)
    expected = {key: s for key, s in outcome.table.samples.items() if key[0] in methods}
    assert finished.table.samples == expected


@pytest.mark.thorough
def test_the_command_plans_without_running(outcome, tmp_path, capsys):
    path = tmp_path / "digits.yaml"
    path.write_text(yaml.safe_dump(STUDY))
    command = [sys.executable, "-m", "equipoise", "study", str(path), "--dry-run"]
    shown = subprocess.run(
        [*command, "--scale", "small"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "0.01 core-hours" in shown.stdout
    assert not (tmp_path / "results").exists()


def test_a_damaged_line_is_named(outcome, tmp_path):
    path = tmp_path / "digits.yaml"
    path.write_text(yaml.safe_dump(STUDY))
    results = tmp_path / "results" / "digits.paper.jsonl"
    results.parent.mkdir()
    results.write_text(json.dumps({"run": 1}) + "\n")
    with pytest.raises(RunError, match="line 1"):
        read_table(path)

"""Comparisons in which methods have settings of their own, or refuse those that they are given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import equipoise as eq
from equipoise.comparison import formats
from equipoise.comparison.table import Comparison, opened
from equipoise.report.page import page_of

BASE = {
    "data": {"name": "digits", "clients": 3, "partition": "iid", "samples": 300},
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 2,
    "training": {"steps": 2, "optimiser": "adam"},
}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    methods = [
        "fedavg",
        "scaffold",
        {"name": "feddc", "training": {"optimiser": "sgd", "lr": 0.05}, "rounds": 3},
    ]
    return eq.compare(BASE, methods, out=tmp_path_factory.mktemp("own"), jobs=1)


def test_each_run_has_its_settings(result: Comparison) -> None:
    runs = {entry.label: entry.run for entry in result.entries}
    assert (runs["feddc"].config["training"]["lr"], runs["feddc"].last_round) == (0.05, 3)
    assert (runs["fedavg"].config["training"]["optimiser"], runs["fedavg"].last_round) == (
        "adam",
        2,
    )
    assert runs["feddc"].baseline.folder == runs["standalone"].folder


def test_a_method_with_a_default_written_out_has_a_row_and_no_run_of_its_own(
    tmp_path: Path,
) -> None:
    written = {"name": "fedavg", "training": {"steps": 2}}
    twice = eq.compare(BASE, ["fedavg", written], out=tmp_path, jobs=1)
    assert twice.methods == ["standalone", "fedavg", "fedavg (training.steps=2)"]
    assert twice.entries[1].run.folder == twice.entries[2].run.folder
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_changes_count_against_the_row_of_training_alone_where_settings_are_tuned(
    tmp_path: Path,
) -> None:
    base = {**BASE, "training": {"steps": 2}}
    # The last one has a learning rate that training alone does not try.
    methods = ["fedavgm", {"name": "fedprox", "training": {"lr": 0.05}}]
    grid = {"training.lr": [0.5, 2.0]}
    tuned = eq.compare(base, methods, grid=grid, out=tmp_path, jobs=1)
    chosen = {method: setting for (method, _), setting in tuned.settings().items()}
    assert chosen["fedavgm"] != chosen["standalone"]
    averages = {name: values[0] for name, values in tuned.per_seed("iid", "average").items()}
    changes = {name: values[0] for name, values in tuned.per_seed("iid", "change").items()}
    for name in ("fedavgm", "fedprox"):
        assert changes[name] == pytest.approx(averages[name] - averages["standalone"])
    alone = tuned.entries[0].run.folder
    assert {entry.run.baseline.folder for entry in tuned.entries[1:]} == {alone}
    assert formats.markdown(opened([tuned.folder])) == formats.markdown(tuned)


def test_the_table_marks_rows_with_settings_of_their_own(result: Comparison) -> None:
    table = formats.markdown(result)
    assert "| feddc § |" in table
    assert "| fedavg |" in table
    note = next(line for line in formats.explanation(result) if line.startswith("§ feddc"))
    assert "training.lr=0.05" in note and "rounds=3" in note and "training.steps" not in note


def test_a_refused_method_has_a_row_with_its_reason_below(result: Comparison) -> None:
    assert "| scaffold | refused |" in formats.markdown(result)
    assert any("scaffold" in line and "plain sgd" in line for line in formats.explanation(result))
    assert not result.failures


def test_marks_and_refusals_are_saved_with_the_comparison(result: Comparison) -> None:
    assert formats.markdown(opened([result.folder])) == formats.markdown(result)


def test_a_file_without_these_keys_still_opens(result: Comparison, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    (folder / "runs").mkdir(parents=True)
    saved = json.loads((result.folder / "comparison.json").read_text())
    del saved["refusals"]
    for entry in saved["entries"]:
        del entry["overrides"]
        for key in ("run", "alone"):
            entry[key] = entry[key] and str(result.folder / entry[key])
    (folder / "comparison.json").write_text(json.dumps(saved))
    assert opened([folder]).methods == result.methods


def test_the_report_names_what_differs_and_what_was_refused(result: Comparison) -> None:
    page = page_of(opened([result.folder], details=True))
    assert "training.lr=0.05" in page
    assert "needs plain sgd" in page

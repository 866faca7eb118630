"""Results by site and group: what a client sends and withholds, what a server refuses, and what
`show`, `compare`, `report` and `table` say of it.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.data import federate
from equipoise.data.groups import MISSING, Groups
from equipoise.metrics.score_histograms import counted
from equipoise.runs import Run, read_result
from equipoise.runs.groups import ALL, CellKey, GroupReport, group_report, sentence
from equipoise.runtime.group_histograms import GroupCounts, fault, sent_cells
from equipoise.task import Task
from tests.helpers.apart_sites import Network, run_apart
from tests.helpers.group_sites import (
    SCHEMA,
    columns,
    experiment,
    finished,
    hospitals,
    write_sites,
)


def report_of(run: Run) -> GroupReport:
    result = read_result(run)
    report = result.models[result.main_model].groups
    assert report is not None
    return report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = hospitals()
    tables["west"] = columns("west", 200, women=0.1)  # few women, so that they are withheld
    return write_sites(tmp_path_factory.mktemp("hospitals"), tables)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Run:
    return finished(tmp_path_factory.mktemp("runs") / "fedavg", folder)


def test_cells_equal_those_of_the_model_on_the_test_rows(run: Run, folder: Path) -> None:
    section = eq.DataConfig(**experiment(folder)["data"])
    federation = federate(section, run.config["seed"])
    report = report_of(run)
    for site in ("east", "north"):
        rows = federation.test[federation.ids.index(site)]
        with torch.no_grad():
            outputs = run.model("global")(federation.x[rows])
        predicted = outputs.argmax(1).numpy()
        truth = federation.y[rows].numpy()
        assert federation.groups is not None
        sex = np.array(federation.groups.rows(rows).names_of("sex"))
        for group in ("f", "m"):
            own = sex == group
            cell = report.cells[CellKey(site, "sex", group)]
            assert cell.samples == own.sum()
            assert cell.prevalence == pytest.approx(truth[own].mean())
            expected = (predicted[own] == truth[own]).mean()
            assert cell.values["accuracy"].value == pytest.approx(expected)


def test_a_small_group_and_the_one_from_which_it_follows_are_withheld(run: Run) -> None:
    report = report_of(run)
    assert not [key for key in report.cells if key.site == "west" and key.column == "sex"]
    assert any("sex f at west" in note and "fewer than 10" in note for note in report.notes)
    rows = run.store.rows("select distinct category from group_curves where client = 'west'")
    assert not {"f", "m"} & {row["category"] for row in rows}


@pytest.mark.parametrize(
    ("counts", "sent"),
    [
        ([30, 12], [0, 1]),
        ([30, 9], []),
        ([30, 20, 9], [0]),
        ([30, 20, 6, 5], [0, 1]),
        ([9, 5], []),
        ([30, 0, 12], [0, 2]),
    ],
)
def test_withheld_groups_have_enough_samples_together(counts: list[int], sent: list[int]) -> None:
    codes = np.repeat(np.arange(len(counts)), counts)[:, None]
    names = tuple(f"g{code}" for code in range(len(counts)))
    cells = sent_cells(Groups(("s",), (names,), codes), 10)
    assert [cell.group for cell in cells] == [names[code] for code in sent]


def test_rows_without_a_value_are_a_group_of_their_own() -> None:
    groups = Groups(("s",), (("a",),), np.repeat([0, -1], [30, 12])[:, None])
    assert [cell.group for cell in sent_cells(groups, 10)] == ["missing", "a"]


def test_a_site_may_withhold_more(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_GROUP_MINIMUM", "1000")
    run = finished(tmp_path / "run", folder)
    assert run.group_counts() == {} and read_result(run).models["global"].groups is None


def test_sites_on_their_own_machines_send_the_same(tmp_path: Path, folder: Path) -> None:
    config = experiment(folder, data={"apart": True})
    together = eq.run(eq.Experiment(**config), tmp_path / "together")
    network = Network(tmp_path / "sites", folder, ending=".csv")
    apart = run_apart(config, tmp_path / "apart", network.transport())
    expected = together.group_counts()
    received = apart.group_counts()
    assert received.keys() == expected.keys() and received
    for key, table in received.items():
        assert (table == expected[key]).all()


def test_a_site_counts_by_agreed_columns_only(tmp_path: Path, folder: Path) -> None:
    schema = tmp_path / "schema.yaml"
    schema.write_text(yaml.safe_dump(SCHEMA))
    config = experiment(folder, data={"apart": True, "groups": ["sex"]})
    agreed = {site: {"schema": schema, "groups": ("sex",)} for site in ("east", "north", "west")}
    network = Network(tmp_path / "sites", folder, ending=".csv", changes=agreed)
    run_apart(config, tmp_path / "agreed", network.transport())
    agreed["west"] = {"schema": schema, "groups": ("age",)}
    with pytest.raises(Exception, match="schema"):
        run_apart(config, tmp_path / "refused", network.transport())


def test_workers_send_the_same(tmp_path: Path, folder: Path, run: Run) -> None:
    other = finished(tmp_path / "run", folder, workers=2)
    assert {key: table.tolist() for key, table in other.group_counts().items()} == {
        key: table.tolist() for key, table in run.group_counts().items()
    }


def test_a_shared_test_set_has_groups_too(tmp_path: Path, folder: Path) -> None:
    run = finished(tmp_path / "run", folder, data={"test": "global"})
    report = report_of(run)
    assert {key.site for key in report.cells} == {ALL} and report.worst is not None


def table_of(labels: list[int], scores: list[float]) -> Any:
    return counted([[1 - score, score] for score in scores], labels)


@pytest.mark.parametrize(
    ("cells", "shape", "message"),
    [
        ([["race", "x"]], None, "groups of the columns"),
        ([["sex", "x" * 101]], None, "groups of the columns"),
        ([["sex", "f"], ["sex", "f"]], None, "each once"),
        ([["sex", "f"]], (2, 2, 4, 5), "one histogram for each"),
        ([["sex", "f"]], (1, 2, 4, 5), "expected counts of shape"),
    ],
)
def test_a_server_refuses_other_counts_of_groups(cells: Any, shape: Any, message: str) -> None:
    table = table_of([0, 1] * 6, [0.3, 0.8] * 6)
    tensor = torch.from_numpy(np.stack([table] * len(cells)))
    if shape is not None:
        tensor = torch.zeros(shape, dtype=torch.int32)
    wrong = fault(
        GroupCounts(cells, {"m": tensor}), {"sex": ()}, Task("classification", (1,), 2), 10
    )
    assert wrong is not None and message in wrong


def test_a_server_refuses_groups_of_too_few_samples() -> None:
    table = torch.from_numpy(table_of([0, 1] * 4, [0.3, 0.8] * 4)[None])
    task = Task("classification", (1,), 2)
    assert fault(GroupCounts([["sex", "f"]], {"m": table}), {"sex": ()}, task, 8) is None
    wrong = fault(GroupCounts([["sex", "f"]], {"m": table}), {"sex": ()}, task, 9)
    assert wrong is not None and "9 samples or more" in wrong


def test_a_group_at_one_site_and_one_of_one_class_are_named() -> None:
    both = table_of([0, 1] * 10, [0.3, 0.8] * 10)
    healthy = table_of([0] * 12, [0.3] * 12)
    tables = {
        CellKey("a", "sex", "f"): both,
        CellKey("a", "sex", "m"): healthy,
        CellKey("b", "sex", "f"): both,
    }
    report = group_report(tables, ["a", "b", "c"], 50, 10)
    assert report is not None
    notes = "; ".join(report.notes)
    assert "only one site shows sex m at a" in notes
    assert "all test samples of sex m at a have one class" in notes
    assert "c sent no groups" in notes and "not shown: sex m at b" in notes
    cell = report.cells[CellKey("a", "sex", "m")]
    assert np.isnan(cell.values["sensitivity"].value) and np.isnan(cell.values["auroc"].value)
    assert np.isnan(report.gaps["a", "sex"].values["opportunity_gap"].value)


def test_the_sentence_names_a_clear_gap_and_says_when_there_is_none() -> None:
    def group(found: int) -> Any:
        return table_of([1] * 40 + [0] * 40, [0.9] * found + [0.1] * (80 - found))

    far = group_report(
        {CellKey("a", "sex", "f"): group(38), CellKey("a", "sex", "m"): group(5)}, ["a"], 50, 10
    )
    near = group_report(
        {CellKey("a", "sex", "f"): group(38), CellKey("a", "sex", "m"): group(36)}, ["a"], 50, 10
    )
    assert far is not None and near is not None
    assert "sex m at a" in sentence(far, "sick") and "excludes no gap" in sentence(far, "sick")
    assert "cannot tell it from none" in sentence(near, "sick")


def test_the_largest_gap_is_named_also_if_a_smaller_one_is_clear() -> None:
    def group(found: int, ill: int) -> Any:
        return table_of([1] * ill + [0] * 20, [0.9] * found + [0.1] * (ill - found + 20))

    report = group_report(
        {
            CellKey("north", "sex", "f"): group(180, 200),
            CellKey("north", "sex", "m"): group(140, 200),
            CellKey("south", "sex", "f"): group(5, 5),
            CellKey("south", "sex", "m"): group(1, 5),
        },
        ["north", "south"],
        50,
        10,
    )
    assert report is not None
    text = sentence(report, "sick")
    assert (
        "The largest gap in the share of sick that is recognised is that by sex at south: 80 %"
        in text
    )
    assert "the largest whose interval excludes no gap is that by sex over all sites" in text


def test_rows_without_a_group_are_no_worst_group() -> None:
    report = group_report(
        {
            CellKey("a", "sex", "f"): table_of([0, 1] * 10, [0.3, 0.8] * 10),
            CellKey("a", "sex", MISSING): table_of([0, 1] * 10, [0.8, 0.3] * 10),
        },
        ["a"],
        50,
        10,
    )
    assert report is not None and report.worst == CellKey("a", "sex", "f")
    only = {CellKey("a", "sex", MISSING): table_of([0, 1] * 10, [0.8, 0.3] * 10)}
    nobody = group_report(only, ["a"], 50, 10)
    assert nobody is not None and nobody.worst is None and sentence(nobody, "sick") == ""


def test_of_three_classes_accuracy_is_reported() -> None:
    table = counted(np.eye(3)[[0, 1, 2] * 5] * 0.7 + 0.1, [0, 1, 1] * 5)
    report = group_report({CellKey("a", "sex", "f"): table}, ["a"], 50, 10)
    assert report is not None
    cell = report.cells[CellKey("a", "sex", "f")]
    assert cell.values["accuracy"].value == pytest.approx(2 / 3)
    assert set(cell.values) == {"accuracy", "auroc"} and np.isnan(cell.prevalence)
    assert "accuracy" in sentence(report, "2")


def test_show_table_and_report_have_the_groups(run: Run, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["show", str(run.folder)]).output
    assert "by site and group" in shown and "lowest accuracy of a group" in shown.replace("\n", " ")
    summary = json.loads(CliRunner().invoke(app, ["show", str(run.folder), "--json"]).output)
    assert summary["groups"]["threshold"] == 50 and summary["groups"]["worst_group"] <= 1
    printed = CliRunner().invoke(app, ["table", str(run.folder), "--groups"]).output
    rows = list(csv.DictReader(io.StringIO(printed)))
    chosen = [row for row in rows if row["site"] == "east" and row["measure"] == "odds_gap"]
    assert {row["column"] for row in chosen} == {"sex", "age"}
    page = tmp_path / "page.html"
    done = CliRunner().invoke(
        app, ["report", str(run.folder), "--out", str(page), "--png", "--figure", "groups"]
    )
    assert done.exit_code == 0 and (tmp_path / "page-groups.png").stat().st_size > 1000
    assert "Accuracy by site and group" in page.read_text() and "equalised odds" in page.read_text()


def test_table_of_a_run_without_groups_says_what_to_do(tmp_path: Path, folder: Path) -> None:
    run = finished(tmp_path / "run", folder, data={"groups": []})
    done = CliRunner().invoke(app, ["table", str(run.folder), "--groups"])
    assert done.exit_code != 0


def test_compare_has_columns_by_group(tmp_path: Path, folder: Path) -> None:
    config = experiment(folder)
    del config["method"]
    comparison = eq.compare(config, methods=["fedavg", "fedprox"], out=tmp_path / "out")
    assert {"worst_group", "parity_gap", "opportunity_gap", "odds_gap"} <= set(comparison.columns)
    row = comparison.row(comparison.partitions[0], "fedavg", "odds_gap")
    assert row is not None and 0 <= row["value"] <= 1
    text = (tmp_path / "out" / "table.md").read_text()
    assert "worst group" in text and "odds gap" in text


def test_compare_refuses_columns_by_group_without_groups(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"need data\.groups"):
        eq.compare(
            {"data": {"name": "digits"}}, methods=["fedavg"], measures=["odds_gap"], out=tmp_path
        )


def test_the_threshold_of_the_experiment_decides(tmp_path: Path, folder: Path) -> None:
    low = report_of(finished(tmp_path / "low", folder, evaluation={"threshold": 20}))
    high = report_of(finished(tmp_path / "high", folder, evaluation={"threshold": 80}))
    for key, cell in low.cells.items():
        assert cell.values["sensitivity"].value >= high.cells[key].values["sensitivity"].value


def test_training_does_not_depend_on_groups(tmp_path: Path, folder: Path, run: Run) -> None:
    other = finished(tmp_path / "run", folder, data={"groups": []})
    for name, tensor in run.model("global").state_dict().items():
        assert torch.equal(tensor, other.model("global").state_dict()[name])

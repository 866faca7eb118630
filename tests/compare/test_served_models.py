"""Comparisons with a row for each served model."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.client import Client
from equipoise.comparison import formats
from equipoise.comparison.plan import from_file, plan_comparison
from equipoise.comparison.table import Comparison, opened
from equipoise.methods.fedavg import FedAvg
from equipoise.report.page import page_of
from equipoise.runs import Run
from equipoise.validation.imports import FromFile
from tests.helpers.stores import change

BASE = {
    "data": {"name": "digits", "clients": 3, "samples": 300},
    "model": {"name": "mlp", "hidden": [8]},
    "participation": {"number": 2},
    "rounds": 2,
    "training": {"steps": 4},
}
KDIA = {"name": "kdia", "preset": "quick"}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    methods = ["fedavg", {**KDIA, "select": "validation"}]
    folder = tmp_path_factory.mktemp("served")
    return eq.compare(BASE, methods, models="all", out=folder, jobs=1)


def test_each_served_model_is_a_row(result: Comparison) -> None:
    assert result.methods == [
        "standalone",
        "fedavg",
        "kdia · global",
        "kdia · teacher",
        "kdia · selected",
    ]
    run = Run(result.entries[2].run.folder)
    for entry in result.entries[2:4]:
        assert entry.run.main.values == run.final(model=entry.label.partition(" · ")[2])
    assert result.entries[2].run.main.values != result.entries[3].run.main.values


def test_each_row_has_gains_and_a_curve_of_its_own(result: Comparison) -> None:
    teacher = result.entries[3]
    alone = result.entries[0].run.main.values
    gains = {client: value - alone[client] for client, value in teacher.run.main.values.items()}
    assert teacher.gains() == pytest.approx(gains)
    losses = [entry.with_metric("loss").run.main.curve.means for entry in result.entries[2:4]]
    assert losses[0] != losses[1]


def test_the_selected_model_is_the_best_on_validation_data(result: Comparison) -> None:
    selected = result.entries[4]
    run = Run(selected.run.folder)
    means = {
        model: np.mean(list(run.final(model=model, split="validation").values()))
        for model in ("global", "teacher")
    }
    assert means[selected.run.main_model] == max(means.values())
    assert any(
        "kdia · selected" in line and "validation data" in line
        for line in formats.explanation(result)
    )


@pytest.fixture
def folder(result: Comparison, tmp_path: Path) -> Path:
    """Return a folder with the runs of the comparison, for another one."""
    shutil.copytree(result.folder / "runs", tmp_path / "runs")
    return tmp_path


def test_the_selected_model_is_a_row_beside_the_main_one(folder: Path) -> None:
    method = {**KDIA, "select": "validation"}
    added = eq.compare(BASE, [method], out=folder, jobs=1)
    assert added.methods == ["standalone", "kdia", "kdia · selected"]


def test_models_are_compared_over_the_clients_that_all_of_them_have(
    result: Comparison, folder: Path
) -> None:
    run = folder / "runs" / result.entries[2].run.folder.name
    which = "where split = 'validation' and metric = 'accuracy' and model"
    change(
        run,
        f"update measurements set value = 0.5 {which} = 'global'",
        f"update measurements set value = 0.1 {which} = 'global' and client = '0'",
        f"update measurements set value = 0.4 {which} = 'teacher'",
        # Otherwise the teacher would be better by leaving out the hardest client.
        f"delete from measurements {which} = 'teacher' and client = '0'",
    )
    methods = ["fedavg", {**KDIA, "select": "validation"}]
    again = eq.compare(BASE, methods, models="all", out=folder, jobs=1)
    assert again.entries[4].label == "kdia · selected"
    assert again.entries[4].run.main_model == "global"


def test_a_method_may_be_listed_once_for_each_served_model(folder: Path) -> None:
    served = (["global"], ["global", "teacher"], ["teacher"])
    methods = [{**KDIA, "serves": names} for names in served]
    apart = eq.compare(BASE, methods, baseline="kdia", out=folder, jobs=1)
    assert apart.methods == ["standalone", "kdia · global", "kdia · teacher"]


def test_the_main_model_comes_before_others_and_is_the_baseline(folder: Path) -> None:
    settings = {"models": ["teacher", "global"], "baseline": "kdia", "target": "kdia.best"}
    tested = eq.compare(BASE, ["fedavg", KDIA], **settings, out=folder, jobs=1)
    assert tested.baseline == "kdia · global"
    curve = tested.entries[2].run.main.curve
    rounds = tested.row(tested.partitions[0], "kdia · global", "rounds_to_target")["value"]
    assert rounds == 1 + curve.means.index(max(curve.means))


@pytest.mark.parametrize("target", ["kdia · teachr.best", "kdia · selected.best"])
def test_a_target_that_is_no_row_is_refused_before_any_run(tmp_path: Path, target: str) -> None:
    with pytest.raises(ValueError, match="unknown row of the target.*kdia · teacher"):
        eq.compare(BASE, [KDIA], models="all", target=target, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_a_saved_comparison_has_the_same_rows_in_tables_and_reports(result: Comparison) -> None:
    again = opened([result.folder], details=True)
    assert formats.markdown(again) == formats.markdown(result)
    assert "kdia · teacher" in page_of(again)


def test_only_the_models_that_are_named_are_rows(result: Comparison) -> None:
    named = eq.compare(BASE, ["fedavg", KDIA], models=["teacher"], out=result.folder, jobs=1)
    assert named.methods == ["standalone", "fedavg", "kdia · teacher"]
    main = eq.compare(BASE, [KDIA], baseline="kdia", out=result.folder, jobs=1)
    assert main.methods == ["standalone", "kdia"]


def test_others_are_tested_against_the_main_model_of_the_baseline(result: Comparison) -> None:
    tested = eq.compare(
        BASE, ["fedavg", KDIA], models="all", baseline="kdia", out=result.folder, jobs=1
    )
    assert tested.baseline == "kdia · global"


@pytest.mark.parametrize(
    "setting",
    [
        {"methods": [KDIA], "models": ["teachr"]},
        {"methods": [{**KDIA, "serves": ["teachr"]}]},
        {"methods": [{"name": "fedavg", "companion": KDIA}], "models": ["teachr"]},
    ],
)
def test_a_model_that_no_method_serves_is_refused_before_any_run(tmp_path: Path, setting) -> None:
    with pytest.raises(ValueError, match=r"teachr.*teacher"):
        eq.compare(BASE, **setting, out=tmp_path / "comparison", jobs=1)
    assert not (tmp_path / "comparison").exists()


@dataclass(frozen=True)
class Undeclared(FedAvg):
    """FedAvg that serves a model which its class does not declare."""

    def serves(self, client: Client, down: eq.Down) -> dict[str, Any]:
        return {**super().serves(client, down), "copy": client.load(down.model)}


def test_models_that_a_method_does_not_declare_are_checked_after_its_runs(tmp_path: Path) -> None:
    settings = {"methods": [Undeclared()], "baselines": "none", "out": tmp_path, "jobs": 1}
    named = eq.compare(BASE, **settings, models=["copy"])
    assert named.methods == ["undeclared · copy"]
    with pytest.raises(ValueError, match=r"cppy.*copy"):
        eq.compare(BASE, **settings, models=["cppy"])


def test_choosing_without_validation_data_is_refused_with_a_remedy() -> None:
    base = {**BASE, "data": {"name": "digits", "clients": 3, "split": [0.8, 0.0, 0.2]}}
    planned = plan_comparison(base, ["fedavg", {**KDIA, "select": "validation"}])
    assert [refusal.method for refusal in planned.refusals] == ["kdia"]
    assert "data.split" in planned.refusals[0].reason


def test_models_in_a_file_are_networks_or_served_models() -> None:
    networks = FromFile({"models": {"private": "mlp"}, "methods": ["fedekd"]})
    config, settings = from_file(networks, methods=[], models=[])
    assert config["models"] == {"private": "mlp"} and settings["models"] == []
    config, settings = from_file(FromFile({"models": "all"}), methods=[], models=[])
    assert "models" not in config and settings["models"] == "all"


def test_the_command_takes_names_of_models(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from equipoise.cli import app

    words = ["compare", "--data", "digits", "--clients", "3", "--methods", "fedavg,kdia"]
    outcome = CliRunner().invoke(app, [*words, "--models", "global,teacher", "--dry-run"])
    assert outcome.exit_code == 0, outcome.output

"""Sweeps over a setting, runs of equal training time, and comparisons without training alone."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

import equipoise as eq
from equipoise.comparison import formats
from equipoise.comparison.plan import folder_name, plan_comparison
from equipoise.comparison.table import Comparison, opened
from equipoise.experiment import ConfigurationError
from equipoise.report import report
from equipoise.runs import Run
from tests.helpers.stores import change

BASE = {
    "data": {"name": "digits", "clients": 3, "samples": 300, "partition": "iid"},
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 3,
    "training": {"steps": 2},
    "workers": 0,
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return eq.compare(
        {**BASE, "rounds": 1},
        ["fedavg"],
        sweep={"data.clients": [2, 4]},
        out=tmp_path_factory.mktemp("sweep"),
        jobs=1,
    )


def test_a_sweep_has_a_group_of_rows_for_each_value(swept: Comparison) -> None:
    assert swept.partitions == ["iid, clients=2", "iid, clients=4"]
    sizes = {}
    for entry in swept.entries:
        sizes[entry.label, entry.run.condition[0]] = len(entry.run.main.values)
        if entry.run.baseline is not None:
            assert len(entry.run.baseline.clients) == len(entry.run.clients)
    assert sizes["fedavg", "iid, clients=2"] == 2
    assert sizes["fedavg", "iid, clients=4"] == 4
    assert "### iid, clients=4" in formats.markdown(swept)


@pytest.mark.parametrize("partition", ["iid", "iid, clients=2"])
def test_a_target_by_partition_may_name_the_value_of_a_sweep(
    swept: Comparison, partition: str, tmp_path: Path
) -> None:
    shutil.copytree(swept.folder / "runs", tmp_path / "runs")
    result = eq.compare(
        {**BASE, "rounds": 1},
        ["fedavg"],
        sweep={"data.clients": [2, 4]},
        target={partition: 0.0},
        out=tmp_path,
        jobs=1,
    )
    rounds = {}
    for name in result.partitions:
        rounds[name] = result.row(name, "fedavg", "rounds_to_target")["value"]
    assert rounds["iid, clients=2"] == 1
    assert (rounds["iid, clients=4"] == 1) == (partition == "iid")


def test_a_target_for_an_unknown_partition_is_refused_before_anything_runs(tmp_path: Path) -> None:
    settings = {"sweep": {"data.clients": [2, 4]}, "out": tmp_path / "out"}
    for partition in ("idd", "iid, clients=3"):
        with pytest.raises(ValueError, match="unknown partition of the target.*iid, clients=2"):
            eq.compare(BASE, ["fedavg"], target={partition: 0.5}, **settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_a_saved_sweep_is_read_with_its_groups_and_drawn(swept: Comparison, tmp_path: Path) -> None:
    assert formats.markdown(opened([swept.folder])) == formats.markdown(swept)
    files = report([swept.folder], tmp_path / "page.html", kinds=["png"], names=["sweep"])
    assert [file.name for file in files] == ["page.html", "page-sweep.png"]
    assert "By data.clients" in files[0].read_text()


def test_a_sweep_over_a_parameter_repeats_methods_that_lack_it() -> None:
    planned = plan_comparison(BASE, ["fedavg", "fedprox"], sweep={"method.mu": [0.1, 1.0]})
    runs = {(cell.label, cell.partition): cell.name for cell in planned.cells}
    assert runs["fedavg", "iid, mu=0.1"] == runs["fedavg", "iid, mu=1.0"]
    assert runs["fedprox", "iid, mu=0.1"] != runs["fedprox", "iid, mu=1.0"]


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        ({"data.clients": [2], "rounds": [1]}, "expected one setting"),
        ({"data.clients": 3}, "expected a list of values for data.clients"),
        ({"seed": [1, 2]}, "seed cannot be varied"),
        ({"method.nu": [1, 2]}, "unknown sweep key 'method.nu'"),
    ],
)
def test_a_wrong_sweep_is_refused_with_a_sentence(sweep: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        plan_comparison(BASE, ["fedprox"], sweep=sweep)


def test_without_baselines_training_alone_is_not_run(tmp_path: Path) -> None:
    result = eq.compare(BASE, ["fedavg"], baselines="none", out=tmp_path, jobs=1)
    assert result.methods == ["fedavg"]
    row = result.row("iid", "fedavg", "change")
    assert row is not None and math.isnan(row["value"])
    assert len(list((tmp_path / "runs").iterdir())) == 1
    with pytest.raises(ConfigurationError, match="baselines: expected standalone or none"):
        plan_comparison(BASE, ["fedavg"], baselines="some")


def test_a_run_ends_with_the_round_that_spends_its_budget(tmp_path: Path) -> None:
    run = eq.run({**BASE, "budget": {"seconds": 1e-6}}, tmp_path / "run", quiet=True)
    assert (run.last_round, run.status) == (1, "finished")
    assert run.final()
    full = eq.run({**BASE, "budget": {"seconds": 3600}}, tmp_path / "full", quiet=True)
    assert full.last_round == 3


def test_a_resumed_run_counts_the_time_of_earlier_rounds(tmp_path: Path) -> None:
    run = eq.run({**BASE, "budget": {"seconds": 3600}}, tmp_path / "run", quiet=True)
    run.store.close()
    tables = ("rounds", "measurements", "curves", "weights", "seconds", "files")
    change(
        tmp_path / "run",
        *(f"delete from {table} where round = 3" for table in tables),
        "update meta set value = '\"running\"' where key = 'status'",
        "update seconds set seconds = 3600 where phase = 'clients'",
    )
    resumed = eq.resume(tmp_path / "run")
    assert (resumed.last_round, resumed.status) == (2, "finished")


def test_a_replay_ends_in_the_same_round(tmp_path: Path) -> None:
    run = eq.run({**BASE, "budget": {"seconds": 1e-6}}, tmp_path / "run", quiet=True)
    config = run.replay()
    assert config["budget"] == {"seconds": 1e-6, "rounds": 1}
    slower = {**config, "budget": {"seconds": 3600, "rounds": 1}}
    again = eq.run(slower, tmp_path / "again", quiet=True)
    assert again.last_round == 1
    assert again.final() == run.final()


def test_runs_without_a_budget_keep_their_names() -> None:
    experiment = eq.Experiment(**BASE)
    assert folder_name(experiment) == "fedavg-s0-" + folder_name(experiment).rpartition("-")[2]
    limited = eq.Experiment(**BASE, budget={"seconds": 5})
    assert folder_name(limited) != folder_name(experiment)
    with pytest.raises(ConfigurationError, match="expected seconds"):
        eq.Experiment(**BASE, budget={})


def test_a_run_without_a_budget_opens_as_before(tmp_path: Path) -> None:
    eq.run({**BASE, "rounds": 1}, tmp_path / "run", quiet=True).store.close()
    assert Run(tmp_path / "run").replay().get("budget") is None

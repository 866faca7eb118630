"""Optional columns of comparisons, on small runs."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from equipoise.comparison import formats
from equipoise.comparison.table import Comparison, opened
from equipoise.comparison.targets import with_targets
from equipoise.metrics import collaborative_fairness
from equipoise.runs import Run, read_result
from tests.helpers.stores import change

BASE = {
    "data": {"name": "digits", "clients": 3, "samples": 300, "partition": "iid"},
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 4,
    "training": {"steps": 3, "lr": 0.1},
}
SLOW = {"name": "fedavg", "training": {"lr": 0.01}}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return eq.compare(
        BASE,
        ["fedavg", "cgsv", SLOW],
        measures=["best_average", "rounds_to_target", "speed_up", "d_cos", "embedding_angle"],
        target="fedavg.best",
        out=tmp_path_factory.mktemp("columns"),
        jobs=1,
    )


def value(comparison: Comparison, method: str, measure: str) -> float:
    row = comparison.row("iid", method, measure)
    assert row is not None
    return row["value"]


def test_the_best_average_is_marked_as_chosen_by_test_data(result: Comparison) -> None:
    means = result.entries[1].run.main.curve.means
    assert value(result, "fedavg", "best_average") == max(means)
    assert "best average (chosen by test data)" in formats.markdown(result)


def test_the_target_may_be_the_best_mean_of_a_method(result: Comparison) -> None:
    best_round = value(result, "fedavg", "best_round")
    assert value(result, "fedavg", "rounds_to_target") == best_round
    assert value(result, "fedavg", "speed_up") == 1.0
    assert formats.csv_text(opened([result.folder])) == formats.csv_text(result)


def test_a_target_may_differ_by_partition(result: Comparison) -> None:
    first = result.entries[1].run.main.curve.means[0]
    entries = with_targets(result.entries, {"iid": first}, "fedavg")
    easy = replace(result, entries=entries)
    assert value(easy, "fedavg", "rounds_to_target") == 1.0
    with pytest.raises(ValueError, match="unknown partition of the target 'idd'"):
        eq.compare(BASE, ["fedavg"], target={"idd": 0.5})
    with pytest.raises(ValueError, match=r"target: expected a number.*got 'high'"):
        eq.compare(BASE, ["fedavg"], target="high")


def test_ranking_by_a_change_needs_training_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="change compares with training alone"):
        eq.compare(BASE, ["fedavg"], baselines="none", measure="change", out=tmp_path / "out")


def test_a_target_with_an_unknown_method_is_refused_before_anything_runs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="unknown method of the target 'fedavgg'.*'fedavg'"):
        eq.compare(BASE, ["fedavg"], target="fedavgg.best", out=out)
    assert not out.exists()


def test_speed_up_counts_the_rounds_of_the_baseline(result: Comparison) -> None:
    slow = result.methods[3]
    start = result.entries[3].run.main.curve.means[0]
    entries = with_targets(result.entries, start, slow)
    against_slow = replace(result, entries=entries)
    fast_rounds = value(against_slow, "fedavg", "rounds_to_target")
    slow_rounds = value(against_slow, slow, "rounds_to_target")
    assert value(against_slow, "fedavg", "speed_up") == slow_rounds / fast_rounds


def test_distances_are_those_of_parameters_and_features_apart(result: Comparison) -> None:
    run = Run(result.entries[1].run.folder)
    for measure, split in (("d_cos", "parameters"), ("embedding_angle", "embedding")):
        rows = run.table(round=4, split=split, metric="angle")
        mean = np.mean([row["value"] for row in rows])
        assert value(result, "fedavg", measure) == pytest.approx(mean)
    assert any("cgsv: no distances" in line for line in formats.explanation(result))


def test_the_distance_of_a_model_that_diverged_is_not_left_out(
    result: Comparison, tmp_path: Path
) -> None:
    folder = shutil.copytree(result.entries[1].run.folder, tmp_path / "run")
    change(
        folder,
        "update measurements set value = null where phase = 'after_local' and client = '1' "
        "and split = 'parameters' and round = 4",
    )
    cost = read_result(Run(folder)).cost
    assert math.isnan(cost["d_cos"])
    assert math.isfinite(cost["embedding_angle"])


def test_seconds_of_every_client_are_recorded(result: Comparison) -> None:
    run = Run(result.entries[1].run.folder)
    rows = run.client_seconds()
    assert [row["client"] for row in rows if row["round"] == 4] == ["0", "1", "2"]
    assert {row["round"] for row in rows} == {1, 2, 3, 4}
    values = [row["seconds"] for row in rows]
    assert value(result, "fedavg", "seconds_per_client") == pytest.approx(np.mean(values))
    assert value(result, "fedavg", "seconds_per_client_std") == pytest.approx(np.std(values))


def test_a_run_without_seconds_of_clients_still_opens(tmp_path: Path) -> None:
    eq.run({**BASE, "rounds": 1, "workers": 0}, tmp_path / "run", quiet=True).store.close()
    change(tmp_path / "run", "delete from seconds where phase like 'client@%'")
    cost = read_result(Run(tmp_path / "run")).cost
    assert np.isnan(cost["seconds_per_client"])
    assert cost["seconds"] > 0


def test_fairness_with_one_model_and_one_test_set_is_that_after_local_training(
    tmp_path: Path,
) -> None:
    base = {
        **BASE,
        "data": {**BASE["data"], "partition": "dirichlet:0.3", "test": "global"},
        "rounds": 2,
        "evaluation": {"after_local": True},
    }
    result = eq.compare(base, ["fedavg"], out=tmp_path, jobs=1)
    alone, fedavg = result.entries
    rows = Run(fedavg.run.folder).table(
        round=2, phase="after_local", split="shared", metric="accuracy"
    )
    after = {row["client"]: row["value"] for row in rows}
    clients = list(alone.run.main.values)
    expected = collaborative_fairness(
        [alone.run.main.values[client] for client in clients],
        [after[client] for client in clients],
    )
    assert fedavg.aggregates["cf"] == pytest.approx(expected)
    assert any("CF of fedavg" in line for line in formats.explanation(result))

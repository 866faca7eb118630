"""Contributions of hospitals: values of coalitions against runs of these alone, estimates, and
stopping and continuing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.comparison.contribution import VALUES, contribution
from equipoise.data import federate
from equipoise.metrics.shapley import shapley_values
from equipoise.runs import read_result
from equipoise.storage.store import RunError
from tests.helpers.group_sites import SIZES, columns, experiment, write_sites


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sites = {site: columns(site, rows) for site, rows in SIZES.items()}
    rng = np.random.default_rng(0)
    rng.shuffle(sites["west"]["disease"])  # nothing can be learnt there
    return write_sites(tmp_path_factory.mktemp("data") / "hospitals", sites)


def config(folder: Path, **more: Any) -> dict[str, Any]:
    training = {"lr": 0.3, "batch": 32, "epochs": 3}
    data = {"apart": True, "groups": []}
    return experiment(folder, **{"data": data, "rounds": 3, "training": training, **more})


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Path:
    out = tmp_path_factory.mktemp("out") / "contribution"
    contribution(config(folder), out, methods=["cgsv", "cffl"])
    return out


def saved(out: Path) -> dict[frozenset[str], float]:
    lines = (out / VALUES).read_text().splitlines()[1:]
    return {frozenset(row["clients"]): row["value"] for row in map(json.loads, lines)}


def test_the_value_of_a_coalition_is_that_of_a_run_of_it_alone(
    out: Path, folder: Path, tmp_path: Path
) -> None:
    values = saved(out)
    whole = federate(eq.DataConfig(**config(folder)["data"]), 0)
    rows = np.sort(whole.test.index)
    for number, members in enumerate([{"east"}, {"east", "west"}, {"east", "north", "west"}]):
        without = sorted(set(SIZES) - members)
        settings = config(folder, data={"apart": True, "groups": [], "without": without})
        alone = eq.run(eq.Experiment(**settings), tmp_path / str(number))
        with torch.no_grad():
            predicted = alone.model("global")(whole.x[rows]).argmax(1)
        expected = float((predicted == whole.y[rows]).double().mean())
        assert values[frozenset(members)] == pytest.approx(expected)


def test_shapley_values_follow_from_all_coalitions(out: Path) -> None:
    values = saved(out)
    result = json.loads((out / "contribution.json").read_text())
    assert len(values) == 8
    assert result["values"]["shapley"] == pytest.approx(shapley_values(values, list(SIZES)))
    total = sum(result["values"]["shapley"].values())
    assert total == pytest.approx(result["everyone"] - result["nobody"])
    assert min(result["values"]["shapley"], key=result["values"]["shapley"].get) == "west"


def test_estimates_and_recorded_contributions_are_compared(out: Path) -> None:
    result = json.loads((out / "contribution.json").read_text())
    assert {"leave_one_out", "gtg_shapley", "cosine"} <= set(result["values"])
    recorded = read_result(eq.Run(out / "run-cgsv")).contributions["reputation"]
    assert result["values"]["cgsv (reputation)"] == pytest.approx(dict(recorded))
    assert set(result["correlations"]) == set(result["values"]) - {"shapley"}
    assert all(value is None or -1 <= value <= 1 for value in result["correlations"].values())


def test_in_one_round_of_two_clients_gtg_is_exact(tmp_path: Path, folder: Path) -> None:
    settings = config(folder, data={"apart": True, "groups": [], "without": ["west"]}, rounds=1)
    found = contribution(settings, tmp_path / "out", methods=())
    assert abs(found.everyone - found.nobody) > 0.01, "the round must count"
    assert found.values["gtg_shapley"] == pytest.approx(found.values["shapley"])


def test_it_stops_and_continues_without_training_again(tmp_path: Path, folder: Path) -> None:
    def stop(known: int, total: int) -> None:
        if known == 3:
            raise KeyboardInterrupt

    settings = config(folder, rounds=1)
    with pytest.raises(KeyboardInterrupt):
        contribution(settings, tmp_path / "out", methods=(), progress=stop)
    before = (tmp_path / "out" / VALUES).read_text()
    assert len(before.splitlines()) == 4
    with (tmp_path / "out" / VALUES).open("a") as file:
        file.write('{"clients": ["ea')  # a kill cut the line off
    contribution(settings, tmp_path / "out", methods=())
    assert (tmp_path / "out" / VALUES).read_text().startswith(before)
    assert len(saved_lines(tmp_path / "out")) == 8


def saved_lines(out: Path) -> list[dict[str, Any]]:
    lines = (out / VALUES).read_text().splitlines()[1:]
    return [json.loads(line) for line in lines if line.endswith("}")]


def test_coalitions_of_another_experiment_are_refused(out: Path, folder: Path) -> None:
    with pytest.raises(RunError, match="another experiment"):
        contribution(config(folder, seed=3), out, methods=())


def test_many_clients_need_force_and_a_shared_model(tmp_path: Path) -> None:
    many = {"data": {"name": "digits", "clients": 9}, "method": "fedavg", "rounds": 1}
    with pytest.raises(ValueError, match=r"at most 8 clients.*got 9, which need 511.*--force"):
        contribution(many, tmp_path / "a")
    alone = {"data": {"name": "digits", "clients": 2}, "method": "standalone", "rounds": 1}
    with pytest.raises(ValueError, match="train a model together"):
        contribution(alone, tmp_path / "b")


def test_the_command_prints_all_rules(out: Path, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(json.dumps(config(folder)))
    arguments = ["contribution", str(file), "--out", str(out), "--recorded", "none", "--quiet"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "shapley" in done.output and "rank" in done.output and "west" in done.output

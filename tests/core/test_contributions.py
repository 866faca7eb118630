"""Contributions that methods log: rows of a run by round and client."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import equipoise as eq
from equipoise.methods.fedavg import FedAvg
from tests.helpers.runs import QUICK

EXPERIMENT = {
    "data": {"name": "digits", "clients": 3, "samples": 240, "partition": "dirichlet:1"},
    "model": {"name": "mlp", "hidden": [6]},
    "training": {"lr": 0.05, "batch": 16},
    "rounds": 2,
    "workers": 0,
}
METHODS = {
    "cffl": "reputation",
    "cgsv": "reputation",
    "fedave": "reputation",
    "fedsac": "reputation",
    "kdia": "teacher_weight",
}


@pytest.mark.parametrize("method", METHODS)
def test_each_round_has_a_value_of_every_client_that_counted(tmp_path, method):
    chosen = {"name": method, **QUICK.get(method, {})}
    run = eq.run({**EXPERIMENT, "method": chosen}, out=tmp_path / "run")
    rows = run.table(phase="contribution")
    assert {row["metric"] for row in rows} == {METHODS[method]}
    for record in run.rounds():
        values = {r["client"]: r["value"] for r in rows if r["round"] == record["round"]}
        assert set(record["joined"]) <= set(values)
        assert all(value >= 0 for value in values.values())


def test_teacher_weights_sum_to_one(tmp_path):
    run = eq.run({**EXPERIMENT, "method": {"name": "kdia", **QUICK["kdia"]}}, out=tmp_path / "run")
    last = [r["value"] for r in run.table(phase="contribution", round=2)]
    assert sum(last) == pytest.approx(1)


def test_a_method_that_logs_nothing_has_no_rows(tmp_path):
    run = eq.run({**EXPERIMENT, "method": "fedavg"}, out=tmp_path / "run")
    assert run.table(phase="contribution") == []


@dataclass(frozen=True)
class EarlyLogger(FedAvg):
    """FedAvg that logs a contribution of each chosen client before any of them replies."""

    def round(self, server, state, cohort):
        server.log_contributions("chosen", dict.fromkeys(cohort.ids, 1.0))
        return super().round(server, state, cohort)


def test_an_attempt_that_was_aborted_leaves_no_contributions(tmp_path):
    experiment = {
        **EXPERIMENT,
        "data": {**EXPERIMENT["data"], "clients": 6},
        "method": EarlyLogger(),
        "participation": {"number": 2, "floor": 2, "tries": 50},
        "faults": {"dropout": 0.5},
        "rounds": 4,
    }
    run = eq.run(experiment, out=tmp_path / "run")
    assert any(record["attempt"] > 0 for record in run.rounds())
    for record in run.rounds():
        rows = run.table(phase="contribution", round=record["round"])
        assert {row["client"] for row in rows} == set(record["cohort"])

"""Results that are committed belong to runs of their studies, so nobody runs them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.study.definition import load_study
from equipoise.study.plan import plan_study
from equipoise.study.records import read_records

ROOT = Path(__file__).parents[2]
RESULTS = sorted(
    path
    for folder in ("experiments/papers", "studies")
    for path in ROOT.glob(f"{folder}/*/results/*.jsonl")
)


@pytest.mark.parametrize("results", RESULTS, ids=lambda path: path.name)
def test_every_committed_result_is_that_of_a_planned_run(results: Path) -> None:
    name, scale, _ = results.name.rsplit(".", 2)
    study = load_study(results.parents[1] / f"{name}.yaml")
    runs = plan_study(study, study.scale(scale)).runs
    planned = {(run.cell.name, run.method, run.condition, run.seed) for run in runs}
    recorded = [
        (record.run, record.method, record.condition, record.seed, record.model)
        for record in read_records(results)
    ]
    assert {record[:4] for record in recorded} <= planned
    assert len(set(recorded)) == len(recorded)

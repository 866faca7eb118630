"""Contributions of clients in results and reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from equipoise.comparison.table import Comparison, opened
from equipoise.report import pictures, report
from equipoise.runs import Run

BASE = {
    "data": {"name": "digits", "clients": 4, "samples": 400, "partition": "pow:1"},
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 3,
    "training": {"steps": 10, "lr": 0.1},
}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("contributions")
    eq.compare(BASE, ["cffl"], out=folder, jobs=1)
    return opened([folder], details=True)


def test_the_result_has_the_last_value_of_each_client(result: Comparison) -> None:
    cffl = result.entries[1].run
    rows = Run(cffl.folder).table(phase="contribution", round=3)
    assert cffl.contributions == {"reputation": {row["client"]: row["value"] for row in rows}}
    assert result.entries[0].run.contributions == {}


def test_the_report_names_their_correlation_with_training_alone(
    result: Comparison, tmp_path: Path
) -> None:
    cffl = result.entries[1].run
    alone = [cffl.main.baseline[client] for client in cffl.contributions["reputation"]]
    values = list(cffl.contributions["reputation"].values())
    correlation = np.corrcoef(alone, values)[0, 1]
    picture = pictures.of_method(cffl)["contributions_reputation"]
    assert f"correlation is {correlation:.2f}" in picture.text
    figure = "contributions_reputation"
    files = report([result.folder], tmp_path / "page.html", kinds=["png"], names=[figure])
    assert files[1].stat().st_size > 1000
    assert "correlation is" in files[0].read_text()

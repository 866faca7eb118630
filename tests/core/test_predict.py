"""Predictions that name their rows, a threshold, and models of a run that was just returned."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.runs import Run
from equipoise.runs.export import predictions
from equipoise.storage.store import RunError
from tests.helpers.answers import CommandLine, one_sentence


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on two tables whose rows have a patient's number."""
    folder = tmp_path_factory.mktemp("predict")
    draw = np.random.default_rng(0)
    (folder / "sites").mkdir()
    for first, site in ((1000, "north"), (5000, "south")):
        table(folder / "sites" / f"{site}.csv", first, 60, draw)
    table(folder / "new.csv", 9000, 5, draw)
    config = {"data": {"name": str(folder / "sites"), "label": "ill"}, "rounds": 2, "workers": 0}
    return eq.run(config, folder / "run")


def table(file: Path, first: int, rows: int, draw: np.random.Generator) -> None:
    x = draw.normal(size=(rows, 2)).round(3)
    lines = [
        f"{first + k},{a},{b},{'yes' if a + b > 0 else 'no'}" for k, (a, b) in enumerate(x.tolist())
    ]
    file.write_text("\n".join(["patient_id,age,dose,ill", *lines]) + "\n")


@pytest.fixture
def equipoise(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capsys, monkeypatch)


def test_a_row_is_named_by_its_identifier(run: Run, equipoise: CommandLine) -> None:
    new = run.folder.parent / "new.csv"
    assert equipoise("predict", run.folder, new, "--client", "north")[0] == 0
    rows = list(csv.DictReader(io.StringIO(equipoise.printed)))
    assert [row["patient_id"] for row in rows] == [str(9000 + k) for k in range(5)]
    assert list(rows[0]) == ["sample", "patient_id", "prediction", "p(no)", "p(yes)"]


def test_a_table_without_its_identifiers_is_predicted_without_them(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "new.csv").write_text("age,dose\n1,2\n")
    header, rows = predictions(run, tmp_path / "new.csv", client="north")
    assert header[:2] == ["sample", "prediction"] and len(rows) == 1


def test_an_identifier_that_the_schema_renames_is_shown(run: Run, tmp_path: Path) -> None:
    """The run matched names that differ in case only, as in the file of another hospital."""
    sites = tmp_path / "sites"
    sites.mkdir()
    for file in (run.folder.parent / "sites").iterdir():
        (sites / file.name).write_bytes(file.read_bytes())
    north = sites / "north.csv"
    north.write_text(north.read_text().replace("patient_id", "PATIENT_ID"))
    config = {"data": {"name": str(sites), "label": "ill"}, "rounds": 1, "workers": 0}
    other = eq.run(config, tmp_path / "run")
    for site, first in (("north", 1000), ("south", 5000)):
        header, rows = predictions(other, sites / f"{site}.csv", client=site)
        assert [row[1] for row in rows[:2]] == [str(first), str(first + 1)], header


@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.8, 1.0])
def test_a_threshold_decides_between_two_classes(run: Run, threshold: float) -> None:
    new = run.folder.parent / "new.csv"
    header, rows = predictions(run, new, client="north", threshold=threshold)
    place = header.index("p(yes)")
    for row in rows:
        assert row[header.index("prediction")] == ("yes" if row[place] >= threshold else "no")


def test_a_threshold_is_a_probability_and_for_two_classes(
    run: Run, tmp_path: Path, equipoise: CommandLine
) -> None:
    new = run.folder.parent / "new.csv"
    with pytest.raises(RunError, match="from 0 to 1, got 1.5"):
        predictions(run, new, client="north", threshold=1.5)
    assert equipoise("predict", run.folder, new, "--threshold", 2)[0] == 2
    draw = np.random.default_rng(0)
    sites = {who: (draw.normal(size=(30, 3)), np.arange(30) % 3) for who in ("a", "b")}
    three = eq.run(
        eq.Experiment(dataset=eq.from_sites(sites), rounds=1, workers=0), tmp_path / "three"
    )
    np.savez(tmp_path / "new.npz", x=np.zeros((1, 3), np.float32))
    said = one_sentence(
        equipoise("predict", three.folder, tmp_path / "new.npz", "--threshold", 0.5)
    )
    assert "3 classes" in said


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(x)
        return outputs


def test_a_run_that_was_just_returned_has_its_users_own_model(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    sites = {who: (draw.normal(size=(30, 3)), np.arange(30) % 2) for who in ("a", "b")}
    experiment = eq.Experiment(
        dataset=eq.from_sites(sites), model=lambda: Own(), rounds=1, workers=0
    )
    run = eq.run(experiment, tmp_path / "run")
    given = Run(tmp_path / "run").model("global", experiment=experiment).state_dict()
    found = run.model("global").state_dict()
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], given[name]) for name in found)
    with pytest.raises(RunError, match="experiment=experiment"):
        Run(tmp_path / "run").model("global")  # opened from its folder alone
    with pytest.warns(DeprecationWarning, match="experiment="):
        Run(tmp_path / "run").model("global", given=experiment)

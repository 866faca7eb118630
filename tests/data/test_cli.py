from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise.cli import main
from equipoise.cli.data import app
from equipoise.data.partitions import PARTITIONS

runner = CliRunner()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_list_tells_what_is_here_and_import_brings_it(tmp_path: Path) -> None:
    def status() -> dict[str, str]:
        return {
            row["name"]: row["status"]
            for row in json.loads(runner.invoke(app, ["list", "--json"]).stdout)
        }

    before = status()
    assert (before["digits"], before["mnist"], before["uci_heart_disease"]) == (
        "built in",
        "to fetch",
        "import-only",
    )
    x = np.zeros((3, 28, 28), np.uint8)
    np.savez(tmp_path / "file.npz", x_train=x, y_train=[0, 1, 2], x_test=x, y_test=[0, 1, 2])
    done = runner.invoke(app, ["import", "mnist", str(tmp_path / "file.npz")])
    assert done.exit_code == 0, done.output
    assert status()["mnist"] == "yes"
    assert "mnist" in runner.invoke(app, ["list"]).stdout


def test_show_names_licence_source_and_shape() -> None:
    shown = json.loads(runner.invoke(app, ["show", "retinamnist", "--json"]).stdout)
    assert (shown["licence"], shown["shape"], shown["file"]) == ("CC BY 4.0", [3, 28, 28], None)
    assert "medmnist 3.0.2" in shown["source"]
    assert "CC BY 4.0" in runner.invoke(app, ["show", "retinamnist"]).stdout
    assert json.loads(runner.invoke(app, ["show", "digit_domains", "--json"]).stdout)[
        "members"
    ] == ["mnist", "usps", "svhn", "syn"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "retinamnst"], "did you mean 'retinamnist'"),
        (["fetch", "uci_heart_disease"], "is import-only"),
        (["import", "mnist", "absent.npz"], "no such file"),
    ],
)
def test_mistakes_end_in_a_sentence_and_status_two(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["equipoise", "data", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_partitions_are_listed_with_their_parameters() -> None:
    rows = json.loads(runner.invoke(app, ["partitions", "--json"]).stdout)
    assert [row["name"] for row in rows] == list(PARTITIONS)
    assert {row["name"]: row["parameters"] for row in rows}["dirichlet"] == [
        "alpha",
        "min_size=10",
        "leftovers=assign",
    ]
    assert "dirichlet_balanced" in runner.invoke(app, ["partitions"]).stdout

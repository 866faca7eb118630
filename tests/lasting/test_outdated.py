"""Runs that an older version began, and whose bits a correction changes, are not gone on with and say so."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml

import equipoise as eq
from equipoise.runs import Run
from equipoise.storage.outdated import outdated
from equipoise.storage.store import RunError
from tests.helpers import half_finished
from tests.helpers.terminal import Terminal
from tests.helpers.terminal import equipoise as equipoise

IMAGES, TABLE = {"shape": [1, 28, 28]}, {"shape": [12]}
ADAM, MOMENTUM, PLAIN = (
    {"optimiser": "adam"},
    {"optimiser": "sgd", "momentum": 0.9},
    {"optimiser": "sgd", "momentum": 0.0},
)
KEPT = {"keep_optimiser": True}


@pytest.mark.parametrize(
    ("changed", "version", "method", "training", "model", "task"),
    [
        (True, "0.1.0", "fedekd", ADAM, "cnn", IMAGES),
        (True, "0.1.0", "fedekd", MOMENTUM, "mlp", IMAGES),  # its rule of what is kept changed, too
        (True, "0.1.7", "fedekd", {"optimiser": "adamw"}, "mlp", TABLE),
        (False, "0.1.0", "fedekd", PLAIN, "cnn", IMAGES),
        (False, "0.2.0", "fedekd", ADAM, "cnn", IMAGES),
        (False, "0.10.0", "fedekd", ADAM, "cnn", IMAGES),
        (False, "1.0.0", "fedekd", ADAM, "cnn", IMAGES),
        (True, "0.1.0", "standalone", ADAM | KEPT, "cnn", IMAGES),
        (True, "0.1.0", "standalone", MOMENTUM | KEPT, {"name": "lenet"}, IMAGES),
        (
            True,
            "0.1.0",
            "standalone",
            ADAM | KEPT,
            {"name": "mlp", "clients": {"3": "cnn"}},
            IMAGES,
        ),
        (True, "0.1.0", "standalone", ADAM | KEPT, "<Sequential given in Python>", IMAGES),
        (False, "0.2.0", "standalone", ADAM | KEPT, "cnn", IMAGES),
        (False, "0.1.0", "standalone", ADAM, "cnn", IMAGES),
        (False, "0.1.0", "standalone", PLAIN | KEPT, "cnn", IMAGES),
        (False, "0.1.0", "standalone", ADAM | KEPT, {"name": "mlp", "hidden": [8]}, IMAGES),
        (False, "0.1.0", "standalone", ADAM | KEPT, "linear", IMAGES),
        (False, "0.1.0", "standalone", ADAM | KEPT, "gru", TABLE),
        (False, "0.1.0", "fedavg", ADAM | KEPT, "cnn", IMAGES),
    ],
)
def test_which_runs_the_correction_changes(
    changed: bool, version: str, method: str, training: Any, model: Any, task: Any
) -> None:
    config = {"method": {"name": method}, "training": training, "model": model, "models": {}}
    assert (outdated(config, version, task) is not None) == changed


def test_standalone_looks_at_the_model_that_it_trains() -> None:
    config = {
        "method": {"name": "standalone", "model": "private"},
        "training": ADAM | KEPT,
        "models": {"private": "mlp", "proxy": "cnn"},
    }
    assert outdated(config, "0.1.0", IMAGES) is None
    assert (
        outdated({**config, "method": {"name": "standalone", "model": "proxy"}}, "0.1.0", IMAGES)
        is not None
    )


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The half-finished run of version 0.1.0, as if it had been one of FedeKD with Adam."""
    folder = tmp_path / "run"
    shutil.copytree(half_finished.FOLDER / "fedavg", folder)
    config = yaml.safe_load((folder / "experiment.yaml").read_text())
    config["method"], config["training"]["optimiser"] = {"name": "fedekd"}, "adam"
    (folder / "experiment.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_it_is_not_resumed_and_stays_as_it_is(old: Path) -> None:
    with pytest.raises(
        RunError,
        match=r"was begun by version 0\.1\.0, whose FedeKD kept the optimiser's memory .*wrong weights.*run it again",
    ):
        eq.resume(old)
    assert Run(old).last_round == 2 and (old / "files" / "server-r2a0.safetensors").exists()


def test_show_marks_it(old: Path, equipoise: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    found = json.loads(equipoise("show", old, "--json").out)
    assert "version 0.1.0" in found["outdated"]
    assert "outdated: begun by version 0.1.0" in equipoise("show", old).out
    with sqlite3.connect(old / "run.db") as db:
        db.execute("update meta set value = '\"0.2.0\"' where key = 'version'")
    db.close()
    assert json.loads(equipoise("show", old, "--json").out)["outdated"] is None
    assert "outdated" not in equipoise("show", old).out

"""Configurations in the code of users: a type checker finds wrong values without a plugin."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import equipoise
from equipoise.experiment import Experiment

RIGHT = """
import equipoise as eq
from equipoise.data import DataConfig
from equipoise.training import Training

eq.Experiment(data={"name": "digits", "clients": 3}, method="fedavg", rounds=3, workers=None)
eq.Experiment(data=DataConfig(clients=3), training=Training(lr=0.1), evaluation={"every": 2})
Training()
"""
WRONG = """
import equipoise as eq
from equipoise.training import Training

eq.Experiment(rounds="x")
eq.Experiment(round=3)
Training(lr="fast")
Training(learning_rate=0.1)
"""


def test_the_signature_for_type_checkers_has_every_key() -> None:
    source = inspect.getsource(Experiment).partition("if TYPE_CHECKING:")[2].partition(") -> ")[0]
    keys = [
        line.split(":")[0].strip() for line in source.splitlines() if ": " in line and "=" in line
    ]
    assert keys == list(Experiment.model_fields)


@pytest.mark.slow
def test_mypy_without_plugins_accepts_right_values_and_refuses_wrong_ones(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "mypy.ini").write_text(
        f"[mypy]\nmypy_path = {Path(equipoise.__file__).parents[1]}\nfollow_imports = silent\n"
        "ignore_missing_imports = true\n"
    )
    command = [sys.executable, "-m", "mypy", "right.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    lines = [line.split(":")[:2] for line in done.stdout.splitlines() if ": error:" in line]
    assert lines == [["wrong.py", number] for number in ("5", "6", "7", "8")], done.stdout

"""What a run does once only: it reads the user's tables, and it builds its method."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import equipoise as eq
from tests.helpers.runs import environment

COUNTING = """
import os
from dataclasses import dataclass
from pathlib import Path
from equipoise.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Counting(FedAvg):
    def __post_init__(self):
        with Path(os.environ["CONSTRUCTIONS"]).open("a") as file:
            file.write(f"{os.getpid()}\\n")
"""

# Reports every time that a site's table is opened for reading.
PROGRAM = """
import json, sys
opened = []

def record(event, arguments):
    if event == "open" and str(arguments[0]).endswith(".csv"):
        opened.append(str(arguments[0]).rpartition("/")[2])

sys.addaudithook(record)
import equipoise as eq
from equipoise.cli import main

words = json.loads(sys.argv[1])
if words[0] == "eq.run":
    eq.run(words[1], "out")
else:
    sys.argv = ["equipoise", *words]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, stop.code
print(json.dumps(sorted(opened)))
"""


def write_sites(folder: Path) -> None:
    """Write the tables of two sites."""
    folder.mkdir()
    for site in ("ada", "bo"):
        rows = [f"{row % 7},{row % 3},{'yes' if row % 2 else 'no'}" for row in range(40)]
        (folder / f"{site}.csv").write_text("\n".join(["age,dose,ill", *rows]) + "\n")


def constructions(file: Path) -> int:
    return len(file.read_text().split())


@pytest.mark.parametrize(
    "words",
    [
        ["eq.run", {"data": {"name": "sites", "label": "ill"}, "rounds": 1, "workers": 0}],
        ["run", "--data", "sites", "--label", "ill", "--rounds", "1", "--workers", "0"],
        ["run", "--data", "sites", "--label", "ill", "--rounds", "1", "--dry-run"],
    ],
    ids=["python", "command", "dry run"],
)
@pytest.mark.thorough
def test_every_table_is_opened_once(tmp_path: Path, words: list[object]) -> None:
    write_sites(tmp_path / "sites")
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(words)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    assert "ill" in answer.stderr, "how the tables were read is printed"
    assert json.loads(answer.stdout.splitlines()[-1]) == ["ada.csv", "bo.csv"]


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with one line per construction of the method ``counted_method:Counting``."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "counted_method.py").write_text(COUNTING)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.setenv("CONSTRUCTIONS", str(tmp_path / "constructions"))
    return tmp_path / "constructions"


def test_a_run_builds_its_method_once(tmp_path: Path, counting: Path) -> None:
    write_sites(tmp_path / "sites")
    config = {
        "data": {"name": str(tmp_path / "sites"), "label": "ill"},
        "method": {"name": "counted_method:Counting", "weights": "feddisco"},
        "rounds": 2,
        "workers": 0,
    }
    eq.run(config, tmp_path / "run", quiet=True)
    assert constructions(counting) == 1


def test_the_process_of_a_comparison_builds_the_method_of_its_run_once(
    tmp_path: Path, counting: Path
) -> None:
    write_sites(tmp_path / "sites")
    base = {"data": {"name": str(tmp_path / "sites"), "label": "ill"}, "rounds": 1}
    eq.compare(base, ["counted_method:Counting"], out=tmp_path / "comparison", jobs=1)
    by_process = counting.read_text().split()
    assert by_process.count(by_process[-1]) == 1


def test_an_experiment_returns_the_same_method_at_every_call() -> None:
    experiment = eq.Experiment(method={"name": "fedprox", "mu": 0.5})
    assert experiment.build_method() is experiment.build_method()
    assert eq.Experiment().build_method() == eq.methods.make("fedavg")

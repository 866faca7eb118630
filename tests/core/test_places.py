"""Mistakes in a file are named with file and line, and those of the command line without."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.experiment import ConfigurationError, experiment, load, with_settings

TEXT = """data: {name: digits}
training:
  lr: 0.1
  epochs: many
roundz: 3
faults:
  script:
  - {round: 0, client: "1", kind: drop}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.yaml"
    path.write_text(TEXT)
    return path


def test_each_mistake_of_a_file_names_its_line(file: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        experiment(load(file))
    lines = sorted(str(caught.value).split("\n"))
    starts = [f"{file}, line {n}: {key}:" for n, key in ((4, "training.epochs"), (5, "roundz"))]
    assert lines[0].startswith(starts[0]) and lines[1].startswith(starts[1])
    assert lines[2].startswith(f"{file}, line 8: faults.script.0.round:")


def test_a_mistake_of_the_command_line_names_no_line(file: Path) -> None:
    file.write_text("rounds: 3\ntraining: {lr: 0.1}\n")
    with pytest.raises(ConfigurationError, match=r"^training\.lr: "):
        experiment(with_settings(load(file), {"training.lr": "fast"}))

"""Steps before a run: its folder, its configuration as text, its description, its cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from equipoise.experiment import ConfigurationError, Experiment
from equipoise.session import configuration
from equipoise.simulate import fresh_folder, on_cluster, print_description
from equipoise.validation import safe_yaml


def test_new_folders_name_method_data_and_seed_and_never_exist_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = Experiment(data={"name": "some/where/mine"}, method="fedprox", seed=3)
    names = set()
    for _ in range(3):
        folder = fresh_folder(experiment)
        folder.mkdir(parents=True)
        assert "fedprox-mine-s3" in folder.name
        names.add(folder)
    assert len(names) == 3


def test_a_configuration_is_yaml_that_gives_the_same_experiment() -> None:
    text = configuration(Experiment(rounds=7))
    assert Experiment(**yaml.safe_load(text)).rounds == 7
    assert text.index("data:") < text.index("model:") < text.index("rounds:")


def test_an_experiment_that_is_too_long_to_be_read_again_is_refused() -> None:
    name = "x" * (safe_yaml.MOST_BYTES + 1)
    with pytest.raises(ConfigurationError, match="1 MB"):
        configuration(Experiment(model={"name": name}))


@pytest.mark.parametrize(
    ("settings", "shape", "expected"),
    [
        ({"model": "auto"}, (1, 28, 28), "model: cnn, the default for images of 1x28x28"),
        ({"model": "cnn"}, (1, 28, 28), ""),
        ({"model": "auto"}, (13,), ""),
        ({"models": {"model": "mlp"}}, (1, 28, 28), ""),
    ],
)
def test_a_model_that_was_chosen_for_images_is_named(
    settings: dict[str, Any],
    shape: tuple[int, ...],
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_description(Experiment(**settings), None, shape)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(expected)
    assert bool(captured.err) == bool(expected)


def test_without_an_address_there_is_no_cluster() -> None:
    assert on_cluster(None, True) is None
    assert on_cluster("h:1", True) is not None

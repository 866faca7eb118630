"""A student's folder of images, from the first look to predictions by file."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import equipoise as eq
from tests.helpers.terminal import Terminal


@pytest.fixture
def scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Dark and bright images of two sites, each of its own size."""
    rng = np.random.default_rng(0)
    for site, size in (("north", (20, 20)), ("south", (18, 24))):
        for kind, level in (("bright", 200), ("dark", 40)):
            folder = tmp_path / "scans" / site / kind
            folder.mkdir(parents=True)
            for i in range(8):
                Image.fromarray(rng.normal(level, 9, size).clip(0, 255).astype(np.uint8)).save(
                    folder / f"{i}.png"
                )
    monkeypatch.chdir(tmp_path)
    return tmp_path / "scans"


def test_images_take_a_cnn_of_a_stated_size_and_predictions_name_the_files(
    scans: Path, equipoise: Terminal
) -> None:
    ran = equipoise(
        "run",
        "--data",
        scans.name,
        "--rounds",
        "2",
        "--set",
        "data.image_size=16",
        "--out",
        "x",
        "--workers",
        "0",
    )
    assert "model: cnn, the default for images of 1x16x16; --model" in ran.err
    assert eq.Run("x").config["model"] == "cnn", "the run's file says what was trained"
    found = list(csv.DictReader(io.StringIO(equipoise("predict", "x", scans.name).out)))
    assert [row["file"] for row in found] == sorted(
        str(file.relative_to(scans)) for file in scans.glob("*/*/*")
    )
    right = sum(row["prediction"] == Path(row["file"]).parent.name for row in found)
    assert right > 24, "each line is about the file that it names"
    (one,) = csv.DictReader(
        io.StringIO(equipoise("predict", "x", str(scans / "south" / "dark" / "3.png")).out)
    )
    assert one["file"] == "3.png" and one == {
        **next(row for row in found if row["file"] == "south/dark/3.png"),
        "file": "3.png",
    }


def test_the_size_is_stated_before_training_and_another_model_is_taken(
    scans: Path, equipoise: Terminal
) -> None:
    ran = equipoise(
        "run",
        "--data",
        scans.name,
        "--rounds",
        "1",
        "--model",
        "mlp",
        "--out",
        "x",
        "--workers",
        "0",
    )
    assert "read at 64x64" in ran.err and "default for images" not in ran.err
    assert eq.Run("x").config["model"] == "mlp"


def test_models_are_listed_with_their_inputs_and_sizes(equipoise: Terminal) -> None:
    found = {one["name"]: one for one in json.loads(equipoise("models", "--json").out)}
    assert (
        found["cnn"]["inputs"] == "images"
        and found["mlp"]["inputs"] == "anything"
        and found["gru"]["inputs"] == "histories"
    )
    assert (
        found["mlp"]["parameters"]["1x28x28"] == 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10
    )
    assert "row of 30" not in found["lenet"]["parameters"]
    assert "105,962" in equipoise("models").out
    assert "hidden: [200, 200]" in equipoise("models", "mlp").out
    assert "did you mean 'mlp'?" in equipoise("models", "mpl").err

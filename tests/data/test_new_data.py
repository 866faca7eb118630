"""New data through the recipe of a run: what is taken, and what is refused in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from equipoise.data import DataConfig, Dataset, federate, from_arrays, inputs_from
from equipoise.data.preparation import new_images

IMAGES: dict[str, Any] = {"kind": "image", "pixels": True, "normalise": "half", "shape": [1, 4, 4]}
OBLONG = {**IMAGES, "shape": [3, 4, 6], "normalise": "none"}
ARRAYS: dict[str, Any] = {"kind": "array", "pixels": False, "normalise": "none", "shape": [2]}
HISTORIES: dict[str, Any] = {
    "kind": "histories",
    "shape": [3, 4],
    "codes": ["A"],
    "mean": [0, 0],
    "scale": [1, 1],
}
PIXELS = np.arange(16, dtype=np.uint8).reshape(4, 4) * 15


def test_images_as_arrays_with_and_without_channels() -> None:
    expected = torch.from_numpy((PIXELS / np.float32(255) - np.float32(0.5)) / np.float32(0.5))[
        None, None
    ]
    for given in (
        PIXELS,
        PIXELS[None],
        PIXELS[None, None],
        PIXELS[None, :, :, None],
        torch.from_numpy(PIXELS),
    ):
        assert torch.allclose(inputs_from(given, IMAGES), expected, atol=1e-6)
    assert inputs_from(np.repeat(PIXELS[None], 3, axis=0), IMAGES).shape == (3, 1, 4, 4)
    assert inputs_from(np.zeros((2, 8, 8), np.uint8), IMAGES).shape == (
        2,
        1,
        4,
        4,
    )  # squares are resized
    assert inputs_from(np.zeros((2, 3, 4, 6), np.uint8), OBLONG).shape == (2, 3, 4, 6)
    for wrong in (np.zeros((2, 3, 8, 12), np.uint8), np.zeros((2, 1, 4, 6), np.uint8)):
        with pytest.raises(ValueError, match=r"expected samples of shape \(3, 4, 6\), got "):
            inputs_from(wrong, OBLONG)
    with pytest.raises(
        ValueError, match=r"whole-number pixels 0\.\.255 \(uint8\), got torch.float32"
    ):
        inputs_from(PIXELS.astype(float), IMAGES)
    assert inputs_from(PIXELS / 255, {**IMAGES, "pixels": False}).shape == (1, 1, 4, 4)


def test_rows_of_numbers_one_or_many() -> None:
    assert inputs_from(np.array([1, 2]), ARRAYS).tolist() == [[1, 2]] and inputs_from(
        np.array([[1.5, 2], [3, 4]]), ARRAYS
    ).shape == (2, 2)
    assert inputs_from(np.array([[True, False]]), ARRAYS).tolist() == [[1, 0]]
    with pytest.raises(ValueError, match=r"expected samples of shape \(2,\), got \(3,\)"):
        inputs_from(np.zeros((2, 3)), ARRAYS)
    with pytest.raises(ValueError, match="expected numbers in x, got <U1"):
        inputs_from(np.array([["a", "b"]]), ARRAYS)


def test_files_of_arrays_and_images(tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", x=np.array([[1.0, 2]]), y=np.zeros(1))
    assert (
        inputs_from(tmp_path / "some.npz", ARRAYS).tolist()
        == inputs_from(str(tmp_path / "some.npz"), ARRAYS).tolist()
        == [[1, 2]]
    )
    np.savez(tmp_path / "none.npz", z=np.zeros(1))
    with pytest.raises(ValueError, match=r"none\.npz has no array x; it has z"):
        inputs_from(tmp_path / "none.npz", ARRAYS)
    with pytest.raises(ValueError, match=r"expected an NPZ file with an array x, got .*\.csv"):
        inputs_from(tmp_path / "some.csv", ARRAYS)
    np.savez(tmp_path / "images.npz", x=PIXELS[None])
    assert torch.equal(inputs_from(tmp_path / "images.npz", IMAGES), inputs_from(PIXELS, IMAGES))
    Image.fromarray(PIXELS).save(tmp_path / "one.png")
    assert torch.equal(inputs_from(tmp_path / "one.png", IMAGES), inputs_from(PIXELS, IMAGES))
    Image.new("RGB", (12, 8), (255, 0, 51)).save(tmp_path / "wide.png")
    wide = inputs_from(tmp_path / "wide.png", OBLONG)
    assert wide.shape == (1, 3, 4, 6) and wide[0, :, 0, 0].tolist() == pytest.approx([1, 0, 0.2])


def test_images_are_found_as_deep_as_any_layout_has_them(tmp_path: Path) -> None:
    for name in (
        "b.png",
        "a.JPG",
        "site/c.png",
        "site/class/d.png",
        "site/train/class/e.png",
        "site/train/class/deeper/f.png",
        "site/class/._d.png",
        "note.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [file.relative_to(tmp_path).as_posix() for file in new_images(tmp_path)] == [
        "a.JPG",
        "b.png",
        "site/c.png",
        "site/class/d.png",
        "site/train/class/e.png",
    ]
    assert new_images(tmp_path / "missing.png") == [tmp_path / "missing.png"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError, match=r"no images found in .*empty, nor in folders inside it; expected .*\.png"
    ):
        new_images(tmp_path / "empty")


def test_histories_as_arrays_have_the_shape_of_training() -> None:
    given = np.zeros((2, 3, 4), np.float32)
    given[:, 0, 2] = 1
    given[:, 1] = [1, 5, 50, 0]
    assert inputs_from(given, HISTORIES).shape == (2, 3, 4)
    with pytest.raises(
        ValueError,
        match=(
            r"expected histories of shape \(3, 4\), or the folder of patients\.csv and "
            r"events\.csv, got \(2, 4\)"
        ),
    ):
        inputs_from(given[:, :2], HISTORIES)


def table_recipe(**column: Any) -> dict[str, Any]:
    """The recipe of one column that is not scaled."""
    return {
        "kind": "table",
        "columns": [{"name": "c", "gaps": False, **column}],
        "shared": {"fill": [0.0], "mean": [0.0], "scale": [1.0]},
        "clients": {},
    }


@pytest.mark.parametrize(
    ("column", "cell", "inputs"),
    [
        ({"categorical": True, "categories": ["a", "b"], "formats": []}, "b", [0, 1, 0]),
        ({"categorical": True, "categories": ["a", "b"]}, "other", [0, 0, 1]),
        ({"categorical": False, "categories": [], "formats": ["%Y-%m-%d"]}, "1970-01-03", [2]),
        ({"categorical": False, "categories": []}, "2.5", [2.5]),
        ({"categorical": False, "categories": [], "formats": []}, "2.5", [2.5]),
    ],
)
def test_new_rows_of_a_table_follow_the_kind_of_the_column(
    column: dict[str, Any], cell: str, inputs: list[float]
) -> None:
    rows = np.array([[cell]])
    assert inputs_from(rows, table_recipe(**column)).tolist() == [inputs]


def test_an_older_run_whose_training_saw_no_category_can_predict() -> None:
    recipe = table_recipe(categorical=True, categories=[])
    assert inputs_from(np.array([["a"]]), recipe).shape == (1, 1)


def test_arrays_through_the_recipe_of_a_table() -> None:
    x = np.array([[float(k), k % 3] for k in range(30)])
    found = federate(
        DataConfig(clients=2, normalise="pooled"),
        0,
        from_arrays(x, np.arange(30) % 2, columns=["a", "b"]),
    )
    assert torch.allclose(inputs_from(x[found.source], found.recipe), found.x, atol=1e-6)
    for wrong in (np.zeros(2), np.zeros((2, 3)), np.zeros((2, 2, 2))):
        with pytest.raises(ValueError, match=r"expected 2 columns \(a, b\), got an array of shape"):
            inputs_from(wrong, found.recipe)


def pictures(**more: Any) -> Dataset:
    x = np.random.default_rng(0).integers(0, 256, (20, 4, 4), dtype=np.uint8)
    return from_arrays(x, np.arange(20) % 2, **more)


def test_what_a_federation_of_images_or_rows_says_of_its_inputs() -> None:
    found = federate(DataConfig(clients=2, partition="pow", augment=("flip",)), 0, pictures())
    assert {name: found.recipe[name] for name in IMAGES} == {
        **IMAGES,
        "normalise": "none",
    } and found.augment == ("flip",)
    assert (
        len(found.x) == 10
        and found.recipe["schema"]["shape"] == [1, 4, 4]
        and len(found.source) == 10
    )
    half = federate(DataConfig(clients=2, normalise="half"), 0, pictures())
    assert (
        torch.equal(half.x, inputs_from(pictures().x.numpy(), half.recipe))
        and half.recipe["normalise"] == "half"
    )
    plain = federate(
        DataConfig(clients=2), 0, from_arrays(np.arange(20.0)[:, None] / 20, np.arange(20) % 2)
    )
    assert {name: plain.recipe[name] for name in ARRAYS} == {**ARRAYS, "shape": [1]}
    with pytest.raises(
        ValueError,
        match="normalise: pooled is for tables and arrays is none; use one of none, half",
    ):
        federate(DataConfig(clients=2, normalise="pooled"), 0, pictures())


def test_rows_of_a_table_are_prepared_for_each_part_and_the_shared_test_set() -> None:
    x = np.arange(40.0)[:, None]
    data = from_arrays(x, np.arange(40) % 2, columns=["a"], part=np.array([0] * 30 + [2] * 10))
    found = federate(
        DataConfig(clients=2, test="global", normalise="none", split=(0.8, 0.2, 0.0)), 0, data
    )
    assert found.x[:, 0].tolist() == [float(k) for k in found.source] and found.y.tolist() == [
        k % 2 for k in found.source
    ]
    assert (
        sorted(found.source[found.shared_test].tolist()) == list(range(30, 40))
        and len(found.x) == 40
    )
    places = np.concatenate(
        [found.train.index, found.validation.index, found.test.index, found.shared_test]
    )
    assert places.tolist() == list(range(40))
    assert federate(DataConfig(clients=2), 0, data).recipe["scaling"] == "client"

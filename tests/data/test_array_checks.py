"""Arrays that would be read wrongly: refused, or reported with a remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from equipoise.data import DataConfig, federate, from_arrays, from_sites, from_tables
from equipoise.data.check import check_data

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (6, 8, 8), dtype=np.uint8)
Y = np.arange(6) % 2


def sites(folder: Path, **arrays: np.ndarray) -> DataConfig:
    for name, x in arrays.items():
        np.savez(folder / f"{name}.npz", x=x, y=Y)
    return DataConfig(name=str(folder))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (BYTES / 255.0, "type of their images .uint8: north; fractions: south.*uint8"),
        (BYTES.astype(np.int64), "uint8: north; int64: south"),
        ((BYTES > 128).astype(np.uint8), "at most 1 in south, up to 255 in north"),
    ],
)
def test_sites_with_different_types_or_ranges_are_refused(
    other: np.ndarray, said: str, tmp_path: Path
) -> None:
    config = sites(tmp_path, north=BYTES, south=other)
    for read in (check_data, lambda config: federate(config, 1)):
        with pytest.raises(ValueError, match=said):
            read(config)


def test_fractions_of_different_ranges_are_refused_and_of_different_precision_are_not() -> None:
    with pytest.raises(ValueError, match=r"at most 1 in a, up to 255 in b; .*0\.\.1"):
        from_sites({"a": (BYTES / 255.0, Y), "b": (BYTES * 1.0, Y)})
    made = from_sites({"a": (BYTES / 255.0, Y), "b": ((BYTES / 255.0).astype(np.float32), Y)})
    assert len(made.x) == 12


def test_images_around_0_beside_images_from_0_to_1_are_told(tmp_path: Path) -> None:
    config = sites(tmp_path, north=BYTES / 255.0, south=BYTES / 127.5 - 1)
    assert any("south" in note and "-1" in note for note in check_data(config).warnings)
    alike = from_sites({"a": (BYTES / 127.5 - 1, Y), "b": (BYTES / 127.5 - 1, Y)})
    assert not alike.notes


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (np.array(["no", "yes"] * 3), "'no', 'yes' in south.*'yes' as '1'"),
        (np.array(["ill", "well"] * 3), "'ill', 'well' in south"),
    ],
)
def test_labels_of_arrays_that_are_coded_differently_are_refused(
    other: np.ndarray, said: str, tmp_path: Path
) -> None:
    rows = RNG.normal(size=(6, 3))
    with pytest.raises(ValueError, match=said):
        from_sites({"north": (rows, Y), "south": (rows, other)})
    np.savez(tmp_path / "north.npz", x=rows, y=Y)
    np.savez(tmp_path / "south.npz", x=rows, y=other)
    with pytest.raises(ValueError, match=said):
        federate(DataConfig(name=str(tmp_path)), 1)


def test_labels_of_arrays_are_one_class_whether_numbers_or_text() -> None:
    rows = RNG.normal(size=(6, 3))
    made = from_sites({"north": (rows, Y * 1.0), "south": (rows, Y.astype(str))})
    assert made.task.class_names == ("0", "1")


def test_numbers_of_rows_may_be_whole_at_one_site_only() -> None:
    rows = RNG.normal(size=(6, 3))
    assert len(from_sites({"a": (rows, Y), "b": (np.arange(18).reshape(6, 3), Y)}).x) == 12


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_come_first_whatever_the_type(dtype: type, channels: int) -> None:
    last = RNG.integers(0, 2, (6, 8, 9, channels)).astype(dtype)
    made = from_arrays(last, Y)
    assert made.task.shape == (channels, 8, 9)
    assert np.array_equal(made.x.numpy(), last.transpose(0, 3, 1, 2))
    assert np.array_equal(from_arrays(last.transpose(0, 3, 1, 2), Y).x.numpy(), made.x.numpy())
    assert any("alpha" in note for note in made.notes) == (channels == 4)


def test_many_channels_that_may_be_last_are_told() -> None:
    (note,) = from_arrays(np.zeros((6, 16, 16, 13), np.float32), Y).notes
    assert "16 channels of 16x13" in note and "x.transpose(0, 3, 1, 2)" in note
    assert from_arrays(np.zeros((6, 13, 16, 16), np.float32), Y).notes == ()


def test_images_of_sixteen_bits_are_refused(tmp_path: Path) -> None:
    deep = RNG.integers(0, 4000, (6, 8, 8)).astype(np.uint16)
    config = sites(tmp_path, north=deep, south=deep)
    for read in (check_data, lambda config: federate(config, 1)):
        with pytest.raises(ValueError, match=r"uint16 .*\(x / 4095\)\.astype"):
            read(config)
    assert from_arrays(deep[:, 0], Y, scaled=True).task.shape == (8,), "rows are no images"


def test_images_that_are_not_scaled_are_told_before_training(tmp_path: Path) -> None:
    config = sites(tmp_path, north=BYTES.astype(np.float32), south=BYTES.astype(np.float32))
    assert any("taken as they are" in one and "uint8" in one for one in check_data(config).warnings)
    assert federate(config, 1).metadata["notes"]
    assert from_arrays(BYTES, Y).notes == () == from_arrays(BYTES / 255, Y).notes


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["age", "age", "bmi"], r"a\.npz.*'age' 2 times; rename"),
        (["age", "y", "bmi"], r"a\.npz: 'y' is one of its feature_names and also an array"),
        (["age", "bmi"], r"column for each of 2 feature_names"),
    ],
)
def test_names_of_features_are_told_apart(names: list[str], said: str, tmp_path: Path) -> None:
    for site in ("a", "b"):
        np.savez(tmp_path / f"{site}.npz", x=RNG.normal(size=(6, 3)), y=Y, feature_names=names)
    with pytest.raises(ValueError, match=said):
        from_tables(tmp_path, label="y")

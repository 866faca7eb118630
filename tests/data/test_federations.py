"""Public federations: FLamby's hospitals and the states of ACS income, on files made here and on
the real ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from equipoise.data import DataConfig, federate, sets
from equipoise.data.dataset import TEST, TRAIN
from equipoise.data.sets.registered import RegisteredSet

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def needs(name: str) -> pytest.MarkDecorator:
    folder = os.environ.get("EQUIPOISE_DATA", "")
    is_missing = not (Path(folder) / f"{name}.npz").exists()
    return pytest.mark.skipif(not folder or is_missing, reason=f"no {name}.npz in EQUIPOISE_DATA")


def heart_files(folder: Path, rows: int = 12) -> list[Path]:
    """Write files of the official format: complete patients, one with a gap, gaps in slope, ca and
    thal.
    """
    files = []
    for hospital in HOSPITALS:
        lines = [
            f"{50 + row},1,{1 + row % 4},130,0,0,{row % 3},150,0,1.5,?,?,?,{row % 2 * 3}"
            for row in range(rows)
        ]
        lines.append("61,0,4,?,220,0,0,140,1,0.5,2,0,3,1")
        path = folder / f"processed.{hospital}.data"
        path.write_text("\n".join(lines) + "\n")
        files.append(path)
    return files


def test_flamby_heart_keeps_complete_patients_and_expands_two_columns(
    tmp_path: Path, folder: Path, unchecked: Callable[[str], RegisteredSet]
) -> None:
    sets.import_files(unchecked("flamby_heart"), heart_files(tmp_path))
    data = sets.load("flamby_heart")
    assert data.site is not None and np.bincount(data.site).tolist() == [12] * 4
    assert [column.name for column in data.columns][-5:] == [
        "cp=2",
        "cp=3",
        "cp=4",
        "restecg=1",
        "restecg=2",
    ]
    assert data.x[:4, -5:].tolist() == [
        [0, 0, 0, 0, 0],
        [1, 0, 0, 1, 0],
        [0, 1, 0, 0, 1],
        [0, 0, 1, 0, 0],
    ]
    assert data.x[0, 3] == 0, "a cholesterol of 0 is a number here"
    assert data.y[:4].tolist() == [0, 1, 0, 1]


def test_flamby_heart_needs_the_official_files(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match="the official file has 2d91a8ff69cfd9616aa47b59d6f843db"):
        sets.import_files(sets.entry("flamby_heart"), heart_files(tmp_path))


@needs("uci_heart_disease")
def test_flamby_heart_has_the_published_split() -> None:
    data = sets.load("flamby_heart")
    assert data.site is not None and data.part is not None
    counts = [
        (
            int(((data.site == k) & (data.part == TRAIN)).sum()),
            int(((data.site == k) & (data.part == TEST)).sum()),
        )
        for k in range(4)
    ]
    assert counts == [(199, 104), (172, 89), (30, 16), (85, 45)]
    # The accuracies of a model that always predicts disease, as FLamby's results files state them.
    is_test = data.part == TEST
    shares = [float(data.y[is_test & (data.site == k)].float().mean()) for k in range(4)]
    assert shares == pytest.approx([48 / 104, 33 / 89, 15 / 16, 35 / 45])


@needs("uci_heart_disease")
def test_flamby_heart_is_tested_on_the_official_part_of_each_hospital() -> None:
    federation = federate(DataConfig(name="flamby_heart", test="site", split=(1.0, 0.0, 0.0)), 1)
    assert federation.ids == ("cleveland", "hungary", "switzerland", "va")
    assert federation.train.sizes.tolist() == [199, 172, 30, 85]
    assert federation.test.sizes.tolist() == [104, 89, 16, 45]


def state_arrays(rows: int = 4) -> dict[str, np.ndarray]:
    row = [40, 1, 21, 2, 1021, 6, 17, 40, 2, 1]
    arrays: dict[str, np.ndarray] = {}
    for state in sets.acs_income.STATES:
        arrays[f"x_{state}"] = np.array([row] * rows, np.float32)
        arrays[f"y_{state}"] = np.arange(rows, dtype=np.int8) % 2
    return arrays


def test_acs_income_has_one_site_per_state_and_named_groups(folder: Path) -> None:
    folder.mkdir()
    np.savez(folder / "acs_income.npz", **state_arrays())  # type: ignore[arg-type]
    data = sets.load("acs_income")
    assert len(data.site_names) == 18 and data.site_names[0] == "AK"
    groups = {column.name: column.categories for column in data.columns}
    assert groups["SEX"] == ("male", "female") and groups["RAC1P"] == ("white", "other")
    assert data.x[0].tolist() == [40, 0, 21, 1, 1021, 6, 17, 40, 1, 0]


def test_acs_income_with_an_unknown_code_is_refused(folder: Path) -> None:
    folder.mkdir()
    arrays = state_arrays()
    arrays["x_UT"][0, 8] = 3
    np.savez(folder / "acs_income.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="column SEX has unknown codes"):
        sets.load("acs_income")


def test_an_import_whose_contents_differ_is_refused(tmp_path: Path, folder: Path) -> None:
    np.savez(tmp_path / "states.npz", **state_arrays())  # type: ignore[arg-type]
    entry = sets.entry("acs_income")
    with pytest.raises(ValueError, match=r"contents of states.npz .* changed or another version"):
        sets.import_files(entry, [tmp_path / "states.npz"])
    assert not folder.exists()
    sets.import_files(replace(entry, content=None), [tmp_path / "states.npz"])
    assert len(sets.load("acs_income").y) == 72


@needs("acs_income_states")
def test_the_real_states_have_the_registered_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(os.environ["EQUIPOISE_DATA"]) / "acs_income_states.npz"
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    sets.import_files(sets.entry("acs_income"), [copy])
    assert len(sets.load("acs_income").y) == 45_000


def brca_files(folder: Path) -> list[Path]:
    """Write FLamby's two files in small: two patients per region, one of each part."""
    table = ["pid," + ",".join(f"f{number}" for number in range(39)) + ",E,T"]
    split = ["pid,fold,fold2"]
    for region in range(6):
        for part, event in (("train", "1.0"), ("test", "0.0")):
            patient = f"TCGA-{region}-{part}"
            table.append(f"{patient},{50 + region}" + ",0" * 38 + f",{event},{100 * region}.0")
            split.append(f"{patient},{part},{part}_{region}")
    (folder / "brca.csv").write_text("\n".join(table) + "\n")
    (folder / "train_test_split.csv").write_text("\n".join(split) + "\n")
    return [folder / "brca.csv", folder / "train_test_split.csv"]


def test_tcga_brca_has_times_regions_and_parts_but_no_patients(
    tmp_path: Path, folder: Path
) -> None:
    entry = sets.entry("tcga_brca")
    with pytest.raises(ValueError, match="changed or another version"):
        sets.import_files(entry, brca_files(tmp_path))
    copy = sets.import_files(replace(entry, content=None), brca_files(tmp_path))
    data = sets.load("tcga_brca")
    assert data.task.kind == "survival" and data.site_names[0] == "Northeast"
    assert data.y.tolist()[2:6] == [100, -100, 200, -200]
    assert np.signbit(data.y.numpy()[:2]).tolist() == [False, True]
    assert data.part is not None and data.part.tolist() == [TRAIN, TEST] * 6
    assert b"TCGA" not in copy.read_bytes()


def test_tcga_brca_with_a_patient_outside_of_the_split_is_refused(
    tmp_path: Path, folder: Path
) -> None:
    files = brca_files(tmp_path)
    lines = files[1].read_text().splitlines()
    files[1].write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(ValueError, match=r"1 patients of brca.csv are missing"):
        sets.import_files(sets.entry("tcga_brca"), files)


@needs("tcga_brca")
def test_the_real_tcga_brca_has_the_registered_contents_and_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(os.environ["EQUIPOISE_DATA"]) / "tcga_brca.npz"
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    sets.import_files(sets.entry("tcga_brca"), [copy])
    config = DataConfig(name="tcga_brca", test="site", split=(1.0, 0.0, 0.0))
    federation = federate(config, 1)
    assert federation.train.sizes.tolist() == [248, 156, 164, 129, 129, 40]
    assert federation.test.sizes.tolist() == [63, 40, 42, 33, 33, 11]

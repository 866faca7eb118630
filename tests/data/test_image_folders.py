"""Folders of images: which layout is check_data, what is tested on, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import equipoise as eq
from equipoise.data import DataConfig, Federation, federate, from_image_folder
from equipoise.data.arrays.image_folders import find_images
from equipoise.data.check import check_data
from tests.helpers.reports import remarks_on
from tests.helpers.terminal import QUICK, Terminal


def put(root: Path, folders: str, count: int = 6, level: int = 40) -> None:
    """Different images in a folder, about as bright as `level` says."""
    (root / folders).mkdir(parents=True)
    rng = np.random.default_rng(len(list(root.rglob("*"))))
    for place in range(count):
        pixels = rng.integers(level - 20, level + 20, (6, 6)).astype(np.uint8)
        Image.fromarray(pixels).save(root / folders / f"{place}.png")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "images"


def levels(federation: Federation, rows: np.ndarray) -> set[int]:
    """How bright images are, to the next of 40, 120 and 200."""
    means = federation.x[rows].mean((1, 2, 3)).numpy() * 255
    return {int(min((40, 120, 200), key=lambda level: abs(level - mean))) for mean in means}


def test_folders_of_classes_are_one_pool(root: Path) -> None:
    for name in ("cat", "dog"):
        put(root, name, 20)
    data = from_image_folder(root)
    assert data.site is None and data.task.class_names == ("cat", "dog") and len(data.x) == 40
    federation = federate(DataConfig(name=str(root), clients=4), 1)
    assert len(federation.ids) == 4 and not len(federation.shared_test)
    found = check_data(DataConfig(name=str(root), clients=4))
    (layout,) = found.files.values()
    assert "FOLDER/CLASS/*" in layout and "one pool" in layout and "4 clients" in layout
    assert not remarks_on(found)


@pytest.mark.parametrize(
    ("train", "val", "test"),
    [("train", "val", "test"), ("Training", "valid", "testing"), ("TRAIN", "Validation", "Test")],
)
def test_an_official_split_is_kept(train: str, val: str, test: str, root: Path) -> None:
    for part, level in ((train, 40), (val, 120), (test, 200)):
        for name in ("cat", "dog"):
            put(root, f"{part}/{name}", 10, level)
    federation = federate(DataConfig(name=str(root), clients=2), 1)
    assert len(federation.train.index) == 20 and len(federation.validation.index) == 20
    assert len(federation.shared_test) == 20 and not len(federation.test.index)
    assert levels(federation, federation.train.index) == {40}
    assert levels(federation, federation.validation.index) == {120}
    assert levels(federation, federation.shared_test) == {200}
    (layout,) = check_data(DataConfig(name=str(root))).files.values()
    assert "20 training, 20 validation, 20 test images" in layout


def test_without_validation_images_some_training_images_validate(root: Path) -> None:
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            put(root, f"{part}/{name}", 20)
    federation = federate(DataConfig(name=str(root), clients=2), 1)
    assert len(federation.train.index) == 36 and len(federation.validation.index) == 4
    assert len(federation.shared_test) == 40


@pytest.mark.parametrize("order", ["{site}/{part}/{name}", "{part}/{site}/{name}"])
def test_sites_with_an_official_split_are_tested_on_their_own_part(order: str, root: Path) -> None:
    for site in ("boston", "york"):
        for part, count in (("train", 8), ("val", 3), ("test", 4 if site == "york" else 5)):
            for name in ("cat", "dog"):
                put(root, order.format(site=site, part=part, name=name), count)
    data = from_image_folder(root)
    federation = federate(DataConfig(name=str(root)), 1)
    assert federation.ids == ("boston", "york") == data.site_names
    assert federation.train.sizes.tolist() == [16, 16]
    assert federation.validation.sizes.tolist() == [6, 6]
    assert federation.test.sizes.tolist() == [10, 8]
    assert [site.test for site in check_data(DataConfig(name=str(root))).sites] == [10, 8]
    assert data.site is not None and data.part is not None
    for client in range(2):
        rows = federation.source[federation.test[client]]
        assert set(data.site[rows]) == {client} and set(data.part[rows]) == {2}
    dealt = federate(DataConfig(name=str(root), partition="iid", clients=3), 1)
    assert len(dealt.shared_test) == 18, "clients that are no sites share one test set"


def test_all_images_are_dealt_only_if_asked_for(root: Path) -> None:
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            put(root, f"{part}/{name}", 10)
    config = DataConfig(name=str(root), pool="all", clients=2)
    federation = federate(config, 1)
    assert not len(federation.shared_test) and len(federation.test.index) == 8
    (layout,) = check_data(config).files.values()
    assert "ignored (data.pool=all)" in layout


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (["train/cat", "val/cat"], "got training and validation images only; add test"),
        (["test/cat"], "add train"),
        (["train/cat", "test/cat", "boston/cat"], "train looks like a part .* boston"),
        (["train", "test"], "no folders of classes"),
        (["boston/train", "boston/test"], "may be a site or a class"),
        (["boston/cat", "cat"], "different depths, 6 as cat/0.png and 6 as boston/cat/0.png"),
        (["a/b/c"], "three folders deep"),
        (["a/b/c/d"], "no images found"),
        (["a/train/c", "a/test/c", "b/test/c"], "site 'b' has no training images"),
        (["boston/ cat"], "the label ' cat': .*rename it"),
        ([""], "6 lie in .* itself"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(
    folders: list[str], said: str, root: Path
) -> None:
    for one in folders:
        put(root, one)
    with pytest.raises(ValueError, match=said):
        find_images(root)
    with pytest.raises(ValueError, match=said):
        check_data(DataConfig(name=str(root)))


def test_a_table_beside_folders_of_images_is_refused(root: Path) -> None:
    put(root, "cat")
    put(root, "dog")
    (root / "labels.csv").write_text("file,label\n0.png,cat\n")
    for read in (check_data, lambda config: federate(config, 1)):
        with pytest.raises(ValueError, match=r"labels\.csv and folders of images; move"):
            read(DataConfig(name=str(root)))


def test_files_that_are_not_read_are_counted(root: Path) -> None:
    for site in ("boston", "york"):
        put(root, f"{site}/cat")
        put(root, f"{site}/dog")
        for name in ("notes.txt", "scan.nii", "IM0001", ".DS_Store", "._0.png", "Thumbs.db"):
            (root / site / "cat" / name).write_text("no image")
    shutil.copy(root / "york" / "cat" / "0.png", root / "example.png")
    told = " ".join(remarks_on(check_data(DataConfig(name=str(root)))))
    assert "6 files of" in told and ".txt (2)" in told and "no ending (2)" in told
    assert "1 image outside the layout is not read, such as example.png" in told
    assert len(from_image_folder(root).x) == 24


def test_links_are_followed_but_not_in_circles(root: Path) -> None:
    put(root.parent / "elsewhere", "cat")
    put(root, "boston/cat")
    (root / "york").symlink_to(root.parent / "elsewhere")
    for place in range(30):
        (root / f"loop{place}").symlink_to(root)
    assert from_image_folder(root).site_names == ("boston", "york")


def test_test_images_that_are_trained_on_and_classes_that_are_not_are_told(root: Path) -> None:
    put(root, "train/cat")
    put(root, "test/cat")
    put(root, "test/dog")
    shutil.copy(root / "train" / "cat" / "3.png", root / "test" / "cat" / "copy.png")
    told = " ".join(remarks_on(check_data(DataConfig(name=str(root)))))
    assert (
        "1 test image equals a training image, such as test/cat/copy.png and train/cat/3.png"
        in told
    )
    assert "no training image has the class 'dog'" in told


def test_folders_that_are_probably_no_sites_are_told(root: Path) -> None:
    for one in ("ill/patient1", "ill/patient2", "well/patient3"):
        put(root, one)
    told = " ".join(remarks_on(check_data(DataConfig(name=str(root)))))
    assert "no class is found at two sites" in told and "FOLDER/CLASS/*" in told


def test_a_run_says_what_it_understood_and_tests_on_the_official_part(
    root: Path, equipoise: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            put(root, f"{part}/{name}", 20)
    ran = equipoise("run", "--data", "images", *QUICK, "--out", "x", "--set", "data.clients=2")
    assert ran.code == 0, ran.err
    said = " ".join(ran.err.split())
    assert said.index("FOLDER/{train,test}/CLASS/*") < said.index("round 1")
    assert eq.Run("x").main_split == "shared"
    lines = equipoise("predict", "x", "images").out.splitlines()
    assert len(lines) == 81 and lines[1].startswith("test/cat/0.png")
    eq.run(eq.Experiment(data={"name": "images", "clients": 2}, rounds=1, workers=0))
    assert "FOLDER/{train,test}/CLASS/*" in capsys.readouterr().err

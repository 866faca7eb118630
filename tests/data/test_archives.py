"""Archives of images in folders, on small files of the official formats; and data sets of a user's
own by package:function.
"""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import equipoise as eq
from equipoise.data import DataConfig, federate, load, sets
from equipoise.data.dataset import TEST, TRAIN, VALIDATION
from equipoise.data.sets import archives
from equipoise.data.sets.common import CIFAR10
from equipoise.data.sets.registered import RegisteredSet
from equipoise.experiment import ConfigurationError, experiment
from equipoise.validation.imports import NotAllowed

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.usefixtures("folder")


def picture(pixels: np.ndarray, kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def tar(file: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(file, "w:gz") as opened:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            opened.addfile(info, io.BytesIO(content))
    return file


def zipped(file: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w") as opened:
        for name, content in members.items():
            opened.writestr(name, content)
    return file


def test_cinic10(tmp_path: Path, unchecked: Callable[[str], RegisteredSet]) -> None:
    pixels = RNG.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
    members, k = {"CINIC-10/README.md": b"about"}, 0
    for part in ("train", "valid", "test"):
        for kind in reversed(CIFAR10):  # the order of the archive does not matter
            for n in range(2):
                members[f"CINIC-10/{part}/{kind}/cifar10-{part}-{n}.png"] = picture(
                    pixels[k], "PNG"
                )
                k += 1
    sets.import_files(unchecked("cinic10"), [tar(tmp_path / "CINIC-10.tar.gz", members)])
    data = sets.load("cinic10")
    assert data.part is not None and [
        int((data.part == mark).sum()) for mark in (TRAIN, VALIDATION, TEST)
    ] == [20, 20, 20]
    assert data.y[data.part == TRAIN].tolist() == sorted(list(range(10)) * 2)
    # airplane is last in the archive
    assert np.array_equal(data.x[0].permute(1, 2, 0).numpy(), pixels[18])
    assert len(federate(DataConfig(name="cinic10", clients=2), seed=0).ids) == 2


def test_pacs(tmp_path: Path, unchecked: Callable[[str], RegisteredSet]) -> None:
    members = {
        f"PACS/{domain}/{kind}/pic_{n:03}.jpg": picture(
            np.full((227, 227, 3), 10 * d + k, np.uint8), "JPEG"
        )
        for d, domain in enumerate(archives.PACS_DOMAINS)
        for k, kind in enumerate(archives.PACS_CLASSES)
        for n in range(6)
    }
    sets.import_files(unchecked("pacs"), [zipped(tmp_path / "PACS.zip", members)])
    data = sets.load("pacs")
    assert (
        data.task.shape == (3, 64, 64)
        and data.site_names == archives.PACS_DOMAINS
        and data.part is not None
        and data.site is not None
    )
    for d in range(4):
        mine = data.site == d
        # a fifth of six, rounded up, of each of seven classes
        assert int((data.part[mine] == TEST).sum()) == 14
        assert data.y[mine].tolist() == [k for k in range(7) for _ in range(6)]
    assert np.bincount(data.y[data.part == TEST]).tolist() == [8] * 7


@pytest.mark.parametrize(
    ("sizes", "tests"), [((100, 101, 104), 20 + 21 + 21), ((5, 1, 9), 1 + 1 + 2)]
)
def test_the_test_part_of_pacs_is_a_fifth_of_each_class_rounded_up(
    sizes: tuple[int, ...], tests: int, tmp_path: Path
) -> None:
    y = np.repeat(np.arange(3), sizes).astype(np.uint8)
    arrays = {}
    for domain in archives.PACS_DOMAINS:
        arrays |= {
            f"x_{domain}": RNG.integers(0, 256, (len(y), 3, 64, 64), dtype=np.uint8),
            f"y_{domain}": y,
        }
    entry = sets.entry("pacs")
    part = entry.read(entry, arrays).part
    assert part is not None and int((part == TEST).sum()) == 4 * tests


def diabetic(lacking: str = "") -> dict[str, bytes]:
    labels = io.BytesIO()
    np.save(labels, np.array([0, 3, 4, 1, 2, 0], np.int64))
    members = {
        f"dr_regular/images/{n:06d}.tiff": picture(np.full((224, 224, 3), n, np.uint8), "TIFF")
        for n in range(6)
    }
    members |= {
        "dr_regular/splits/train.txt": b"images/000000.tiff\nimages/000002.tiff\nimages/000005.tiff\n",
        "dr_regular/splits/val.txt": b"images/000003.tiff\n",
        "dr_regular/splits/test.txt": b"images/000001.tiff\nimages/000004.tiff\n",
        "dr_regular/task_labels/DR level.npy": labels.getvalue(),
        "dr_regular/info.yaml": b"id: dr_regular\n",
    }
    return {
        name: content for name, content in members.items() if not lacking or lacking not in name
    }


def test_diabetic_retinopathy_with_grades_as_classes_or_numbers(tmp_path: Path) -> None:
    sets.import_files(
        sets.entry("diabetic_retinopathy"), [zipped(tmp_path / "dr_regular.zip", diabetic())]
    )
    data = sets.load("diabetic_retinopathy")
    assert data.y.tolist() == [0, 4, 0, 1, 3, 2] and data.x[:, 0, 0, 0].tolist() == [
        0,
        2,
        5,
        3,
        1,
        4,
    ]
    assert data.part is not None and data.part.tolist() == [TRAIN] * 3 + [VALIDATION] + [TEST] * 2
    assert load(DataConfig(name="diabetic_retinopathy")).as_task("regression").y.tolist() == [
        0.0,
        4.0,
        0.0,
        1.0,
        3.0,
        2.0,
    ]


@pytest.mark.parametrize(
    ("lacking", "sentence"),
    [
        ("DR level", "task_labels/DR level.npy; some are missing"),
        ("val.txt", "some are missing"),
        ("000004", "names the image 000004, which has no pixels"),
    ],
)
def test_a_medimeta_archive_that_lacks_something(
    lacking: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        sets.import_files(
            sets.entry("diabetic_retinopathy"),
            [zipped(tmp_path / "dr_regular.zip", diabetic(lacking))],
        )
    assert sets.prepared_copy(sets.entry("diabetic_retinopathy")) is None


def test_labels_that_carry_code_are_refused(tmp_path: Path) -> None:
    labels = io.BytesIO()
    np.save(labels, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    members = diabetic() | {"dr_regular/task_labels/DR level.npy": labels.getvalue()}
    with pytest.raises(ValueError, match="cannot be taken as data set diabetic_retinopathy"):
        sets.import_files(
            sets.entry("diabetic_retinopathy"), [zipped(tmp_path / "dr_regular.zip", members)]
        )


def test_members_that_are_too_large_and_files_that_are_no_archives_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MOST_BYTES", 1000)
    for file in (
        zipped(tmp_path / "PACS.zip", {"PACS/photo/dog/a.jpg": b"0" * 2000}),
        tar(tmp_path / "PACS.tar", {"PACS/photo/dog/a.jpg": b"0" * 2000}),
    ):
        with pytest.raises(ValueError, match="which is no part of the data set"):
            archives.pacs({"PACS.zip": file})
    (tmp_path / "PACS.zip").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="cannot be taken as data set pacs"):
        sets.import_files(sets.entry("pacs"), [tmp_path / "PACS.zip"])


@pytest.mark.parametrize("name", ["tissuemnist", "octmnist", "organamnist"])
def test_medmnist_sets(name: str, folder: Path) -> None:
    folder.mkdir()
    classes = len(sets.entry(name).class_names)
    arrays = {}
    for part, n in (("train", 8), ("val", 4), ("test", 4)):
        arrays[f"{part}_images"] = RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.arange(n)[:, None] % classes
    np.savez(folder / f"{name}.npz", **arrays)
    assert len(sets.load(name).x) == 16


def test_chestmnist_is_any_finding_or_none(folder: Path) -> None:
    folder.mkdir()
    labels = np.zeros((3, 14), np.uint8)
    labels[1, 4] = labels[2, 0] = labels[2, 13] = 1
    np.savez(
        folder / "chestmnist.npz",
        **{
            f"{p}_images": RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8)
            for p in ("train", "val", "test")
        },
        **{f"{p}_labels": labels for p in ("train", "val", "test")},
    )
    assert sets.load("chestmnist").y.tolist() == [0, 1, 1] * 3


MINE = """
import numpy as np
from os import getcwd
from equipoise.data import from_sites

def hospitals():
    draw = np.random.default_rng(0)
    return from_sites({name: (draw.normal(size=(30, 4)), draw.integers(0, 2, 30)) for name in ("north", "south")}, name="mine")

def needing(seed):
    return hospitals()

def nothing():
    return 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_sets.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("my_sets", None)
    return "my_sets:hospitals"


def test_a_data_set_by_package_and_function(mine: str, tmp_path: Path) -> None:
    config = {
        "data": {"name": mine},
        "model": {"name": "mlp", "hidden": [3]},
        "rounds": 1,
        "workers": 0,
    }
    run = eq.run(config, tmp_path / "run")
    assert list(run.clients) == ["north", "south"] and run.store.meta("data") == "mine"
    run.store.close()
    assert federate(DataConfig(name=mine), 0).ids == ("north", "south")


def test_what_a_file_names_needs_permission(mine: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        f"data: {{name: '{mine}'}}\nmodel: {{name: mlp, hidden: [3]}}\nrounds: 1\nworkers: 0\n"
    )
    with pytest.raises(ConfigurationError, match="add --allow-import my_sets"):
        eq.run(tmp_path / "x.yaml", tmp_path / "run")
    assert "my_sets" not in sys.modules  # nothing was imported to find that out
    eq.run(tmp_path / "x.yaml", tmp_path / "run", allow_imports=["my_sets"]).store.close()
    (tmp_path / "y.yaml").write_text("data: {name: 'my_sets:getcwd'}\n")
    with pytest.raises((ConfigurationError, NotAllowed), match="which was not allowed"):
        eq.run(tmp_path / "y.yaml", tmp_path / "other", allow_imports=["my_sets"])


def test_a_function_that_makes_no_data_set_is_refused(mine: str) -> None:
    with pytest.raises(ValueError, match="expected it to return a Dataset"):
        load(DataConfig(name="my_sets:nothing"))
    with pytest.raises(
        ValueError,
        match=(
            "'my_sets:needing': expected a function that is called without arguments, got one with "
            "a missing.*'seed'"
        ),
    ):
        load(DataConfig(name="my_sets:needing"))
    with pytest.raises(ValueError, match="did you mean|known|hospitals"):
        load(DataConfig(name="my_sets:hospital"))
    with pytest.raises(ConfigurationError, match="unknown data set"):
        experiment({"data": {"name": "not a module:x"}})

"""The data folder and what is read from it: where it is, what a copy has to hold, which part and
site every sample is of.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data import DataConfig, Dataset, from_arrays, sets
from equipoise.data.dataset import TEST, TRAIN, VALIDATION
from equipoise.data.sets import common, digits, domains, store, synthetic
from equipoise.data.sets.registered import Arrays, RegisteredSet, Remote, images
from equipoise.task import Task

NONE = b"of a file that is not official"


def tiny(**more: Any) -> RegisteredSet:
    fields = {
        "name": "tiny",
        "title": "made here",
        "shape": (1, 2, 2),
        "class_names": ("a", "b"),
        "counts": "",
        "licence": "mine",
        "cited": "import-only: here",
    }
    return RegisteredSet(**{**fields, "read": images, **more})


def pixels(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.uint8)[:, None, None] + np.zeros(
        (1, 2, 2), np.uint8
    )


def parts(validation: bool = False) -> Arrays:
    arrays = {
        "x_train": pixels(3),
        "y_train": np.array([0, 1, 1]),
        "x_test": pixels(2, 10),
        "y_test": np.array([[1], [0]]),
    }
    return arrays | (
        {"x_validation": pixels(1, 20), "y_validation": np.array([1])} if validation else {}
    )


def test_official_parts_are_marked() -> None:
    found = images(tiny(), parts())
    assert (
        found.x[:, 0, 0, 0].tolist() == [0, 1, 2, 10, 11]
        and found.y.tolist() == [0, 1, 1, 1, 0]
        and found.y.dtype == torch.int64
    )
    assert found.part is not None and found.part.tolist() == [TRAIN] * 3 + [TEST] * 2
    assert (found.name, found.licence, found.source) == ("tiny", "mine", "import-only: here")
    assert found.task == Task("classification", (1, 2, 2), 2, ("a", "b"))
    more = images(tiny(), parts(validation=True))
    assert (
        more.part is not None
        and more.part.tolist() == [TRAIN] * 3 + [VALIDATION] + [TEST] * 2
        and more.x[3, 0, 0, 0] == 20
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"x_test": None},
            "data set tiny: the file has no array x_test; it has x_train, y_train, y_test",
        ),
        ({"y_train": None}, "the file has no array y_train; it has x_train, x_test, y_test"),
        (
            {"x_train": pixels(3).astype(float)},
            r"expected uint8 images of shape \(1, 2, 2\), got float64 of shape \(1, 2, 2\)",
        ),
        (
            {"x_train": np.zeros((3, 2, 3), np.uint8), "x_test": np.zeros((2, 2, 3), np.uint8)},
            r"got uint8 of shape \(1, 2, 3\)",
        ),
        (dict.fromkeys(parts()), "it has none"),
    ],
)
def test_what_a_copy_lacks_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        images(
            tiny(),
            {name: values for name, values in (parts() | change).items() if values is not None},
        )


def test_where_the_data_folder_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EQUIPOISE_DATA", "~/mine")
    assert store.data_folder() == tmp_path / "mine"
    monkeypatch.delenv("EQUIPOISE_DATA")
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    places = {"linux": ".cache", "darwin": "Library/Caches", "win32": "AppData/Local"}
    for platform, place in places.items():
        monkeypatch.setattr(store.sys, "platform", platform)
        assert store.data_folder() == tmp_path / place / "equipoise"
    for platform, name in (("linux", "XDG_CACHE_HOME"), ("win32", "LOCALAPPDATA")):
        monkeypatch.setattr(store.sys, "platform", platform)
        monkeypatch.setenv(name, str(tmp_path / name))
        assert store.data_folder() == tmp_path / name / "equipoise"


def saved(folder: Path, name: str, arrays: Arrays) -> Path:
    folder.mkdir(exist_ok=True)
    np.savez(folder / name, **arrays)  # type: ignore[arg-type]
    return folder / name


def test_a_copy_may_lie_under_another_name(folder: Path) -> None:
    entry = tiny(packed="tiny_64")
    assert store.prepared_copy(entry) is None
    packed = saved(folder, "tiny_64.npz", parts())
    assert store.prepared_copy(entry) == packed and store.prepared_copy(tiny()) is None
    own = saved(folder, "tiny.npz", parts())
    assert store.prepared_copy(entry) == own and sorted(store.arrays_of(entry)) == sorted(parts())


def test_a_copy_of_something_else_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = saved(folder, "tiny.npz", {"x_train": pixels(3)})
    monkeypatch.setitem(sets.ENTRIES, "tiny", tiny())
    with pytest.raises(ValueError) as refused:
        sets.load("tiny")
    assert (
        str(refused.value)
        == f"{file} cannot be taken as data set tiny: data set tiny: the file has no array x_test; it has x_train"
    )
    assert set(sets.names()) == {*sets.BUILT_IN, *sets.ENTRIES, *sets.JOINED}


def joined(files: dict[str, Path]) -> Arrays:
    """Two files, each with one half of the arrays."""
    assert list(files) == ["a.bin", "b.bin"]
    return {name: values for file in files.values() for name, values in np.load(file).items()}


def test_files_got_by_hand(folder: Path, tmp_path: Path) -> None:
    halves = [{k: v for k, v in parts().items() if part in k} for part in ("train", "test")]
    a, b = (
        saved(tmp_path / "given", f"{name}.bin.npz", half).rename(tmp_path / f"{name}.bin")
        for name, half in zip("ab", halves, strict=True)
    )
    entry = tiny(files=("a.bin", "b.bin"), prepare=joined)
    assert store.import_files(entry, [b, a]) == folder / "tiny.npz" and [
        file.name for file in folder.iterdir()
    ] == ["tiny.npz"]
    with pytest.raises(
        ValueError,
        match=(
            r"a\.bin cannot be taken as data set tiny: also needed: b\.bin; give all of a\.bin, "
            r"b\.bin together"
        ),
    ):
        store.import_files(entry, [a])
    whole = saved(tmp_path / "given", "whole.npz", parts())
    assert store.import_files(entry, [whole]).exists()
    with pytest.raises(
        FileNotFoundError, match=f"no such file: {tmp_path / 'x'}, {tmp_path / 'y'}"
    ):
        store.import_files(entry, [tmp_path / "x", a, tmp_path / "y"])
    with pytest.raises(ValueError, match="or one prepared NPZ file"):
        store.import_files(tiny(), [whole, a])
    assert store.import_files(tiny(), [whole.rename(tmp_path / "whole.dat")]).exists(), (
        "whatever its name, if the set has no other format"
    )


def test_one_official_file_may_have_any_name_and_known_ones_are_checked(
    folder: Path, tmp_path: Path
) -> None:
    seen: list[list[str]] = []

    def prepared(files: dict[str, Path]) -> Arrays:
        seen.append(list(files))
        return parts()

    (tmp_path / "renamed.bin").write_bytes(NONE)
    (tmp_path / "other.bin").write_bytes(NONE)
    entry = tiny(
        files=("official.bin",), prepare=prepared, also=(Remote("other.bin", "0" * 32, ()),)
    )
    store.import_files(entry, [tmp_path / "renamed.bin"])
    assert seen == [["official.bin"]] and entry.official == ("official.bin",)
    with pytest.raises(
        ValueError,
        match=(
            r"the checksum of .*other\.bin is [0-9a-f]{32}, the official file has 0{32}: truncated "
            r"or another"
        ),
    ):
        store.import_files(entry, [tmp_path / "other.bin"])
    fetched = replace(entry, also=(), remotes=(Remote("renamed.bin", "1" * 32, ("http://x",)),))
    assert fetched.official == ("renamed.bin",)
    with pytest.raises(ValueError, match="the official file has 1{32}"):
        store.import_files(fetched, [tmp_path / "renamed.bin"])


def test_a_copy_is_whole_or_absent(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    whole = saved(tmp_path / "given", "whole.npz", parts())
    monkeypatch.setattr(store.np, "savez", full)
    with pytest.raises(OSError, match="no space left"):
        store.import_files(tiny(), [whole])
    assert list(folder.iterdir()) == []
    monkeypatch.setenv("EQUIPOISE_DATA", str(whole / "inside"))
    with pytest.raises(
        OSError,
        match=(
            r"cannot make the data folder .*whole\.npz/inside .*; set EQUIPOISE_DATA to a folder "
            r"you may write to"
        ),
    ):
        store.import_files(tiny(), [whole])


def test_an_absent_set_names_its_folder(folder: Path) -> None:
    with pytest.raises(FileNotFoundError) as refused:
        store.arrays_of(tiny())
    assert (
        f"data set tiny is not in the data folder {folder}. Online: it cannot be fetched "
        "automatically." in str(refused.value)
    )
    with pytest.raises(
        FileNotFoundError,
        match=(
            r"Online: equipoise data fetch tiny\. Offline: get .* \(import-only: here\), or point"
        ),
    ):
        store.arrays_of(tiny(remotes=(Remote("f", "0" * 32, ("http://x",)),)))
    with pytest.raises(
        ValueError,
        match=(
            r"data set tiny is import-only: equipoise data import tiny FILE \(import-only: here\)"
        ),
    ):
        store.fetch(tiny())


def read(name: str, arrays: Arrays) -> Dataset:
    entry = sets.entry(name)
    return entry.read(entry, arrays)


def test_domains_of_office_and_pacs_with_sizes_of_their_own() -> None:
    sizes = (11, 3, 9, 21)
    office: Arrays = {}
    for domain, size in zip(domains.OFFICE, sizes, strict=True):
        office |= {
            f"x_{domain}": np.full((size, 64, 64, 3), size, np.uint8),
            f"y_{domain}": np.arange(size) % 10,
        }
    found = read("office_caltech10", office)
    assert (
        found.site is not None
        and np.bincount(found.site).tolist() == list(sizes)
        and found.site_names == domains.OFFICE
    )
    assert found.part is not None and np.flatnonzero(found.part == TEST).tolist() == [
        8,
        9,
        22,
        31,
        32,
        41,
        42,
    ]
    assert found.x[:, 0, 0, 0].tolist() == np.repeat(sizes, sizes).tolist() and set(found.part) == {
        TRAIN,
        TEST,
    }
    pacs: Arrays = {}
    for place, domain in enumerate(("art_painting", "cartoon", "photo", "sketch")):
        labels = np.array([0, 2, 0, 0, 5, 0, 0][: 7 - place])
        pacs |= {f"x_{domain}": np.zeros((len(labels), 3, 64, 64), np.uint8), f"y_{domain}": labels}
    found = read("pacs", pacs)
    assert found.part is not None and np.flatnonzero(found.part == TEST).tolist() == [
        1,
        4,
        6,
        8,
        11,
        12,
        14,
        16,
        17,
        19,
        21,
    ]
    assert (
        found.site is not None
        and np.bincount(found.site).tolist() == [7, 6, 5, 4]
        and found.site_names[3] == "sketch"
    )


def test_sets_that_are_joined() -> None:
    grey = replace(images(tiny(), parts()), licence="first")
    colour = from_arrays(
        np.full((2, 4, 4, 3), 9, np.uint8), [0, 1], name="mine", class_names=("a", "b")
    )
    both = domains.join("both", [grey, colour], 4)
    assert (
        both.name == "both"
        and both.x.shape == (7, 3, 4, 4)
        and both.y.tolist() == [0, 1, 1, 1, 0, 0, 1]
        and both.site_names == ("tiny", "mine")
    )
    assert (
        both.part is not None
        and both.part.tolist() == [0, 0, 0, 2, 2, 0, 0]
        and both.site is not None
        and both.site.tolist() == [0] * 5 + [1] * 2
    )
    assert (
        both.x[4].unique().tolist() == [11]
        and both.x[5].unique().tolist() == [9]
        and both.task.outputs == 2
    )
    assert both.licence == "tiny: first; mine: unknown" and both.source.startswith(
        "tiny: import-only: here; mine: "
    )
    assert domains.join("both", [grey]).task.shape == (3, 32, 32)
    rows = from_arrays(np.zeros((2, 4)), [0, 1], name="rows", class_names=("a", "b"))
    other = from_arrays(np.zeros((2, 4, 4), np.uint8), [0, 1], name="other", class_names=("b", "a"))
    with pytest.raises(
        ValueError,
        match="only image sets with the same classes can be joined: rows, other differs from tiny",
    ):
        domains.join("both", [grey, rows, colour, other])


HEART = "63,1,1,145,233,1,2,150,0,2.3,3,0,6,0\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEART.replace("63,1,1", "63,1,5"), "column cp has values outside 1, 2, 3, 4"),
        (HEART.replace("0,6,0", "0,5,0"), "column thal has values outside 3, 6, 7"),
        (HEART + "1,2\n", "processed.cleveland.data: expected 14 values on every line"),
        (HEART.replace("\n", ",1\n"), "expected 14 values on every line"),
    ],
)
def test_findings_that_cannot_be(text: str, said: str, folder: Path, tmp_path: Path) -> None:
    entry = sets.entry("uci_heart_disease")
    for name in entry.official:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=said):
        sets.import_files(entry, [tmp_path / name for name in entry.official])


def test_hospitals_of_different_sizes() -> None:
    row = [63, 1, 1, 0, 0, 1, 2, 150, 0, 2.3, 3, 0, 7]
    arrays = {
        f"x_{site}": np.tile(np.array(row, np.float32), (n, 1))
        for n, site in enumerate(("cleveland", "hungary", "switzerland", "va"), 1)
    }
    arrays |= {
        f"y_{site}": np.array([0, 1, 4, 2][:n])
        for n, site in enumerate(("cleveland", "hungary", "switzerland", "va"), 1)
    }
    found = read("uci_heart_disease", arrays)
    assert (
        found.site is not None
        and found.site.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
        and found.y.tolist() == [0, 0, 1, 0, 1, 1, 0, 1, 1, 1]
    )
    assert np.array_equal(
        found.x[9].numpy(),
        np.array([63, 1, 0, np.nan, np.nan, 1, 2, 150, 0, 2.3, 2, 0, 2], np.float32),
        equal_nan=True,
    )
    assert found.task.outputs == 2 and [
        column.name for column in found.columns if column.categories
    ] == ["cp", "restecg", "slope", "thal"]
    assert arrays["x_va"][0, 3] == 0, "the arrays stay as they were"
    arrays |= {name: values[:, :12] for name, values in arrays.items() if name[0] == "x"}
    with pytest.raises(ValueError, match=r"expected 13 columns, got samples of shape \(12,\)"):
        read("uci_heart_disease", arrays)


def test_names_of_the_hundred_classes() -> None:
    x = np.zeros((1, 3, 32, 32), np.uint8)
    arrays = {"x_train": x, "y_train": np.array([99]), "x_test": x, "y_test": np.array([0])}
    assert read("cifar100", arrays).task.class_names == tuple(map(str, range(100)))
    named = read("cifar100", arrays | {"class_names": np.array([f"kind {k}" for k in range(100)])})
    assert named.task.class_names[99] == "kind 99" and named.task.outputs == 100
    assert read("cifar10", arrays | {"y_train": np.array([9])}).task.class_names == common.CIFAR10


def test_built_in_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    found = digits.load()
    assert (
        found.x.shape == (1797, 1, 8, 8)
        and (float(found.x.min()), float(found.x.max())) == (0.0, 1.0)
        and found.task.outputs == 10
    )
    assert found.task.class_names == tuple("0123456789") and found.licence == "CC BY 4.0"
    made = synthetic.load(synthetic.Synthetic(samples=4000, features=100, classes=20))
    centres = torch.stack([made.x[made.y == k].mean(0) for k in range(20)])
    noise = 2 * 100 * 20 / 4000  # of means of two hundred samples each
    apart = np.mean(
        [float(((centres[a] - centres[b]) ** 2).sum()) - noise for a in range(20) for b in range(a)]
    )
    assert apart == pytest.approx(3.0**2, rel=0.1), "three deviations on average"
    assert made.task == Task("classification", (100,), 20) and made.licence == "none needed"
    called: list[str] = []
    monkeypatch.setitem(sets.BUILT_IN, "digits", lambda: called.append("digits") or found)
    assert sets.load("digits") is found and called == ["digits"] and DataConfig().name == "digits"

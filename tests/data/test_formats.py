"""Official formats to the last byte: what stands where in a file, what is passed over, and the
sizes beyond which nothing is read.
"""

from __future__ import annotations

import bz2
import gzip
import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from equipoise.data.sets import archives, files
from equipoise.data.sets.safe_unpickler import plain


def gz(file: Path, raw: bytes) -> Path:
    file.write_bytes(gzip.compress(raw))
    return file


def tar(file: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(file, "w") as opened:
        folder = tarfile.TarInfo("folder.png")
        folder.type = tarfile.DIRTYPE
        opened.addfile(folder)
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            opened.addfile(info, io.BytesIO(content))
    return file


def zipped(file: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr("folder/", b"")
        for name, content in members.items():
            opened.writestr(name, content)
    return file


def test_idx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3]) + bytes(range(6))
    assert files.idx(gz(tmp_path / "a", raw)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert files.idx(gz(tmp_path / "a", bytes([0, 0, 8, 1, 0, 0, 1, 4]) + bytes(260))).shape == (
        260,
    )
    for wrong in (b"\0\0\x08", b"\0\0\x09" + raw[3:], b"\0\x01\x08" + raw[3:]):
        with pytest.raises(ValueError, match="a is not an IDX file of bytes"):
            files.idx(gz(tmp_path / "a", wrong))
    assert files.MOST_BYTES == 268_435_456
    monkeypatch.setattr(files, "MOST_BYTES", len(raw))
    assert files.idx(gz(tmp_path / "a", raw)).shape == (2, 3)
    with pytest.raises(ValueError, match="a swells to more than 18 bytes"):
        files.idx(gz(tmp_path / "a", raw + b"x"))


def test_usps(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(bz2.compress(b"3 1:-1 2:1 256:0.5\n\n10 3:-0.5\n"))
    (tmp_path / "t").write_bytes(bz2.compress(b"1 16:1\n"))
    found = files.usps({"usps.bz2": tmp_path / "r", "usps.t.bz2": tmp_path / "t"})
    assert found["y_train"].tolist() == [2, 9] and found["y_test"].tolist() == [0]
    first, second = found["x_train"].reshape(2, 256)
    assert first[[0, 1, 2, 255]].tolist() == [0, 255, 127, 191] and second[[0, 2]].tolist() == [
        127,
        63,
    ]  # a pixel that is not listed is 0
    assert found["x_test"].shape == (1, 16, 16) and found["x_test"][0, 0, 15] == 255


def test_svhn_parts_come_in_the_order_of_their_files(tmp_path: Path) -> None:
    for part, labels in (("train", [10, 3]), ("test", [9])):
        x = np.arange(4 * 5 * 3 * len(labels), dtype=np.uint8).reshape(4, 5, 3, len(labels))
        savemat(tmp_path / f"{part}.mat", {"X": x, "y": np.array(labels, np.uint8)[:, None]})
    found = files.svhn({"a": tmp_path / "train.mat", "b": tmp_path / "test.mat"})
    assert found["y_train"].tolist() == [0, 3] and found["y_test"].tolist() == [9]
    assert (
        found["x_train"].shape == (2, 4, 5, 3)
        and found["x_train"][1, 3, 2, 1] == ((3 * 5 + 2) * 3 + 1) * 2 + 1
    )


def batch(first: int, count: int, **more: Any) -> dict[str, Any]:
    return {
        "data": np.full((count, 3072), first, np.uint8) + np.arange(count, dtype=np.uint8)[:, None],
        **more,
    }


def test_cifar100_of_python(tmp_path: Path) -> None:
    members = {
        "c/train": batch(10, 2, fine_labels=[7, 99], coarse_labels=[1, 2]),
        "c/test": batch(20, 1, fine_labels=[3], coarse_labels=[0]),
        "c/meta": {"fine_label_names": ["apple", "bear"], "coarse_label_names": ["x"]},
    }
    found = files.cifar(
        {
            "f": tar(
                tmp_path / "f",
                {name: pickle.dumps(value, protocol=2) for name, value in members.items()},
            )
        }
    )
    assert (
        found["y_train"].tolist() == [7, 99]
        and found["y_test"].tolist() == [3]
        and found["class_names"].tolist() == ["apple", "bear"]
    )
    assert (
        found["x_train"].shape == (2, 3, 32, 32)
        and found["x_train"][:, 2, 31, 31].tolist() == [10, 11]
        and found["x_test"].max() == 20
    )


def test_cifar100_in_binary(tmp_path: Path) -> None:
    def record(label: int) -> bytes:
        return bytes([50, label]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes([3]) * 1024

    members = {
        "train.bin": record(7) + record(8),
        "test.bin": record(9),
        "fine_label_names.txt": b"apple\nbear\n",
    }
    found = files.cifar({"f": tar(tmp_path / "f", members)})
    assert (
        found["y_train"].tolist() == [7, 8]
        and found["y_test"].tolist() == [9]
        and found["class_names"].tolist() == ["apple", "bear"]
    )
    assert found["x_test"][0, :, 0, 0].tolist() == [1, 2, 3]


def test_cifar_archives_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="expected a mapping in a CIFAR batch, got list"):
        files.cifar({"f": tar(tmp_path / "f", {"train": pickle.dumps([1], protocol=2)})})
    file = tar(tmp_path / "f", {"c/x": b"12345"})
    for most, error in ((5, KeyError), (4, ValueError)):
        monkeypatch.setattr(files, "MOST_BYTES", most)
        with pytest.raises(
            error, match="c/x' of 5 bytes, which is no part" if most == 4 else "train"
        ):
            files.cifar({"f": file})


def test_packed_sheets_lie_one_after_another() -> None:
    def sheet(colour: int) -> np.ndarray:
        held = io.BytesIO()
        Image.new("L", (3200, 1600), colour).save(held, "PNG", compress_level=1)
        return np.frombuffer(held.getvalue(), np.uint8)

    sheets = {colour: sheet(colour) for colour in (1, 2, 30)}
    arrays = {
        "webp_train": np.concatenate([sheets[1], sheets[30]]),
        "len_train": np.array([len(sheets[1]), len(sheets[30])]),
        "y_train": np.arange(3),
        "webp_test": sheets[2],
        "len_test": np.array([len(sheets[2])]),
        "y_test": np.arange(4),
    }
    found = files.cifar_sheets(arrays)
    assert found["x_train"].shape == (10_000, 3, 32, 32) and found["x_train"][
        [0, 4999, 5000, 9999], 2, 5, 5
    ].tolist() == [1, 1, 30, 30]
    assert (
        found["x_test"].shape[0] == 5000
        and found["x_test"][0, 0, 0, 0] == 2
        and len(found["y_train"]) == 3
        and len(found["y_test"]) == 4
    )


PLAIN: list[Any] = [
    {
        "a": [1, 2],
        "b": "text",
        "c": None,
        "d": True,
        "e": False,
        "f": -1,
        "g": 300,
        "h": 70_000,
        "i": 2**40,
    },
    {
        "t": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), []],
        "m": {},
        "n": {"deep": {"er": [[1], [2, 3]]}},
    },
    [f"s{i}" for i in range(300)] * 2,  # the second time by reference
    "alone",
]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("value", PLAIN[1:], ids=["nested", "many", "alone"])
def test_plain_data_of_every_protocol(value: Any, protocol: int) -> None:
    assert plain(pickle.dumps(value, protocol=protocol)) == value


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_plain_values(protocol: int) -> None:
    found = plain(pickle.dumps(PLAIN[0], protocol=protocol))
    assert found == PLAIN[0] and [type(one) for one in found.values()] == [
        type(one) for one in PLAIN[0].values()
    ]


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"(S'a'\nI1\nS'b'\nI2\nd.", {"a": 1, "b": 2}),
        (b"(I1\nI2\nl.", [1, 2]),
        (b"I9\n(I1\nI2\nt.", (1, 2)),
        (b"]I5\na.", [5]),
        (b"}S'k'\nI5\ns.", {"k": 5}),
        (b"\x80\x03}C\x01kK\x05s.", {"k": 5}),  # a key of bytes
        (b"\x80\x03C\x02ab.", b"ab"),
    ],
)
def test_operations_one_by_one(raw: bytes, value: Any) -> None:
    assert plain(raw) == value


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_bytes(order: Any, protocol: int) -> None:
    array = np.array(np.arange(250, 256, dtype=np.uint8).reshape(2, 3), order=order)
    found = plain(pickle.dumps({"data": array}, protocol=protocol))["data"]
    assert found.dtype == np.uint8 and np.array_equal(found, array)
    assert np.array_equal(plain(pickle.dumps(array, protocol=protocol)), array)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"cos\nsystem\n.", "refused: the file refers to os.system, which plain data do not need"),
        (b"cnumpy\nndarray\n(tR.", "refused: the file calls numpy ndarray"),
        (b"I1\n(tR.", "refused: the file calls something that is not one of NumPy's array parts"),
        (b"F1.5\n.", "refused: the file holds the operation FLOAT, which plain data do not need"),
        (
            pickle.dumps({"data": np.zeros(2, np.int32)}, protocol=2),
            "refused: expected an array of bytes, the file has i4",
        ),
        (b"a.", "the file is damaged or not what it claims to be"),
        (b"g7\n.", "the file is damaged or not what it claims to be"),
        (b"I1\n", "exhausted|ends in the middle"),
    ],
)
def test_what_is_not_plain_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plain(raw)


def picture(colour: int, size: int = 8, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (size, size), (colour, 0, colour + 1)).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize("pack", [zipped, tar])
def test_members_of_archives(
    pack: Callable[[Path, dict[str, bytes]], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = pack(tmp_path / "f", {"a/b.txt": b"12345", "c": b"6"})
    assert [(str(path), read()) for path, read in archives.members(file)] == [
        ("a/b.txt", b"12345"),
        ("c", b"6"),
    ]
    assert (archives.MOST_BYTES, archives.MOST_MEMBERS) == (67_108_864, 400_000)
    for bounds, said in (
        ((5, 3), ""),
        ((4, 3), r"f holds 'a/b.txt' of 5 bytes as member 2, which"),
        ((5, 2), "f holds 'c' of 1 bytes as member 3, which"),
    ):
        monkeypatch.setattr(archives, "MOST_BYTES", bounds[0])
        monkeypatch.setattr(archives, "MOST_MEMBERS", bounds[1])
        if said:
            with pytest.raises(ValueError, match=said):
                list(archives.members(file))
        else:
            assert len(list(archives.members(file))) == 2


CINIC = {"train/b/1.png": 1, "x/train/a/2.png": 2, "x/valid/a/1.png": 3, "x/test/b/1.png": 4}


def test_cinic10_takes_the_images_of_its_three_parts(tmp_path: Path) -> None:
    beside = {"1.png": 9, "b/3.png": 9, "other/b/1.png": 9, "train/b/1.txt": 9}
    members = {name: picture(colour) for name, colour in (CINIC | beside).items()} | {
        "train/b/4.jpg": b"none"
    }
    found = archives.cinic10({"f": zipped(tmp_path / "f", members)})
    assert {name: values.tolist() for name, values in found.items() if name[0] == "y"} == {
        "y_train": [0, 1],
        "y_validation": [0],
        "y_test": [1],
    }
    assert found["x_train"].shape == (2, 3, 32, 32) and found["x_train"][:, :, 9, 9].tolist() == [
        [2, 0, 3],
        [1, 0, 2],
    ]
    assert found["x_validation"][0, 0, 0, 0] == 3 and found["x_test"][0, 0, 0, 0] == 4
    for part in ("train", "valid", "test"):
        less = {name: content for name, content in members.items() if f"{part}/" not in name}
        with pytest.raises(
            ValueError, match=f"g: expected PNG files as {part}/CLASS/NAME.png, found none"
        ):
            archives.cinic10({"f": zipped(tmp_path / "g", less)})


def test_pacs_takes_the_images_of_its_domains_and_classes(tmp_path: Path) -> None:
    members = {
        f"{domain}/horse/b.PNG": picture(10 * place)
        for place, domain in enumerate(archives.PACS_DOMAINS)
    }
    members |= {
        "p/photo/dog/z.png": picture(99),
        "photo/cat/a.png": picture(7),
        "photo/a.png": b"",
        "a.png": b"",
        "photo/dog/a.txt": b"",
        "real/dog/a.png": b"",
    }
    found = archives.pacs({"f": zipped(tmp_path / "f", members)})
    assert (
        found["y_photo"].tolist() == [0, 4]
        and found["x_photo"][:, 0, 63, 63].tolist() == [99, 20]
        and found["y_sketch"].tolist() == [4]
    )
    assert found["x_sketch"].shape == (1, 3, 64, 64) and found["x_sketch"][0, 0, 0, 0] == 30
    del members["sketch/horse/b.PNG"]
    with pytest.raises(ValueError, match="g: expected images as sketch/CLASS/NAME, found none"):
        archives.pacs({"f": zipped(tmp_path / "g", members)})


def graded(**more: bytes | None) -> dict[str, bytes]:
    labels = io.BytesIO()
    np.save(labels, np.array([[4], [3], [2]]))
    members = {f"d/images/00000{n}.tif{'f' * (n % 2)}": picture(n, 4, "TIFF") for n in range(4)}
    members |= {
        "splits/train.txt": b"images/000002.tiff\n\n000000\n",
        "splits/val.txt": b"images/000001.tiff",
        "splits/test.txt": b"images/000000.tiff",
    }
    members |= {
        "task_labels/grade.npy": labels.getvalue(),
        "task_labels/other.npy": b"",
        "images.txt": b"about",
        "splits/more.csv": b"about",
        "images/a.png": b"",
    }
    changed = {
        name.replace("__", "/").replace("_txt", ".txt"): content for name, content in more.items()
    }
    return {name: content for name, content in (members | changed).items() if content is not None}


def test_medimeta_follows_its_splits(tmp_path: Path) -> None:
    found = archives.medimeta({"f": zipped(tmp_path / "f", graded())}, "grade", 4)
    assert (
        found["y_train"].tolist() == [2, 4]
        and found["y_validation"].tolist() == [3]
        and found["y_test"].tolist() == [4]
    )
    assert (
        found["x_train"].shape == (2, 3, 4, 4)
        and found["x_train"][:, 0, 0, 0].tolist() == [2, 0]
        and found["x_validation"][0, 2, 3, 3] == 2
    )


@pytest.mark.parametrize(
    ("members", "task", "said"),
    [
        (graded(), "absent", "task_labels/absent.npy; some are missing"),
        (graded(splits__test_txt=None), "grade", "some are missing"),
        (
            {name: content for name, content in graded().items() if "d/images" not in name},
            "grade",
            "some are missing",
        ),
        (
            graded(splits__val_txt=b"000003"),
            "grade",
            "splits/val.txt names the image 000003, which has no pixels or no label",
        ),
        (graded(splits__test_txt=b"000007"), "grade", "splits/test.txt names the image 000007"),
    ],
)
def test_a_medimeta_archive_without_something(
    members: dict[str, bytes], task: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        archives.medimeta({"f": zipped(tmp_path / "f", members)}, task, 4)

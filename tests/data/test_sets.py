"""Loaders: official formats on files made here, tampered and truncated files, the data folder."""

from __future__ import annotations

import bz2
import gzip
import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from equipoise.data import DataConfig, federate, sets
from equipoise.data.sets.files import cifar_sheets
from equipoise.data.sets.registered import RegisteredSet
from equipoise.data.sets.safe_unpickler import plain

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.usefixtures("folder")


def idx(values: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + b"".join(
        int(n).to_bytes(4, "big") for n in values.shape
    )
    return gzip.compress(header + values.tobytes())


def write(folder: Path, files: dict[str, bytes]) -> list[Path]:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def mnist_files(n: int = 30, m: int = 10) -> tuple[dict[str, bytes], np.ndarray, np.ndarray]:
    x, y = (
        RNG.integers(0, 256, (n + m, 28, 28), dtype=np.uint8),
        np.arange(n + m, dtype=np.uint8) % 10,
    )
    names = (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    )
    return dict(zip(names, map(idx, (x[:n], y[:n], x[n:], y[n:])), strict=True)), x, y


def test_mnist_format_from_import_to_federation(
    tmp_path: Path, folder: Path, unchecked: Callable[[str], RegisteredSet]
) -> None:
    files, x, y = mnist_files()
    copy = sets.import_files(unchecked("fashion_mnist"), write(tmp_path, files))
    assert copy == folder / "fashion_mnist.npz"
    data = sets.load("fashion_mnist")
    assert np.array_equal(data.x[:, 0].numpy(), x)
    assert data.y.tolist() == y.tolist()
    assert data.part is not None
    assert data.part.tolist() == [0] * 30 + [2] * 10
    assert (
        len(federate(DataConfig(name="fashion_mnist", clients=2, test="global"), 1).shared_test)
        == 10
    )


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(tmp_path: Path, folder: Path) -> None:
    files, _, _ = mnist_files()
    with pytest.raises(ValueError, match="the official file has 8d4fb7e6c68d591d4c3dfef9ec88bf0d"):
        sets.import_files(sets.entry("fashion_mnist"), write(tmp_path, files))
    assert not folder.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[: len(b) // 2],
        lambda b: b"rubbish",
        lambda b: gzip.compress(gzip.decompress(b)[:-5]),
        lambda b: b"",
    ],
)
def test_damaged_files_are_refused_and_nothing_is_kept(
    tmp_path: Path,
    folder: Path,
    unchecked: Callable[[str], RegisteredSet],
    damage: Callable[[bytes], bytes],
) -> None:
    files, _, _ = mnist_files()
    files["train-images-idx3-ubyte.gz"] = damage(files["train-images-idx3-ubyte.gz"])
    with pytest.raises(ValueError, match="cannot be taken as data set mnist"):
        sets.import_files(unchecked("mnist"), write(tmp_path, files))
    assert not folder.exists()


def test_missing_parts_of_a_set_are_named(
    tmp_path: Path, unchecked: Callable[[str], RegisteredSet]
) -> None:
    files, _, _ = mnist_files()
    given = write(tmp_path, files)
    with pytest.raises(ValueError, match=r"also needed: t10k-labels-idx1-ubyte\.gz"):
        sets.import_files(unchecked("mnist"), given[:3])
    with pytest.raises(FileNotFoundError, match="no such file"):
        sets.import_files(sets.entry("mnist"), [tmp_path / "absent"])


def test_usps_format(tmp_path: Path, unchecked: Callable[[str], RegisteredSet]) -> None:
    values = np.linspace(-1, 1, 256)
    line = "10 " + " ".join(f"{i + 1}:{v:.6f}" for i, v in enumerate(values)) + "\n1 1:-1\n"
    given = write(
        tmp_path,
        {"usps.bz2": bz2.compress(line.encode()), "usps.t.bz2": bz2.compress(line.encode())},
    )
    sets.import_files(unchecked("usps"), given)
    data = sets.load("usps")
    assert data.x.shape == (4, 1, 16, 16)
    assert (int(data.x[0].min()), int(data.x[0].max())) == (0, 255)
    assert data.y.tolist() == [9, 0, 9, 0]


def test_svhn_format_turns_label_ten_into_zero_and_the_channels_to_the_front(
    tmp_path: Path, unchecked: Callable[[str], RegisteredSet]
) -> None:
    x = RNG.integers(0, 256, (32, 32, 3, 5), dtype=np.uint8)
    for name in ("train_32x32.mat", "test_32x32.mat"):
        savemat(tmp_path / name, {"X": x, "y": np.array([[10], [1], [2], [9], [10]], np.uint8)})
    sets.import_files(
        unchecked("svhn"), [tmp_path / "test_32x32.mat", tmp_path / "train_32x32.mat"]
    )
    data = sets.load("svhn")
    assert data.y[:5].tolist() == [0, 1, 2, 9, 0]
    assert np.array_equal(data.x[3, 1].numpy(), x[:, :, 1, 3])


def archive(members: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as opened:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            opened.addfile(info, io.BytesIO(content))
    return held.getvalue()


def cifar_parts() -> tuple[np.ndarray, np.ndarray]:
    return RNG.integers(0, 256, (12, 3072), dtype=np.uint8), np.arange(12, dtype=np.uint8) % 10


def test_cifar10_binary_and_python_archives_give_the_same(
    tmp_path: Path, unchecked: Callable[[str], RegisteredSet]
) -> None:
    x, y = cifar_parts()
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    pieces = [slice(2 * i, 2 * i + 2) for i in range(6)]
    binary = {
        f"cifar-10-batches-bin/{n}.bin": np.column_stack([y[p], x[p]]).tobytes()
        for n, p in zip(names, pieces, strict=True)
    }
    python = {
        f"cifar-10-batches-py/{n}": pickle.dumps(
            {"data": x[p], "labels": y[p].tolist(), "filenames": ["a"]}, protocol=2
        )
        for n, p in zip(names, pieces, strict=True)
    }
    entry = unchecked("cifar10")
    for name, members in (("cifar-10-binary.tar.gz", binary), ("cifar-10-python.tar.gz", python)):
        sets.import_files(entry, write(tmp_path, {name: archive(members)}))
        data = sets.load("cifar10")
        assert np.array_equal(data.x.numpy(), x.reshape(-1, 3, 32, 32))
        assert data.y.tolist() == y.tolist()
        assert data.part is not None
        assert data.part.tolist() == [0] * 10 + [2] * 2


def test_cifar100_uses_the_fine_label_and_its_names(
    tmp_path: Path, unchecked: Callable[[str], RegisteredSet]
) -> None:
    x, y = cifar_parts()
    records = np.column_stack([y * 0 + 7, y, x]).tobytes()
    names = "\n".join(f"kind{i}" for i in range(100)).encode()
    members = {
        "cifar-100-binary/train.bin": records,
        "cifar-100-binary/test.bin": records,
        "cifar-100-binary/fine_label_names.txt": names,
    }
    sets.import_files(
        unchecked("cifar100"), write(tmp_path, {"cifar-100-binary.tar.gz": archive(members)})
    )
    data = sets.load("cifar100")
    assert data.y[:12].tolist() == y.tolist()
    assert data.task.class_names[99] == "kind99"


def test_an_archive_with_paths_outside_writes_nothing_there(
    tmp_path: Path, folder: Path, unchecked: Callable[[str], RegisteredSet]
) -> None:
    hostile = archive({"../../escaped": b"x", str(tmp_path / "escaped"): b"x"})
    with pytest.raises(ValueError, match="cannot be taken as data set cifar10"):
        sets.import_files(
            unchecked("cifar10"), write(tmp_path, {"cifar-10-binary.tar.gz": hostile})
        )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cifar-10-binary.tar.gz"]


class Hostile:
    """What a tampered file could hold: unpickling it would create a file."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return (Path.touch, (self.victim,))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_serialised_code_is_refused_not_run(protocol: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="refused"):
        plain(pickle.dumps({"data": Hostile(tmp_path / "victim")}, protocol=protocol))
    assert not (tmp_path / "victim").exists()


def test_arrays_that_are_not_bytes_and_files_cut_short_are_refused() -> None:
    with pytest.raises(ValueError, match="expected an array of bytes"):
        plain(pickle.dumps({"data": np.zeros(3)}, protocol=2))
    whole = pickle.dumps({"data": np.zeros(300, np.uint8), "labels": [1, 2]}, protocol=2)
    for length in range(0, len(whole) - 1, 7):
        with pytest.raises(ValueError):
            plain(whole[:length])


def test_python_2_files_are_read() -> None:
    content = bytes(range(6))
    old = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"U\x06" + content + b"tbU\x06labelsq\x08]q\t(K\x06K\teu."
    )
    value = plain(old)
    assert value["data"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert value["labels"] == [6, 9]


def test_packed_sheets_are_unpacked_in_order() -> None:
    tiles = RNG.integers(0, 256, (5000, 32, 32, 3), dtype=np.uint8)
    sheet = tiles.reshape(50, 100, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(1600, 3200, 3)
    held = io.BytesIO()
    # any lossless format does; the container is what is tested
    Image.fromarray(sheet).save(held, "PNG", compress_level=0)
    packed = np.frombuffer(held.getvalue(), np.uint8)
    arrays = {
        f"{k}_{part}": v
        for part in ("train", "test")
        for k, v in (("webp", packed), ("len", np.array([len(packed)])), ("y", np.zeros(5000)))
    }
    assert np.array_equal(cifar_sheets(arrays)["x_train"].transpose(0, 2, 3, 1), tiles)


def test_medmnist_format_with_validation_part_and_grades_as_numbers(folder: Path) -> None:
    folder.mkdir()
    arrays = {
        f"{p}_images": RNG.integers(0, 256, (n, 28, 28, 3), dtype=np.uint8)
        for p, n in (("train", 10), ("val", 4), ("test", 6))
    }
    labels = {
        f"{p}_labels": np.arange(n, dtype=np.uint8)[:, None] % 5
        for p, n in (("train", 10), ("val", 4), ("test", 6))
    }
    np.savez(folder / "retinamnist.npz", **arrays, **labels)
    data = sets.load("retinamnist")
    assert data.part is not None
    assert np.bincount(data.part).tolist() == [10, 4, 6]
    assert data.as_task("regression").y[:6].tolist() == [0, 1, 2, 3, 4, 0]


def test_heart_disease_files_with_gaps(tmp_path: Path) -> None:
    row = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n"
    gap = "53,1,4,0,0,?,1,?,1,?,?,?,?,3\n"
    names = sets.entry("uci_heart_disease").official
    sets.import_files(
        sets.entry("uci_heart_disease"), write(tmp_path, dict.fromkeys(names, (row + gap).encode()))
    )
    data = sets.load("uci_heart_disease")
    assert data.y.tolist() == [0, 1] * 4
    assert data.site_names == ("cleveland", "hungary", "switzerland", "va")
    assert data.x[0].tolist() == pytest.approx([63, 1, 0, 145, 233, 1, 2, 150, 0, 2.3, 2, 0, 1])
    assert data.x[1].isnan().nonzero().flatten().tolist() == [3, 4, 5, 7, 9, 10, 11, 12]
    (tmp_path / names[0]).write_text("1,2,3\n")
    with pytest.raises(ValueError, match="14 values on every line"):
        sets.import_files(sets.entry("uci_heart_disease"), [tmp_path / name for name in names])


def test_office_split_and_joined_domains(folder: Path) -> None:
    folder.mkdir()
    arrays: dict[str, np.ndarray] = {}
    for name in ("amazon", "caltech", "dslr", "webcam"):
        arrays |= {
            f"x_{name}": RNG.integers(0, 256, (25, 64, 64, 3), dtype=np.uint8),
            f"y_{name}": np.arange(25, dtype=np.uint8) // 3,
        }
    np.savez(folder / "office_caltech10_64.npz", **arrays)
    data = sets.load("office_caltech10")
    assert data.part is not None
    assert np.flatnonzero(data.part[:25]).tolist() == [8, 9, 18, 19]
    assert np.array_equal(data.x[26, 2].numpy(), arrays["x_caltech"][1, :, :, 2])


def test_sets_joined_as_domains_are_colour_and_32_pixels_wide(folder: Path) -> None:
    folder.mkdir()
    for name, side in (("mnist", 28), ("usps", 16)):
        x = RNG.integers(0, 256, (20, side, side), dtype=np.uint8)
        np.savez(
            folder / f"{name}.npz",
            x_train=x,
            y_train=np.arange(20) % 10,
            x_test=x[:5],
            y_test=np.arange(5),
        )
    data = sets.load("mnist+usps")
    assert data.x.shape == (50, 3, 32, 32)
    assert torch.equal(data.x[:, 0], data.x[:, 2])
    assert data.site_names == ("mnist", "usps")
    federation = federate(
        DataConfig(name="mnist+usps", partition="domains", clients=4, test="site", split=(1, 0, 0)),
        1,
    )
    assert federation.test.sizes.tolist() == [5] * 4


def test_an_absent_set_says_what_to_do_online_and_offline(folder: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"equipoise data fetch mnist.*equipoise data import mnist FILE"
    ):
        sets.load("mnist")
    with pytest.raises(FileNotFoundError, match="cannot be fetched automatically"):
        sets.load("uci_heart_disease")
    with pytest.raises(ValueError, match="import-only"):
        sets.fetch(sets.entry("uci_heart_disease"))
    with pytest.raises(ValueError, match="did you mean 'fashion_mnist'"):
        federate(DataConfig(name="fashion_mnst"), 1)


def test_a_prepared_copy_of_another_set_or_a_damaged_one_is_refused(
    tmp_path: Path, folder: Path
) -> None:
    np.savez(
        tmp_path / "other.npz",
        x_train=np.zeros((2, 9, 9), np.uint8),
        y_train=[0, 1],
        x_test=np.zeros((1, 9, 9), np.uint8),
        y_test=[0],
    )
    with pytest.raises(ValueError, match=r"expected uint8 images of shape \(1, 28, 28\)"):
        sets.import_files(sets.entry("mnist"), [tmp_path / "other.npz"])
    assert not folder.exists()
    folder.mkdir()
    (folder / "mnist.npz").write_bytes(b"PK rubbish")
    with pytest.raises(ValueError, match=r"mnist\.npz is damaged"):
        sets.load("mnist")


def test_a_folder_marked_read_only_is_respected(
    tmp_path: Path, folder: Path, unchecked: Callable[[str], RegisteredSet]
) -> None:
    folder.mkdir(mode=0o555)
    with pytest.raises(OSError, match="is read-only; set EQUIPOISE_DATA"):
        sets.import_files(unchecked("mnist"), write(tmp_path, mnist_files()[0]))


def test_every_entry_is_either_fetchable_with_checksums_or_says_that_it_is_import_only() -> None:
    for entry in sets.ENTRIES.values():
        assert all(len(remote.md5) == 32 and remote.urls for remote in entry.remotes)
        assert bool(entry.remotes) != ("import-only" in entry.cited)

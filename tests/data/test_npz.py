"""NPZ files: sizes are checked before memory is taken, and only plain arrays are read."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy

from equipoise.data import from_tables
from equipoise.data.arrays import npz
from equipoise.data.arrays.npz import read_npz


def packed(file: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file


def array(values: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    out = io.BytesIO()
    npy.write_array(out, values, version)
    return out.getvalue()


def header(shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    out = io.BytesIO()
    npy.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue()


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_arrays_of_every_plain_kind_are_read(version: tuple[int, int], tmp_path: Path) -> None:
    given = {
        "a": np.arange(6).reshape(2, 3),
        "b": np.array([True]),
        "c": np.array([0.5]),
        "d": np.array(["x", "yy"]),
        "e": np.array([b"x"]),
        "f": np.array([3], np.uint8),
        "g": np.array(7.0),
        "h": np.zeros((0, 2)),
    }
    file = packed(
        tmp_path / "a.npz",
        {
            "folder/": b"",
            **{f"{name}.npy": array(values, version) for name, values in given.items()},
        },
    )
    found = read_npz(file)
    assert list(found) == list(given) and all(
        np.array_equal(found[name], values) for name, values in given.items()
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (array(np.array([1j])), "the array 'x' is of type complex128; save it as numbers or text"),
        (array(np.array([1], "datetime64[D]")), r"is of type datetime64\[D\]; save it"),
        (header((2,), "|V0"), "is of type .*; save it as numbers or text"),
        (
            header((2,)) + bytes(8),
            r"says \(2,\) of float64 \(16 bytes\), but the file has 8 bytes; the file is damaged",
        ),
        (header((2,)) + bytes(24), r"\(16 bytes\), but the file has 24 bytes"),
        (header((-1, -2)) + bytes(16), r"says \(-1, -2\) of float64"),
        (b"rubbish", "is damaged or not an NPZ file of plain arrays; replace it by an intact one"),
    ],
)
def test_what_is_no_plain_array_or_not_as_large_as_it_says_is_refused(
    content: bytes, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        read_npz(packed(tmp_path / "a.npz", {"x.npy": content}))


def test_files_that_swell_are_refused_before_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (npz.MOST_SWOLLEN, npz.SMALL, npz._MOST_ENTRIES) == (200, 268_435_456, 1_099_511_627_776)
    content = array(np.zeros(10_000))
    file = packed(tmp_path / "a.npz", {"x.npy": content, "y.npy": content}, zipfile.ZIP_DEFLATED)
    size, times = 2 * len(content), 2 * len(content) // file.stat().st_size
    for small, swollen, fits in (
        (size, 1, True),
        (size - 1, 1, False),
        (size - 1, times + 1, True),
        (size - 1, times, False),
    ):
        monkeypatch.setattr(npz, "SMALL", small)
        monkeypatch.setattr(npz, "MOST_SWOLLEN", swollen)
        if fits:
            assert list(read_npz(file)) == ["x", "y"]
        else:
            with pytest.raises(
                ValueError,
                match=(
                    f"got a file of {file.stat().st_size:,} bytes that would expand to {size:,}; "
                    ".*EQUIPOISE_MAX_BYTES"
                ),
            ):
                read_npz(file)


def test_the_memory_that_arrays_may_take_is_stated_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = array(np.zeros(10_000))
    file = packed(tmp_path / "a.npz", {"x.npy": content, "y.npy": content}, zipfile.ZIP_DEFLATED)
    size = 2 * len(content)
    monkeypatch.setattr(npz, "SMALL", 10)
    monkeypatch.setattr(npz, "MOST_SWOLLEN", 1)
    monkeypatch.setenv("EQUIPOISE_MAX_BYTES", str(size))
    assert len(read_npz(file)) == 2, "whoever states a limit has looked at the file"
    monkeypatch.setenv("EQUIPOISE_MAX_BYTES", str(size - 1))
    with pytest.raises(ValueError, match=f"{size - 1:,} bytes, got {size:,}.*EQUIPOISE_MAX_BYTES"):
        read_npz(file)
    for wrong in ("much", "-1", "0", "1e9"):
        monkeypatch.setenv("EQUIPOISE_MAX_BYTES", wrong)
        with pytest.raises(ValueError, match=f"EQUIPOISE_MAX_BYTES: expected .*{wrong}"):
            read_npz(file)


def test_the_limit_holds_for_all_sites_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for site in ("a", "b"):
        np.savez(tmp_path / f"{site}.npz", x=np.zeros((10, 4)), y=np.arange(10) % 2)
    monkeypatch.setenv("EQUIPOISE_MAX_BYTES", "1000")
    assert len(read_npz(tmp_path / "a.npz")) == 2
    with pytest.raises(ValueError, match="2 NPZ files .* 1,000 bytes together"):
        from_tables(tmp_path)
    monkeypatch.setenv("EQUIPOISE_MAX_BYTES", "10000")
    assert len(from_tables(tmp_path).x) == 20


def test_a_file_that_is_not_there_is_told_as_the_system_says(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent\.npz cannot be read: No such file or directory"):
        read_npz(tmp_path / "absent.npz")

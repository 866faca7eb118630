"""Parquet files: the same cells as in CSV, and bounds on what a small file may become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.data.tables.sites import read_table

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def written(file: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), file, compression="zstd")
    return file


def test_cells_are_read_as_from_csv(tmp_path: Path) -> None:
    file = written(
        tmp_path / "a.parquet",
        whole=[1, None, 3],
        fraction=[0.5, float("nan"), 2.5],
        text=["a", None, "b"],
        numbers=["1", "NA", "2.5"],
        flag=[True, False, None],
    )
    (tmp_path / "a.csv").write_text(
        "whole,fraction,text,numbers,flag\n1,0.5,a,1,True\n,,,NA,False\n3,2.5,b,2.5,\n"
    )
    found, expected = read_table(file), read_table(tmp_path / "a.csv")
    assert list(found) == list(expected)
    for name in expected:
        if expected[name].dtype.kind == "f":
            np.testing.assert_array_equal(found[name], expected[name])
        else:
            assert found[name].tolist() == expected[name].tolist()


def test_a_small_file_that_swells_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 9_000_000
    file = written(tmp_path / "a.parquet", x=pa.array(np.zeros(rows)))
    assert file.stat().st_size < 200_000
    with pytest.raises(ValueError, match=r"a\.parquet: .*9,000,000 rows.*EQUIPOISE_TABLE_GB"):
        read_table(file)
    monkeypatch.setenv("EQUIPOISE_TABLE_GB", "1")
    assert len(read_table(file)["x"]) == rows
    monkeypatch.setenv("EQUIPOISE_TABLE_GB", "0.1")
    with pytest.raises(ValueError, match=r"more than the bound of 0\.1 GB"):
        read_table(file)
    monkeypatch.setenv("EQUIPOISE_TABLE_GB", "much")
    with pytest.raises(ValueError, match=r"EQUIPOISE_TABLE_GB: .*'much'"):
        read_table(file)


def test_one_long_text_in_many_rows_is_refused(tmp_path: Path) -> None:
    places = pa.array(np.zeros(500_000, np.int32))
    texts = pa.DictionaryArray.from_arrays(places, pa.array(["y" * 9_000]))
    file = written(tmp_path / "a.parquet", c=texts)
    with pytest.raises(ValueError, match=r"a\.parquet, column 'c'.*500,000 texts"):
        read_table(file)


def test_lists_in_cells_are_refused_by_column(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", c=[[1, 2], [3]])
    with pytest.raises(ValueError, match="column 'c'"):
        read_table(file)

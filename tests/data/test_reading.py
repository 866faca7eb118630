"""CSV files as people have them, read to the same table."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from equipoise.data import DataConfig
from equipoise.data.check import check_data
from equipoise.data.tables.csv_files import (
    Dialect,
    _every_second_is_zero,
    _separator,
    cells_as_text,
    column_of,
    is_missing,
    read_csv,
)

NAMES, WARDS = ("weight", "ward", "note"), ("Süd", "Nord", "Süd")
WEIGHTS = (70.5, float("nan"), -1234.25)


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le", "utf-16-be"]
)
@pytest.mark.parametrize(
    ("separator", "comma"), [(",", False), (";", True), (";", False), ("\t", True), ("|", False)]
)
def test_any_dialect_and_encoding_gives_the_same_table(
    tmp_path: Path, separator: str, comma: bool, encoding: str
) -> None:
    weights = ["70,5", "NA", "-1234,25"] if comma else ["70.5", "", "-1234.25"]
    notes = ['"a, b; c"', '"tab\t|"', '"two\nlines, ""quoted"""']
    rows = [separator.join(row) for row in zip(weights, WARDS, notes, strict=True)]
    (tmp_path / "a.csv").write_bytes(
        "\r\n".join([separator.join(NAMES), *rows, ""]).encode(encoding)
    )
    table, dialect = read_csv(tmp_path / "a.csv")
    assert list(table) == list(NAMES)
    assert np.array_equal(table["weight"], WEIGHTS, equal_nan=True)
    assert table["ward"].tolist() == list(WARDS)
    assert table["note"].tolist() == ["a, b; c", "tab\t|", 'two\nlines, "quoted"']
    assert dialect.separator == separator
    assert dialect.encoding == {"cp1252": "Latin-1"}.get(
        encoding, encoding.upper()[:6].removesuffix("-")
    )
    assert dialect.decimal_commas == (("weight",) if comma else ())


def test_points_between_thousands_are_known_by_the_comma_in_their_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "a;b;c;d\n1.234,5;1.234;x;3\n-1.000.000;2.5;1,5;4\n1e3;1;2;inf\n"
    )
    table, dialect = read_csv(tmp_path / "a.csv")
    assert table["a"].tolist() == [1234.5, -1_000_000, 1000]
    assert table["b"].tolist() == [1.234, 2.5, 1]
    assert table["c"].tolist() == ["x", "1,5", "2"]
    assert (dialect.decimal_commas, dialect.point_columns) == (("a",), ("b",))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a,b\n1,2\n", ["a", "b"]),
        ("a\n1\n", ["a"]),
        ("size (m, cm);b\n1,5;2\n1,6;3\n", ["size (m, cm)", "b"]),
        ("a;b,c;d\n1;2,3;4\n", ["a", "b,c", "d"]),
        ("a,b;c\n1,2\n", ["a", "b;c"]),
    ],
)
def test_the_separator_is_the_one_that_makes_rows_alike(
    tmp_path: Path, text: str, names: list[str]
) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert list(read_csv(tmp_path / "a.csv")[0]) == names


@pytest.mark.parametrize(
    "raw",
    [
        b"a,label\n\x81\x8d,1\n",
        b"a,label\n1\x00,1\n",
        b"\x89PNG\r\n\x1a\n\x00\x00,1\n",
        b"\xff\xfea\xd8\x00,\n",
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(raw)
    with pytest.raises(
        ValueError, match="is not text in UTF-8, UTF-16 or Latin-1; save it as CSV in UTF-8"
    ):
        read_csv(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("raw", "little", "big"),
    [
        (b"a\0b\0", True, False),
        (b"\0a\0b", False, True),
        (b"a\0", False, False),  # too short to tell
        (b"a\0b\0c", False, False),  # half a letter
        (b"a\0" * 9 + b"aa", False, False),  # nine of ten
        (b"a\0" * 19 + b"aa", True, False),
        (b"a\0\0\0", False, False),
        (b"\0\0\0a", False, False),
        (b"\0\0" + b"a\0" * 20, False, False),
        (b"abcd", False, False),
        (b"a\0" * 1000 + b"abc", True, False),  # by its beginning
    ],
)
def test_utf_16_without_its_mark_is_known_by_its_zeros(raw: bytes, little: bool, big: bool) -> None:
    assert (_every_second_is_zero(raw, 1), _every_second_is_zero(raw, 0)) == (little, big)


def test_cells_read_the_same_whatever_kept_them() -> None:
    assert cells_as_text(np.array([3.0, -2.0, 2.5, np.nan, np.inf, -np.inf])).tolist() == [
        "3",
        "-2",
        "2.5",
        "",
        "inf",
        "-inf",
    ]
    assert cells_as_text(np.array([3, -2])).tolist() == ["3", "-2"] and cells_as_text(
        np.array(["3.0", ""])
    ).tolist() == ["3.0", ""]


@pytest.mark.parametrize("cell", ["", "NA", "n/a", "NaN", "Null", "none", "?"])
def test_what_counts_as_missing(cell: str) -> None:
    assert is_missing(cell) and np.isnan(column_of([cell, "1"])[0])


def test_a_column_is_text_if_one_cell_is() -> None:
    assert column_of(["1", "", "2.5"])[[0, 2]].tolist() == [1, 2.5]
    assert (
        column_of(["1", "", "x"]).tolist() == ["1", "", "x"]
        and not is_missing("x")
        and not is_missing("0")
    )


@pytest.mark.parametrize(
    ("text", "commas", "points"),
    [
        ("a;b;c\n1,5;2.5;3\n", ("a",), ("b",)),
        ("a;b;c\n1,5;Dr. x;3\n", ("a",), ()),  # a point in a text is none of a number
        ("a;b;c\n1;2.5;3\n", (), ()),
        ("a;b;c\n1,5;NA;2,5\nNA;NA;\n", ("a", "c"), ()),
        ("a,b\n1.5,2.5\n", (), ()),
    ],
)
def test_which_columns_have_commas_and_which_points_beside_them(
    tmp_path: Path, text: str, commas: tuple[str], points: tuple[str]
) -> None:
    (tmp_path / "a.csv").write_text(text)
    dialect = read_csv(tmp_path / "a.csv")[1]
    assert (dialect.decimal_commas, dialect.point_columns) == (commas, points)
    assert dialect.usual == (text[1] == ",")


def test_the_usual_way_of_writing_is_commas_and_utf_8() -> None:
    assert Dialect().usual and not Dialect(";").usual and not Dialect(encoding="Latin-1").usual
    assert (
        str(Dialect(";", "UTF-16", ("a", "b"))) == "semicolons, UTF-16, decimal commas in a, b"
        and str(Dialect()) == "commas, UTF-8"
    )


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        (
            "a,b;c\n1,2;3\n",
            ";",
        ),  # as many rows alike and as many names: more of the cells are numbers
        ("a,b;c\nx,y;z\n", ","),  # nothing tells
        ("a,b;c\n" + "1.5;2\n" * 200 + "1,2\n" * 900, ";"),  # by the first rows
        ("\na;b\n\n1;2\n", ";"),
        ("a;b\n1;2\n" + "3;4;5\n" * 20, ";"),  # no sign makes all rows alike
        (
            "a,b;c\n1,2,3;4\n5,6,7\n8,9,1;2\n",
            ";",
        ),  # rows that are alike, but not like the header, do not count
    ],
)
def test_the_separator_is_found_by_rows_names_and_numbers(text: str, sign: str) -> None:
    assert _separator(text) == sign


def test_a_quotation_mark_that_is_never_closed_is_refused_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n1,2\n3,"' + "x" * 140_000)
    with pytest.raises(
        ValueError,
        match=r"a\.csv, line 3: field larger than field limit .*; is a quotation mark open",
    ):
        read_csv(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["E10", "E11"], "U"),
        (["-", "+"], "U"),
        (["-", "1,5"], "U"),
        (["E10", "1,5"], "U"),
        (["1E10", "1,5"], "f"),
        (["1_0", "2"], "U"),
        (["٣", "2"], "U"),
        ([",5", "1,5"], "f"),
    ],
)
def test_codes_are_text_and_need_a_digit_to_be_numbers(
    tmp_path: Path, cells: list[str], kind: str
) -> None:
    rows = "".join(f"{cell};{i},5\n" for i, cell in enumerate(cells))
    (tmp_path / "a.csv").write_text(f"c;n\n{rows}")
    table, dialect = read_csv(tmp_path / "a.csv")
    assert table["c"].dtype.kind == kind and table["n"].tolist() == [0.5, 1.5]
    assert dialect.decimal_commas == (("c", "n") if kind == "f" else ("n",))
    if kind == "U":
        assert table["c"].tolist() == cells


def test_errors_name_the_line_of_the_file_and_not_the_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n"two\nlines",1\n\n2,3,4\n')
    with pytest.raises(ValueError, match=r"a\.csv, line 5: expected 2 cells, got 3: '2,3,4'"):
        read_csv(tmp_path / "a.csv")


def test_reading_takes_time_in_proportion_to_the_columns(tmp_path: Path) -> None:
    """Work is counted in lines of Python that run, which does not depend on the machine."""
    counts = []
    for columns in (200, 400):
        names = ";".join(f"c{i}" for i in range(columns))
        (tmp_path / "a.csv").write_text(f"{names};label\n" + ("1,5;" * columns + "0\n") * 2)
        counts.append(_lines_run(lambda: check_data(DataConfig(name=str(tmp_path)))))
    assert counts[1] < 2.2 * counts[0]


def _lines_run(work: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        nonlocal count
        count += event == "line"
        return trace if "equipoise" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count

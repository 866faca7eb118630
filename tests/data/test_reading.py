"""CSV files as people have them, read to the same table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from equipoise.data.reading import read_csv

NAMES, WARDS = ("weight", "ward", "note"), ("Süd", "Nord", "Süd")
WEIGHTS = (70.5, float("nan"), -1234.25)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(("separator", "comma"), [(",", False), (";", True), (";", False), ("\t", True), ("|", False)])
def test_any_dialect_and_encoding_gives_the_same_table(tmp_path: Path, separator: str, comma: bool, encoding: str) -> None:
    weights = ["70,5", "NA", "-1234,25"] if comma else ["70.5", "", "-1234.25"]
    notes = ['"a, b; c"', '"tab\t|"', '"two\nlines, ""quoted"""']
    rows = [separator.join(row) for row in zip(weights, WARDS, notes, strict=True)]
    (tmp_path / "a.csv").write_bytes("\r\n".join([separator.join(NAMES), *rows, ""]).encode(encoding))
    table, dialect = read_csv(tmp_path / "a.csv")
    assert list(table) == list(NAMES)
    assert np.array_equal(table["weight"], WEIGHTS, equal_nan=True)
    assert table["ward"].tolist() == list(WARDS)
    assert table["note"].tolist() == ["a, b; c", "tab\t|", 'two\nlines, "quoted"']
    assert dialect.separator == separator
    assert dialect.encoding == {"cp1252": "Latin-1"}.get(encoding, encoding.upper()[:6].removesuffix("-"))
    assert dialect.decimal_commas == (("weight",) if comma else ())


def test_points_between_thousands_are_known_by_the_comma_in_their_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a;b;c;d\n1.234,5;1.234;x;3\n-1.000.000;2.5;1,5;4\n1e3;1;2;inf\n")
    table, dialect = read_csv(tmp_path / "a.csv")
    assert table["a"].tolist() == [1234.5, -1_000_000, 1000]
    assert table["b"].tolist() == [1.234, 2.5, 1]
    assert table["c"].tolist() == ["x", "1,5", "2"]
    assert (dialect.decimal_commas, dialect.points_beside) == (("a",), ("b",))


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
def test_the_separator_is_the_one_that_makes_rows_alike(tmp_path: Path, text: str, names: list[str]) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert list(read_csv(tmp_path / "a.csv")[0]) == names


@pytest.mark.parametrize(
    "raw", [b"a,label\n\x81\x8d,1\n", b"a,label\n1\x00,1\n", b"\x89PNG\r\n\x1a\n\x00\x00,1\n", b"\xff\xfea\xd8\x00,\n"]
)
def test_what_is_no_text_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(raw)
    with pytest.raises(ValueError, match="is not text in UTF-8, UTF-16 or Latin-1; save it as CSV in UTF-8"):
        read_csv(tmp_path / "a.csv")

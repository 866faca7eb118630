"""Labels are never merged or split silently: spellings, codings of sites, words such as none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.data import DataConfig
from equipoise.data.check import check_data
from equipoise.data.findings import Finding
from equipoise.data.tables.sites import read_sites
from equipoise.data.tables.table_dataset import from_tables
from equipoise.data.tables.table_findings import find_in_tables

Cell = Callable[[int], str]


def write(folder: Path, **labels: Sequence[str]) -> Path:
    """One file per site with these labels and two columns of numbers."""
    folder.mkdir(exist_ok=True)
    for place, (site, cells) in enumerate(labels.items()):
        rows = [
            f"{i * 7 % 31 + place}.5,{i * i % 53 + 0.25},{cell}" for i, cell in enumerate(cells)
        ]
        (folder / f"{site}.csv").write_text("\n".join(["x,z,disease", *rows]) + "\n", "utf-8")
    return folder


def found_in(folder: Path) -> list[Finding]:
    return find_in_tables(read_sites(folder), "disease")


@pytest.mark.parametrize(
    ("other", "mapping"),
    [
        (("no", "yes"), {"no": "0", "yes": "1"}),
        (("False", "True"), {"False": "0", "True": "1"}),
        (("NEIN", "Ja"), {"NEIN": "0", "Ja": "1"}),
        (("yes", "yes"), {"yes": "1"}),
    ],
)
def test_yes_and_no_beside_0_and_1_are_refused_with_the_mapping(
    tmp_path: Path, other: tuple[str, str], mapping: dict[str, str]
) -> None:
    folder = write(tmp_path / "data", a=["0", "1"] * 20, b=list(other) * 20, c=["0", "1"] * 20)
    with pytest.raises(ValueError, match=r"b\.csv.*values: \{disease"):
        from_tables(folder, label="disease")
    (finding,) = found_in(folder)
    assert finding.repair == {"values": {"disease": mapping}}
    assert not finding.certain  # that 1 means yes is a convention
    assert "if that is what they mean" in finding.message


@pytest.mark.parametrize(
    ("first", "second", "mapping"),
    [
        (["sick", "well"], ["Sick", "WELL"], {"Sick": "sick", "WELL": "well"}),
        (["\u00fcbel", "gut"], ["u\u0308bel", "gut"], {"u\u0308bel": "\u00fcbel"}),
        (["1", "x"], ["1.0", "x"], {"1.0": "1"}),
        (["not sick", "sick"], ["not_sick", "sick"], {"not_sick": "not sick"}),
    ],
)
def test_one_class_under_two_names_is_refused(
    tmp_path: Path, first: list[str], second: list[str], mapping: dict[str, str]
) -> None:
    folder = write(tmp_path / "data", a=first * 20, b=second * 20, c=first * 20)
    with pytest.raises(ValueError, match="coded differently between sites"):
        from_tables(folder, label="disease")
    (finding,) = found_in(folder)
    assert finding.repair == {"values": {"disease": mapping}} and finding.certain
    assert "if that is what they mean" not in finding.message


def test_letters_that_only_look_alike_are_shown_apart(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", a=["\u00fc", "o"] * 20, b=["u\u0308", "o"] * 20)
    (finding,) = found_in(folder)
    assert r"u\u0308" in finding.message and "NFD" in finding.message


def test_words_at_one_site_and_numbers_at_another_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", a=["0", "1", "2"] * 20, b=["mild", "none", "severe"] * 20)
    with pytest.raises(ValueError, match=r"mild: \.\.\., none: \.\.\., severe: \.\.\."):
        from_tables(folder, label="disease")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["cat", "dog"], ["car", "truck"]),  # sites with classes of their own
        (["A+", "B"], ["A-", "B"]),  # signs that change the meaning
        (["<50", "a"], [">50", "a"]),
        (["1", "2"], ["3a", "3b"]),
        (["0", "1"], ["1", "0"]),
    ],
)
def test_classes_that_differ_are_no_finding(
    tmp_path: Path, first: list[str], second: list[str]
) -> None:
    folder = write(tmp_path / "data", a=first * 20, b=second * 20)
    assert found_in(folder) == []
    assert from_tables(folder, label="disease").task.outputs == len({*first, *second})


@pytest.mark.parametrize("other", [["00", "01"], ["0.0", "1.0"], ["0", "01"]])
def test_spellings_that_are_read_as_one_class_are_named(tmp_path: Path, other: list[str]) -> None:
    folder = write(tmp_path / "data", a=["0", "1"] * 20, b=other * 20)
    assert from_tables(folder, label="disease").task.class_names == ("0", "1")
    (finding,) = found_in(folder)
    assert "a.csv" in finding.message and "b.csv" in finding.message
    assert finding.repair == {
        "values": {
            "disease": {new: old for old, new in zip("01", other, strict=True) if new != old}
        }
    }


def test_numbers_with_two_classes_that_are_not_the_same_two_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", a=["0", "1"] * 20, b=["1", "2"] * 20)
    (finding,) = found_in(folder)
    assert "'1', '2' in b.csv" in finding.message
    assert from_tables(folder, label="disease").task.outputs == 3  # it may be right


def test_integers_that_floats_cannot_hold_stay_apart(tmp_path: Path) -> None:
    names = ["9007199254740992", "9007199254740993"]
    folder = write(tmp_path / "data", a=names * 20, b=names * 20)
    assert from_tables(folder, label="disease").task.class_names == tuple(names)


@pytest.mark.parametrize(
    ("cells", "classes"),
    [
        (["none", "mild", "severe"] * 20, ("mild", "none", "severe")),
        (["NA", "yes"] * 20, ("NA", "yes")),
        (["null", *["a", "b"] * 9, "a"], ("a", "b", "null")),  # one in twenty
        (["none", "1", "2"] * 20, ("1", "2", "none")),
    ],
)
def test_a_frequent_none_is_a_class(
    tmp_path: Path, cells: list[str], classes: tuple[str, ...]
) -> None:
    folder = write(tmp_path / "data", a=cells, b=cells)
    assert from_tables(folder, label="disease").task.class_names == classes
    word = next(cell for cell in cells if cell.lower() in ("none", "na", "null"))
    repairs = [finding.repair for finding in found_in(folder)]
    assert {"missing": {"disease": [word]}} in repairs


def test_a_site_with_none_alone_keeps_the_class(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", a=["none", "mild"] * 20, b=["none"] * 40)
    assert from_tables(folder, label="disease").task.class_names == ("mild", "none")


@pytest.mark.parametrize(
    "cells",
    [
        ["NA", *["a", "b"] * 10],  # 1 of 21
        ["NA", "0", "1"] * 20,  # what programs write for a number that they do not have
        ["?", "a", "b"] * 20,
        ["", "a", "b"] * 20,
    ],
)
def test_other_gaps_in_the_label_are_refused(tmp_path: Path, cells: list[str]) -> None:
    folder = write(tmp_path / "data", a=cells, b=["a", "b"] * 20 if "a" in cells else ["0", "1"])
    with pytest.raises(
        ValueError, match=r"no value in the label column \"disease\" \(a\.csv, line 2"
    ) as error:
        from_tables(folder, label="disease")
    assert "remove" not in str(error.value) and "delete" not in str(error.value)


def test_a_row_without_a_label_is_named_by_its_line(tmp_path: Path) -> None:
    text = 'x,disease\n1,a\n\n"2\n3",b\n4,\n5,a\n'
    (tmp_path / "boston.csv").write_text(text)
    with pytest.raises(ValueError, match=r"^1 row has no value .*\(boston\.csv, line 6\)"):
        from_tables(tmp_path, label="disease")


def test_in_one_file_for_all_sites_the_line_is_that_of_the_file(tmp_path: Path) -> None:
    text = "x,site,disease\n1,b,y\n2,a,y\n3,b,n\n4,a,\n"
    (tmp_path / "all.csv").write_text(text)
    with pytest.raises(ValueError, match=r"\(all\.csv, line 5\)"):
        from_tables(tmp_path / "all.csv", label="disease", site="site")


def test_training_is_refused_and_the_check_shows_the_mapping(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", a=["0", "1"] * 30, b=["no", "yes"] * 30)
    with pytest.raises(ValueError, match="coded differently"):
        eq.run(
            {"data": {"name": str(folder), "label": "disease"}, "rounds": 1, "workers": 0},
            tmp_path / "run",
        )
    done = CliRunner().invoke(app, ["data", "check", str(folder), "--label", "disease"])
    assert done.exit_code != 0
    (problem,) = check_data(DataConfig(name=str(folder), label="disease")).problems
    assert "values: {disease: {'no': '0', 'yes': '1'}}" in problem


def test_a_frame_is_refused_like_files(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"x": range(80), "site": ["a", "b"] * 40, "disease": ["0", "no", "1", "yes"] * 20}
    )
    with pytest.raises(ValueError, match="coded differently"):
        eq.from_frame(frame, label="disease", site="site")


def test_numbers_are_read_as_before_where_they_are_no_label(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("code,w,label\n" + "01,1.0,a\n2.0,none,b\n" * 20)
    (tmp_path / "b.csv").write_text("code,w,label\n" + "1,1,a\n02,2,b\n" * 20)
    data = from_tables(tmp_path)
    assert [(column.name, column.categories) for column in data.columns] == [
        ("code", ()),
        ("w", ()),
    ]
    assert data.x[:2, 0].tolist() == [1.0, 2.0] and bool(data.x[1, 1].isnan())
    coded = from_tables(tmp_path, categorical=("code",))
    assert coded.columns[0].categories == ("1", "2")

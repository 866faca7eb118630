"""Warnings of `data check` at the bounds where they begin, on tables of a few rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from equipoise.data import Column, DataConfig, from_arrays
from equipoise.data.check import DataReport, check_data
from equipoise.data.schema import Schema
from tests.helpers.reports import remarks_on


def look(folder: Path, files: dict[str, str], **settings: Any) -> DataReport:
    for name, text in files.items():
        (folder / name).write_text(text)
    return check_data(DataConfig(name=str(folder), **settings))


def column(cells: list[str]) -> str:
    """A file with this column, a number and a label of two classes."""
    return "c,n,label\n" + "".join(
        f"{cell},{i % 3}.5,{'ab'[i % 2]}\n" for i, cell in enumerate(cells)
    )


def said(found: DataReport, of: str) -> list[str]:
    return [warning for warning in remarks_on(found) if warning.startswith(of)]


@pytest.mark.parametrize(
    ("rows", "settings", "tests"),
    [
        (150, {}, 30), (149, {}, 29), (150, {"split": (0.5, 0.2, 0.3)}, 45), (150, {"partition": "natural"}, 30), (150, {"partition": "iid"}, None),
        (150, {"test": "global"}, None), (150, {"samples": 100}, None), (10, {"split": (0.3, 0.4, 0.3)}, 3),
    ],
)  # fmt: skip
def test_how_many_rows_a_site_would_be_tested_on(
    rows: int, settings: dict[str, Any], tests: int | None
) -> None:
    found = check_data(
        DataConfig(**settings),
        from_arrays(np.zeros((2 * rows, 1)), [0, 1] * rows, sites=["s"] * rows + ["t"] * rows),
    )
    assert [(site.name, site.rows, site.test) for site in found.sites] == [
        ("s", rows, tests),
        ("t", rows, tests),
    ]
    few = tests is not None and tests < 30
    assert [one[:44] for one in remarks_on(found)] == [
        f"fewer than 30 test rows in s ({tests}), t ({tests}): differences"[:44]
    ] * few


def test_a_data_set_of_python_by_its_columns_and_notes() -> None:
    x = np.array([[1.0, 0], [np.nan, 1], [3, 1], [4, 0]])
    data = from_arrays(
        x, [0, 1, 0, 0], columns=["a", Column("b", ("u", "v"))], class_names=("no", "yes")
    )
    found = check_data(DataConfig(normalise="pooled"), data)
    assert (found.name, found.task, found.label, found.guessed, found.files, remarks_on(found)) == (
        "arrays",
        "classification",
        None,
        False,
        {},
        [],
    )
    assert [(one.name, one.kind, one.gaps, one.becomes) for one in found.columns] == [
        ("a", "number", 1, "1 input, scaled by mean and deviation of all clients; 1 more marks gaps"), ("b", "category", 0, "3 inputs: u, v, other"),
    ]  # fmt: skip
    assert [(site.name, dict(site.classes)) for site in found.sites] == [
        ("arrays", {"no": 3, "yes": 1})
    ]
    narrow = check_data(
        DataConfig(schema={"columns": [{"name": "b", "kind": "category", "categories": ["v"]}]}),
        data,
    )
    assert [(one.name, one.becomes) for one in narrow.columns] == [("b", "2 inputs: v, other")]
    numbers = check_data(DataConfig(task="regression"), data)
    assert (
        numbers.task == "regression"
        and numbers.sites[0].target == {"mean": 0.25, "lowest": 0, "highest": 1}
        and not numbers.sites[0].classes
    )
    assert (numbers.sites[0].name, numbers.sites[0].rows, numbers.sites[0].test) == ("arrays", 4, 0)
    unnamed = check_data(
        DataConfig(), from_arrays(x, [0, 2, 0, 0], columns=["a", "b"], sites=["s", "s", "t", "t"])
    )
    assert [dict(site.classes) for site in unnamed.sites] == [{"0": 1, "2": 1}, {"0": 2}]
    assert [warning for warning in remarks_on(unnamed) if "fewer" not in warning] == []


@pytest.mark.parametrize(
    ("sites", "y", "expected"),
    [
        (
            ["s", "s", "s", "s"],
            [0, 1, 0, 1],
            ["there is only one site, 's'"],
        ),
        (
            ["s", "s", "t", "t"],
            [0, 1, 0, 0],
            ["site 't' has no row of the class 'yes'"],
        ),
        (["s", "s", "t", "t"], [0, 1, 0, 1], []),
    ],
)
def test_sites_that_teach_nothing(sites: list[str], y: list[int], expected: list[str]) -> None:
    found = check_data(
        DataConfig(), from_arrays(np.zeros((4, 1)), y, sites=sites, class_names=("no", "yes"))
    )
    others = [warning for warning in remarks_on(found) if "fewer than" not in warning]
    assert len(others) == len(expected) and all(
        one.startswith(start) for one, start in zip(others, expected, strict=True)
    )


def test_one_class_only_is_told_once_and_not_for_every_site() -> None:
    found = check_data(
        DataConfig(partition="iid"),
        from_arrays(np.zeros((4, 1)), [0] * 4, sites=["s", "s", "t", "t"], class_names=("no",)),
    )
    assert (
        len(remarks_on(found)) == 1
        and "all rows have the label 'no', so there is nothing to learn" in remarks_on(found)[0]
    )


@pytest.mark.parametrize(
    ("count", "shown"),
    [(5, "s0 (0), s1 (0), s2 (0), s3 (0), s4 (0): "), (7, "s4 (0) and 2 more: ")],
)
def test_of_many_names_five_are_shown(count: int, shown: str) -> None:
    found = check_data(
        DataConfig(),
        from_arrays(
            np.zeros((2 * count, 1)), [0, 1] * count, sites=[f"s{k // 2}" for k in range(2 * count)]
        ),
    )
    assert len(remarks_on(found)) == 1 and shown in remarks_on(found)[0]


@pytest.mark.parametrize(
    ("rows", "classes", "warned"), [(41, 21, True), (42, 21, False), (39, 20, False)]
)
def test_a_label_with_nearly_as_many_classes_as_rows(
    rows: int, classes: int, warned: bool, tmp_path: Path
) -> None:
    lines = [f"{i % 7}.5,k{i % classes}\n" for i in range(rows)]
    files = {"a.csv": "n,label\n" + "".join(lines[5:]), "b.csv": "n,label\n" + "".join(lines[:5])}
    expected = f"the label 'label' has {classes} classes for {rows} rows; choose another column with --label"
    assert (expected in remarks_on(look(tmp_path, files))) == warned


def test_columns_without_values_with_infinite_ones_and_with_one_strange_cell(
    tmp_path: Path,
) -> None:
    files = {
        "a.csv": "e,i,z,label\n,1,2,x\n,inf,1,y\n",
        "b.csv": "e,i,z,label\nNA,-1e39,3,x\n?,2,1,y\n",
    }
    found = look(tmp_path, files)
    assert said(found, "column 'e'") == [
        "column 'e' has no value at all; remove it from the files, or leave it out of the schema"
    ]
    assert [one[:40] for one in said(found, "column 'i'")] == [
        "column 'i': 2 cells are infinite (inf, o"[:40]
    ] and not said(found, "column 'z'")
    assert [(one.name, one.gaps) for one in found.columns] == [("e", 4), ("i", 1), ("z", 0)]
    given = look(
        tmp_path,
        {},
        schema={
            "columns": [
                {"name": "i", "kind": "number", "gaps": True},
                {"name": "z", "kind": "number"},
            ]
        },
    )
    assert [(one.name, one.kind, one.becomes) for one in given.columns][2] == (
        "e",
        "not in the schema",
        "left out",
    )
    assert len(said(given, "column 'i'")) == 1 and not said(given, "column 'e'")


@pytest.mark.parametrize(
    ("numbers", "strange", "gaps", "warned"),
    [(9, 2, 0, True), (8, 2, 0, False), (5, 1, 0, True), (4, 1, 9, False), (0, 6, 0, False)],
)
def test_a_few_words_among_numbers(
    numbers: int, strange: int, gaps: int, warned: bool, tmp_path: Path
) -> None:
    cells = (
        [str(i % 3) for i in range(numbers)] + [f"w{i % 2}" for i in range(strange)] + [""] * gaps
    )
    found = look(tmp_path, {"a.csv": column(cells[1:]), "b.csv": column(cells[:1])})
    count = "1 cell," if strange == 1 else f"{strange} cells such as"
    expected = f"column 'c' is not read as numbers because of {count} 'w0' (a.csv, line "
    assert [one.startswith(expected) for one in said(found, "column 'c' is not")] == [True] * warned


DIRTY = [f"{150 + i}.5" for i in range(20)] + ["n/a?", "180 mg", "n/a?"]


def test_words_among_numbers_are_named_with_their_repair_also_if_the_data_are_refused(
    tmp_path: Path,
) -> None:
    other_labels = column(["1", "2", "3"]).replace(",a\n", ",0\n").replace(",b\n", ",1\n")
    found = look(tmp_path, {"a.csv": column(DIRTY), "b.csv": other_labels})
    assert found.problems
    (warning,) = said(found, "column 'c'")
    assert "3 cells such as 'n/a?' (a.csv, line 22)" in warning
    assert "missing: {c: ['n/a?', 180 mg]}" in warning


def test_a_factor_of_a_column_with_words_is_the_only_problem(tmp_path: Path) -> None:
    files = {"a.csv": column(DIRTY), "b.csv": column(["1", "2", "3"]).replace(",a\n", ",x\n")}
    schema = Schema(factors={"c": 2.0}, values={"label": {"x": "a"}})
    (problem,) = look(tmp_path, files, schema=schema).problems
    assert "site 'a', column 'c': `factors` of the schema expects numbers, got 'n/a?'" in problem


def test_numbers_with_decimal_commas_are_no_words(tmp_path: Path) -> None:
    rows = "".join(
        f"{cell};{'ab'[i % 2]}\n" for i, cell in enumerate(["1,5", "2,5", "1,5", "2,5", "n.d."])
    )
    found = look(tmp_path, {"a.csv": "c;label\n1,5;a\n2,5;b\n", "b.csv": "c;label\n" + rows})
    assert (
        len(
            said(
                found, "column 'c' is not read as numbers because of 1 cell, 'n.d.' (b.csv, line 6)"
            )
        )
        == 1
    )
    assert "'1,5' (2 rows) and '1.5' (1 row) are nearly equal" in " ".join(
        said(found, "column 'c': the categories")
    ), "numbers count too"


def test_sites_of_arrays(tmp_path: Path) -> None:
    for site, rows in (("east", 3), ("west", 2)):
        np.savez(
            tmp_path / f"{site}.npz",
            x=np.arange(2.0 * rows).reshape(rows, 2),
            y=np.arange(rows) % 2,
        )
    found = check_data(
        DataConfig(name=str(tmp_path), schema={"columns": [{"name": "x1", "kind": "number"}]})
    )
    assert [(site.name, site.rows, dict(site.classes)) for site in found.sites] == [
        ("east", 3, {"0": 2, "1": 1}),
        ("west", 2, {"0": 1, "1": 1}),
    ]
    assert [one.name for one in found.columns] == ["x1"] and (found.label, found.files) == (
        None,
        {},
    )


@pytest.mark.parametrize(
    ("cells", "either"),
    [
        (["01/02/2024", "03/04/2024"], True),
        (["01/02/2024", "13/04/2024"], False),
        (["2024-02-01", "2024-02-02"], False),
    ],
)
def test_dates_that_could_be_read_in_two_ways(
    cells: list[str], either: bool, tmp_path: Path
) -> None:
    found = look(tmp_path, {"a.csv": column([*cells, ""]), "b.csv": column(cells)})
    (warning,) = said(found, "column 'c' holds dates, which become numbers (days since 1970)")
    assert (
        warning.endswith("with the month first: 01/02/2024 is read as day 1 of month 2") == either
    )
    assert (
        found.columns[0].becomes.startswith(
            "1 input (days since 1970), scaled by each client's own"
        )
        and "marks gaps" in found.columns[0].becomes
    )
    schema = found.schema
    assert not said(look(tmp_path, {}, schema=schema), "column 'c' holds"), (
        "who gave a schema knows"
    )


def test_names_that_differ_in_case_or_signs_only(tmp_path: Path) -> None:
    found = look(
        tmp_path,
        {"a.csv": column(["x_1", "X 1", "x1", "y", "-", "+"]), "b.csv": column(["x1"] * 3)},
    )
    (warning,) = said(found, "column 'c': the categories")
    assert "'X 1' (1 row) and 'x1' (4 rows) and 'x_1' (1 row) are nearly equal" in warning
    assert not said(found, "the label column")


def test_what_is_left_out_is_told_with_its_kind(tmp_path: Path) -> None:
    sentences = [f"the patient number {i} came in the morning" for i in range(20)]
    found = look(tmp_path, {"a.csv": column(sentences), "b.csv": column(sentences)})
    assert (
        len(
            said(found, "column 'c' looks like free text (about one value per row) and is left out")
        )
        == 1
    )
    assert (found.columns[0].kind, found.columns[0].becomes, found.label, found.guessed) == (
        "text",
        "left out",
        "label",
        True,
    )
    assert (
        not look(tmp_path, {}, schema={"label": "label"}).guessed
        and look(tmp_path, {}, schema={"classes": ["a", "b"]}).guessed
    )
    assert not look(tmp_path, {}, label="label").guessed


def images(folder: Path, sizes: list[tuple[int, int]], mode: str = "L") -> Path:
    for site in ("e", "w"):
        for place, size in enumerate(sizes):
            (folder / site / f"k{place % 2}").mkdir(parents=True, exist_ok=True)
            Image.new(mode, size).save(folder / site / f"k{place % 2}" / f"{place}.png")
    return folder


@pytest.mark.parametrize(
    ("sizes", "settings", "shape", "told"),
    [
        ([(6, 5)] * 2, {}, (1, 5, 6), ""),
        (
            [(6, 5), (5, 6)],
            {},
            (1, 64, 64),
            "images have 2 different sizes, such as 5x6, 6x5 (height x width): they are read at 64x64",
        ),
        ([(6, 5), (5, 6)], {"image_size": 9}, (1, 9, 9), ""),
        (
            [(5, 4 + k) for k in range(7)],
            {},
            (1, 64, 64),
            "images have 7 different sizes, such as 4x5, 5x5, 6x5, 7x5, 8x5 (height",
        ),
        (
            [(129, 5)] * 2,
            {},
            (1, 64, 64),
            "images are large, 5x129 (height x width): they are read at 64x64",
        ),
        ([(64, 64)] * 2, {}, (1, 64, 64), ""),
    ],
)
def test_sizes_of_images(
    sizes: list[tuple[int, int]],
    settings: dict[str, Any],
    shape: tuple[int, ...],
    told: str,
    tmp_path: Path,
) -> None:
    found = check_data(DataConfig(name=str(images(tmp_path, sizes)), partition="iid", **settings))
    assert found.schema == Schema(task="classification", classes=("k0", "k1"), shape=shape)
    assert [one[: len(told)] for one in remarks_on(found)] == [told] * bool(told)
    count = len(sizes)
    assert [(s.name, s.rows, s.test, dict(s.classes)) for s in found.sites] == [
        (w, count, None, {"k0": (count + 1) // 2, "k1": count // 2}) for w in "ew"
    ]
    assert (found.name, found.task, found.label, found.guessed, found.columns) == (
        tmp_path.name,
        "classification",
        None,
        False,
        (),
    )


def test_of_grey_and_colour_images_all_are_in_colour(tmp_path: Path) -> None:
    images(images(tmp_path, [(5, 5)]), [(5, 5), (5, 5)], "RGB")
    assert check_data(DataConfig(name=str(tmp_path))).schema.shape == (3, 5, 5)
    given = check_data(DataConfig(name=str(tmp_path), schema={"classes": ["k1", "k0"]})).schema
    assert given.classes == ("k1", "k0")

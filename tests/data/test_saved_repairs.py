"""From findings to a saved schema to a run: proposed repairs work when they are applied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from equipoise.data import DataConfig, from_frame, from_tables
from equipoise.data.check import check_data
from equipoise.data.findings import Finding
from equipoise.data.schema import schema_from
from tests.helpers.terminal import Terminal, equipoise  # noqa: F401

ROWS = 90
SMALL = ("--rounds", "1", "--set", "model={name: mlp, hidden: [4]}", "--set", "workers=0")


@pytest.fixture
def dirty(tmp_path: Path) -> Path:
    """Three hospitals: names, labels, units, codes and signs differ, as do two kinds of numbers."""
    folder = tmp_path / "hospitals"
    folder.mkdir()
    for place, site in enumerate(("basel", "bern", "zurich")):
        draw = np.random.default_rng(place)
        names = "Age" if site == "bern" else "age"
        lines = [f"{names},sex,chol,bp,zip,kundennr,disease"]
        for i in range(ROWS):
            chol = round(draw.normal(210, 30), 1)
            cells = [
                draw.integers(30, 80),
                draw.choice(["female", "male"] if site == "bern" else ["f", "m"]),
                {"bern": -9 if i % 10 == 3 else chol, "zurich": round(chol / 38.67, 3)}.get(
                    site, chol
                ),
                f"{110 + draw.integers(20)}{' mmHg' * (site == 'zurich')}",
                8000 + i % 7,
                7000 + 13 * draw.integers(10**6),
                draw.choice(["Sick", "WELL"] if site == "zurich" else ["sick", "well"]),
            ]
            lines.append(",".join(map(str, cells)))
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def saved(dirty: Path, tmp_path: Path, equipoise: Terminal) -> Path:  # noqa: F811
    file = tmp_path / "schema.yaml"
    answer = equipoise("data", "check", dirty, "--label", "disease", "--save", file)
    assert answer.code == 2 and "coded differently" in answer.err  # without it they are refused
    assert "can be read" in answer.err
    return file


def uncommented(text: str, wanted: Callable[[str], bool] = lambda line: True) -> str:
    """Follow the note at the top of a saved schema, for the chosen lines."""
    lines: list[str] = []
    replaces = False
    for line in text.splitlines()[2:]:
        if line.startswith("##"):
            replaces = line == "## in place of the line above:"
        elif line.startswith("# ") and wanted(line):
            if replaces:
                lines.pop()
            lines.append(line.removeprefix("# "))
            replaces = False
        elif not line.startswith("#"):
            lines.append(line)
    return "\n".join(lines) + "\n"


def cholesterol(folder: Path, schema: Path) -> np.ndarray:
    """The column of zurich, which comes last."""
    data = from_tables(folder, schema=schema_from(schema))
    place = [column.name for column in data.columns].index("chol")
    return data.x[-ROWS:, place].numpy()


def test_a_dirty_folder_trains_with_the_saved_schema(
    dirty: Path,
    saved: Path,
    tmp_path: Path,
    equipoise: Terminal,  # noqa: F811
) -> None:
    schema = schema_from(saved)
    assert schema is not None and schema.rename == {"Age": "age"}
    assert schema.values == {"disease": {"Sick": "sick", "WELL": "well"}}
    assert schema.classes == ("sick", "well") and not schema.factors and not schema.sites
    words = ("run", "--data", dirty, "--schema", saved, *SMALL, "--out", tmp_path / "run")
    assert equipoise(*words).code == 0


def test_a_factor_is_applied_once_it_is_uncommented(dirty: Path, saved: Path) -> None:
    before = cholesterol(dirty, saved)
    keys = ("# sites:", "#   zurich:", "#     factors:", "#       chol: 38.67")
    saved.write_text(uncommented(saved.read_text(), lambda line: line in keys))
    np.testing.assert_allclose(cholesterol(dirty, saved), before * 38.67, rtol=1e-6)


def test_all_proposals_together_can_be_applied(
    dirty: Path,
    saved: Path,
    tmp_path: Path,
    equipoise: Terminal,  # noqa: F811
) -> None:
    saved.write_text(uncommented(saved.read_text()))
    report = check_data(DataConfig(name=str(dirty), schema=str(saved)))
    assert not report.problems and not report.findings
    kinds = {column.name: (column.kind, column.gaps) for column in report.schema.columns}
    assert kinds == {
        "age": ("number", False),
        "sex": ("category", False),
        "chol": ("number", True),  # the gaps that `missing` makes are marked
        "bp": ("number", False),
        "zip": ("category", False),
        "kundennr": ("identifier", False),
    }
    assert report.schema.columns[1].categories == ("f", "m")
    words = ("run", "--data", dirty, "--schema", saved, *SMALL, "--out", tmp_path / "run")
    assert equipoise(*words).code == 0


def test_a_reason_is_written_once_for_many_values(saved: Path) -> None:
    reasons = [line for line in saved.read_text().splitlines() if "because of a unit" in line]
    assert len(reasons) == 2  # for the values, and for the kind of the column


def test_findings_are_listed_with_what_is_refused(
    dirty: Path,
    equipoise: Terminal,  # noqa: F811
) -> None:
    answer = equipoise("data", "check", dirty, "--label", "disease")
    assert "note: bern.csv: the column 'Age'" in answer.out and "38.67" in answer.out
    assert "coded differently between sites: 'sick'" not in answer.out  # the refusal names it


def test_no_column_is_proposed_alone(tmp_path: Path, dirty: Path) -> None:
    """A schema that lists one column would leave out all others."""
    (dirty / "extra.csv").write_text("age,disease\n1,sick\n2,well\n")
    report = check_data(DataConfig(name=str(dirty), label="disease"))
    assert report.problems and not report.schema.columns
    assert any("columns" in (finding.repair or {}) for finding in report.findings)
    report.schema.save(tmp_path / "saved.yaml", report.findings)
    assert "columns:\n" not in (tmp_path / "saved.yaml").read_text()


def test_more_gaps_are_proposed_in_place_of_those_that_are_given(tmp_path: Path) -> None:
    schema = schema_from({"missing": {"chol": [0]}})
    assert schema is not None
    file = tmp_path / "schema.yaml"
    schema.save(file, [Finding("far away", "chol", repair={"missing": {"chol": ["-9"]}})])
    assert schema_from(file) == schema
    file.write_text(uncommented(file.read_text()))
    found = schema_from(file)
    assert found is not None and found.missing == {"chol": ("0", "-9")}


def test_columns_that_a_schema_leaves_out_are_not_questioned(dirty: Path, saved: Path) -> None:
    text = saved.read_text()
    lines = [line for line in text.splitlines() if not line.startswith("- {name: chol")]
    saved.write_text("\n".join(lines) + "\n")
    report = check_data(DataConfig(name=str(dirty), schema=str(saved)))
    assert not any(finding.column == "chol" for finding in report.findings)
    assert any(finding.column == "bp" for finding in report.findings)


def test_a_file_that_only_names_sites_is_refused(
    tmp_path: Path,
    equipoise: Terminal,  # noqa: F811
) -> None:
    (tmp_path / "all.csv").write_text("site\na\nb\n")
    answer = equipoise("data", "check", tmp_path / "all.csv", "--site", "site")
    assert answer.code == 2 and "all.csv: expected columns besides 'site'" in answer.err


def labels(folder: Path, **cells: list[str]) -> Path:
    folder.mkdir()
    for place, (site, own) in enumerate(cells.items()):
        rows = "".join(f"{i * 7 % 31 + place / 4},{cell}\n" for i, cell in enumerate(own))
        (folder / f"{site}.csv").write_text(f"x,label\n{rows}")
    return folder


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ({"01": "a"}, ("1", "2", "a")),  # 01 may mean something else than 1
        ({"1": "a"}, ("2", "a")),  # 1 stands for 01, too
        ({"01": "a", "1": "b"}, ("2", "a", "b")),
        ({"1.0": "a"}, ("2", "a")),  # no cell is written like that
    ],
)
def test_a_spelling_that_files_have_is_replaced_alone(
    tmp_path: Path, values: dict[str, str], classes: tuple[str, ...]
) -> None:
    folder = labels(tmp_path / "data", a=["01", "2"] * 20, b=["1", "2"] * 20)
    data = from_tables(folder, schema=schema_from({"values": {"label": values}}))
    assert data.task.class_names == classes


def test_large_integers_are_replaced_exactly(tmp_path: Path) -> None:
    names = ["9007199254740992", "9007199254740993"]
    folder = labels(tmp_path / "data", a=names * 20, b=names * 20)
    data = from_tables(folder, schema=schema_from({"values": {"label": {names[0]: "a"}}}))
    assert data.task.class_names == (names[1], "a")


def test_large_integers_of_parquet_files_and_frames_stay_apart(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    names = ("9007199254740992", "9007199254740993")
    frame = pandas.DataFrame(
        {"x": [i * 7 % 31 / 4 for i in range(40)], "label": list(map(int, names)) * 20}
    )
    frame.to_parquet(tmp_path / "a.parquet")
    assert from_tables(tmp_path).task.class_names == names
    assert from_frame(frame, label="label").task.class_names == names


def test_a_class_that_values_name_is_no_gap(tmp_path: Path) -> None:
    cells = ["mild", "severe"] * 20
    folder = labels(tmp_path / "data", a=cells, b=["0", *cells[1:]])
    schema = schema_from({"values": {"label": {"0": "none"}}})
    assert from_tables(folder, schema=schema).task.class_names == ("mild", "none", "severe")


def test_decimal_commas_and_codes_keep_their_meaning_through_a_repair(tmp_path: Path) -> None:
    rows = "".join(f"{i % 9},5;E{i % 3};{'-' if i % 4 else '1_0'};{i % 2}\n" for i in range(40))
    (tmp_path / "a.csv").write_text(f"n;icd;code;label\n{rows}n.d.;E1;-;1\n")
    schema = {"missing": {"n": ["n.d."], "icd": ["E0"]}, "values": {"code": {"-": "none known"}}}
    data = from_tables(tmp_path, schema=schema_from(schema))
    assert data.x[:9, 0].tolist() == [i + 0.5 for i in range(9)] and bool(data.x[-1, 0].isnan())
    assert [column.categories for column in data.columns] == [
        (),
        ("E1", "E2"),
        ("1_0", "none known"),
    ]

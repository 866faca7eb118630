"""Files of patients' records, read in parts, and the bounds within which their cells count."""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from equipoise.data.patients.codes import STATES
from equipoise.data.patients.record_files import (
    column_among,
    header_of,
    number_of,
    read_blocks,
    time_in_days,
)
from equipoise.data.patients.records import (
    Notes,
    Records,
    before_diagnosis,
    is_patients,
    read_patients,
    record_folders,
)

WANTED: dict[str, tuple[str, ...]] = {
    "patient": ("patient", "patient_id"),
    "age": ("age",),
    "note": ("note",),
}
PATIENTS = "patient,sex,postal_code,state\np1,F,94103,CA\np2,M,10001,NY\n"


def written(folder: Path, patients: str, events: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "patients.csv").write_text(patients)
    (folder / "events.csv").write_text(events)
    return folder


def read(folder: Path, events: str, patients: str = PATIENTS) -> Records:
    return read_patients(written(folder, patients, events))


@pytest.mark.parametrize(
    ("cell", "days"),
    [
        ("3.5", 3.5),
        ("-2", -2),
        (" 2024-01-31 ", date(2024, 1, 31).toordinal()),
        ("2024-01-31T12:30:36", date(2024, 1, 31).toordinal() + 12 / 24 + 30 / 1440 + 36 / 86400),
        ("2024-01-31 06:00", date(2024, 1, 31).toordinal() + 0.25),
        ("inf", math.nan),
        ("nan", math.nan),
        ("", math.nan),
        ("31.01.2024", math.nan),
    ],
)
def test_a_time_is_a_number_of_days(cell: str, days: float) -> None:
    assert time_in_days(cell) == pytest.approx(days, abs=1e-9, nan_ok=True)
    assert number_of("x") != number_of("x") and number_of("1e3") == 1000


@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 100])
def test_rows_keep_their_numbers_however_many_are_held(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.data.patients.record_files.BLOCK", at_once)
    (tmp_path / "events.csv").write_text(
        "Age; Patient_ID ;other\n" + "".join(f"{40 + k}; p{k} ;x\n" for k in range(4)) + "\n"
    )
    found = list(read_blocks(tmp_path / "events.csv", WANTED, ("patient", "age")))
    assert [start for start, _ in found] == list(range(2, 6, at_once))
    assert [len(cells["patient"]) for _, cells in found] == [
        min(at_once, 4 - k) for k in range(0, 4, at_once)
    ]
    assert [cell for _, cells in found for cell in cells["patient"]] == ["p0", "p1", "p2", "p3"]
    assert [cell for _, cells in found for cell in cells["age"]] == [
        "40",
        "41",
        "42",
        "43",
    ] and "note" not in found[0][1]


def test_parquet_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    monkeypatch.setattr("equipoise.data.patients.record_files.BLOCK", 2)
    parquet.write_table(
        pyarrow.table({"Patient": ["a", " b ", None], "age": [1.5, None, 3.0]}),
        tmp_path / "events.parquet",
    )
    assert list(read_blocks(tmp_path / "events.parquet", WANTED, ("patient", "age"))) == [
        (2, {"patient": ["a", "b"], "age": ["1.5", ""]}),
        (4, {"patient": [""], "age": ["3.0"]}),
    ]
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(ValueError, match=r"broken\.parquet is damaged or not a Parquet file"):
        header_of(tmp_path / "broken.parquet")


@pytest.mark.parametrize(
    ("separator", "line"), [(",", "a,b;c"), (";", "a;b,c;d"), ("\t", "a\tb"), ("|", "a|b,c|d")]
)
def test_the_sign_that_the_names_have_most_of_separates(
    separator: str, line: str, tmp_path: Path
) -> None:
    (tmp_path / "events.csv").write_text(line.upper() + "\n")
    assert header_of(tmp_path / "events.csv") == line.split(separator)


def test_columns_without_a_name_may_repeat(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("patient,,age,\n")
    assert header_of(tmp_path / "events.csv") == ["patient", "", "age", ""]
    for empty in ("", "\n", ",,\n"):
        (tmp_path / "events.csv").write_text(empty)
        with pytest.raises(ValueError, match="expected a line of column names, got an empty file"):
            header_of(tmp_path / "events.csv")


def test_of_several_columns_the_first_name_that_is_known_counts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("site,State\n")
    assert (
        column_among(tmp_path / "a.csv", ("state", "site")) == "state"
        and column_among(tmp_path / "a.csv", ("time",)) is None
    )


def test_the_first_of_empty_lines_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("patient,age\np,1\n\n\nq,2\n")
    with pytest.raises(ValueError, match=r"row 3: expected 2 cells, got 0"):
        list(read_blocks(tmp_path / "a.csv", WANTED, ("patient",)))
    with pytest.raises(
        ValueError, match=r"expected the columns patient, note, got patient, age; note is missing"
    ):
        list(read_blocks(tmp_path / "a.csv", WANTED, ("patient", "note")))


@pytest.mark.parametrize(
    ("age", "value", "kept", "number"),
    [
        ("0", "1", 1, 1.0),
        ("0.5", "", 1, math.nan),  # no age before the first is asked for
        ("130", "1e30", 1, 1e30),
        ("130.1", "1", 0, 0),
        ("-0.1", "1", 0, 0),
        ("", "1", 0, 0),
        ("50", "-1e30", 1, -1e30),
        ("50", "1.5e30", 1, math.nan),
        ("50", "-1.5e30", 1, math.nan),
    ],
)
def test_ages_and_values_count_within_bounds(
    age: str, value: str, kept: int, number: float, tmp_path: Path
) -> None:
    found = read(tmp_path, f"patient,age,code,value\np1,{age},A,{value}\n")
    assert len(found.code) == kept and found.value.tolist() == pytest.approx(
        [number] * kept, rel=1e-6, nan_ok=True
    )
    assert any("no age from 0 to 130" in note for note in found.notes) == (not kept)
    assert any("not a number" in note for note in found.notes) == ("1.5e30" in value)
    assert not any("after a later one" in note for note in found.notes)


def test_what_is_told_of_events_and_patients(tmp_path: Path) -> None:
    patients = "patient,sex,postal_code\np1, Female ,94103\n,F,94103\np3,W,none\np4,x,10001\n"
    events = (
        "patient,age,code,value\np1,50,a,\np1,50,b,n/a\np1,49,a,\np1,48, ,\np4,30,a,1\np4,29,a,1\n"
    )
    found = read(tmp_path, events, patients)
    assert (
        found.ids == ("p1", "p4")
        and found.site_names == ("CA", "NY")
        and found.sex.tolist() == [0, 2]
        and len(found) == 2
    )
    assert (
        found.codes == ("A", "B")
        and found.lengths.tolist() == [3, 2]
        and found.offsets.tolist() == [0, 3, 5]
    )
    assert [found.codes[code] for code in found.code] == [
        "A",
        "A",
        "B",
        "A",
        "A",
    ] and found.age.tolist() == [49, 50, 50, 29, 30]
    assert list(found.notes) == [
        "patients.csv: 1 patient left out: no id; the first in row 3",
        "patients.csv: 1 postal code of no state, read as unknown; the first in row 4 ('none')",
        "patients.csv: 1 patient left out: no known site; the first in row 4 ('p3')",
        "patients.csv: 1 patient of unknown sex (known: female, male); the first in row 5 ('x')",
        "events.csv: 2 events after a later one of the same patient; events were sorted by age; "
        "the first in row 4",
        "events.csv: 1 event left out: no code; the first in row 5",
        "2 of 2 sites without a positive patient, whose own results say nothing about positives: "
        "CA, NY",
    ]
    everywhere = read_patients(tmp_path, anywhere=True)
    assert everywhere.ids == ("p1", "p3", "p4") and everywhere.site_names == ("CA", "NY", "unknown")
    assert everywhere.sex.tolist() == [0, 0, 2]
    assert everywhere.state.tolist() == [STATES.index("CA"), len(STATES), STATES.index("NY")]
    assert (
        "1 of 3 patients without an event, kept with an empty history; 0 of them positive"
        in everywhere.notes
    )


def test_patients_without_any_event_are_kept(tmp_path: Path) -> None:
    found = read(tmp_path, "patient,age,code,value\n")
    assert found.lengths.tolist() == [0, 0] and found.label.tolist() == [0, 0] and found.codes == ()
    assert (
        "2 of 2 patients without an event, kept with an empty history; 0 of them positive"
        in found.notes
    )
    with pytest.raises(
        ValueError,
        match=r"none is left; patients\.csv: 1 patient left out: no id; the first in row 2$",
    ):
        read(tmp_path, "patient,age,code,value\n", "patient,sex,postal_code\n,F,94103\n")


@pytest.mark.parametrize(("cell", "label"), [("0", 0), ("1", 1), ("0.0", 0), (" 1.0 ", 1)])
def test_labels_that_are_told(cell: str, label: int, tmp_path: Path) -> None:
    patients = f"patient,sex,postal_code,label\np1,F,94103,{cell}\np2,F,94103,0\n"
    found = read(tmp_path, "patient,age,code,value\np1,50,A,\n", patients)
    assert found.label.tolist() == [label, 0]
    against = (
        "1 patient with a label that contradicts the codes; the label was used (the first is "
        "patient 1)"
    )
    assert (against in found.notes) == (label == 1)


def test_times_and_ages_that_disagree_are_counted_by_patient(tmp_path: Path) -> None:
    # equal ages agree
    events = "patient,age,code,value,time\np1,50,A,,-5\np2,30,A,,1\np2,29,A,,2\np1,49,A,,6\np1,49,A,,7\np2,28,A,,3\n"
    notes = read(tmp_path, events).notes
    assert (
        "events.csv: 3 events with an age below that of an earlier one; events are sorted by time; "
        "the first in row 4" in notes
    )
    assert not any("after a later one" in note for note in notes)


def test_events_end_at_the_first_diagnosis() -> None:
    records = Records(
        np.zeros(4, int),
        ("a",),
        np.zeros(4, int),
        np.zeros(4, int),
        np.array([-1, -1, 0, 1]),
        np.zeros(5, np.int64),
        np.array([0, 1, 1, 0, 0, 1, 0, 0]),
        np.arange(8.0),
        np.arange(8.0),
        ("A", "C25"),
    )
    notes = Notes()
    owner, when = np.array([0, 0, 0, 0, 1, 2, 2, 3]), np.array([1.0, 5, 3, 3, 7, 4, 2, 1])
    found = before_diagnosis(records, owner, when, np.array([False, True]), notes)
    assert found.label.tolist() == [1, 0, 0, 1] and found.offsets.tolist() == [0, 1, 2, 3, 4]
    assert found.value.tolist() == found.age.tolist() == [0, 4, 6, 7] and found.code.tolist() == [
        0,
        0,
        0,
        0,
    ]
    assert notes.other == [
        "2 patients with a label that contradicts the codes; the label was used (the first is "
        "patient 3)",
        "4 events at or after the diagnosis of 2 patients removed",
    ]


def test_which_folders_hold_records(tmp_path: Path) -> None:
    assert record_folders(tmp_path / "none") == {} and not is_patients(tmp_path)
    written(tmp_path / "b", PATIENTS, "")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "patients.csv").write_text(PATIENTS)
    assert (
        list(record_folders(tmp_path)) == ["b"]
        and is_patients(tmp_path)
        and not is_patients(tmp_path / "a")
    )
    assert record_folders(tmp_path / "b") == {
        "": (tmp_path / "b" / "patients.csv", tmp_path / "b" / "events.csv")
    }
    with pytest.raises(
        ValueError,
        match=r"expected patients\.csv and events\.csv in every site's folder, but not in a",
    ):
        read_patients(tmp_path)
    with pytest.raises(
        ValueError,
        match=(
            r"expected patients\.csv and events\.csv \(or \.parquet\), or one folder per site with "
            r"both"
        ),
    ):
        read_patients(tmp_path / "a")


def test_notes_are_counted_by_file_and_reason() -> None:
    notes = Notes()
    for row in (7, 3):
        notes.add("a.csv", "cell", "changed", row, "x")
    notes.add("b.csv", "cell", "changed", 5, count=1200)
    notes.other.append("and more")
    assert notes.sentences() == [
        "a.csv: 2 cells changed; the first in row 7 ('x')",
        "b.csv: 1,200 cells changed; the first in row 5",
        "and more",
    ]

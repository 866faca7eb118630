"""Patients' records: what is read, removed and reported; and the synthetic ones."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.data import DataConfig, Parts, federate, inputs_from, load
from equipoise.data.check import check_data
from equipoise.data.patients import histories
from equipoise.data.patients.codes import PANCREATIC_CANCER, STATES, read_rule, state_of, system_of
from equipoise.data.patients.histories import dataset_of
from equipoise.data.patients.records import Records, read_patients
from equipoise.data.patients.synthetic import write_patients
from equipoise.models import build
from equipoise.runs.export import predictions

PATIENTS = """patient,sex,postal_code,state
p1,F,94103,CA
p2,M,94103,CA
p3,f,10001,NY
p4,male,10001,NY
"""
EVENTS = """patient,age,system,code,value
p1,50.5,ICD-10,E11.9,
p1,51.0,LOINC,2345-7,120
p1,52.0,ICD-10,C25.0,
p1,52.0,LOINC,2345-7,300
p1,53.0,ICD-10,E11.9,
p2,40.0,LOINC,2345-7,90
p3,60.0,ICD-9,1579,
p3,61.0,LOINC,2345-7,110
p4,33.0,ICD-10,Z00.0,
"""


def folder(path: Path, patients: str = PATIENTS, events: str = EVENTS) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "patients.csv").write_text(patients)
    (path / "events.csv").write_text(events)
    return path


def told(found: Records) -> str:
    return "\n".join(found.notes)


def events_of(found: Records, patient: int) -> list[tuple[str, float, float]]:
    part = slice(found.offsets[patient], found.offsets[patient + 1])
    return [
        (found.codes[c], float(v), float(a))
        for c, v, a in zip(found.code[part], found.value[part], found.age[part], strict=True)
    ]


def test_labels_by_codes_and_nothing_at_or_after_the_diagnosis(tmp_path: Path) -> None:
    found = read_patients(folder(tmp_path))
    assert found.label.tolist() == [1, 0, 1, 0]
    assert found.site_names == ("CA", "NY") and found.site.tolist() == [0, 0, 1, 1]
    assert (
        found.sex.tolist() == [0, 1, 0, 1]
        and found.state.tolist() == [STATES.index("CA")] * 2 + [STATES.index("NY")] * 2
    )
    first = events_of(found, 0)
    assert (
        [one[0] for one in first] == ["ICD-10:E11.9", "LOINC:2345-7"]
        and np.isnan(first[0][1])
        and first[1][1:] == (120.0, 51.0)
    )
    assert events_of(found, 2) == []  # the diagnosis came first
    assert "5 events at or after the diagnosis of 2 patients removed" in told(found)


def test_changing_what_comes_after_the_diagnosis_changes_nothing(tmp_path: Path) -> None:
    other = EVENTS.replace("p1,53.0,ICD-10,E11.9,", "p1,99.0,LOINC,2345-7,7").replace(
        "2345-7,300", "2345-7,1"
    )
    one, two = (
        dataset_of(read_patients(folder(tmp_path / name, events=text)), "x")
        for name, text in (("a", EVENTS), ("b", other))
    )
    assert torch.equal(one.x, two.x) and torch.equal(one.y, two.y)


def test_one_folder_per_site_is_the_same_as_one_for_all(tmp_path: Path) -> None:
    whole = read_patients(folder(tmp_path / "all"))
    lines = PATIENTS.splitlines(), EVENTS.splitlines()
    for state, people in (("CA", ("p1", "p2")), ("NY", ("p3", "p4"))):
        parts = [
            "\n".join([text[0], *(line for line in text[1:] if line.startswith(people))]) + "\n"
            for text in lines
        ]
        folder(tmp_path / "sites" / state, *parts)
    apart = read_patients(tmp_path / "sites")
    assert apart.site_names == whole.site_names and torch.equal(
        dataset_of(apart, "x").x, dataset_of(whole, "x").x
    )
    (tmp_path / "sites" / "TX").mkdir()
    with pytest.raises(ValueError, match="in every site's folder, but not in TX"):
        read_patients(tmp_path / "sites")


def test_sites_may_count_their_patients_by_themselves(tmp_path: Path) -> None:
    for state in ("CA", "NY"):
        folder(
            tmp_path / state,
            "patient,sex,postal_code\n1,F,94103\n",
            f"patient,age,code,value\n1,{40 + len(state)},E11,\n",
        )
    assert len(read_patients(tmp_path)) == 2


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    folder(tmp_path / "csv")
    (tmp_path / "parquet").mkdir()
    for name in ("patients", "events"):
        pq.write_table(
            pc.read_csv(tmp_path / "csv" / f"{name}.csv"), tmp_path / "parquet" / f"{name}.parquet"
        )
    one, two = (dataset_of(read_patients(tmp_path / kind), "x") for kind in ("csv", "parquet"))
    assert torch.equal(one.x, two.x) and torch.equal(one.y, two.y)


def test_the_state_of_the_postal_code_is_the_site_where_no_column_names_one(tmp_path: Path) -> None:
    found = read_patients(
        folder(tmp_path, "patient,sex,zip\np1,F,94103\np2,M,20500\np3,F,2139\np4,M,10001\n")
    )
    assert found.site_names == ("CA", "MA", "NY") and len(found) == 3
    assert "patients.csv: 1 patient left out: no known site; the first in row 3 ('p2')" in told(
        found
    )


BAD = [
    (
        "an event of nobody",
        PATIENTS,
        EVENTS + "p9,50,ICD-10,E11,\np9,51,ICD-10,E11,\n",
        "events.csv: 2 events left out: the patient is not in patients.csv; the first in row 11 "
        "('p9')",
        9 - 5,
    ),
    (
        "ages out of order",
        PATIENTS,
        EVENTS + "p2,39.0,ICD-10,E11,\n",
        "events.csv: 1 event after a later one of the same patient; events were sorted by age; "
        "the first in row 11",
        5,
    ),
    (
        "an unknown code system",
        PATIENTS,
        EVENTS + "p2,41,OPS,1-632,\n",
        "left out: unknown code system (known: ATC, CPT,",
        4,
    ),
    (
        "a value that is no number",
        PATIENTS,
        EVENTS.replace("90", "high"),
        "events.csv: 1 value read as missing: not a number; the first in row 7 ('high')",
        4,
    ),
    (
        "an infinite value",
        PATIENTS,
        EVENTS.replace("90", "inf"),
        "events.csv: 1 value read as missing: not a number; the first in row 7 ('inf')",
        4,
    ),
    (
        "a postal code of no state",
        PATIENTS.replace("p2,M,94103", "p2,M,00601"),
        EVENTS,
        "patients.csv: 1 postal code of no state, read as unknown; the first in row 3 ('00601')",
        4,
    ),
    (
        "a site without positives",
        PATIENTS,
        EVENTS.replace("p3,60.0,ICD-9,1579", "p3,60.0,ICD-9,1589"),
        "1 of 2 sites without a positive patient, whose own results say nothing about positives: "
        "NY",
        6,
    ),
    (
        "an impossible age",
        PATIENTS,
        EVENTS + "p2,-3,ICD-10,E11,\np2,x,ICD-10,E11,\n",
        "events.csv: 2 events left out: no age from 0 to 130; the first in row 11 ('-3')",
        4,
    ),
    (
        "a patient twice",
        PATIENTS + "p1,M,10001,NY\n",
        EVENTS,
        "patients.csv: 1 row left out: the patient was listed before; the first in row 6 ('p1')",
        4,
    ),
    (
        "an unknown sex",
        PATIENTS.replace("p2,M", "p2,?"),
        EVENTS,
        "patients.csv: 1 patient of unknown sex (known: female, male); the first in row 3 ('?')",
        4,
    ),
    (
        "a value beyond all measure",
        PATIENTS,
        EVENTS.replace("90", "1e39"),
        "events.csv: 1 value read as missing: not a number; the first in row 7 ('1e39')",
        4,
    ),
    (
        "spaces around cells",
        PATIENTS.replace("p2", " p2 "),
        EVENTS.replace("E11.9,", "E11.9 ,  ") + "p2,x,A,E1,\n",
        "events.csv: 1 event left out: unknown code system",
        4,
    ),
    (
        "empty lines at the end",
        PATIENTS + "\n\n",
        EVENTS + "\n",
        "1 of 4 patients without an event before the diagnosis, kept with an empty history; 1 of "
        "them positive",
        4,
    ),
    (
        "no code",
        PATIENTS,
        EVENTS + "p2,41,ICD-10,,\n",
        "events.csv: 1 event left out: no code; the first in row 11",
        4,
    ),
]


@pytest.mark.parametrize(
    ("patients", "events", "sentence", "kept"),
    [one[1:] for one in BAD],
    ids=[one[0] for one in BAD],
)
def test_what_is_wrong_is_told_with_file_row_and_count(
    patients: str, events: str, sentence: str, kept: int, tmp_path: Path
) -> None:
    found = read_patients(folder(tmp_path, patients, events))
    assert sentence in told(found)
    assert len(found.code) == kept and len(found) == 4
    data = load(DataConfig(name=str(tmp_path)))
    assert any(sentence in note for note in data.notes)
    assert any(sentence in note for note in check_data(DataConfig(name=str(tmp_path))).warnings)


@pytest.mark.parametrize(
    ("count", "shown"), [(5, "AL, AR, AZ, CA, CO"), (7, "AL, AR, AZ, CA, CO and 2 more")]
)
def test_of_sites_without_positives_five_are_named(count: int, shown: str, tmp_path: Path) -> None:
    states = ["AL", "AR", "AZ", "CA", "CO", "CT", "DE"][:count]
    patients = (
        "patient,sex,postal_code,state\n"
        + "".join(f"q{place},F,,{state}\n" for place, state in enumerate(states))
        + "p1,F,,NY\n"
    )
    found = read_patients(folder(tmp_path, patients, EVENTS))
    assert (
        told(found)
        .rstrip()
        .endswith(
            f"{count} of {count + 1} sites without a positive patient, whose own results say "
            f"nothing about positives: {shown}"
        )
    )


@pytest.mark.parametrize(
    ("patients", "events", "sentence"),
    [
        ("patient,sex,state\np1,F,CA\n", EVENTS, "expected the columns patient, sex, postal_code"),
        (PATIENTS, "patient,age,value\np1,3,\n", "expected the columns patient, code, value, age"),
        (PATIENTS, EVENTS + "p1,50\n", "events.csv, row 11: expected 5 cells, got 2"),
        ("patient,sex,postal_code,state\n", EVENTS, "expected at least one patient"),
        ("", EVENTS, "patients.csv: expected a line of column names, got an empty file"),
        (PATIENTS, "", "events.csv: expected a line of column names, got an empty file"),
        (
            PATIENTS,
            EVENTS.replace("p2,40", "\np2,40"),
            "events.csv, row 7: expected 5 cells, got 0",
        ),
        (
            PATIENTS,
            EVENTS + 'p1,53,"ICD-10,E11,\n',
            "events.csv is damaged or not a CSV file in UTF-8",
        ),
        (PATIENTS.replace("state", "sex"), EVENTS, "patients.csv: the column sex appears twice"),
        (
            PATIENTS.replace("NY", "../NY"),
            EVENTS,
            "patients.csv, row 4: the site of a patient, '../NY': expected 1 to 64 printable",
        ),
        (
            "patient,sex,postal_code,state,label\np1,F,94103,CA,ill\n",
            EVENTS,
            "row 2: expected a label of 0 or 1, got 'ill'",
        ),
    ],
)
def test_files_that_cannot_be_read_are_refused(
    patients: str, events: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        read_patients(folder(tmp_path, patients, events))


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_files_in_another_encoding_are_refused_by_name(encoding: str, tmp_path: Path) -> None:
    (folder(tmp_path) / "patients.csv").write_bytes(PATIENTS.replace("p1", "pü").encode(encoding))
    with pytest.raises(
        ValueError,
        match=r"patients\.csv is damaged or not a CSV file in UTF-8 .*; save it as CSV in UTF-8",
    ):
        read_patients(tmp_path)


def test_a_byte_order_mark_and_quotes_change_nothing(tmp_path: Path) -> None:
    plain = dataset_of(read_patients(folder(tmp_path / "plain")), "x")
    path = folder(tmp_path / "marked")
    for name, text in (("patients.csv", PATIENTS), ("events.csv", EVENTS)):
        (path / name).write_bytes(
            text.replace("p1", '"p ""1"", one"').replace("\n", "\r\n").encode("utf-8-sig")
        )
    assert torch.equal(dataset_of(read_patients(path), "x").x, plain.x)


def test_of_two_files_with_patients_neither_is_taken(tmp_path: Path) -> None:
    (folder(tmp_path) / "patients.parquet").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"expected one file of patients, got patients\.csv and patients\.parquet"
    ):
        read_patients(tmp_path)


def test_with_times_the_order_is_theirs_and_ages_are_held_to_it(tmp_path: Path) -> None:
    events = "patient,age,code,value,time\np2,41,B,,2020-03-01\np2,40,A,,2020-01-01\np2,39,C,,2020-02-01T08:30:00\n"
    found = read_patients(folder(tmp_path, events=events))
    assert [one[0] for one in events_of(found, 1)] == ["A", "C", "B"]
    assert (
        "events.csv: 1 event with an age below that of an earlier one; events are sorted by time; "
        "the first in row 4" in told(found)
    )
    events = events.replace("2020-01-01", "yesterday")
    assert (
        "left out: no valid time (2024-01-31, or a number); the first in row 3 ('yesterday')"
        in told(read_patients(folder(tmp_path, events=events)))
    )


def test_ages_are_held_to_times_site_by_site(tmp_path: Path) -> None:
    for name in ("CA", "NY"):
        folder(
            tmp_path / name,
            "Patient,Sex,ZIP\n1,F,94103\n",
            "patient,age,code,value,date\n1,41,A,,2020-01-01\n1,40,B,,2020-02-01\n",
        )
    assert [
        note for note in read_patients(tmp_path).notes if "below that of an earlier one" in note
    ] == [
        f"{name}/events.csv: 1 event with an age below that of an earlier one; events are sorted "
        "by time; the first in row 3"
        for name in ("CA", "NY")
    ]
    with pytest.raises(ValueError, match="site: state is for one folder that holds all sites"):
        read_patients(tmp_path, site="state")


def test_the_column_of_the_site_is_found_whatever_its_case(tmp_path: Path) -> None:
    patients = "patient,sex,postal_code,Hospital\np1,F,94103,north\np2,M,94103,south\np3,F,10001,north\np4,M,10001,south\n"
    assert read_patients(folder(tmp_path, patients), site="Hospital").site_names == (
        "north",
        "south",
    )


def test_a_label_column_is_followed_and_differences_are_told(tmp_path: Path) -> None:
    found = read_patients(
        folder(
            tmp_path,
            "patient,sex,postal_code,state,label\np1,F,94103,CA,0\np2,M,94103,CA,1\np3,F,10001,NY,1\np4,M,10001,NY,0\n",
        )
    )
    assert found.label.tolist() == [
        0,
        1,
        1,
        0,
    ] and "2 patients with a label that contradicts the codes" in told(found)


def test_any_other_label_by_a_file_of_codes(tmp_path: Path) -> None:
    (tmp_path / "codes.csv").write_text("code,system\nE11.9,ICD-10-CM\n")
    (tmp_path / "plain.txt").write_text("E119\n")
    for file in ("codes.csv", "plain.txt"):
        rule = read_rule(tmp_path / file)
        assert read_patients(folder(tmp_path / "data"), rule=rule).label.tolist() == [1, 0, 0, 0]
        assert load(
            DataConfig(name=str(tmp_path / "data"), codes=str(tmp_path / file))
        ).y.tolist() == [1, 0, 0, 0]
    (tmp_path / "codes.csv").write_text("code,system\nE11.9,XYZ\n")
    with pytest.raises(ValueError, match="row 2: unknown code system 'XYZ'"):
        read_rule(tmp_path / "codes.csv")


def test_the_default_rule_is_appendix_h() -> None:
    for code in (
        "C25",
        "C25.0",
        "C25.1",
        "C25.2",
        "C25.3",
        "C25.4",
        "C25.7",
        "C25.8",
        "C25.9",
        "c259",
    ):
        assert PANCREATIC_CANCER.matches("ICD-10", code) and PANCREATIC_CANCER.matches("", code)
    for code in ("157", "157.0", "157.1", "157.2", "157.3", "157.4", "157.8", "157.9"):
        assert PANCREATIC_CANCER.matches("ICD-9", code)
    for system, code in (
        ("ICD-10", "C25.5"),
        ("ICD-9", "157.5"),
        ("CPT", "157"),
        ("ICD-10", "157"),
        ("ICD-10", "C26"),
    ):
        assert not PANCREATIC_CANCER.matches(system, code)


def test_postal_codes_and_systems() -> None:
    known = {
        "00501": "NY",
        "02108": "MA",
        "05544": "MA",
        "20101": "VA",
        "73301": "TX",
        "73101": "OK",
        "88510": "TX",
        "34001": None,
        "96910": None,
        "56901": None,
    }
    assert {code: state_of(code) for code in known} == known
    assert {state_of(f"{k:03}00") for k in range(1000)} - {None} == set(STATES)
    assert state_of("") is state_of("ABCDE") is state_of("1") is state_of("９４１０３") is None
    assert system_of("Snomed-CT") == "SNOMED CT" and system_of("ICD-11") is None


def test_the_latest_events_are_kept_and_padded_for_the_network(tmp_path: Path) -> None:
    events = (
        "patient,age,code,value\n"
        + "".join(f"p2,{20 + k},A,{k}\n" for k in range(6))
        + "p4,30,B,\n"
    )
    data = dataset_of(read_patients(folder(tmp_path, events=events)), "x", events=4)
    assert data.x.shape == (4, 5, 4) and data.codes == ("A", "B")
    assert data.x[1, 0].tolist() == [1, STATES.index("CA"), 4, 0]
    assert data.x[1, 1:].tolist() == [[1, k, 20 + k, 0] for k in range(2, 6)]
    assert data.x[3].tolist() == [[1, STATES.index("NY"), 1, 0], [2, 0, 30, 1], *[[0, 0, 0, 0]] * 3]
    assert data.x[0].tolist() == [[0, STATES.index("CA"), 0, 0], *[[0, 0, 0, 0]] * 4]
    assert "2 events of 1 patient left out: only the latest 4 of each are kept" in data.notes[-1]


@pytest.mark.thorough
def test_values_are_scaled_by_code_over_training_patients_only(tmp_path: Path) -> None:
    write_patients(tmp_path, 3, 0.002)
    federation = federate(DataConfig(name=str(tmp_path)), seed=0)
    train = federation.x[torch.from_numpy(np.unique(federation.train.index))][:, 1:]
    code = federation.recipe["codes"].index("LOINC:2345-7") + 1
    seen = train[(train[..., 0] == code) & (train[..., 3] == 0)][:, 1]
    assert (
        len(seen) > 50
        and float(seen.mean()) == pytest.approx(0, abs=0.02)
        and float(seen.std()) == pytest.approx(1, abs=0.05)
    )
    assert float(train[..., 2].max()) < 1.3  # ages in centuries
    raw = load(DataConfig(name=str(tmp_path)))
    again = inputs_from(raw.x.numpy()[federation.source], federation.recipe)
    assert torch.equal(again, federation.x)
    assert torch.equal(
        inputs_from(str(tmp_path), federation.recipe)[federation.source], federation.x
    )
    with pytest.raises(ValueError, match="leave normalise and augment out"):
        federate(DataConfig(name=str(tmp_path), normalise="client"), seed=0)


@pytest.mark.thorough
def test_a_million_events_stay_within_bounds(tmp_path: Path) -> None:
    """A twentieth of a million here, and the memory by which it would grow: less than 200 bytes an
    event, samples of the network included.
    """
    draw, people, n = np.random.default_rng(0), 1000, 50_000
    (tmp_path / "patients.csv").write_text(
        "patient,sex,postal_code,state\n" + "".join(f"{p},F,94103,CA\n" for p in range(people))
    )
    with open(tmp_path / "events.csv", "w") as opened:
        opened.write("patient,age,system,code,value\n")
        for p, a, c in zip(
            draw.integers(0, people, n),
            draw.uniform(20, 90, n),
            draw.integers(0, 900, n),
            strict=True,
        ):
            opened.write(f"{p},{a:.4f},ICD-10,E{c // 10:02}.{c % 10},{a:.2f}\n")
    assert (tmp_path / "events.csv").stat().st_size > 1.25e6
    tracemalloc.start()
    data = load(DataConfig(name=str(tmp_path)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(data.x) == people and int(data.x[:, 0, 2].sum()) >= 0.98 * n
    assert peak < 200 * n + 40e6  # the second: one block of text


def test_the_network_takes_patients(tmp_path: Path) -> None:
    data = load(DataConfig(name=str(folder(tmp_path))))
    net = build({"name": "gru", "hidden": 4, "embedding": 4, "codes": len(data.codes)}, data.task)
    assert net(data.x).shape == (4, 2)


def test_predictions_name_the_patient_and_end_where_training_did(tmp_path: Path) -> None:
    """The label rule of the run holds for any site, also where some patients are left out."""
    (tmp_path / "codes.txt").write_text("E11.9\n")
    draw = np.random.default_rng(0)
    people = "".join(f"q{k},F,{'94103,CA' if k % 2 else '10001,NY'}\n" for k in range(24))
    events = "".join(
        f"q{k},{40 + e},{'LOINC' if e < 3 or k % 3 else 'ICD-10'},{'2345-7' if e < 3 or k % 3 else 'E11.9'},{draw.normal()}\n"
        for k in range(24)
        for e in range(4)
    )
    folder(
        tmp_path / "train",
        "patient,sex,postal_code,state\n" + people,
        "patient,age,system,code,value\n" + events,
    )
    config = {
        "data": {"name": str(tmp_path / "train"), "codes": str(tmp_path / "codes.txt")},
        "model": {"name": "gru", "hidden": 4, "embedding": 4}, "rounds": 1, "workers": 0,
    }  # fmt: skip
    run = eq.run(config, tmp_path / "run")
    new = "patient,sex,postal_code\nn1,F,94103\nn1,M,94103\nn2,F,none\n"
    early = "patient,age,system,code,value\nn1,50,LOINC,2345-7,2\nn2,50,LOINC,2345-7,1\n"
    late = early + "n1,51,ICD-10,E11.9,\nn1,52,LOINC,2345-7,-9\n"
    header, rows = predictions(run, folder(tmp_path / "early", new, early))
    assert header[0] == "patient" and [row[0] for row in rows] == ["n1", "n2"]
    assert predictions(run, folder(tmp_path / "late", new, late))[1] == rows
    folder(tmp_path / "sites" / "CA", new, early)
    assert [row[0] for row in predictions(run, tmp_path / "sites")[1]] == ["CA/n1", "CA/n2"]
    run.store.close()


def test_what_lies_beside_the_sites_folders(tmp_path: Path) -> None:
    folder(tmp_path / "CA")
    (tmp_path / ".git").mkdir()
    assert len(read_patients(tmp_path)) == 4
    (tmp_path / "events.csv").write_text(EVENTS)
    with pytest.raises(
        ValueError,
        match=(
            r"either one folder for all sites or one per site, got events\.csv and folders of sites"
        ),
    ):
        read_patients(tmp_path)


def test_values_of_each_code_are_scaled_by_those_of_the_training_patients() -> None:
    draw = np.random.default_rng(0)
    x = np.zeros((40, 1 + 6, 4), np.float32)
    x[:, 1:, 0] = draw.integers(0, 5, (40, 6))  # 0: no event; 4: a rare code
    x[:, 1:, 1] = draw.normal(50, 9, (40, 6))
    x[:, 1:, 3] = draw.random((40, 6)) < 0.3  # no value
    x[:, 1:, 1] *= 1 - x[:, 1:, 3]
    train = Parts.of([np.arange(0, 20), np.arange(15, 30)])  # a patient of two clients counts once
    recipe = histories.fit(x, ("a", "b", "c"), train)
    for code in range(1, 5):
        values = [
            float(event[1])
            for patient in x[:30]
            for event in patient[1:]
            if event[0] == code and not event[3]
        ]
        assert recipe["mean"][code] == pytest.approx(np.mean(values)) and recipe["scale"][
            code
        ] == pytest.approx(np.std(values))
    assert recipe["mean"][0] == 0 and recipe["scale"][0] == 1 and recipe["shape"] == [7, 4]

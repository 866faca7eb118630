"""Dirty files of several sites, repaired by a schema and never edited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.data import DataConfig, federate, from_arrays, from_frame, from_tables, inputs_from
from equipoise.data.check import check_data
from equipoise.data.findings import Finding
from equipoise.data.schema import Schema, schema_from
from equipoise.experiment import experiment, load
from equipoise.validation import safe_yaml
from tests.helpers.terminal import Terminal, equipoise  # noqa: F401

ROWS = 60
SCHEMA: dict[str, Any] = {
    "label": "disease",
    "rename": {"AGE": "age", "Alter": "age", "Geschlecht": "sex"},
    "values": {"sex": {"F": "f", "M": "m"}, "disease": {"ja": 1, "nein": 0}},
    "missing": {"chol": [-9]},
    "sites": {
        "zurich": {
            "missing": {"chol": ["n.d."]},
            "factors": {"chol": 0.5},
            "values": {"sex": {1: "f", 2: "m"}},
        }
    },
}
SMALL = ("--rounds", "1", "--set", "model={name: mlp, hidden: [4]}", "--set", "workers=0")


def patient(site: int, i: int) -> tuple[int, str, float, int]:
    """Age, sex, cholesterol and disease as all sites mean them."""
    return 30 + (7 * i + site) % 50, "fm"[i % 2], 4.0 + (i * 3 + site) % 8 / 2, (i // 2) % 2


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """The same patients as in `dirty`, written alike."""
    folder = tmp_path / "clean"
    folder.mkdir()
    for number, site in enumerate(("basel", "bern", "zurich")):
        lines = ["age,sex,chol,disease"]
        for i in range(ROWS):
            age, sex, chol, disease = patient(number, i)
            gap = (site, i) in {("bern", 5), ("zurich", 6)}
            lines.append(f"{age},{sex},{'' if gap else chol},{disease}")
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def dirty(tmp_path: Path) -> Path:
    """Other names, codes, units and marks for gaps at every site."""
    folder = tmp_path / "dirty"
    folder.mkdir()
    files = {
        "basel": ["age,sex,chol,disease"],
        "bern": ["AGE,sex,chol,disease"],
        "zurich": ["Alter;Geschlecht;chol;disease"],
    }
    for i in range(ROWS):
        age, sex, chol, disease = patient(0, i)
        files["basel"].append(f"{age},{sex},{chol},{'ja' if disease else 'nein'}")
        age, sex, chol, disease = patient(1, i)
        files["bern"].append(f"{age},{sex.upper()},{'-9.0' if i == 5 else chol},{disease}")
        age, sex, chol, disease = patient(2, i)
        shown = "n.d." if i == 6 else str(2 * chol).replace(".", ",")
        files["zurich"].append(f"{age};{1 if sex == 'f' else 2};{shown};{disease}")
    for site, lines in files.items():
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_repaired_files_give_the_same_federation_as_clean_ones(clean: Path, dirty: Path) -> None:
    expected = federate(DataConfig(name=str(clean), label="disease"), 1)
    found = federate(DataConfig(name=str(dirty), schema=SCHEMA), 1)
    assert torch.equal(found.x, expected.x) and torch.equal(found.y, expected.y)
    assert found.recipe["features"] == expected.recipe["features"]


def test_one_file_with_a_site_column_is_repaired_in_the_same_way(
    clean: Path, tmp_path: Path
) -> None:
    lines = ["Klinik;Alter;sex;chol;disease"]
    for number, site in enumerate(("basel", "bern", "zurich")):
        for i in range(ROWS):
            age, sex, chol, disease = patient(number, i)
            shown = "n.d." if (site, i) in {("bern", 5), ("zurich", 6)} else chol
            shown = str(shown if shown == "n.d." else chol * (2 if site == "bern" else 1))
            lines.append(f"{site};{age};{sex};{shown.replace('.', ',', 1)};{disease}")
    (tmp_path / "all.csv").write_text("\n".join(lines).replace("n,d.", "n.d.") + "\n")
    schema = {
        "label": "disease",
        "rename": {"Klinik": "hospital", "Alter": "age"},
        "missing": {"chol": ["n.d."]},
        "sites": {"bern": {"factors": {"chol": 0.5}}},
    }
    expected = federate(DataConfig(name=str(clean), label="disease"), 1)
    for column in ("hospital", "Klinik"):
        config = DataConfig(name=str(tmp_path / "all.csv"), site=column, schema=schema)
        assert torch.equal(federate(config, 1).x, expected.x)


def test_frames_parquet_and_npz_are_repaired_as_csv_is(
    clean: Path, dirty: Path, tmp_path: Path
) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    schema = {
        "label": "disease",
        "rename": {"AGE": "age"},
        "values": {"sex": {"F": "f", "M": "m"}},
        "missing": {"chol": [-9]},
        "factors": {"age": 2},
    }
    frame = pandas.read_csv(dirty / "bern.csv")
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "bern.csv").write_bytes((dirty / "bern.csv").read_bytes())
    expected = from_tables(tmp_path / "csv", schema=schema_from(schema))
    (tmp_path / "parquet").mkdir()
    frame.to_parquet(tmp_path / "parquet" / "bern.parquet")
    (tmp_path / "npz").mkdir()
    arrays = {name: frame[name].to_numpy() for name in ("AGE", "chol", "disease")}
    np.savez(tmp_path / "npz" / "bern.npz", sex=frame["sex"].to_numpy().astype(str), **arrays)
    for made in (
        from_frame(frame, label="disease", schema=schema),
        from_tables(tmp_path / "parquet", schema=schema_from(schema)),
        from_tables(tmp_path / "npz", schema=schema_from(schema)),
    ):
        for column in ("age", "sex", "chol"):
            place = [one.name for one in made.columns].index(column)
            where = [one.name for one in expected.columns].index(column)
            assert torch.equal(made.x[:, place].nan_to_num(-1), expected.x[:, where].nan_to_num(-1))
    assert expected.x[:, 0].min() >= 60 and int(expected.x[:, 2].isnan().sum()) == 1


def test_new_rows_are_repaired_as_those_of_training(dirty: Path) -> None:
    federation = federate(DataConfig(name=str(dirty), schema=SCHEMA), 1)
    for number, site in enumerate(("basel", "bern", "zurich")):
        again = inputs_from(dirty / f"{site}.csv", federation.recipe, site)
        first = number * ROWS
        own = np.flatnonzero((federation.source >= first) & (federation.source < first + ROWS))
        assert torch.equal(again[federation.source[own] - first], federation.x[own])
    rows = np.array([["40", "1", "n.d."], ["41", "2", "9"]])
    by_array = inputs_from(rows, federation.recipe, "zurich")
    (dirty / "new.csv").write_text("Alter,Geschlecht,chol\n40,1,n.d.\n41,2,9\n")
    assert torch.equal(by_array, inputs_from(dirty / "new.csv", federation.recipe, "zurich"))


def test_new_rows_without_their_site_are_read_with_a_warning(
    dirty: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = DataConfig(name=str(dirty), schema=SCHEMA, normalise="pooled")
    recipe = federate(config, 1).recipe
    inputs_from(dirty / "bern.csv", recipe, "bern")
    assert "zurich" not in caplog.text
    inputs_from(dirty / "bern.csv", recipe)
    assert "zurich" in caplog.text and "--client" in caplog.text


def test_run_stores_the_repairs_and_predict_applies_them(
    dirty: Path,
    tmp_path: Path,
    equipoise: Terminal,  # noqa: F811
) -> None:
    schema_from(SCHEMA).save(tmp_path / "schema.yaml")  # type: ignore[union-attr]
    run = tmp_path / "run"
    words = ("run", "--data", dirty, "--schema", tmp_path / "schema.yaml", *SMALL, "--out", run)
    assert equipoise(*words).code == 0
    (tmp_path / "schema.yaml").unlink()
    stored = eq.Run(run).store.meta("recipe")["schema"]
    assert stored["rename"] == SCHEMA["rename"] and stored["sites"]["zurich"]["factors"]
    answer = equipoise("predict", run, dirty)
    assert answer.code == 0 and len(answer.out.splitlines()) == 3 * ROWS + 1
    again = federate(experiment(load(run / "experiment.yaml")).data, 1)
    assert torch.equal(again.x, federate(DataConfig(name=str(dirty), schema=SCHEMA), 1).x)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rename": {"AGEE": "age"}}, ("`rename`", "'AGEE'", "did you mean 'AGE'")),
        ({"values": {"sexx": {"F": "f"}}}, ("`values`", "'sexx'", "did you mean 'sex'")),
        ({"values": {"sex": {"FF": "f"}}}, ("`values`", "'sex'", "'FF'", "did you mean 'F'")),
        ({"missing": {"chol": [-99]}}, ("`missing`", "'chol'", "'-99'")),
        ({"factors": {"cholesterol": 2}}, ("`factors`", "'cholesterol'", "did you mean 'chol'")),
        ({"sites": {"zuerich": {}}}, ("`sites`", "'zuerich'", "did you mean 'zurich'")),
        ({"sites": {"bern": {"missing": {"chol": ["n.d."]}}}}, ("site 'bern'", "'n.d.'")),
        ({"sites": {"bern": {"rename": {"Alter": "age"}}}}, ("site 'bern'", "'Alter'")),
        ({"rename": {**SCHEMA["rename"], "sex": "age"}}, ("basel.csv", "'age'", "'sex'")),
        ({"factors": {"sex": 2}}, ("`factors`", "'sex'", "'f'")),
    ],
)
def test_a_repair_that_matches_nothing_is_refused(
    dirty: Path, change: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError) as refused:
        federate(DataConfig(name=str(dirty), schema={**SCHEMA, **change}), 1)
    lines = str(refused.value).splitlines()
    assert any(all(word in line for word in named) for line in lines), lines


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"factors": {"a": 0}}, "factors other than 0"),
        ({"factors": {"a": True}}, "factors"),
        ({"missing": {"a": 3}}, "missing.a"),
        ({"sites": {"x": {"renam": {}}}}, "did you mean 'rename'"),
        ({"values": {"a": {"x": True}}}, "values.a.x"),
    ],
)
def test_wrong_repairs_are_refused_by_key(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        schema_from(wrong)


def test_a_site_wins_over_all_sites_column_by_column() -> None:
    schema = schema_from(
        {
            "values": {"a": {"x": "1", "y": "2"}},
            "missing": {"a": [0], "b": [0]},
            "factors": {"a": 2, "b": 3},
            "sites": {
                "s": {"values": {"a": {"x": "9"}}, "missing": {"a": [7]}, "factors": {"a": 5}}
            },
        }
    )
    assert schema is not None
    own = schema.repairs_of("s")
    assert own.values == {"a": {"x": "9", "y": "2"}}
    assert own.missing == {"a": ("7",), "b": ("0",)} and own.factors == {"a": 5, "b": 3}
    assert schema.repairs_of("t").factors == {"a": 2, "b": 3}


def test_a_value_can_become_a_gap_and_each_cell_is_replaced_once(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("c,n,label\n0,1,x\n1,2,y\nunknown,3,x\n0,4,y\n")
    schema = schema_from({"values": {"c": {"0": 1, "1": 0, "unknown": None}}})
    data = from_tables(tmp_path, schema=schema)
    assert data.x[:, 0].nan_to_num(-1).tolist() == [1, 0, -1, 1]


def test_repairs_are_refused_for_data_without_cells(tmp_path: Path) -> None:
    data = from_arrays(np.zeros((20, 1)), np.arange(20) % 2, columns=["a"])
    with pytest.raises(ValueError, match="`factors` .*from_frame"):
        federate(DataConfig(clients=2, schema={"factors": {"a": 2}}), 1, data)


def test_partial_columns_are_completed_from_the_cells(clean: Path) -> None:
    columns = [
        {"name": "sex", "kind": "category"},
        {"name": "age", "kind": "category", "categories": ["30"]},
        {"name": "chol", "kind": "number"},
    ]
    schema = from_tables(clean, schema=schema_from({"label": "disease", "columns": columns})).schema
    assert schema is not None
    assert [(one.categories, one.gaps) for one in schema.columns] == [
        (("f", "m"), False),
        (("30",), False),
        ((), True),
    ]
    (clean / "bern.csv").write_text("age,sex,chol,disease\n30,f,high,1\n31,m,2,0\n")
    with pytest.raises(ValueError, match=r"bern\.csv, line 2, column 'chol'.*got 'high'"):
        from_tables(clean, schema=schema_from({"label": "disease", "columns": columns}))


def test_partial_dates_are_completed_or_refused_by_cell(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("d,n,label\n2024-01-31,1,x\n2024-02-01,2,y\n")
    schema = {"columns": [{"name": "d", "kind": "date"}, {"name": "n", "kind": "number"}]}
    found = from_tables(tmp_path, schema=schema_from(schema)).schema
    assert found is not None and found.columns[0].formats == ("%Y-%m-%d",)
    (tmp_path / "a.csv").write_text("d,n,label\n2024-01-31,1,x\nyesterday,2,y\n")
    with pytest.raises(ValueError, match=r"a\.csv, line 2, column 'd'"):
        from_tables(tmp_path, schema=schema_from(schema))


def test_categories_saved_before_values_were_added_follow_them(dirty: Path) -> None:
    columns = [{"name": "sex", "kind": "category", "categories": ["1", "2", "F", "M", "f", "m"]}]
    schema = {**SCHEMA, "columns": columns, "classes": ["0", "1", "ja", "nein"]}
    schema = {**schema, "missing": {}, "sites": {"zurich": SCHEMA["sites"]["zurich"]}}
    schema["values"] = {**SCHEMA["values"], "sex": {"F": "f", "M": "m", "1": "f", "2": "m"}}
    found = from_tables(dirty, schema=schema_from(schema)).schema
    assert found is not None
    assert found.columns[0].categories == ("f", "m") and found.classes == ("0", "1")


def sites(folder: Path, **headers: str) -> Path:
    folder.mkdir(exist_ok=True)
    for place, (site, header) in enumerate(headers.items()):
        # Rows differ between sites, so that none looks like a copy of another.
        rows = "".join(f"{i % 7},{i % 5 + place / 4},{i % 2}\n" for i in range(30))
        (folder / f"{site}.csv").write_text(f"{header}\n{rows}")
    return folder


def test_names_that_differ_in_case_or_blanks_are_matched_with_a_note(tmp_path: Path) -> None:
    folder = sites(
        tmp_path / "s",
        a="age,blood pressure,label",
        b="Age,Blood  Pressure,label",
        c="age,bloodpressure,label",
    )
    found = check_data(DataConfig(name=str(folder)))
    assert not found.problems
    assert [column.name for column in found.columns] == ["age", "blood pressure"]
    (note,) = [one for one in found.findings if one.column == "age"]
    assert note.certain and note.sites == ("b",) and note.repair == {"rename": {"Age": "age"}}
    assert "b.csv" in note.message and "'Age'" in note.message
    schema = from_tables(folder).schema
    assert schema is not None and schema.rename["Age"] == "age"
    assert any("'Age'" in note for note in from_tables(folder).notes)
    given = check_data(DataConfig(name=str(folder), schema=schema))
    assert not given.findings and not given.problems


def test_the_name_of_the_schema_or_label_is_the_one_that_is_used(tmp_path: Path) -> None:
    folder = sites(tmp_path / "s", a="age,x,Label", b="age,x,LABEL")
    columns = [{"name": "AGE", "kind": "number"}, {"name": "x", "kind": "number"}]
    data = from_tables(folder, label="label", schema=schema_from({"columns": columns}))
    assert [column.name for column in data.columns] == ["AGE", "x"]
    assert data.schema is not None and data.schema.label == "label"


@pytest.mark.parametrize("first", ["age,Age,label", "AGE,Age,label"])
def test_two_columns_of_one_file_that_match_one_name_are_refused(
    tmp_path: Path, first: str
) -> None:
    folder = sites(tmp_path / "s", a=first, b="age,x,label")
    with pytest.raises(ValueError, match=r"a\.csv: .*'Age'.*differ only in case"):
        from_tables(folder)


def test_two_such_columns_in_all_files_are_two_columns_with_a_warning(tmp_path: Path) -> None:
    found = check_data(
        DataConfig(name=str(sites(tmp_path / "s", a="age,Age,label", b="age,Age,label")))
    )
    assert [column.name for column in found.columns] == ["age", "Age"] and not found.problems
    (finding,) = found.findings
    assert not finding.certain and "'age' and 'Age'" in finding.message


def test_data_check_shows_all_problems_before_it_refuses(
    tmp_path: Path,
    equipoise: Terminal,  # noqa: F811
) -> None:
    folder = sites(tmp_path / "s", ok="age,x,label", other="AGE,x,label")
    (folder / "short.csv").write_text("age,x,label\n1,2,0\n\n3,4\n")
    (folder / "twice.csv").write_text("age,age,label\n1,2,0\n")
    (folder / "bytes.csv").write_bytes(b"\0\1\2")
    (folder / "empty.csv").write_text("age,x,label\n1,2,0\n3,4,\n")
    (folder / "more.csv").write_text("age,x,z,label\n1,2,5,0\n3,4,5,1\n")
    answer = equipoise("data", "check", folder, "--save", tmp_path / "schema.yaml")
    assert answer.code == 2 and "ok " in answer.out and "'AGE'" in answer.out
    named = ("short.csv, line 4", "twice.csv", "bytes.csv", "empty.csv, line 3", "has also z")
    lines = answer.err.splitlines()
    for word in named:
        assert any(word in line for line in lines), word
    assert safe_yaml.read(tmp_path / "schema.yaml")["rename"] == {"AGE": "age"}
    as_json = json.loads(equipoise("data", "check", folder, "--json").out)
    assert len(as_json["problems"]) == len(named) and as_json["findings"][0]["certain"]
    run = equipoise("run", "--data", folder, *SMALL, "--out", tmp_path / "run")
    assert run.code == 2 and all(word in run.err for word in named)


def test_a_saved_schema_reads_the_data_as_they_were_read(
    dirty: Path,
    tmp_path: Path,
    equipoise: Terminal,  # noqa: F811
) -> None:
    schema_from(SCHEMA).save(tmp_path / "given.yaml")  # type: ignore[union-attr]
    saved = tmp_path / "saved.yaml"
    words = ("data", "check", dirty, "--schema")
    assert equipoise(*words, tmp_path / "given.yaml", "--save", saved).code == 0
    first = federate(DataConfig(name=str(dirty), schema=str(tmp_path / "given.yaml")), 1)
    again = federate(DataConfig(name=str(dirty), schema=str(saved)), 1)
    assert torch.equal(first.x, again.x) and first.recipe["schema"] == again.recipe["schema"]
    assert equipoise(*words, saved, "--save", saved).code == 2, "it is there already"


PROPOSED = [
    Finding("sex has two spellings", "sex", repair={"values": {"sex": {"F": "f"}}}),
    Finding("perhaps mg", "chol", repair={"sites": {"zurich": {"factors": {"chol": 38.67}}}}),
    Finding("0 may be a gap", "chol", repair={"missing": {"chol": ["0"]}}),
    Finding("a number per row", "age", repair={"columns": [{"name": "age", "kind": "identifier"}]}),
    Finding("nobody\nknows", "x"),
]


def test_proposals_are_comments_that_can_be_uncommented(tmp_path: Path) -> None:
    columns = [{"name": "age", "kind": "number"}, {"name": "no", "kind": "text"}]
    schema = schema_from(
        {"columns": columns, "values": {"sex": {"M": "m"}}, "missing": {"bp": [0]}}
    )
    assert schema is not None
    file = tmp_path / "schema.yaml"
    schema.save(file, PROPOSED)
    assert schema_from(file) == schema
    text = file.read_text()
    assert all(one.message in text for one in PROPOSED[:4]) and "knows" not in text
    lines = [
        line.removeprefix("# ") if not line.startswith("##") else line for line in text.splitlines()
    ]
    lines = [line for line in lines if "kind: number" not in line][2:]
    found = safe_yaml.parsed("\n".join(lines), "uncommented")
    assert found["values"] == {"sex": {"M": "m", "F": "f"}}
    assert found["sites"] == {"zurich": {"factors": {"chol": 38.67}}}
    assert found["missing"] == {"bp": ["0"], "chol": ["0"]}
    assert found["columns"][0] == {"name": "age", "kind": "identifier"}
    assert schema_from(found) is not None


@pytest.mark.parametrize(
    "name", ["1e3", "yes", "a: b", "# x", "- y", "two\nlines", "", "é", "x" * 200, "[", "'", "{a}"]
)
def test_any_name_is_saved_as_text(tmp_path: Path, name: str) -> None:
    schema = Schema(
        columns=({"name": name, "kind": "category", "categories": (name, "other one")},),  # type: ignore[arg-type]
        rename={name: "x"},
        values={name: {name: name}},
    )
    proposal = Finding(f"about {name}", repair={"values": {name: {"z": name}}})
    schema.save(tmp_path / "schema.yaml", [proposal])
    assert schema_from(tmp_path / "schema.yaml") == schema


def test_fragments_are_added_to_a_schema() -> None:
    schema = schema_from({"missing": {"a": [0]}, "columns": [{"name": "a", "kind": "number"}]})
    assert schema is not None
    found = schema.with_repairs({"missing": {"a": [-9]}, "rename": {"B": "b"}})
    found = found.with_repairs({"columns": [{"name": "a", "kind": "category"}]})
    assert found.missing == {"a": ("0", "-9")} and found.rename == {"B": "b"}
    assert [(one.name, one.kind) for one in found.columns] == [("a", "category")]
    with pytest.raises(ValueError, match="did you mean 'rename'"):
        schema.with_repairs({"renam": {}})

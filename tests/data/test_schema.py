"""One schema for a table whatever the seed: decided from whole files, kept in the run, given back
by the user.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import equipoise as eq
from equipoise.data import (
    Column,
    DataConfig,
    Dataset,
    federate,
    from_arrays,
    from_tables,
    inputs_from,
)
from equipoise.data.roster import Roster, roster_of
from equipoise.data.schema import Schema, schema_from
from equipoise.experiment import ConfigurationError

ROWS = 40


def table(site: str) -> str:
    """Ages, a rare gap, a rare ward, dates, a number per patient, a sentence per patient."""
    first = 100 * ord(site[0])
    lines = ["patient,age,ward,pressure,admitted,note,label"]
    for i in range(ROWS):
        ward = "rare" if i == 7 and site == "north" else "ab"[i % 2]
        pressure = "" if i == 3 and site == "south" else str(100 + (i * 37) % 23)
        label = "sick" if i % 3 else "well"
        lines.append(
            f"{first + i * 3},{30 + i % 11 + first % 7},{ward},{pressure},2024-01-{1 + i % 28:02},came in at {i} with a long story {first},{label}"
        )
    return "\n".join(lines) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for site in ("north", "south"):
        (tmp_path / "sites").mkdir(exist_ok=True)
        (tmp_path / "sites" / f"{site}.csv").write_text(table(site))
    return tmp_path / "sites"


def test_the_inputs_are_the_same_whatever_the_seed(folder: Path) -> None:
    expected = [
        "age",
        "ward=a",
        "ward=b",
        "ward=rare",
        "ward=other",
        "pressure",
        "pressure missing",
        "admitted",
    ]
    rare, gap = 0, 0
    for seed in range(1, 13):
        federation = federate(DataConfig(name=str(folder)), seed)
        assert federation.recipe["features"] == expected
        assert federation.task.shape == (len(expected),)
        rare += int(federation.x[federation.train.index, 3].sum() == 0)
        gap += int(federation.x[federation.train.index, 6].sum() == 0)
    assert rare and gap  # in some seeds no training row has them


def test_what_each_column_is(folder: Path) -> None:
    schema = from_tables(folder).schema
    assert schema is not None
    kinds = {column.name: column.kind for column in schema.columns}
    assert kinds == {
        "patient": "identifier",
        "age": "number",
        "ward": "category",
        "pressure": "number",
        "admitted": "date",
        "note": "text",
    }
    assert {column.name for column in schema.columns if column.gaps} == {"pressure"}
    assert (schema.label, schema.task, schema.classes) == (
        "label",
        "classification",
        ("sick", "well"),
    )


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("patient_id", range(500, 700, 5), "identifier"),
        ("PatientID", range(500, 700, 5), "identifier"),
        ("n", range(40), "identifier"),  # counts the rows
        ("n", range(1, 41), "identifier"),
        (
            "age",
            range(30, 70),
            "number",
        ),  # different in every row, but neither named nor counted like an identifier
        ("visits_no", [i % 4 for i in range(40)], "number"),
        ("patient_id", [i % 4 for i in range(40)], "number"),
        ("weight_id", [60 + i / 8 for i in range(40)], "number"),
    ],
)
def test_a_number_is_an_identifier_if_it_only_tells_rows_apart(
    tmp_path: Path, name: str, values: Any, kind: str
) -> None:
    (tmp_path / "a.csv").write_text(
        f"{name},x,label\n" + "".join(f"{v},{(i * 7) % 5},{i % 2}\n" for i, v in enumerate(values))
    )
    schema = from_tables(tmp_path).schema
    assert schema is not None and schema.columns[0].kind == kind


@pytest.mark.parametrize(
    ("rows", "sites", "value", "kind"),
    [
        (
            40,
            4,
            lambda i: f"p{i}",
            "identifier",
        ),  # every site counts from 0: of 160 values 40 differ
        (40, 4, lambda i: f"p{i // 2}", "category"),
        (
            5,
            30,
            lambda i: f"ward {i}",
            "category",
        ),  # small sites, in which a ward hardly comes twice
    ],
)
def test_text_is_an_identifier_if_it_tells_the_rows_of_each_site_apart(
    tmp_path: Path, rows: int, sites: int, value: Callable[[int], str], kind: str
) -> None:
    for site in range(sites):
        lines = [f"{value(i)},{(i * 7) % 5},{i % 2}\n" for i in range(rows)]
        (tmp_path / f"site{site}.csv").write_text("name,x,label\n" + "".join(lines))
    schema = from_tables(tmp_path).schema
    assert schema is not None and schema.columns[0].kind == kind


@pytest.mark.parametrize(
    ("north", "south", "hours"),
    [
        ("{1}.{0:02}.2024", "2024-{0:02}-{1:02}", 0),
        ("{0}/{1}/2024", "{0}/{1}/2024", 0),  # 1/28/2024 has its month first
        ("{1}/{0}/2024", "{1}/{0}/2024", 0),
        ("2024-{0:02}-{1:02}T12:00:00", "2024-{0:02}-{1:02} 12:00", 12),
    ],
)
def test_dates_become_days_in_each_sites_own_way_of_writing(
    tmp_path: Path, north: str, south: str, hours: int
) -> None:
    for site, form in (("north", north), ("south", south)):
        cells = [form.format(1 + i // 28, 1 + i % 28) for i in range(40)]
        (tmp_path / f"{site}.csv").write_text(
            "day,label\n" + "".join(f"{cell},{i % 2}\n" for i, cell in enumerate(cells))
        )
    data = from_tables(tmp_path)
    assert data.schema is not None and data.schema.columns[0].kind == "date"
    days = [
        np.datetime64(f"2024-{1 + i // 28:02}-{1 + i % 28:02}").astype(int) + hours / 24
        for i in range(40)
    ]
    assert data.x[:, 0].tolist() == [float(day) for day in days] * 2


def test_dates_with_day_and_month_exchanged_between_sites_are_no_dates(tmp_path: Path) -> None:
    for site, form in (("north", "{0}/{1}/2024"), ("south", "{1}/{0}/2024")):
        cells = [form.format(1 + i // 28, 1 + i % 28) for i in range(40)]
        (tmp_path / f"{site}.csv").write_text(
            "day,x,label\n" + "".join(f"{cell},{i % 9},{i % 2}\n" for i, cell in enumerate(cells))
        )
    schema = from_tables(tmp_path).schema
    assert schema is not None and schema.columns[0].kind == "identifier"


def test_new_rows_are_prepared_like_those_of_training(folder: Path) -> None:
    federation = federate(DataConfig(name=str(folder)), 1)
    again = inputs_from(folder / "south.csv", federation.recipe, "south")
    held = np.flatnonzero(federation.source >= ROWS)
    assert torch.equal(again[federation.source[held] - ROWS], federation.x[held])
    (folder / "new.csv").write_text("age,ward,pressure,admitted\n44,zzz,inf,\n")
    row = inputs_from(folder / "new.csv", federation.recipe, "south")[0]
    assert bool(torch.isfinite(row).all())
    assert row[1:7].tolist() == [0, 0, 0, 1, pytest.approx(0, abs=1e-6), 1]
    (folder / "new.csv").write_text("age,ward,pressure,admitted\n44,a,1,yesterday\n")
    with pytest.raises(
        ValueError,
        match="new.csv, line 2, column 'admitted': expected dates as %Y-%m-%d, got 'yesterday'",
    ):
        inputs_from(folder / "new.csv", federation.recipe, "south")


def test_a_schema_can_be_saved_edited_and_given_back(folder: Path, tmp_path: Path) -> None:
    schema = from_tables(folder).schema
    assert schema is not None
    schema.save(tmp_path / "schema.yaml")
    assert DataConfig(schema=str(tmp_path / "schema.yaml")).schema == schema
    before, after = (
        federate(DataConfig(name=str(folder), schema=given), 1)
        for given in (None, str(tmp_path / "schema.yaml"))
    )
    assert torch.equal(before.x, after.x) and torch.equal(before.y, after.y)
    plain = yaml.safe_load((tmp_path / "schema.yaml").read_text())
    columns = {column["name"]: column for column in plain["columns"]}
    columns["patient"]["kind"] = "number"  # asked for
    columns["ward"]["categories"] = ["b", "a"]  # `rare` is now one of the others
    columns["age"]["gaps"] = True  # at a site that is not here yet
    plain["classes"] = ["well", "sick"]
    edited = {**plain, "columns": [columns[name] for name in ("patient", "ward", "age", "note")]}
    federation = federate(DataConfig(name=str(folder), schema=edited), 1)
    assert federation.recipe["features"] == [
        "patient",
        "ward=b",
        "ward=a",
        "ward=other",
        "age",
        "age missing",
    ]
    assert federation.task.class_names == ("well", "sick")
    assert federation.recipe["schema"]["classes"] == ["well", "sick"]
    # the row with the rare ward; 7 % 3 is not 0, so it is sick
    own = np.flatnonzero(federation.source == 7)
    assert federation.x[own, 1:4].tolist() == [[0, 0, 1]]
    assert federation.y[own].tolist() == [1]


def test_with_a_schema_sites_may_have_columns_that_it_does_not_list(folder: Path) -> None:
    schema = {
        "label": "label",
        "columns": [{"name": "age", "kind": "number"}, {"name": "extra", "kind": "text"}],
    }
    (folder / "north.csv").write_text(
        "more," + table("north").replace("\n", "\n1,").removesuffix("1,")
    )
    assert federate(DataConfig(name=str(folder), schema=schema), 1).recipe["features"] == ["age"]
    schema["columns"].append({"name": "agee", "kind": "number"})  # type: ignore[attr-defined]
    with pytest.raises(
        ValueError,
        match="site 'north' lacks the column 'agee' of the schema; it has more, patient, age",
    ):
        federate(DataConfig(name=str(folder), schema=schema), 1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"colums": []}, "unknown key of a schema 'colums'; did you mean 'columns'"),
        ({"columns": [{"name": "a", "kind": "numbr"}]}, "columns.0.kind: expected 'number', 'category'.* got 'numbr'"),
        ({"columns": [{"name": "a", "kind": "number", "gap": True}]}, "did you mean 'gaps'"),
        ({"columns": [{"name": "a", "kind": "number", "categories": ["x"]}]}, "no categories for a number, got"),
        ({"columns": [{"name": "a", "kind": "date", "formats": ["%A"]}]}, "formats of dates among .* got '%A'"),
        ({"columns": [{"name": "a", "kind": "text", "formats": ["%Y-%m-%d"]}]}, "no formats for a text, got"),
        ({"columns": [{"name": "a", "kind": "category", "categories": ["x", "y", "x"]}]}, "expected different categories, got"),
        ({"columns": [{"name": "a", "kind": "number"}] * 2}, "got 'a' twice"),
        ({"classes": ["x", "y", "x"]}, "got 'x' twice"),
        ({"centre": 1.0}, "centre and scale together"),
        ({"centre": 1.0, "scale": 0.0}, "scale: expected a value greater than 0, got 0.0"),
        ({"centre": 1.0, "scale": float("inf")}, "finite"),
        ({"scale": 1.0}, "centre and scale together .* got centre=None and scale=1.0"),
        ({"classes": ["x"], "centre": 1.0, "scale": 2.0}, "got both"),
        ({"classes": ["x"], "task": "regression"}, "got both"),
        ({1: 2}, "expected text as keys, got .1."),
        ({"label": "a", "columns": [{"name": "a", "kind": "number"}]}, "the label to be no input"),
        ([1], "expected a mapping with columns and classes, got"),
        ("nowhere.yaml", "the path of its YAML file, got 'nowhere.yaml'"),
    ],
)  # fmt: skip
def test_a_wrong_schema_is_refused_in_a_sentence(wrong: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"data.schema: .*{said}") as refused:
        eq.Experiment(data={"schema": wrong})
    assert "\n" not in str(refused.value)


def test_a_label_that_the_schema_does_not_have_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="labels 'well' are not among the class names sick"):
        from_tables(
            folder,
            schema=Schema(
                label="label", classes=("sick", "dead"), columns=from_tables(folder).schema.columns
            ),
        )  # type: ignore[union-attr]


def test_numbers_as_labels_stay_numbers_when_the_schema_is_given_back(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "x,label\n" + "".join(f"{i * 0.5},{i % 4}\n" for i in range(40))
    )
    schema = from_tables(tmp_path, kind="regression").schema
    assert from_tables(tmp_path).task.kind == "classification"
    federation = federate(DataConfig(name=str(tmp_path), schema=schema), 1)
    assert federation.task.kind == "regression"


def made(x: np.ndarray, y: np.ndarray) -> Dataset:
    columns = ("a", "b", Column("c", ("red", "green", "blue")))
    return from_arrays(
        x, y, sites=[f"s{i % 3}" for i in range(len(x))], columns=columns, kind="regression"
    )


def test_corrupting_test_values_within_the_schema_changes_no_weight(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(90, 2)), rng.integers(0, 3, 90)]).astype(np.float32)
    x[rng.random(90) < 0.2, 1] = np.nan
    y = (200 + 50 * x[:, 0] + rng.normal(size=90)).astype(np.float32)
    data = {"duplicates": "separate"}
    held = federate(DataConfig(**data), 1, made(x, y))
    rows = held.source[held.test.index]
    corrupt, targets = x.copy(), y.copy()
    corrupt[rows, 0], corrupt[rows, 1], corrupt[rows, 2], targets[rows] = 1e6, np.nan, 0, -1e5
    runs = [
        eq.run(
            eq.Experiment(
                data=data,
                dataset=made(*values),
                model={"name": "mlp", "hidden": [5]},
                rounds=2,
                seed=1,
                workers=0,
            ),
            tmp_path / name,
        )
        for name, values in {"clean": (x, y), "corrupt": (corrupt, targets)}.items()
    ]
    clean, corrupted = (run.model("global").state_dict() for run in runs)
    assert all(torch.equal(clean[name], corrupted[name]) for name in clean)
    assert float(clean["head.1.scale"]) == pytest.approx(
        float(y[held.source[held.train.index]].std()), rel=1e-5
    )
    # the test values did arrive, where they belong
    assert min(runs[1].final().values()) > 100 * max(runs[0].final().values())


def test_the_schema_is_written_into_the_run(folder: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": {"name": "mlp", "hidden": [4]}, "rounds": 1, "workers": 0}
    run = eq.run(eq.Experiment(data={"name": str(folder)}, **settings), tmp_path / "decided")
    decided = from_tables(folder).schema
    assert Schema(**run.store.meta("recipe")["schema"]) == decided
    file = tmp_path / "schema.yaml"
    decided.save(file)  # type: ignore[union-attr]
    run = eq.run(
        eq.Experiment(data={"name": str(folder), "schema": str(file)}, **settings),
        tmp_path / "given",
    )
    file.unlink()
    # whole: the file is not needed to repeat the run
    assert Schema(**run.config["data"]["schema"]) == decided


def test_a_data_set_made_in_python_takes_a_schema_too() -> None:
    x = np.column_stack([np.arange(30.0), np.arange(30) % 3, np.arange(30) % 7])
    data = from_arrays(
        x,
        np.arange(30) % 2,
        columns=["a", Column("b", ("u", "v", "w")), "c"],
        class_names=("no", "yes"),
    )
    schema = {
        "classes": ["yes", "no"],
        "columns": [
            {"name": "b", "kind": "category", "categories": ["w", "u"]},
            {"name": "a", "kind": "number"},
        ],
    }
    federation = federate(DataConfig(schema=schema), 1, data)
    assert federation.recipe["features"] == ["b=w", "b=u", "b=other", "a"]
    for row, source in enumerate(federation.source):
        assert federation.x[row, :3].tolist() == [source % 3 == 2, source % 3 == 0, source % 3 == 1]
        assert federation.y[row] == 1 - source % 2
    with pytest.raises(ValueError, match="its schema lacks the class 'no'; it has yes"):
        federate(DataConfig(schema={"classes": ["yes"]}), 1, data)
    with pytest.raises(ValueError, match="unknown column of arrays, named by its schema 'd'"):
        federate(DataConfig(schema={"columns": [{"name": "d", "kind": "number"}]}), 1, data)
    numbers = from_arrays(x, np.arange(30) / 7, columns=["a", "b", "c"])
    with pytest.raises(
        ValueError,
        match=(
            "has numbers for labels, but its schema has classes; set task: classification or "
            "correct the schema"
        ),
    ):
        federate(DataConfig(task="regression", schema={"classes": ["yes", "no"]}), 1, numbers)


def test_images_are_brought_to_the_schemas_shape_or_refused(tmp_path: Path) -> None:
    for site, size in (("east", 6), ("west", 8)):
        for kind in ("cat", "dog"):
            (tmp_path / site / kind).mkdir(parents=True)
            for i in range(5):
                Image.new("L", (size, size), 20 * i + size).save(
                    tmp_path / site / kind / f"{i}.png"
                )
    federation = federate(
        DataConfig(
            name=str(tmp_path),
            duplicates="separate",
            schema={"shape": [1, 4, 4], "classes": ["dog", "cat"]},
        ),
        1,
    )
    assert (federation.task.shape, federation.task.class_names) == ((1, 4, 4), ("dog", "cat"))
    with pytest.raises(
        ValueError, match=r"its schema says samples of shape \(3, 4, 4\), got \(1, 4, 4\)"
    ):
        federate(
            DataConfig(name=str(tmp_path), duplicates="separate", schema={"shape": [3, 4, 4]}), 1
        )
    for file in tmp_path.glob("*/*/*.png"):
        # no squares: they are as the schema says without being resized
        Image.new("L", (6, 9)).save(file)
    assert federate(
        DataConfig(name=str(tmp_path), duplicates="separate", schema={"shape": [1, 9, 6]}), 1
    ).task.shape == (1, 9, 6)


def test_sides_with_other_centres_or_scales_are_not_joined() -> None:
    rng = np.random.default_rng(0)
    whole = roster_of(
        federate(
            DataConfig(),
            1,
            made(np.column_stack([rng.normal(size=(60, 2)), np.zeros(60)]), rng.normal(size=60)),
        )
    )
    sides = []
    for client, task in (("s0", whole.task), ("s1", replace(whole.task, scale=2.0))):
        sizes = {part: {client: sizes[client]} for part, sizes in whole.sizes.items()}
        sides.append(
            Roster(task, whole.name, (client,), sizes, {client: whole.fingerprints[client]})
        )
    assert Roster.joined([sides[0], replace(sides[1], task=whole.task)]).ids == ("s0", "s1")
    assert Roster.of(whole.record()).task.scale == whole.task.scale != 1
    with pytest.raises(
        ValueError, match="the same schema: label, classes, input shape, centre and scale"
    ):
        Roster.joined(sides)


@pytest.mark.parametrize(
    ("given", "predicts"),
    [
        ({}, None),
        ({"classes": ("a", "b")}, "classification"),
        ({"centre": 1.0, "scale": 2.0}, "regression"),
        ({"task": "regression"}, "regression"),
        ({"task": "classification"}, "classification"),
    ],
)
def test_what_a_schema_tells_of_the_task(given: dict[str, Any], predicts: str | None) -> None:
    assert Schema(**given).predicts == predicts


def test_a_schema_says_only_what_it_knows_and_in_its_order(tmp_path: Path) -> None:
    assert (
        Schema().plain() == {}
        and schema_from(None) is None
        and schema_from(given := Schema()) is given
    )
    columns = [
        {"name": "größe", "kind": "number"},
        {"name": "a", "kind": "text"},
        {"name": "b", "kind": "category", "categories": [1, "x"]},
    ]
    schema = schema_from({"label": "y", "columns": columns})
    assert (
        schema is not None
        and [column.name for column in schema.inputs] == ["größe", "b"]
        and schema.columns[2].categories == ("1", "x")
    )
    assert not schema.columns[0].gaps and schema.plain()["columns"][0] == columns[0]
    schema.save(tmp_path / "schema.yaml")
    text = (tmp_path / "schema.yaml").read_text(encoding="utf-8")
    assert (
        text.startswith("label: y\ncolumns:\n- {name: größe, kind: number}\n")
        and "null" not in text
    )
    assert (
        schema_from(tmp_path / "schema.yaml")
        == schema_from(str(tmp_path / "schema.yaml"))
        == schema
    )
    with pytest.raises(ValueError, match="frozen"):
        schema.label = "z"

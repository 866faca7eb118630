"""Schemas of single sites: what their files hold, and how they become one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from equipoise.data import DataConfig, federate, prepare_client
from equipoise.data.check import check_data
from equipoise.data.findings import DataErrors
from equipoise.data.roster import roster_of
from equipoise.data.schema import Schema, schema_from
from equipoise.data.schema_join import join_schemas
from tests.helpers.terminal import Answer

Command = Callable[..., Answer]
SITES = ("north", "south")


def table(site: str) -> str:
    """Identifiers, numbers that occur once, gaps at one site, dates in two formats."""
    random = np.random.default_rng(ord(site[0]))
    lines = ["patient,age,ward,chol,admitted,label"]
    for row in range(60):
        ward = ("ab" if site == "north" else "bc")[row % 2]
        chol = "" if site == "south" and row == 5 else f"{200 + random.normal() * 40:.3f}"
        day = f"2024-01-{1 + row % 28:02}" if site == "north" else f"{1 + row % 28:02}.02.2023"
        label = "sick" if random.random() < 0.4 else "well"
        lines.append(f"{site}{row:04},{20.125 + row * 1.5},{ward},{chol},{day},{label}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "sites"
    folder.mkdir()
    for site in SITES:
        (folder / f"{site}.csv").write_text(table(site))
    return folder


def saved(folder: Path, equipoise: Command, *more: str) -> dict[str, Path]:
    """Let every site write its schema from its own file."""
    files = {}
    for site in SITES:
        files[site] = folder.parent / f"{site}.yaml"
        own = folder / f"{site}.csv"
        answer = equipoise(
            "data", "check", str(own), "--client", site, "--save", str(files[site]), *more
        )
        assert answer.code == 0, answer.err
    return files


def cells_of(folder: Path, site: str) -> set[str]:
    """Return the cells of a site that are of single rows: identifiers, numbers and dates."""
    rows = [line.split(",") for line in (folder / f"{site}.csv").read_text().splitlines()[1:]]
    return {cell for row in rows for cell in (row[0], row[1], row[3], row[4]) if cell}


@pytest.mark.parametrize("more", [(), ("--statistics",)])
def test_the_schema_file_of_a_site_holds_no_cell_of_a_row(
    folder: Path, equipoise: Command, more: tuple[str, ...]
) -> None:
    for site, file in saved(folder, equipoise, *more).items():
        text = file.read_text()
        assert not [cell for cell in cells_of(folder, site) if cell in text]
        assert ("statistics" in text) == bool(more)


def test_proposals_of_a_site_come_without_their_reasons(tmp_path: Path, equipoise: Command) -> None:
    rows = "".join(
        f"{150 + 3 * i if i % 9 else -999},{'yes' if i % 2 else 'no'}\n" for i in range(60)
    )
    (tmp_path / "a.csv").write_text("chol,label\n" + rows)
    file = tmp_path / "a.yaml"
    answer = equipoise(
        "data", "check", str(tmp_path / "a.csv"), "--client", "a", "--save", str(file)
    )
    assert answer.code == 0
    assert "#   chol: ['-999']" in file.read_text()
    assert "327" not in file.read_text() and "##" not in file.read_text()
    assert "327" in answer.out  # the largest number is shown at the site only


def test_the_command_says_what_leaves_the_site(tmp_path: Path, equipoise: Command) -> None:
    rows = "".join(f"person{i},{i % 5},{'yes' if i % 2 else 'no'}\n" for i in range(10))
    (tmp_path / "a.csv").write_text("name,age,label\n" + rows)
    answer = equipoise(
        "data",
        "check",
        str(tmp_path / "a.csv"),
        "--client",
        "a",
        "--save",
        str(tmp_path / "s.yaml"),
    )
    assert "'name' (10)" in answer.err and "only one row" in answer.err


@pytest.mark.parametrize(
    ("header", "cells"),
    [
        ("63.5,2024-01-31,sick", ["63.5", "2024-01-31"]),
        ("145,233,sick", ["145", "233"]),
        ("0,1,sick", []),
        ("age,seen,sick", []),
    ],
)
def test_a_first_line_that_looks_like_a_row_is_reported(
    tmp_path: Path, header: str, cells: list[str]
) -> None:
    rows = "".join(f"{row % 7},{row % 5},{'yes' if row % 2 else 'no'}\n" for row in range(40))
    (tmp_path / "a.csv").write_text(f"{header}\n{rows}")
    config = DataConfig(name=str(tmp_path / "a.csv"), label="sick")
    warnings = [text for text in check_data(config, own_site="a").warnings if "names" in text]
    assert len(warnings) == bool(cells)
    for cell in cells:
        assert "a.csv" in warnings[0] and cell in warnings[0]


def test_the_command_lists_gap_marks_that_leave_the_site(
    tmp_path: Path, equipoise: Command
) -> None:
    rows = "".join(
        f"{-9 if row % 5 == 0 else row},{'yes' if row % 2 else 'no'}\n" for row in range(40)
    )
    (tmp_path / "a.csv").write_text("age,sick\n" + rows)
    (tmp_path / "a.yaml").write_text("label: sick\nmissing: {age: [-9]}\n")
    answer = equipoise(
        "data", "check", tmp_path / "a.csv", "--client", "a", "--schema", tmp_path / "a.yaml",
        "--save", tmp_path / "new.yaml",
    )  # fmt: skip
    assert "mark gaps in 'age'" in answer.err


def test_statistics_of_fewer_than_five_numbers_are_not_written(
    tmp_path: Path, equipoise: Command
) -> None:
    rows = "".join(f"{i * 1.5 if i < 4 else ''},{i},{'yes' if i % 2 else 'no'}\n" for i in range(9))
    (tmp_path / "a.csv").write_text("rare,age,label\n" + rows)
    file = tmp_path / "a.yaml"
    equipoise(
        "data",
        "check",
        str(tmp_path / "a.csv"),
        "--client",
        "a",
        "--save",
        str(file),
        "--statistics",
    )
    columns = {column.name: column for column in schema_from(str(file)).columns}
    assert columns["rare"].statistics is None
    assert columns["age"].statistics is not None


def test_joined_schemas_are_those_of_all_files_together(folder: Path, equipoise: Command) -> None:
    files = saved(folder, equipoise)
    target = folder.parent / "all.yaml"
    answer = equipoise("data", "schema", "join", *map(str, files.values()), "--save", str(target))
    assert answer.code == 0, answer.err
    assert schema_from(str(target)) == check_data(DataConfig(name=str(folder))).schema


def test_centres_and_scales_are_those_of_all_rows(folder: Path, equipoise: Command) -> None:
    files = saved(folder, equipoise, "--statistics")
    schema = join_schemas({site: schema_from(str(file)) for site, file in files.items()}).schema
    columns = {column.name: column for column in schema.columns}
    ages = np.tile(20.125 + np.arange(60) * 1.5, 2)
    assert columns["age"].centre == pytest.approx(ages.mean(), rel=1e-6)
    assert columns["age"].scale == pytest.approx(ages.std(), rel=1e-6)
    assert columns["ward"].scale is None


def test_sites_are_prepared_by_the_joined_schema_with_agreed_scales(
    folder: Path, equipoise: Command
) -> None:
    files = saved(folder, equipoise, "--statistics")
    schema = join_schemas({site: schema_from(str(file)) for site, file in files.items()}).schema
    config = DataConfig(name=str(folder), schema=schema, apart=True, normalise="agreed")
    together = federate(config, 1)
    prints = roster_of(together).fingerprints
    for site in SITES:
        alone = prepare_client(config, 1, site)
        assert roster_of(alone).fingerprints[site] == prints[site]
    age = schema.inputs[0]
    raw = together.x[:, 0].double() * age.scale + age.centre
    assert float(raw.min()) == pytest.approx(20.125, abs=1e-4)


def column(**changes: Any) -> dict[str, Any]:
    return {"name": "age", "kind": "number", "gaps": False, **changes}


BASE: dict[str, Any] = {"label": "sick", "classes": ["no", "yes"], "columns": [column()]}


@pytest.mark.parametrize(
    ("second", "named"),
    [
        ({"label": "ill"}, ["label", "sick", "ill"]),
        ({"classes": [], "task": "regression"}, ["task", "classification", "regression"]),
        ({"columns": [], "shape": [1, 8, 8]}, ["shape", "none", "1x8x8"]),
        ({"columns": [column(kind="category", categories=["a"])]}, ["'age'", "number", "category"]),
        ({"columns": [column(), column(name="dose")]}, ["'dose'"]),
        ({"classes": ["No", "Yes"]}, ["sick", "coded differently"]),
        ({"classes": ["0", "1"]}, ["sick", "coded differently"]),
        ({"factors": {"age": 2.0}}, ["factors", "2.0"]),
        ({"values": {"age": {"x": "2"}}}, ["values", "'age'", "'x'"]),
        ({"columns": [column(centre=1.0, scale=2.0)]}, ["'age'", "centre", "1.0"]),
    ],
)
def test_schemas_of_different_tasks_are_refused_by_name(
    second: dict[str, Any], named: list[str]
) -> None:
    first = {**BASE, "values": {"age": {"x": "1"}}}
    if "centre" in str(second):
        first = {**first, "columns": [column(centre=0.0, scale=1.0)]}
    schemas = {"a.yaml": Schema(**first), "b.yaml": Schema(**{**first, **second})}
    with pytest.raises(DataErrors) as error:
        join_schemas(schemas)
    assert "b.yaml" in str(error.value)
    for part in named:
        assert part in str(error.value)


def test_one_date_with_two_meanings_is_refused() -> None:
    schemas = {}
    for file, form in (("a.yaml", "%d/%m/%Y"), ("b.yaml", "%m/%d/%Y")):
        columns = [column(kind="date", formats=[form])]
        schemas[file] = Schema(**{**BASE, "columns": columns})
    with pytest.raises(DataErrors, match="month"):
        join_schemas(schemas)


def test_gap_marks_of_one_site_hold_for_all() -> None:
    first = Schema(**{**BASE, "missing": {"age": ["-9"]}})
    second = Schema(**{**BASE, "missing": {"age": ["999"]}})
    joined = join_schemas({"a.yaml": first, "b.yaml": second}).schema
    assert joined.missing == {"age": ("-9", "999")}
    assert joined.columns[0].gaps is True


def test_classes_that_one_file_maps_are_joined_under_their_new_names() -> None:
    first = Schema(**{**BASE, "values": {"sick": {"No": "no", "Yes": "yes"}}})
    second = Schema(**{**BASE, "classes": ["No", "Yes", "unsure"]})
    joined = join_schemas({"a.yaml": first, "b.yaml": second}).schema
    assert joined.classes == ("no", "unsure", "yes")


def test_classes_that_a_site_maps_for_itself_are_joined_under_their_new_names() -> None:
    coded = {"sick": {"0": "no", "1": "yes"}, "sex": {"1": "f", "2": "m"}}
    sex = column(name="sex", kind="category", categories=["f", "m"])
    own = {**BASE, "columns": [*BASE["columns"], sex]}
    numbered = [*BASE["columns"], {**sex, "categories": ["1", "2"]}]
    schemas = {
        "a.yaml": Schema(**own),
        "b.yaml": Schema(
            **{**own, "columns": numbered, "classes": ["0", "1"], "sites": {"b": {"values": coded}}}
        ),
    }
    joined = join_schemas(schemas)
    assert joined.schema.classes == ("no", "yes") and joined.warnings == ()
    assert joined.schema.columns[1].categories == ("f", "m")


def test_a_class_that_another_site_of_the_file_may_have_stays() -> None:
    mapped = {"values": {"sick": {"1": "yes"}}}
    second = {**BASE, "classes": ["1", "yes"], "sites": {"b": mapped, "c": {}}}
    joined = join_schemas({"a.yaml": Schema(**BASE), "b.yaml": Schema(**second)}).schema
    assert joined.classes == ("1", "no", "yes")


def test_names_that_differ_in_case_are_one_column() -> None:
    second = Schema(**{**BASE, "columns": [column(name="AGE", gaps=True)]})
    joined = join_schemas({"a.yaml": Schema(**BASE), "b.yaml": second}).schema
    assert [(entry.name, entry.gaps) for entry in joined.columns] == [("age", True)]


@pytest.mark.parametrize("order", [("a.yaml", "b.yaml"), ("b.yaml", "a.yaml")])
def test_repairs_follow_the_name_that_a_column_gets(tmp_path: Path, order: tuple[str, str]) -> None:
    repairs = {
        "missing": {"AGE": ["-999"]},
        "rename": {"alter": "AGE"},
        "sites": {"b": {"factors": {"AGE": 2.0}}},
    }
    schemas = {
        "a.yaml": Schema(**BASE),
        "b.yaml": Schema(**{**BASE, "columns": [column(name="AGE")], **repairs}),
    }
    joined = join_schemas({file: schemas[file] for file in order}).schema
    rows = "".join(f"{-999 if row == 0 else 30},{'yes' if row % 2 else 'no'}\n" for row in range(9))
    (tmp_path / "b.csv").write_text("alter,sick\n" + rows)
    config = DataConfig(
        name=str(tmp_path / "b.csv"), schema=joined, apart=True, normalise="none", split=(1, 0, 0)
    )
    own = prepare_client(config, 1, "b")
    assert own.x.tolist() == [[60.0, 1.0]] + 8 * [[60.0, 0.0]]


def statistics(count: int, mean: float, variance: float) -> dict[str, float]:
    return {"count": count, "mean": mean, "variance": variance}


def with_column(**changes: Any) -> Schema:
    return Schema(**{**BASE, "columns": [column(**changes)]})


def test_centres_that_leave_out_the_numbers_of_a_site_are_reported() -> None:
    first = with_column(statistics=statistics(50, 60.0, 100.0))
    joined = join_schemas({"a.yaml": first, "b.yaml": with_column()})
    assert joined.schema.columns[0].centre == 60.0
    assert len(joined.warnings) == 1
    assert "b.yaml" in joined.warnings[0] and "'age'" in joined.warnings[0]


def test_statistics_that_an_agreed_centre_replaces_are_reported() -> None:
    late = with_column(statistics=statistics(50, 60.0, 100.0))
    joined = join_schemas({"both.yaml": with_column(centre=1.0, scale=2.0), "late.yaml": late})
    assert joined.schema.columns[0].centre == 1.0
    assert len(joined.warnings) == 1
    assert "late.yaml" in joined.warnings[0] and "'age'" in joined.warnings[0]


def test_means_that_suggest_another_unit_are_reported() -> None:
    usual = with_column(name="chol", statistics=statistics(50, 200.0, 1600.0))
    other = with_column(name="chol", statistics=statistics(50, 5.2, 1.1))
    schemas = {"a.yaml": usual, "b.yaml": other, "c.yaml": usual}
    (warning,) = join_schemas(schemas).warnings
    assert "'chol'" in warning and "b.yaml" in warning and "mmol/l" in warning
    alike = with_column(name="chol", statistics=statistics(50, 230.0, 1600.0))
    assert not join_schemas({"a.yaml": usual, "b.yaml": alike}).warnings


def test_two_classes_that_are_other_numbers_at_each_site_are_reported() -> None:
    first = Schema(**{**BASE, "classes": ["0", "1"]})
    second = Schema(**{**BASE, "classes": ["1", "2"]})
    (warning,) = join_schemas({"a.yaml": first, "b.yaml": second}).warnings
    assert "'sick'" in warning and "0 and 1 in a.yaml" in warning


def test_a_file_that_is_named_twice_is_refused(tmp_path: Path, equipoise: Command) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(yaml.safe_dump(BASE))
    answer = equipoise(
        "data", "schema", "join", file, tmp_path / "." / ".." / tmp_path.name / "a.yaml",
        "--save", tmp_path / "all.yaml",
    )  # fmt: skip
    assert answer.code == 2 and "same file" in answer.err
    assert not (tmp_path / "all.yaml").exists()


@pytest.mark.parametrize("more", [(), ("--statistics",)])
def test_statistics_of_an_older_file_are_not_written_again(
    tmp_path: Path, equipoise: Command, more: tuple[str, ...]
) -> None:
    rows = "".join(f"{row if row < 4 else -9},{'yes' if row % 2 else 'no'}\n" for row in range(30))
    (tmp_path / "a.csv").write_text("age,sick\n" + rows)
    old = {**BASE, "columns": [column(gaps=True, statistics=statistics(30, -7.0, 14.0))]}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({**old, "missing": {"age": ["-9"]}}))
    answer = equipoise(
        "data", "check", tmp_path / "a.csv", "--client", "a", "--schema", tmp_path / "a.yaml",
        "--save", tmp_path / "new.yaml", *more,
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert "statistics" not in (tmp_path / "new.yaml").read_text()


def test_categories_without_any_in_common_are_reported() -> None:
    schemas = {}
    for file, categories in (("a.yaml", ["0", "1"]), ("b.yaml", ["f", "m"])):
        columns = [column(name="sex", kind="category", categories=categories)]
        schemas[file] = Schema(**{**BASE, "columns": columns})
    joined = join_schemas(schemas)
    assert "'sex'" in joined.warnings[0]
    assert joined.schema.columns[0].categories == ("0", "1", "f", "m")


def test_classes_that_are_numbers_keep_their_order() -> None:
    first = Schema(classes=("2", "10"), shape=(4,))
    joined = join_schemas({"a.yaml": first, "b.yaml": Schema(classes=("9",), shape=(4,))}).schema
    assert joined.classes == ("2", "9", "10")


def test_refused_schemas_leave_no_file(tmp_path: Path, equipoise: Command) -> None:
    for name, label in (("a", "sick"), ("b", "ill")):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**BASE, "label": label}))
    target = tmp_path / "all.yaml"
    answer = equipoise(
        "data", "schema", "join", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"),
        "--save", str(target),
    )  # fmt: skip
    assert answer.code == 2
    assert "a.yaml" in answer.err and "b.yaml" in answer.err
    assert not target.exists()


def test_joined_codes_have_centre_and_scale(tmp_path: Path, equipoise: Command) -> None:
    equipoise("data", "synthesise", str(tmp_path / "all"), "--share", "0.001", "--per-site")
    files = []
    for site in ("CA", "TX"):
        files.append(str(tmp_path / f"{site}.yaml"))
        answer = equipoise(
            "data", "check", str(tmp_path / "all" / site), "--client", site,
            "--save", files[-1], "--statistics",
        )  # fmt: skip
        assert answer.code == 0, answer.err
    schema = join_schemas({file: schema_from(file) for file in files}).schema
    assert [code.name for code in schema.codes] == sorted(code.name for code in schema.codes)
    for site in ("CA", "TX"):
        config = DataConfig(name=str(tmp_path / "all" / site), schema=schema, apart=True)
        assert prepare_client(config, 1, site).task.shape == (1 + schema.events, 4)

"""Groups of samples by columns: how they are read, and which columns are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.data import federate
from equipoise.data.groups import Groups
from equipoise.data.pipeline import prepare_client
from equipoise.data.roster import roster_of
from tests.helpers.group_sites import GROUPS, SCHEMA, hospitals, write_sites


def config(folder: Path, **more: Any) -> eq.DataConfig:
    return eq.DataConfig(**{"name": str(folder), "schema": SCHEMA, "groups": GROUPS, **more})


def groups_of(config: eq.DataConfig, dataset: eq.Dataset | None = None) -> Groups:
    groups = federate(config, 0, dataset).groups
    assert groups is not None
    return groups


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sites(tmp_path_factory.mktemp("hospitals"), hospitals())


@pytest.mark.parametrize(
    "value",
    [["sex", {"age": [0, 50]}], {"sex": None, "age": [0, 50]}, {"sex": [], "age": (0, 50)}],
)
def test_columns_may_be_a_list_or_a_mapping(value: Any) -> None:
    assert eq.DataConfig(groups=value).groups == {"sex": (), "age": (0.0, 50.0)}


def test_a_configuration_with_groups_survives_a_file() -> None:
    written = eq.DataConfig(groups=GROUPS).model_dump(mode="json")
    assert eq.DataConfig(**written).groups == {"sex": (), "age": (0.0, 50.0, 65.0, 120.0)}


def test_groups_need_not_be_inputs_and_follow_the_rows(folder: Path) -> None:
    federation = federate(config(folder), 0)
    assert federation.x.shape[1] == 3 and federation.groups is not None
    tables = hospitals()
    sex = np.concatenate([tables[site]["sex"] for site in sorted(tables)])
    age = np.concatenate([tables[site]["age"] for site in sorted(tables)])
    bins = np.digitize(age, [50, 65])
    assert federation.groups.names == (("f", "m"), ("0 to <50", "50 to <65", "65 to 120"))
    assert federation.groups.names_of("sex") == sex[federation.source].tolist()
    assert federation.groups.codes[:, 1].tolist() == bins[federation.source].tolist()


def test_sites_apart_have_the_groups_of_a_run_with_all_of_them(folder: Path) -> None:
    together = groups_of(config(folder, apart=True))
    alone = prepare_client(config(folder, apart=True), 0, "north").groups
    assert alone is not None
    whole = federate(config(folder, apart=True), 0)
    north = whole.ids.index("north")
    rows = np.concatenate([whole.train[north], whole.validation[north], whole.test[north]])
    own = together.rows(np.sort(rows))
    assert own.names_of("sex") == alone.names_of("sex")
    assert own.names_of("age") == alone.names_of("age")


def test_edges_belong_to_the_upper_bin_and_the_last_one_to_the_last() -> None:
    ages = [49.9, 50, 64.9, 65, 120, 121, -1, np.nan]
    data = eq.from_arrays(np.zeros((8, 1)), [0, 1] * 4, attributes={"age": ages})
    section = eq.DataConfig(groups=GROUPS[1:], duplicates="separate", split=(1, 0, 0), clients=1)
    names = groups_of(section, data).names_of("age")
    order = federate(section, 0, data).source
    expected = ["0 to <50", "50 to <65", "50 to <65", "65 to 120", "65 to 120", *["missing"] * 3]
    assert [names[position] for position in np.argsort(order)] == expected


def test_values_that_are_missing_have_no_group(tmp_path: Path) -> None:
    tables = hospitals()
    tables["east"]["sex"][:40] = "?"
    names = groups_of(config(write_sites(tmp_path, tables))).names_of("sex")
    assert names.count("missing") == 40 and set(names) == {"f", "m", "missing"}


@pytest.mark.skipif("EQUIPOISE_DATA" not in os.environ, reason="EQUIPOISE_DATA is not set")
def test_categories_and_numbers_of_a_registered_table_are_groups() -> None:
    section = eq.DataConfig(name="uci_heart_disease", groups=["sex", "cp"])
    groups = groups_of(section)
    assert groups.names == (("0", "1"), ("1", "2", "3", "4")) and len(groups.codes) == 920


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["gender"], r"'gender'.*it has .*sex"),
        (["disease"], "other than the label.*'disease'"),
        (["a"], "'a' with a different value in each of 720 rows; give the edges"),
        (["age"], "at most 20 groups.*'age'; give the edges of bins"),
        ([{"sex": [0, 1]}], "expected numbers in column 'sex'"),
    ],
)
def test_columns_that_are_no_groups_are_refused(groups: Any, message: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=message):
        federate(config(folder, groups=groups), 0)


def test_a_column_that_one_site_lacks_is_refused_with_its_file(tmp_path: Path) -> None:
    tables = hospitals()
    del tables["north"]["sex"]
    with pytest.raises(
        ValueError, match=r"'north' .north.csv. lacks the column 'sex' of data.groups"
    ):
        federate(config(write_sites(tmp_path, tables)), 0)
    with pytest.raises(ValueError, match="'north' .north.csv. lacks the column 'sex'"):
        prepare_client(config(tmp_path, apart=True), 0, "north")


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([{"age": [50, 0]}], "rising edges"),
        ([{"age": [50]}], "two or more"),
        ([{"age": "old"}], r"edges of bins such as \[0, 50"),
        (["sex", "sex"], "'sex' twice"),
        (3, "got 3"),
        ([3], "got 3"),
        ([f"c{k}" for k in range(11)], "at most 10 columns"),
    ],
)
def test_sections_of_another_form_are_refused(groups: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eq.DataConfig(groups=groups)


def test_numbers_to_predict_and_data_without_columns_have_no_groups() -> None:
    numbers = eq.from_arrays(np.zeros((9, 2)), np.linspace(0.1, 1, 9), attributes={"s": [0] * 9})
    with pytest.raises(ValueError, match="expected a task with classes, got regression"):
        federate(eq.DataConfig(groups=["s"]), 0, numbers)
    with pytest.raises(ValueError, match="digits, which has none"):
        federate(eq.DataConfig(name="digits", groups=["s"]), 0)


def test_the_fingerprint_of_a_client_follows_from_its_groups_and_not_from_their_numbers(
    folder: Path, tmp_path: Path
) -> None:
    whole = roster_of(federate(config(folder, apart=True), 0)).fingerprints
    own = roster_of(prepare_client(config(folder, apart=True), 0, "north")).fingerprints
    assert own["north"] == whole["north"]
    tables = hospitals()
    tables["north"]["sex"] = np.where(tables["north"]["sex"] == "f", "m", "f")
    swapped = write_sites(tmp_path / "swapped", tables)
    others = roster_of(federate(config(swapped, apart=True), 0)).fingerprints
    assert others["north"] != whole["north"] and others["east"] == whole["east"]

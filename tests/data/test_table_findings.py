"""Tables that would be read wrongly have the right finding each; ordinary ones have none."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import datasets

from equipoise.data import DataConfig
from equipoise.data.check import check_data
from equipoise.data.findings import Finding
from equipoise.data.sets import load
from equipoise.data.tables.sites import read_sites
from equipoise.data.tables.table_dataset import from_tables
from equipoise.data.tables.table_findings import find_in_tables

Site = dict[str, list[Any]]
ROWS = 80


def patients(seed: int) -> Site:
    draw = np.random.default_rng(seed)
    return {
        "age": draw.integers(20, 90, ROWS).tolist(),
        "chol": draw.normal(210, 35, ROWS).round(1).tolist(),
        "weight": draw.normal(75, 13, ROWS).round(1).tolist(),
        "ward": draw.choice(["north", "south"], ROWS).tolist(),
        "disease": draw.choice(["ill", "well"], ROWS).tolist(),
    }


def write(folder: Path, sites: dict[str, Site]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, columns in sites.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return folder


def look(
    tmp_path: Path, change: Callable[[dict[str, Site]], None], label: str = "disease"
) -> list[Finding]:
    sites = {name: patients(seed) for seed, name in enumerate("abc")}
    change(sites)
    return find_in_tables(read_sites(write(tmp_path / "data", sites)), label)


def cells(site: str, column: str, change: Callable[[Any, int], Any]) -> Callable[..., None]:
    def apply(sites: dict[str, Site]) -> None:
        sites[site][column] = [change(cell, i) for i, cell in enumerate(sites[site][column])]

    return apply


def added(name: str, cell: Callable[[str, int, Site], Any]) -> Callable[..., None]:
    def apply(sites: dict[str, Site]) -> None:
        for site, columns in sites.items():
            columns[name] = [cell(site, i, columns) for i in range(ROWS)]

    return apply


def scaled(factor: float) -> Callable[[Any, int], Any]:
    return lambda cell, _: round(cell * factor, 3)


SHUFFLED = np.random.default_rng(1).permutation(ROWS).tolist()


def test_ordinary_patients_give_no_finding(tmp_path: Path) -> None:
    assert look(tmp_path, lambda sites: None) == []


@pytest.mark.parametrize(
    ("change", "words", "repair"),
    [
        (cells("b", "chol", scaled(1 / 38.67)), ("'chol'", "b.csv", "mmol/l"), {"sites": {"b": {"factors": {"chol": 38.67}}}}),
        (cells("b", "weight", scaled(2.2046)), ("'weight'", "b.csv", "lb"), {"sites": {"b": {"factors": {"weight": 0.453597}}}}),
        (cells("b", "weight", scaled(1000)), ("'weight'", "b.csv", "kg and g"), {"sites": {"b": {"factors": {"weight": 0.001}}}}),
        (cells("b", "weight", scaled(33)), ("'weight'", "b.csv", "times more", "factors: {weight: ...}"), None),
        (cells("a", "chol", lambda cell, i: cell if i % 9 else -9), ("'chol'", "-9 (9 rows in a.csv)"), {"missing": {"chol": ["-9"]}}),
        (cells("a", "age", lambda cell, i: cell if i % 9 else 999), ("'age'", "999"), {"missing": {"age": ["999"]}}),
        (cells("a", "chol", lambda cell, i: cell if i % 9 else 0), ("'chol'", "0 (9 rows"), {"missing": {"chol": ["0"]}}),
        (cells("b", "ward", lambda cell, i: str(int(cell == "south"))), ("'ward'", "'0', '1' in b.csv", "'north', 'south' in a.csv, c.csv"), None),
        (added("sex", lambda site, i, _: ("fm" if site == "b" else "01")[i // 3 % 2]), ("'sex'", "'f', 'm' in b.csv"), {"values": {"sex": {"f": "0", "m": "1"}}}),
        (added("sex", lambda site, i, _: (["female", "male"] if site == "b" else "fm")[i // 3 % 2]), ("'sex'",), {"values": {"sex": {"female": "f", "male": "m"}}}),
        (added("sex", lambda site, i, _: ("12" if site == "b" else "01")[i // 3 % 2]), ("'sex'", "'1', '2' in b.csv"), None),
        (added("smokes", lambda site, i, _: (["no", "yes"] if site == "b" else "01")[i // 3 % 2]), ("'smokes'",), {"values": {"smokes": {"no": "0", "yes": "1"}}}),
        (added("copy", lambda site, i, columns: columns["disease"][i]), ("'copy' equals the label",), {"columns": [{"name": "copy", "kind": "identifier"}]}),
        (added("dx", lambda site, i, columns: "ZI"[columns["disease"][i] == "ill"]), ("'dx' has one value for each class",), {"columns": [{"name": "dx", "kind": "identifier"}]}),
        (added("icd", lambda site, i, columns: f"{columns['disease'][i][0]}{i % 4}"), ("'icd' has values that determine",), {"columns": [{"name": "icd", "kind": "identifier"}]}),
        (added("laufend", lambda site, i, _: SHUFFLED[i]), ("'laufend'", "identifier", "a.csv"), {"columns": [{"name": "laufend", "kind": "identifier"}]}),
        (added("Unnamed: 0", lambda site, i, _: 11 * i + 5), ("'Unnamed: 0'", "5, 16, 27"), {"columns": [{"name": "Unnamed: 0", "kind": "identifier"}]}),
        (added("kundennr", lambda site, i, _: 7000 + 13 * SHUFFLED[i]), ("'kundennr'",), {"columns": [{"name": "kundennr", "kind": "identifier"}]}),
        (added("seen", lambda site, i, _: 20240000 + 100 * (1 + i % 12) + 1 + i % 28), ("'seen'", "20240101", "dates"), {"columns": [{"name": "seen", "kind": "date", "formats": ["%Y%m%d"]}]}),
        (added("zip", lambda site, i, _: 8000 + i % 30), ("'zip'", "8000", "zip codes"), {"columns": [{"name": "zip", "kind": "identifier"}]}),
        (added("pay", lambda site, i, _: f"${1 + i % 3}"), ("'pay'", "currency", "'$1'"), {"values": {"pay": {"$1": "1", "$2": "2", "$3": "3"}}, "columns": [{"name": "pay", "kind": "number"}]}),
        (added("share", lambda site, i, _: f"{1 + i % 3}.5%"), ("'share'", "per cent"), {"values": {"share": {"1.5%": "1.5", "2.5%": "2.5", "3.5%": "3.5"}}, "columns": [{"name": "share", "kind": "number"}]}),
        (added("bp", lambda site, i, _: f"{100 + i % 2} mmHg"), ("'bp'", "a unit", "'100 mmHg'"), {"values": {"bp": {"100 mmHg": "100", "101 mmHg": "101"}}, "columns": [{"name": "bp", "kind": "number"}]}),
        (added("pay", lambda site, i, _: f"1,{200 + i % 2}"), ("'pay'", "thousands"), {"values": {"pay": {"1,200": "1200", "1,201": "1201"}}, "columns": [{"name": "pay", "kind": "number"}]}),
        (added("hb", lambda site, i, _: f"{12 + i % 2},5"), ("'hb'", "decimal comma"), {"values": {"hb": {"12,5": "12.5", "13,5": "13.5"}}, "columns": [{"name": "hb", "kind": "number"}]}),
    ],
)  # fmt: skip
def test_what_would_be_read_wrong_is_named_with_its_repair(
    tmp_path: Path, change: Callable[..., None], words: tuple[str, ...], repair: Any
) -> None:
    (finding,) = look(tmp_path, change)
    assert all(word in finding.message for word in words), finding.message
    assert finding.repair == repair
    assert not finding.certain  # guesses are proposed, never applied


def test_celsius_and_fahrenheit_are_named_without_a_factor(tmp_path: Path) -> None:
    def temperatures(sites: dict[str, Site]) -> None:
        for place, (site, columns) in enumerate(sites.items()):
            celsius = np.random.default_rng(place).normal(37, 0.5, ROWS)
            own = 1.8 * celsius + 32 if site == "c" else celsius
            columns["temp"] = own.round(1).tolist()

    (finding,) = look(tmp_path, temperatures)
    assert "c.csv" in finding.message and "Fahrenheit" in finding.message
    assert finding.repair is None and finding.sites == ("c",)


def test_a_target_in_another_unit_is_named(tmp_path: Path) -> None:
    (finding,) = look(tmp_path, cells("c", "weight", scaled(18)), label="weight")
    assert finding.column == "weight" and finding.sites == ("c",) and "c.csv" in finding.message


def test_a_multiple_of_the_target_is_a_leak(tmp_path: Path) -> None:
    change = added("pounds", lambda site, i, columns: 2.2046 * columns["weight"][i])
    (finding,) = look(tmp_path, change, label="weight")
    assert "'pounds' is a multiple of the label column" in finding.message


@pytest.mark.filterwarnings("error")
def test_numbers_near_the_largest_do_no_harm(tmp_path: Path) -> None:
    change = added("huge", lambda site, i, _: (-1) ** i * 1e308)
    assert look(tmp_path, change, label="weight") == []


def test_a_copy_of_a_site_is_named_by_its_file(tmp_path: Path) -> None:
    (finding,) = look(tmp_path, lambda sites: sites.update({"a (1)": sites["a"]}))
    assert "'a (1)' (a (1).csv) looks like a copy of 'a' (a.csv)" in finding.message


def test_repeated_rows_are_named_by_their_lines(tmp_path: Path) -> None:
    def repeat(sites: dict[str, Site]) -> None:
        for column in sites["b"].values():
            column += column[:5]

    (finding,) = look(tmp_path, repeat)
    assert "5 rows of 85" in finding.message
    assert "b.csv, line 82" in finding.message and "b.csv, line 2" in finding.message
    assert "delete" not in finding.message and "remove" not in finding.message


def test_columns_of_few_values_repeat_by_chance(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    sites = {
        name: {column: draw.integers(0, 3, 100).tolist() for column in ("p", "q", "label")}
        for name in "ab"
    }
    assert find_in_tables(read_sites(write(tmp_path / "data", sites)), "label") == []


def test_hidden_files_are_no_sites(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", {name: patients(seed) for seed, name in enumerate("ab")})
    for name in (".DS_Store", "._a.csv", "~$b.csv"):
        (folder / name).write_bytes(b"\0\5\x16\7")
    (finding,) = find_in_tables(read_sites(folder), "disease")
    assert ".DS_Store" in finding.message and "._a.csv" in finding.message
    assert from_tables(folder, label="disease").site_names == ("a", "b")


def test_the_proposed_kind_of_a_date_can_be_read(tmp_path: Path) -> None:
    change = added("seen", lambda site, i, _: 20240000 + 100 * (1 + i % 12) + 1 + i % 28)
    look(tmp_path, change)
    schema = {"columns": [{"name": "seen", "kind": "date", "formats": ["%Y%m%d"]}]}
    report = check_data(DataConfig(name=str(tmp_path / "data"), label="disease", schema=schema))
    assert report.columns[0].becomes.startswith("1 input (days since 1970)")


def test_a_kind_that_a_schema_gives_is_not_questioned(tmp_path: Path) -> None:
    change = added("zip", lambda site, i, _: 8000 + i % 30)
    assert look(tmp_path, change)
    sites = read_sites(tmp_path / "data")
    assert find_in_tables(sites, "disease", decided=["zip"]) == []


def test_findings_are_shown_with_what_is_refused(tmp_path: Path) -> None:
    def change(sites: dict[str, Site]) -> None:
        cells("b", "chol", scaled(1 / 38.67))(sites)
        sites["a"]["disease"][3] = ""

    look(tmp_path, change)
    report = check_data(DataConfig(name=str(tmp_path / "data"), label="disease"))
    assert any("a.csv, line 5" in problem for problem in report.problems)
    assert any("mmol/l" in finding.message for finding in report.findings)


def test_names_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    change = added("zip\x1b[2J", lambda site, i, _: 8000 + i % 30)
    (finding,) = look(tmp_path, change)
    assert finding.message.isprintable()


def test_the_hospitals_of_uci_have_two_right_findings(tmp_path: Path) -> None:
    """Cholesterol and pressure of 0, which were not measured, are named; nothing else is."""
    try:
        data = load("uci_heart_disease")
    except (ValueError, OSError) as error:
        pytest.skip(f"the set is not at hand: {error}")
    numbers = data.x.numpy().astype(np.float64)
    names = [column.name for column in data.columns]
    chol = names.index("chol")
    assert data.site is not None
    sites: dict[str, Site] = {}
    for place, site in enumerate(data.site_names):
        own = np.flatnonzero(data.site == place)
        sites[site] = {
            name: ["" if np.isnan(cell) else f"{cell:g}" for cell in numbers[own, j]]
            for j, name in enumerate(names)
        }
        sites[site]["num"] = data.y[own].tolist()
    assert find_in_tables(read_sites(write(tmp_path / "clean", sites)), "num") == []
    for columns in sites.values():  # as the published files have it
        columns["chol"] = [cell or "0" for cell in columns["chol"]]
    (finding,) = find_in_tables(read_sites(write(tmp_path / "raw", sites)), "num")
    assert finding.repair == {"missing": {"chol": ["0"]}}
    assert np.isnan(numbers[:, chol]).sum() > 100


@pytest.mark.parametrize("name", ["iris", "diabetes", "breast_cancer", "wine"])
@pytest.mark.parametrize("order", ["random", "sorted"])
def test_ordinary_sets_give_no_finding(tmp_path: Path, name: str, order: str) -> None:
    data = getattr(datasets, f"load_{name}")()
    rows = np.random.default_rng(0).permutation(len(data.data))
    if order == "sorted":  # sites that differ as much as sites can
        rows = np.argsort(data.data[:, 0], kind="stable")
    sites = {}
    for place, own in enumerate(np.array_split(rows, 3)):
        columns = {
            column: data.data[own, j].tolist() for j, column in enumerate(data.feature_names)
        }
        sites[f"s{place}"] = {**columns, "y": data.target[own].tolist()}
    assert find_in_tables(read_sites(write(tmp_path / "data", sites)), "y") == []


@pytest.mark.parametrize(
    ("column", "plain", "code"),
    [
        ("sex", [0, 1], 9),
        ("sex", [1, 2], -9),
        ("grade", [1, 2, 3, 4], 99),
        ("disease", [0, 1], -9),
        ("disease", [0, 1, 2, 3, 4], 99),
    ],
)
def test_codes_among_few_numbers_and_labels_are_named(
    column: str, plain: list[int], code: int, tmp_path: Path
) -> None:
    def change(sites: dict[str, Site]) -> None:
        for name, site in sites.items():
            site[column] = (plain * ROWS)[:ROWS]
            if name == "b":
                site[column][::9] = [code] * len(site[column][::9])

    (finding,) = [one for one in look(tmp_path, change) if one.repair and "missing" in one.repair]
    assert finding.repair == {"missing": {column: [str(code)]}}
    assert "b.csv" in finding.message


def test_minus_one_is_named_beside_positive_numbers_only(tmp_path: Path) -> None:
    def change(sites: dict[str, Site]) -> None:
        sites["b"]["age"][3] = -1
        for site in sites.values():
            site["change"] = [number % 7 - 1 for number in range(ROWS)]

    found = [one for one in look(tmp_path, change) if one.repair and "missing" in one.repair]
    assert [one.repair for one in found] == [{"missing": {"age": ["-1"]}}]

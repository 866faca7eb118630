"""Reports on data: sites, columns, files, and warnings where something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from equipoise.data import DataConfig
from equipoise.data.check import DataReport, check_data
from tests.helpers.clean_sites import HEADER, clean, with_first_column, write
from tests.helpers.reports import remarks_on


def look(folder: Path, **settings: object) -> DataReport:
    return check_data(DataConfig(name=str(folder), **settings))


def test_clean_data_are_described_without_a_warning(tmp_path: Path) -> None:
    found = look(
        write(tmp_path / "sites", {"north": clean("north"), "south": clean("south")[:150]})
    )
    assert remarks_on(found) == []
    assert (found.name, found.task, found.label, found.guessed) == (
        "sites",
        "classification",
        "label",
        True,
    )
    assert [(site.name, site.rows, site.test, dict(site.classes)) for site in found.sites] == [
        ("north", 160, 32, {"sick": 54, "well": 106}),
        ("south", 150, 30, {"sick": 50, "well": 100}),
    ]
    assert [(one.name, one.kind, one.gaps, one.becomes) for one in found.columns] == [
        ("age", "number", 0, "1 input, scaled by each client's own mean and deviation"),
        ("ward", "category", 0, "4 inputs: a, b, c, other"),
        ("pressure", "number", 0, "1 input, scaled by each client's own mean and deviation"),
    ]
    assert found.files == {"north.csv": "commas, UTF-8", "south.csv": "commas, UTF-8"}
    assert not look(tmp_path / "sites", label="label").guessed
    assert "not scaled" in look(tmp_path / "sites", normalise="none").columns[0].becomes
    assert "of all clients" in look(tmp_path / "sites", test="global").columns[0].becomes


def test_a_column_that_was_left_out_is_used_when_asked_for(tmp_path: Path) -> None:
    sites = {"north": clean("north"), "south": clean("south")}
    with_first_column(lambda site, i: f"{site[0]}{i // 2}")(sites)
    folder = write(tmp_path / "sites", sites, ["more", *HEADER])
    assert look(folder).columns[0].kind == "category"  # every value twice
    sites = {"north": clean("north"), "south": clean("south")}
    with_first_column(lambda site, i: f"{site[0]}{i}")(sites)
    folder = write(tmp_path / "sites", sites, ["more", *HEADER])
    assert (look(folder).columns[0].kind, look(folder).columns[0].becomes) == (
        "identifier",
        "left out",
    )
    asked = look(folder, categorical=["more"])
    assert asked.columns[0].kind == "category"
    assert not any("more" in warning for warning in remarks_on(asked))
    given = look(folder, schema={"columns": [{"name": "age", "kind": "number"}]})
    assert [(one.name, one.kind) for one in given.columns][:2] == [
        ("age", "number"),
        ("more", "not in the schema"),
    ]
    assert given.guessed


def test_decimal_commas_beside_points_are_doubtful(tmp_path: Path) -> None:
    for site in ("north", "south"):
        start = len(site) * 1000 + (site == "south")  # sites that are not copies of each other
        rows = "".join(f"{start + 2 * i},5;1.{100 + i};{'ab'[i % 2]}\n" for i in range(150))
        (tmp_path / f"{site}.csv").write_text(f"x;z;label\n{rows}")
    found = look(tmp_path)
    assert found.files["north.csv"] == "semicolons, UTF-8, decimal commas in x"
    (warning,) = [warning for warning in remarks_on(found) if "north.csv" in warning]
    assert "numbers of x have decimal commas, those of z points" in warning


def test_numbers_to_predict_are_described_by_site(tmp_path: Path) -> None:
    for shift, site in enumerate(("north", "south")):
        (tmp_path / f"{site}.csv").write_text(
            "x,rate\n" + "".join(f"{(i + shift) % 7},{60 + i / 4}\n" for i in range(160))
        )
    found = look(tmp_path, label="rate")
    assert (found.task, found.schema.task, remarks_on(found)) == ("regression", "regression", [])
    assert found.sites[0].target == {
        "mean": pytest.approx(79.875),
        "lowest": 60.0,
        "highest": 99.75,
    }


def test_images_are_counted_by_site_and_class_and_their_sizes_compared(tmp_path: Path) -> None:
    for site in ("east", "west"):
        for kind in ("cat", "dog") if site == "east" else ("cat",):
            (tmp_path / site / kind).mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (6, 5 + i % 2)).save(tmp_path / site / kind / f"{i}.png")
    found = look(tmp_path)
    assert [(site.name, dict(site.classes)) for site in found.sites] == [
        ("east", {"cat": 4, "dog": 4}),
        ("west", {"cat": 4}),
    ]
    assert any(
        "2 different sizes, such as 5x6, 6x6 (height x width)" in warning
        for warning in remarks_on(found)
    )
    assert any(
        "site 'west' has no row of the class 'dog'" in warning for warning in remarks_on(found)
    )
    assert look(tmp_path, image_size=8).schema.shape == (3, 8, 8)


def test_a_registered_set_can_be_looked_at_too() -> None:
    found = look(Path("digits"))
    assert (found.sites[0].rows, found.schema.shape, remarks_on(found)) == (1797, (1, 8, 8), [])

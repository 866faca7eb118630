"""Sites that prepare their data alone: the same bits as the same sites prepared together."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import equipoise as eq
from equipoise.data import DataConfig, Federation, federate, prepare_client
from equipoise.data.agreement import task_of
from equipoise.data.check import check_data
from equipoise.data.patients.synthetic import write_patients
from equipoise.data.roster import roster_of
from equipoise.data.schema import Schema
from equipoise.experiment import ConfigurationError

SEED = 3
HEART = Path(os.environ.get("EQUIPOISE_DATA", "")) / "uci_heart_disease.npz"
MIXED = {
    # ward: numbers at one site, words at the other; seen: dates in two formats, one of digits
    "north": "age;ward;seen;pressure;sick\n"
    + "".join(
        f"{30 + i};{i % 3};2024010{1 + i % 9};{'?' if i == 4 else 100 + i}\n".replace(
            "\n", f";{'yes' if i % 2 else 'no'}\n"
        )
        for i in range(30)
    ),
    "south": "sick,age,pressure,ward,seen,remark\n"
    + "".join(
        f"{'yes' if i % 3 else 'no'},{40 + i / 2},{'unknown' if i % 7 == 0 else 90 + i},"
        f"{'abc'[i % 3]},{1 + i % 28:02}.03.2023,free text {i}\n"
        for i in range(40)
    ),
}
MIXED_SCHEMA = {
    "label": "sick",
    "classes": ["no", "yes"],
    "columns": [
        {"name": "age", "kind": "number", "gaps": False},
        {"name": "ward", "kind": "category", "categories": ["0", "1", "a", "b"], "gaps": False},
        {"name": "seen", "kind": "date", "formats": ["%Y%m%d", "%d.%m.%Y"], "gaps": False},
        {"name": "pressure", "kind": "number", "gaps": True},
    ],
    "missing": {"pressure": ["unknown"]},
}


def assert_same_client(alone: Federation, together: Federation, client: str) -> None:
    """Compare one client of two federations, sample by sample and in order."""
    for part in ("train", "validation", "test"):
        own = getattr(alone, part)[alone.ids.index(client)]
        joint = getattr(together, part)[together.ids.index(client)]
        assert torch.equal(alone.x[own], together.x[joint])
        assert torch.equal(alone.y[own], together.y[joint])
    assert alone.task == together.task
    assert (alone.task.centre, alone.task.scale) == (together.task.centre, together.task.scale)
    statistics = alone.recipe.get("clients", {client: None})[client]
    assert statistics == together.recipe.get("clients", {client: None})[client]


def assert_alone_as_together(
    folder: Path, files: dict[str, Path], elsewhere: Path, **settings: Any
) -> Federation:
    """Prepare a folder of sites, and each site from a copy of its own files under another name."""
    config = DataConfig(name=str(folder), apart=True, **settings)
    together = federate(config, SEED)
    assert together.ids == tuple(files)
    for client, own in files.items():
        copy = elsewhere / client / f"export{own.suffix}"
        copy.parent.mkdir(parents=True)
        (shutil.copytree if own.is_dir() else shutil.copy)(own, copy)
        alone = prepare_client(config.model_copy(update={"name": str(copy)}), SEED, client)
        assert_same_client(alone, together, client)
        assert alone.task == task_of(config.schema)
    return together


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    folder = tmp_path / "mixed"
    folder.mkdir()
    for site, text in MIXED.items():
        (folder / f"{site}.csv").write_text(text)
    return folder


@pytest.mark.skipif(not HEART.is_file(), reason="uci_heart_disease.npz is not in EQUIPOISE_DATA")
@pytest.mark.parametrize("normalise", ["client", "none"])
def test_four_hospitals_alone_are_the_same_as_together(tmp_path: Path, normalise: str) -> None:
    arrays = np.load(HEART)
    folder = tmp_path / "heart"
    folder.mkdir()
    files = {}
    for site in ("cleveland", "hungary", "switzerland", "va"):
        files[site] = folder / f"{site}.npz"
        np.savez(
            files[site],
            x=arrays[f"x_{site}"],
            feature_names=arrays["feature_names"],
            disease=(arrays[f"y_{site}"] > 0).astype(int),
        )
    config = DataConfig(name=str(folder), label="disease", categorical=("cp", "thal"))
    schema = check_data(config).schema
    together = assert_alone_as_together(
        folder, files, tmp_path / "sites", schema=schema, normalise=normalise
    )
    assert len(together.y) == 920


def test_tables_with_numbers_at_one_site_and_text_at_another(mixed: Path, tmp_path: Path) -> None:
    files = {site: mixed / f"{site}.csv" for site in MIXED}
    together = assert_alone_as_together(mixed, files, tmp_path / "sites", schema=MIXED_SCHEMA)
    assert together.recipe["features"][1:6] == [
        f"ward={name}" for name in ("0", "1", "a", "b", "other")
    ]
    # dates of both formats are days since 1970 after scaling by each client
    assert abs(float(together.x[together.train[0], 6].mean())) < 1e-6


def test_images_in_folders(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    folder = tmp_path / "xrays"
    for site, sides in (("a", 12), ("b", 20)):
        for kind in ("ill", "well") if site == "a" else ("ill",):
            (folder / site / kind).mkdir(parents=True)
            for number in range(10):
                pixels = random.integers(0, 255, (sides, sides), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / site / kind / f"{number}.png")
    schema = {"classes": ["ill", "well"], "shape": [1, 16, 12]}
    files = {site: folder / site for site in "ab"}
    together = assert_alone_as_together(folder, files, tmp_path / "sites", schema=schema)
    assert together.task.shape == (1, 16, 12)


def test_images_with_official_splits(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    folder = tmp_path / "xrays"
    for site in "ab":
        for part, count in (("train", 8), ("test", 4)):
            for kind in ("ill", "well"):
                (folder / site / part / kind).mkdir(parents=True)
                for number in range(count):
                    pixels = random.integers(0, 255, (8, 8), dtype=np.uint8)
                    Image.fromarray(pixels).save(folder / site / part / kind / f"{number}.png")
    schema = {"classes": ["ill", "well"], "shape": [1, 8, 8]}
    files = {site: folder / site for site in "ab"}
    together = assert_alone_as_together(folder, files, tmp_path / "sites", schema=schema)
    assert together.test.sizes.tolist() == [8, 8]


@pytest.mark.parametrize(
    ("inputs", "schema"),
    [
        (
            lambda random, rows: random.integers(0, 255, (rows, 6, 6), dtype=np.uint8),
            {"classes": ["0", "1", "2"], "shape": [1, 6, 6]},
        ),
        (
            lambda random, rows: random.normal(size=(rows, 5, 2)).astype(np.float32),
            {"classes": ["0", "1", "2"], "shape": [5, 2]},
        ),
        (
            lambda random, rows: random.normal(size=(rows, 2)),
            {
                "classes": ["0", "1", "2"],
                "columns": [{"name": f"x{i}", "kind": "number", "gaps": False} for i in range(2)],
            },
        ),
    ],
    ids=["images", "sequences", "rows"],
)
def test_arrays(
    tmp_path: Path,
    inputs: Callable[[np.random.Generator, int], np.ndarray],
    schema: dict[str, Any],
) -> None:
    random = np.random.default_rng(0)
    folder = tmp_path / "arrays"
    folder.mkdir()
    files = {}
    for site, classes, rows in (("a", 2, 30), ("b", 3, 25)):
        files[site] = folder / f"{site}.npz"
        np.savez(files[site], x=inputs(random, rows), y=np.arange(rows) % classes)
    together = assert_alone_as_together(folder, files, tmp_path / "sites", schema=schema)
    assert together.task.outputs == 3


def test_patients_histories(tmp_path: Path) -> None:
    folder = write_patients(tmp_path / "patients", seed=1, share=0.001, per_site=True)
    for site in sorted(folder.iterdir())[3:]:
        shutil.rmtree(site)
    files = {site.name: site for site in sorted(folder.iterdir())}
    names = federate(DataConfig(name=str(folder)), SEED).recipe["codes"][:30]
    codes = [{"name": name, "centre": 50.0 + i, "scale": 20.0} for i, name in enumerate(names)]
    schema = {"classes": ["no", "yes"], "codes": codes, "events": 25}
    together = assert_alone_as_together(folder, files, tmp_path / "sites", schema=schema)
    assert together.task.shape == (26, 4)
    events = together.x[:, 1:]
    is_unknown = events[..., 0] > len(codes)
    assert bool(is_unknown.any())
    assert bool((events[..., 3][is_unknown] == 1).all())  # their values have no scale


def test_targets_are_scaled_as_the_sites_agreed(tmp_path: Path) -> None:
    folder = tmp_path / "doses"
    folder.mkdir()
    files = {}
    for site, offset in (("a", 0), ("b", 100)):
        files[site] = folder / f"{site}.csv"
        rows = "".join(f"{i % 13},{offset + i / 7:.2f}\n" for i in range(30))
        files[site].write_text("age,dose\n" + rows)
    schema = {
        "label": "dose",
        "task": "regression",
        "centre": 50.0,
        "scale": 40.0,
        "columns": [{"name": "age", "kind": "number", "gaps": False}],
    }
    together = assert_alone_as_together(folder, files, tmp_path / "sites", schema=schema)
    assert (together.task.centre, together.task.scale) == (50.0, 40.0)


def test_equal_rows_of_two_sites_do_not_concern_each_other(tmp_path: Path) -> None:
    text = "age,sick\n" + "".join(f"{i},{'yes' if i % 2 else 'no'}\n" for i in range(40))
    schema = {
        "label": "sick",
        "classes": ["no", "yes"],
        "columns": [{"name": "age", "kind": "number", "gaps": False}],
    }
    for site in "ab":
        (tmp_path / f"{site}.csv").write_text(text)
    apart = federate(DataConfig(name=str(tmp_path), schema=schema, apart=True), SEED)
    assert apart.train.sizes.tolist() == [28, 28]
    assert apart.metadata["equal_samples"] == 0
    ages = [set(apart.source[apart.test[k]] % 40) for k in range(2)]
    assert ages[0] != ages[1]  # each draws from a stream of its own
    joint = federate(DataConfig(name=str(tmp_path), schema=schema), SEED)
    assert joint.metadata["equal_samples"] == 40


def test_a_site_is_the_same_whichever_others_take_part(mixed: Path, tmp_path: Path) -> None:
    config = DataConfig(name=str(mixed), schema=MIXED_SCHEMA, apart=True)
    before = roster_of(federate(config, SEED)).fingerprints
    (mixed / "east.csv").write_text(MIXED["north"].replace("yes", "no", 3))
    after = roster_of(federate(config, SEED)).fingerprints
    assert {site: after[site] for site in before} == before


def test_a_client_is_read_from_a_folder_of_sites_by_its_name(mixed: Path) -> None:
    config = DataConfig(name=str(mixed), schema=MIXED_SCHEMA, apart=True)
    together = federate(config, SEED)
    for client in MIXED:
        assert_same_client(prepare_client(config, SEED, client), together, client)
    with pytest.raises(ValueError, match="north"):
        prepare_client(config, SEED, "nort")


def test_a_run_apart_is_written_down_and_repeats_itself(mixed: Path, tmp_path: Path) -> None:
    experiment = eq.Experiment(
        data={"name": str(mixed), "schema": MIXED_SCHEMA, "apart": True},
        rounds=1,
        workers=0,
        seed=SEED,
    )
    run = eq.run(experiment, tmp_path / "run", quiet=True)
    assert run.replay()["data"]["apart"] is True
    again = eq.run(run.replay(), tmp_path / "again", quiet=True)
    assert again.table() == run.table()


def test_schema_of_the_dataset_stays_as_agreed(mixed: Path) -> None:
    together = federate(DataConfig(name=str(mixed), schema=MIXED_SCHEMA, apart=True), SEED)
    assert Schema(**together.recipe["schema"]).columns == Schema(**MIXED_SCHEMA).columns


def one_sentence(message: str) -> bool:
    return "\n" not in message and "Traceback" not in message


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"schema": None}, ["schema", "data schema join"]),
        ({"partition": "dirichlet:0.3"}, ["dirichlet:0.3", "natural"]),
        ({"samples": 20}, ["samples: 20"]),
        ({"normalise": "pooled"}, ["pooled", "agreed"]),
        ({"test": "global"}, ["test: global", "local"]),
        ({"site": "ward"}, ["site: ward"]),
        ({"label": "age"}, ["label", "'sick'", "'age'"]),
        ({"categorical": ["ward"]}, ["ward", "category"]),
        ({"normalise": "agreed"}, ["'age', 'seen', 'pressure'", "centre"]),
        ({"schema": {**MIXED_SCHEMA, "classes": []}}, ["classes"]),
        ({"schema": {"label": "sick", "classes": ["no", "yes"]}}, ["columns", "shape", "codes"]),
        (
            {"schema": {**MIXED_SCHEMA, "classes": [], "task": "regression"}},
            ["centre", "scale"],
        ),
        (
            {"schema": {**MIXED_SCHEMA, "missing": {"age": ["-9"]}}},
            ["'age'", "gaps: true"],
        ),
        (
            {"schema": {**MIXED_SCHEMA, "columns": [{"name": "age", "kind": "number"}]}},
            ["'age'", "gaps"],
        ),
        (
            {"schema": {**MIXED_SCHEMA, "columns": [{"name": "ward", "kind": "category"}]}},
            ["'ward'", "categories"],
        ),
        ({"schema": {"classes": ["no"], "codes": [{"name": "A"}]}}, ["events"]),
        ({"schema": {**MIXED_SCHEMA, "missing": {"agee": ["-9"]}}}, ["missing", "'agee'", "'age'"]),
        (
            {"schema": {**MIXED_SCHEMA, "sites": {"north": {"values": {"wards": {"x": "a"}}}}}},
            ["values", "'wards'", "'ward'"],
        ),
    ],
)
def test_settings_that_need_other_sites_are_refused(
    mixed: Path, settings: dict[str, Any], named: list[str]
) -> None:
    data = {"name": str(mixed), "schema": MIXED_SCHEMA, "apart": True, **settings}
    with pytest.raises(ConfigurationError) as error:
        eq.Experiment(data=data)
    assert one_sentence(str(error.value))
    for part in named:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("site", "text", "named"),
    [
        ("east", "age,ward,seen,pressure,sick\n40,a,20240102,90,maybe\n", ["east.csv", "'maybe'"]),
        ("east", "age,ward,seen,pressure,sick\n", ["east.csv", "at least one row"]),
        ("east", "", ["east.csv"]),
        ("east", "age,ward,pressure,sick\n40,a,90,no\n", ["'east'", "'seen'"]),
        ("east", "age,ward,seen,pressure,ill\n40,a,20240102,90,no\n", ["east.csv", "'sick'"]),
        ("east", "age,ward,seen,pressure,sick\nold,a,20240102,90,no\n", ["east.csv", "'old'"]),
        ("east", "age,ward,seen,pressure,sick\n40,a,2024-1-2,90,no\n", ["east.csv", "2024-1-2"]),
        ("east", "age,ward,seen,pressure,sick\n40,a,20240102,90,\n", ["east.csv", "line 2"]),
        ("x" * 65, "age,ward,seen,pressure,sick\n40,a,20240102,90,no\n", ["x" * 65]),
    ],
)
def test_a_site_that_does_not_fit_is_refused_before_anything_is_written(
    mixed: Path, tmp_path: Path, site: str, text: str, named: list[str]
) -> None:
    (mixed / f"{site}.csv").write_text(text)
    data = {"name": str(mixed), "schema": MIXED_SCHEMA, "apart": True}
    experiment = eq.Experiment(data=data, workers=0)
    with pytest.raises(ValueError) as error:
        eq.run(experiment, tmp_path / "run", quiet=True)
    assert one_sentence(str(error.value))
    for part in named:
        assert part in str(error.value)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError):
        prepare_client(DataConfig(**data), SEED, site)


def test_a_site_without_training_rows_is_refused(tmp_path: Path) -> None:
    data = eq.from_sites(
        {"a": (np.eye(6, dtype=np.float32), np.arange(6) % 2)}, part=np.full(6, 2), name="tests"
    )
    schema = {"classes": ["0", "1"], "shape": [6]}
    config = DataConfig(name="tests", schema=schema, apart=True, test="site")
    with pytest.raises(ValueError, match="'a' has no training"):
        prepare_client(config, SEED, "a", data)


def test_a_site_of_one_row_takes_part(mixed: Path, tmp_path: Path) -> None:
    (mixed / "tiny.csv").write_text("age,ward,seen,pressure,sick\n40,z,20240102,,no\n")
    together = federate(DataConfig(name=str(mixed), schema=MIXED_SCHEMA, apart=True), SEED)
    assert together.train.sizes.tolist() == [21, 28, 1]
    assert bool(torch.isfinite(together.x).all())


def test_categories_that_the_schema_lacks_are_read_as_other(mixed: Path) -> None:
    config = DataConfig(name=str(mixed), schema=MIXED_SCHEMA, apart=True)
    south = prepare_client(config, SEED, "south")
    other = south.recipe["features"].index("ward=other")
    rows = south.source[south.x[:, other].numpy() == 1]
    assert {MIXED["south"].splitlines()[1 + row].split(",")[3] for row in rows} == {"c"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kind": "category", "categories": ["30", "40"]}, ["20 of 30 cells", "`other`"]),
        ({"centre": 500.0, "scale": 10.0}, ["centre 500"]),
        ({"gaps": False}, ["5 gaps", "gaps: false"]),
    ],
)
def test_cells_that_the_agreed_schema_does_not_foresee_are_reported(
    tmp_path: Path, changes: dict[str, Any], named: list[str]
) -> None:
    ages = [["30", "", "50", "60", "70", "71"][row % 6] for row in range(30)]
    rows = "".join(f"{age},{'yes' if row % 2 else 'no'}\n" for row, age in enumerate(ages))
    (tmp_path / "a.csv").write_text("age,sick\n" + rows)
    age = {"name": "age", "kind": "number", "gaps": True, **changes}
    config = DataConfig(
        name=str(tmp_path / "a.csv"), schema={**CODED, "columns": [age]}, apart=True
    )
    warnings = [text for text in check_data(config, own_site="a").warnings if "'age'" in text]
    assert len(warnings) == 1
    for part in ("'a'", *named):
        assert part in warnings[0]


def test_codes_for_missing_values_are_reported_at_a_site_alone(tmp_path: Path) -> None:
    rows = "".join(f"{-999 if row % 9 == 0 else 40 + row},{row % 2}\n" for row in range(60))
    (tmp_path / "a.csv").write_text("age,sick\n" + rows)
    schema = {
        "label": "sick",
        "classes": ["0", "1"],
        "columns": [{"name": "age", "kind": "number", "gaps": False}],
    }
    config = DataConfig(name=str(tmp_path / "a.csv"), schema=schema, apart=True)
    assert any("-999" in text for text in check_data(config, own_site="a").warnings)


CODED = {"label": "sick", "classes": ["no", "yes"]}


@pytest.mark.parametrize(
    ("cells", "categories", "read"),
    [
        (("01", "02"), ["01", "02", "X9"], [0, 1]),  # another site has text
        (("01", "1"), ["01", "1"], [0, 1]),
        (("1", "2"), ["01", "02"], [0, 1]),  # a spreadsheet removed the zeros
        (("1.0", "2.50"), ["1", "2.5"], [0, 1]),
        (("9007199254740993", "1"), ["9007199254740992", "1"], [2, 1]),
    ],
)
def test_categories_that_are_numbers_are_found_in_any_spelling(
    tmp_path: Path, cells: tuple[str, str], categories: list[str], read: list[int]
) -> None:
    rows = "".join(f"{cells[row % 2]},{'yes' if row % 3 else 'no'}\n" for row in range(40))
    (tmp_path / "a.csv").write_text("ward,sick\n" + rows)
    ward = {"name": "ward", "kind": "category", "categories": categories, "gaps": False}
    config = DataConfig(
        name=str(tmp_path / "a.csv"), schema={**CODED, "columns": [ward]}, apart=True
    )
    alone = prepare_client(config, SEED, "a")
    columns = alone.x.numpy().argmax(axis=1)
    assert columns.tolist() == [read[row % 2] for row in alone.source]


@pytest.mark.parametrize("site", ["ä ö", "a+b=c", "日本", "site.v2", "'quoted'", "-x"])
def test_odd_names_of_sites_have_streams_of_their_own(
    mixed: Path, tmp_path: Path, site: str
) -> None:
    (mixed / f"{site}.csv").write_text(MIXED["north"])
    config = DataConfig(name=str(mixed), schema=MIXED_SCHEMA, apart=True)
    together = federate(config, SEED)
    assert_same_client(prepare_client(config, SEED, site), together, site)
    north, odd = together.ids.index("north"), together.ids.index(site)
    assert not torch.equal(together.x[together.test[north]], together.x[together.test[odd]])


def test_layouts_without_sites_are_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text(MIXED["north"])
    config = DataConfig(name=str(tmp_path / "one.csv"), schema=MIXED_SCHEMA, apart=True)
    with pytest.raises(ValueError, match="one file of each site"):
        federate(config, SEED)
    pool = tmp_path / "pool" / "ill"
    pool.mkdir(parents=True)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(pool / "0.png")
    shape = {"classes": ["ill", "well"], "shape": [1, 8, 8]}
    with pytest.raises(ValueError, match="one folder per site"):
        federate(DataConfig(name=str(tmp_path / "pool"), schema=shape, apart=True), SEED)
    patients = write_patients(tmp_path / "patients", seed=1, share=0.0005)
    codes = {"classes": ["no", "yes"], "codes": [{"name": "A"}], "events": 9}
    with pytest.raises(ValueError, match="folder of each site"):
        federate(DataConfig(name=str(patients), schema=codes, apart=True), SEED)


def test_histories_without_scales_of_codes_are_refused(tmp_path: Path) -> None:
    folder = write_patients(tmp_path / "patients", seed=1, share=0.0005)
    names = federate(DataConfig(name=str(folder)), SEED).recipe["codes"]
    schema = {"classes": ["no", "yes"], "codes": [{"name": name} for name in names], "events": 9}
    config = DataConfig(name=str(folder), schema=schema, apart=True)
    with pytest.raises(ValueError, match="--statistics"):
        prepare_client(config, SEED, "all")


def test_repairs_of_other_sites_do_not_concern_a_site_alone(mixed: Path, tmp_path: Path) -> None:
    schema = {
        **MIXED_SCHEMA,
        "values": {"ward": {"c": "b"}},  # north has no c
        "sites": {"south": {"factors": {"age": 2.0}}},
    }
    config = DataConfig(name=str(mixed), schema=schema, apart=True, normalise="none")
    together = federate(config, SEED)
    for site in MIXED:
        assert_same_client(prepare_client(config, SEED, site), together, site)
    wrong = {**schema, "sites": {"sout": {"factors": {"age": 2.0}}}}
    with pytest.raises(ValueError, match="south"):
        federate(DataConfig(name=str(mixed), schema=wrong, apart=True), SEED)


def test_a_scale_that_makes_inputs_infinite_is_refused(mixed: Path) -> None:
    columns = [{"name": "age", "kind": "number", "gaps": False, "centre": 0, "scale": 1e-300}]
    schema = {"label": "sick", "classes": ["no", "yes"], "columns": columns}
    config = DataConfig(name=str(mixed), schema=schema, apart=True, normalise="agreed")
    with pytest.raises(ValueError, match="'age'"):
        prepare_client(config, SEED, "north")


@pytest.mark.parametrize("normalise", ["client", "agreed"])
def test_values_of_test_rows_change_no_training_input(mixed: Path, normalise: str) -> None:
    columns = []
    for column in MIXED_SCHEMA["columns"]:
        is_scaled = column["kind"] != "category"
        columns.append({**column, "centre": 50, "scale": 9} if is_scaled else column)
    schema = {**MIXED_SCHEMA, "columns": columns}
    config = DataConfig(name=str(mixed), schema=schema, apart=True, normalise=normalise)
    before = prepare_client(config, SEED, "south")
    lines = MIXED["south"].splitlines()
    for row in before.source[before.test[0]]:
        cells = lines[1 + row].split(",")
        cells[1] = str(1000 + row)  # the age
        lines[1 + row] = ",".join(cells)
    (mixed / "south.csv").write_text("\n".join(lines) + "\n")
    after = prepare_client(config, SEED, "south")
    assert torch.equal(before.x[before.train[0]], after.x[after.train[0]])
    assert not torch.equal(before.x[before.test[0]], after.x[after.test[0]])


@pytest.mark.parametrize(
    "x",
    [np.arange(12 * 36, dtype=np.uint8).reshape(12, 6, 6), np.eye(12, 8).reshape(12, 4, 2)],
    ids=["images", "sequences"],
)
def test_the_saved_schema_of_arrays_is_enough_to_prepare_them_alone(
    tmp_path: Path, x: np.ndarray
) -> None:
    np.savez(tmp_path / "a.npz", x=x + np.zeros((12, 1, 1), x.dtype), y=np.arange(12) % 3)
    config = DataConfig(name=str(tmp_path), duplicates="separate")
    schema = check_data(config).schema
    config = DataConfig(name=str(tmp_path), schema=schema, apart=True, duplicates="separate")
    client = prepare_client(config, SEED, "a")
    assert client.task == task_of(schema)
    assert client.task.class_names == ("0", "1", "2")

"""Tables of sites: reading, agreeing on columns, and preparing without a leak between clients or
from test to training.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data import (
    Column,
    DataConfig,
    Dataset,
    federate,
    from_arrays,
    from_tables,
    inputs_from,
)
from equipoise.data.arrays import npz
from equipoise.data.schema import ColumnSchema
from equipoise.data.tables.cell_numbers import column_as_numbers
from equipoise.data.tables.sites import read_sites, read_table, site_files
from equipoise.data.tables.table_dataset import dataset_from_sites
from equipoise.validation import limits

NORTH = "age,ward,pressure,label\n" + "".join(
    f"{30 + i},{'ab'[i % 2]},{100 + i % 7 if i % 5 else ''},{'sick' if i % 3 else 'well'}\n"
    for i in range(20)
)
SOUTH = "age,ward,pressure,label\n" + "".join(
    f"{60 + i},c,{150 + i % 4},{'sick' if i % 2 else 'well'}\n" for i in range(20)
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "north.csv").write_text(NORTH)
    (tmp_path / "sites" / "south.csv").write_text(SOUTH)
    return tmp_path / "sites"


def test_a_folder_of_site_files_becomes_one_client_per_file(folder: Path) -> None:
    federation = federate(DataConfig(name=str(folder)), 1)
    assert federation.ids == ("north", "south")
    assert federation.task.class_names == ("sick", "well")
    assert federation.recipe["features"] == [
        "age",
        "ward=a",
        "ward=b",
        "ward=c",
        "ward=other",
        "pressure",
        "pressure missing",
    ]
    assert federation.task.shape == (7,)
    assert bool(torch.isfinite(federation.x).all())


def test_numbers_are_scaled_with_the_clients_own_training_rows_only(folder: Path) -> None:
    federation = federate(DataConfig(name=str(folder)), 1)
    ages = np.concatenate([np.arange(30, 50), np.arange(60, 80)])
    for k in range(2):
        rows = federation.train[k]
        assert federation.x[rows, 0].mean().item() == pytest.approx(0, abs=1e-6)
        assert federation.x[rows, 0].std(correction=0).item() == pytest.approx(1, abs=1e-5)
        own = ages[federation.source[rows]]
        test = federation.test[k]
        expected = (ages[federation.source[test]] - own.mean()) / own.std()
        assert np.allclose(federation.x[test, 0], expected, atol=1e-5)


def test_a_gap_is_filled_with_the_clients_own_mean_and_marked(folder: Path) -> None:
    federation = federate(DataConfig(name=str(folder)), 1)
    gaps = federation.x[:, 6] == 1
    assert int(gaps.sum()) == 4
    assert bool((federation.x[gaps, 5].abs() < 1e-6).all())  # the mean, scaled


def raw_table(n: int = 60) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2)).astype(np.float32)
    codes = rng.integers(0, 3, n).astype(np.float32)
    x[rng.random(n) < 0.2, 1] = np.nan
    columns = ("a", "b", Column("c", ("red", "green", "blue")))
    return from_arrays(
        np.column_stack([x, codes]),
        np.arange(n) % 2,
        sites=[f"s{i % 3}" for i in range(n)],
        columns=columns,
    )


@pytest.mark.parametrize("normalise", ["client", "pooled", "none"])
def test_changing_every_test_and_validation_row_changes_no_training_input(normalise: str) -> None:
    data = raw_table()
    config = DataConfig(normalise=normalise, duplicates="separate")
    before = federate(config, 1, data)
    x = data.x.clone()
    touched = np.concatenate(
        [before.source[before.test.index], before.source[before.validation.index]]
    )
    x[touched, 0] = 1e6
    x[touched, 1] = torch.nan
    x[touched, 2] = 0
    changed = from_arrays(
        x, data.y, sites=[data.site_names[s] for s in data.site], columns=data.columns
    )  # type: ignore[union-attr]
    after = federate(config, 1, changed)
    assert np.array_equal(before.train.index, after.train.index)
    assert torch.equal(before.x[before.train.index], after.x[after.train.index])
    assert before.recipe == after.recipe
    assert not torch.equal(before.x, after.x)


def test_one_clients_values_do_not_reach_another() -> None:
    data = raw_table()
    before = federate(DataConfig(duplicates="separate"), 1, data)
    x = data.x.clone()
    x[data.site == 0, 0] *= 1000
    after = federate(
        DataConfig(duplicates="separate"),
        1,
        from_arrays(x, data.y, sites=[data.site_names[s] for s in data.site], columns=data.columns),
    )  # type: ignore[union-attr]
    for k in (1, 2):
        assert torch.equal(before.x[before.train[k]], after.x[after.train[k]])


def test_a_category_that_training_never_saw_has_its_place_all_the_same() -> None:
    """Whether training saw it depends on the seed; what the inputs are must not."""
    n = 40
    x = np.zeros((n, 1), np.float32)
    data = from_arrays(x, np.arange(n) % 2, columns=[Column("c", ("seen", "new"))], sites=["s"] * n)
    config = DataConfig(duplicates="separate")
    test = federate(config, 1, data).source[federate(config, 1, data).test.index]
    x[test] = 1
    federation = federate(
        config,
        1,
        from_arrays(x, np.arange(n) % 2, columns=[Column("c", ("seen", "new"))], sites=["s"] * n),
    )
    assert federation.recipe["features"] == ["c=seen", "c=new", "c=other"]
    assert federation.x[federation.test.index].tolist() == [[0.0, 1.0, 0.0]] * len(test)
    assert federation.x[federation.train.index].tolist() == [[1.0, 0.0, 0.0]] * len(
        federation.train.index
    )


def test_a_column_that_a_client_never_measured_is_neutral() -> None:
    x = np.array([[1.0, np.nan]] * 10 + [[2.0, 5.0], [3.0, 7.0]] * 5, np.float32)
    x[:, 0] += np.arange(20) / 10
    data = from_arrays(
        x, np.arange(20) % 2, sites=["without"] * 10 + ["with"] * 10, columns=["a", "b"]
    )
    federation = federate(DataConfig(), 1, data)
    assert federation.recipe["features"] == ["a", "b", "b missing"]
    assert federation.x[federation.train[0], 1:].tolist() == [[0.0, 1.0]] * 7


def test_a_constant_column_does_not_divide_by_zero() -> None:
    data = from_arrays(
        np.column_stack([np.arange(20.0), np.full(20, 3.0)]),
        np.arange(20) % 2,
        columns=["a", "b"],
        sites=["s"] * 20,
    )
    assert bool((federate(DataConfig(), 1, data).x[:, 1] == 0).all())


def test_a_shared_test_set_is_scaled_with_pooled_statistics() -> None:
    data = raw_table()
    federation = federate(DataConfig(test="global"), 1, data)
    assert federation.recipe["scaling"] == "pooled"
    train = federation.x[federation.train.index, 0]
    assert train.mean().item() == pytest.approx(0, abs=1e-5)
    with pytest.raises(ValueError, match="has no statistics for samples that belong to no client"):
        federate(DataConfig(test="global", normalise="client"), 1, data)


@pytest.mark.parametrize("test", ["local", "global"])
@pytest.mark.parametrize("normalise", ["client", "pooled", "none"])
def test_inputs_are_scaled_as_asked_where_sites_differ(normalise: str, test: str) -> None:
    """Sites with other means, deviations and sizes: their own statistics, those of all training
    rows together, or none are three things.
    """
    if (normalise, test) == ("client", "global"):
        pytest.skip("refused: see above")
    rng = np.random.default_rng(0)
    raw = np.concatenate(
        [rng.normal(10 * k, 1 + k, size=(20 * (k + 1), 2)) for k in range(3)]
    ).astype(np.float32)
    labels, names = np.arange(len(raw)) % 2, np.repeat(["a", "b", "c"], [20, 40, 60])
    federation = federate(
        DataConfig(normalise=normalise, test=test),
        1,
        from_arrays(raw, labels, sites=list(names), columns=["u", "v"]),
    )
    raw = raw.astype(np.float64)
    everyone = raw[federation.source[federation.train.index]]
    for place in range(3):
        own = raw[federation.source[federation.train[place]]]
        used = {"client": own, "pooled": everyone}.get(normalise)
        for part in (federation.train, federation.validation, federation.test):
            held = raw[federation.source[part[place]]]
            expected = held if used is None else (held - used.mean(axis=0)) / used.std(axis=0)
            assert np.allclose(federation.x[part[place]], expected, atol=1e-5)
    shared = raw[federation.source[federation.shared_test]]
    assert (len(shared) > 0) == (test == "global")
    expected = (
        shared if normalise == "none" else (shared - everyone.mean(axis=0)) / everyone.std(axis=0)
    )
    assert np.allclose(federation.x[federation.shared_test], expected, atol=1e-5)


def test_a_row_held_by_two_clients_is_prepared_by_each() -> None:
    data = raw_table(200)
    federation = federate(
        DataConfig(partition="ics_literal:2,q=2", clients=3, duplicates="separate"), 1, data
    )
    assert federation.metadata["repeats"] > 0
    for k in range(3):
        assert federation.x[federation.train[k], 0].mean().item() == pytest.approx(0, abs=1e-5)


def test_new_rows_go_through_the_stored_recipe(folder: Path, tmp_path: Path) -> None:
    federation = federate(DataConfig(name=str(folder)), 1)
    again = inputs_from(folder / "south.csv", federation.recipe, "south")
    order = federation.source - 20
    held = np.flatnonzero(order >= 0)
    assert torch.equal(again[order[held]], federation.x[held])
    new = tmp_path / "new.csv"
    new.write_text("pressure,ward,age\n?,zzz,65\n")
    row = inputs_from(new, federation.recipe, "north")
    assert row[0, 1:].tolist() == [0, 0, 0, 1, 0, 1]
    with pytest.raises(
        ValueError,
        match=r"say which client with --client \(in Python client=\), one of north, south",
    ):
        inputs_from(new, federation.recipe)
    with pytest.raises(ValueError, match=r"got an array of shape \(2, 2\)"):
        inputs_from(np.zeros((2, 2)), federation.recipe, "north")
    new.write_text("ward,age\na,65\n")
    with pytest.raises(ValueError, match="lacks the columns pressure"):
        inputs_from(new, federation.recipe, "north")


def test_sites_with_different_columns_are_refused_and_the_columns_named(folder: Path) -> None:
    (folder / "west.csv").write_text("age,wards,pressure,label\n1,a,2,sick\n")
    with pytest.raises(ValueError, match="west lacks ward and west has also wards"):
        from_tables(folder)


def test_the_label_must_be_named_when_it_is_not_obvious(folder: Path) -> None:
    assert from_tables(folder, label="ward").task.class_names == ("a", "b", "c")
    with pytest.raises(ValueError, match="there is no wrd"):
        from_tables(folder, label="wrd")
    (folder / "north.csv").write_text("a,b\n1,2\n")
    (folder / "south.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="say which column is the label"):
        from_tables(folder)


def test_number_labels_are_classes_when_few_and_whole_and_targets_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "all.csv"
    file.write_text("hospital,x,y\n" + "".join(f"h{i % 2},{i},{1 + i % 2}\n" for i in range(30)))
    classes = from_tables(file, site="hospital")
    assert classes.task.class_names == ("1", "2")
    assert classes.y.tolist() == [0] * 15 + [1] * 15
    assert (
        from_tables(file, site="hospital", kind="regression").y.tolist() == [1.0] * 15 + [2.0] * 15
    )
    file.write_text("hospital,x,y\n" + "".join(f"h{i % 2},{i},{i}\n" for i in range(30)))
    assert from_tables(file, site="hospital").task.kind == "regression"


def test_one_file_with_a_site_column(tmp_path: Path) -> None:
    file = tmp_path / "all.csv"
    file.write_text(
        "hospital,x,label\n" + "".join(f"{'uvw'[i % 3]},{i},{i % 2}\n" for i in range(30))
    )
    federation = federate(DataConfig(name=str(file), site="hospital"), 1)
    assert federation.ids == ("u", "v", "w")
    assert federation.recipe["features"] == ["x"]
    with pytest.raises(ValueError, match=r"site: COLUMN.*hospital, x, label"):
        from_tables(file)


def test_numbers_can_be_declared_categories_and_text_anywhere_makes_a_column_text(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_text("code,kind,label\n3,1,0\n4,2,1\n")
    (tmp_path / "b.csv").write_text("code,kind,label\n3.0,x,0\n,2,1\n")
    data = from_tables(tmp_path, categorical=("code",))
    assert data.columns == (Column("code", ("3", "4")), Column("kind", ("1", "2", "x")))
    assert data.x[:3, 0].tolist() == [0, 1, 0]
    assert bool(data.x[3, 0].isnan())
    with pytest.raises(ValueError, match="names no column"):
        from_tables(tmp_path, categorical=("cod",))


def test_npz_sites_with_named_features_or_plain_arrays(tmp_path: Path) -> None:
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", x=np.arange(12.0).reshape(6, 2), y=np.arange(6) % 2)
    plain = from_tables(tmp_path)
    assert [c.name for c in plain.columns] == ["x0", "x1"]
    assert plain.site_names == ("a", "b")
    for name in ("a", "b"):
        np.savez(
            tmp_path / f"{name}.npz",
            x=np.arange(12.0).reshape(6, 2),
            y=np.arange(6) % 2,
            feature_names=np.array(["u", "v"]),
        )
    assert [c.name for c in from_tables(tmp_path).columns] == ["u", "v"]


def test_npz_sites_with_pictures(tmp_path: Path) -> None:
    for name in ("a", "b"):
        np.savez(
            tmp_path / f"{name}.npz",
            x=np.random.default_rng(ord(name)).integers(0, 255, (6, 5, 5, 3), dtype=np.uint8),
            y=np.arange(6) % 2,
        )
    assert from_tables(tmp_path).task.shape == (3, 5, 5)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,label\n", "at least one row"),
        ("a,a,label\n1,2,3\n", "appear twice: a"),
        ("a,label\n1,0\n2\n", "a.csv, line 3: expected 2 cells, got 1"),
        (
            "a,label\n1,0\n2,\n",
            r"^1 row has no value in the label column .label. \(a\.csv, line 3\)",
        ),
    ],
)
def test_broken_csv_files_are_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(ValueError, match=said):
        from_tables(tmp_path)


def test_where_the_memory_is_not_known_arrays_may_be_of_any_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(
        "os.sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 10}[name]
    )
    assert limits.most_bytes() == 20_480
    monkeypatch.setattr("os.sysconf", unknown)
    assert limits.most_bytes() == 2**62


def test_sides_of_arrays_without_values_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npz, "_MOST_ENTRIES", 5)
    for sides, fits in ((5, True), (6, False)):
        np.savez(tmp_path / "a.npz", x=np.zeros((sides, 0)))
        if fits:
            assert npz.read_npz(tmp_path / "a.npz")["x"].shape == (5, 0)
        else:
            with pytest.raises(ValueError, match="the file is damaged"):
                npz.read_npz(tmp_path / "a.npz")


def test_an_npz_file_with_objects_or_cut_short_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], dtype=object), y=np.zeros(1))
    with pytest.raises(
        ValueError, match="the array 'x' holds Python objects, which are never loaded"
    ):
        read_table(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=np.zeros(100))
    (tmp_path / "b.npz").write_bytes((tmp_path / "b.npz").read_bytes()[:100])
    with pytest.raises(ValueError, match="not an NPZ file"):
        read_table(tmp_path / "b.npz")


def test_parquet_without_its_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="pip install pyarrow"):
        read_table(tmp_path / "a.parquet")


def test_parquet_reads_like_csv(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    parquet.write_table(
        pyarrow.table({"n": [1.5, None], "t": ["u", "v"], "label": [0, 1]}), tmp_path / "a.parquet"
    )
    (tmp_path / "a.csv").write_text("n,t,label\n1.5,u,0\n,v,1\n")
    first, second = read_table(tmp_path / "a.parquet"), read_table(tmp_path / "a.csv")
    for name in ("n", "t", "label"):
        assert first[name].astype(str).tolist() == second[name].astype(str).tolist()
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"b\.parquet is damaged or not a Parquet file"):
        read_table(tmp_path / "b.parquet")


@pytest.mark.parametrize(
    ("cells", "column", "coded_as"),
    [
        (
            ["a", "", "c", "z", "b"],
            {"kind": "category", "categories": ("a", "b", "c")},
            [0, np.nan, 2, 3, 1],
        ),
        (
            np.array([3.0, np.nan, 4.0]),
            {"kind": "category", "categories": ("3", "4")},
            [0, np.nan, 1],
        ),
        (
            np.array([1.5, np.inf, -np.inf, np.nan, 1e38, -1e39]),
            {"kind": "number"},
            [1.5, np.nan, np.nan, np.nan, 1e38, np.nan],
        ),
        (["1", "NA", "2.5"], {"kind": "number"}, [1, np.nan, 2.5]),
        (["1970-01-03", ""], {"kind": "date", "formats": ("%Y-%m-%d",)}, [2, np.nan]),
    ],
)
def test_cells_as_numbers(cells: Any, column: dict[str, Any], coded_as: list[float]) -> None:
    assert column_as_numbers(
        np.array(cells), ColumnSchema(name="c", **column)
    ).tolist() == pytest.approx(coded_as, nan_ok=True)


def test_text_in_a_column_of_numbers_is_shown() -> None:
    with pytest.raises(ValueError, match="column 'c': expected a number, got 'high'"):
        column_as_numbers(np.array(["1", "", "high", "low"]), ColumnSchema(name="c", kind="number"))


@pytest.mark.parametrize(
    ("files", "settings", "said"),
    [
        ({"a.csv": "x,label\n1,0\n", "a.npz": {"x": [[1.0]], "y": [0]}}, {}, "two site files share a name"),
        ({"a.csv": "x,label\n1,0\n"}, {"site": "x"}, "site: x is for one file that holds all sites; .* is a folder with one file per site"),
        ({}, {}, r"holds no site files; expected one \.csv, \.npz, \.parquet file per site"),
        ({"a.csv": "id,label\nu1,0\nu2,1\nu3,0\n"}, {"categorical": ("ix",)}, "categorical names no column of data: ix; it has id, label"),
        ({"a.csv": "label\n0\n1\n"}, {}, "no column is left to learn from; there are none but the label"),
        ({"a.csv": "x,label\n1,a\n2,b\n"}, {"kind": "regression"}, "expected numbers in label, got text such as 'a'; use task: classification"),
        ({"a.csv": "x,label,target\n1,0,1\n"}, {}, r"say which column is the label \(label: COLUMN\), one of x, label, target$"),
        ({"a.csv": "x,label\n1,0\n2,NA\n3,\n"}, {}, r"^2 rows have no value in the label column .label. \(a\.csv, line 3; a\.csv, line 4\)"),
        ({"a.npz": {"x": [[1.0]], "y": [0]}, "b.npz": {"z": [[1.0]], "y": [0]}}, {}, "expected exactly the arrays x and y in every site's file, but not in b"),
        ({"a.npz": {"u": [[1.0]], "y": [0]}}, {}, "expected one number or text per sample and column, or the arrays x and y"),
        ({"a.npz": {"x": [[1.0]], "y": [0, 1]}}, {}, "expected arrays of one length with at least one sample"),
        ({"a.npz": {"x": np.zeros((0, 2)), "y": np.zeros(0)}}, {}, "expected arrays of one length with at least one sample"),
        ({"a.npz": {"x": 3.0, "y": 2.0}}, {}, "expected arrays of one length with at least one sample"),
        ({"a.npz": {"x": [[1.0, 2.0]], "y": [0], "feature_names": ["u"]}}, {}, r"a column for each of 1 feature_names, got the shape \(1, 2\)"),
        ({"a.npz": {"x": [[[1.0]]], "y": [0], "feature_names": ["u"]}}, {}, r"a column for each of 1 feature_names, got the shape \(1, 1, 1\)"),
        ({"a.csv": "x,label\n1,0\n", "b.csv": "x,label,z\n1,0,1\n"}, {}, "compared with a, b has also z; bring all sites to the same columns"),
        ({"a.csv": "x,z,label\n1,0,1\n", "b.csv": "x,label\n1,0\n"}, {}, "compared with a, b lacks z; bring all sites to the same columns"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_joined_are_refused(
    files: dict[str, Any], settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    for name, content in files.items():
        if isinstance(content, str):
            (tmp_path / "data" / name).write_text(content)
        else:
            np.savez(
                tmp_path / "data" / name, **{key: np.array(value) for key, value in content.items()}
            )
    with pytest.raises(ValueError, match=said):
        from_tables(tmp_path / "data", **settings)


def test_what_files_of_sites_are(tmp_path: Path) -> None:
    for name in ("b.csv", "a.NPZ", "c.parquet", "d.txt"):
        (tmp_path / name).touch()
    (tmp_path / "folder.csv").mkdir()
    assert [file.name for file in site_files(tmp_path)] == [
        "a.NPZ",
        "b.csv",
        "c.parquet",
    ] and site_files(tmp_path / "b.csv") == []
    with pytest.raises(
        ValueError,
        match=r"cannot read .*d\.txt as a table; expected a file ending in \.csv, \.npz, \.parquet",
    ):
        read_table(tmp_path / "d.txt")


def test_how_files_were_written_is_kept_by_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x;label\n1,5;0\n2;1\n")
    (tmp_path / "b.csv").write_text("x,label\n1.5,0\n2,1\n")
    found = read_sites(tmp_path)
    assert {name: str(dialect) for name, dialect in found.dialects.items()} == {
        "a.csv": "semicolons, UTF-8, decimal commas in x",
        "b.csv": "commas, UTF-8",
    }
    assert (
        not found.arrays
        and list(found.tables) == ["a", "b"]
        and found.tables["a"]["x"].tolist() == found.tables["b"]["x"].tolist()
    )
    data = dataset_from_sites(found)
    assert (data.name, data.source, data.site_names, data.site.tolist()) == (
        tmp_path.name,
        "own files",
        ("a", "b"),
        [0, 0, 1, 1],
    )  # type: ignore[union-attr]


def test_one_file_is_taken_apart_by_its_site_column(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("site,x,y\n2,1,0\n1,2,1\n2,3,0\n")
    found = read_sites(tmp_path / "all.csv", "site")
    assert {who: table["x"].tolist() for who, table in found.tables.items()} == {
        "1": [2],
        "2": [1, 3],
    }
    assert all(list(table) == ["x", "y"] for table in found.tables.values())
    for site in (None, "sit"):
        with pytest.raises(
            ValueError,
            match=(
                r"is one file: say which column names the site \(site: COLUMN\), one of site, x, y"
            ),
        ):
            read_sites(tmp_path / "all.csv", site)
    (tmp_path / "all.csv").write_text("site,x,y\nu,1,0\nNA,2,1\n")
    with pytest.raises(ValueError, match="some rows name no site, such as all.csv, line 3"):
        read_sites(tmp_path / "all.csv", "site")
    np.savez(tmp_path / "one.npz", x=np.arange(4.0).reshape(2, 2), y=np.arange(2))
    assert read_sites(tmp_path / "one.npz").arrays and dataset_from_sites(
        read_sites(tmp_path / "one.npz")
    ).site_names == ("one",)

"""Data that are Python objects: each example of docs/data.md, what runs on them are called, and
that no error shows a sample.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import equipoise as eq
from equipoise.data import DataConfig, federate

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
SECRET = 123.456789
SMALL: dict[str, Any] = {"model": {"name": "mlp", "hidden": [4]}, "rounds": 1, "workers": 0}


class ClassLabel:
    names = ("no", "yes")


class Rows:
    """The part of the interface of a Hugging Face `datasets.Dataset` that is used.

    The package itself is not installed for tests.
    """

    def __init__(self, columns: dict[str, list[Any]], **features: Any) -> None:
        self.columns, self.column_names, self.features = columns, list(columns), features

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]


def rows(count: int = 60) -> Rows:
    values = {
        "age": [float(40 + i) if i % 7 else None for i in range(count)],
        "ward": ["ab"[i % 2] for i in range(count)],
        "hospital": ["north" if i < 30 else "south" for i in range(count)],
        "disease": [i % 2 for i in range(count)],
    }
    return Rows(values, disease=ClassLabel())


@pytest.mark.thorough
def test_every_example_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = PAGE.read_text().split("### Data in Python")[1].split("\n## ")[0]
    examples = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    called = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for example in examples:
            exec(example, names)  # the page's own code, as a reader would paste it
            if "run = eq.run" in example:
                called.append(names["run"].store.meta("data"))
                assert names["run"].status == "finished" and names["run"].final()
    assert called == ["pressures", "two-sites", "pictures", "frame"]
    assert sorted(
        path.name.split("-fedavg-")[1].rpartition("-s0")[0] for path in Path("runs").iterdir()
    ) == sorted(called)
    said = capsys.readouterr().err
    assert "sites (rows): north (100), south (200)" in said
    assert "model: cnn, the default for images of 1x16x16" in said
    made = names["from_hub"](rows())
    assert (
        made.name == "hub"
        and made.site_names == ("north", "south")
        and made.task.class_names == ("no", "yes")
    )


def test_a_frame_is_read_as_the_same_table_in_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "age": rng.normal(60, 9, 90).round(2),
            "ward": rng.choice(["a", "b", "c"], 90),
            "day": pd.date_range("2024-01-31", periods=90).astype(str),
            "known": rng.choice([True, False], 90),
            "sick": rng.choice(["no", "yes"], 90),
            "site": ["n"] * 40 + ["s"] * 50,
        }
    )
    frame.loc[[3, 70], "age"] = None
    frame.loc[5, "ward"] = None
    (tmp_path / "files").mkdir()
    for site, part in frame.groupby("site"):
        part.drop(columns="site").to_csv(tmp_path / "files" / f"{site}.csv", index=False)
    ours = federate(DataConfig(), 3, eq.from_frame(frame, label="sick", site="site"))
    theirs = federate(DataConfig(name=str(tmp_path / "files"), label="sick"), 3)
    assert ours.ids == theirs.ids
    assert torch.equal(ours.x, theirs.x) and torch.equal(ours.y, theirs.y)
    assert ours.recipe == theirs.recipe
    dated = frame.assign(day=pd.to_datetime(frame["day"]))
    assert torch.equal(
        federate(DataConfig(), 3, eq.from_frame(dated, label="sick", site="site")).x, ours.x
    ), "times as times, not as text"


def test_a_hugging_face_table_is_that_frame() -> None:
    given = rows()
    frame = pd.DataFrame(given.columns).assign(
        disease=[ClassLabel.names[code] for code in given.columns["disease"]]
    )
    ours, theirs = (
        eq.from_huggingface(given, label="disease", site="hospital"),
        eq.from_frame(frame, label="disease", site="hospital"),
    )
    assert torch.equal(ours.x.nan_to_num(-1), theirs.x.nan_to_num(-1)) and torch.equal(
        ours.y, theirs.y
    )
    assert ours.schema == theirs.schema
    without = eq.from_huggingface(given, inputs=["age"], label="disease")
    assert without.site is None and [column.name for column in without.columns] == ["age"]
    with pytest.raises(ValueError, match=r"samples of one shape, got 2, such as \(2,\) and \(3,\)"):
        eq.from_huggingface(Rows({"x": [[1, 2], [1, 2, 3]], "y": [0, 1]}), inputs="x", label="y")


def test_rows_without_a_site_are_dealt(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": np.arange(80.0) + 0.5, "sick": [0, 1] * 40})
    federation = federate(DataConfig(clients=4), 0, eq.from_frame(frame, label="sick"))
    assert federation.ids == ("0", "1", "2", "3")


def test_scaled_arrays_are_a_table_and_others_are_warned_of() -> None:
    x, y = np.random.default_rng(0).normal(500, 90, (80, 2)), [0, 1] * 40
    with pytest.warns(
        UserWarning,
        match=r"not scaled, and have means up to 5\d\d.* deviations up to \d+.*; give scaled=True",
    ):
        plain = eq.from_arrays(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled = eq.from_arrays(x, y, scaled=True)
        eq.from_arrays((x - 500) / 90, y)
        eq.from_arrays(np.full((8, 3, 3), 200, np.uint8), [0, 1] * 4)
    found = federate(DataConfig(clients=2), 0, scaled)
    assert (
        abs(float(found.x[found.train[1]].mean())) < 1e-5
        and abs(float(found.x[found.train[1]].std(correction=0)) - 1) < 1e-5
    )
    assert float(federate(DataConfig(clients=2), 0, plain).x.mean()) > 400
    with pytest.raises(ValueError, match="scaled=True is for rows"):
        eq.from_arrays(np.zeros((4, 3, 3)), [0, 1, 0, 1], scaled=True)


@pytest.mark.parametrize("how", ["data", "name", "dataset"])
def test_data_are_given_in_three_ways_and_keep_their_name(how: str) -> None:
    data = eq.from_arrays(np.zeros((6, 2)), [0, 1] * 3, name="mine")
    ways: dict[str, dict[str, Any]] = {
        "data": {"data": data},
        "name": {"data": {"name": data, "clients": 2}},
        "dataset": {"dataset": data},
    }
    wanted = eq.Experiment(**ways[how])
    assert wanted.dataset is data and wanted.data.name == "mine"
    assert wanted.data.clients == (2 if how == "name" else None)
    with pytest.raises(ValueError, match="given twice"):
        eq.Experiment(data=data, dataset=data)


@pytest.mark.parametrize(
    ("given", "how"),
    [
        (pd.DataFrame({"a": [1.0]}), 'eq.from_frame(frame, label="COLUMN")'),
        (SimpleNamespace(column_names=["a"]), 'eq.from_huggingface(dataset, label="COLUMN")'),
        (np.zeros((2, 2)), "eq.from_arrays(x, y) for arrays"),
    ],
)
def test_what_is_no_data_set_yet_is_refused_with_the_function_that_makes_one(
    given: Any, how: str
) -> None:
    with pytest.raises(ValueError) as refused:
        eq.Experiment(data=given)
    assert str(refused.value).endswith(f"use {how}")


def test_a_comparison_of_own_data_is_named_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    data = eq.from_arrays(rng.normal(size=(120, 3)), rng.integers(0, 2, 120), name="mine")
    result = eq.compare({"data": {"name": data, "clients": 2}, **SMALL}, ["fedavg"])
    assert result.folder is not None and result.folder.name.startswith("mine-")
    assert {entry.run.data for entry in result.entries} == {"mine"}


class Secrets:
    """Objects that hold a number which no message may show."""

    x = np.full((40, 2), SECRET)
    y = np.array([0, 1] * 20)
    arrays = eq.from_arrays(x * [0, 1] + np.arange(80).reshape(40, 2), y, scaled=True)
    tensors = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    frame = pd.DataFrame(x, columns=["a", "b"])


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: eq.Experiment(data=Secrets.x),
        lambda: eq.Experiment(data=torch.from_numpy(Secrets.x)),
        lambda: eq.Experiment(data=(Secrets.x, Secrets.y)),
        lambda: eq.Experiment(data=[torch.from_numpy(Secrets.x)]),
        lambda: eq.Experiment(data=Secrets.frame),
        lambda: eq.Experiment(data={"name": Secrets.x}),
        lambda: eq.Experiment(data=Secrets.arrays, rounds=Secrets.x),
        lambda: eq.Experiment(data=Secrets.arrays, round=3),
        lambda: eq.Experiment(data=Secrets.arrays, dataset=Secrets.arrays),
        lambda: eq.Experiment(dataset=Secrets.x),
        lambda: eq.Experiment(model=torch.from_numpy(Secrets.x)),
        lambda: eq.Experiment(models={"model": Secrets.x}),
        lambda: eq.Experiment(method={"name": "fedprox", "mu": torch.from_numpy(Secrets.x)}),
        lambda: eq.Experiment(training={"lr": Secrets.x}),
        lambda: eq.Experiment(data={"clients": Secrets.x}),
        lambda: eq.from_arrays(Secrets.x, Secrets.x),
        lambda: eq.from_arrays(Secrets.x, Secrets.y[:3]),
        lambda: eq.from_arrays(Secrets.x * np.nan, Secrets.y),
        lambda: eq.from_sites({"a": (Secrets.x, Secrets.y), "b": (Secrets.x[:, :1], Secrets.y)}),
        lambda: eq.from_torch(torch.utils.data.TensorDataset(torch.from_numpy(Secrets.x))),
        lambda: eq.from_frame(Secrets.frame, label="c"),
        lambda: eq.run(eq.Experiment(data=Secrets.tensors, **SMALL), "/dev/null/x", quiet=True),
    ],
)
@pytest.mark.filterwarnings("ignore:data set")
def test_no_error_shows_what_a_tensor_holds(mistake: Any) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
        mistake()
    assert "123.4" not in str(caught.value) and "1.234" not in str(caught.value)
    assert "123.4" not in repr(Secrets.arrays) and "Dataset('arrays', 40 samples" in repr(
        Secrets.arrays
    )

"""Python objects as data sets: which column becomes what, what an experiment makes of them, and
what is refused.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from equipoise.data import DataConfig, from_arrays
from equipoise.data.arrays.objects import (
    as_dataset,
    from_frame,
    from_huggingface,
    from_torch,
    with_own_data,
)


class Rows:
    """The part of the interface of a Hugging Face data set that is used."""

    def __init__(self, columns: dict[str, list[Any]], **more: Any) -> None:
        self.columns, self.column_names = columns, list(columns)
        vars(self).update(more)

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]


FRAME = pd.DataFrame(
    {"n": [1.5, None, 3.0], "c": ["u", "v", None], "site": ["b", "a", "b"], 7: ["no", "yes", "no"]}
)


def test_a_frame() -> None:
    found = from_frame(FRAME, label="7", site="site")
    assert (
        found.name == "frame"
        and found.source == "given in Python"
        and [column.name for column in found.columns] == ["n", "c"]
    )
    assert (
        found.site_names == ("a", "b")
        and found.site is not None
        and found.site.tolist() == [0, 1, 1]
    )
    assert found.task.class_names == ("no", "yes") and found.y.tolist() == [1, 0, 0]
    assert np.array_equal(found.x.numpy(), [[np.nan, 1], [1.5, 0], [3, np.nan]], equal_nan=True)
    alone = from_frame(FRAME, label="7", name="mine", categorical=["n"])
    assert alone.site is None and alone.site_names == () and alone.name == "mine"
    assert alone.columns[0].categories == ("1.5", "3") and [
        column.name for column in alone.columns
    ] == ["n", "c", "site"]
    listed = from_frame(
        FRAME, label="7", schema={"columns": [{"name": "n", "kind": "number", "gaps": True}]}
    )
    assert [column.name for column in listed.columns] == ["n"]
    numbers = FRAME.assign(y=[0, 1, 1])
    assert from_frame(numbers, label="y").task.kind == "classification"
    assert from_frame(numbers, label="y", kind="regression").task.kind == "regression"


@pytest.mark.parametrize(
    ("label", "site", "said"), [("y", None, "y"), ("7", "ward", "ward"), ("y", "ward", "y, ward")]
)
def test_a_column_that_is_not_there_is_named(label: str, site: str | None, said: str) -> None:
    with pytest.raises(
        ValueError, match=f"the data set has no column {said}; it has n, c, site, 7"
    ):
        from_frame(FRAME, label=label, site=site)


def test_a_hugging_face_data_set() -> None:
    columns = {
        "x": [[1, 2], [3, 4], [5, 6]],
        "n": [1.5, None, float("nan")],
        "c": ["u", "v", "u"],
        "y": [1, 0, 1],
        "s": ["b", "a", "b"],
    }
    plain = from_huggingface(Rows(columns), inputs="x", label="y")
    assert (
        plain.name == "huggingface"
        and plain.x.tolist() == [[1, 2], [3, 4], [5, 6]]
        and plain.y.tolist() == [1, 0, 1]
    )
    assert plain.site is None and plain.task.class_names == ()
    features = {"y": SimpleNamespace(names=["no", "yes"]), "n": None}
    rows = Rows(columns, features=features, info=SimpleNamespace(dataset_name="hub"))
    named = from_huggingface(rows, inputs="x", label="y", site="s")
    assert (
        named.name == "hub"
        and named.task.class_names == ("no", "yes")
        and named.site_names == ("b", "a")
    )
    assert from_huggingface(
        rows, inputs="x", label="y", class_names=("0", "1"), name="mine"
    ).task.class_names == ("0", "1")
    assert from_huggingface(rows, inputs="x", label="y", name="mine").name == "mine"
    table = from_huggingface(rows, inputs=["n", "c"], label="y", site="s")
    assert np.array_equal(table.x.numpy(), [[np.nan, 1], [1.5, 0], [np.nan, 0]], equal_nan=True)
    assert (
        table.y.tolist() == [0, 1, 1]
        and table.task.class_names == ("no", "yes")
        and table.site_names == ("a", "b")
    )
    del columns["x"]
    every = from_huggingface(Rows(columns), label="y", site="s", categorical=["n"])
    assert [column.name for column in every.columns] == ["n", "c"] and every.columns[
        0
    ].categories == ("1.5",)
    assert from_huggingface(Rows(columns), label="y", kind="regression").task.kind == "regression"
    dated = from_huggingface(
        Rows({"d": ["2024-01-31", pd.NaT, "2024-02-01"], "y": [0, 1, 0]}), label="y"
    ).schema
    assert dated is not None and (dated.columns[0].kind, dated.columns[0].gaps) == ("date", True), (
        "what is not equal to itself is a gap"
    )
    with pytest.raises(ValueError, match="the data set has no column z, t; it has n, c, y, s"):
        from_huggingface(Rows(columns), inputs=["n", "z"], label="y", site="t")


def test_nested_lists_of_uint8_are_pixels() -> None:
    rows = {"image": [[[0, 255], [51, 102]]] * 2, "y": [0, 1]}
    for feature in (
        SimpleNamespace(shape=(2, 2), dtype="uint8"),  # Array2D
        SimpleNamespace(feature=SimpleNamespace(feature=SimpleNamespace(dtype="uint8"))),
        [[SimpleNamespace(dtype="uint8")]],
    ):
        found = from_huggingface(Rows(rows, features={"image": feature}), inputs="image", label="y")
        assert found.x.dtype == torch.uint8 and found.x.shape == (2, 1, 2, 2)


def test_other_nested_lists_with_large_values_are_warned_of() -> None:
    rows = {"image": [[[0, 16], [3, 4]]] * 2, "y": [0, 1]}
    with pytest.warns(UserWarning, match="from 0 to 16 are taken as they are.*uint8"):
        found = from_huggingface(Rows(rows), inputs="image", label="y")
    assert found.x.dtype == torch.float32 and found.x.shape == (2, 2, 2)
    small = {"image": [[[0.0, 0.5], [1.0, 0.25]]] * 2, "y": [0, 1]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_huggingface(Rows(small), inputs="image", label="y")


def test_token_ids_are_not_called_pixels() -> None:
    with pytest.warns(UserWarning, match="token ids need no scaling") as seen:
        from_huggingface(
            Rows({"ids": [[101, 2023], [101, 7592]], "y": [0, 1]}), inputs="ids", label="y"
        )
    assert len(seen) == 1 and "pixel" not in str(seen[0].message)


def test_a_torch_data_set() -> None:
    pairs = [(torch.tensor([1.0, 2.0]), torch.tensor(1)), ([3.0, 4.0], 0)]
    found = from_torch(pairs)
    assert (
        found.name == "list" and found.x.tolist() == [[1, 2], [3, 4]] and found.y.tolist() == [1, 0]
    )
    assert from_torch(
        [[[1.0], "b"], [[2.0], "a"]], name="mine", class_names=("b", "a")
    ).y.tolist() == [0, 1]
    with pytest.raises(
        ValueError,
        match="data set generator: expected one with a length, got an iterable generator",
    ):
        from_torch(pair for pair in pairs)
    for items, shown in (
        ([], "0 items such as None"),
        ([3, 4], "2 items such as <class 'int'>"),
        ([(1, 2, 3)], "1 items such as <class 'tuple'>"),
    ):
        with pytest.raises(ValueError, match=rf"\(input, label\) pairs, got {shown}"):
            from_torch(items)
    with pytest.raises(
        ValueError,
        match=r"data set mine: expected samples of one shape, got 3, such as \(1,\) and \(3,\)",
    ):
        from_torch([([1, 2], 0), ([1, 2, 3], 0), ([1], 1)], name="mine")


MINE = from_arrays(np.zeros((4, 2)), [0, 1, 1, 0], name="mine")


@pytest.mark.parametrize(
    ("values", "data", "given"),
    [
        ({"data": MINE}, DataConfig(name="mine"), True),
        ({"data": {"name": MINE, "clients": 2}}, {"name": "mine", "clients": 2}, True),
        ({"data": {"clients": 2}, "dataset": MINE}, {"name": "mine", "clients": 2}, True),
        ({"data": {}, "dataset": MINE}, DataConfig(name="mine"), True),
        ({"dataset": MINE}, DataConfig(name="mine"), True),
        ({"data": DataConfig(clients=3), "dataset": MINE}, DataConfig(name="mine", clients=3), True),
        ({"data": "digits", "dataset": MINE}, "mine", True),
        ({"data": "digits"}, "digits", False),
        ({"data": Path("a/b")}, Path("a/b"), False),
        ({"data": {"name": "digits"}}, {"name": "digits"}, False),
        ({"data": DataConfig(clients=3)}, DataConfig(clients=3), False),
        ({"data": {}}, {}, False),
    ],
)  # fmt: skip
def test_the_values_of_an_experiment_with_own_data(
    values: dict[str, Any], data: Any, given: bool
) -> None:
    found = with_own_data({**values, "rounds": 3})
    assert found["data"] == data and type(found["data"]) is type(data) and found["rounds"] == 3
    assert (found.get("dataset") is MINE) == given


def test_without_data_nothing_is_added() -> None:
    assert with_own_data({"rounds": 3}) == {"rounds": 3}
    for values in ({"data": MINE}, {"data": {"name": MINE}}):
        with pytest.raises(
            ValueError, match="a data set is given twice, as `data` and as `dataset`; leave one out"
        ):
            with_own_data({**values, "dataset": MINE})
    assert with_own_data({"data": MINE, "dataset": None})["dataset"] is MINE


def test_what_is_a_data_set() -> None:
    assert as_dataset(MINE) is MINE
    tensors = torch.utils.data.TensorDataset(torch.zeros(2, 1), torch.tensor([0, 1]))
    assert as_dataset(tensors).name == "tensordataset"
    for given, how in (
        (FRAME, "eq.from_frame"),
        (Rows({}), "eq.from_huggingface"),
        (np.zeros(2), "eq.from_arrays"),
    ):
        with pytest.raises(
            ValueError, match=f"expected a name, a path, a mapping or a data set, got .*; use {how}"
        ):
            as_dataset(given)

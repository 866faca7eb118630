"""From rows of a table to inputs, by hand: what fills a gap, what is scaled by what, where an
unknown category goes; and clients' positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data import Column, Federation, Parts
from equipoise.data.schema import ColumnSchema
from equipoise.data.tables.encoding import apply, fit, recode
from equipoise.task import Task

GAP = np.nan
COLUMNS = (Column("n"), Column("c", ("u", "v", "w")), Column("m"))
SCHEMA = (
    ColumnSchema(name="n", kind="number", gaps=True),
    ColumnSchema(name="c", kind="category", categories=("w", "u")),
    ColumnSchema(name="m", kind="number"),
)
RAW = np.array([[1, 0, 5], [3, 2, 5], [GAP, 2, 5], [7, 1, GAP], [9, GAP, GAP], [GAP, GAP, 8]])
TRAIN = Parts.of([np.array([0, 1, 2]), np.array([3, 4]), np.array([1, 4])])


def made(scaling: str) -> dict[str, Any]:
    return fit(RAW, COLUMNS, SCHEMA, TRAIN, ("a", "b", "c"), scaling)


def inputs(rows: list[list[float]], scaling: str, client: str | None) -> list[list[float]]:
    found = apply(np.array(rows, np.float64), made(scaling), client)
    assert found.dtype == np.float32
    return found.tolist()


def test_the_recipe_describes_columns_and_names_the_inputs() -> None:
    recipe = made("client")
    assert recipe["features"] == ["n", "n missing", "c=w", "c=u", "c=other", "m"]
    assert (recipe["kind"], recipe["scaling"]) == ("table", "client")
    assert recipe["columns"] == [
        {"name": "n", "categorical": False, "categories": [], "formats": [], "gaps": True},
        {"name": "c", "categorical": True, "categories": ["w", "u"], "formats": [], "gaps": False},
        {"name": "m", "categorical": False, "categories": [], "formats": [], "gaps": False},
    ]
    dated = fit(
        RAW[:, :1],
        (Column("d"),),
        (ColumnSchema(name="d", kind="date", formats=("%Y-%m-%d",)),),
        TRAIN,
        ("a", "b", "c"),
        "none",
    )
    assert dated["columns"][0]["formats"] == ["%Y-%m-%d"]


def test_categories_are_counted_as_the_schema_lists_them_and_unknown_ones_come_last() -> None:
    coded = recode(
        np.array([[0, 0, 0], [0, 1, 1], [0, 2, 2], [0, GAP, 3], [0, 3, 4]]), COLUMNS, made("client")
    )
    # u, v, w; one that the data set does not know either
    assert coded[[0, 1, 2, 4], 1].tolist() == [1, 2, 0, 2] and np.isnan(coded[3, 1])
    assert coded[:, 2].tolist() == [0, 1, 2, 3, 4]


def test_each_client_fills_and_scales_by_its_own_training_rows() -> None:
    recipe = made("client")
    assert recipe["shared"] is None
    assert recipe["clients"] == {
        "a": {
            "fill": [2, 0, 5],
            "mean": [2, 0, 5],
            "scale": [1, 1, 1],
        },  # the most frequent category is w; a constant is only centred
        "b": {
            "fill": [8, 2, 0],
            "mean": [8, 0, 0],
            "scale": [1, 1, 1],
        },  # m was never observed: neutral
        "c": {"fill": [6, 0, 5], "mean": [6, 0, 5], "scale": [3, 1, 1]},
    }
    assert inputs([[12, 0, 6], [GAP, 1, GAP], [0, GAP, 5], [0, 2, 5]], "client", "c") == [
        [2, 0, 1, 0, 0, 1], [0, 1, 0, 1, 0, 0], [-2, 0, 1, 0, 0, 0], [-2, 0, 0, 0, 1, 0],
    ]  # fmt: skip
    with pytest.raises(
        ValueError,
        match=r"each client's own statistics: say which client .*, one of a, b, c \(got None\)",
    ):
        apply(RAW, recipe, None)
    with pytest.raises(ValueError, match=r"one of a, b, c \(got d\)"):
        apply(RAW, recipe, "d")


def test_pooled_statistics_are_of_all_training_rows_each_once() -> None:
    recipe = made("pooled")
    n, m = np.array([1, 3, 7, 9]), np.array([5, 5, 5])
    assert recipe["shared"] == {
        "fill": [5, 0, 5],
        "mean": [n.mean(), 0, m.mean()],
        "scale": [pytest.approx(n.std()), 1, 1],
    }
    assert [recipe["clients"][name]["fill"] for name in "abc"] == [
        [2, 0, 5],
        [8, 2, 5],
        [6, 0, 5],
    ]  # own fills, and the pooled one without
    assert all(recipe["clients"][name]["mean"] == recipe["shared"]["mean"] for name in "abc")
    assert all(recipe["clients"][name]["scale"] == recipe["shared"]["scale"] for name in "abc")
    assert inputs([[5, 1, 6]], "pooled", None) == [[0, 0, 0, 1, 0, 1]]


def test_without_scaling_numbers_stay_and_gaps_are_filled_all_the_same() -> None:
    recipe = made("none")
    assert recipe["shared"] == {"fill": [0, 2, 0], "mean": [0, 0, 0], "scale": [1, 1, 1]}
    assert recipe["clients"]["b"] == {"fill": [8, 2, 0], "mean": [0, 0, 0], "scale": [1, 1, 1]}
    assert inputs([[4, 0, 6], [GAP, GAP, GAP]], "none", "b") == [
        [4, 0, 1, 0, 0, 6],
        [8, 1, 0, 0, 1, 0],
    ]


@pytest.mark.parametrize(
    ("count", "shown"), [(8, "c0, c1, c2, c3, c4, c5, c6, c7 (got"), (9, "c7, ... (got")]
)
def test_of_many_clients_eight_are_named(count: int, shown: str) -> None:
    recipe = fit(
        RAW,
        COLUMNS,
        SCHEMA,
        Parts.of([np.array([0])] * count),
        tuple(f"c{k}" for k in range(count)),
        "client",
    )
    with pytest.raises(ValueError) as refused:
        apply(RAW, recipe, None)
    assert shown in str(refused.value)


def lists(parts: Parts) -> list[list[int]]:
    return [part.tolist() for part in parts]


def test_positions_by_client() -> None:
    parts = Parts.of([np.array([4, 2]), np.array([], int), np.array([7])])
    assert (
        len(parts) == 3
        and lists(parts) == [[4, 2], [], [7]]
        and parts.sizes.tolist() == [2, 0, 1]
        and parts.owners.tolist() == [0, 0, 2]
    )
    assert lists(parts.where(np.array([False, True, True]))) == [[2], [], [7]]
    assert lists(parts.where(np.array([True, False, False]))) == [[4], [], []]
    assert lists(parts.through(np.arange(10) * 10)) == [[40, 20], [], [70]]
    for wrong in (3, -1):
        with pytest.raises(IndexError, match=rf"client position {wrong} is outside 0\.\.2"):
            parts[wrong]
    for held in (parts.index, parts.offsets):
        with pytest.raises(ValueError, match="read-only"):
            held[0] = 1
    assert len(Parts.of([])) == 0 and Parts.of([]).index.dtype == np.int64
    assert lists(Parts.by_owner(np.array([2, 0, -1, 2, 0]), clients=4)) == [[1, 4], [], [0, 3], []]
    assert lists(Parts.by_owner(np.array([-1, -1]), clients=1)) == [[]]


def test_a_server_validates_on_each_sample_once() -> None:
    none, y = Parts.of([np.array([], int)] * 2), torch.zeros(5, dtype=torch.int64)
    held = Parts.of([np.array([3, 1]), np.array([1, 4])])
    federation = Federation(
        "f",
        Task("classification", (1,), 1),
        torch.zeros(5, 1),
        y,
        ("a", "b"),
        none,
        held,
        none,
        np.empty(0, np.int64),
    )
    assert (
        federation.server_validation.tolist() == [1, 3, 4]
        and federation.source.size == 0
        and federation.augment == ()
    )

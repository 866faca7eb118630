"""What a column is, at the bounds where it would become something else; and a data set as a given
schema sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from equipoise.data import Column, Dataset, from_arrays
from equipoise.data.schema import ColumnSchema, Schema
from equipoise.data.tables.cell_numbers import dates_as_days, is_date
from equipoise.data.tables.schema_inference import (
    complete_schema,
    date_formats,
    infer_schema,
    schema_of,
    with_schema,
)


def column(
    cells: Sequence[Any], name: str = "c", owners: Sequence[str] | None = None, asked: bool = False
) -> ColumnSchema:
    table = {"label": np.arange(len(cells)) % 2, name: np.array(cells)}
    return infer_schema(
        table, owners or ["s"] * len(cells), "label", {name: "category"} if asked else {}
    ).columns[0]


def kind(cells: Sequence[Any], name: str = "c", owners: Sequence[str] | None = None) -> str:
    return column(cells, name, owners).kind


def repeated(count: int, different: int) -> list[int]:
    """So many whole numbers, of which so many differ; they do not count the rows."""
    return [500 + 3 * (i % different) for i in range(count)]


def words(count: int, different: int) -> list[str]:
    return [f"w{i % different}" for i in range(count)]


@pytest.mark.parametrize(
    ("name", "cells", "sites", "expected"),
    [
        ("id", repeated(20, 20), "", "identifier"),
        ("id", repeated(19, 19), "", "number"),  # too few rows to say
        ("id", repeated(20, 18), "", "identifier"),  # nine of ten differ
        ("id", repeated(20, 17), "", "number"),
        ("id", [*repeated(20, 20), np.nan], "", "number"),
        ("id", [*repeated(20, 20), 0.5], "", "number"),
        ("rapid", repeated(20, 20), "", "number"),  # a word that ends like one
        ("caseNumber", repeated(20, 20), "", "identifier"),
        ("c", list(range(20)), "", "identifier"),
        ("c", list(range(1, 21)), "", "identifier"),
        ("c", list(range(2, 22)), "", "number"),
        ("c", list(range(0, 40, 2)), "", "number"),
        ("c", [*range(19), 20], "", "number"),
        (
            "c",
            [*range(1, 11), *range(1, 11)],
            "a" * 10 + "b" * 10,
            "identifier",
        ),  # each site counts its own
        ("c", [*range(1, 11), *range(1, 11)], "a" * 20, "number"),
        ("c", [*range(1, 11), *range(5, 15)], "a" * 10 + "b" * 10, "number"),
        ("c", [*range(1, 19), 1, 2], "a" * 18 + "b" * 2, "identifier"),
        ("c", [*range(1, 20), 1], "a" * 19 + "b", "number"),  # one row counts nothing
        ("c", [2, *range(1, 21)], "b" + "a" * 20, "number"),
    ],
)
def test_numbers_that_only_tell_rows_apart(
    name: str, cells: list[float], sites: str, expected: str
) -> None:
    assert kind(cells, name, list(sites)) == expected


@pytest.mark.parametrize(
    ("cells", "sites", "expected"),
    [
        (words(20, 20), "", "identifier"),
        (words(19, 19), "", "category"),
        ([*words(19, 19), "", "NA"], "", "category"),  # gaps are no rows
        (words(20, 11), "", "identifier"),  # more than one value for two rows
        (words(20, 10), "", "category"),
        (
            words(20, 18) * 3,
            "a" * 20 + "b" * 20 + "c" * 20,
            "identifier",
        ),  # nine of ten in each site
        (words(20, 17) * 3, "a" * 20 + "b" * 20 + "c" * 20, "category"),
        (words(19, 19) * 3, "a" * 19 + "b" * 19 + "c" * 19, "category"),  # sites too small to say
        (
            [*words(19, 19) * 3, *words(20, 20)],
            "a" * 19 + "b" * 19 + "c" * 19 + "d" * 20,
            "identifier",
        ),  # by the one that is large enough
    ],
)
def test_words_that_only_tell_rows_apart(cells: list[str], sites: str, expected: str) -> None:
    assert kind(cells, "c", list(sites)) == expected


def texts(spaced: int, length: int, longer: int = 0) -> list[str]:
    """Twenty texts of one length, of which so many have a space and one may be longer."""
    made = [f"{i:02}{' ' if i < spaced else '_'}".ljust(length, "x") for i in range(20)]
    return [made[0] + "x" * longer, *made[1:]]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (texts(11, 25), "text"),
        (texts(10, 25), "identifier"),  # half of them are single words
        (texts(20, 20), "identifier"),  # short
        (texts(20, 20, longer=1), "text"),
    ],
)
def test_free_text_has_spaces_and_is_long(cells: list[str], expected: str) -> None:
    assert kind(cells) == expected


@pytest.mark.parametrize(
    ("cells", "asked", "expected"),
    [
        ([1.0, 2.5], False, ColumnSchema(name="c", kind="number")),
        ([1.0, np.nan], False, ColumnSchema(name="c", kind="number", gaps=True)),
        ([1.0, np.inf], False, ColumnSchema(name="c", kind="number", gaps=True)),
        ([2.0, 1.0, 2.0], True, ColumnSchema(name="c", kind="category", categories=("1", "2"))),
        (
            [2.0, np.nan],
            True,
            ColumnSchema(name="c", kind="category", categories=("2",), gaps=True),
        ),
        (["b", "a", "b"], False, ColumnSchema(name="c", kind="category", categories=("a", "b"))),
        (
            ["b", "", "?"],
            False,
            ColumnSchema(name="c", kind="category", categories=("b",), gaps=True),
        ),
        (["", ""], False, ColumnSchema(name="c", kind="category", categories=("none",), gaps=True)),
        (
            ["2024-01-31", "2024-02-01"],
            False,
            ColumnSchema(name="c", kind="date", formats=("%Y-%m-%d",)),
        ),
        (
            ["2024-01-31", ""],
            False,
            ColumnSchema(name="c", kind="date", formats=("%Y-%m-%d",), gaps=True),
        ),
        (
            ["2024-01-31", "x"],
            False,
            ColumnSchema(name="c", kind="category", categories=("2024-01-31", "x")),
        ),
        (
            ["2024-01-31", "2024-01-31"],
            True,
            ColumnSchema(name="c", kind="category", categories=("2024-01-31",)),
        ),
        ([*words(20, 20), ""], False, ColumnSchema(name="c", kind="identifier", gaps=True)),
        (words(20, 20), False, ColumnSchema(name="c", kind="identifier")),
        (
            words(20, 20),
            True,
            ColumnSchema(name="c", kind="category", categories=tuple(sorted(words(20, 20)))),
        ),
        ([*texts(20, 30), ""], False, ColumnSchema(name="c", kind="text", gaps=True)),
    ],
)
def test_kinds_categories_formats_and_gaps(
    cells: list[Any], asked: bool, expected: ColumnSchema
) -> None:
    gaps = bool(expected.gaps)
    assert column(cells, asked=asked) == expected.model_copy(update={"gaps": gaps})


@pytest.mark.parametrize(
    ("target", "task", "kind", "classes"),
    [
        ([2.0, 0.0, 2.0], None, "classification", ("0", "2")),
        ([0.5, 1.0, 1.0], None, "regression", ()),
        ([0.5, 1.0, 1.0], "classification", "classification", ("0.5", "1")),
        ([0.0, 1.0, 1.0], "regression", "regression", ()),
        (["b", "a", "b"], None, "classification", ("a", "b")),
    ],
)
def test_the_label_tells_the_task_unless_it_is_said(
    target: list[Any], task: str | None, kind: str, classes: tuple[str, ...]
) -> None:
    schema = infer_schema({"x": np.zeros(3), "y": np.array(target)}, ["s"] * 3, "y", {}, task)
    assert (schema.label, schema.task, schema.classes, [c.name for c in schema.columns]) == (
        "y",
        kind,
        classes,
        ["x"],
    )


@pytest.mark.parametrize(
    ("north", "south", "formats"),
    [
        (["13/01/2024"], ["01/02/2024"], ("%d/%m/%Y",)),
        (
            ["01/13/2024"],
            ["01/02/2024"],
            ("%m/%d/%Y",),
        ),  # the second fits both ways: as the first needs it
        (["01/13/2024"], ["01/02/2024 08:30"], ("%m/%d/%Y", "%m/%d/%Y %H:%M")),
        (["01/13/2024"], ["13/01/2024"], ()),
        (["2024-01-31"], ["31.01.2024"], ("%Y-%m-%d", "%d.%m.%Y")),
        (["2024-01-31"], ["2024-02-30"], ()),  # no day
        (["2024-01-31", "31.01.2024"], ["2024-01-31"], ()),  # two ways within a site
    ],
)
def test_dates_as_each_site_writes_them(
    north: list[str], south: list[str], formats: tuple[str, ...]
) -> None:
    cells, sites = np.array(north + south), np.array([0] * len(north) + [1] * len(south))
    assert date_formats(cells, sites) == formats


def test_days_are_counted_from_1970_with_fractions() -> None:
    column = ColumnSchema(name="day", kind="date", formats=("%Y-%m-%d", "%d.%m.%Y %H:%M"))
    found = dates_as_days(
        np.array(["1970-01-01", "1970-01-03", "1969-12-31", "01.01.1970 06:00", "NA"]), column
    )
    assert found[:4].tolist() == [0.0, 2.0, -1.0, 0.25] and np.isnan(found[4])
    with pytest.raises(
        ValueError,
        match=r"column 'day': expected dates as %Y-%m-%d or %d.%m.%Y %H:%M, got '1.1.70'",
    ):
        dates_as_days(np.array(["1.1.70"]), column)
    assert is_date("1970-01-03", "%Y-%m-%d") and not is_date("1970-01-33", "%Y-%m-%d")


def table(**more: Any) -> Dataset:
    x = np.array([[1, 0, 5], [2, 1, 6], [3, 1, np.nan]], np.float32)
    return from_arrays(x, [0, 1, 1], columns=["a", Column("b", ("u", "v")), "c"], **more)


def test_the_schema_of_a_data_set_that_came_from_no_file() -> None:
    found = schema_of(table(class_names=("no", "yes")))
    assert found == Schema(
        task="classification",
        classes=("no", "yes"),
        columns=(
            {"name": "a", "kind": "number", "gaps": False},
            {"name": "b", "kind": "category", "categories": ("u", "v"), "gaps": False},
            {"name": "c", "kind": "number", "gaps": True},
        ),
    )
    images = schema_of(from_arrays(np.zeros((2, 5, 6), np.uint8), [0, 1]))
    assert (images.shape, images.columns, images.classes) == ((1, 5, 6), (), ())
    assert schema_of(from_arrays(np.zeros((2, 5)), [0.5, 1])).task == "regression"


def test_a_schema_chooses_and_orders_columns_and_classes() -> None:
    data = table(class_names=("no", "yes"))
    assert with_schema(data, None) is data
    given = Schema(
        classes=("maybe", "yes", "no"),
        columns=(
            {"name": "c", "kind": "number", "gaps": True},
            {"name": "a", "kind": "number", "gaps": True},
        ),
    )
    seen = with_schema(data, given)
    assert np.array_equal(seen.x.numpy(), [[5, 1], [6, 2], [np.nan, 3]], equal_nan=True)
    assert [c.name for c in seen.columns] == ["c", "a"] and seen.task.shape == (2,)
    assert (
        seen.y.tolist() == [2, 1, 1]
        and seen.task.outputs == 3
        and seen.task.class_names == ("maybe", "yes", "no")
    )
    assert (
        seen.schema is not None
        and seen.schema.task == "classification"
        and seen.schema.columns == given.columns
    )
    assert with_schema(seen, given) is seen, "already seen so"
    assert with_schema(seen, Schema(classes=("no", "yes", "maybe"))).y.tolist() == [0, 1, 1], (
        "another order is another look"
    )


def test_classes_without_names_are_called_by_their_numbers() -> None:
    data = from_arrays(np.zeros((3, 1)), [0, 2, 2])
    assert with_schema(data, Schema(classes=("2", "0"))).y.tolist() == [1, 0, 0]
    with pytest.raises(ValueError, match="its schema lacks the class '2'; it has 0, 1"):
        with_schema(data, Schema(classes=("0", "1")))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"shape": (3, 5, 6)}, r"its schema says samples of shape \(3, 5, 6\), got \(3,\)"),
        (
            {"columns": [{"name": "cc", "kind": "number"}]},
            "unknown column of arrays, named by its schema 'cc'",
        ),
        (
            {"columns": [{"name": "b", "kind": "number"}]},
            "gives column 'b' another kind than the data set has",
        ),
        (
            {"columns": [{"name": "a", "kind": "category", "categories": ["1"]}]},
            "gives column 'a' another kind",
        ),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        with_schema(table(), Schema(**schema))


def test_a_schema_with_columns_is_for_tables_and_one_with_their_shape_for_all() -> None:
    plain = from_arrays(np.zeros((2, 5)), [0, 1])
    with pytest.raises(ValueError, match="data set arrays is no table, but its schema has columns"):
        with_schema(plain, Schema(columns=({"name": "a", "kind": "number"},)))
    assert with_schema(plain, Schema(shape=(5,))).task.shape == (5,)
    with pytest.raises(
        ValueError, match="data set arrays has numbers for labels, but its schema has classes"
    ):
        with_schema(from_arrays(np.zeros((2, 5)), [0.5, 1]), Schema(classes=("0", "1")))


def test_what_a_schema_does_not_say_stays_as_found() -> None:
    found = Schema(label="y", task="classification", classes=("a", "b"))
    assert complete_schema(None, found) is found
    assert complete_schema(Schema(label="z", classes=()), found) == Schema(
        label="z", task="classification", classes=("a", "b")
    )
    assert complete_schema(Schema(label=None, classes=("b", "a")), found) == Schema(
        label="y", task="classification", classes=("b", "a")
    )

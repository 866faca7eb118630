"""Bounds of partitioning and splitting, and the recipe of a federation."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data import DataConfig, Dataset, Federation, Parts, federate, from_arrays
from equipoise.data.arrays.transforms import NORMALISATIONS
from equipoise.data.partitions import Partition, Pool
from equipoise.data.schema import Schema
from equipoise.data.splits import equal_samples, split


def test_there_may_be_as_many_clients_as_samples() -> None:
    data = from_arrays(np.zeros((12, 2)), np.arange(12) % 2, class_names=("no", "yes"))
    whole = {"partition": "iid", "split": (1.0, 0.0, 0.0), "duplicates": "separate"}
    assert federate(DataConfig(clients=12, **whole), 0, data).train.sizes.tolist() == [1] * 12
    with pytest.raises(
        ValueError,
        match="data.clients: expected at most 12, .* got 13",
    ):
        federate(DataConfig(clients=13, **whole), 0, data)


def test_a_recipe_names_the_classes() -> None:
    data = from_arrays(
        np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 2, class_names=("no", "yes")
    )
    assert federate(DataConfig(clients=2), 0, data).recipe["class_names"] == ["no", "yes"]


def test_normalisations_are_those_of_the_papers() -> None:
    """Written down a second time, with four digits, as the papers' codes print them."""
    known = {
        "none": ([0], [1]),
        "half": ([0.5], [0.5]),
        "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        "cifar10": ([0.4914, 0.4824, 0.4467], [0.2471, 0.2435, 0.2616]),
        "cifar10_corefed": ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
        "cifar100": ([0.5071, 0.4866, 0.4409], [0.2673, 0.2564, 0.2762]),
        "cinic10": ([0.4789, 0.4723, 0.4305], [0.2421, 0.2383, 0.2588]),
    }
    assert NORMALISATIONS.keys() == known.keys()
    for name, (mean, deviation) in known.items():
        assert NORMALISATIONS[name][0] == pytest.approx(mean, abs=1e-4) and NORMALISATIONS[name][
            1
        ] == pytest.approx(deviation, abs=1e-4)


def rows(n: int = 40, **more: Any) -> Dataset:
    """Sample k is (k, -k / 10), so that inputs identify the sample; labels in turn."""
    x = np.arange(n)[:, None] * np.array([1.0, -0.1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return from_arrays(x, np.arange(n) % 2, **more)


def held(found: Federation, *parts: Parts) -> list[int]:
    """The samples of the data set that clients hold, in all their parts by default."""
    chosen = parts or (found.train, found.validation, found.test)
    return sorted(int(found.source[k]) for part in chosen for k in part.index)


OFFICIAL = np.array([0] * 30 + [1] * 4 + [2] * 6)  # training, validation, test
NO_TEST = np.array([0] * 36 + [1] * 4)


@pytest.mark.parametrize(
    ("part", "settings", "dealt", "shared"),
    [
        (OFFICIAL, {}, range(40), []),
        (OFFICIAL, {"pool": "all"}, range(40), []),
        (OFFICIAL, {"pool": "train"}, range(30), []),
        (OFFICIAL, {"test": "global"}, range(30), range(34, 40)),
        (OFFICIAL, {"test": "global", "pool": "train"}, range(30), range(34, 40)),
        (NO_TEST, {}, range(40), []),
        (NO_TEST, {"pool": "train"}, range(36), []),
        (None, {"pool": "all"}, range(40), []),
    ],
)
def test_which_official_parts_are_dealt(
    part: np.ndarray | None, settings: dict[str, Any], dealt: range, shared: Any
) -> None:
    found = federate(DataConfig(clients=2, **settings), 0, rows(part=part))
    assert held(found) == list(dealt) and sorted(found.source[found.shared_test].tolist()) == list(
        shared
    )
    assert (found.test.sizes.sum() > 0) == (settings.get("test") != "global")


@pytest.mark.parametrize(
    ("part", "settings", "said"),
    [
        (
            OFFICIAL,
            {"test": "global", "pool": "all"},
            "test: global keeps the official test part of arrays, so pool: all would train on it",
        ),
        (
            OFFICIAL,
            {"test": "site"},
            "test: site needs official test parts of sites, which data set arrays has not",
        ),
        (
            None,
            {"pool": "train"},
            "pool: train needs an official split, which data set arrays has not",
        ),
        (
            NO_TEST,
            {"test": "global", "split": (0.9, 0.1, 0.0)},
            "data set arrays has no official test part; give split a test share",
        ),
    ],
)
def test_parts_that_are_not_there_are_refused(
    part: np.ndarray | None, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        federate(DataConfig(clients=2, **settings), 0, rows(part=part))


def test_a_shared_test_set_is_taken_from_training_parts_where_the_official_split_has_none() -> None:
    found = federate(
        DataConfig(clients=2, test="global", pool="train", split=(0.5, 0.25, 0.25)),
        0,
        rows(part=NO_TEST),
    )
    shared = found.source[found.shared_test].tolist()
    # a quarter of 36
    assert len(shared) == 9 and sorted([*held(found), *shared]) == list(range(36))
    assert (found.train.sizes.sum(), found.validation.sizes.sum(), found.test.sizes.sum()) == (
        19,
        8,
        0,
    )  # of 14 and 13 a third, rounded down
    with pytest.raises(ValueError, match="would train on it"):
        federate(DataConfig(test="site", pool="all"), 0, rows(part=OFFICIAL, sites=["a", "b"] * 20))


def test_clients_without_samples_have_no_test_part_of_a_site() -> None:
    data = rows(part=np.tile([0, 0, 0, 2], 10), sites=["a"] * 20 + ["b"] * 20)
    found = federate(
        DataConfig(partition="quantity:0.05,min_size=0", clients=6, test="site", split=(1, 0, 0)),
        0,
        data,
    )
    empty = found.train.sizes == 0
    assert (
        empty.any()
        and (found.test.sizes[empty] == 0).all()
        and (found.test.sizes[~empty] == 5).all()
    )


def test_a_sample_of_several_clients_is_on_one_side_at_all_of_them() -> None:
    """Parts of a partition may overlap: what one client trains on, no other is tested on."""

    def overlapping(pool: Pool, clients: int, seed: int) -> Partition:
        draw = np.random.default_rng(seed)
        size = 3 * len(pool) // 4
        parts = [draw.choice(len(pool), size, replace=False) for _ in range(clients)]
        return Partition(Parts.of(parts))

    shares = (0.5, 0.25, 0.25)
    for duplicates in ("together", "separate"):
        config = DataConfig(partition=overlapping, clients=3, split=shares, duplicates=duplicates)
        found = federate(config, 0, rows())
        train, validation, test = (
            set(part.index.tolist()) for part in (found.train, found.validation, found.test)
        )
        assert found.metadata["repeats"] > 0 and train and validation and test
        assert not (train & validation or train & test or validation & test)


@pytest.mark.parametrize(("samples", "drawn"), [(None, 40), (40, 40), (41, 40), (39, 39), (10, 10)])
def test_only_so_many_samples_are_dealt(samples: int | None, drawn: int) -> None:
    found = federate(DataConfig(clients=2, samples=samples), 0, rows())
    assert len(held(found)) == found.metadata["dealt"] == drawn
    if drawn == 40:
        assert np.array_equal(
            found.train.index, federate(DataConfig(clients=2), 0, rows()).train.index
        )


@pytest.mark.parametrize(
    ("settings", "more", "clients"),
    [
        ({}, {}, 10),
        ({}, {"sites": ["a", "b", "b", "c"] * 10}, 3),
        ({"partition": "natural"}, {"sites": ["a", "b", "b", "c"] * 10}, 3),
        ({"partition": "domains"}, {"sites": ["a", "b"] * 20}, 10),
        ({"partition": "iid"}, {"sites": ["a", "b"] * 20}, 10),
        ({"partition": "cla:4"}, {}, 2),
        ({"partition": "shards:1", "clients": 7}, {}, 7),
    ],
)
def test_how_many_clients_there_are_if_nobody_says(
    settings: dict[str, Any], more: dict[str, Any], clients: int
) -> None:
    found = federate(DataConfig(**settings), 0, rows(**more))
    assert len(found.ids) == clients
    expected = {str(number) for number in range(clients)}
    if clients == 3:
        expected = {"a", "b", "c"}
    if settings.get("partition") == "domains":
        expected = {f"{domain}-{number}" for domain in "ab" for number in range(5)}
    assert set(found.ids) == expected


def test_of_many_classes_the_first_ten_make_clients() -> None:
    data = from_arrays(np.random.default_rng(0).normal(size=(240, 2)), np.arange(240) % 12)
    assert len(federate(DataConfig(partition="cla:10"), 0, data).ids) == 10


def test_what_is_recorded_of_a_federation() -> None:
    x = np.arange(20.0)[:, None] / 20
    x[19], x[17] = (
        x[18],
        x[18],
    )  # three are equal, with other labels: they count only where the label is the same
    data = replace(from_arrays(x, np.arange(20) % 2), licence="free", notes=("mind the gap",))
    found = federate(DataConfig(clients=2, partition="iid"), 3, data)
    facts = found.metadata
    assert (
        facts["licence"],
        facts["samples"],
        facts["dealt"],
        facts["repeats"],
        facts["notes"],
    ) == ("free", 20, 20, 0, ["mind the gap"])
    assert facts["equal_samples"] == 1 and facts["train_equal_to_shared_test"] == 0
    for k in range(2):
        mine = [
            int(found.y[p]) for part in (found.train, found.validation, found.test) for p in part[k]
        ]
        assert facts["label_distance"][k] == pytest.approx(abs(np.mean(mine) - 0.5), abs=1e-6)
    assert (
        "label_distance" not in federate(DataConfig(clients=2, task="regression"), 3, data).metadata
    )
    literal = federate(
        DataConfig(clients=2, partition="bcs_literal:3,q=1,fraction=1", duplicates="separate"),
        0,
        data,
    )
    dealt = held(literal)
    assert literal.metadata["dealt"] == len(set(dealt)) < 20 and literal.metadata[
        "repeats"
    ] == 20 - len(set(dealt))
    assert literal.metadata["equal_samples"] == 0 and literal.metadata["samples"] == 20


def test_training_samples_that_equal_some_of_an_official_test_part_are_counted() -> None:
    x = np.arange(12.0)[:, None] / 12
    x[[10, 11]] = x[0]
    data = from_arrays(x, np.arange(12) % 2 * 0, part=np.array([0] * 10 + [2] * 2))
    found = federate(DataConfig(clients=1, test="global", split=(1.0, 0.0, 0.0)), 0, data)
    assert (
        found.metadata["train_equal_to_shared_test"] == 1 and found.metadata["equal_samples"] == 2
    )


@pytest.mark.parametrize(
    ("equal", "of", "refused"),
    [(2, 4, False), (3, 4, True), (3, 5, True), (1, 1, False), (2, 2, True)],
)
def test_more_than_half_equal_is_too_much(equal: int, of: int, refused: bool) -> None:
    x = np.arange(float(of))[:, None] / 10
    x[:equal] = 0
    data, config = from_arrays(x, np.zeros(of, int)), DataConfig(clients=1)
    if refused:
        with pytest.raises(
            ValueError,
            match="data set arrays: more than half of its samples are equal to each other",
        ):
            federate(config, 0, data)
    else:
        assert len(federate(config, 0, data).x) == of


def inputs_of_partition(data: Dataset) -> np.ndarray:
    """The inputs that a partition of a user is shown."""
    shown = []

    def watching(pool: Pool, clients: int, seed: int) -> Partition:
        shown.append(pool.inputs())
        return Partition(Parts.of([np.arange(len(pool))]))

    federate(DataConfig(partition=watching, clients=1, duplicates="separate"), 0, data)
    return shown[0]


@pytest.mark.parametrize(("side", "length"), [(64, 64 * 64), (65, 32 * 32)])
def test_partitions_see_large_images_at_a_smaller_size(side: int, length: int) -> None:
    x = np.random.default_rng(0).integers(0, 256, (3, side, side), dtype=np.uint8)
    inputs = inputs_of_partition(from_arrays(x, [0, 1, 0]))
    assert inputs.shape == (3, length)
    if side == 64:
        assert np.array_equal(inputs, x.reshape(3, -1))


def test_partitions_see_columns_of_a_table_in_equal_units() -> None:
    x = np.array(
        [
            [1.0, 5, np.nan, np.nan],
            [2, 5, 30, np.nan],
            [9, 5, 10, np.nan],
            [6, 5, np.nan, np.nan],
        ]
    )
    inputs = inputs_of_partition(from_arrays(x, [0, 1, 0, 1], columns=["a", "b", "c", "d"]))
    a = x[:, 0]
    assert np.allclose(
        inputs,
        np.column_stack([(a - a.mean()) / a.std(), np.zeros(4), [0, 1, -1, 0], np.zeros(4)]),
        atol=1e-6,
    )
    plain = rows(4)
    assert np.array_equal(inputs_of_partition(plain), plain.x.numpy())


def test_targets_are_standardised_by_training_rows() -> None:
    y = np.array([1.5, 2.5, 4, 8, 16, 32])
    data = from_arrays(np.arange(6.0)[:, None] / 6, y, kind="regression")
    federation = federate(DataConfig(clients=2, split=(0.5, 0.0, 0.5)), 0, data)
    trained = y[federation.source[federation.train.index]]
    assert federation.task.centre == pytest.approx(trained.mean())
    assert federation.task.scale == pytest.approx(trained.std())
    equal = federate(DataConfig(clients=1), 0, replace(data, y=torch.full((6,), 8.0)))
    assert (equal.task.centre, equal.task.scale) == (8.0, 1.0)


def test_targets_are_standardised_by_the_schema_if_it_says_so() -> None:
    data = from_arrays(np.arange(6.0)[:, None] / 6, np.arange(6.0), kind="regression")
    data = replace(data, schema=Schema(task="regression", centre=0.0, scale=3.0))
    task = federate(DataConfig(clients=2), 0, data).task
    assert (task.centre, task.scale) == (0.0, 3.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"normalise": "imagenet"},
            "normalise: imagenet is for images and arrays is a table; use client, pooled, agreed "
            "or none",
        ),
        ({"augment": ("flip",)}, "augment: flip is for images and arrays is a table"),
        (
            {"normalise": "client", "test": "global"},
            "normalise: client has no statistics for samples that belong to no client",
        ),
        ({"image_size": 8}, "image_size: 8 is for images and data set arrays holds none"),
        ({"events": 3}, "events: 3 is for patients' records and data set arrays holds none"),
    ],
)
def test_settings_for_other_data_are_refused_for_a_table(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        federate(DataConfig(clients=2, **settings), 0, rows(columns=["a", "b"]))


def test_equal_rows_stay_together_whatever_the_length_of_a_sample() -> None:
    rng = np.random.default_rng(0)
    for width in (1, 2, 3, 8):  # with their labels 12, 16, 20 and 40 bytes
        values = rng.integers(0, 2, (60, width)).astype(float)
        first: dict[tuple[float, ...], int] = {}
        expected = [first.setdefault((*row, place % 2), place) for place, row in enumerate(values)]
        assert equal_samples(from_arrays(values, np.arange(60) % 2)).tolist() == expected
    tiny = np.array([0, 1, 0, 2, 1], np.uint8).repeat(3).reshape(5, 1, 3)
    assert equal_samples(from_arrays(tiny, np.arange(5))).tolist() == [
        0,
        1,
        0,
        3,
        1,
    ]  # pictures, of three bytes


def test_a_group_takes_the_side_of_its_first_entry() -> None:
    parts = Parts.of([np.arange(0, 8), np.arange(8, 12)])
    # the second client's are all equal to some of the first
    groups = np.array([0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3])
    train, validation, test = split(parts, (0.5, 0.25, 0.25), 3, groups=groups)
    assert (len(train[0]), len(validation[0]), len(test[0])) == (4, 2, 2)
    for part in (train, validation, test):
        assert {int(groups[k]) for k in part[1]} == {int(k) for k in part[0] if k < 4}

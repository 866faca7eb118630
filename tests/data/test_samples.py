"""Some samples of a federation, what a roster says of them, and how data are put into words."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data.check import ColumnReport, DataReport, SiteReport
from equipoise.data.federation import Federation, Parts
from equipoise.data.roster import PARTS, Roster, fingerprint, old_fingerprint, roster_of
from equipoise.data.samples import Samples
from equipoise.data.schema import Schema
from equipoise.data.summary_text import default_model_text, summary_lines
from equipoise.task import Task

TASK = Task("classification", (2,), 10)


def federation(n: int = 10) -> Federation:
    """Sample k is (k, -k) with the label k; two clients, and one sample that all test on."""
    x = torch.arange(float(n))[:, None] * torch.tensor([1.0, -1.0])
    parts = [
        Parts.of([np.array(a), np.array(b, int)])
        for a, b in (([0, 1], [4, 5, 6]), ([2], [7]), ([3], []))
    ]
    return Federation("mine", TASK, x, torch.arange(n), ("ada", "bo"), *parts, np.array([8, 9]))


def samples(*places: int) -> Samples:
    return Samples.of(federation(), np.array(places, int))


def held(some: Samples) -> list[int]:
    """Inputs and labels belong to the same sample."""
    assert some.x[:, 0].tolist() == some.y.tolist() == (
        -some.x[:, 1]
    ).tolist() == some.index.tolist() and len(some) == len(some.index)
    return some.y.tolist()


def test_samples_at_positions_and_behind_each_other() -> None:
    first, second = samples(5, 1, 3), samples(9, 0)
    assert held(first) == [5, 1, 3] and held(samples()) == []
    assert held(first.some(torch.tensor([2, 0]))) == [3, 5] and held(
        first.some(torch.tensor([2, 0])).some(torch.tensor([1]))
    ) == [5]
    both = first.with_(second)
    assert (
        held(both) == [5, 1, 3, 9, 0]
        and held(second.with_(first)) == [9, 0, 5, 1, 3]
        and held(first.with_(samples())) == [5, 1, 3]
    )
    assert both.at(torch.tensor([4, 2, 3, 0, 2]))[1].tolist() == [0, 3, 9, 5, 3]
    assert both.at(torch.tensor([3, 2]))[0].tolist() == [[9, -9], [3, -3]]
    assert held(both.some(torch.tensor([3, 0])).with_(second)) == [9, 5, 9, 0]


@pytest.mark.parametrize(
    ("n", "lengths"), [(0, []), (1, [1]), (256, [256]), (257, [256, 1]), (600, [256, 256, 88])]
)
def test_batches_of_evaluation_are_of_256(n: int, lengths: list[int]) -> None:
    chunks = list(Samples.of(federation(600), np.arange(n)).chunks())
    assert [len(chunk) for chunk in chunks] == lengths and torch.equal(
        torch.cat([*chunks, torch.empty(0, dtype=torch.int64)]), torch.arange(n)
    )


def test_a_roster_tells_sizes_and_the_shared_test_set() -> None:
    told = roster_of(federation())
    assert told.sizes == {
        "train": {"ada": 2, "bo": 3},
        "validation": {"ada": 1, "bo": 1},
        "test": {"ada": 1, "bo": 0},
    }
    assert (told.name, told.task, told.ids, told.shared) == ("mine", TASK, ("ada", "bo"), 2)
    assert (
        told.shared_fingerprint == fingerprint(federation(), np.array([8, 9]))
        and len(told.shared_fingerprint) == 32
    )
    assert told.fingerprints["bo"] == fingerprint(
        federation(), np.array([4, 5, 6]), np.array([7]), np.array([], int)
    )
    none = roster_of(replace(federation(), shared_test=np.empty(0, np.int64)))
    assert (none.shared, none.shared_fingerprint) == (0, "")
    whole = (
        "".join(f"{client}\x1f{told.fingerprints[client]}\x1e" for client in ("ada", "bo"))
        + told.shared_fingerprint
    )
    assert told.fingerprint == hashlib.sha256(whole.encode()).hexdigest()[:32]


def test_the_fingerprint_of_older_stores_is_over_tensors_places_and_names() -> None:
    made = federation()
    digest = hashlib.sha256(made.x.numpy().tobytes() + made.y.numpy().tobytes())
    for part in (made.train, made.validation, made.test):
        digest.update(part.index.tobytes() + part.offsets.tobytes())
    digest.update(np.array([8, 9]).tobytes() + b"('ada', 'bo')")
    assert old_fingerprint(made) == digest.hexdigest()[:32]


def roster(*ids: str, sizes: object = 1, mark: object = "f" * 32) -> Roster:
    return Roster(
        TASK,
        "x",
        ids,
        {part: dict.fromkeys(ids, sizes) for part in PARTS},
        dict.fromkeys(ids, mark),
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "broken",
    [{"sizes": True}, {"sizes": 1.0}, {"sizes": None}, {"sizes": -1}, {"mark": None}, {"mark": 3}],
)
def test_sizes_are_whole_numbers_from_zero_and_fingerprints_texts(
    broken: dict[str, object],
) -> None:
    with pytest.raises(ValueError, match="client 'a' sent no sizes or no fingerprint of its data"):
        roster("a", **broken).checked()


@pytest.mark.parametrize(
    ("count", "shown"),
    [(5, "'0', '1', '2', '3', '4' has"), (7, "'0', '1', '2', '3', '4' and 2 more has")],
)
def test_of_many_clients_five_are_named(count: int, shown: str) -> None:
    with pytest.raises(ValueError, match=f"none of the clients {shown} a training sample"):
        roster(*map(str, range(count)), sizes=0).checked()


@pytest.mark.parametrize(
    "changed",
    [
        {"task": replace(TASK, centre=1.0)},
        {"task": replace(TASK, scale=2.0)},
        {"task": replace(TASK, outputs=3)},
    ],
)
def test_sides_join_with_equal_tasks_and_shared_sets_only(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="'a' and 'b' have different tasks"):
        Roster.joined([roster("a"), replace(roster("b"), **changed)])
    shared: dict[str, Any] = {"shared": 2, "shared_fingerprint": "e"}
    assert Roster.joined(
        [replace(roster("a"), **shared), replace(roster("b"), **shared)]
    ) == replace(roster("a", "b"), **shared)
    with pytest.raises(ValueError, match="different shared test sets"):
        Roster.joined(
            [replace(roster("a"), **shared), replace(roster("b"), shared=2, shared_fingerprint="g")]
        )
    assert replace(roster("a"), **shared).fingerprint != roster("a").fingerprint


def understanding(sites: int, **changed: object) -> DataReport:
    columns = (
        ColumnReport("age", "number", 0, "scaled"),
        ColumnReport("note", "text", 0, "left out"),
        ColumnReport("pulse", "number", 2, "scaled"),
    )
    made = DataReport(
        "mine",
        "classification",
        "sick",
        True,
        tuple(SiteReport(f"s{k}", 10 + k, None) for k in range(sites)),
        columns,
        {},
        ("few rows",),
        Schema(),
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def test_data_in_words() -> None:
    assert summary_lines(understanding(2)) == [
        "mine: 21 rows, classification, label sick (guessed from its name)",
        "sites (rows): s0 (10), s1 (11)",
        "age, pulse: scaled",
        "note: left out",
        "warning: few rows",
    ]
    assert summary_lines(understanding(1, guessed=False, columns=(), warnings=())) == [
        "mine: 10 rows, classification, label sick"
    ]
    pictures = understanding(1, label=None, columns=(), warnings=(), schema=Schema(shape=(3, 8, 9)))
    assert summary_lines(pictures) == ["mine: 10 rows, classification, images of 3x8x9"]
    assert default_model_text("cnn", (3, 8, 9)).startswith(
        "model: cnn, the default for images of 3x8x9;"
    )


@pytest.mark.parametrize(
    ("sites", "end"), [(12, "s11 (21)"), (13, "s11 (21) and 1 more"), (15, "s11 (21) and 3 more")]
)
def test_of_many_sites_twelve_are_named(sites: int, end: str) -> None:
    line = summary_lines(understanding(sites))[1]
    assert line.startswith("sites (rows): s0 (10), s1 (11), ") and line.endswith(f", {end}")

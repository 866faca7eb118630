"""Patients' records as samples: how long they are, which codes have a number, how values are scaled
and cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from equipoise.data import Dataset, Parts
from equipoise.data.patients import histories
from equipoise.data.patients.histories import apply, dataset_of, fit, frequent, inputs_of, latest
from equipoise.data.patients.records import Records


def records(
    events: Sequence[Sequence[tuple[str, float, float]]], notes: tuple[str, ...] = ()
) -> Records:
    """Patients by their events (code, value, age).

    Patient k has sex k % 3, state 10 + k and label k % 2.
    """
    flat = [event for own in events for event in own]
    codes = tuple(sorted({code for code, _, _ in flat}))
    n = np.arange(len(events))
    return Records(
        n % 2,
        ("x", "y"),
        n % 3,
        10 + n,
        n % 2,
        np.cumsum([0, *map(len, events)]),
        np.array([codes.index(code) for code, _, _ in flat], np.int64),
        np.array([value for _, value, _ in flat], np.float32),
        np.array([age for _, _, age in flat], np.float32),
        codes,
        notes,
    )


NONE = float("nan")
THREE = [[("b", 7.0, 30.0), ("a", NONE, 31.0), ("b", 9.0, 32.0)], [], [("c", -1.0, 50.0)]]


def test_a_sample_begins_with_the_patient_and_holds_code_value_age_and_whether_the_value_lacks() -> (
    None
):
    made = dataset_of(records(THREE, ("something was left out",)), "mine", licence="mine alone")
    assert (
        made.x.shape == (3, 4, 4)
        and made.task.shape == (4, 4)
        and made.task.class_names == ("no", "yes")
        and made.task.outputs == 2
    )
    assert made.codes == ("b", "a", "c"), "the most frequent first"
    assert made.x[0].tolist() == [[0, 10, 3, 0], [1, 7, 30, 0], [2, 0, 31, 1], [1, 9, 32, 0]]
    assert made.x[1].tolist() == [[1, 11, 0, 0], [0] * 4, [0] * 4, [0] * 4]
    assert made.x[2].tolist() == [[2, 12, 1, 0], [3, -1, 50, 0], [0] * 4, [0] * 4]
    assert (
        made.y.tolist() == [0, 1, 0]
        and made.site is not None
        and made.site.tolist() == [0, 1, 0]
        and made.site_names == ("x", "y")
    )
    assert (made.name, made.licence, made.notes) == (
        "mine",
        "mine alone",
        ("something was left out",),
    )


def test_of_a_long_history_the_latest_events_are_kept() -> None:
    made = dataset_of(records(THREE, ("before",)), "mine", events=2)
    assert made.x[0].tolist() == [[0, 10, 2, 0], [2, 0, 31, 1], [1, 9, 32, 0]]
    assert made.x[2].tolist() == [[2, 12, 1, 0], [3, -1, 50, 0], [0] * 4]
    assert made.notes == (
        "before",
        "1 event of 1 patient left out: only the latest 2 of each are kept",
    )
    assert dataset_of(records([*THREE, THREE[0]]), "mine", events=1).notes == (
        "4 events of 2 patients left out: only the latest 1 of each are kept",
    )


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([3, 1], 3),
        ([0, 0], 1),
        ([], 1),
        ([1] * 99 + [9] * 2, 9),
        ([1] * 199 + [9], 1),
        ([511], 511),
        ([512], 512),
        ([514], 512),
    ],
)
def test_unless_told_one_long_history_in_a_hundred_does_not_pad_the_others(
    lengths: list[int], expected: int
) -> None:
    made = dataset_of(records([[("a", 1.0, 2.0)] * length for length in lengths]), "mine")
    assert made.x.shape == (len(lengths), 1 + expected, 4)


def test_a_given_vocabulary_numbers_the_codes_and_all_others_are_one() -> None:
    made = dataset_of(records(THREE), "mine", vocabulary=("c", "z"))
    assert (
        made.codes == ("c", "z") and made.x[0, 1:, 0].tolist() == [3, 3, 3] and made.x[2, 1, 0] == 1
    )
    assert made.notes == (
        "2 rare codes read as unknown: only the 2 most frequent codes have their own number",
    )


def test_the_most_frequent_codes_have_a_number_by_name_where_they_are_equally_frequent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = records([[(code, 1.0, 1.0) for code in "dcccbbba"]])
    assert frequent(some) == ("b", "c", "a", "d")
    unused = Records(
        *(
            getattr(some, name)
            for name in (
                "site",
                "site_names",
                "sex",
                "state",
                "label",
                "offsets",
                "code",
                "value",
                "age",
            )
        ),
        ("a", "b", "c", "d", "e"),
    )
    assert frequent(unused) == ("b", "c", "a", "d"), "a code that no event has needs none"
    assert histories.VOCABULARY == 1000
    monkeypatch.setattr(histories, "VOCABULARY", 3)
    assert frequent(some) == ("b", "c", "a")
    made = dataset_of(some, "mine")
    assert (
        made.x[0, 1:, 0].tolist() == [4, 2, 2, 2, 1, 1, 1, 3]
        and "1 rare code read as unknown: only the 3 most" in made.notes[-1]
    )


def test_histories_are_shortened_to_their_latest_events() -> None:
    whole = dataset_of(records(THREE, ("before",)), "mine")
    assert latest(whole, 3) is whole and latest(whole, 9) is whole
    short = latest(whole, 2)
    made = dataset_of(records(THREE, ("before",)), "mine", events=2)
    assert torch.equal(short.x, made.x) and short.task == made.task and short.notes == made.notes
    assert whole.x[0, 0, 2] == 3, "the given one stays as it was"
    wide = Dataset(
        "wide",
        torch.cat([whole.x, torch.zeros(3, 2, 4)], 1),
        whole.y,
        dataset_of(records(THREE), "m", events=5).task,
    )
    assert latest(wide, 3).notes == () and torch.equal(latest(wide, 3).x, whole.x), (
        "where only padding goes, nothing is said"
    )


def sample(*events: tuple[float, float, float, float]) -> list[tuple[float, float, float, float]]:
    return [(0, 0, len(events), 0), *events]


def test_values_are_scaled_in_deviations_of_their_code_and_cut_at_five() -> None:
    x = np.array([
        sample((1, 10, 20, 0), (2, 7, 30, 0), (1, 0, 40, 1), (0, 0, 0, 0)),
        sample((1, 14, 50, 0), (2, 7, 60, 0), (4, 3, 70, 0), (4, 5, 70, 0)),
        sample((1, 112, 20, 0), (1, 12, 20, 0), (3, 8, 20, 0), (2, 9, 20, 0)),
    ], np.float32)  # fmt: skip
    recipe = fit(x, ("a", "b", "c"), Parts.of([np.array([0, 1]), np.array([1])]))
    assert (
        recipe["kind"] == "histories"
        and recipe["codes"] == ["a", "b", "c"]
        and recipe["shape"] == [5, 4]
    )
    assert recipe["mean"] == [0, 12, 7, 0, 4] and recipe["scale"] == [
        1,
        2,
        1,
        1,
        1,
    ]  # a constant, and what was never seen: taken as it is
    made = apply(x, recipe)
    assert made[0, 1:, 1].tolist() == [-1, 0, 0, 0] and made[1, 1:, 1].tolist() == [1, 0, -1, 1]
    assert made[2, 1:, 1].tolist() == [5, 0, 5, 2]
    low = np.array([sample((1, -500, 20, 0))], np.float32)
    assert apply(low, recipe)[0, 1].tolist() == pytest.approx([1, -5, 0.2, 0])
    assert np.allclose(made[..., 2], np.concatenate([x[:, :1, 2], x[:, 1:, 2] / 100], 1)), (
        "ages in centuries, the length as it is"
    )
    assert np.array_equal(made[..., [0, 3]], x[..., [0, 3]]) and x[0, 1, 1] == 10, (
        "nothing else, and the given array stays"
    )


@pytest.mark.parametrize(
    ("values", "mean", "scale"),
    [
        ((2, -2, 2, -2), 0, 2),
        ((0, 0, 0), 0, 1),
        (
            (1000.1, 1000.1, 1000.1),
            1000.1,
            1,
        ),  # a constant, whatever rounding makes of its deviation
        ((1000, 1000.0625), 1000.03125, 0.03125),
        ([0] * 4096 + [4098, 0], 1, np.sqrt(4097)),  # more than are summed at a time
    ],
)
def test_mean_and_deviation_of_a_code(values: Sequence[float], mean: float, scale: float) -> None:
    x = np.zeros((len(values), 2, 4), np.float32)
    x[:, 1, 0], x[:, 1, 1] = 1, values
    recipe = fit(x, ("a",), Parts.of([np.arange(len(values))]))
    assert (recipe["mean"][1], recipe["scale"][1]) == (
        pytest.approx(mean),
        pytest.approx(scale, rel=1e-3),
    )


def test_new_patients_are_prepared_as_the_recipe_says() -> None:
    recipe = {"codes": ["b", "c"], "shape": [3, 4], "mean": [0, 8, 0, 0], "scale": [1, 0.5, 1, 1]}
    made = inputs_of(records(THREE), recipe)
    assert made.shape == (3, 3, 4) and made.dtype == torch.float32
    assert made[0].flatten().tolist() == pytest.approx([0, 10, 2, 0, 3, 0, 0.31, 1, 1, 2, 0.32, 0])

"""Whether training was over: curves whose rise is known, with and without noise."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.metrics.registry import find
from equipoise.runs.convergence import Curve, average, best_of, rounds_to, still_rising


def curve(values: np.ndarray) -> Curve:
    return Curve(tuple(range(1, len(values) + 1)), tuple(values.tolist()))


ROUNDS = np.arange(1, 31)


@pytest.mark.parametrize(
    ("values", "rises"),
    [
        (0.3 + 0.02 * ROUNDS, True),
        (0.9 - 0.6 * np.exp(-ROUNDS / 4), False),
        (0.9 - 0.6 * np.exp(-ROUNDS / 20), True),
        (0.9 - 0.01 * ROUNDS, False),
        (np.full(30, 0.5), False),
        (0.5 + 0.0001 * ROUNDS, False),
    ],
)
def test_a_smooth_curve(values: np.ndarray, rises: bool) -> None:
    assert (still_rising(curve(values)) is not None) == rises
    assert (still_rising(curve(3 - values), lower_is_better=True) is not None) == rises


def test_noise_alone_is_rarely_taken_for_a_rise_and_a_rise_is_seen_through_noise() -> None:
    rng = np.random.default_rng(0)
    flat = [still_rising(curve(0.7 + 0.02 * rng.normal(size=30))) is not None for _ in range(400)]
    assert np.mean(flat) < 0.06, "one side of a 95 % interval"
    rising = [
        still_rising(curve(0.3 + 0.015 * ROUNDS + 0.01 * rng.normal(size=30))) is not None
        for _ in range(100)
    ]
    assert np.mean(rising) > 0.9


def test_the_rise_is_that_of_the_last_fifth() -> None:
    first, rise = still_rising(curve(0.02 * ROUNDS)) or (0, 0.0)
    assert first == 25 and rise == pytest.approx(0.1)
    every_fifth = Curve(tuple(range(5, 55, 5)), tuple(0.01 * n for n in range(5, 55, 5)))
    assert still_rising(every_fifth) == (35, pytest.approx(0.15)), (
        "in rounds, also where not every round was measured"
    )
    assert still_rising(curve(0.1 * np.arange(7))) is None, "too few measured rounds to say"
    assert still_rising(curve(np.where(ROUNDS == 30, np.nan, ROUNDS))) is None


def test_best_round_and_rounds_to_a_target() -> None:
    accuracy, rmse = find("accuracy"), find("rmse")
    some = Curve((2, 4, 6, 8), (0.5, 0.8, 0.9, 0.7))
    assert best_of(some, accuracy) == 6 and best_of(some, rmse) == 2
    assert rounds_to(some, 0.8, accuracy) == 4 and rounds_to(some, 0.5, rmse) == 2
    assert np.isnan(rounds_to(some, 0.95, accuracy)) and np.isnan(best_of(Curve((), ()), accuracy))
    assert average(
        [some, Curve((2, 4, 6, 8), (0.7, 0.8, 0.9, 0.9)), Curve((2,), (0.0,))]
    ).means == pytest.approx((0.6, 0.8, 0.9, 0.8))

"""Whether training was over: curves whose rise is known, with and without noise."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.metrics.registry import find
from equipoise.runs.convergence import not_converged, still_rising
from equipoise.runs.curves import Curve, average


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


def noise(rng: np.random.Generator, count: int, correlation: float) -> np.ndarray:
    """An autoregressive process of order one with standard deviation 1."""
    values = rng.normal(size=count)
    for place in range(1, count):
        values[place] *= np.sqrt(1 - correlation**2)
        values[place] += correlation * values[place - 1]
    return values


def share_rising(
    trend: np.ndarray, correlation: float, repeats: int, deviation: float = 0.01
) -> float:
    rng = np.random.default_rng([len(trend), int(10 * correlation)])
    curves = (
        curve(trend + deviation * noise(rng, len(trend), correlation)) for _ in range(repeats)
    )
    return float(np.mean([still_rising(one) is not None for one in curves]))


@pytest.mark.parametrize("correlation", [0.0, 0.4, 0.8])
def test_correlated_noise_alone_is_rarely_taken_for_a_rise(correlation: float) -> None:
    shares = [share_rising(np.full(count, 0.7), correlation, 200) for count in (8, 20, 50)]
    assert np.mean(shares) <= 0.05 and max(shares) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_a_rise_is_seen_through_noise(correlation: float) -> None:
    assert share_rising(0.3 + 0.015 * ROUNDS, correlation, 100) > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.2, 0.4, 0.6, 0.8])
@pytest.mark.parametrize("count", [8, 10, 15, 20, 30, 50, 100, 200])
def test_false_alarms_on_flat_curves_of_every_length(count: int, correlation: float) -> None:
    repeats = 2000
    alarms = share_rising(np.full(count, 0.7), correlation, repeats, deviation=0.02)
    assert alarms <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / repeats)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "correlation", "power"),
    [(20, 0.0, 0.65), (20, 0.5, 0.7), (50, 0.0, 0.95), (50, 0.5, 0.8), (100, 0.5, 0.95)],
)
def test_power_on_a_steady_rise_of_thirty_points(
    count: int, correlation: float, power: float
) -> None:
    """From 50 % to 80 % in a straight line, with noise of one point."""
    trend = 0.5 + 0.3 * np.arange(1, count + 1) / count
    assert share_rising(trend, correlation, 1000) >= power


def test_a_very_long_curve_is_looked_at_in_blocks() -> None:
    rounds = np.arange(1, 1004)
    first, rise = still_rising(curve(0.001 * rounds)) or (0, 0.0)
    assert first == 803 and rise == pytest.approx(0.2, rel=0.05)
    assert still_rising(curve(0.7 + 0.01 * np.sin(rounds))) is None


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
    assert some.best(accuracy) == (6, 0.9) and some.best(rmse) == (2, 0.5)
    assert some.first_round_at(0.8, accuracy) == 4 and some.first_round_at(0.5, rmse) == 2
    assert np.isnan(some.first_round_at(0.95, accuracy)) and Curve().best(accuracy) is None


def test_the_average_is_over_the_rounds_that_all_curves_have() -> None:
    first = Curve((2, 4), (0.5, 0.8))
    assert average([first, Curve((2, 4), (0.7, 1.0))]) == Curve(
        (2, 4), (pytest.approx(0.6), pytest.approx(0.9))
    )
    assert average([first, Curve((2, 6), (0.7, 1.0))]) == Curve((2,), (pytest.approx(0.6),))
    tuned = Curve((2, 4, 5), (0.5, 0.8, 0.9), final_phase=True)
    assert average([tuned, tuned]).rounds == (2, 4)


def test_the_final_phase_is_no_part_of_convergence() -> None:
    flat = tuple(0.5 for _ in ROUNDS)
    with_jump = Curve((*ROUNDS.tolist(), 31), (*flat, 0.9), final_phase=True)
    assert still_rising(with_jump) is None


@pytest.mark.parametrize(("metric", "amount"), [("accuracy", "10.0 points"), ("auroc", "10.0")])
def test_a_sentence_names_rise_and_rounds(metric: str, amount: str) -> None:
    sentence = not_converged(curve(0.02 * ROUNDS), find(metric))
    assert amount in sentence and "rounds 25 to 30" in sentence
    assert not_converged(curve(np.full(30, 0.5)), find(metric)) == ""


@pytest.mark.parametrize(
    ("level", "rising"), [(6.1, False), (5.9, True), (-6.1, False), (-5.9, True)]
)
def test_a_rise_below_half_a_percent_of_the_level_is_none(level: float, rising: bool) -> None:
    """A rise by 0.03 over the last four rounds, to about the level."""
    values = level - 0.09 + 0.01 * np.arange(10)
    assert (still_rising(curve(values)) is not None) == rising

"""Conformal sets against plain loops over ranks, and temperatures against scipy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from equipoise.losses.conformal import (
    Conformal,
    calibrated,
    consensus,
    fitted_temperature,
    ranking_loss,
)


def drawn(
    samples: int, classes: int, seed: int = 0, scale: float = 2.0
) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    logits = scale * draw.standard_normal((samples, classes))
    labels = np.array([draw.choice(classes, p=softmax(row / 1.7)) for row in logits])
    return logits, labels


def brute_sums(
    row: np.ndarray, temperature: float, k_reg: int, penalty: float
) -> list[tuple[int, float]]:
    """(class, sum up to its rank), by falling probability."""
    chances = softmax(row / temperature)
    total, found = 0.0, []
    for rank, k in enumerate(sorted(range(len(row)), key=lambda k: (-chances[k], k)), 1):
        total += chances[k]
        found.append((k, total + penalty * max(0, rank - k_reg)))
    return found


def brute_set(
    row: np.ndarray, threshold: float, temperature: float, k_reg: int, penalty: float
) -> set[int]:
    sums = brute_sums(row, temperature, k_reg, penalty)
    size = min(len(row), 1 + sum(value <= threshold for _, value in sums))
    return {k for k, _ in sums[:size]}


@pytest.mark.parametrize(
    ("classes", "k_reg", "penalty"), [(2, 1, 0.5), (3, 2, 1.0), (10, 5, 0.5), (10, 1, 0.05)]
)
def test_sets_and_thresholds_match_plain_loops(classes: int, k_reg: int, penalty: float) -> None:
    logits, labels = drawn(57, classes)
    for alpha in (0.05, 0.1, 0.5):
        found = calibrated(logits, labels, alpha, k_reg, penalty)
        scores = sorted(
            dict(brute_sums(row, found.temperature, k_reg, penalty))[y]
            for row, y in zip(logits, labels, strict=True)
        )
        assert found.threshold == pytest.approx(
            scores[math.ceil(round((1 - alpha) * 56, 9))], rel=1e-12
        )
        others, _ = drawn(40, classes, seed=1)
        for row, members in zip(others, found.sets(others), strict=True):
            assert set(np.flatnonzero(members)) == brute_set(
                row, found.threshold, found.temperature, k_reg, penalty
            )
        covered = found.sets(logits)[np.arange(len(labels)), labels]
        assert covered.mean() >= 1 - alpha


def test_sets_are_never_empty_and_nested_as_alpha_falls() -> None:
    (logits, labels), (others, _) = drawn(60, 8), drawn(200, 8, seed=2)
    smaller = np.zeros((200, 8), bool)
    for alpha in (0.9, 0.5, 0.2, 0.1, 0.02):
        sets = calibrated(logits, labels, alpha, 3, 0.05).sets(others)
        assert sets.any(1).all() and (sets | ~smaller).all()
        smaller = sets
    assert Conformal(threshold=-1.0).sets(others).sum(1).tolist() == [1] * 200
    assert Conformal(threshold=1.0).sets(others).all()  # without penalties


def test_equal_probabilities_go_by_class_and_few_samples_give_all_classes() -> None:
    assert Conformal(threshold=0.3).sets(np.zeros((1, 4))).tolist() == [[True, True, False, False]]
    logits, labels = drawn(9, 4)
    assert calibrated(logits, labels, 0.1, 3, 1.0).sets(logits).all()
    assert calibrated(logits[:0], labels[:0], 0.1, 3, 1.0).threshold == math.inf
    logits, labels = drawn(10, 4)
    assert math.isfinite(calibrated(logits, labels, 0.1, 3, 1.0).threshold)


def likelihood(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    return float(-log_softmax(logits / temperature, axis=1)[np.arange(len(labels)), labels].mean())


@pytest.mark.parametrize("seed", range(4))
def test_the_temperature_is_the_most_likely_one(seed: int) -> None:
    logits, labels = drawn(80, 5, seed)
    best = minimize_scalar(
        lambda t: likelihood(logits, labels, t),
        bounds=(0.1, 10),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert fitted_temperature(logits, labels) == pytest.approx(best.x, rel=1e-5)


def test_labels_that_are_all_right_or_all_wrong_keep_it_in_bounds() -> None:
    logits = np.eye(4)[np.arange(20) % 4]
    assert fitted_temperature(logits, np.arange(20) % 4) == pytest.approx(0.1)
    assert fitted_temperature(logits, (np.arange(20) + 1) % 4) == pytest.approx(10.0)


def test_the_released_rule_leaves_it_at_its_start() -> None:
    logits, labels = drawn(80, 5)
    found = fitted_temperature(logits, labels, "released")
    assert abs(found - 1.3) < 0.01
    slope = (likelihood(logits, labels, 1.3 + 1e-5) - likelihood(logits, labels, 1.3 - 1e-5)) / 2e-5
    assert found == pytest.approx(1.3 - 0.01 * slope, abs=1e-9)
    wild = 60.0 * logits  # a slope that takes more than a step
    moved, t = fitted_temperature(wild, labels, "released"), 1.3
    for _ in range(10):
        change = (
            0.01 * (likelihood(wild, labels, t + 1e-6) - likelihood(wild, labels, t - 1e-6)) / 2e-6
        )
        t -= change
        if abs(change) < 0.01:
            break
    assert moved == pytest.approx(t, rel=1e-5) and moved > 1.5


def test_consensus_is_one_sided() -> None:
    draw = np.random.default_rng(0)
    own, other = draw.random((50, 6)) < 0.5, draw.random((50, 6)) < 0.5
    own[:, 0] = other[:, 1] = True
    values = []
    for a, b in zip(own, other, strict=True):
        first, second = set(np.flatnonzero(a)), set(np.flatnonzero(b))
        values.append(
            len(first & second) / len(first | second)
            if len(first) <= len(second)
            else len(first & second) / len(second)
        )
    assert float(consensus(own, other)) == pytest.approx(np.mean(values), rel=1e-12)
    assert float(consensus(own, own)) == 1
    narrow, wide = np.array([[True, False, False]]), np.array([[True, True, False]])
    assert (float(consensus(wide, narrow)), float(consensus(narrow, wide))) == (1.0, 0.5)


def test_ranking_matches_a_loop_over_pairs_and_its_gradient() -> None:
    draw = np.random.default_rng(1)
    logits, sets = draw.standard_normal((30, 5)), draw.random((30, 5)) < 0.5
    sets[:, 0], sets[0] = True, True  # never empty; one sample with all classes
    total = 0.0
    for z, members in zip(logits, sets, strict=True):
        inside, outside = np.flatnonzero(members), np.flatnonzero(~members)
        pairs = [max(0.0, z[b] - z[a]) for a in inside for b in outside]
        total += np.mean(pairs) if pairs else 0.0
    scores = torch.from_numpy(logits).requires_grad_()
    value = ranking_loss(scores, sets)
    assert float(value.detach()) == pytest.approx(total / 30, rel=1e-12)
    value.backward()
    inside, outside = sets[1].nonzero()[0], (~sets[1]).nonzero()[0]
    expected = np.zeros(5)
    for a in inside:
        for b in outside:
            expected[[a, b]] += (
                np.array([-1.0, 1.0])
                * (logits[1, b] > logits[1, a])
                / (len(inside) * len(outside) * 30)
            )
    np.testing.assert_allclose(scores.grad[1], expected, atol=1e-12)
    assert not scores.grad[0].any()


def test_by_default_five_classes_go_without_a_penalty() -> None:
    """Of seven equal classes sums are 1/7, 2/7, ....

    A penalty puts the sixth beyond the threshold, and it is the last of the set.
    """
    assert Conformal(threshold=0.99, penalty=1.0).sets(np.zeros((1, 7))).sum() == 6
    assert Conformal(threshold=0.99).sets(np.zeros((1, 7))).sum() == 7
    assert Conformal(threshold=0.99).scores(np.zeros((1, 7)), [6]).tolist() == pytest.approx([1.0])


def test_a_ranking_of_two_classes_is_one_pair() -> None:
    assert float(ranking_loss(torch.tensor([[1.0, 3.0]]), [[True, False]])) == 2


def test_a_ranking_that_is_right_costs_nothing() -> None:
    assert float(ranking_loss(torch.tensor([[3.0, 2.0, 1.0]]), [[True, True, False]])) == 0
    assert float(ranking_loss(torch.tensor([[0.0, 2.0, 1.0]]), [[True, True, True]])) == 0


@pytest.mark.parametrize("rule", ["converged", "released"])
def test_what_is_calibrated_has_the_temperature_that_was_fitted(rule: Any) -> None:
    logits, labels = drawn(40, 4)
    found = calibrated(logits, labels, 0.1, 2, 0.3, rule)
    assert found.temperature == fitted_temperature(logits, labels, rule) and (
        found.k_reg,
        found.penalty,
    ) == (2, 0.3)
    assert (
        calibrated(logits, labels, 0.1, 2, 0.3).temperature
        == fitted_temperature(logits, labels, "converged")
        != found.threshold
    )

"""Class offsets against a general optimiser, and the equation that holds at their optimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from equipoise.losses import class_offsets, mean_offset, offsets
from equipoise.task import Task


def problem(
    n: int, classes: int, seed: int, labels: list[int] | None = None, scale: float = 2.0
) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return scale * draw.standard_normal((n, classes)), draw.choice(
        np.array(labels or range(classes)), n
    )


def objective(b: np.ndarray, logits: np.ndarray, y: np.ndarray, rho: float) -> float:
    return float(
        -sum(row[label] for row, label in zip(log_softmax(logits + b, axis=1), y, strict=True))
        + rho / 2 * (b**2).sum()
    )


def stationarity(b: np.ndarray, logits: np.ndarray, y: np.ndarray, rho: float) -> float:
    p = np.exp(log_softmax(logits + b, axis=1))
    return float(
        np.abs(p.sum(0) + rho * b - [np.sum(y == c) for c in range(logits.shape[1])]).max()
    )


CASES = {
    "plain": (problem(60, 4, 0), 1.0),
    "one class": (problem(25, 5, 1, [3]), 1.0),
    "a class without samples": (problem(40, 3, 2, [0, 2]), 0.5),
    "one sample": (problem(1, 3, 3), 1.0),
    "weak pull": (problem(200, 6, 4, [0, 1]), 1e-4),
    "a confident model that is wrong": (problem(80, 4, 5, [1], scale=60.0), 1.0),
    "two classes": (problem(30, 2, 6), 2.0),
}


@pytest.mark.parametrize("case", CASES)
def test_a_general_optimiser_finds_the_same(case: str) -> None:
    (logits, y), rho = CASES[case]
    found = class_offsets(logits, y, rho)
    reference = minimize(
        objective,
        np.zeros(logits.shape[1]),
        (logits, y, rho),
        method="Powell",
        options={"xtol": 1e-10, "ftol": 1e-15},
    )
    assert np.isfinite(found).all() and stationarity(found, logits, y, rho) < 1e-6
    assert objective(found, logits, y, rho) <= reference.fun + 1e-7
    if case != "weak pull":  # there a coordinate search stops early in a flat valley
        np.testing.assert_allclose(found, reference.x, atol=2e-4)


def test_the_equation_holds_for_many_samples_and_any_kind_of_numbers() -> None:
    logits, y = problem(50_000, 10, 7)
    assert stationarity(class_offsets(logits, y, 1.0), logits, y, 1.0) < 1e-6
    some = torch.tensor(logits[:50], dtype=torch.float32)
    np.testing.assert_array_equal(
        class_offsets(some, torch.tensor(y[:50])), class_offsets(some.double().numpy(), y[:50])
    )


def test_a_strong_pull_or_no_samples_leave_the_model_as_it_is() -> None:
    logits, y = problem(40, 3, 8)
    assert np.abs(class_offsets(logits, y, 1e12)).max() < 1e-9
    assert (class_offsets(np.empty((0, 3)), np.empty(0)) == 0).all()


def test_constants_of_a_sample_do_not_matter_and_classes_may_be_renamed() -> None:
    logits, y = problem(40, 4, 9)
    b, order = class_offsets(logits, y), np.array([2, 0, 3, 1])
    np.testing.assert_allclose(class_offsets(logits + np.arange(40)[:, None], y), b, atol=1e-9)
    np.testing.assert_allclose(
        class_offsets(logits[:, order], np.argsort(order)[y]), b[order], atol=1e-9
    )
    assert abs(b.sum()) < 1e-9, "summed over classes the equation says so"


@pytest.mark.parametrize(("y", "rho"), [([0, 1], 0.0), ([0, 1], -1.0), ([0], 1.0)])
def test_what_makes_no_sense_is_refused(y: list[int], rho: float) -> None:
    with pytest.raises(ValueError, match="expected logits"):
        class_offsets([[0.0, 1.0], [1.0, 0.0]], y, rho)


@pytest.mark.parametrize("shape", [(2,), (1, 2, 2)])
def test_logits_are_a_table(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected logits \(n, classes\)"):
        class_offsets(np.zeros(shape), np.zeros(shape[0], int))


def test_of_numbers_it_is_the_mean_residual_pulled_to_zero() -> None:
    predictions, y = (
        np.array([[1.0], [2.0], [4.0]]),
        np.array([3.0, 1.0, 9.0]),
    )  # residuals 2, -1, 5
    assert mean_offset(predictions, y, 3.0).tolist() == [1.0]
    assert mean_offset(predictions, y, 0.0).tolist() == [2.0]
    assert mean_offset(np.empty((0, 1)), np.empty(0)).tolist() == [0.0]
    assert offsets(predictions, y, 3.0, Task("regression", (1,), 1)).tolist() == [1.0]


def test_of_classes_it_is_that_of_every_class() -> None:
    logits, labels = problem(20, 3, 10)
    np.testing.assert_array_equal(
        offsets(logits, labels, 0.7, Task("classification", (1,), 3)),
        class_offsets(logits, labels, 0.7),
    )
    np.testing.assert_array_equal(class_offsets(logits, labels), class_offsets(logits, labels, 1.0))


def test_large_logits_do_not_overflow() -> None:
    found = class_offsets([[2000.0, 1999.0], [1000.0, 1001.0], [3000.0, 3000.0]], [0, 0, 1])
    np.testing.assert_allclose(
        found, class_offsets([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [0, 0, 1]), atol=1e-9
    )

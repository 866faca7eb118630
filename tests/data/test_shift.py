from __future__ import annotations

import numpy as np
import pytest

from equipoise.data.federation import Parts
from equipoise.data.shift import (
    gaussian_kl,
    kl_gaussian_exact,
    kl_gaussian_fitted,
    kl_theorem22,
    label_distance,
    realised_shift,
)


def example(m: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A mean shift, a symmetric covariance shift and a covariance."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, m, m))
    return rng.normal(size=m), 0.1 * (b + b.T), a @ a.T + np.eye(m)


def test_one_dimension_is_the_textbook_formula() -> None:
    s = 0.7
    assert kl_gaussian_exact(np.zeros(1), np.array([[s * 2]]), np.array([[2.0]])) == pytest.approx(
        0.5 * (s - np.log(1 + s)), abs=1e-12
    )


def test_exact_agrees_with_the_general_formula() -> None:
    shift, change, cov = example()
    new, inverse = cov + change, np.linalg.inv(cov)
    general = 0.5 * (
        np.trace(inverse @ new)
        - 4
        + np.log(np.linalg.det(cov) / np.linalg.det(new))
        + shift @ inverse @ shift
    )
    assert kl_gaussian_exact(shift, change, cov) == pytest.approx(general, rel=1e-10)


def test_no_shift_is_zero_and_any_shift_positive() -> None:
    shift, change, cov = example()
    assert kl_gaussian_exact(0 * shift, 0 * change, cov) == 0
    assert kl_gaussian_exact(0 * shift, 1e-6 * change, cov) > 0
    assert kl_gaussian_exact(1e-6 * shift, 0 * change, cov) > 0


def test_a_pure_mean_shift_of_squared_length_c_is_half_of_c() -> None:
    shift, change, cov = example()
    shift = shift * np.sqrt(5 / (shift @ np.linalg.solve(cov, shift)))
    assert kl_gaussian_exact(shift, 0 * change, cov) == pytest.approx(2.5, rel=1e-12)


def test_units_do_not_matter_except_in_the_printed_formula() -> None:
    shift, change, cov = example()
    g = np.random.default_rng(3).normal(size=(4, 4)) + 3 * np.eye(4)
    moved = (g @ shift, g @ change @ g.T, g @ cov @ g.T)
    assert kl_gaussian_exact(*moved) == pytest.approx(
        kl_gaussian_exact(shift, change, cov), rel=1e-9
    )
    assert kl_theorem22(*moved, 100) == pytest.approx(
        kl_theorem22(shift, change, cov, 100), rel=1e-9
    )
    assert kl_theorem22(*moved, 100, "paper") != pytest.approx(
        kl_theorem22(shift, change, cov, 100, "paper"), rel=1e-3
    )


def test_the_corrected_expansion_is_off_by_the_fourth_power_and_the_printed_one_by_the_third_at_best() -> (
    None
):
    shift, change, _ = example()

    def error(e: float, variant: str) -> float:
        # unit covariance, where the printed quadratic term is right, so that only its cubic terms
        # differ
        return abs(
            kl_theorem22(e * shift, e * change, np.eye(4), np.inf, variant)
            - kl_gaussian_exact(e * shift, e * change, np.eye(4))
        )

    assert error(0.1, "corrected") / error(0.05, "corrected") == pytest.approx(16, rel=0.1)
    assert error(0.1, "paper") / error(0.05, "paper") == pytest.approx(8, rel=0.15)


def test_the_sampling_term_is_m_times_m_plus_three_over_four_a() -> None:
    zero = (np.zeros(5), np.zeros((5, 5)), np.eye(5))
    assert kl_theorem22(*zero, 1000) == pytest.approx(0.01)
    assert kl_gaussian_fitted(*zero, 100_000) == pytest.approx(5 * 8 / 400_000, rel=1e-3)


@pytest.mark.parametrize(("samples", "expected"), [(358, 7.99), (1000, 2.667)])
def test_exact_expectation_of_a_fitted_gaussian_in_100_dimensions(
    samples: int, expected: float
) -> None:
    assert kl_gaussian_fitted(
        np.zeros(100), np.zeros((100, 100)), np.eye(100), samples
    ) == pytest.approx(expected, rel=1e-3)
    assert kl_gaussian_fitted(np.zeros(100), np.zeros((100, 100)), np.eye(100), 100) == np.inf


def test_exact_expectation_agrees_with_simulation() -> None:
    rng = np.random.default_rng(0)
    shift, new = np.array([0.3, -0.2]), np.diag([1.2, 0.8])
    draws = shift + rng.normal(size=(20_000, 30, 2)) @ np.sqrt(new)
    means = draws.mean(axis=1)
    centred = draws - means[:, None]
    covs = np.einsum("nai,naj->nij", centred, centred) / 30
    values = 0.5 * (
        np.trace(covs, axis1=1, axis2=2) + (means**2).sum(axis=1) - 2 - np.log(np.linalg.det(covs))
    )
    error = np.std(values) / np.sqrt(len(values))
    assert (
        abs(np.mean(values) - kl_gaussian_fitted(shift, new - np.eye(2), np.eye(2), 30)) < 4 * error
    )


def test_an_impossible_covariance_and_an_unknown_variant_are_refused() -> None:
    with pytest.raises(ValueError, match="not positive definite"):
        kl_gaussian_exact(np.zeros(2), -2 * np.eye(2), np.eye(2))
    with pytest.raises(ValueError, match="corrected or paper"):
        kl_theorem22(np.zeros(1), np.zeros((1, 1)), np.eye(1), 10, "printed")  # type: ignore[arg-type]


def test_a_covariance_of_nothing_is_refused_and_one_just_above_is_not() -> None:
    with pytest.raises(ValueError, match="its smallest relative eigenvalue is 0"):
        kl_gaussian_exact(np.zeros(1), -np.eye(1), np.eye(1))
    assert kl_gaussian_exact(np.zeros(1), -0.999 * np.eye(1), np.eye(1)) == pytest.approx(
        0.5 * (-0.999 - np.log(0.001))
    )


def test_the_expansions_in_one_dimension() -> None:
    """By hand: X = s / v, and in the printed form s / v^2."""
    m, s, v, n = 0.3, 0.5, 2.0, 50
    x, printed, given = s / v, s / v**2, (np.array([m]), np.array([[s]]), np.array([[v]]), n)
    assert kl_theorem22(*given) == pytest.approx(
        x**2 / 4 - x**3 / 6 + m**2 / (2 * v) + 1 / n, rel=1e-12
    )
    assert kl_theorem22(*given, "corrected") == kl_theorem22(*given)
    by_hand = printed**2 / 4 - x**3 / 2 + m**2 / (2 * v) - m**2 * printed / 2 + 1 / n
    assert kl_theorem22(*given, "paper") == pytest.approx(by_hand, rel=1e-12)


def test_two_gaussians_by_the_textbook() -> None:
    rng = np.random.default_rng(1)
    (mean, mean0), a, b = rng.normal(size=(2, 3)), rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    cov, cov0 = a @ a.T + np.eye(3), b @ b.T + np.eye(3)
    inverse = np.linalg.inv(cov0)
    known = (
        np.trace(inverse @ cov)
        + (mean0 - mean) @ inverse @ (mean0 - mean)
        - 3
        + np.log(np.linalg.det(cov0) / np.linalg.det(cov))
    )
    assert gaussian_kl(mean, cov, mean0, cov0) == pytest.approx(known / 2, rel=1e-10)


def test_a_fitted_gaussian_needs_more_samples_than_dimensions() -> None:
    zero = (np.zeros(3), np.zeros((3, 3)), np.eye(3))
    assert kl_gaussian_fitted(*zero, 3) == np.inf and np.isfinite(kl_gaussian_fitted(*zero, 4))


def test_distances_of_labels_and_scores_of_clients_without_samples_are_zero() -> None:
    parts = Parts.of([np.array([0, 1, 2]), np.array([], int), np.array([3])])
    labels, scores = (
        np.array([0, 1, 1, 2, 2, 2]),
        np.array([[1.0, 0], [2, 0], [3, 3], [-1, 2], [9, 9], [9, 9]]),
    )
    whole = np.array([1, 2, 3]) / 6
    expected = [
        np.abs(np.array([1, 2, 0]) / 3 - whole).sum() / 2,
        0,
        np.abs(np.array([0, 0, 1]) - whole).sum() / 2,
    ]
    assert label_distance(labels, parts, np.arange(6), 3) == pytest.approx(expected)
    assert (
        label_distance(labels, parts, np.array([3]), 4)[2] == 0
        and label_distance(labels, parts, np.array([], int), 3)[2] == 0.5
    )
    assert realised_shift(scores, parts) == pytest.approx([2**2 + 1, 0, 1 + 4])

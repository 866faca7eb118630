"""Divergences against plain float64 formulas, scipy, and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, norm

from equipoise.auditing.divergence import (
    Moments,
    approximations,
    as_overlap,
    by_labels,
    chance,
    distance,
    imbalance,
    label_distances,
    shrinkage,
)
from equipoise.data.shift import gaussian_kl


def gaussian(m: int, seed: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    a = draw.normal(size=(m, m))
    return scale * draw.normal(size=m), a @ a.T / m + 0.3 * np.eye(m)


def fitted(x: np.ndarray) -> Moments:
    return Moments.of(len(x), x.sum(0), x.T @ x)


def test_gaussian_kl_is_the_mean_log_ratio_of_densities() -> None:
    (mean, cov), (mean0, cov0) = gaussian(3, 0), gaussian(3, 1)
    x = np.random.default_rng(2).multivariate_normal(mean, cov, size=200_000)
    ratios = multivariate_normal(mean, cov).logpdf(x) - multivariate_normal(mean0, cov0).logpdf(x)
    assert gaussian_kl(mean, cov, mean0, cov0) == pytest.approx(
        ratios.mean(), abs=5 * ratios.std() / np.sqrt(len(x))
    )


def test_gaussian_kl_by_the_textbook() -> None:
    (mean, cov), (mean0, cov0) = gaussian(5, 3), gaussian(5, 4)
    inverse, shift = np.linalg.inv(cov0), mean0 - mean
    textbook = 0.5 * (
        np.trace(inverse @ cov)
        + shift @ inverse @ shift
        - 5
        + np.linalg.slogdet(cov0)[1]
        - np.linalg.slogdet(cov)[1]
    )
    assert gaussian_kl(mean, cov, mean0, cov0) == pytest.approx(textbook, rel=1e-12)
    # a direction, not a distance
    assert gaussian_kl(mean0, cov0, mean, cov) != pytest.approx(textbook, rel=1e-2)
    assert gaussian_kl(list(mean), cov, mean, cov) == 0


@pytest.mark.parametrize("n", [20, 21, 40, 500])
def test_a_client_with_enough_samples_has_the_exact_kl_of_its_fitted_gaussian(n: int) -> None:
    mean0, cov0 = gaussian(10, 5)
    x = np.random.default_rng(n).multivariate_normal(mean0 + 0.3, cov0, size=n)
    found = distance(fitted(x), Moments(1e6, mean0, cov0))
    assert found.kl == pytest.approx(
        gaussian_kl(x.mean(0), np.cov(x.T, ddof=0), mean0, cov0), rel=1e-9
    )
    assert found.shrinkage == 0 and found.flat == 0


@pytest.mark.parametrize(("n", "share"), [(5, 0.75), (10, 0.5), (19, 0.05)])
def test_below_twice_the_dimensions_the_covariance_is_shrunk_and_said_so(
    n: int, share: float
) -> None:
    mean0, cov0 = gaussian(10, 6)
    x = np.random.default_rng(n).multivariate_normal(mean0, cov0, size=n)
    found = distance(fitted(x), Moments(1e6, mean0, cov0))
    assert found.shrinkage == pytest.approx(share)
    shrunk = (1 - share) * np.cov(x.T, ddof=0) + share * cov0
    assert found.kl == pytest.approx(gaussian_kl(x.mean(0), shrunk, mean0, cov0), rel=1e-9)


def test_fewer_than_half_as_many_samples_as_dimensions_say_nothing() -> None:
    mean0, cov0 = gaussian(10, 7)
    assert distance(fitted(np.zeros((4, 10))), Moments(1e6, mean0, cov0)).kl is None
    assert distance(fitted(np.zeros((0, 10))), Moments(1e6, mean0, cov0)).kl is None
    assert distance(fitted(np.zeros((1, 1))), Moments(1e6, np.zeros(1), np.eye(1))).kl is None
    assert distance(fitted(np.zeros((9, 0))), Moments(1e6, np.zeros(0), np.eye(0))).kl is None


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 12),
    st.integers(1, 60),
    st.integers(0, 2**30),
    st.sampled_from(["normal", "constant", "one column", "huge", "repeated"]),
)
def test_never_infinite(m: int, n: int, seed: int, kind: str) -> None:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, m))
    if kind == "constant":
        x[:] = 3.0
    elif kind == "one column":
        x[:, 0] = 1.0
    elif kind == "huge":
        x *= 1e6
    elif kind == "repeated":
        x[:] = x[0]
    found = distance(fitted(x), Moments(1e6, np.zeros(m), np.diag(np.geomspace(1, 1e-6, m))))
    assert found.kl is None or (np.isfinite(found.kl) and found.kl >= 0)
    assert np.isfinite(found.chance) and (found.kl is not None or n < max(2, m / 2))


def test_a_direction_in_which_a_client_does_not_vary_is_counted_and_bounded() -> None:
    x = np.random.default_rng(0).normal(size=(200, 3))
    x[:, 2] = 0.0
    found = distance(fitted(x), Moments(1e6, np.zeros(3), np.eye(3)))
    rest = distance(fitted(x[:, :2]), Moments(1e6, np.zeros(2), np.eye(2)))
    assert found.flat == 1 and rest.kl is not None
    assert found.kl == pytest.approx(rest.kl + 0.5 * (1 / 200 - 1 + np.log(200)), rel=1e-9)


@pytest.mark.parametrize(("n", "m"), [(8, 10), (15, 10), (30, 10), (200, 5)])
@pytest.mark.thorough
def test_chance_is_what_equal_clients_show(n: int, m: int) -> None:
    """Simulated in coordinates that are not white, with other numbers than the library draws."""
    mean0, cov0 = gaussian(m, 8, scale=3)
    draw = np.random.default_rng(99)
    seen = [
        distance(
            fitted(draw.multivariate_normal(mean0, cov0, size=n)), Moments(1e6, mean0, cov0)
        ).kl
        for _ in range(1500)
    ]
    error = np.std(seen) / np.sqrt(len(seen))
    assert chance(n, m) == pytest.approx(
        np.mean(seen), abs=5 * error + (5 * np.std(seen) / 20 if n < 2 * m else 0)
    )


def test_chance_falls_as_m_times_m_plus_three_over_four_n() -> None:
    assert chance(100_000, 10) == pytest.approx(10 * 13 / 400_000, rel=1e-3)
    assert chance(358, 100) == pytest.approx(7.99, rel=1e-3)


def test_both_approximations_at_a_small_shift() -> None:
    mean0, cov0 = gaussian(4, 9)
    change = 0.02 * (lambda a: a + a.T)(np.random.default_rng(1).normal(size=(4, 4)))
    client, whole = Moments(1e9, mean0 + 0.05, cov0 + change), Moments(1e9, mean0, cov0)
    corrected, printed = approximations(client, whole)
    exact = gaussian_kl(client.mean, client.cov, mean0, cov0)
    assert corrected == pytest.approx(exact, rel=0.02)
    assert abs(printed - exact) > 3 * abs(corrected - exact)
    inverse = np.linalg.inv(cov0)  # Eq. 1 of the paper to the letter, without its sampling term
    shift = np.full(4, 0.05)
    letter = (
        0.25 * np.linalg.norm(inverse @ change @ inverse, "fro") ** 2
        - 0.5 * np.trace(np.linalg.matrix_power(change @ inverse, 3))
        + 0.5 * shift @ (inverse @ (np.eye(4) - change @ inverse)) @ shift
    )
    assert printed == pytest.approx(letter, rel=1e-9)


def test_what_labels_explain_is_the_mixture_of_everybodys_classes() -> None:
    draw = np.random.default_rng(3)
    parts = [draw.normal(size=(4000, 2)) * s + m for s, m in ((1.0, 0.0), (0.5, 3.0), (2.0, -2.0))]
    groups = [fitted(part) for part in parts]
    whole = fitted(np.concatenate(parts))
    shown = by_labels(np.array([1000, 3000, 0]), groups, whole)
    mixed = np.concatenate([parts[0][:1000], np.tile(parts[1], (1, 1))[:3000]])
    assert shown.mean == pytest.approx(mixed.mean(0), abs=0.1)
    assert shown.cov == pytest.approx(np.cov(mixed.T, ddof=0), abs=0.15)
    assert shown.number == 4000


def test_label_distance_and_its_chance() -> None:
    draw = np.random.default_rng(4)
    shares = np.array([0.5, 0.3, 0.15, 0.05])
    seen, expected = [], []
    for _ in range(300):
        counts = np.stack([draw.multinomial(n, shares) for n in (40, 400, 2000)])
        found, by_chance = label_distances(counts)
        whole = counts.sum(0) / counts.sum()
        assert found == pytest.approx([0.5 * np.abs(c / c.sum() - whole).sum() for c in counts])
        seen.append(found)
        expected.append(by_chance)
    assert np.mean(seen, axis=0) == pytest.approx(np.mean(expected, axis=0), rel=0.06)


def test_label_distance_of_a_client_without_samples_is_nothing() -> None:
    found, by_chance = label_distances(np.array([[0, 0], [5, 5]]))
    assert found.tolist() == [0, 0] and np.isfinite(by_chance).all()


def test_imbalance_of_a_power_law() -> None:
    sizes = 1 / np.arange(1, 11)
    assert imbalance(sizes) == pytest.approx(1 - (sizes.sum() ** 2 / (sizes**2).sum()) / 10)
    assert imbalance(np.ones(7)) == pytest.approx(0) and imbalance(np.zeros(3)) == 0


def test_overlap_is_the_total_variation_of_shifted_gaussians() -> None:
    for kl in (0.01, 0.5, 2.5):
        d = np.sqrt(2 * kl)
        assert as_overlap(kl) == pytest.approx(2 * norm.cdf(d / 2) - 1)
    assert as_overlap(-0.3) == 0


def test_shrinkage_makes_any_covariance_of_full_rank() -> None:
    assert shrinkage(0, 5) == 1 and shrinkage(10, 5) == 0 and shrinkage(9, 5) == pytest.approx(0.1)

"""Mixture weights against a general optimiser and plain loops."""

from __future__ import annotations

from itertools import pairwise, product
from math import comb, exp, log

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from equipoise.task import Task
from equipoise.weighting import (
    log_likelihoods,
    mixture_weights,
    mixtures,
    on_simplex,
    posterior_mean,
    simplex_grid,
)

CLASSES = Task("classification", (1,), 2)
VALUES = Task("regression", (1,), 1)


def chances(n: int, experts: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(1e-3, 1, (n, experts)) ** 2


def penalised(w: np.ndarray, q: np.ndarray, prior: np.ndarray, kappa: float) -> float:
    return sum(
        log(sum(w[j] * q[i, j] for j in range(len(w)))) for i in range(len(q))
    ) + kappa * sum(p * log(max(one, 1e-300)) for p, one in zip(prior, w, strict=True))


@pytest.mark.parametrize(("experts", "steps"), [(1, 5), (2, 5), (3, 4), (4, 5), (5, 3)])
def test_the_grid_is_the_simplex_in_equal_steps_pulled_inside(experts: int, steps: int) -> None:
    grid = simplex_grid(experts, steps)
    wanted = {tuple(k) for k in product(range(steps + 1), repeat=experts) if sum(k) == steps}
    assert len(grid) == comb(steps + experts - 1, experts - 1) == len(wanted)
    assert {
        tuple(int(k) for k in row) for row in ((grid - 0.05 / experts) / 0.95 * steps).round(9)
    } == wanted
    np.testing.assert_allclose(grid.sum(1), 1)
    assert grid.min() >= 0.05 / experts - 1e-15


def test_likelihoods_and_their_posterior_mean_are_those_of_plain_loops() -> None:
    q, grid = chances(12, 3, 0), simplex_grid(3, 4)
    table = [sum(log(sum(w[j] * row[j] for j in range(3))) for row in q) for w in grid]
    np.testing.assert_allclose(log_likelihoods(q, grid), table)
    total = sum(exp(value) for value in table)
    mean = [
        sum(exp(value) * w[j] for value, w in zip(table, grid, strict=True)) / total
        for j in range(3)
    ]
    np.testing.assert_allclose(posterior_mean(log_likelihoods(q, grid), grid), mean)


def test_without_samples_the_posterior_is_flat_and_many_samples_do_not_underflow() -> None:
    grid = simplex_grid(4, 5)
    np.testing.assert_allclose(
        posterior_mean(log_likelihoods(np.empty((0, 4)), grid), grid), np.full(4, 0.25)
    )
    q = np.tile([1e-9, 1e-12, 1e-12, 0.5e-9], (20_000, 1))
    mean = posterior_mean(log_likelihoods(q, grid), grid)
    assert on_simplex(mean) and mean.argmax() == 0


def test_tables_of_two_clients_add_to_that_of_their_pooled_samples() -> None:
    one, other, grid = chances(7, 3, 1), chances(5, 3, 2), simplex_grid(3, 5)
    both = log_likelihoods(np.vstack([one, other]), grid)
    np.testing.assert_allclose(log_likelihoods(one, grid) + log_likelihoods(other, grid), both)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kappa", [0.5, 10.0])
def test_em_finds_what_a_general_optimiser_finds(seed: int, kappa: float) -> None:
    q, prior = chances(30, 4, seed), np.random.default_rng(seed).dirichlet(np.ones(4))
    found = mixture_weights(q, prior, kappa, steps=5000)
    free = minimize(  # weights as a softmax: no constraint is left
        lambda z: -penalised(np.exp(z - z.max()) / np.exp(z - z.max()).sum(), q, prior, kappa),
        np.zeros(4),
        method="BFGS",
        tol=1e-9,
    )
    assert on_simplex(found) and penalised(found, q, prior, kappa) >= -free.fun - 1e-8
    np.testing.assert_allclose(
        found, np.exp(free.x - free.x.max()) / np.exp(free.x - free.x.max()).sum(), atol=1e-4
    )


def test_the_penalised_likelihood_never_falls() -> None:
    q, prior = chances(25, 4, 3), np.array([0.7, 0.1, 0.1, 0.1])
    values = [
        penalised(mixture_weights(q, prior, 10.0, steps=n), q, prior, 10.0) for n in range(60)
    ]
    assert (
        all(later >= earlier - 1e-12 for earlier, later in pairwise(values))
        and values[-1] > values[0] + 0.1
    )


def test_equal_experts_no_samples_or_a_strong_prior_give_the_prior() -> None:
    prior = np.array([0.2, 0.5, 0.3])
    np.testing.assert_allclose(
        mixture_weights(np.tile(chances(9, 1, 4), (1, 3)), prior, 10.0), prior
    )
    np.testing.assert_allclose(mixture_weights(chances(9, 3, 5), prior, 1e12), prior)
    np.testing.assert_array_equal(mixture_weights(np.empty((0, 3)), prior, 0.0), prior)


def test_a_copy_of_an_expert_shares_its_weight() -> None:
    q = chances(40, 2, 6)
    plain = mixture_weights(q, [0.6, 0.4], 10.0)
    copied = mixture_weights(q[:, [0, 1, 1]], [0.6, 0.1, 0.3], 10.0)
    np.testing.assert_allclose([copied[0], copied[1] + copied[2]], plain, atol=1e-12)


def test_one_expert_has_all_weight() -> None:
    np.testing.assert_array_equal(mixture_weights(chances(5, 1, 7), [1.0], 10.0), [1.0])
    assert (simplex_grid(1, 5) == 1).all()


@pytest.mark.parametrize(
    "wrong", [[0.5, 0.6], [1.5, -0.5], [np.nan, 1.0], [np.inf, 0.0], [0.0, 0.0], [0.5, 0.5001]]
)
def test_what_is_off_the_simplex_is_seen(wrong: list[float]) -> None:
    assert not on_simplex(wrong) and on_simplex([0.5, 0.5]) and on_simplex([1.0, 0.0])


@pytest.mark.parametrize("off", [0.9e-6, -0.9e-6])
def test_rounding_is_forgiven_up_to_a_millionth(off: float) -> None:
    assert on_simplex([0.5, 0.5 + off]) and not on_simplex([0.5, 0.5 + 1.2 * off])
    assert on_simplex([-abs(off), 1 + abs(off)]) and not on_simplex(
        [-1.2 * abs(off), 1 + 1.2 * abs(off)]
    )


@pytest.mark.parametrize(
    ("experts", "steps"), [(1, 1), (2, 499), (3, 30), (30, 2), (31, 2), (32, 1), (40, 1)]
)
def test_the_finest_grid_of_at_most_500_points(experts: int, steps: int) -> None:
    assert mixtures.grid_steps(experts) == steps
    assert experts in (1, 32, 40) or comb(steps + experts - 1, steps) <= 500 < comb(
        steps + experts, steps + 1
    )


def test_what_experts_say_becomes_chances_of_the_labels() -> None:
    # samples, experts, classes
    said = np.log([[[0.2, 0.8], [0.5, 0.5]], [[0.9, 0.1], [0.3, 0.7]], [[0.6, 0.4], [1.0, 1e-300]]])
    np.testing.assert_allclose(
        mixtures.chances(said, [1, 0, 1], CLASSES), [[0.8, 0.5], [0.9, 0.3], [0.4, 1e-12]]
    )
    np.testing.assert_allclose(
        mixtures.label_chances([[2000.0, 2000.0], [1000.0, 1000.0 + log(3)]], [0, 1]), [0.5, 0.75]
    )
    assert mixtures.chances(np.empty((0, 2, 3)), np.empty(0), CLASSES).shape == (0, 2)
    assert mixtures.chances(np.empty((0, 2, 1)), np.empty(0), VALUES).shape == (0, 2)


def test_of_numbers_they_are_densities_around_the_predictions() -> None:
    predictions, y = (
        np.array([[1.0], [2.0], [5.0]]),
        np.array([2.0, 4.0, 3.0]),
    )  # errors 1, 2, 2: a variance of 3
    np.testing.assert_allclose(
        mixtures.number_chances(predictions, y), norm.pdf(y, predictions[:, 0], 3**0.5)
    )
    np.testing.assert_allclose(
        mixtures.number_chances(predictions, [1.0, 2.0, 5.0]), norm.pdf(np.zeros(3), 0, 1e-6)
    )  # all exact
    both = np.stack([predictions, predictions + 1], 1)
    expected = [mixtures.number_chances(one, y) for one in (predictions, predictions + 1)]
    np.testing.assert_allclose(
        mixtures.chances(both, y, VALUES), np.transpose(expected), atol=2e-12
    )


def test_a_client_with_too_few_samples_says_nothing() -> None:
    q, grid = chances(3, 2, 8), simplex_grid(2)
    mean = posterior_mean(log_likelihoods(q, grid), grid)
    for least in (0, 1, 3):
        np.testing.assert_array_equal(mixtures.evidence(q, least=least), mean)
    np.testing.assert_array_equal(
        mixtures.evidence(q, pooled=True, least=3), log_likelihoods(q, grid)
    )
    assert mixtures.evidence(q, least=4).tolist() == [0.0, 0.0]
    assert mixtures.evidence(q, pooled=True, least=4).tolist() == [0.0] * 500
    assert mixtures.evidence(q[:0]).tolist() == [0.0, 0.0], "one sample at least, unless told"


def test_the_prior_is_agreed_among_those_that_speak_of_the_same_experts() -> None:
    fair, other, silent, more = (
        np.array([0.2, 0.8]),
        np.array([0.6, 0.4]),
        np.zeros(2),
        np.array([0.2, 0.3, 0.5]),
    )
    np.testing.assert_allclose(
        mixtures.agreed([(fair, 2), (other, 2), (silent, 2), (more, 3)]), [0.4, 0.6]
    )
    np.testing.assert_allclose(mixtures.agreed([(silent, 2), (more, 3), (silent, 2)]), [0.5, 0.5])
    one, two, grid = chances(4, 2, 9), chances(6, 2, 10), simplex_grid(2)
    said = [(log_likelihoods(one, grid), 2), (log_likelihoods(two, grid), 2), (np.zeros(7), 2)]
    all_samples = posterior_mean(log_likelihoods(np.vstack([one, two]), grid), grid)
    np.testing.assert_allclose(mixtures.agreed(said, pooled=True), all_samples)


def test_weights_are_those_after_200_steps() -> None:
    q, prior = (
        np.array([[0.5, 0.49], [0.5, 0.51], [0.2, 0.21]]),
        [0.9, 0.1],
    )  # experts so alike that EM has far to go
    np.testing.assert_array_equal(
        mixture_weights(q, prior, 0.1), mixture_weights(q, prior, 0.1, steps=200)
    )
    assert not np.array_equal(
        mixture_weights(q, prior, 0.1), mixture_weights(q, prior, 0.1, steps=201)
    )

"""Mixture weights against a general optimiser and plain loops."""

from __future__ import annotations

from itertools import pairwise, product
from math import comb, exp, log

import numpy as np
import pytest
from scipy.optimize import minimize

from equipoise.weighting import log_likelihoods, mixture_weights, on_simplex, posterior_mean, simplex_grid


def chances(n: int, experts: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(1e-3, 1, (n, experts)) ** 2


def penalised(w: np.ndarray, q: np.ndarray, prior: np.ndarray, kappa: float) -> float:
    return sum(log(sum(w[j] * q[i, j] for j in range(len(w)))) for i in range(len(q))) + kappa * sum(
        p * log(max(one, 1e-300)) for p, one in zip(prior, w, strict=True)
    )


@pytest.mark.parametrize(("experts", "steps"), [(1, 5), (2, 5), (3, 4), (4, 5), (5, 3)])
def test_the_grid_is_the_simplex_in_equal_steps_pulled_inside(experts: int, steps: int) -> None:
    grid = simplex_grid(experts, steps)
    wanted = {tuple(k) for k in product(range(steps + 1), repeat=experts) if sum(k) == steps}
    assert len(grid) == comb(steps + experts - 1, experts - 1) == len(wanted)
    assert {tuple(int(k) for k in row) for row in ((grid - 0.05 / experts) / 0.95 * steps).round(9)} == wanted
    np.testing.assert_allclose(grid.sum(1), 1)
    assert grid.min() >= 0.05 / experts - 1e-15


def test_likelihoods_and_their_posterior_mean_are_those_of_plain_loops() -> None:
    q, grid = chances(12, 3, 0), simplex_grid(3, 4)
    table = [sum(log(sum(w[j] * row[j] for j in range(3))) for row in q) for w in grid]
    np.testing.assert_allclose(log_likelihoods(q, grid), table)
    total = sum(exp(value) for value in table)
    mean = [sum(exp(value) * w[j] for value, w in zip(table, grid, strict=True)) / total for j in range(3)]
    np.testing.assert_allclose(posterior_mean(log_likelihoods(q, grid), grid), mean)


def test_without_samples_the_posterior_is_flat_and_many_samples_do_not_underflow() -> None:
    grid = simplex_grid(4, 5)
    np.testing.assert_allclose(posterior_mean(log_likelihoods(np.empty((0, 4)), grid), grid), np.full(4, 0.25))
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
        lambda z: -penalised(np.exp(z - z.max()) / np.exp(z - z.max()).sum(), q, prior, kappa), np.zeros(4), method="BFGS", tol=1e-9
    )
    assert on_simplex(found) and penalised(found, q, prior, kappa) >= -free.fun - 1e-8
    np.testing.assert_allclose(found, np.exp(free.x - free.x.max()) / np.exp(free.x - free.x.max()).sum(), atol=1e-4)


def test_the_penalised_likelihood_never_falls() -> None:
    q, prior = chances(25, 4, 3), np.array([0.7, 0.1, 0.1, 0.1])
    values = [penalised(mixture_weights(q, prior, 10.0, steps=n), q, prior, 10.0) for n in range(60)]
    assert all(later >= earlier - 1e-12 for earlier, later in pairwise(values)) and values[-1] > values[0] + 0.1


def test_equal_experts_no_samples_or_a_strong_prior_give_the_prior() -> None:
    prior = np.array([0.2, 0.5, 0.3])
    np.testing.assert_allclose(mixture_weights(np.tile(chances(9, 1, 4), (1, 3)), prior, 10.0), prior)
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


@pytest.mark.parametrize("wrong", [[0.5, 0.6], [1.5, -0.5], [np.nan, 1.0], [np.inf, 0.0], [0.0, 0.0], [0.5, 0.5001]])
def test_what_is_off_the_simplex_is_seen(wrong: list[float]) -> None:
    assert not on_simplex(wrong) and on_simplex([0.5, 0.5]) and on_simplex([1.0, 0.0])

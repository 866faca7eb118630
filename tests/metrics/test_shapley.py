"""Shapley values against the mean over all orders, and what estimates of them are exact for."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from equipoise.metrics.shapley import (
    Coalition,
    coalitions,
    guided_shapley,
    leave_one_out,
    shapley_values,
)


def random_game(clients: str, seed: int) -> dict[Coalition, float]:
    rng = np.random.default_rng(seed)
    return {coalition: float(rng.normal()) for coalition in coalitions(list(clients))}


def mean_over_orders(game: dict[Coalition, float], clients: str) -> dict[str, float]:
    totals = dict.fromkeys(clients, 0.0)
    orders = list(permutations(clients))
    for order in orders:
        for position, client in enumerate(order):
            totals[client] += (
                game[frozenset(order[: position + 1])] - game[frozenset(order[:position])]
            )
    return {client: total / len(orders) for client, total in totals.items()}


@pytest.mark.parametrize("clients", ["a", "ab", "abcd", "abcdef"])
def test_values_are_the_mean_over_all_orders_and_sum_up(clients: str) -> None:
    game = random_game(clients, len(clients))
    values = shapley_values(game, list(clients))
    assert values == pytest.approx(mean_over_orders(game, clients))
    assert sum(values.values()) == pytest.approx(game[frozenset(clients)] - game[frozenset()])


def test_leaving_one_out_is_what_the_others_lose() -> None:
    game = random_game("abc", 1)
    assert leave_one_out(game, list("abc"))["b"] == game[frozenset("abc")] - game[frozenset("ac")]


def test_guided_permutations_are_exact_for_two_clients_and_for_sums() -> None:
    rng = np.random.default_rng(0)
    game = random_game("ab", 3)
    values = guided_shapley(game.__getitem__, list("ab"), rng, 1, 0.0)
    assert values == pytest.approx(shapley_values(game, list("ab")))
    worth = {"a": 1.0, "b": -2.0, "c": 0.5}
    added = guided_shapley(lambda own: sum(worth[c] for c in own), list("abc"), rng, 1, 0.0)
    assert added == pytest.approx(worth)


def test_more_permutations_come_closer_and_truncation_saves_values() -> None:
    game = random_game("abcde", 5)
    exact = shapley_values(game, list("abcde"))
    asked: list[Coalition] = []

    def value(coalition: Coalition) -> float:
        asked.append(coalition)
        return game[coalition]

    estimate = guided_shapley(value, list("abcde"), np.random.default_rng(0), 400, 0.0)
    assert estimate == pytest.approx(exact, abs=0.1)
    assert len(asked) == len(set(asked)), "each coalition is valued once"
    asked.clear()
    guided_shapley(value, list("abcde"), np.random.default_rng(0), 400, 1e9)
    assert asked == [frozenset("abcde"), frozenset()]

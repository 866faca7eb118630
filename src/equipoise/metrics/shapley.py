"""Contributions of clients: Shapley values of a game, and cheap estimates of them.

A game gives every coalition of clients a value, such as the accuracy of the model that they train.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import comb

import numpy as np

Coalition = frozenset[str]
Game = Mapping[Coalition, float]


def coalitions(clients: Sequence[str]) -> list[Coalition]:
    """Return all coalitions of clients, the smallest first; the empty one is among them.

    >>> [sorted(coalition) for coalition in coalitions(["a", "b"])]
    [[], ['a'], ['b'], ['a', 'b']]
    """
    every = []
    for size in range(len(clients) + 1):
        every += [frozenset(members) for members in combinations(clients, size)]
    return every


def shapley_values(game: Game, clients: Sequence[str]) -> dict[str, float]:
    """Return the exact Shapley value of each client (Shapley, 1953).

    It is what a client adds to a coalition, averaged over all orders in which clients may join.
    The values sum up to what all together are worth more than nobody.

    Args:
        game: Coalition -> value, of all coalitions.
        clients: The clients.

    >>> game = {frozenset(): 0.0, frozenset("a"): 1.0, frozenset("b"): 1.0, frozenset("ab"): 4.0}
    >>> shapley_values(game, ["a", "b"])
    {'a': 2.0, 'b': 2.0}
    """
    count = len(clients)
    values = {}
    for client in clients:
        others = [other for other in clients if other != client]
        total = 0.0
        for coalition in coalitions(others):
            share = 1 / (count * comb(count - 1, len(coalition)))
            total += share * (game[coalition | {client}] - game[coalition])
        values[client] = total
    return values


def leave_one_out(game: Game, clients: Sequence[str]) -> dict[str, float]:
    """Return what all clients lose together if one of them leaves.

    >>> game = {frozenset("a"): 1.0, frozenset("b"): 3.0, frozenset("ab"): 4.0}
    >>> leave_one_out(game, ["a", "b"])
    {'a': 1.0, 'b': 3.0}
    """
    whole = frozenset(clients)
    return {client: game[whole] - game[whole - {client}] for client in clients}


def guided_shapley(
    value: Callable[[Coalition], float],
    clients: Sequence[str],
    rng: np.random.Generator,
    permutations: int,
    truncation: float,
) -> dict[str, float]:
    """Return an estimate of Shapley values from permutations (GTG-Shapley, Algorithm 1).

    Permutations are guided: each client stands first equally often. Within a permutation the rest
    counts as adding nothing once the value is as close to that of all clients as `truncation`.

    Zelei Liu, Yuanyuan Chen, Han Yu, Yang Liu and Lizhen Cui. GTG-Shapley: Efficient and Accurate
    Participant Contribution Evaluation in Federated Learning. ACM Transactions on Intelligent
    Systems and Technology 13(4), 2022. https://arxiv.org/abs/2109.02053

    Args:
        value: Coalition -> value; called once for each coalition.
        clients: The clients.
        rng: Draws the permutations.
        permutations: How often each client stands first.
        truncation: The difference below which a permutation ends early.
    """
    known: dict[Coalition, float] = {}

    def cached(coalition: Coalition) -> float:
        if coalition not in known:
            known[coalition] = value(coalition)
        return known[coalition]

    whole = cached(frozenset(clients))
    totals = dict.fromkeys(clients, 0.0)
    for _ in range(permutations):
        for first in clients:
            others = [client for client in clients if client != first]
            order = [first, *(others[k] for k in rng.permutation(len(others)))]
            coalition: Coalition = frozenset()
            before = cached(coalition)
            for client in order:
                if abs(whole - before) < truncation:
                    break
                coalition |= {client}
                after = cached(coalition)
                totals[client] += after - before
                before = after
    return {client: total / (permutations * len(clients)) for client, total in totals.items()}

"""Participation of clients and their weights; `gini` and `jain` measure how even they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np


def participation(joined: Iterable[Iterable[str]], ids: Sequence[str]) -> dict[str, int]:
    """Return the number of rounds in which each client's reply counted.

    Args:
        joined: The clients whose replies counted, per round.
        ids: All clients; those that never joined have 0.

    >>> participation([["a", "b"], ["a"]], ids=["a", "b", "c"])
    {'a': 2, 'b': 1, 'c': 0}
    """
    counts = Counter(client for cohort in joined for client in set(cohort))
    _refuse_strangers(counts, ids)
    return {client: counts[client] for client in ids}


def weights_received(rounds: Sequence[Mapping[str, float]], ids: Sequence[str]) -> dict[str, float]:
    """Return each client's share of the aggregate, averaged over rounds.

    A round that a client missed counts as 0, so the shares sum to one.

    >>> weights_received([{"a": 3, "b": 1}, {"a": 2}], ids=["a", "b", "c"])
    {'a': 0.875, 'b': 0.125, 'c': 0.0}
    """
    total = dict.fromkeys(ids, 0.0)
    for number, weights in enumerate(rounds, start=1):
        _refuse_strangers(weights, ids)
        whole = float(sum(weights.values()))
        if not (np.isfinite(whole) and whole > 0):
            raise ValueError(
                f"expected weights of a positive, finite sum in every round, got {whole:g} in "
                f"round {number}; leave out given-up rounds"
            )
        for client, weight in weights.items():
            total[client] += weight / whole / len(rounds)
    return total


def _refuse_strangers(seen: Iterable[str], ids: Sequence[str]) -> None:
    if strangers := sorted(set(seen) - set(ids)):
        raise ValueError(
            f"expected only the clients in ids, got {strangers[:5]} besides; pass the ids of all "
            "clients of the run"
        )

"""The cost of a run: bytes in both directions and seconds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from equipoise.metrics.undefined import undefined
from equipoise.validation.arrays import vector


def cost(
    rounds: ArrayLike,
    bytes_down: ArrayLike,
    bytes_up: ArrayLike,
    client_seconds: ArrayLike,
    server_seconds: ArrayLike,
) -> dict[str, float]:
    """Return the totals of a run.

    `slowest_seconds` adds up the slowest client of each round: the waiting time of a server if all
    clients work at once. `seconds_per_round` is that plus the server's time, per round.

    Args:
        rounds: The round of each row; there is one row per client and round.
        bytes_down: Bytes received by the client.
        bytes_up: Bytes sent by the client.
        client_seconds: Seconds of the client.
        server_seconds: Seconds of the server per round.

    >>> cost(rounds=[1, 1, 2], bytes_down=[8, 8, 8], bytes_up=[4, 4, 4], client_seconds=[1, 3, 2], server_seconds=[0.5, 0.5])
    ... # doctest: +NORMALIZE_WHITESPACE
    {'bytes_down': 24.0, 'bytes_up': 12.0, 'client_seconds': 6.0, 'slowest_seconds': 5.0, 'server_seconds': 1.0,
     'seconds_per_round': 3.0}
    """
    columns = {
        "bytes_down": vector(bytes_down),
        "bytes_up": vector(bytes_up),
        "client_seconds": vector(client_seconds),
    }
    of_round, server = vector(rounds), vector(server_seconds)
    lengths = {name: len(column) for name, column in columns.items()}
    if set(lengths.values()) != {len(of_round)}:
        raise ValueError(
            f"expected one row per client and round in every column, got rounds: {len(of_round)} "
            f"and {lengths}"
        )
    if len(np.unique(of_round)) > len(server):
        raise ValueError(
            f"expected server seconds for every round, got {len(server)} for "
            f"{len(np.unique(of_round))} rounds"
        )
    slowest = float(
        sum(columns["client_seconds"][of_round == number].max() for number in np.unique(of_round))
    )
    totals = {name: float(column.sum()) for name, column in columns.items()}
    whole = slowest + float(server.sum())
    per_round = (
        whole / len(server)
        if len(server)
        else undefined("seconds per round are undefined: there was no round")
    )
    return {
        **totals,
        "slowest_seconds": slowest,
        "server_seconds": float(server.sum()),
        "seconds_per_round": per_round,
    }

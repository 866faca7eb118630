"""Client sampling: a script, or a draw among the clients that are available."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from equipoise.experiment import Participation
from equipoise.streams import stream


def choose(
    settings: Participation,
    everyone: Sequence[str],
    seed: int,
    number: int,
    attempt: int,
    present: Collection[str] | None = None,
) -> list[str]:
    """Return the clients of an attempt at a round, in the order of all clients.

    Args:
        settings: The section of the experiment.
        everyone: All clients.
        seed: The seed of the experiment.
        number: The round.
        attempt: The attempt at it.
        present: The clients that can be reached; None if all can. A draw is among these; a
            script is followed as it is.
    """
    if number in settings.script:
        scripted = set(settings.script[number].clients)
        return [client for client in everyone if client in scripted]
    ids = np.array(everyone, dtype=object)
    name = ("cohort", number, attempt) if attempt else ("cohort", number)
    draw = stream(seed, *name)
    available = ids
    if settings.availability < 1:
        available = ids[draw.random(len(ids)) < settings.availability]
    if present is not None and len(present) < len(ids):
        reachable = set(present)
        available = np.array([client for client in available if client in reachable], dtype=object)
    count = min(settings.size(len(ids)), len(available))
    if count == len(ids):
        return [str(client) for client in ids]
    chosen = draw.choice(len(available), size=count, replace=False)
    return [str(available[index]) for index in sorted(chosen)]

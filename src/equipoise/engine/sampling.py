"""Whom a round asks: a script, or a draw among those who are available."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.experiment import Participation
from equipoise.streams import stream


def choose(
    settings: Participation, everyone: Sequence[str], seed: int, number: int, attempt: int
) -> list[str]:
    """The clients that an attempt at a round asks, in the order of all."""
    if number in settings.script:
        wanted = set(settings.script[number].clients)
        return [client for client in everyone if client in wanted]
    ids = np.array(everyone, dtype=object)
    draw = stream(seed, "cohort", number, *((attempt,) if attempt else ()))
    available = (
        ids if settings.availability == 1 else ids[draw.random(len(ids)) < settings.availability]
    )
    count = min(settings.size(len(ids)), len(available))
    if count == len(ids):
        return [str(client) for client in ids]
    chosen = draw.choice(len(available), size=count, replace=False)
    return [str(available[index]) for index in sorted(chosen)]

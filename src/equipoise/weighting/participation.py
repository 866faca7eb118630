"""Weights of CoRe-Fed: rare participation and agreement with the cohort count more."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from equipoise.validation.arrays import Numbers, Values, float64, like
from equipoise.weighting.shares import softmax


def participation_alignment(
    frequency: Values, alignment: Numbers, gamma: float = 0.5, k: float = 2.0
) -> Values:
    """Return weights proportional to frequency^-gamma * sigmoid(k * alignment) (Eq. 11).

    Args:
        frequency: The participation frequency of each client.
        alignment: The alignment rho of each client.
        gamma: The exponent of the frequency.
        k: The slope of the sigmoid.

    >>> participation_alignment([0.2, 1.0], [0.0, 0.0], gamma=2, k=0).round(6)
    array([0.961538, 0.038462])
    """
    rate, agreement = float64(frequency), float64(alignment)
    if rate.shape != agreement.shape or rate.ndim != 1 or rate.size == 0:
        raise ValueError(
            f"frequency and alignment need one number per client; got shapes {rate.shape} and "
            f"{agreement.shape}"
        )
    if not (rate > 0).all() or not np.isfinite(rate).all() or not np.isfinite(agreement).all():
        raise ValueError(
            "frequencies have to be positive and alignments finite (raise a frequency of 0 to 1 "
            f"/ window); got {rate}, {agreement}"
        )
    return like(softmax(-gamma * np.log(rate) - np.logaddexp(0, -k * agreement)), frequency)


def participation_window(joined: Sequence[Collection[str]]) -> int:
    """Return the number of rounds over which participation is counted, tau of CoRe-Fed.

    It is the number of clients seen so far per client of the latest cohort, and never reaches
    before the first round.

    Args:
        joined: The clients of every round, the current one last.

    >>> participation_window([["a", "b"], ["c", "d"]])
    2
    """
    if not joined or not joined[-1]:
        raise ValueError(
            "joined has to hold the clients of every round up to the current one, which needs at "
            "least one client"
        )
    seen = set().union(*joined)
    return min(max(1, len(seen) // len(set(joined[-1]))), len(joined))


def participation_frequency(
    joined: Sequence[Collection[str]], ids: Sequence[str]
) -> NDArray[np.float64]:
    """Return the share of the window's rounds in which each client took part (Eq. 10).

    Args:
        joined: The clients of every round, the current one last.
        ids: The clients.

    >>> participation_frequency([["a", "b"], ["a", "c"], ["a", "d"]], ["a", "d", "b"])
    array([1. , 0.5, 0. ])
    """
    window = participation_window(joined)
    return np.array(
        [
            sum(ids_of_round in cohort for cohort in joined[-window:]) / window
            for ids_of_round in ids
        ]
    )

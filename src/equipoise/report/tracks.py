"""Tracks: one line per client on a common scale, from its value alone to its value together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.metrics import Metric
from equipoise.report.cards import Card
from equipoise.report.drawing import least_range


@dataclass(frozen=True)
class Track:
    """Positions on the common scale, in percent from its left end.

    Attributes:
        alone: The value of training alone.
        together: The value of the run.
        span: The interval of the value of the run; None if it is not known.
    """

    alone: float
    together: float
    span: tuple[float, float] | None

    @property
    def way(self) -> tuple[float, float]:
        """Left end and length of the way from alone to together."""
        return min(self.alone, self.together), abs(self.alone - self.together)


@dataclass(frozen=True)
class Scale:
    """The tracks of all clients with a gain, and the values at the ends of their common scale."""

    low: float
    high: float
    tracks: dict[str, Track]

    @property
    def spans(self) -> bool:
        """True if any interval is known."""
        return any(track.span is not None for track in self.tracks.values())


def span_of(card: Card, metric: Metric) -> tuple[float, float] | None:
    """Return the interval of the value together; None if it is not known.

    It is the interval of the gain, counted from the value alone; no share is above 100 %.

    >>> from equipoise.metrics.registry import find
    >>> span_of(Card("a", 9, 0.7, 0.6, 0.1, -0.1, 0.5), find("accuracy"))
    (0.5, 1.0)
    >>> span_of(Card("a", 9, 2.0, 3.0, 1.0, 0.5, 1.5), find("rmse"))
    (1.5, 2.5)
    """
    if card.alone is None or card.low is None or card.high is None:
        return None
    changes = (-card.high, -card.low) if metric.lower_is_better else (card.low, card.high)
    low, high = (round(card.alone + change, 12) for change in changes)
    if metric.unit == "%":
        return max(0.0, low), min(1.0, high)
    return low, high


def scale_of(cards: Sequence[Card], metric: Metric) -> Scale | None:
    """Return the tracks of the clients; None if no client has a gain."""
    known = [card for card in cards if card.gain is not None and math.isfinite(card.gain)]
    spans = {card.client: span_of(card, metric) for card in known}
    ends: list[float] = []
    for card in known:
        ends.append(card.value)
        if card.alone is not None:
            ends.append(card.alone)
        ends += spans[card.client] or ()
    if not ends:
        return None
    low = min(ends)
    high = max(ends)
    missing = least_range(metric, np.array(ends) * metric.scale) / metric.scale - (high - low)
    if missing > 0:
        low, high = low - missing / 2, high + missing / 2

    def position(value: float) -> float:
        return 100 * (value - low) / (high - low) if high > low else 50.0

    tracks = {}
    for card in known:
        if card.alone is None:
            continue
        span = spans[card.client]
        shown = None if span is None else (position(span[0]), position(span[1]))
        tracks[card.client] = Track(position(card.alone), position(card.value), shown)
    return Scale(low, high, tracks)

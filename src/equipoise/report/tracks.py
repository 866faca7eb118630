"""A line per client on one scale: from what it reaches alone to what it has together, and where that could lie with other test samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.metrics import Metric
from equipoise.report.cards import Card


@dataclass(frozen=True)
class Track:
    """Places on the common scale, in percent from its left end; the span is None where it is not known."""

    alone: float
    together: float
    span: tuple[float, float] | None

    @property
    def way(self) -> tuple[float, float]:
        """Left end and length of the way from alone to together."""
        return min(self.alone, self.together), abs(self.alone - self.together)


@dataclass(frozen=True)
class Scale:
    """The tracks of all clients that have a gain, and the values at the ends of their common scale."""

    low: float
    high: float
    tracks: dict[str, Track]

    @property
    def spans(self) -> bool:
        """Whether any interval is known."""
        return any(track.span is not None for track in self.tracks.values())


def span_of(card: Card, metric: Metric) -> tuple[float, float] | None:
    """Where the value together could lie: the interval of the gain, counted from what the client reaches alone; no share is above 100 %.

    >>> from equipoise.metrics.registry import find
    >>> span_of(Card("a", 9, 0.7, 0.6, 0.1, -0.1, 0.5), find("accuracy")), span_of(Card("a", 9, 2.0, 3.0, 1.0, 0.5, 1.5), find("rmse"))
    ((0.5, 1.0), (1.5, 2.5))
    """
    if card.alone is None or card.low is None or card.high is None:
        return None
    ends = (-card.high, -card.low) if metric.lower_is_better else (card.low, card.high)
    low, high = (round(card.alone + end, 12) for end in ends)
    return (max(0.0, low), min(1.0, high)) if metric.unit == "%" else (low, high)


def scale_of(cards: Sequence[Card], metric: Metric) -> Scale | None:
    """None where no client has a gain."""
    known = [
        (card, card.alone, span_of(card, metric))
        for card in cards
        if card.gain is not None and math.isfinite(card.gain)
    ]
    ends = [
        end
        for card, alone, span in known
        for end in (card.value, alone, *(span or ()))
        if end is not None
    ]
    if not ends:
        return None
    low, high = min(ends), max(ends)

    def place(value: float) -> float:
        return 100 * (value - low) / (high - low) if high > low else 50.0

    tracks = {
        card.client: Track(
            place(alone),
            place(card.value),
            None if span is None else (place(span[0]), place(span[1])),
        )
        for card, alone, span in known
        if alone is not None
    }
    return Scale(low, high, tracks)

"""A line per client on one scale: from what it reaches alone to what it has together, and where that could lie with other test samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def span_of(card: Card) -> tuple[float, float] | None:
    """Where the value together could lie: the interval of the gain, counted from what the client reaches alone.

    >>> span_of(Card("a", 9, 0.7, 0.6, 0.1, -0.1, 0.3)), span_of(Card("a", 9, 2.0, 3.0, 1.0, 0.5, 1.5))
    ((0.5, 0.9), (1.5, 2.5))
    """
    if card.alone is None or card.low is None or card.high is None or card.gain is None:
        return None
    lower_is_better = card.gain * (card.value - card.alone) < 0
    ends = (card.alone - card.high, card.alone - card.low) if lower_is_better else (card.alone + card.low, card.alone + card.high)
    return round(ends[0], 12), round(ends[1], 12)


def scale_of(cards: Sequence[Card]) -> Scale | None:
    """None where no client has a gain."""
    known = [(card, card.alone, span_of(card)) for card in cards if card.gain is not None]
    ends = [end for card, alone, span in known for end in (card.value, alone, *(span or ())) if end is not None]
    if not ends:
        return None
    low, high = min(ends), max(ends)

    def place(value: float) -> float:
        return 100 * (value - low) / (high - low) if high > low else 50.0

    tracks = {
        card.client: Track(place(alone), place(card.value), None if span is None else (place(span[0]), place(span[1])))
        for card, alone, span in known
        if alone is not None
    }
    return Scale(low, high, tracks)

"""What a report says about the clients of one run, in numbers and in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.comparison.entries import Entry
from equipoise.comparison.formats import NOTHING, figure
from equipoise.comparison.measures import in_unit_of
from equipoise.metrics import Metric, bootstrap_counts, participation, weights_received
from equipoise.runs import Run

MOST_LISTED, AT_EACH_END = 1_000, 100
DRAWS_SEED = 0  # intervals are part of a report's text: the same run gives the same report


@dataclass(frozen=True)
class Card:
    """The report card of one client; None where a number is not known."""

    client: str
    samples: int | None
    value: float
    alone: float | None = None
    gain: float | None = None  # positive is better, also for errors
    low: float | None = None  # of the gain, over other test samples of the same client
    high: float | None = None
    weight: float | None = None  # mean share of the aggregate over all rounds
    rounds: int = 0  # in which its reply counted
    rejected: int = 0

    @property
    def verdict(self) -> str:
        return (
            ""
            if self.gain is None
            else "gains"
            if self.gain > 0
            else "loses"
            if self.gain < 0
            else "equal"
        )

    @property
    def clear(self) -> bool:
        """Whether the gain or loss is beyond the luck of a finite test set."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def cards(entry: Entry, run: Run) -> list[Card]:
    """One card per client, most harmed first; without a reference, lowest value first."""
    gains, alone = entry.gains(), entry.reference or {}
    samples = dict(zip(run.clients, run.store.meta("sizes")["train"], strict=True))
    rounds = run.rounds()
    counted = participation([row["joined"] for row in rounds], run.clients)
    weights = _weights(run)
    rejected = Counter(row["client"] for row in run.rejected())
    intervals = gain_intervals(entry, run)
    # of a diverged model there is none
    gains = {client: gain for client, gain in gains.items() if not math.isnan(gain)}
    found = [
        Card(client, samples.get(client), value, alone.get(client), gains.get(client), *intervals.get(client, (None, None)),
             weights.get(client), counted.get(client, 0), rejected[client])
        for client, value in entry.run.values.items()
    ]  # fmt: skip
    badness = -1 if entry.lower else 1
    known = any(card.gain is not None for card in found)
    return sorted(found, key=lambda card: _order(card.gain if known else badness * card.value))


def extremes(found: Sequence[Card]) -> list[Card]:
    """The cards that a page lists: all, or of very many the first and the last."""
    return (
        list(found) if len(found) <= MOST_LISTED else [*found[:AT_EACH_END], *found[-AT_EACH_END:]]
    )


def in_quantiles(found: Sequence[Card], metric: Metric) -> str:
    """What is said of the clients between the extremes; nothing where all are listed."""
    values = np.array([card.value for card in found])
    if len(found) <= MOST_LISTED or np.isnan(values).any():
        return ""
    shares = [
        f"{share} % have at most {written(float(np.quantile(values, share / 100)), metric)}"
        for share in (1, 10, 50, 90, 99)
    ]
    return f"Of {len(found):,} clients the first and the last {AT_EACH_END} are listed. {metric.name}: {', '.join(shares)}."


def _order(value: float | None) -> float:
    return -math.inf if value is None or math.isnan(value) else value


def gain_intervals(entry: Entry, run: Run) -> dict[str, tuple[float | None, float | None]]:
    """Client -> 95 % interval of its gain over other test sets of its size; accuracies only, since errors need each sample."""
    gains, alone = entry.gains(), entry.reference or {}
    if not gains or entry.run.metric != "accuracy":
        return {}
    own = dict(zip(run.clients, run.store.meta("sizes")["test"], strict=True))
    totals = [run.store.meta("shared test") or own[client] for client in gains]
    right = [
        [round(values[client] * n) for client, n in zip(gains, totals, strict=True)]
        for values in (alone, entry.run.values)
    ]

    def change(a: np.ndarray, t: np.ndarray) -> Mapping[str, float]:
        return dict(zip(gains, (t - a).tolist(), strict=True))

    found = bootstrap_counts(change, *right, totals=totals, seed=DRAWS_SEED)
    return {client: (interval.low, interval.high) for client, interval in found.items()}


def _weights(run: Run) -> dict[str, float]:
    """Client -> mean share of the aggregate; empty for a method that weighs nobody."""
    by_round: dict[int, dict[str, float]] = {}
    for row in run.weights():
        by_round.setdefault(row["round"], {})[row["client"]] = row["share"]
    return (
        weights_received([row for row in by_round.values() if sum(row.values()) > 0], run.clients)
        if by_round
        else {}
    )


def headline(found: Sequence[Card], metric: Metric) -> str:
    """Who gains and who loses, in a sentence that says no more than one run can tell.

    >>> from equipoise.metrics.registry import find
    >>> headline([Card("3", 50, 0.70, 0.72, -0.02), Card("1", 80, 0.9, 0.8, 0.1)], find("accuracy"))
    'In this one run 1 of 2 clients gains; client 3 loses 2.0 points.'
    >>> headline([Card("3", 50, 0.70, 0.72, -0.02, -0.2, 0.1), Card("1", 80, 0.9, 0.8, 0.1, 0.0, 0.2)], find("accuracy"))
    'In this one run 1 of 2 clients gains; client 3 loses 2.0 points; for none of them can it be told from the luck of a finite test set.'
    >>> headline([Card("3", 50, 0.70)], find("accuracy"))
    'No run of training alone is known, so it cannot be said who gains; in this one run the lowest accuracy is 70.0 %, at client 3.'
    """
    known = [card for card in found if card.gain is not None]
    if not known:
        extreme = f"the {'highest' if metric.lower_is_better else 'lowest'} {metric.name} is {written(found[0].value, metric)}"
        return f"No run of training alone is known, so it cannot be said who gains; in this one run {extreme}, at client {found[0].client}."
    gain, lose = (sum(card.verdict == verdict for card in known) for verdict in ("gains", "loses"))
    text = (
        f"In this one run all {len(known):,} clients gain"
        if gain == len(known) > 1
        else f"In this one run {gain:,} of {len(known):,} clients {'gains' if gain == 1 else 'gain'}"
    )
    worst = min(known, key=lambda card: card.gain or 0.0)
    amount = points(abs(worst.gain or 0.0), metric)
    if lose:
        text += (
            f"; client {worst.client} loses {amount}"
            if lose == 1
            else f"; {lose:,} lose, client {worst.client} most: {amount}"
        )
    elif gain < len(known):
        text += "; nobody loses"
    judged = [card for card in known if card.low is not None and card.gain]
    if judged and not any(card.clear for card in judged):
        text += "; for none of them can it be told from the luck of a finite test set"
    elif lose and worst.low is not None and not worst.clear:
        text += ", which cannot be told from the luck of its finite test set"
    return f"{text}."


def doubt(found: Sequence[Card]) -> str:
    """How many gains and losses stand beyond the luck of finite test sets."""
    judged = [card for card in found if card.low is not None]
    if not judged:
        return ""
    clear = {
        verdict: sum(card.clear and card.verdict == verdict for card in judged)
        for verdict in ("gains", "loses")
    }
    of = {
        verdict: sum(card.verdict == verdict for card in judged) for verdict in ("gains", "loses")
    }
    parts = [
        f"{clear[verdict]:,} of the {of[verdict]:,} {noun}"
        for verdict, noun in (("gains", "gains"), ("loses", "losses"))
        if of[verdict]
    ]
    return (
        f"Beyond the luck of finite test sets (95 % interval) are {' and '.join(parts)}."
        if parts
        else ""
    )


def written(value: float | None, metric: Metric) -> str:
    """A value with its unit."""
    text = figure(value, in_unit_of(metric))
    return text if not metric.unit or text == NOTHING else f"{text} {metric.unit}"


def points(value: float, metric: Metric) -> str:
    """A difference of two values with its unit."""
    return f"{figure(value, in_unit_of(metric))}{' points' if metric.unit == '%' else ''}"

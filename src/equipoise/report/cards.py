"""What a report says about the clients of one run, in numbers and in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.comparison.entries import Entry
from equipoise.comparison.formats import NOTHING, figure
from equipoise.comparison.measures import in_unit_of
from equipoise.metrics import SIGNIFICANT, Metric, participation, weights_received
from equipoise.runs import Run
from equipoise.runs.summary import no_test

MOST_LISTED, AT_EACH_END = 1_000, 100


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
    p: float | None = None  # of no gain and no loss; None where no test exists

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
        return self.p is not None and self.p < SIGNIFICANT


def cards(entry: Entry, run: Run) -> list[Card]:
    """One card per client, most harmed first; without a reference, lowest value first."""
    gains, alone = entry.gains(), entry.reference or {}
    samples = dict(zip(run.clients, run.store.meta("sizes")["train"], strict=True))
    rounds = run.rounds()
    counted = participation([row["joined"] for row in rounds], run.clients)
    weights = _weights(run)
    rejected = Counter(row["client"] for row in run.rejected())
    tested = entry.tested_gains()
    # of a diverged model there is none
    gains = {client: gain for client, gain in gains.items() if not math.isnan(gain)}
    found = []
    for client, value in entry.run.values.items():
        test = tested.get(client)
        found.append(
            Card(
                client,
                samples.get(client),
                value,
                alone.get(client),
                gains.get(client),
                low=test.low if test else None,
                high=test.high if test else None,
                weight=weights.get(client),
                rounds=counted.get(client, 0),
                rejected=rejected[client],
                p=test.p if test else None,
            )
        )
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
    >>> headline([Card("3", 50, 0.70, 0.72, -0.02, p=0.8), Card("1", 80, 0.9, 0.8, 0.1, p=0.06)], find("accuracy"))
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
    judged = [card for card in known if card.p is not None and card.gain]
    if judged and not any(card.clear for card in judged):
        text += "; for none of them can it be told from the luck of a finite test set"
    elif lose and worst.p is not None and not worst.clear:
        text += ", which cannot be told from the luck of its finite test set"
    return f"{text}."


def significance_sentence(found: Sequence[Card], metric: Metric) -> str:
    """Say how many gains and losses stand beyond the luck of finite test sets, or why that is open."""
    changed = [card for card in found if card.gain]
    judged = [card for card in changed if card.p is not None]
    if changed and not judged:
        text = no_test(metric.name)
        return f"{text[0].upper()}{text[1:]}."
    parts = []
    for verdict, noun in (("gains", "gains"), ("loses", "losses")):
        of = [card for card in judged if card.verdict == verdict]
        if of:
            parts.append(f"{sum(card.clear for card in of):,} of the {len(of):,} {noun}")
    if not parts:
        return ""
    return (
        f"Beyond the luck of finite test sets (exact McNemar test at 5 % for each client) are "
        f"{' and '.join(parts)}."
    )


def written(value: float | None, metric: Metric) -> str:
    """A value with its unit."""
    text = figure(value, in_unit_of(metric))
    return text if not metric.unit or text == NOTHING else f"{text} {metric.unit}"


def points(value: float, metric: Metric) -> str:
    """A difference of two values with its unit."""
    return f"{figure(value, in_unit_of(metric))}{' points' if metric.unit == '%' else ''}"

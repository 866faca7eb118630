"""Report cards: the numbers of each client of one run, and sentences about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.comparison.formats import NOTHING, figure
from equipoise.comparison.measures import in_unit_of
from equipoise.data.message_text import counted
from equipoise.metrics import SIGNIFICANT, Metric
from equipoise.report.wording import name_of
from equipoise.runs import RunResult
from equipoise.runs.notes import no_test

MOST_LISTED = 1_000  # clients; of more the page lists those at both ends
AT_EACH_END = 100
QUANTILES = (1, 10, 50, 90, 99)  # in per cent


@dataclass(frozen=True)
class Card:
    """The report card of one client; None stands for a number that is not known.

    Attributes:
        client: The client.
        samples: Its training samples.
        value: Its value of the main metric.
        alone: Its value if it trains alone.
        gain: How much better it is than alone; positive is better, also for errors.
        low: Lower end of the interval of the gain, over other test samples of the same client.
        high: Upper end.
        weight: Its mean share of the aggregate over all rounds.
        rounds: Rounds in which its reply counted.
        rejected: Its rejected replies.
        p: The p-value of no gain and no loss; None if there is no test.
    """

    client: str
    samples: int | None
    value: float
    alone: float | None = None
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    weight: float | None = None
    rounds: int = 0
    rejected: int = 0
    p: float | None = None

    @property
    def verdict(self) -> str:
        """Return "gains", "loses" or "equal"; empty if the gain is not known."""
        if self.gain is None:
            return ""
        if self.gain == 0:
            return "equal"
        return "gains" if self.gain > 0 else "loses"

    @property
    def clear(self) -> bool:
        """Return True if the gain or loss is significant, given a finite test set."""
        return self.p is not None and self.p < SIGNIFICANT


def cards(result: RunResult) -> list[Card]:
    """Return one card per client, the most harmed first.

    Without a baseline, the client with the worst value comes first.

    Args:
        result: The result of a run, read with its details.
    """
    assert result.details is not None
    details = result.details
    scores = result.main
    samples = result.training_sizes()
    baseline = scores.baseline or {}
    client_cards = []
    for client, value in scores.values.items():
        gain = scores.gains.get(client)
        if gain is not None and math.isnan(gain):
            gain = None  # the model has diverged
        test = scores.gain_tests.get(client)
        client_cards.append(
            Card(
                client,
                samples.get(client),
                value,
                baseline.get(client),
                gain,
                low=None if test is None else test.low,
                high=None if test is None else test.high,
                weight=details.mean_weights.get(client),
                rounds=details.rounds_counted.get(client, 0),
                rejected=details.rejected.get(client, 0),
                p=None if test is None else test.p,
            )
        )
    if any(card.gain is not None for card in client_cards):
        return sorted(client_cards, key=lambda card: _order(card.gain))
    sign = -1 if scores.metric.lower_is_better else 1
    return sorted(client_cards, key=lambda card: _order(sign * card.value))


def _order(value: float | None) -> float:
    return -math.inf if value is None or math.isnan(value) else value


def extremes(client_cards: Sequence[Card]) -> list[Card]:
    """Return the cards that a page lists: all, or of very many the first and the last."""
    if len(client_cards) <= MOST_LISTED:
        return list(client_cards)
    return [*client_cards[:AT_EACH_END], *client_cards[-AT_EACH_END:]]


def quantile_sentence(client_cards: Sequence[Card], metric: Metric) -> str:
    """Return a sentence about the clients that are not listed; empty if all are."""
    values = np.array([card.value for card in client_cards])
    if len(client_cards) <= MOST_LISTED or np.isnan(values).any():
        return ""
    parts = []
    for share in QUANTILES:
        value = float(np.quantile(values, share / 100))
        parts.append(f"{share} % have at most {written(value, metric)}")
    return (
        f"Of {len(client_cards):,} clients the first and the last {AT_EACH_END} are listed. "
        f"{name_of(metric)}: {', '.join(parts)}."
    )


def headline(client_cards: Sequence[Card], metric: Metric) -> str:
    """Return a sentence about the clients that gain and lose, no stronger than one run permits.

    >>> from equipoise.metrics.registry import find
    >>> accuracy = find("accuracy")
    >>> headline([Card("3", 50, 0.70, 0.72, -0.02), Card("1", 80, 0.9, 0.8, 0.1)], accuracy)
    'In this one run 1 of 2 clients gains; client 3 loses 2.0 points.'
    >>> headline([Card("3", 50, 0.70)], accuracy)
    ... # doctest: +NORMALIZE_WHITESPACE
    'No run of training alone is known, so it cannot be said who gains; in this one run the lowest
    accuracy is 70.0 %, at client 3.'
    """
    known = [card for card in client_cards if card.gain is not None]
    # Their model diverged: joining has not served them.
    broken = [card for card in client_cards if math.isnan(card.value)]
    if not known:
        return f"{_lowest(client_cards, metric)}{_diverged(broken)}."
    count = len(known) + len(broken)
    winners = [card for card in known if card.verdict == "gains"]
    losers = [card for card in known if card.verdict == "loses"]
    if len(winners) == count > 1:
        text = f"In this one run all {count:,} clients gain"
    else:
        verb = "gains" if len(winners) == 1 else "gain"
        text = f"In this one run {len(winners):,} of {counted(count, 'client')} {verb}"
        text += _losses(losers, len(winners) == len(known), metric)
    return f"{text}{_insignificance(known, losers)}{_diverged(broken)}."


def _lowest(client_cards: Sequence[Card], metric: Metric) -> str:
    """Return the headline of a run without a baseline."""
    text = "No run of training alone is known, so it cannot be said who gains"
    finite = [card for card in client_cards if not math.isnan(card.value)]
    if not finite:
        return text
    extreme = "highest" if metric.lower_is_better else "lowest"
    value = written(finite[0].value, metric)
    return (
        f"{text}; in this one run the {extreme} {name_of(metric)} is {value}, at client "
        f"{finite[0].client}"
    )


def _diverged(broken: Sequence[Card]) -> str:
    """Return the part of the headline about clients whose model diverged."""
    if not broken:
        return ""
    if len(broken) == 1:
        return f"; the model of client {broken[0].client} has diverged"
    return f"; the models of {len(broken):,} clients have diverged"


def _losses(losers: Sequence[Card], all_gain: bool, metric: Metric) -> str:
    """Return the part of the headline about clients that lose."""
    if not losers:
        return "" if all_gain else "; nobody loses"
    worst = min(losers, key=lambda card: card.gain or 0.0)
    amount = points(abs(worst.gain or 0.0), metric)
    if metric.unit != "%":
        direction = "higher" if metric.lower_is_better else "lower"
        amount = f"its {name_of(metric)} is {amount} {direction} than alone"
    if len(losers) > 1:
        return f"; {len(losers):,} lose, client {worst.client} most: {amount}"
    if metric.unit != "%":
        return f"; client {worst.client} loses: {amount}"
    return f"; client {worst.client} loses {amount}"


def _insignificance(known: Sequence[Card], losers: Sequence[Card]) -> str:
    """Return the part of the headline about changes that are not significant."""
    tested = [card for card in known if card.p is not None and card.gain]
    if len(tested) == 1 and not tested[0].clear:
        return "; this change is not significant, given a finite test set"
    if tested and not any(card.clear for card in tested):
        return "; none of these changes is significant, given finite test sets"
    if not losers:
        return ""
    worst = min(losers, key=lambda card: card.gain or 0.0)
    if worst.p is None or worst.clear:
        return ""
    return ", which is not significant, given its finite test set"


def significance_sentence(client_cards: Sequence[Card], metric: Metric) -> str:
    """Return how many gains and losses are significant, or why there is no test."""
    changed = [card for card in client_cards if card.gain]
    tested = [card for card in changed if card.p is not None]
    if changed and not tested:
        text = no_test(metric.name)
        return f"{text[0].upper()}{text[1:]}."
    parts = []
    for verdict, noun in (("gains", ("gain", "gains")), ("loses", ("loss", "losses"))):
        group = [card for card in tested if card.verdict == verdict]
        if group:
            clear = sum(card.clear for card in group)
            parts.append(f"{clear:,} of {counted(len(group), *noun)}")
    if not parts:
        return ""
    return (
        "Beyond the luck of finite test sets (exact McNemar test at 5 % for each client): "
        f"{' and '.join(parts)}."
    )


def written(value: float | None, metric: Metric) -> str:
    """Return a value with its unit."""
    text = figure(value, in_unit_of(metric))
    if not metric.unit or text == NOTHING:
        return text
    return f"{text} {metric.unit}"


def points(value: float, metric: Metric) -> str:
    """Return a difference of two values with its unit."""
    text = figure(value, in_unit_of(metric))
    return f"{text} points" if metric.unit == "%" else text

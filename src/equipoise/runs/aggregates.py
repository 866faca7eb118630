"""Numbers over clients: average, extremes and spread, and gains and losses against training alone.

A change is an improvement if it is positive, whatever the direction of the metric: an RMSE that
falls from 5 to 4 changes by +1.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from equipoise.metrics import Metric, UndefinedMetric, collaborative_fairness, spread
from equipoise.metrics.gains import Gain, gain_in
from equipoise.metrics.transfer import negative_transfer

NAN = float("nan")
CHANGES = {  # measure of a table -> entry of `negative_transfer`
    "change": "average",
    "worst_change": "worst",
    "harmed": "harmed",
    "p10_change": "p10",
    "p90_change": "p90",
}


@dataclass(frozen=True)
class Aggregates:
    """Numbers over the clients of a run.

    Attributes:
        values: Name -> number; NaN where it does not exist.
        reasons: Name -> why there is no number.
    """

    values: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        return self.values[name]


def aggregate(
    together: Mapping[str, float], alone: Mapping[str, float] | None, metric: Metric
) -> Aggregates:
    """Return the numbers over clients of one metric.

    Args:
        together: Client -> value of the run.
        alone: Client -> value of training alone; None if that is not known.
        metric: The metric of the values.

    Example:
        >>> from equipoise.metrics.registry import find
        >>> found = aggregate({"a": 0.8, "b": 0.6}, {"a": 0.7, "b": 0.7}, find("accuracy"))
        >>> {name: round(value, 3) for name, value in found.values.items() if value == value}
        ... # doctest: +NORMALIZE_WHITESPACE
        {'average': 0.7, 'worst': 0.6, 'std': 0.1, 'best': 0.8, 'change': 0.0,
         'worst_change': -0.1, 'harmed': 0.5, 'p10_change': -0.08, 'p90_change': 0.08}
        >>> found.reasons["cf"]
        'collaborative fairness is undefined: all clients have the same value 0.7 in `alone`'
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UndefinedMetric)
        values = level(list(together.values()), metric)
        values |= _changes(together, alone, metric)
    explanation = diverged(metric.name, together)
    if not explanation and caught:
        explanation = str(caught[-1].message)
    reasons = {}
    if explanation:
        reasons = {name: explanation for name, value in values.items() if np.isnan(value)}
    return Aggregates(values, reasons)


def level(values: Sequence[float], metric: Metric) -> dict[str, float]:
    """Return average, worst, standard deviation and best of some values.

    Warns:
        UndefinedMetric: There are no values, or some are not finite; then all numbers are NaN.

    >>> from equipoise.metrics.registry import find
    >>> level([1.0, 3.0], find("rmse"))
    {'average': 2.0, 'worst': 3.0, 'std': 1.0, 'best': 1.0}
    """
    lower = metric.lower_is_better
    statistics = spread(values, lower)
    return {
        "average": statistics["mean"],
        "worst": statistics["max" if lower else "min"],
        "std": statistics["std"],
        "best": statistics["min" if lower else "max"],
    }


def _changes(
    together: Mapping[str, float], alone: Mapping[str, float] | None, metric: Metric
) -> dict[str, float]:
    if alone is None:
        return dict.fromkeys((*CHANGES, "cf"), NAN)
    both = [client for client in alone if client in together]
    before = np.array([alone[client] for client in both])
    after = np.array([together[client] for client in both])
    transfer = negative_transfer(before, after, metric.lower_is_better)
    changes = {name: transfer[entry] for name, entry in CHANGES.items()}
    changes["cf"] = collaborative_fairness(before, after)
    return changes


def gains(
    together: Mapping[str, float], alone: Mapping[str, float], metric: Metric
) -> dict[str, float]:
    """Return how much better each client is than alone, in the unit of the metric.

    >>> from equipoise.metrics.registry import find
    >>> gains({"a": 4.0, "b": 6.0}, {"a": 5.0, "b": 5.0}, find("rmse"))
    {'a': 1.0, 'b': -1.0}
    """
    sign = -1.0 if metric.lower_is_better else 1.0
    differences = {}
    for client, value in together.items():
        if client in alone:
            # Adding 0 turns -0.0 into 0.0.
            differences[client] = sign * (value - alone[client]) + 0.0
    return differences


def gain_tests(
    together: Mapping[str, float],
    alone: Mapping[str, float],
    metric: Metric,
    test_sizes: Mapping[str, int],
) -> dict[str, Gain]:
    """Return the gain of each client with its exact test and interval.

    Clients without a test are absent; all are for metrics other than accuracy.
    """
    tests = {}
    # Many clients share the same numbers of correct samples, and a test takes a while.
    known: dict[tuple[float, float, int], Gain | None] = {}
    for client, value in together.items():
        if client not in alone:
            continue
        case = (alone[client], value, test_sizes.get(client, 0))
        if case not in known:
            known[case] = gain_in(metric.name, *case)
        gain = known[case]
        if gain is not None:
            tests[client] = gain
    return tests


def diverged(metric: str, values: Mapping[str, float]) -> str:
    """Return a sentence that names the clients whose model has diverged; empty if none has."""
    broken = [client for client, value in values.items() if np.isnan(value)]
    if not broken:
        return ""
    clients = list_clients(broken)
    return f"{metric} of {clients} is not a number: the outputs of the model are not finite"


NAMED = 12  # clients that a sentence names


def list_clients(clients: Sequence[str]) -> str:
    """Return the names of clients for a sentence.

    >>> list_clients(["a"]), list_clients(["a", "b", "c"])
    ('client a', 'clients a, b and c')
    """
    names = list(clients)
    if len(names) > NAMED:
        names = [*names[:NAMED], f"{len(clients) - NAMED:,} more"]
    if len(names) == 1:
        return f"client {names[0]}"
    return f"clients {', '.join(names[:-1])} and {names[-1]}"

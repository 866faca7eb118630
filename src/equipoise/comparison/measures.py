"""What is said about one run: how good it is, how even, who it harmed against training alone, and what it cost."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from equipoise.metrics import UndefinedMetric, collaborative_fairness, negative_transfer, spread
from equipoise.runs import Run

NAN = float("nan")


@dataclass(frozen=True)
class Measure:
    """A column of the table: its heading, how a number is written, and which way is better (None: not ranked)."""

    title: str
    kind: str = "value"  # value: in the unit of the metric; share: in [0, 1]; plain: as it is
    lower: bool | None = False
    against_alone: bool = False  # needs the Standalone run, and says nothing about that run itself


def measures(lower_is_better: bool) -> dict[str, Measure]:
    """The columns, for a metric of which more (accuracy) or less (RMSE) is better."""
    return {
        "average": Measure("average", lower=lower_is_better),
        "worst": Measure("worst client", lower=lower_is_better),
        "std": Measure("std", lower=True),
        "change": Measure("change", lower=lower_is_better, against_alone=True),
        "worst_change": Measure("worst change", lower=lower_is_better, against_alone=True),
        "harmed": Measure("harmed %", "share", lower=True, against_alone=True),
        "cf": Measure("CF", "plain", against_alone=True),
        "megabytes": Measure("MB", "plain", lower=None),
        "seconds": Measure("seconds", "plain", lower=None),
    }


def measure_run(together: Mapping[str, float], alone: Mapping[str, float] | None, lower: bool) -> tuple[dict[str, float], dict[str, str]]:
    """The measures of one run from its values by client, and for each that does not exist the reason.

    >>> found, why = measure_run({"a": 0.8, "b": 0.6}, {"a": 0.7, "b": 0.7}, lower=False)
    >>> {name: round(value, 3) for name, value in found.items() if value == value}
    {'average': 0.7, 'worst': 0.6, 'std': 0.1, 'change': 0.0, 'worst_change': -0.1, 'harmed': 0.5}
    >>> why["cf"]
    'collaborative fairness is undefined: all clients have the same value 0.7 in `alone`'
    """
    level = spread(list(together.values()), lower)
    found = {"average": level["mean"], "worst": level["max" if lower else "min"], "std": level["std"]}
    if alone is None:
        return found | dict.fromkeys(("change", "worst_change", "harmed", "cf"), NAN), {}
    a, t = pairs(alone, together)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UndefinedMetric)
        change, cf = negative_transfer(a, t, lower), collaborative_fairness(a, t)
    found |= {"change": change["average"], "worst_change": change["worst"], "harmed": change["harmed"], "cf": cf}
    reasons = [str(item.message) for item in caught if issubclass(item.category, UndefinedMetric)]
    return found, {name: reasons[-1] for name, value in found.items() if np.isnan(value) and reasons}


def pairs(alone: Mapping[str, float], together: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Values of the clients that both have, in the order of the first."""
    both = [client for client in alone if client in together]
    return np.array([alone[client] for client in both]), np.array([together[client] for client in both])


def values_by_client(run: Run, model: str | None = None, split: str | None = None) -> dict[str, float]:
    """Client -> main metric at the end; a model that all share, measured once on one test set for all, is what each client has.

    A loss without bound (NaN in the store as null) stays NaN: it must not vanish from an average.
    """
    found = {client: NAN if value is None else value for client, value in run.final(model=model, split=split).items()}
    return dict.fromkeys(run.clients, found["all"]) if list(found) == ["all"] else found


def cost_of(run: Run) -> dict[str, float]:
    """Megabytes sent both ways, and seconds of training, transport and aggregation; measuring and saving are not counted."""
    rounds = run.rounds()
    moved = sum(row["bytes_down"] + row["bytes_up"] for row in rounds)
    seconds = sum(row["seconds"].get(phase, 0.0) for row in rounds for phase in ("clients", "transport", "aggregation"))
    return {"megabytes": moved / 1e6, "seconds": seconds}

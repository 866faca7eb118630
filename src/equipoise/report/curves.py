"""Numbers over rounds, out of the store of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from equipoise.runs import Run


@dataclass(frozen=True)
class Curves:
    """A metric by client and measured round; NaN where a client was not measured, has no value, or has a diverged model."""

    clients: list[str]
    rounds: list[int]
    values: np.ndarray  # clients x rounds
    # over the clients that have a value; NaN in a round in which some model had diverged
    mean: np.ndarray


def read_curves(run: Run, metric: str | None = None, without: Sequence[str] = ()) -> Curves:
    """What clients had after every measured round, for the model they end up using; some clients may be left out."""
    what = {"metric": metric or run.main_metric, "model": run.main_model, "split": run.main_split}
    rows, absent = run.columns("round", "client", "value", phase="received", **what), set(without)
    return _matrix(run, [row for row in rows if row[1] not in absent])


def read_weights(run: Run) -> Curves:
    """The share of the aggregate that each client was given; 0 in a round without it."""
    found = _matrix(run, [(row["round"], row["client"], row["share"]) for row in run.weights()])
    return replace(found, values=np.nan_to_num(found.values))


def _matrix(run: Run, rows: list[tuple[Any, ...]]) -> Curves:
    rounds = sorted({number for number, _, _ in rows})
    clients = run.clients
    column = {number: place for place, number in enumerate(rounds)}
    row_of = {client: place for place, client in enumerate(clients)}
    values = np.full((len(clients), len(rounds)), np.nan)
    for number, client, value in rows:
        # A model that all share is measured once on a test set for all, under the name "all".
        values[row_of.get(client, slice(None)), column[number]] = np.nan if value is None else value
    total, count = np.nansum(values, axis=0), (~np.isnan(values)).sum(0)
    mean = np.divide(total, count, out=np.full(len(rounds), np.nan), where=count > 0)
    mean[[column[number] for number, _, value in rows if value is None]] = np.nan
    return Curves(clients, rounds, values, mean)

"""Numbers over rounds, out of the store of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.runs import Run


@dataclass(frozen=True)
class Curves:
    """The main metric by client and measured round; NaN where a client was not measured."""

    clients: list[str]
    rounds: list[int]
    values: np.ndarray  # clients x rounds

    @property
    def mean(self) -> np.ndarray:
        return np.nanmean(self.values, axis=0) if self.values.size else np.zeros(0)


def read_curves(run: Run) -> Curves:
    """What clients had after every measured round, for the model they end up using."""
    rows = run.table(phase="received", metric=run.main_metric, model=run.main_model, split=run.main_split)
    return _matrix(run, [(row["round"], row["client"], row["value"]) for row in rows])


def read_weights(run: Run) -> Curves:
    """The share of the aggregate that each client was given; 0 in a round without it."""
    found = _matrix(run, [(row["round"], row["client"], row["share"]) for row in run.weights()])
    return Curves(found.clients, found.rounds, np.nan_to_num(found.values))


def _matrix(run: Run, rows: list[tuple[int, str, float | None]]) -> Curves:
    rounds = sorted({number for number, _, _ in rows})
    clients = run.clients
    column = {number: place for place, number in enumerate(rounds)}
    row_of = {client: place for place, client in enumerate(clients)}
    values = np.full((len(clients), len(rounds)), np.nan)
    for number, client, value in rows:
        # A model that all share is measured once on a test set for all, under the name "all".
        values[row_of.get(client, slice(None)), column[number]] = np.nan if value is None else value
    return Curves(clients, rounds, values)

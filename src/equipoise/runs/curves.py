"""Values over rounds: the mean over clients, and client by client."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from equipoise.data.roster import SHARED
from equipoise.metrics.registry import Metric
from equipoise.runs.run import Run


@dataclass(frozen=True)
class Curve:
    """The mean of a metric over clients by measured round.

    A method may train on after its last round (the final phase, such as fine-tuning at each
    client). What clients have then is the last point, numbered as the round after the last one.

    Attributes:
        rounds: The measured rounds, rising.
        means: The mean over clients in each; NaN if the model of some client had diverged.
        final_phase: True if the last point belongs to the final phase.
        deviations: The standard deviation over clients in each; empty if it was not read.
        same_clients: False if rounds measured different clients, so that none is the best.
    """

    rounds: tuple[int, ...] = ()
    means: tuple[float, ...] = ()
    final_phase: bool = False
    deviations: tuple[float, ...] = ()
    same_clients: bool = True

    @property
    def is_finite(self) -> bool:
        """True if no model diverged."""
        return all(map(math.isfinite, self.means))

    def training(self) -> Curve:
        """Return the curve without the final phase."""
        if not self.final_phase:
            return self
        return replace(
            self,
            rounds=self.rounds[:-1],
            means=self.means[:-1],
            final_phase=False,
            deviations=self.deviations[:-1],
        )

    def best(self, metric: Metric) -> tuple[int, float] | None:
        """Return the round with the best mean, and that mean; None if there is none.

        The round is chosen by test data, so its mean is too good for a result.

        >>> from equipoise.metrics.registry import find
        >>> Curve((2, 4, 6), (0.5, 0.75, 0.25)).best(find("accuracy"))
        (4, 0.75)
        """
        means = np.array(self.means)
        if not self.same_clients or not len(means) or np.isnan(means).all():
            return None
        position = int(np.nanargmin(means) if metric.lower_is_better else np.nanargmax(means))
        return self.rounds[position], self.means[position]

    def by_round(self) -> list[float]:
        """Return the mean of every round of training from the first on; NaN if not measured.

        >>> Curve((2, 3), (0.5, 0.75)).by_round()
        [nan, 0.5, 0.75]
        """
        training = self.training()
        means = [math.nan] * (training.rounds[-1] if training.rounds else 0)
        for number, mean in zip(training.rounds, training.means, strict=True):
            if number:
                means[number - 1] = mean
        return means

    def first_round_at(self, target: float, metric: Metric) -> float:
        """Return the first measured round whose mean reaches the target; NaN if none does.

        The final phase is no round.
        """
        training = self.training()
        for number, mean in zip(training.rounds, training.means, strict=True):
            reached = mean <= target if metric.lower_is_better else mean >= target
            if reached:
                return float(number)
        return math.nan


@dataclass(frozen=True)
class History:
    """A number by client and round.

    Attributes:
        clients: One row each, in the order of the run.
        rounds: One column each, rising.
        values: Clients x rounds; NaN where a client has no value.
        mean: The mean over the clients with a value; NaN if the model of some client had diverged.
        final_phase: True if the last column belongs to the final phase (see `Curve`).
        diverged: Row and column of every value of a diverged model.
    """

    clients: list[str]
    rounds: list[int]
    values: np.ndarray
    mean: np.ndarray
    final_phase: bool = False
    diverged: tuple[tuple[int, int], ...] = ()

    def without(self, clients: Collection[str]) -> History:
        """Return the history with no values of some clients."""
        if not clients:
            return self
        excluded = set(clients)
        rows = [row for row, client in enumerate(self.clients) if client in excluded]
        values = self.values.copy()
        values[rows] = np.nan
        diverged = tuple(cell for cell in self.diverged if cell[0] not in set(rows))
        mean = _mean(values, diverged)
        return replace(self, values=values, mean=mean, diverged=diverged)

    def curve(self) -> Curve:
        """Return the mean over clients."""
        return Curve(tuple(self.rounds), tuple(self.mean.tolist()), self.final_phase)


class EndPoint(NamedTuple):
    """The last point of a curve, if a record follows the last round."""

    round: int
    final_phase: bool  # clients trained on


def end_point(run: Run, finish: Sequence[Mapping[str, Any]]) -> EndPoint | None:
    """Return the point at which the values at the end are shown; None if the last round has them.

    A run that a callback stopped has a record after its last round, too. No client trains in it, so
    its values are those of the last round.

    Args:
        run: An open run.
        finish: Its records after the last round (`Run.finish`).
    """
    if not finish:
        return None
    if any(record["cohort"] for record in finish):
        return EndPoint(run.last_round + 1, True)
    return EndPoint(run.last_round, False)


def read_curve(
    run: Run, metric: str, model: str, final: Mapping[str, float], end: EndPoint | None
) -> Curve:
    """Return the mean over clients of one metric of one served model.

    Args:
        run: An open run.
        metric: The name of the metric.
        model: The name of the served model.
        final: The values of the clients at the end (`Run.final`).
        end: The point at which they are shown.
    """
    by_round = _by_round(_received(run, ("round", "value"), metric, model))
    final_phase = False
    if end is not None and final:
        by_round[end.round] = list(final.values())
        final_phase = end.final_phase
    return Curve(
        tuple(by_round),
        _means(by_round),
        final_phase,
        _deviations(by_round),
        _same_clients(run, final, by_round),
    )


def _same_clients(
    run: Run, final: Mapping[str, float], by_round: Mapping[int, Sequence[float]]
) -> bool:
    """Return False if each round measured its own cohort (`evaluation.clients: cohort`)."""
    if run.config["evaluation"]["clients"] != "cohort" or list(final) == [SHARED]:
        return True
    return all(len(values) == len(run.clients) for values in by_round.values())


def read_validation_curve(run: Run, metric: str, model: str) -> Curve:
    """Return the mean over clients on validation data; empty if it was not measured.

    Args:
        run: An open run.
        metric: The name of the metric.
        model: The name of the served model.
    """
    selection = {"metric": metric, "model": model, "split": "validation"}
    by_round = _by_round(run.columns("round", "value", phase="received", **selection))
    return Curve(tuple(by_round), _means(by_round))


def read_history(
    run: Run, metric: str, model: str, final: Mapping[str, float], end: EndPoint | None
) -> History:
    """Return one metric of one served model by client and round; arguments as in `read_curve`."""
    rows = _received(run, ("round", "client", "value"), metric, model)
    final_phase = False
    if end is not None and final:
        rows = [row for row in rows if row[0] != end.round]
        rows += [(end.round, client, _none_if_nan(value)) for client, value in final.items()]
        final_phase = end.final_phase
    return replace(_matrix(run.clients, rows), final_phase=final_phase)


def read_weights(run: Run) -> History:
    """Return the share of the aggregate of each client in each round; 0 in a round without it."""
    rows = [(row["round"], row["client"], row["share"]) for row in run.weights()]
    history = _matrix(run.clients, rows)
    return replace(history, values=np.nan_to_num(history.values))


def average(curves: Sequence[Curve]) -> Curve:
    """Return the mean of several curves over the rounds that all of them measured.

    Runs of one budget of time, say, have different numbers of rounds. The final phase is left out.

    >>> average([Curve((1, 2, 3), (0.25, 0.5, 0.5)), Curve((1, 2), (0.75, 1.0))]).means
    (0.5, 0.75)
    """
    by_round = [
        dict(zip(curve.rounds, curve.means, strict=True))
        for curve in (curve.training() for curve in curves)
    ]
    common = [number for number in by_round[0] if all(number in means for means in by_round)]
    means = [float(np.mean([means[number] for means in by_round])) for number in common]
    return Curve(tuple(common), tuple(means))


def _received(run: Run, columns: Sequence[str], metric: str, model: str) -> list[tuple[Any, ...]]:
    selection = {"metric": metric, "model": model, "split": run.main_split}
    return run.columns(*columns, phase="received", **selection)


def _by_round(rows: Sequence[tuple[Any, ...]]) -> dict[int, list[float]]:
    """Return round -> values, NaN for a diverged model."""
    by_round: dict[int, list[float]] = {}
    for number, value in rows:
        by_round.setdefault(number, []).append(math.nan if value is None else value)
    return by_round


def _means(by_round: Mapping[int, Sequence[float]]) -> tuple[float, ...]:
    """Return the mean of every round."""
    values = list(by_round.values())
    if len(set(map(len, values))) == 1:  # one call in place of one per round
        return tuple(np.mean(values, axis=1).tolist())
    return tuple(float(np.mean(row)) for row in values)


def _deviations(by_round: Mapping[int, Sequence[float]]) -> tuple[float, ...]:
    """Return the standard deviation over clients of every round."""
    return tuple(float(np.std(row)) for row in by_round.values())


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value


def _matrix(clients: list[str], rows: Sequence[tuple[Any, ...]]) -> History:
    """Return the history as rows of round, client and value, None for a diverged model."""
    rounds = sorted({number for number, _, _ in rows})
    column_of = {number: column for column, number in enumerate(rounds)}
    row_of = {client: row for row, client in enumerate(clients)}
    values = np.full((len(clients), len(rounds)), np.nan)
    diverged: list[tuple[int, int]] = []
    for number, client, value in rows:
        column = column_of[number]
        if value is None:
            # A client that is no row is "all": a shared model, measured once for all clients.
            diverged.append((row_of.get(client, -1), column))
        else:
            values[row_of.get(client, slice(None)), column] = value
    mean = _mean(values, diverged)
    return History(clients, rounds, values, mean, diverged=tuple(diverged))


def _mean(values: np.ndarray, diverged: Sequence[tuple[int, int]]) -> np.ndarray:
    total = np.nansum(values, axis=0)
    count = (~np.isnan(values)).sum(0)
    mean: np.ndarray = np.full(len(total), np.nan)
    np.divide(total, count, out=mean, where=count > 0)
    mean[[column for _, column in diverged]] = np.nan
    return mean

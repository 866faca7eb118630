"""The table of a study: measures by row, condition and seed, with the noise of finite test sets."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import stats

from equipoise.comparison.served import best_model
from equipoise.comparison.targets import BEST
from equipoise.metrics import speed_up
from equipoise.metrics.registry import Metric, find
from equipoise.runs.aggregates import CHANGES, aggregate
from equipoise.runs.baseline import ALONE
from equipoise.runs.curves import Curve
from equipoise.study.definition import Row, Study
from equipoise.study.records import Record
from equipoise.study.verdicts import Key, Sample, Verdict, judge

DRAWS = 200
OF_CURVES = ("best_round", "rounds_to_target", "speed_up")  # no known sampling error
NAN = float("nan")


@dataclass(frozen=True)
class StudyTable:
    """The results of a study at one scale.

    Attributes:
        study: The study.
        scale: Name of the scale.
        records: Results of all finished runs.
    """

    study: Study
    scale: str
    records: tuple[Record, ...]

    @cached_property
    def metric(self) -> Metric | None:
        """The metric that the table is about; None before the first result."""
        return find(self.records[0].metric) if self.records else None

    @cached_property
    def samples(self) -> dict[Key, Sample]:
        """(row, condition, measure) -> values by seed."""
        scale = self.study.scale(self.scale)
        samples: dict[Key, Sample] = {}
        for row in self.study.rows:
            for condition in self.study.conditions(scale):
                seeds = set(self.study.seeds(scale, condition))
                records = self._rows.get((row.name, condition), {})
                own = [record for seed, record in records.items() if seed in seeds]
                for column in self.study.file.measures:
                    sample = self._sample(own, column)
                    if sample.values or sample.undefined:
                        samples[row.name, condition, column] = sample
        return samples

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """The verdicts on all claims of the study."""
        scale = self.study.scale(self.scale)
        return judge(
            self.study.claims,
            self.samples,
            self.study.row_names,
            self.study.conditions(scale),
            self.study.fixed_test,
            without=self._without,
        )

    @cached_property
    def _without(self) -> set[tuple[str, str]]:
        """Rows of training alone with the measures that compare a row with training alone."""
        alone = [
            row.name for row in self.study.rows if _is_alone(self.study.file.methods[row.method])
        ]
        return {(row, measure) for row in alone for measure in (*CHANGES, "cf")}

    @cached_property
    def _rows(self) -> dict[tuple[str, str], dict[int, Record]]:
        """(row, condition) -> seed -> its record."""
        runs: dict[tuple[str, str, int], list[Record]] = {}
        for record in self.records:
            runs.setdefault((record.method, record.condition, record.seed), []).append(record)
        rows: dict[tuple[str, str], dict[int, Record]] = {}
        for row in self.study.rows:
            for (method, condition, seed), served in runs.items():
                record = served_record(served, row) if method == row.method else None
                if record is not None:
                    rows.setdefault((row.name, condition), {})[seed] = record
        return rows

    @cached_property
    def _alone(self) -> dict[str, Record]:
        """Name of a run of training alone -> its record."""
        return {record.run: record for record in self.records if record.method == ALONE}

    @cached_property
    def _claimed(self) -> set[str]:
        return {column for claim in self.study.claims for column in claim.columns}

    def _sample(self, records: Sequence[Record], column: str) -> Sample:
        values = {}
        variances = {}
        undefined = []
        for record in records:
            value = self._value(record, column)
            if not math.isfinite(value):
                undefined.append(record.seed)
                continue
            values[record.seed] = value
            if column in self._claimed:
                baseline = self._alone.get(record.baseline)
                variance = test_variance(record, baseline, column, self.study.fixed_test)
                if math.isfinite(variance):
                    variances[record.seed] = variance
        return Sample(values, variances, tuple(undefined))

    def _value(self, record: Record, column: str) -> float:
        if column == "rounds_to_target":
            target = self._target(record)
            if target is None:
                return NAN
            return curve_of(record).first_round_at(target, find(record.metric))
        if column == "speed_up":
            return self._speed_up(record)
        return measure(record, self._alone.get(record.baseline), column)

    def _target(self, record: Record) -> float | None:
        """Return the mean over clients whose first round is counted; None if it is not known."""
        target = self.study.target
        if isinstance(target, Mapping):
            target = target.get(record.condition)
        if not isinstance(target, str):
            return target
        row = target.removesuffix(BEST)
        other = self._rows.get((row, record.condition), {}).get(record.seed)
        return None if other is None else _best_mean(other)

    def _speed_up(self, record: Record) -> float:
        rows = self._rows.get((self.study.speed_up_over, record.condition), {})
        rival = rows.get(record.seed)
        if rival is None:
            return NAN
        target = self._target(record) if self.study.target is not None else _best_mean(rival)
        if target is None:
            return NAN
        lower = find(record.metric).lower_is_better
        factor = speed_up(curve_of(record).by_round(), curve_of(rival).by_round(), target, lower)
        return NAN if factor is None else factor


def _is_alone(method: Any) -> bool:
    name = method.get("name") if isinstance(method, Mapping) else method
    return bool(name == ALONE)


def served_record(served: Sequence[Record], row: Row) -> Record | None:
    """Return the record of a row among those of the served models of one run."""
    if row.selected:
        main_first = sorted(served, key=lambda record: not record.main)
        means = {record.model: _or_nan(record.validation) for record in main_first}
        model = best_model(means, find(served[0].metric))
        return next((record for record in served if record.model == model), None)
    for record in served:
        if record.main if row.model is None else record.model == row.model:
            return record
    return None


def curve_of(record: Record) -> Curve:
    """Return the mean over clients by round."""
    means = tuple(_or_nan(mean) for mean in record.means)
    return Curve(tuple(record.rounds), means, record.final_phase)


def _best_mean(record: Record) -> float | None:
    best = curve_of(record).training().best(find(record.metric))
    return None if best is None else best[1]


def _or_nan(value: float | None) -> float:
    return NAN if value is None else value


def measure(record: Record, baseline: Record | None, column: str) -> float:
    """Return one number of a table.

    Args:
        record: The result that it is about.
        baseline: The result of training alone, for changes.
        column: The measure, with a group of clients in brackets or without.
    """
    alone = None if baseline is None else _values(baseline)
    return _measure(record, _values(record), alone, column)


def test_variance(
    record: Record, baseline: Record | None, column: str, shared: bool = False
) -> float:
    """Return the variance of a number that finite test sets alone bring about.

    Accuracies are drawn anew from binomial distributions, those of training alone independently.
    Other metrics have no known distribution: NaN. So have costs and distances.

    Args:
        record: The result that the number is about.
        baseline: The result of training alone, for changes.
        column: The measure, with a group of clients in brackets or without.
        shared: True if all clients have one test set. Their errors then move together, which
            makes the variance of an average largest.
    """
    if record.metric != "accuracy" or any(size < 1 for size in record.test_sizes.values()):
        return NAN
    name = column.partition("[")[0]
    if name in record.cost or name in OF_CURVES:
        return NAN
    if name == "best_average":
        column = "average"  # the same samples at another round
    drawn = [_measure(record, *pair, column) for pair in _redrawn(record, baseline, shared)]
    finite = [value for value in drawn if math.isfinite(value)]
    return float(np.var(finite, ddof=1)) if len(finite) > DRAWS // 2 else NAN


test_variance.__test__ = False  # type: ignore[attr-defined]  # no test case of pytest


Values = dict[str, float]  # client -> value


def _redrawn(
    record: Record, baseline: Record | None, shared: bool
) -> list[tuple[Values, Values | None]]:
    """Return draws of the accuracies of a run and of training alone."""
    # The same draws in every process: the noise must not depend on the order of calls.
    digest = hashlib.blake2b(f"{record.run} {record.model}".encode(), digest_size=8)
    rng = np.random.default_rng(int.from_bytes(digest.digest(), "big"))
    together = _draws(rng, record, shared)
    if baseline is None:
        return [(values, None) for values in together]
    return list(zip(together, _draws(rng, baseline, shared), strict=True))


def _draws(rng: np.random.Generator, record: Record, shared: bool) -> list[Values]:
    known = {client: value for client, value in _values(record).items() if math.isfinite(value)}
    sizes = np.array([record.test_sizes[client] for client in known])
    accuracies = np.clip(np.array(list(known.values())), 0.0, 1.0)
    if shared:
        # One uniform number for all clients: their quantiles rise and fall together.
        correct = stats.binom.ppf(rng.uniform(size=(DRAWS, 1)), sizes, accuracies)
    else:
        correct = rng.binomial(sizes, accuracies, size=(DRAWS, len(known)))
    return [dict(zip(known, row, strict=True)) for row in (correct / sizes).tolist()]


def _values(record: Record) -> Values:
    return {client: _or_nan(value) for client, value in record.values.items()}


def _measure(
    record: Record, together: Mapping[str, float], alone: Mapping[str, float] | None, column: str
) -> float:
    name, bracket, group = column.removesuffix("]").partition("[")
    if bracket:
        together = _of_group(together, record.groups, group)
        alone = None if alone is None else _of_group(alone, record.groups, group)
    metric = find(record.metric)
    if name in record.cost:
        return _or_nan(record.cost[name])
    if name in ("best_round", "best_average"):
        return _best(record, metric, name)
    if name == "cf" and record.after_local:
        # One model and one test set for all: equal values have no correlation.
        together = {client: _or_nan(value) for client, value in record.after_local.items()}
    if not together:
        return NAN
    return aggregate(together, alone, metric).values.get(name, NAN)


def _of_group(
    values: Mapping[str, float], groups: Mapping[str, str], group: str
) -> dict[str, float]:
    return {client: value for client, value in values.items() if groups.get(client) == group}


def _best(record: Record, metric: Metric, name: str) -> float:
    best = curve_of(record).best(metric)
    if best is None:
        return NAN
    return float(best[0] if name == "best_round" else best[1])

"""The table of a study: measures by row, condition and seed, with the noise of finite test sets."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from equipoise.metrics.registry import Metric, find
from equipoise.runs.aggregates import CHANGES, aggregate
from equipoise.runs.baseline import ALONE
from equipoise.runs.curves import Curve
from equipoise.study.definition import Row, Study
from equipoise.study.records import Record
from equipoise.study.verdicts import Key, Sample, Verdict, judge

DRAWS = 200
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
        claimed = {column for claim in self.study.claims for column in claim.columns}
        found: dict[Key, Sample] = {}
        for row in self.study.rows:
            for condition in self.study.conditions(scale):
                seeds = set(self.study.seeds(scale, condition))
                own = [
                    record
                    for record in self._rows.get((row.name, condition), [])
                    if record.seed in seeds
                ]
                for column in self.study.file.measures:
                    sample = self._sample(own, column, column in claimed)
                    if sample.values:
                        found[row.name, condition, column] = sample
        return found

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
    def _rows(self) -> dict[tuple[str, str], list[Record]]:
        """(row, condition) -> its records."""
        found: dict[tuple[str, str], list[Record]] = {}
        for row in self.study.rows:
            for record in self.records:
                if _belongs(record, row):
                    found.setdefault((row.name, record.condition), []).append(record)
        return found

    @cached_property
    def _alone(self) -> dict[str, Record]:
        """Name of a run of training alone -> its record."""
        return {record.run: record for record in self.records if record.method == ALONE}

    def _sample(self, records: Sequence[Record], column: str, with_variance: bool) -> Sample:
        values = {}
        variances = {}
        for record in records:
            baseline = self._alone.get(record.baseline)
            value = measure(record, baseline, column)
            if math.isfinite(value):
                values[record.seed] = value
            if with_variance:
                variance = test_variance(record, baseline, column)
                if math.isfinite(variance):
                    variances[record.seed] = variance
        return Sample(values, variances)


def _is_alone(method: Any) -> bool:
    name = method.get("name") if isinstance(method, Mapping) else method
    return bool(name == ALONE)


def _belongs(record: Record, row: Row) -> bool:
    if record.method != row.method:
        return False
    return record.main if row.model is None else record.model == row.model


def measure(record: Record, baseline: Record | None, column: str) -> float:
    """Return one number of a table.

    Args:
        record: The result that it is about.
        baseline: The result of training alone, for changes.
        column: The measure, with a group of clients in brackets or without.
    """
    alone = None if baseline is None else _values(baseline)
    return _measure(record, _values(record), alone, column)


def test_variance(record: Record, baseline: Record | None, column: str) -> float:
    """Return the variance of a number that finite test sets alone bring about.

    Accuracies are drawn anew from binomial distributions, those of training alone independently.
    Other metrics have no known distribution: NaN.
    """
    if record.metric != "accuracy" or any(size < 1 for size in record.test_sizes.values()):
        return NAN
    # The same draws in every process: the noise must not depend on the order of calls.
    digest = hashlib.blake2b(f"{record.run} {record.model} {column}".encode(), digest_size=8)
    rng = np.random.default_rng(int.from_bytes(digest.digest(), "big"))
    drawn = []
    for _ in range(DRAWS):
        together = _redrawn(rng, record)
        alone = None if baseline is None else _redrawn(rng, baseline)
        drawn.append(_measure(record, together, alone, column))
    finite = [value for value in drawn if math.isfinite(value)]
    return float(np.var(finite, ddof=1)) if len(finite) > DRAWS // 2 else NAN


test_variance.__test__ = False  # type: ignore[attr-defined]  # no test case of pytest


def _redrawn(rng: np.random.Generator, record: Record) -> dict[str, float]:
    values = _values(record)
    return {
        client: rng.binomial(record.test_sizes[client], min(1.0, max(0.0, value)))
        / record.test_sizes[client]
        for client, value in values.items()
        if math.isfinite(value)
    }


def _values(record: Record) -> dict[str, float]:
    return {client: NAN if value is None else value for client, value in record.values.items()}


def _measure(
    record: Record, together: Mapping[str, float], alone: Mapping[str, float] | None, column: str
) -> float:
    name, bracket, group = column.removesuffix("]").partition("[")
    if bracket:
        together = _of_group(together, record.groups, group)
        alone = None if alone is None else _of_group(alone, record.groups, group)
    metric = find(record.metric)
    if name in record.cost:
        value = record.cost[name]
        return NAN if value is None else value
    if name in ("best_round", "best_average"):
        return _best(record, metric, name)
    if not together:
        return NAN
    return aggregate(together, alone, metric).values.get(name, NAN)


def _of_group(
    values: Mapping[str, float], groups: Mapping[str, str], group: str
) -> dict[str, float]:
    return {client: value for client, value in values.items() if groups.get(client) == group}


def _best(record: Record, metric: Metric, name: str) -> float:
    means = tuple(NAN if mean is None else mean for mean in record.means)
    best = Curve(tuple(record.rounds), means).best(metric)
    if best is None:
        return NAN
    return float(best[0] if name == "best_round" else best[1])

"""The table of a comparison: means with intervals over seeds, tests against a baseline, ranks, best and second best."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from equipoise.comparison.entries import FORMAT, RESULT, Entry, damaged, open_comparison, open_runs
from equipoise.comparison.measures import (
    ASKED,
    COST,
    DISTANCES,
    EXTREMES,
    NAN,
    Measure,
    measures,
)
from equipoise.comparison.plan import default_baseline
from equipoise.metrics import (
    Metric,
    PartialMetric,
    UndefinedMetric,
    against_baseline,
    average_ranks,
    over_seeds,
)
from equipoise.metrics.registry import find
from equipoise.runs.convergence import average, still_rising
from equipoise.storage.files import RunError


@dataclass(frozen=True)
class Failure:
    """A run that has no result, and why."""

    method: str
    partition: str
    seed: int
    reason: str


@dataclass(frozen=True)
class Comparison:
    """What came out of several runs on identical data."""

    entries: Sequence[Entry]
    baseline: str
    failures: Sequence[Failure] = ()
    folder: Path | None = None
    level: float = field(default=0.95, kw_only=True)  # of the intervals over seeds
    measure: str = field(default="average", kw_only=True)  # what methods are ranked by
    asked: tuple[str, ...] = field(default=(), kw_only=True)  # further columns of the table
    # of the mean over clients, for the rounds to it
    target: float | None = field(default=None, kw_only=True)

    @property
    def metric(self) -> Metric:
        return find(self.entries[0].run.metric if self.entries else "accuracy")

    @property
    def metrics(self) -> list[str]:
        """What all runs measured, the metric of the table first."""
        known = self.entries[0].run.by_metric if self.entries else {}
        return sorted(known, key=lambda name: name != self.metric.name)

    def seen_by(self, metric: str) -> Comparison:
        """The same runs in a table about another of their metrics."""
        return (
            self
            if metric == self.metric.name
            else replace(self, entries=[entry.seen_by(metric) for entry in self.entries])
        )

    @property
    def measures(self) -> dict[str, Measure]:
        return measures(self.metric)

    @property
    def columns(self) -> dict[str, Measure]:
        """The measures that the table shows; all others are in CSV and JSON."""
        left_out = {*ASKED} - {*self.asked} | (
            {"majority"} if not any(entry.run.majority for entry in self.entries) else set()
        )
        return {name: measure for name, measure in self.measures.items() if name not in left_out}

    def rising(self, partition: str) -> dict[str, tuple[int, float]]:
        """Methods whose mean over clients and seeds still got better at the end: from which round on, and by how much."""
        found = {}
        for method in self.methods:
            entries = [
                entry
                for seed in self.seeds
                if (entry := self.entry(method, partition, seed)) is not None
            ]
            curves = [
                entry.run.curves[self.metric.name]
                for entry in entries
                if self.metric.name in entry.run.curves
            ]
            rise = still_rising(average(curves), self.metric.lower_is_better) if curves else None
            if rise is not None:
                found[method] = rise
        return found

    @property
    def partitions(self) -> list[str]:
        return list(dict.fromkeys(entry.run.condition[0] for entry in self.entries))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(entry.label for entry in self.entries))

    @property
    def seeds(self) -> list[int]:
        return sorted({entry.run.condition[1] for entry in self.entries})

    @cached_property
    def _by_condition(self) -> dict[tuple[str, str, int], Entry]:
        return {(entry.label, *entry.run.condition): entry for entry in self.entries}

    def entry(self, method: str, partition: str, seed: int) -> Entry | None:
        return self._by_condition.get((method, partition, seed))

    def per_seed(self, partition: str, measure: str) -> dict[str, list[float]]:
        """Method -> one value per seed, NaN where a run is missing or the number does not exist."""
        found = {}
        for method in self.methods:
            entries = [self.entry(method, partition, seed) for seed in self.seeds]
            if any(entries):
                found[method] = [
                    NAN if entry is None else entry.measured[0][measure] for entry in entries
                ]
        return found

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One record per metric, partition, measure and method; `pandas.DataFrame(comparison.rows)` takes it as it is.

        The table's own metric comes first, and only it has rows of cost, which is the same for all. `position` is 1 for the best method and 2 for
        the second best; `p` is adjusted by Holm's method over all methods compared.
        """
        others = (
            row
            for metric in self.metrics[1:]
            for row in self.seen_by(metric).own_rows
            if row["measure"] not in (*COST, *DISTANCES)
        )
        return [*self.own_rows, *others]

    @cached_property
    def own_rows(self) -> list[dict[str, Any]]:
        """The rows of the table's own metric."""
        return [
            row
            for partition in self.partitions
            for name in self.measures
            for row in self._rows(partition, name)
        ]

    def _rows(self, partition: str, name: str) -> list[dict[str, Any]]:
        measure, values = self.measures[name], self.per_seed(partition, name)
        known = {
            method: numbers
            for method, numbers in values.items()
            if not all(map(math.isnan, numbers))
        }
        with warnings.catch_warnings():  # gaps are told in the rows: `seeds`, `undefined`, `note`
            warnings.simplefilter("ignore", UndefinedMetric)
            warnings.simplefilter("ignore", PartialMetric)
            step = self._step(name)
            means = {
                method: over_seeds(numbers, self.level, extreme_step=step)
                for method, numbers in values.items()
            }
            tests = (
                against_baseline(known, self.baseline)
                if self.baseline in known and measure.lower is not None
                else {}
            )
            ranks = average_ranks(known, measure.lower) if measure.lower is not None else {}
        positions = _positions({method: means[method].value for method in known}, measure.lower)
        rows = []
        for method, mean in means.items():
            test = tests.get(method)
            rows.append({
                "metric": self.metric.name, "partition": partition, "method": method, "measure": name, "value": mean.value, "low": mean.low, "high": mean.high, "std": mean.std,
                "seeds": mean.count, "undefined": mean.undefined, "position": positions.get(method), "rank": ranks.get(method),
                "difference": test.difference if test else None, "p": test.adjusted if test else None,
                "note": (test.note if test else "") or self._reason(method, partition, name) or mean.note,
            })  # fmt: skip
        return rows

    def _step(self, measure: str) -> float | None:
        """The smallest step of an extreme or a share over clients; None for other measures."""
        run = self.entries[0].run
        if measure == "harmed":
            return 1 / max(1, len(run.values))
        if measure not in EXTREMES:
            return None
        sizes = [run.test_sizes[client] for client in run.values if client in run.test_sizes]
        return 1 / max(1.0, median(sizes)) if self.metric.name == "accuracy" and sizes else 0.0

    def _reason(self, method: str, partition: str, measure: str) -> str:
        found = (self.entry(method, partition, seed) for seed in self.seeds)
        return next(
            (
                entry.measured[1][measure]
                for entry in found
                if entry and measure in entry.measured[1]
            ),
            "",
        )

    def row(self, partition: str, method: str, measure: str) -> dict[str, Any] | None:
        return self._rows_by_key.get((partition, method, measure))

    @cached_property
    def _rows_by_key(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        return {(row["partition"], row["method"], row["measure"]): row for row in self.own_rows}

    def settings(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        """(method, partition) -> the grid point that was chosen on validation data."""
        return {
            (entry.label, entry.run.condition[0]): dict(entry.setting)
            for entry in self.entries
            if entry.setting
        }

    def as_plain(self) -> dict[str, Any]:
        """All of it as plain data; numbers that do not exist are null."""
        here = self.folder or Path()
        return {
            "format": FORMAT,
            "metric": self.metric.name,
            "lower_is_better": self.metric.lower_is_better,
            "metrics": {
                name: {"unit": find(name).unit, "lower_is_better": find(name).lower_is_better}
                for name in self.metrics
            },
            "baseline": self.baseline,
            "level": self.level,
            "measure": self.measure,
            "columns": list(self.asked),
            "target": self.target,
            "not converged": {
                partition: list(self.rising(partition)) for partition in self.partitions
            },
            "seeds": self.seeds,
            "entries": [
                {
                    "method": entry.label,
                    "partition": entry.run.condition[0],
                    "seed": entry.run.condition[1],
                    "setting": dict(entry.setting),
                    "run": _inside(entry.run.folder, here),
                    "alone": _inside(entry.alone.folder, here) if entry.alone is not None else None,
                    "measures": {name: _number(value) for name, value in entry.measured[0].items()},
                    "clients": {
                        client: _number(value) for client, value in entry.run.values.items()
                    },
                    "clients by metric": {
                        name: {client: _number(value) for client, value in values.items()}
                        for name, values in entry.run.by_metric.items()
                    },
                    "undefined": {
                        name: clients for name, clients in entry.run.undefined.items() if clients
                    },
                }
                for entry in self.entries
            ],
            "table": [{key: _number(value) for key, value in row.items()} for row in self.rows],
            "failures": [asdict(failure) for failure in self.failures],
        }


def opened(paths: Sequence[Path | str], against: Path | str | None = None) -> Comparison:
    """The runs in these folders as one table; of a comparison on disk with all that it was asked."""
    folder = Path(paths[0]) if len(paths) == 1 else None
    if folder is None or not (folder / RESULT).exists():
        entries = open_runs(paths, against)
        return Comparison(entries, default_baseline([entry.label for entry in entries]))
    entries, saved = open_comparison(folder)
    if against is not None:
        raise RunError(
            f"{folder} is a comparison, whose runs are judged against its own runs of training alone; leave out --against"
        )
    try:
        failures = [Failure(**row) for row in saved["failures"]]
        baseline, level = str(saved["baseline"]), float(saved["level"])
        measure = str(saved.get("measure", "average"))  # a comparison of version 0.1 has none
        asked, target = (
            tuple(map(str, saved.get("columns", ()))),
            saved.get("target"),
        )  # nor has one of version 0.1 these
        entries = [
            replace(entry, target=None if target is None else float(target)) for entry in entries
        ]
        found = Comparison(
            entries,
            baseline,
            failures,
            folder,
            level=level,
            measure=measure,
            asked=asked,
            target=target,
        )
        fits = 0 < level < 1 and measure in found.measures and set(asked) <= set(ASKED)
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise damaged(folder)
    return found


def _positions(values: Mapping[str, float], lower: bool | None) -> dict[str, int]:
    """1 for the best and 2 for the second best, equal values sharing; nothing where there is nothing to choose from.

    >>> _positions({"a": 0.7, "b": 0.9, "c": 0.9, "d": 0.8}, lower=False)
    {'b': 1, 'c': 1, 'd': 2}
    """
    if lower is None or len(values) < 2:
        return {}
    levels = sorted(set(values.values()), reverse=not lower)[:2]
    return {
        method: 1 + levels.index(value)
        for method, value in sorted(values.items())
        if value in levels
    }


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _inside(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)

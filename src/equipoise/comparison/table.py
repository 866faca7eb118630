"""The table of a comparison: means and intervals over seeds, tests, ranks, best entries."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from equipoise.comparison.entries import FORMAT, RESULT, Entry, damaged, open_comparison, open_runs
from equipoise.comparison.measures import (
    BY_SAMPLE_GROUP,
    COST,
    DISTANCES,
    EXTREMES,
    MOST_GROUPS,
    OPTIONAL,
    Measure,
    is_of_group,
    measures,
)
from equipoise.comparison.plan import Refusal, default_baseline
from equipoise.comparison.targets import Target, checked_target, with_targets
from equipoise.metrics import (
    Interval,
    Metric,
    PairedTest,
    PartialMetric,
    UndefinedMetric,
    against_baseline,
    average_ranks,
    over_seeds,
)
from equipoise.metrics.gains import SIGNIFICANT
from equipoise.metrics.registry import find
from equipoise.runs.aggregates import NAN
from equipoise.runs.convergence import not_converged
from equipoise.runs.curves import average
from equipoise.storage.files import RunError


@dataclass(frozen=True)
class Failure:
    """A run without a result, and the reason."""

    method: str
    partition: str
    seed: int
    reason: str


def with_partition_names(failures: Iterable[Failure], entries: Sequence[Entry]) -> list[Failure]:
    """Return failures with the partition that "auto" stands for, if some run of it finished."""
    names = {}
    for entry in entries:
        names[str(entry.run.config["data"]["partition"])] = entry.run.partition
    named = []
    for failure in failures:
        partition, comma, sweep = failure.partition.partition(", ")
        name = names.get(partition, partition)
        named.append(replace(failure, partition=f"{name}{comma}{sweep}"))
    return named


@dataclass(frozen=True)
class Comparison:
    """Several runs on identical data.

    Attributes:
        entries: The runs.
        baseline: The method that the others are tested against.
        failures: The runs that have no result.
        folder: The folder of the comparison; None if it was put together from runs.
        level: The level of the intervals over seeds.
        measure: The measure that methods are ranked by.
        optional: Further columns of the table.
        target: A mean over clients, for the rounds to it; a number, `METHOD.best`, or these by
            partition.
        refusals: The methods that refuse their settings.
    """

    entries: Sequence[Entry]
    baseline: str
    failures: Sequence[Failure] = ()
    folder: Path | None = None
    level: float = field(default=0.95, kw_only=True)
    measure: str = field(default="average", kw_only=True)
    optional: tuple[str, ...] = field(default=(), kw_only=True)
    target: Target | None = field(default=None, kw_only=True)
    refusals: Sequence[Refusal] = field(default=(), kw_only=True)

    @property
    def metric(self) -> Metric:
        """The metric of the table."""
        return self.entries[0].metric if self.entries else find("accuracy")

    @property
    def metrics(self) -> list[str]:
        """The metrics that all runs measured, that of the table first."""
        names = self.entries[0].run.metrics if self.entries else {}
        return sorted(names, key=lambda name: name != self.metric.name)

    def with_metric(self, metric: str) -> Comparison:
        """Return the same runs in a table about another of their metrics."""
        if metric == self.metric.name:
            return self
        return replace(self, entries=[entry.with_metric(metric) for entry in self.entries])

    @property
    def measures(self) -> dict[str, Measure]:
        """Name -> measure, of all that there are."""
        return measures(self.metric, self.groups, self._has_sample_groups)

    @property
    def _has_sample_groups(self) -> bool:
        """True if a run has results by group of samples."""
        runs = [entry.run for entry in self.entries]
        return any(run.models[run.main_model].groups is not None for run in runs)

    @cached_property
    def groups(self) -> list[str]:
        """The groups of clients, such as domains, in the order of their names."""
        return sorted({group for entry in self.entries for group in entry.run.groups.values()})

    @property
    def columns(self) -> dict[str, Measure]:
        """Name -> measure, of those that the table shows; CSV and JSON have all."""
        hidden = set(OPTIONAL) - set(BY_SAMPLE_GROUP)
        for name in self.measures:
            is_default = name.startswith("average[") and len(self.groups) <= MOST_GROUPS
            if is_of_group(name) and not is_default:
                hidden.add(name)
        hidden -= set(self.optional)
        if not any(entry.run.main.majority for entry in self.entries):
            hidden.add("majority")
        return {name: measure for name, measure in self.measures.items() if name not in hidden}

    def not_converged(self, partition: str) -> dict[str, str]:
        """Return method -> sentence, of methods whose mean still improved at the end."""
        sentences = {}
        for method in self.methods:
            curves = [entry.run.main.curve for entry in self.of_method(method, partition)]
            # A model that diverged has no mean.
            curves = [curve for curve in curves if curve.rounds and curve.is_finite]
            sentence = not_converged(average(curves), self.metric) if curves else ""
            if sentence:
                sentences[method] = sentence
        return sentences

    @property
    def partitions(self) -> list[str]:
        """The partitions, in the order of the runs."""
        return list(dict.fromkeys(entry.run.condition[0] for entry in self.entries))

    @property
    def methods(self) -> list[str]:
        """The labels of the methods, in the order of the runs."""
        return list(dict.fromkeys(entry.label for entry in self.entries))

    @property
    def seeds(self) -> list[int]:
        """The seeds, rising."""
        return sorted({entry.run.condition[1] for entry in self.entries})

    @cached_property
    def _by_condition(self) -> dict[tuple[str, str, int], Entry]:
        return {(entry.label, *entry.run.condition): entry for entry in self.entries}

    def entry(self, method: str, partition: str, seed: int) -> Entry | None:
        """Return a run; None if it has no result."""
        return self._by_condition.get((method, partition, seed))

    def of_method(self, method: str, partition: str) -> list[Entry]:
        """Return the runs of a method on a partition, one for each seed that has a result."""
        entries = (self.entry(method, partition, seed) for seed in self.seeds)
        return [entry for entry in entries if entry is not None]

    def per_seed(self, partition: str, measure: str) -> dict[str, list[float]]:
        """Return method -> one value per seed.

        NaN stands for a run without a result and for a number that does not exist.
        """
        by_method = {}
        for method in self.methods:
            if not self.of_method(method, partition):
                continue
            values = []
            for seed in self.seeds:
                entry = self.entry(method, partition, seed)
                # A group of clients may have no value in some run.
                known = {} if entry is None else entry.aggregates.values
                values.append(known.get(measure, NAN))
            by_method[method] = values
        return by_method

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One record per metric, partition, measure and method, as `pandas.DataFrame` takes it.

        The metric of the table comes first, and only it has rows of cost, which is the same for
        all. `position` is 1 for the best method and 2 for the second best; `p` is adjusted by
        Holm's method over all methods compared.
        """
        rows = list(self.own_rows)
        for metric in self.metrics[1:]:
            for row in self.with_metric(metric).own_rows:
                if row["measure"] not in (*COST, *DISTANCES, *BY_SAMPLE_GROUP):
                    rows.append(row)
        return rows

    @cached_property
    def own_rows(self) -> list[dict[str, Any]]:
        """The rows of the metric of the table."""
        rows = []
        for partition in self.partitions:
            for name in self.measures:
                rows += self._rows(partition, name)
        return rows

    def _rows(self, partition: str, name: str) -> list[dict[str, Any]]:
        statistics = self._statistics(partition, name)
        rows = []
        for method, mean in statistics.means.items():
            test = statistics.tests.get(method)
            note = test.note if test else ""
            rows.append(
                {
                    "metric": self.metric.name,
                    "partition": partition,
                    "method": method,
                    "measure": name,
                    "value": mean.value,
                    "low": mean.low,
                    "high": mean.high,
                    "std": mean.std,
                    "seeds": mean.count,
                    "undefined": mean.undefined,
                    "position": statistics.positions.get(method),
                    "rank": statistics.ranks.get(method),
                    "difference": test.difference if test else None,
                    "p": test.adjusted if test else None,
                    "note": note or self._reason(method, partition, name) or mean.note,
                }
            )
        return rows

    def _statistics(self, partition: str, name: str) -> _Statistics:
        lower = self.measures[name].lower
        values = self.per_seed(partition, name)
        known = {
            method: numbers
            for method, numbers in values.items()
            if not all(map(math.isnan, numbers))
        }
        step = self._step(partition, name)
        complete = _complete(known)
        means: dict[str, Interval] = {}
        tests: dict[str, PairedTest] = {}
        ranks: dict[str, float] = {}
        with warnings.catch_warnings():
            # The rows report gaps themselves, as `seeds`, `undefined` and `note`.
            warnings.simplefilter("ignore", UndefinedMetric)
            warnings.simplefilter("ignore", PartialMetric)
            for method, numbers in values.items():
                means[method] = over_seeds(numbers, self.level, extreme_step=step)
            if lower is not None:
                ranks = average_ranks(complete, lower)
                if self.baseline in known:
                    tests = self._tests(partition, known, self.baseline)
        positions = _positions({method: means[method].value for method in complete}, lower)
        return _Statistics(means, tests, ranks, positions)

    def _tests(
        self, partition: str, values: Mapping[str, list[float]], baseline: str
    ) -> dict[str, PairedTest]:
        """Return the test of every other method against one; rows of one model are tested once.

        The model that was chosen on validation data, say, often has a row of its own, too. Counted
        twice, it would make the correction for the number of tests stricter.
        """
        first = {self._served(baseline, partition): baseline}
        for method in values:
            first.setdefault(self._served(method, partition), method)
        tests = against_baseline({name: values[name] for name in first.values()}, baseline)
        for method in values:
            name = first[self._served(method, partition)]
            if name == baseline != method:
                pair = {baseline: values[baseline], method: values[method]}
                tests |= against_baseline(pair, baseline)
            elif name != method:
                tests[method] = tests[name]
        return tests

    def _served(self, method: str, partition: str) -> tuple[tuple[Path, str], ...]:
        """Return the models behind a row, one for each seed."""
        entries = self.of_method(method, partition)
        return tuple((entry.run.folder, entry.run.main_model) for entry in entries)

    def _step(self, partition: str, measure: str) -> float | None:
        """Return the smallest step of an extreme or a share over clients; None for others."""
        entries = [entry for entry in self.entries if entry.run.condition[0] == partition]
        results = [entry.run.main for entry in entries]
        if measure == "harmed":
            return 1 / max(1, min(len(scores.values) for scores in results))
        if measure not in EXTREMES:
            return None
        sizes = []
        for scores in results:
            sizes += [
                scores.test_sizes[client] for client in scores.values if client in scores.test_sizes
            ]
        if self.metric.name != "accuracy" or not sizes:
            return 0.0
        return 1 / max(1.0, median(sizes))

    def _reason(self, method: str, partition: str, measure: str) -> str:
        for entry in self.of_method(method, partition):
            if measure in entry.aggregates.reasons:
                return entry.aggregates.reasons[measure]
        return ""

    def row(self, partition: str, method: str, measure: str) -> dict[str, Any] | None:
        """Return one record of the table; None if the method has no run on the partition."""
        return self._rows_by_key.get((partition, method, measure))

    @cached_property
    def _rows_by_key(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        return {(row["partition"], row["method"], row["measure"]): row for row in self.own_rows}

    def is_complete(self, row: Mapping[str, Any]) -> bool:
        """Return True if a record has a value in as many seeds as any other of its column."""
        return bool(row["seeds"] == self._most_seeds[row["partition"], row["measure"]])

    @cached_property
    def _most_seeds(self) -> dict[tuple[str, str], int]:
        """(partition, measure) -> largest number of seeds with a value."""
        most: dict[tuple[str, str], int] = {}
        for row in self.own_rows:
            key = (row["partition"], row["measure"])
            most[key] = max(most.get(key, 0), row["seeds"])
        return most

    def clearly_best(self, partition: str, measure: str) -> str:
        """Return the method that differs significantly from every other; empty if there is none.

        Each other method is tested against the best one: a paired t test over seeds with Holm's
        correction.
        """
        return self._clearly_best.get((partition, measure), "")

    @cached_property
    def _clearly_best(self) -> dict[tuple[str, str], str]:
        best = {}
        for partition in self.partitions:
            for name in self.measures:
                method = self._tested_best(partition, name)
                if method:
                    best[partition, name] = method
        return best

    def _tested_best(self, partition: str, measure: str) -> str:
        rows = {}
        for method in self.methods:
            row = self.row(partition, method, measure)
            if row is not None:
                rows[method] = row
        best = [method for method, row in rows.items() if row["position"] == 1]
        if len(best) != 1:
            return ""
        values = self.per_seed(partition, measure)
        known = {}
        for method, numbers in values.items():
            if not all(map(math.isnan, numbers)):
                known[method] = numbers
        tests = self._tests(partition, known, best[0])
        significant = [
            test.adjusted is not None and test.adjusted < SIGNIFICANT for test in tests.values()
        ]
        return best[0] if tests and all(significant) else ""

    def settings(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return method and partition -> the grid point that was chosen on validation data."""
        chosen = {}
        for entry in self.entries:
            if entry.setting:
                chosen[entry.label, entry.run.condition[0]] = dict(entry.setting)
        return chosen

    @property
    def swept(self) -> str:
        """The setting that a sweep varies; empty without a sweep."""
        varied = self.entries[0].run.varied if self.entries else {}
        return next(iter(varied), "")

    def overrides(self) -> dict[str, Mapping[str, Any]]:
        """Return method -> its settings that differ from those of the comparison."""
        return {entry.label: dict(entry.overrides) for entry in self.entries if entry.overrides}

    def selections(self) -> dict[tuple[str, str], dict[int, str]]:
        """Return method and partition -> seed -> the model that was chosen on validation data."""
        chosen: dict[tuple[str, str], dict[int, str]] = {}
        for entry in self.entries:
            partition, seed = entry.run.condition
            if entry.selected:
                chosen.setdefault((entry.label, partition), {})[seed] = entry.run.main_model
        return chosen

    def as_plain(self) -> dict[str, Any]:
        """Return all of it as plain data; numbers that do not exist are None."""
        folder = self.folder or Path()
        metrics = {}
        for name in self.metrics:
            metric = find(name)
            metrics[name] = {"unit": metric.unit, "lower_is_better": metric.lower_is_better}
        return {
            "format": FORMAT,
            "metric": self.metric.name,
            "lower_is_better": self.metric.lower_is_better,
            "metrics": metrics,
            "baseline": self.baseline,
            "level": self.level,
            "measure": self.measure,
            "columns": list(self.optional),
            "target": self.target,
            "not converged": {
                partition: list(self.not_converged(partition)) for partition in self.partitions
            },
            "seeds": self.seeds,
            "entries": [_plain_entry(entry, folder) for entry in self.entries],
            "table": [_plain_numbers(row) for row in self.rows],
            "failures": [asdict(failure) for failure in self.failures],
            "refusals": [asdict(refusal) for refusal in self.refusals],
        }


@dataclass(frozen=True)
class _Statistics:
    """One measure over seeds, by method."""

    means: dict[str, Interval]
    tests: dict[str, PairedTest]
    ranks: dict[str, float]
    positions: dict[str, int]


def opened(
    paths: Sequence[Path | str], against: Path | str | None = None, details: bool = False
) -> Comparison:
    """Read the runs in some folders as one table.

    Args:
        paths: Folders of runs, or the folder of one comparison.
        against: The run of training alone that gains are counted against.
        details: Read what only reports show, too.

    Raises:
        RunError: A folder cannot be read, or runs do not belong in one table.
    """
    folder = Path(paths[0]) if len(paths) == 1 else None
    if folder is None or not (folder / RESULT).exists():
        entries = open_runs(paths, against, details)
        return Comparison(entries, default_baseline([entry.label for entry in entries]))
    entries, saved = open_comparison(folder, details)
    if against is not None:
        raise RunError(
            f"{folder} is a comparison, which has its own runs of training alone; leave out "
            "--against"
        )
    return _restored(folder, entries, saved)


def _restored(folder: Path, entries: Sequence[Entry], saved: Mapping[str, Any]) -> Comparison:
    """Return a saved comparison with its settings; a file of version 0.1 lacks some."""
    try:
        target = checked_target(saved.get("target"))
        baseline = str(saved["baseline"])
        comparison = Comparison(
            with_targets(entries, target, baseline),
            baseline,
            with_partition_names([Failure(**row) for row in saved["failures"]], entries),
            folder,
            level=float(saved["level"]),
            measure=str(saved.get("measure", "average")),
            optional=tuple(map(str, saved.get("columns", ()))),
            target=target,
            refusals=[Refusal(**row) for row in saved.get("refusals", ())],
        )
    except (KeyError, TypeError, ValueError):
        raise damaged(folder) from None
    known = comparison.measure in comparison.measures and all(
        name in OPTIONAL or is_of_group(name) for name in comparison.optional
    )
    if not known or not 0 < comparison.level < 1:
        raise damaged(folder)
    return comparison


def _positions(values: Mapping[str, float], lower: bool | None) -> dict[str, int]:
    """Return 1 for the best and 2 for the second best method; equal values share.

    >>> _positions({"a": 0.7, "b": 0.9, "c": 0.9, "d": 0.8}, lower=False)
    {'b': 1, 'c': 1, 'd': 2}
    """
    if lower is None or len(values) < 2:
        return {}
    levels: list[float] = []
    positions = {}
    for method in sorted(values, key=lambda name: (values[name] * (1 if lower else -1), name)):
        if not levels or not is_equal(values[method], levels[-1]):
            levels.append(values[method])
        if len(levels) > 2:
            break
        positions[method] = len(levels)
    return positions


def is_equal(first: float, second: float) -> bool:
    """Return True if two numbers differ by rounding at most."""
    return math.isclose(first, second, rel_tol=1e-12, abs_tol=1e-15)


def _complete(values: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Return the methods that have a value in as many seeds as any other.

    A mean over fewer seeds, such as those in which a model did not diverge, could look better than
    it is. Such methods have no rank.
    """
    counts = {
        method: sum(not math.isnan(value) for value in numbers)
        for method, numbers in values.items()
    }
    most = max(counts.values(), default=0)
    return {method: numbers for method, numbers in values.items() if counts[method] == most}


def _plain_entry(entry: Entry, folder: Path) -> dict[str, Any]:
    run = entry.run
    # Training alone is its own baseline.
    alone = run if run.is_standalone else run.baseline
    by_metric = {name: _plain_numbers(scores.values) for name, scores in run.metrics.items()}
    undefined = {
        name: list(scores.undefined) for name, scores in run.metrics.items() if scores.undefined
    }
    return {
        "method": entry.label,
        "partition": run.condition[0],
        "seed": run.condition[1],
        "setting": dict(entry.setting),
        "model": run.main_model,
        "selected": entry.selected,
        "sweep": dict(run.varied),
        "overrides": dict(entry.overrides),
        "run": _relative(run.folder, folder),
        "alone": None if alone is None else _relative(alone.folder, folder),
        "measures": _plain_numbers(entry.aggregates.values),
        "clients": _plain_numbers(run.main.values),
        "clients by metric": by_metric,
        "undefined": undefined,
    }


def _plain_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with None in place of numbers that JSON cannot hold."""
    plain = {}
    for key, value in values.items():
        unwritable = isinstance(value, float) and not math.isfinite(value)
        plain[key] = None if unwritable else value
    return plain


def _relative(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)

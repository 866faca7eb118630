"""The table of a study: measures by row, condition and seed, with the noise of finite test sets."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import stats

from equipoise.comparison.served import best_model
from equipoise.comparison.targets import BEST
from equipoise.metrics import speed_up
from equipoise.metrics.registry import Metric, find
from equipoise.runs.aggregates import aggregate
from equipoise.runs.baseline import ALONE
from equipoise.runs.curves import Curve
from equipoise.study.definition import AGAINST_ALONE, Row, Study, trains_alone
from equipoise.study.plan import Refusal
from equipoise.study.records import Record
from equipoise.study.verdicts import Key, Sample, Verdict, judge

DRAWS = 1000
FIXED_TESTS = ("global", "site")  # official test parts, the same with every seed
OF_CURVES = ("best_round", "rounds_to_target", "speed_up")  # no known sampling error
NAN = float("nan")


@dataclass(frozen=True)
class StudyTable:
    """The results of a study at one scale.

    Attributes:
        study: The study.
        scale: Name of the scale.
        records: Results of all finished runs.
        refusals: Methods that refuse the settings of a condition, and so never have results.
        outdated: Number of lines of the file of results that belong to other settings of the
            study, and are not among the records.
    """

    study: Study
    scale: str
    records: tuple[Record, ...]
    refusals: tuple[Refusal, ...] = ()
    outdated: int = 0

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
            without=self._without,
            refused=self._refused,
        )

    def records_of(self, row: str, condition: str) -> list[Record]:
        """Return the results of a row under a condition, a record per seed."""
        return list(self._rows.get((row, condition), {}).values())

    def baseline_of(self, record: Record) -> Record | None:
        """Return the result of training alone that belongs to a record; None without one."""
        return self._alone.get(record.baseline)

    def lacks_baseline(self, record: Record) -> bool:
        """Return True if the run of training alone that belongs to a record has no result yet."""
        return bool(record.baseline) and record.baseline not in self._alone

    @cached_property
    def _without(self) -> set[tuple[str, str]]:
        """Rows of training alone with the measures that compare a row with training alone."""
        methods = self.study.file.methods
        alone = [row.name for row in self.study.rows if trains_alone(methods[row.method])]
        return {(row, measure) for row in alone for measure in AGAINST_ALONE}

    @cached_property
    def _refused(self) -> set[tuple[str, str]]:
        """Rows with the conditions at which their method refuses its settings."""
        refusing = {(refusal.method, refusal.condition) for refusal in self.refusals}
        return {
            (row.name, condition)
            for row in self.study.rows
            for method, condition in refusing
            if row.method == method
        }

    @cached_property
    def _rows(self) -> dict[tuple[str, str], dict[int, Record]]:
        """(row, condition) -> seed -> its record."""
        runs: dict[tuple[str, str, int], dict[str, Record]] = {}
        for record in self.records:
            served = runs.setdefault((record.method, record.condition, record.seed), {})
            served[record.model] = record
        rows: dict[tuple[str, str], dict[int, Record]] = {}
        for row in self.study.rows:
            for (method, condition, seed), served in runs.items():
                if method != row.method:
                    continue
                own = served_record(list(served.values()), row)
                if own is not None:
                    rows.setdefault((row.name, condition), {})[seed] = own
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
        draws = {}
        undefined = []
        for record in records:
            if needs_baseline(column) and self.lacks_baseline(record):
                continue  # Training alone has not been run yet: no value so far.
            value = self._value(record, column)
            if not math.isfinite(value):
                undefined.append(record.seed)
                continue
            values[record.seed] = value
            if column in self._claimed:
                baseline = self._alone.get(record.baseline)
                drawn = redraw(record, baseline, column, self._test(record))
                if drawn is not None:
                    draws[record.seed] = drawn
        fixed_test = any(self._test(record) in FIXED_TESTS for record in records)
        return Sample(values, draws, tuple(undefined), fixed_test)

    def _test(self, record: Record) -> str:
        """Return whose samples the clients were tested on; older records do not tell."""
        return record.test or self.study.test(record.condition)

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


def needs_baseline(column: str) -> bool:
    """Return True if a measure compares a row with training alone."""
    return column.partition("[")[0] in AGAINST_ALONE


def served_record(served: Sequence[Record], row: Row) -> Record | None:
    """Return the record of a row among those of the served models of one run."""
    if row.selected:
        main_first = sorted(served, key=lambda record: not record.main)
        means = {record.model: _or_nan(record.validation) for record in main_first}
        # Without any value on validation data, as after divergence, the main model is served.
        model = best_model(means, find(served[0].metric)) or main_first[0].model
        return next(record for record in served if record.model == model)
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
    return _measure(record, _own_values(record, column.partition("[")[0]), alone, column)


def redraw(
    record: Record, baseline: Record | None, column: str, test: str = "local"
) -> np.ndarray | None:
    """Return what a number could have been with other test samples of the same numbers.

    Accuracies are drawn anew from binomial distributions. The same test samples of the same model
    give the same draws wherever they occur: the errors of training alone cancel between rows that
    are compared with it, as they do in the table.

    Other metrics have no known distribution: None. So have costs and distances.

    Args:
        record: The result that the number is about.
        baseline: The result of training alone, for changes.
        column: The measure, with a group of clients in brackets or without.
        test: Whose samples the clients are tested on, as `Record.test` has it.

    Returns:
        The number by draw, NaN where it does not exist; None if it mostly does not exist.
    """
    if record.metric != "accuracy" or any(size < 1 for size in record.test_sizes.values()):
        return None
    name = column.partition("[")[0]
    if name in record.cost or name in OF_CURVES:
        return None
    clients = [client for client in record.values if _in_group(record, client, column)]
    # Errors of different models on one test set are correlated, nobody knows how much. Moving
    # together is worst for an average, moving apart for a deviation or a correlation.
    correlations = (False,) if test == "local" else (True, False)
    drawn = [
        _redrawn_measure(record, baseline, clients, name, _Draws(test, together))
        for together in correlations
    ]
    known = [one for one in drawn if np.isfinite(one).sum() > DRAWS // 2]
    return max(known, key=np.nanvar, default=None)


def _in_group(record: Record, client: str, column: str) -> bool:
    group = column.removesuffix("]").partition("[")[2]
    return not group or group in (client, record.groups.get(client))


@dataclass(frozen=True)
class _Draws:
    """Accuracies drawn anew.

    Attributes:
        test: Whose samples the clients are tested on.
        together: True if errors of different models on one test set rise and fall together.
    """

    test: str
    together: bool

    def of(self, record: Record, clients: Sequence[str], name: str) -> np.ndarray:
        """Return the accuracies of a result, draws x clients.

        Args:
            record: The result.
            clients: The clients.
            name: The measure that they are drawn for. That of the best round is about another
                model than the others.
        """
        values = _own_values(record, name)
        model = "best round" if name == "best_average" else ""
        drawn: dict[tuple[str, int, float], np.ndarray] = {}
        columns = []
        for client in clients:
            size = record.test_sizes[client]
            accuracy = min(max(values[client], 0.0), 1.0)
            key = (self._samples(record, client, accuracy), size, accuracy)
            if key not in drawn:
                # The same draws in every process, whatever else is drawn.
                words = "\0".join((record.run, record.model, model, key[0]))
                digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
                rng = np.random.default_rng(int.from_bytes(digest, "big"))
                if self.test != "local" and self.together:
                    # The quantiles of all accuracies on one test set.
                    correct = stats.binom.ppf(rng.uniform(size=DRAWS), size, accuracy)
                else:
                    correct = rng.binomial(size, accuracy, size=DRAWS)
                drawn[key] = correct / size
            columns.append(drawn[key])
        return np.stack(columns, axis=1)

    def _samples(self, record: Record, client: str, accuracy: float) -> str:
        """Return a name for the samples whose errors a client's accuracy shares."""
        if self.test == "local":
            return client
        test_set = record.groups.get(client, client) if self.test == "site" else ""
        # Clients with one accuracy on one test set have one model.
        return test_set if self.together else f"{test_set} {accuracy}"


def _own_values(record: Record, name: str) -> dict[str, float]:
    """Return the values of a result by client that a measure is computed from."""
    if name == "cf" and record.after_local:
        # One model and one test set for all: equal values have no correlation.
        return {client: _or_nan(value) for client, value in record.after_local.items()}
    return _values(record)


def _redrawn_measure(
    record: Record, baseline: Record | None, clients: Sequence[str], name: str, draws: _Draws
) -> np.ndarray:
    """Return one number of a table for each draw of accuracies; NaN where it does not exist."""
    values = _own_values(record, name)
    alone = {} if baseline is None else _values(baseline)
    if name in AGAINST_ALONE:
        clients = [client for client in clients if math.isfinite(alone.get(client, NAN))]
    clients = [client for client in clients if math.isfinite(values.get(client, NAN))]
    if not clients:
        return np.full(DRAWS, NAN)
    together = draws.of(record, clients, name)
    if name in _LEVELS:
        return _LEVELS[name](together)
    if baseline is None or name not in AGAINST_ALONE:
        return np.full(DRAWS, NAN)
    before = draws.of(baseline, clients, "")
    return _correlations(before, together) if name == "cf" else _CHANGES[name](together - before)


def _correlations(before: np.ndarray, together: np.ndarray) -> np.ndarray:
    """Return 100 times the correlation of each row; NaN where all values of one are equal."""
    first = before - before.mean(1, keepdims=True)
    second = together - together.mean(1, keepdims=True)
    norms = np.sqrt((first**2).sum(1) * (second**2).sum(1))
    correlations: np.ndarray = np.full(len(norms), NAN)
    np.divide(100 * (first * second).sum(1), norms, out=correlations, where=norms > 0)
    return correlations


# Numbers of a table for many draws at once; `aggregate` has the same of one.
_LEVELS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "average": lambda drawn: drawn.mean(1),
    "best_average": lambda drawn: drawn.mean(1),
    "worst": lambda drawn: drawn.min(1),
    "best": lambda drawn: drawn.max(1),
    "std": lambda drawn: drawn.std(1),
}
_CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "change": lambda drawn: drawn.mean(1),
    "worst_change": lambda drawn: drawn.min(1),
    "p10_change": lambda drawn: np.percentile(drawn, 10, axis=1),
    "p90_change": lambda drawn: np.percentile(drawn, 90, axis=1),
    "harmed": lambda drawn: (drawn < 0).mean(1),
}


def _values(record: Record) -> dict[str, float]:
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
    if not together:
        return NAN
    return aggregate(together, alone, metric).values.get(name, NAN)


def _of_group(
    values: Mapping[str, float], groups: Mapping[str, str], group: str
) -> dict[str, float]:
    """Return the values of the clients of a group, or of the one client of that name."""
    return {
        client: value for client, value in values.items() if group in (client, groups.get(client))
    }


def _best(record: Record, metric: Metric, name: str) -> float:
    best = curve_of(record).best(metric)
    if best is None:
        return NAN
    return float(best[0] if name == "best_round" else best[1])

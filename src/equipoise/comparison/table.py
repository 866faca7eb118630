"""The table of a comparison: means with intervals over seeds, tests against a baseline, ranks, best and second best."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from equipoise.comparison.entries import FORMAT, RESULT, Entry
from equipoise.comparison.measures import NAN, Measure, measures
from equipoise.metrics import PartialMetric, UndefinedMetric, against_baseline, average_ranks, over_seeds
from equipoise.runs.files import save_output


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
    level: float = field(default=0.95, kw_only=True)

    @property
    def lower(self) -> bool:
        return bool(self.entries) and self.entries[0].lower

    @property
    def metric(self) -> str:
        return self.entries[0].run.metric if self.entries else "accuracy"

    @property
    def measures(self) -> dict[str, Measure]:
        return measures(self.lower)

    @property
    def partitions(self) -> list[str]:
        return list(dict.fromkeys(entry.run.place[0] for entry in self.entries))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(entry.label for entry in self.entries))

    @property
    def seeds(self) -> list[int]:
        return sorted({entry.run.place[1] for entry in self.entries})

    @cached_property
    def _by_place(self) -> dict[tuple[str, str, int], Entry]:
        return {(entry.label, *entry.run.place): entry for entry in self.entries}

    def entry(self, method: str, partition: str, seed: int) -> Entry | None:
        return self._by_place.get((method, partition, seed))

    def per_seed(self, partition: str, measure: str) -> dict[str, list[float]]:
        """Method -> one value per seed, NaN where a run is missing or the number does not exist."""
        found = {}
        for method in self.methods:
            entries = [self.entry(method, partition, seed) for seed in self.seeds]
            if any(entries):
                found[method] = [NAN if entry is None else entry.measured[0][measure] for entry in entries]
        return found

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One record per partition, method and measure; `pandas.DataFrame(comparison.rows)` takes it as it is.

        `place` is 1 for the best method and 2 for the second best; `p` is adjusted by Holm's method over all methods compared.
        """
        return [row for partition in self.partitions for name in self.measures for row in self._rows(partition, name)]

    def _rows(self, partition: str, name: str) -> list[dict[str, Any]]:
        measure, values = self.measures[name], self.per_seed(partition, name)
        known = {method: numbers for method, numbers in values.items() if not all(map(math.isnan, numbers))}
        with warnings.catch_warnings():  # gaps are told in the rows: `seeds`, `undefined`, `note`
            warnings.simplefilter("ignore", UndefinedMetric)
            warnings.simplefilter("ignore", PartialMetric)
            means = {method: over_seeds(numbers, self.level) for method, numbers in values.items()}
            tests = against_baseline(known, self.baseline) if self.baseline in known and measure.lower is not None else {}
            ranks = average_ranks(known, measure.lower) if measure.lower is not None else {}
        places = _places({method: means[method].value for method in known}, measure.lower)
        rows = []
        for method, mean in means.items():
            test = tests.get(method)
            rows.append({
                "partition": partition, "method": method, "measure": name, "value": mean.value, "low": mean.low, "high": mean.high, "std": mean.std,
                "seeds": mean.count, "undefined": mean.undefined, "place": places.get(method), "rank": ranks.get(method),
                "difference": test.difference if test else None, "p": test.adjusted if test else None,
                "note": test.note if test and test.note else self._reason(method, partition, name),
            })  # fmt: skip
        return rows

    def _reason(self, method: str, partition: str, measure: str) -> str:
        found = (self.entry(method, partition, seed) for seed in self.seeds)
        return next((entry.measured[1][measure] for entry in found if entry and measure in entry.measured[1]), "")

    def row(self, partition: str, method: str, measure: str) -> dict[str, Any] | None:
        return self._rows_by_key.get((partition, method, measure))

    @cached_property
    def _rows_by_key(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        return {(row["partition"], row["method"], row["measure"]): row for row in self.rows}

    def settings(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        """(method, partition) -> the grid point that was chosen on validation data."""
        return {(entry.label, entry.run.place[0]): dict(entry.setting) for entry in self.entries if entry.setting}

    def as_plain(self) -> dict[str, Any]:
        """All of it as plain data; numbers that do not exist are null."""
        here = self.folder or Path()
        return {
            "format": FORMAT,
            "metric": self.metric,
            "lower_is_better": self.lower,
            "baseline": self.baseline,
            "level": self.level,
            "seeds": self.seeds,
            "entries": [
                {
                    "method": entry.label,
                    "partition": entry.run.place[0],
                    "seed": entry.run.place[1],
                    "setting": dict(entry.setting),
                    "run": _inside(entry.run.folder, here),
                    "alone": _inside(entry.alone.folder, here) if entry.alone is not None else None,
                    "measures": {name: _number(value) for name, value in entry.measured[0].items()},
                    "clients": {client: _number(value) for client, value in entry.run.values.items()},
                }
                for entry in self.entries
            ],
            "table": [{key: _number(value) for key, value in row.items()} for row in self.rows],
            "failures": [asdict(failure) for failure in self.failures],
        }

    def save(self) -> None:
        """Write the result into the comparison's folder: JSON, Markdown, LaTeX and CSV."""
        from equipoise.comparison import formats

        assert self.folder is not None
        written = {
            RESULT: json.dumps(self.as_plain(), indent=1, allow_nan=False),
            "table.md": formats.markdown(self),
            "table.tex": formats.latex(self),
            "table.csv": formats.csv_text(self),
        }
        for name, text in written.items():
            save_output(self.folder / name, text)


def _places(values: Mapping[str, float], lower: bool | None) -> dict[str, int]:
    """1 for the best and 2 for the second best, equal values sharing; nothing where there is nothing to choose from.

    >>> _places({"a": 0.7, "b": 0.9, "c": 0.9, "d": 0.8}, lower=False)
    {'b': 1, 'c': 1, 'd': 2}
    """
    if lower is None or len(values) < 2:
        return {}
    levels = sorted(set(values.values()), reverse=not lower)[:2]
    return {method: 1 + levels.index(value) for method, value in sorted(values.items()) if value in levels}


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _inside(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)

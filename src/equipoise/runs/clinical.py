"""Clinical measures of a run, beside accuracy where classes are unequal, each with its 95 % interval where there is one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from equipoise.metrics import score_histograms
from equipoise.metrics.diagnostic_intervals import limits_of
from equipoise.runs.run import Run
from equipoise.runtime.client_histograms import FEWEST

UNEQUAL = 1.2  # times its even share: from there on the most frequent class makes accuracy shine
TITLES = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "balanced_accuracy": "balanced accuracy",
    "sensitivity_at_specificity": "sensitivity at 90 % specificity",
    "calibration_error": "calibration error",
}


@dataclass(frozen=True)
class ClinicalValue:
    """A clinical measure on one test set."""

    value: float
    low: float | None = (
        None  # 95 % interval over other test sets with as many samples of each class
    )
    high: float | None = None
    reason: str = ""  # why there is no interval
    # how far the value may be from that of the scores, if it comes from a histogram; 0 if it is exact
    resolution: float = 0.0

    def in_percent(self) -> str:
        """
        >>> ClinicalValue(0.624, 0.5, 0.74).in_percent(), ClinicalValue(0.529, resolution=0.1).in_percent()
        ('62.4 (50 to 74)', '52.9 ± 10.0')
        """
        if np.isnan(self.value):
            return "–"
        exact = "" if self.resolution < 0.0005 else f" ± {100 * self.resolution:.1f}"
        if self.low is None or self.high is None:
            return f"{100 * self.value:.1f}{exact}"
        return f"{100 * self.value:.1f}{exact} ({100 * self.low:.0f} to {100 * self.high:.0f})"

    def as_dict(self) -> dict[str, Any]:
        """Return the value as plain data."""
        return asdict(self)


def unequal(found: Mapping[str, score_histograms.Counts]) -> bool:
    """Whether accuracy alone would mislead: the classes of all test data together are unequal or, of two classes, those of any client."""
    if not found:
        return False
    whole = score_histograms.pooled(list(found.values()))
    return any(
        score_histograms.majority(table) * len(table) > UNEQUAL
        for table in (whole, *(found.values() if len(whole) == 2 else ()))
    )


def derived(run: Run) -> dict[str, dict[str, ClinicalValue]]:
    """Return metric -> client -> value of the metrics that the run did not measure in every round.

    Empty where classes are equal or no client sent a histogram.
    """
    measured = _measured(run)
    found: dict[str, dict[str, ClinicalValue]] = {
        name: {} for name in score_histograms.MEASURES if name not in measured
    }
    by_client = clinical(run)
    for client, values in by_client.items():
        for name, one in values.items():
            if name in found and not np.isnan(one.value):
                found[name][client] = one
    return found if by_client else {}


def clinical(run: Run, model: str | None = None) -> dict[str, dict[str, ClinicalValue]]:
    """Return client -> measure -> value; empty where classes are equal or no client sent a histogram."""
    return of_clients(run, model) if unequal(run.counts(model)) else {}


def of_clients(run: Run, model: str | None = None) -> dict[str, dict[str, ClinicalValue]]:
    """Return client -> measure -> value of all clients that sent a histogram, also where classes are equal."""
    tables = run.counts(model)
    exact = _exact(run, model or run.main_model)
    return {
        client: _of_client(table, {name: exact[name].get(client) for name in exact})
        for client, table in tables.items()
    }


def _of_client(
    table: score_histograms.Counts, exact: Mapping[str, float | None]
) -> dict[str, ClinicalValue]:
    """Prefer the value of the scores themselves; a run of an older version has that of a histogram only."""
    found = {}
    binned = score_histograms.measures(table) if None in exact.values() else {}
    for name, sent in exact.items():
        value = binned[name] if sent is None else sent
        unsure = 0.0
        if sent is None and not np.isnan(value):
            unsure = score_histograms.resolution(table)[name]
        ends = limits_of(name, table, value)
        found[name] = ClinicalValue(value, ends.low, ends.high, ends.reason, unsure)
    return found


def _exact(run: Run, model: str) -> dict[str, dict[str, float]]:
    """Return measure -> client -> value as the clients computed it from their scores."""
    measured = _measured(run)
    what = {"phase": "clinical", "model": model, "split": run.main_split}
    return {
        name: run.final(name, model)
        if name in measured
        else dict(run.columns("client", "value", metric=name, **what))
        for name in score_histograms.MEASURES
    }


def _measured(run: Run) -> set[str]:
    rows = run.store.rows("select distinct metric from measurements where phase = 'received'")
    return {row["metric"] for row in rows}


def notes(found: Mapping[str, Mapping[str, ClinicalValue]]) -> list[str]:
    """Return sentences to stand below the measures: where there is no interval and why, and what is not exact.

    >>> few = {"auroc": ClinicalValue(0.9, reason="fewer than 20 test samples of a class")}
    >>> notes({"a": few, "b": {"auroc": ClinicalValue(0.8, 0.7, 0.9)}})
    ['no interval of AUROC for 1 of 2 clients: fewer than 20 test samples of a class']
    """
    missing: dict[tuple[str, int], list[str]] = {}
    for name in score_histograms.MEASURES:
        reasons = [values[name].reason for values in found.values() if name in values]
        for reason in dict.fromkeys(reasons):
            if reason:
                missing.setdefault((reason, reasons.count(reason)), []).append(TITLES[name])
    sentences = []
    for (reason, count), names in missing.items():
        whose = "" if count == len(found) else f" for {count} of {len(found)} clients"
        sentences.append(f"no interval of {', '.join(names)}{whose}: {reason}")
    coarse = [one for values in found.values() for one in values.values() if one.resolution]
    if coarse:
        sentences.append(
            "±: an older version counted scores in whole per cent; values may be off by that much"
        )
    return sentences


def silent(clients: Collection[str], counted: Collection[str]) -> str:
    """Who is missing among the clinical measures, and why: a sentence, empty if nobody is.

    >>> silent(["north", "south"], ["north"])
    '1 of 2 clients sent no counts: fewer than 30 test samples, or they may not'
    """
    missing = len(set(clients) - set(counted))
    return (
        f"{missing} of {len(clients)} clients sent no counts: fewer than {FEWEST} test samples, or they may not"
        if missing
        else ""
    )


def classes_of(run: Run) -> list[tuple[int, str]]:
    """The classes that have a curve, with their names: of two the second one, else all."""
    names = run.task.class_names or tuple(map(str, range(run.task.outputs)))
    return [(1, names[1])] if len(names) == 2 else list(enumerate(names))


def thresholds(table: score_histograms.Counts, of: int) -> list[dict[str, Any]]:
    """Sensitivity, specificity, PPV and NPV at some thresholds on the score of a class."""
    return [
        {"threshold": percent, **score_histograms.at_threshold(table[of, 0], table[of, 1], percent)}
        for percent in (10, 20, 30, 50, 70, 80, 90)
    ]

"""Clinical measures of a run, each with its 95 % interval where there is one.

They are shown where classes are unequal and accuracy alone would mislead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from equipoise.metrics import score_histograms
from equipoise.metrics.diagnostic_intervals import limits_of
from equipoise.metrics.score_histograms import Counts
from equipoise.runs.run import Run
from equipoise.runtime.client_histograms import FEWEST
from equipoise.task import Task

# Classes are unequal if the most frequent one has this many times its even share.
UNEQUAL = 1.2
THRESHOLDS = (10, 20, 30, 50, 70, 80, 90)  # in per cent
TITLES = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "balanced_accuracy": "balanced accuracy",
    "sensitivity_at_specificity": "sensitivity at 90 % specificity",
    "calibration_error": "calibration error",
}


@dataclass(frozen=True)
class ClinicalValue:
    """A clinical measure on one test set.

    Attributes:
        value: The measure, from 0 to 1; NaN if it does not exist.
        low: Lower end of the 95 % interval over other test sets with as many samples of each class.
        high: Upper end.
        reason: Why there is no interval.
        resolution: How far the value may be from that of the scores; 0 unless it comes from a
            histogram.
    """

    value: float
    low: float | None = None
    high: float | None = None
    reason: str = ""
    resolution: float = 0.0

    def in_percent(self) -> str:
        """Return the value with its interval as text.

        >>> ClinicalValue(0.624, 0.5, 0.74).in_percent()
        '62.4 (50 to 74)'
        >>> ClinicalValue(0.529, resolution=0.1).in_percent()
        '52.9 ± 10.0'
        """
        if np.isnan(self.value):
            return "–"
        text = f"{100 * self.value:.1f}"
        if self.resolution >= 0.0005:
            text += f" ± {100 * self.resolution:.1f}"
        if self.low is not None and self.high is not None:
            text += f" ({100 * self.low:.0f} to {100 * self.high:.0f})"
        return text

    def as_dict(self) -> dict[str, Any]:
        """Return the value as plain data."""
        return asdict(self)


ByClient = dict[str, dict[str, ClinicalValue]]  # client -> measure -> value


def unequal(histograms: Mapping[str, Counts]) -> bool:
    """Return True if accuracy alone would mislead.

    That is so if the classes of all test data together are unequal or, of two classes, those of any
    client.

    Args:
        histograms: Client -> histogram of scores.
    """
    if not histograms:
        return False
    whole = score_histograms.pooled(list(histograms.values()))
    tables = [whole]
    if len(whole) == 2:
        tables += histograms.values()
    return any(score_histograms.majority(table) * len(table) > UNEQUAL for table in tables)


def clinical_values(
    histograms: Mapping[str, Counts], exact: Mapping[str, Mapping[str, float]]
) -> ByClient:
    """Return the clinical measures of all clients that sent a histogram.

    Args:
        histograms: Client -> histogram of scores.
        exact: Measure -> client -> value that the client computed from its scores.
    """
    by_client = {}
    for client, table in histograms.items():
        own = {name: values.get(client) for name, values in exact.items()}
        by_client[client] = _of_client(table, own)
    return by_client


def _of_client(table: Counts, exact: Mapping[str, float | None]) -> dict[str, ClinicalValue]:
    """Prefer the exact value; a run of an older version has that of the histogram only."""
    values = {}
    binned: dict[str, float] = {}
    if None in exact.values():
        binned = score_histograms.measures(table)
    for name, sent in exact.items():
        value = binned[name] if sent is None else sent
        resolution = 0.0
        if sent is None and not np.isnan(value):
            resolution = score_histograms.resolution(table)[name]
        ends = limits_of(name, table, value)
        values[name] = ClinicalValue(value, ends.low, ends.high, ends.reason, resolution)
    return values


def read_exact(run: Run, model: str, measured: Collection[str]) -> dict[str, dict[str, float]]:
    """Return measure -> client -> value as the clients computed it from their scores.

    Args:
        run: An open run.
        model: The served model.
        measured: The metrics that the run measured in every round.
    """
    selection = {"phase": "clinical", "model": model, "split": run.main_split}
    exact = {}
    for name in score_histograms.MEASURES:
        if name in measured:
            exact[name] = run.final(name, model)
        else:
            exact[name] = dict(run.columns("client", "value", metric=name, **selection))
    return exact


def interval_notes(values: Mapping[str, Mapping[str, ClinicalValue]]) -> list[str]:
    """Return sentences about measures that have no interval or are not exact.

    >>> few = {"auroc": ClinicalValue(0.9, reason="fewer than 20 test samples of a class")}
    >>> interval_notes({"a": few, "b": {"auroc": ClinicalValue(0.8, 0.7, 0.9)}})
    ['no interval of AUROC for 1 of 2 clients: fewer than 20 test samples of a class']
    """
    titles: dict[tuple[str, int], list[str]] = {}  # reason and number of clients -> measures
    for name in score_histograms.MEASURES:
        reasons = [own[name].reason for own in values.values() if name in own]
        for reason in dict.fromkeys(reasons):
            if reason:
                titles.setdefault((reason, reasons.count(reason)), []).append(TITLES[name])
    sentences = []
    for (reason, count), names in titles.items():
        concerned = "" if count == len(values) else f" for {count} of {len(values)} clients"
        sentences.append(f"no interval of {', '.join(names)}{concerned}: {reason}")
    if any(value.resolution for own in values.values() for value in own.values()):
        sentences.append(
            "±: an older version counted scores in whole per cent; values may be off by that much"
        )
    return sentences


def missing_histograms(clients: Collection[str], counted: Collection[str]) -> str:
    """Return a sentence about clients that sent no histogram; empty if all did.

    >>> missing_histograms(["north", "south"], ["north"])
    '1 of 2 clients sent no counts: fewer than 30 test samples, a diverged model, or they may not'
    """
    missing = len(set(clients) - set(counted))
    if not missing:
        return ""
    return (
        f"{missing} of {len(clients)} clients sent no counts: fewer than {FEWEST} test samples, a "
        "diverged model, or they may not"
    )


def classes_with_curves(task: Task) -> list[tuple[int, str]]:
    """Return index and name of the classes that have a curve: of two the second one, else all."""
    names = task.class_names or tuple(map(str, range(task.outputs)))
    if len(names) == 2:
        return [(1, names[1])]
    return list(enumerate(names))


def thresholds(table: Counts, index: int) -> list[dict[str, Any]]:
    """Return sensitivity, specificity, PPV and NPV at some thresholds on the score of a class."""
    positives = table[index, score_histograms.POSITIVES]
    negatives = table[index, score_histograms.NEGATIVES]
    rows = []
    for percent in THRESHOLDS:
        measures = score_histograms.at_threshold(positives, negatives, percent)
        rows.append({"threshold": percent, **measures})
    return rows

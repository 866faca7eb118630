"""The summary of a run as plain data: what `equipoise show --json` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from equipoise.metrics import accuracy_variance, between_client_variance
from equipoise.metrics.gains import SIGNIFICANT
from equipoise.runs.groups import GroupReport
from equipoise.runs.notes import no_test, notes
from equipoise.runs.result import MetricResult, RunResult

LEVEL = ("average", "worst", "best", "std")


def summarise(
    result: RunResult, model: str | None = None, metric: str | None = None
) -> dict[str, Any]:
    """Return the summary of a run.

    Args:
        result: The result of the run, with its baseline if gains are to be shown.
        model: The served model; by default the main one.
        metric: The metric; by default the main one.

    Raises:
        ValueError: There is no such model.
        RunError: The metric was not measured.
    """
    scores = result.metric(metric, model)
    model = model or result.main_model
    served = result.models[model]
    summary: dict[str, Any] = {
        "run": str(result.folder),
        "status": result.status,
        "round": result.last_round,
        "rounds": result.config["rounds"],
        "data": result.data,
        "partition": result.config["data"]["partition"],
        "method": result.config["method"],
        "seed": result.config["seed"],
        "created": result.created,
        "clients": len(result.clients),
        "model": model,
        "models": [name for name, other in result.models.items() if other.metrics],
        "metric": scores.metric.name,
        "metrics": {
            name: _level(other) for name, other in served.metrics.items() if not other.once
        },
        "split": result.main_split,
        "rejected replies": result.rejected,
        "outdated": result.outdated,
        "without": list(result.config["data"].get("without", ())),
        "digest": result.digest,
        "notes": [*notes(result, metric, model), *gain_notes(result, scores)],
        **_level(scores),
        **_best_round(scores),
        **std_without_noise(result, scores),
        "clinical": _clinical(served.clinical),
        **_groups(served.groups),
        **gain_counts(result, scores),
        "per client": _rows(result, scores),
    }
    return summary


def _level(scores: MetricResult) -> dict[str, float]:
    if not scores.values:
        return {}
    return {name: scores.aggregates[name] for name in LEVEL}


def _best_round(scores: MetricResult) -> dict[str, float]:
    """Return the round with the best average; it was chosen by test data, so it is no result."""
    best = scores.curve.best(scores.metric)
    if not scores.values or best is None:
        return {}
    return {"best round": best[0], "average then": best[1]}


def std_without_noise(result: RunResult, scores: MetricResult) -> dict[str, float]:
    """Return the spread of accuracy over clients that finite test sets do not explain.

    It is empty where it cannot be computed: for other metrics, for a shared test set, and for
    clients with fewer than two test samples.
    """
    if scores.metric.name != "accuracy" or result.main_split != "test" or not scores.values:
        return {}
    totals = [scores.test_sizes.get(client, 0) for client in scores.values]
    accuracies = list(scores.values.values())
    if min(totals) < 2 or not np.isfinite(accuracies).all():
        return {}
    noise = accuracy_variance(accuracies, totals)
    variance = between_client_variance(accuracies, noise)["debiased"]
    return {"std without test noise": math.sqrt(variance)}


def gain_counts(result: RunResult, scores: MetricResult) -> dict[str, Any]:
    """Return how many clients gain and lose against the baseline; empty if that is not known."""
    gains = list(scores.gains.values())
    if result.baseline is None or not gains:
        return {}
    counts = {
        "against": str(result.baseline.folder),
        "gained": sum(gain > 0 for gain in gains),
        "lost": sum(gain < 0 for gain in gains),
        "average gain": float(np.mean(gains)),
    }
    if scores.gain_tests:
        clear = [test.value for test in scores.gain_tests.values() if _is_clear(test.p)]
        counts["clearly gained"] = sum(gain > 0 for gain in clear)
        counts["clearly lost"] = sum(gain < 0 for gain in clear)
    return counts


def _is_clear(p: float | None) -> bool:
    return p is not None and p < SIGNIFICANT


def gain_notes(result: RunResult, scores: MetricResult) -> list[str]:
    """Return why gains are not known, or why they have no test."""
    if result.baseline is None or not scores.values:
        return []
    if not scores.gains:
        return [
            f"{result.baseline.folder} has no {scores.metric.name} of these clients, so gains over "
            "training alone are not known"
        ]
    if not scores.gain_tests:
        return [no_test(scores.metric.name)]
    return []


def _clinical(by_client: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    plain = {}
    for client, values in by_client.items():
        plain[client] = {name: value.as_dict() for name, value in values.items()}
    return plain


def _groups(report: GroupReport | None) -> dict[str, Any]:
    """Return the results by site and group; nothing without groups."""
    if report is None:
        return {}
    numbers = {"threshold": report.threshold, **report.aggregates}
    return {"groups": {**numbers, "rows": list(report.rows()), "notes": list(report.notes)}}


def _rows(result: RunResult, scores: MetricResult) -> dict[str, dict[str, Any]]:
    sizes = result.training_sizes()
    majority = scores.majority if scores.metric.name == "accuracy" else {}
    baseline = scores.baseline or {}
    rows = {}
    for client, value in scores.values.items():
        row: dict[str, Any] = {"samples": sizes.get(client), "value": value}
        if client in majority:
            row["majority"] = majority[client]
        if client in baseline:
            row["alone"] = baseline[client]
            row["gain"] = scores.gains[client]
        test = scores.gain_tests.get(client)
        if test is not None:
            row |= {"gain low": test.low, "gain high": test.high, "p": test.p}
        rows[client] = row
    return rows

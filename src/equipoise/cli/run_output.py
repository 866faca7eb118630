"""Printing the result of a run: averages, and what each client gains or loses."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection

import numpy as np

from equipoise import methods
from equipoise.cli import output
from equipoise.cli.output import say, styled
from equipoise.comparison.formats import figure
from equipoise.comparison.measures import in_unit_of
from equipoise.data.message_text import counted
from equipoise.metrics import Metric
from equipoise.metrics.gains import Gain
from equipoise.runs import MetricResult, ModelResult, Run, RunResult, read_result
from equipoise.runs.baseline import find_baseline
from equipoise.runs.clinical import (
    TITLES,
    classes_with_curves,
    interval_notes,
    missing_histograms,
)
from equipoise.runs.groups import cell_rows, gap_rows, sentence
from equipoise.runs.notes import notes
from equipoise.runs.summary import gain_counts, gain_notes, std_without_noise, summarise

MOST_LISTED = 50  # clients that a terminal shows; of more, those at both ends
AT_EACH_END = 10
MOST_CLINICAL = 20
MOST_CELLS = 40  # groups at sites that a terminal shows
QUANTILES = (1, 10, 25, 50, 75, 90, 99)  # in per cent


def summary(run: Run) -> None:
    """Print what the end of a run shows."""
    show(read_with_baseline(run))
    say(
        "saved in ",
        styled(str(run.folder), "bold"),
        f"; look again with: equipoise show {run.folder}",
        wrap=False,
    )


def read_with_baseline(run: Run, baseline: Run | None = None) -> RunResult:
    """Read the result of a run.

    Args:
        run: The run.
        baseline: The run to compare clients with; by default a run of training alone next to it.
    """
    return read_result(run, baseline or find_baseline(run))


def show_json(result: RunResult, model: str | None = None, metric: str | None = None) -> None:
    """Print the summary of a run as JSON."""
    summary = output.plain(summarise(result, model, metric))
    print(json.dumps(summary, indent=2, allow_nan=False))


def show(result: RunResult, model: str | None = None, metric: str | None = None) -> None:
    """Print the result of a run; arguments and errors are those of `summarise`."""
    scores = result.metric(metric, model)
    served = result.models[model or result.main_model]
    _show_head(result)
    remarks = [*notes(result, metric, model), *gain_notes(result, scores)]
    for remark in remarks:
        say(remark, wrap=False)
    if not scores.values:
        say("no client has a value" if remarks else "nothing measured yet")
        return
    _show_clients(result, scores, served.name)
    _show_averages(result, scores)
    _show_other_metrics(result, served, scores.metric)
    _show_clinical(served, scores.values if result.main_split == "test" else ())
    _show_groups(result, served)
    _show_gains(result, scores)


def _show_head(result: RunResult) -> None:
    method = result.config["method"]
    parameters = ", ".join(f"{key}={value}" for key, value in method.items() if key != "name")
    details = f" ({parameters})" if parameters else ""
    partition, seed = result.condition
    status = result.status
    if status == "finished" and result.last_round < result.config["rounds"]:
        status = "stopped early"
    clients = counted(len(result.clients), "client")
    say(
        styled(methods.shown(method["name"]), "bold"),
        f"{details} on {result.data}, partition {partition}, {clients}, "
        f"seed {seed}: {status}, round {result.last_round} of {result.config['rounds']}",
    )
    if result.outdated:
        say(f"outdated: {result.outdated}; run it again for numbers of this version", wrap=False)
    left = result.config["data"].get("without", ())
    if left:
        say(
            f"without {', '.join(left)}, as if they had never joined; digest of the result: "
            f"{result.digest}",
            wrap=False,
        )
    if result.rejected:
        say(f"{counted(result.rejected, 'reply', 'replies')} did not count")


def _show_clients(result: RunResult, scores: MetricResult, model: str) -> None:
    metric = scores.metric
    baseline = scores.baseline or {}
    majority = scores.majority if metric.name == "accuracy" else {}
    sizes = result.training_sizes()
    header = ["client", "samples"]
    if scores.gains:
        header.append("alone")
    header.append(model)
    if majority:
        header.append("majority class")
    if scores.gains:
        header += ["gain", ""]
    rows = []
    for client in _listed(scores):
        row = [client, str(sizes.get(client, ""))]
        if scores.gains:
            row.append(_number(baseline[client], metric) if client in baseline else "")
        row.append(_number(scores.values[client], metric))
        if majority:
            row.append(_number(majority[client], metric) if client in majority else "")
        if scores.gains:
            row += _gain_cells(scores, client)
        rows.append(row)
    title = f"{metric.title} of the {model} model on {result.main_split} data"
    output.table(header, rows, title)
    if len(scores.values) > MOST_LISTED:
        _show_quantiles(result, scores)


def _number(value: float, metric: Metric, signed: bool = False) -> str:
    return figure(value, in_unit_of(metric), signed)


def _listed(scores: MetricResult) -> list[str]:
    """Return the clients to list: all, or of many the worst and the best."""
    if len(scores.values) <= MOST_LISTED:
        return list(scores.values)
    sign = -1 if scores.metric.lower_is_better else 1

    def quality(client: str) -> tuple[bool, float]:
        value = scores.values[client]
        return not math.isnan(value), sign * value  # a diverged model is worst

    order = sorted(scores.values, key=quality)
    return [*order[:AT_EACH_END], *order[-AT_EACH_END:]]


def _gain_cells(scores: MetricResult, client: str) -> list[str]:
    gain = scores.gains.get(client)
    if gain is None:
        return ["", ""]
    verdict = _verdict(gain, scores.gain_tests.get(client))
    return [_number(gain, scores.metric, signed=True), verdict]


def _verdict(gain: float, test: Gain | None) -> str:
    """Return whether a client gains or loses, and whether that may be chance."""
    if math.isnan(gain):
        return ""
    if not gain:
        return "equal"
    chance = " (may be chance)" if test is not None and not test.clear else ""
    if gain > 0:
        return styled(f"gains{chance}", "green")
    return styled(f"loses{chance}", "red")


def _show_quantiles(result: RunResult, scores: MetricResult) -> None:
    values = np.quantile(list(scores.values.values()), [share / 100 for share in QUANTILES])
    quantiles = ", ".join(
        f"{share} % {_number(float(value), scores.metric)}"
        for share, value in zip(QUANTILES, values, strict=True)
    )
    say(
        f"the {AT_EACH_END} worst and the {AT_EACH_END} best of {len(scores.values):,} clients; "
        f"all: equipoise show {result.folder} --json",
        wrap=False,
    )
    say(f"quantiles over clients: {quantiles}", wrap=False)


def _show_averages(result: RunResult, scores: MetricResult) -> None:
    metric = scores.metric
    parts = []
    for name, title in (("average", "average"), ("worst", "worst"), ("best", "best")):
        parts.append(f"{title} {_number(scores.aggregates[name], metric)}")
    spread = f"std over clients {_number(scores.aggregates['std'], metric)}"
    for value in std_without_noise(result, scores).values():
        spread += f" ({_number(value, metric)} without the noise of finite test sets)"
    line = ", ".join([*parts, spread])
    best = scores.curve.best(metric)
    if best is not None:
        number, mean = best
        last = scores.curve.final_phase and number == scores.curve.rounds[-1]
        when = "best after the final phase" if last else f"best round {number}"
        line += f"; {when} ({_number(mean, metric)})"
    say(line, wrap=False)


def _show_other_metrics(result: RunResult, served: ModelResult, metric: Metric) -> None:
    averages = {}
    for name, other in served.metrics.items():
        if name != metric.name and other.values and not other.once:
            averages[name] = _number(other.aggregates["average"], other.metric)
            if len(other.values) < len(result.clients):
                averages[name] += f" ({len(other.values)} of {len(result.clients)} clients)"
    if not averages:
        return
    means = ", ".join(f"{name} {average}" for name, average in averages.items())
    first = next(iter(averages))
    say(
        f"average of other metrics: {means}; equipoise show {result.folder} --metric {first}",
        wrap=False,
    )


def _show_clinical(served: ModelResult, clients: Collection[str]) -> None:
    """Print the clinical measures, each with its interval."""
    values = served.clinical
    if not values:
        return
    names = list(next(iter(values.values())))
    rows = []
    for client, own in list(values.items())[:MOST_CLINICAL]:
        rows.append([client, *(own[name].in_percent() for name in names)])
    title = "classes are unequal; in %, with 95 % intervals over other test sets like it"
    output.table(["client", *(TITLES[name] for name in names)], rows, title)
    if len(values) > MOST_CLINICAL:
        say(f"... and {len(values) - MOST_CLINICAL} more clients")
    for note in interval_notes(values):
        say(note)
    missing = missing_histograms(clients, values)
    if missing:
        say(missing)


def _show_groups(result: RunResult, served: ModelResult) -> None:
    """Print the results by site and group, and the gaps between groups."""
    report = served.groups
    if report is None:
        return
    header, rows = cell_rows(report, with_intervals=False)
    title = (
        f"by site and group; in %, with exact 95 % intervals, at a score of {report.threshold} %"
    )
    output.table(header, rows[:MOST_CELLS], title)
    if len(rows) > MOST_CELLS:
        say(f"the first {MOST_CELLS} of {len(rows):,} groups")
    say(f"all groups, with all intervals: equipoise table {result.folder} --groups", wrap=False)
    header, rows = gap_rows(report)
    if rows:
        title = "gaps between groups in percentage points, with intervals of at least 95 %"
        output.table(header, rows[-MOST_CELLS:], title)
    for note in report.notes:
        say(note)
    say(sentence(report, classes_with_curves(result.task)[-1][1]))


def _show_gains(result: RunResult, scores: MetricResult) -> None:
    counts = gain_counts(result, scores)
    if not counts:
        return
    line = (
        f"against training alone ({counts['against']}): {counts['gained']} of "
        f"{counted(len(scores.gains), 'client')} gain, {counts['lost']} lose, average gain "
        f"{_number(counts['average gain'], scores.metric, signed=True)}"
    )
    if "clearly gained" in counts:
        line += (
            "; significant (exact McNemar test at 5 % for each client): "
            f"{counts['clearly gained']} gain, {counts['clearly lost']} lose"
        )
    say(line, wrap=False)


def profile(run: Run) -> None:
    """Print the time of each phase of a round, as medians over all rounds."""
    seconds = [record["seconds"] for record in run.rounds()]
    # A phase with an @ belongs to one node of a cluster.
    phases = [
        phase for phase in dict.fromkeys(key for row in seconds for key in row) if "@" not in phase
    ]
    medians = {}
    for phase in phases:
        medians[phase] = statistics.median(row.get(phase, 0.0) for row in seconds)
    total = sum(medians.values()) or 1.0
    rows = []
    for phase, median in medians.items():
        rows.append([phase, f"{median * 1000:.2f}", f"{median / total:.0%}"])
    output.table(["phase", "ms per round", "share"], rows)

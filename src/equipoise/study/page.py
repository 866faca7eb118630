"""A study as a page of Markdown: verdicts, tables beside the printed numbers, and conditions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from equipoise.comparison.measures import Measure, measures
from equipoise.metrics.registry import Metric
from equipoise.study.definition import PAPER
from equipoise.study.plan import Refusal
from equipoise.study.table import StudyTable
from equipoise.study.verdicts import FAILS, HOLDS, OPEN, Sample, Test, Verdict

SYMBOLS = {HOLDS: "✔ holds", FAILS: "✘ does not hold", OPEN: "? cannot be told"}
NOTHING = "–"


def study_page(table: StudyTable, refusals: Sequence[Refusal] = ()) -> str:
    """Return the page of a study.

    Args:
        table: The results.
        refusals: Methods that refuse their settings, named under the tables.
    """
    file = table.study.file
    parts = [f"# {file.title}", _header(table)]
    if not table.records:
        return "\n\n".join([*parts, "Nothing has been run at this scale yet."]) + "\n"
    parts.append(_verdicts(table))
    scale = table.study.scale(table.scale)
    for condition in table.study.conditions(scale):
        parts.append(_condition(table, condition))
    parts.append(_legend(table))
    if refusals:
        lines = [f"- {one.method} at {one.condition}: {one.reason}" for one in refusals]
        parts.append("\n".join(["## Methods that refused their settings", "", *lines]))
    if file.source is not None and file.source.notes:
        notes = [f"- {note}" for note in file.source.notes]
        parts.append("\n".join(["## Differences from the paper", "", *notes]))
    return "\n\n".join(parts) + "\n"


def count_decisions(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Return decision -> number of claims."""
    counts = dict.fromkeys((HOLDS, FAILS, OPEN), 0)
    for verdict in verdicts:
        counts[verdict.decision] += 1
    return counts


def _header(table: StudyTable) -> str:
    source = table.study.file.source
    origin = "" if source is None else f"{source.paper}, {source.table}. "
    size = "the paper's own scale" if table.scale == PAPER else f"scale `{table.scale}`"
    runs = len({(r.run, r.method, r.condition) for r in table.records})
    return f"{origin}Run at {size}: {runs} {'run' if runs == 1 else 'runs'}."


def _verdicts(table: StudyTable) -> str:
    if not table.verdicts:
        return "The study makes no claim."
    lines = [
        "## Claims",
        "",
        "| claim | verdict | difference (95 % interval) | smallest detectable | p |",
        "|---|---|---|---|---|",
    ]
    for verdict in table.verdicts:
        lines.append(_verdict_row(verdict, table.metric))
    lines += [
        "",
        "The difference is that of the comparison that supports the claim least; positive supports "
        "the claim. p is corrected for the number of claims (Holm). The smallest detectable "
        "difference is found in 80 % of such studies.",
    ]
    return "\n".join(lines)


def _verdict_row(verdict: Verdict, metric: Metric | None) -> str:
    column = _measure_of(verdict.claim.left.measure, metric)
    weakest = _weakest(verdict.tests)
    text = NOTHING
    if weakest is not None:
        low, high = weakest.difference.interval()
        opponent = "" if weakest.right is None else f" against {weakest.right}"
        mean = _figure(weakest.difference.mean, column, signed=True)
        bounds = f"{_figure(low, column, True)} to {_figure(high, column, True)}"
        text = f"{mean} ({bounds}){opponent} at {weakest.condition}"
    decision = SYMBOLS[verdict.decision]
    if verdict.reason:
        decision += f": {verdict.reason}"
    detectable = _figure(verdict.detectable, column)
    return f"| `{verdict.claim.text}` | {decision} | {text} | {detectable} | {verdict.p:.2g} |"


def _weakest(tests: Sequence[Test]) -> Test | None:
    known = [test for test in tests if math.isfinite(test.difference.mean)]
    return min(known, key=lambda test: test.difference.mean) if known else None


def _condition(table: StudyTable, condition: str) -> str:
    columns = table.study.file.measures
    printed = table.study.file.printed.get(condition, {})
    lines = [f"## {condition}", "", "| row |" + "".join(f" {name} |" for name in columns)]
    lines.append("|---|" + "---|" * len(columns))
    for row in table.study.row_names:
        cells = []
        for name in columns:
            sample = table.samples.get((row, condition, name))
            cells.append(_cell(sample, printed.get(name, {}), row, name, table.metric))
        lines.append(f"| {row} |" + "".join(f" {cell} |" for cell in cells))
    return "\n".join(lines)


def _cell(
    sample: Sample | None,
    printed: Mapping[str, object],
    row: str,
    name: str,
    metric: Metric | None,
) -> str:
    column = _measure_of(name.partition("[")[0], metric)
    ours = NOTHING if sample is None else _mean_with_interval(sample, column)
    if row not in printed:
        return ours
    number = printed[row]
    if isinstance(number, list):
        return f"{ours} *({number[0]} ± {number[1]})*"
    return f"{ours} *({number})*"


def _mean_with_interval(sample: Sample, column: Measure) -> str:
    values = np.array(list(sample.values.values()))
    mean = _figure(float(values.mean()), column)
    if len(values) < 2:
        return mean
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return f"{mean} ± {_figure(half, column)}"


def _measure_of(name: str, metric: Metric | None) -> Measure:
    known = {} if metric is None else measures(metric)
    if name == "best_average":
        name = "average"
    return known.get(name, Measure(name, digits=3))


def _figure(value: float, column: Measure, signed: bool = False) -> str:
    if not math.isfinite(value):
        return NOTHING
    sign = "+" if signed else ""
    return f"{value * column.scale:{sign}.{column.digits}f}"


def _legend(table: StudyTable) -> str:
    machines = sorted({str(r.environment.get("processor", "")) for r in table.records} - {""})
    versions = sorted({record.version for record in table.records} - {""})
    dates = sorted({record.created[:10] for record in table.records} - {""})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}" if dates else "unknown"
    lines = [
        "Means over seeds with 95 % t-intervals; in brackets what the paper prints. One number "
        "without an interval is a single seed.",
        f"Equipoise {', '.join(versions)}; {when}; {', '.join(machines) or 'unknown machine'}.",
    ]
    return "\n".join(lines)

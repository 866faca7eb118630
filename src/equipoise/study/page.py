"""A study as text: verdicts, and tables with the printed numbers next to ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from equipoise.comparison.measures import Measure, measures
from equipoise.data.message_text import counted
from equipoise.metrics.registry import Metric
from equipoise.study.definition import FRACTION, PAPER, Study
from equipoise.study.plan import Refusal, models_of
from equipoise.study.table import StudyTable
from equipoise.study.verdicts import FAILS, HOLDS, OPEN, Sample, Test, Verdict, conditions_of

NOT_RUN = "not run"
DECISIONS = (HOLDS, FAILS, OPEN, NOT_RUN)
SYMBOLS = {HOLDS: "✔ holds", FAILS: "✘ does not hold", OPEN: "? cannot be told", NOT_RUN: NOT_RUN}
NOTHING = "–"
CLAIMS_TEXT = (
    "The difference is that of the comparison that supports the claim least; a positive one "
    "supports the claim. Its interval uses the noise of the whole table, so it may be wider than "
    "those of single rows suggest. p is corrected for the number of claims (Holm). A true "
    "difference of the smallest detectable size would be found in 80 % of such studies. Verdicts "
    "are about new draws of partition, split and initial weights from the same data set, not about "
    "other data."
)
PRELIMINARY = " (preliminary)"
CELLS_TEXT = (
    "“ours” is the mean over seeds with its 95 % t-interval; a number without an interval is a "
    "single seed. Where some seeds have no value, as after divergence, their number is given. "
    "“paper” is what the paper prints, with its deviation."
)


@dataclass(frozen=True)
class Grid:
    """Header and rows of a table."""

    title: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Progress:
    """The finished part of a study at one scale.

    Attributes:
        done: Number of methods, conditions and seeds with results, and with those of training
            alone where the study counts changes against it.
        planned: Number of all of them, without training alone and methods that refuse.
    """

    done: int
    planned: int

    @property
    def complete(self) -> bool:
        """True if nothing is missing."""
        return self.done >= self.planned


def study_page(table: StudyTable) -> str:
    """Return the page of a study in Markdown.

    Args:
        table: The results.
    """
    parts = [f"# {table.study.file.title}", describe_runs(table)]
    if table.verdicts:
        parts.append(f"## Claims\n\n{markdown(claims_grid(table))}\n\n{CLAIMS_TEXT}")
    for grid in condition_grids(table):
        parts.append(f"## {grid.title}\n\n{markdown(grid)}")
    parts.append(CELLS_TEXT)
    parts.append(describe_environment(table))
    parts += [describe_refusals(table.refusals), differences(table.study)]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown(grid: Grid) -> str:
    """Return a table in Markdown."""
    lines = [_markdown_row(grid.header), "|" + "---|" * len(grid.header)]
    lines += [_markdown_row(row) for row in grid.rows]
    return "\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    # A line break, as YAML's `|` leaves it, would end the table.
    in_one_line = [" ".join(cell.split()).replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(in_one_line)} |"


def progress_of(table: StudyTable) -> Progress:
    """Return how much of a study has been run."""
    scale = table.study.scale(table.scale)
    refused = {(refusal.method, refusal.condition) for refusal in table.refusals}
    planned = set()
    for condition in table.study.conditions(scale):
        methods = [name for name in table.study.file.methods if (name, condition) not in refused]
        for seed in table.study.seeds(scale, condition):
            planned |= {(method, condition, seed) for method in methods}
    served: dict[tuple[str, str, int], set[str]] = {}
    for record in table.records:
        if not table.lacks_baseline(record):
            key = (record.method, record.condition, record.seed)
            served.setdefault(key, set()).add(record.model)
    done = {key for key, models in served.items() if models_of(table.study, key[0]) <= models}
    return Progress(len(planned & done), len(planned))


def describe_runs(table: StudyTable) -> str:
    """Return where a table comes from, its scale, and how much of it was run."""
    source = table.study.file.source
    origin = "" if source is None else f"{source.paper}, {source.table}. "
    progress = progress_of(table)
    scale = describe_scale(table.study, table.scale)
    if not progress.done:
        text = f"{origin}Nothing has been run at {scale} yet."
    else:
        amount = "all" if progress.complete else f"{progress.done} of"
        text = f"{origin}Run at {scale}: {amount} {counted(progress.planned, 'run')}."
    if table.outdated:
        text += f" Lines of results that belong to other settings, not shown: {table.outdated}."
    return text


def describe_scale(study: Study, name: str) -> str:
    """Return the name of a scale and the settings in which it differs from the paper's."""
    changes = changes_of_scale(study, name)
    is_own = study.file.source is None  # no paper, whatever the scale is called
    scale = f"scale `{name}`" if is_own else name_of_scale(name)
    return scale + (f" ({changes})" if changes else "")


def name_of_scale(name: str) -> str:
    """Return how pages call a scale."""
    return "the paper's own scale" if name == PAPER else f"scale `{name}`"


def changes_of_scale(study: Study, name: str) -> str:
    """Return the settings in which a scale differs from the paper's; empty if in none."""
    if name == PAPER:
        return ""
    scale = study.scale(name)
    parts = [f"{key} {_setting(value)}" for key, value in scale.settings.items()]
    if scale.seeds is not None:
        parts.append(f"seeds {', '.join(map(str, scale.seeds))}")
    for condition, seeds in scale.seeds_at.items():
        parts.append(f"seeds {', '.join(map(str, seeds))} at {condition}")
    if scale.conditions is not None:
        parts.append(f"only {', '.join(scale.conditions)}")
    return "; ".join(parts)


def _setting(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    parts = [str(part) if key == "name" else f"{key} {part}" for key, part in value.items()]
    return ", ".join(parts)


def decision_of(verdict: Verdict) -> str:
    """Return the decision on a claim; `NOT_RUN` if no seed of its comparisons has been run."""
    if verdict.decision == OPEN and not verdict.seen:
        return NOT_RUN
    return verdict.decision


def count_decisions(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Return decision -> number of claims."""
    counts = dict.fromkeys(DECISIONS, 0)
    for verdict in verdicts:
        counts[decision_of(verdict)] += 1
    return counts


def claims_grid(table: StudyTable) -> Grid:
    """Return the verdicts on all claims."""
    header = ["claim", "the paper", "verdict", "difference (95 %)", "smallest detectable", "p"]
    rows = [_verdict_row(verdict, table) for verdict in table.verdicts]
    return Grid("Claims", header, rows)


def _verdict_row(verdict: Verdict, table: StudyTable) -> list[str]:
    words = table.study.sayings.get(verdict.claim.text, "")
    decision = decision_of(verdict)
    cells = [f"`{verdict.claim.text}`", words, SYMBOLS[decision]]
    if decision == NOT_RUN:
        return [*cells, NOTHING, NOTHING, NOTHING]
    cells[-1] += restriction(table, verdict) + preliminary(table, verdict)
    if verdict.reason:
        cells[-1] += f": {verdict.reason}"
    column = measure_of(verdict.claim.left.measure, table.metric)
    detectable = number(verdict.detectable, column)
    return [*cells, _weakest_difference(verdict.tests, column), detectable, f"{verdict.p:.2g}"]


def restriction(table: StudyTable, verdict: Verdict) -> str:
    """Return the conditions of a verdict if a scale leaves some of its claim's out; else empty."""
    run = table.study.conditions(table.study.scale(table.scale))
    claimed = verdict.claim.conditions or tuple(table.study.file.conditions)
    judged = conditions_of(verdict.claim, run)
    if set(judged) >= set(claimed):
        return ""
    return f" (at {', '.join(judged)} only)"


def preliminary(table: StudyTable, verdict: Verdict) -> str:
    """Return a mark of a decision that missing runs may change; else empty."""
    is_decided = verdict.decision in (HOLDS, FAILS)
    return PRELIMINARY if is_decided and not progress_of(table).complete else ""


def _weakest_difference(tests: Sequence[Test], column: Measure) -> str:
    known = [test for test in tests if math.isfinite(test.difference.mean)]
    if not known:
        return NOTHING
    weakest = min(known, key=lambda test: test.difference.mean)
    text = number(weakest.difference.mean, column, signed=True)
    low, high = weakest.difference.interval()
    if math.isfinite(low):
        text += f" ({number(low, column, signed=True)} to {number(high, column, signed=True)})"
    if weakest.right is not None:
        text += f" against {weakest.right}"
    return f"{text} at {weakest.condition}"


def condition_grids(table: StudyTable) -> list[Grid]:
    """Return a table for each condition: rows by measures, the paper's numbers next to ours."""
    scale = table.study.scale(table.scale)
    shown = table.study.conditions(scale)
    if not table.records:
        shown = [name for name in shown if table.study.file.printed.get(name)]
    return [_condition_grid(table, condition) for condition in shown]


def _condition_grid(table: StudyTable, condition: str) -> Grid:
    study = table.study
    printed = study.file.printed.get(condition, {})
    columns = [name for name in study.file.measures if table.records or name in printed]
    header = ["row"]
    for name in columns:
        header += [f"{name}, paper"] if name in printed else []
        header += [f"{name}, ours"] if table.records else []
    rows = []
    for row in study.row_names:
        if not table.records and not any(row in numbers for numbers in printed.values()):
            continue
        cells = [row]
        for name in columns:
            column = measure_of(name, table.metric)
            if name in printed:
                factor = printed_factor(study, column)
                cells.append(_printed(printed[name].get(row), factor, _decimals(printed[name])))
            if table.records:
                cells.append(_ours(table.samples.get((row, condition, name)), column))
        rows.append(cells)
    return Grid(condition, header, rows)


def printed_factor(study: Study, column: Measure) -> float:
    """Return the factor from a printed number to the unit of our column."""
    return column.scale if study.file.printed_as == FRACTION else 1.0


def core_hours(hours: float) -> str:
    """Return a cost as text: two digits below ten hours, whole hours above.

    >>> core_hours(0.083), core_hours(1), core_hours(2256)
    ('0.083 core-hours', '1 core-hour', '2,256 core-hours')
    """
    if hours == 1:
        return "1 core-hour"
    return f"{hours:.2g} core-hours" if hours < 10 else f"{hours:,.0f} core-hours"


def _printed(value: Any, factor: float, decimals: int) -> str:
    """Return a printed number in our unit, with as many decimals as its column has in the paper."""
    if value is None:
        return NOTHING
    numbers = value if isinstance(value, list) else [value]
    places = max(0, decimals - round(math.log10(factor)))
    return " ± ".join(f"{part * factor:.{places}f}" for part in numbers)


def _decimals(column: Mapping[str, Any]) -> int:
    """Return the number of decimals in a printed column."""
    numbers = []
    for value in column.values():
        numbers += value if isinstance(value, list) else [value]
    digits = [len(f"{number:.6f}".rstrip("0").partition(".")[2]) for number in numbers]
    return max(digits, default=0)


def _ours(sample: Sample | None, column: Measure) -> str:
    if sample is None or not sample.values:
        return NOTHING
    mean, half = mean_and_half(sample)
    text = number(mean, column)
    if not math.isnan(half):
        text += f" ± {number(half, column)}"
    if sample.undefined:
        known = len(sample.values)
        text += f" ({known} of {counted(known + len(sample.undefined), 'seed')})"
    return text


def mean_and_half(sample: Sample) -> tuple[float, float]:
    """Return the mean over seeds and half of its 95 % t-interval; NaN for one seed."""
    values = np.array(list(sample.values.values()))
    if len(values) < 2:
        return float(values.mean()), math.nan
    error = values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean()), float(stats.t.ppf(0.975, len(values) - 1) * error)


def measure_of(name: str, metric: Metric | None) -> Measure:
    """Return how the numbers of a column are written.

    Args:
        name: The measure, with a group of clients in brackets or without.
        metric: The metric of the table; None before the first result.
    """
    known = {} if metric is None else measures(metric, sample_groups=True)
    return known.get(name.partition("[")[0], Measure(name, digits=3))


def number(value: float, column: Measure, signed: bool = False) -> str:
    """Return a number as tables show it."""
    if not math.isfinite(value):
        return NOTHING
    sign = "+" if signed else ""
    return f"{value * column.scale:{sign}.{column.digits}f}"


def describe_environment(table: StudyTable) -> str:
    """Return versions, dates and processors of the runs; empty without runs."""
    if not table.records:
        return ""
    dates = sorted({record.created[:10] for record in table.records} - {""})
    parts = []
    versions = sorted({record.version for record in table.records} - {""})
    if versions:
        parts.append(f"Equipoise {', '.join(versions)}")
    if dates:
        parts.append(dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}")
    for key in ("torch", "cpu"):
        values = sorted({str(record.environment.get(key, "")) for record in table.records} - {""})
        if values:
            parts.append(f"{key} {', '.join(values)}")
    return f"Runs: {'; '.join(parts)}." if parts else ""


def describe_refusals(refusals: Sequence[Refusal]) -> str:
    """Return the methods that refuse their settings, with reasons; empty if none does."""
    if not refusals:
        return ""
    lines = [f"- {refusal.method} at {refusal.condition}: {refusal.reason}" for refusal in refusals]
    return "\n".join(["Methods that refused their settings:", "", *lines])


def differences(study: Study) -> str:
    """Return where a study differs from its paper, and what was changed after a result."""
    source = study.file.source
    if source is None:
        return ""
    parts = []
    if source.notes:
        notes = [f"- {note}" for note in source.notes]
        parts.append("\n".join(["Differences from the paper:", "", *notes]))
    if source.changed:
        changes = [f"- {change}" for change in source.changed]
        parts.append("\n".join(["Changed after a result had been seen:", "", *changes]))
    return "\n\n".join(parts)

"""The page of a study: verdicts on its claims, tables next to the published ones, figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from equipoise.comparison.measures import Measure
from equipoise.metrics.registry import Metric
from equipoise.report import drawing, figures
from equipoise.report.pictures import Picture, figures_in_page
from equipoise.report.render import render
from equipoise.report.wording import title_of
from equipoise.runs.curves import History
from equipoise.storage.files import save_output
from equipoise.storage.store import RunError
from equipoise.study import page
from equipoise.study.definition import PAPER, FigureEntry, load_study
from equipoise.study.records import Record
from equipoise.study.run import read_table, results_path, stored_table
from equipoise.study.table import StudyTable
from equipoise.study.verdicts import Sample
from equipoise.validation.names import nearest

NAN = math.nan


def report_study(
    path: Path | str,
    out: Path | str,
    scale: str | None = None,
    kinds: Sequence[str] = (),
    names: Sequence[str] = (),
    allow_imports: Iterable[str] = (),
) -> list[Path]:
    """Write the page of a study from its file of results.

    Args:
        path: The study's file.
        out: The HTML file.
        scale: The scale; by default the first one with results.
        kinds: Formats ("png", "pdf") in which figures are also written next to the page.
        names: The figures to write; by default all.
        allow_imports: Packages that code named in the file may be imported from.

    Returns:
        The files written, the page first.

    Raises:
        ConfigurationError: The study is wrong, or has no such scale.
        RunError: Results cannot be read, or a file cannot be written.
        ValueError: A figure is unknown.
    """
    allowed = list(allow_imports)
    table = read_table(path, scale or scale_with_results(path, allowed), allowed)
    drawn = pictures_of(table)
    for name in names:
        if name not in drawn:
            raise nearest("figure", name, list(drawn))
    out = Path(out)
    files = [out]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        save_output(out, html_of(table, drawn))
        for kind in kinds:
            for name in names or drawn:
                file = out.with_name(f"{out.stem}-{name}.{kind}")
                save_output(file, drawing.encoded(drawn[name].draw, kind))
                files.append(file)
    except OSError as error:
        raise RunError(
            f"cannot write the report to {out}: {error.strerror or error}; choose a file that can "
            "be written with --out"
        ) from error
    return files


def scale_with_results(path: Path | str, allow_imports: Iterable[str] = ()) -> str:
    """Return the first scale of a study that has results; without any, the first one."""
    study = load_study(path, allow_imports)
    for name in study.file.scales:
        if results_path(study, name).exists() and stored_table(study, name).records:
            return name
    return next(iter(study.file.scales), PAPER)


def html_of(table: StudyTable, drawn: Mapping[str, Picture]) -> str:
    """Return the page of a study."""
    source = table.study.file.source
    counts = page.count_decisions(table.verdicts)
    return render(
        "study.html",
        title=table.study.file.title,
        headline=headline(counts),
        remarks=[page.describe_runs(table), page.describe_environment(table)],
        claims=_claims_in_page(table) if table.verdicts else None,
        claims_text=page.CLAIMS_TEXT,
        tables=page.condition_grids(table),
        tables_text=page.CELLS_TEXT,
        refusals=[
            f"{refusal.method} at {refusal.condition}: {refusal.reason}"
            for refusal in table.refusals
        ],
        pictures=figures_in_page(drawn),
        notes=[] if source is None else source.notes,
        changed=[] if source is None else source.changed,
        command=command_of(table),
    )


def _claims_in_page(table: StudyTable) -> page.Grid:
    """Return the verdicts with each claim set as code."""
    grid = page.claims_grid(table)
    rows = []
    for claim, *cells in grid.rows:
        rows.append([Markup("<code>{}</code>").format(claim.strip("`")), *cells])
    return replace(grid, rows=rows)


def headline(counts: Mapping[str, int]) -> str:
    """Return how many claims hold, as a sentence.

    >>> headline({"holds": 2, "does not hold": 1, "cannot be told": 0, "not run": 0})
    'Of 3 claims, 2 hold, 1 does not hold.'
    """
    total = sum(counts.values())
    if not total:
        return "No claim is made."
    claims = "1 claim" if total == 1 else f"{total} claims"
    if counts[page.NOT_RUN] == total:
        if total == 1:
            return "The claim has not been tested yet."
        return f"None of {claims} has been tested yet."
    parts = []
    for decision, count in counts.items():
        if count:
            parts.append(f"{count} {_verb(decision, count)}")
    return f"Of {claims}, {', '.join(parts)}."


def _verb(decision: str, count: int) -> str:
    if decision == page.NOT_RUN:
        return "was not run" if count == 1 else "were not run"
    if count == 1:
        return decision
    return {"holds": "hold", "does not hold": "do not hold"}.get(decision, decision)


def command_of(table: StudyTable) -> str:
    """Return the command that runs what is missing."""
    scale = "" if table.scale == PAPER else f" --scale {table.scale}"
    return f"equipoise study {table.study.path}{scale}"


def pictures_of(table: StudyTable) -> dict[str, Picture]:
    """Return the figures of a study by name; none before the first result."""
    if not table.records or table.metric is None:
        return {}
    entries = table.study.file.figures or [FigureEntry(kind="bars"), FigureEntry(kind="curves")]
    pictures: dict[str, Picture] = {}
    for entry in entries:
        for name, picture in _PICTURES[entry.kind](table, table.metric, entry).items():
            unique = name
            while unique in pictures:
                unique += "-2"
            pictures[unique] = picture
    return pictures


def _rows(table: StudyTable, entry: FigureEntry) -> list[str]:
    return entry.rows or table.study.row_names


def _column(table: StudyTable, entry: FigureEntry) -> str:
    return entry.measure or table.study.file.measures[0]


def _conditions(table: StudyTable, entry: FigureEntry) -> list[str]:
    run = table.study.conditions(table.study.scale(table.scale))
    return [name for name in run if not entry.conditions or name in entry.conditions]


def _titled(entry: FigureEntry, title: str) -> str:
    return f"{entry.title}: {title}" if entry.title else title


def _sample(table: StudyTable, row: str, condition: str, column: str) -> Sample | None:
    sample = table.samples.get((row, condition, column))
    return sample if sample is not None and sample.values else None


def _axis(name: str, measure: Measure, metric: Metric) -> str:
    """Return the title of an axis: the measure with the unit of its metric."""
    if measure.scale == 1.0 and metric.scale != 1.0:
        return measure.title
    return f"{name.replace('_', ' ')} of {title_of(metric)}"


def _bars(table: StudyTable, metric: Metric, entry: FigureEntry) -> dict[str, Picture]:
    column = _column(table, entry)
    measure = page.measure_of(column, metric)
    panels = {}
    for condition in _conditions(table, entry):
        marks = []
        for row in _rows(table, entry):
            marks.append(_mark(table, row, condition, column, measure))
        if any(math.isfinite(mark.value) for mark in marks):
            panels[condition] = marks
    if not panels:
        return {}
    title = _axis(column, measure, metric)
    text = f"{title}: points are our means with 95 % intervals"
    is_printed = any(math.isfinite(mark.printed) for marks in panels.values() for mark in marks)
    text += ", diamonds what the paper prints." if is_printed else "."
    if any(_has_undefined_seeds(table, row, column) for row in _rows(table, entry)):
        text += " Rows have no point where some seed has no value."
    return {
        f"bars-{_file_part(column)}": Picture(
            _titled(entry, title), text, lambda: figures.numbers_by_row(panels, title)
        )
    }


def _mark(
    table: StudyTable, row: str, condition: str, column: str, measure: Measure
) -> figures.Mark:
    sample = _sample(table, row, condition, column)
    # A mean over the other seeds only could favour the row.
    mean, half = (NAN, NAN) if sample is None or sample.undefined else page.mean_and_half(sample)
    printed = table.study.file.printed.get(condition, {}).get(column, {}).get(row, NAN)
    if isinstance(printed, list):
        printed = printed[0]
    factor = page.printed_factor(table.study, measure)
    return figures.Mark(row, mean * measure.scale, half * measure.scale, printed * factor)


def _has_undefined_seeds(table: StudyTable, row: str, column: str) -> bool:
    """Return True if a run of a row has no value of a measure, as after divergence."""
    samples = [_sample(table, row, condition, column) for condition in table.study.file.conditions]
    return any(sample is not None and sample.undefined for sample in samples)


def _curves(table: StudyTable, metric: Metric, entry: FigureEntry) -> dict[str, Picture]:
    pictures = {}
    for number, condition in enumerate(_conditions(table, entry), start=1):
        histories = _histories(table, condition, entry)
        if histories:
            pictures[f"{entry.kind}-{number}"] = _curve_picture(histories, metric, condition, entry)
    return pictures


def _histories(
    table: StudyTable, condition: str, entry: FigureEntry
) -> dict[str, Sequence[History]]:
    """Return row -> curve of each seed; of rows with at least two measured rounds."""
    histories: dict[str, Sequence[History]] = {}
    for row in _rows(table, entry):
        seeds = []
        for record in table.records_of(row, condition):
            values = record.deviations if entry.kind == "spread" else record.means
            if len(values) > 1:
                seeds.append(_history(record.rounds, values))
        if seeds:
            histories[row] = seeds
    return histories


def _curve_picture(
    histories: Mapping[str, Sequence[History]], metric: Metric, condition: str, entry: FigureEntry
) -> Picture:
    measure, title = "mean", f"learning curves at {condition}"
    if entry.kind == "spread":
        measure, title = "standard deviation of", f"spread over clients at {condition}"
    sentence = f"{measure} {title_of(metric)} over clients by round at {condition}"
    return Picture(
        _titled(entry, title),
        f"{sentence[0].upper()}{sentence[1:]}; bands span the seeds.",
        lambda: figures.learning_by_method(histories, metric, measure),
    )


def _history(rounds: Sequence[int], values: Sequence[float | None]) -> History:
    numbers = np.array([NAN if value is None else value for value in values])
    return History([], list(rounds), np.zeros((0, len(numbers))), numbers)


def _clients(table: StudyTable, metric: Metric, entry: FigureEntry) -> dict[str, Picture]:
    pictures = {}
    for number, condition in enumerate(_conditions(table, entry), start=1):
        values = {}
        for row in _rows(table, entry):
            own = [
                value
                for record in table.records_of(row, condition)
                for value in sorted(v for v in record.values.values() if v is not None)
            ]
            if own:
                values[row] = np.array(own) * metric.scale
        if values:
            pictures[f"clients-{number}"] = _client_picture(values, metric, condition, entry)
    return pictures


def _client_picture(
    values: Mapping[str, np.ndarray], metric: Metric, condition: str, entry: FigureEntry
) -> Picture:
    return Picture(
        _titled(entry, f"clients at {condition}"),
        f"{title_of(metric)} of every client and seed at {condition}.",
        lambda: figures.values_of_clients(values, title_of(metric)),
    )


def _groups(table: StudyTable, metric: Metric, entry: FigureEntry) -> dict[str, Picture]:
    """Return lines over domains: a flat line is an even one."""
    columns = [name for name in table.study.file.measures if name.startswith("average[")]
    pictures = {}
    for number, condition in enumerate(_conditions(table, entry), start=1):
        lines = {}
        for row in _rows(table, entry):
            points = _points(table, row, condition, columns)
            if points:
                lines[row] = points
        if lines:
            pictures[f"groups-{number}"] = _sweep_picture(
                lines,
                "domain",
                title_of(metric),
                metric.scale,
                _titled(entry, f"by domain at {condition}"),
            )
    return pictures


def _points(
    table: StudyTable, row: str, condition: str, columns: Sequence[str]
) -> list[tuple[Any, float, float, float]]:
    points = []
    for column in columns:
        sample = _sample(table, row, condition, column)
        if sample is not None:
            group = column.partition("[")[2].removesuffix("]")
            points.append((group, *_with_ends(sample)))
    return points


def _with_ends(sample: Sample) -> tuple[float, float, float]:
    mean, half = page.mean_and_half(sample)
    half = 0.0 if math.isnan(half) else half
    return mean, mean - half, mean + half


def _sweep_picture(
    lines: Mapping[str, Sequence[tuple[Any, float, float, float]]],
    key: str,
    axis: str,
    scale: float,
    title: str,
) -> Picture:
    return Picture(
        title,
        f"{axis} by {key}; bands are 95 % intervals over seeds.",
        lambda: figures.sweep(lines, key, axis, scale),
    )


def _sweep(table: StudyTable, metric: Metric, entry: FigureEntry) -> dict[str, Picture]:
    column = _column(table, entry)
    measure = page.measure_of(column, metric)
    methods = {row.name: row.method for row in table.study.rows}
    lines: dict[str, list[tuple[Any, float, float, float]]] = {}
    for condition in _conditions(table, entry):
        points = []
        for row in _rows(table, entry):
            sample = _sample(table, row, condition, column)
            if sample is not None:
                value = table.study.file.methods[methods[row]][entry.parameter]
                points.append((value, *_with_ends(sample)))
        if points:
            lines[condition] = sorted(points)
    if not lines:
        return {}
    axis = _axis(column, measure, metric)
    title = _titled(entry, f"{axis} by {entry.parameter}")
    picture = _sweep_picture(lines, entry.parameter, axis, measure.scale, title)
    return {f"sweep-{_file_part(column)}": picture}


def _contributions(table: StudyTable, metric: Metric, entry: FigureEntry) -> dict[str, Picture]:
    pictures = {}
    for number, condition in enumerate(_conditions(table, entry), start=1):
        for row in _rows(table, entry):
            for record in table.records_of(row, condition)[:1]:
                for name in record.contributions:
                    picture = _contribution_picture(table, record, row, name, metric, entry)
                    if picture is not None:
                        key = f"contributions-{_file_part(row)}-{_file_part(name)}-{number}"
                        pictures[key] = picture
    return pictures


def _contribution_picture(
    table: StudyTable, record: Record, row: str, name: str, metric: Metric, entry: FigureEntry
) -> Picture | None:
    baseline = table.baseline_of(record)
    if baseline is None:
        return None
    clients = []
    for client, value in record.contributions[name].items():
        if value is not None and baseline.values.get(client) is not None:
            clients.append(client)
    if len(clients) < 2:
        return None
    alone = np.array([baseline.values[client] for client in clients], dtype=np.float64)
    values = np.array([record.contributions[name][client] for client in clients], dtype=np.float64)
    correlation = "no correlation, since all values of one are equal"
    if alone.std() > 0 and values.std() > 0:
        correlation = f"correlation {np.corrcoef(alone, values)[0, 1]:.2f}"
    return Picture(
        _titled(entry, f"{name} of {row} at {record.condition}"),
        f"The {name} that {row} gives each client (seed {record.seed}) against what the client "
        f"reaches alone: {correlation}.",
        lambda: figures.contributions(clients, alone, values, name, metric),
    )


def _file_part(name: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "._" else "-" for sign in name).strip("-")


_PICTURES = {
    "bars": _bars,
    "curves": _curves,
    "spread": _curves,
    "clients": _clients,
    "groups": _groups,
    "sweep": _sweep,
    "contributions": _contributions,
}

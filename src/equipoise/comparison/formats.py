"""A comparison as text: Markdown, LaTeX, CSV and the cells of a terminal table. Best is bold, second best underlined."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence

from equipoise.comparison.entries import RESULT
from equipoise.comparison.measures import COST, Measure
from equipoise.comparison.table import Comparison
from equipoise.metrics.comparison import FEWEST_SEEDS, TOO_FEW
from equipoise.metrics.gains import SIGNIFICANT, Gain
from equipoise.metrics.registry import find, measured, why_main
from equipoise.runs.convergence import in_words
from equipoise.runs.summary import no_test, one_class
from equipoise.storage.files import save_output
from equipoise.validation import text as words
from equipoise.validation.names import nearest

NOTHING = "–"
RISING = "‡"
CLEAR = "*"
Mark = Callable[[str, int | None], str]


def figure(value: float | None, measure: Measure, signed: bool = False) -> str:
    """One number as it is printed.

    >>> figure(0.8534, Measure("average", scale=100.0)), figure(0.8534, Measure("average", digits=4)), figure(float("nan"), Measure("CF"))
    ('85.3', '0.8534', '–')
    """
    if value is None or math.isnan(value):
        return NOTHING
    return f"{measure.scale * value:{'+' if signed and value else ''}.{measure.digits}f}"


def cell(comparison: Comparison, partition: str, method: str, name: str) -> str:
    """Mean ± half of the interval over seeds; † where it differs from the baseline after Holm's correction."""
    row, measure = comparison.row(partition, method, name), comparison.measures[name]
    if row is None:
        return NOTHING
    text = figure(row["value"], measure, measure.signed)
    if row["low"] is not None and text != NOTHING:
        text += f" ± {figure((row['high'] - row['low']) / 2, measure)}"
    return text + ("†" if row["p"] is not None and row["p"] < SIGNIFICANT else "")


def grid_of(
    comparison: Comparison,
    partition: str,
    mark: Mark,
    with_cost: bool = True,
    columns: Sequence[str] = (),
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of one partition's table, every cell marked by its position.

    `columns` names the measures to show, in that order; without any they are the table's own.
    """
    shown = {
        name: measure
        for name, measure in comparison.columns.items()
        if with_cost or name not in COST
    }
    if columns:
        shown = {name: comparison.measures[name] for name in checked_columns(comparison, columns)}
    rising = comparison.rising(partition)
    header = ["method", "rank", *(measure.title for measure in shown.values())]
    rows = []
    for method in comparison.methods:
        first = comparison.row(partition, method, comparison.measure)
        if first is None:
            continue
        cells = []
        for name in shown:
            row = comparison.row(partition, method, name)
            cells.append(
                mark(cell(comparison, partition, method, name), row["position"] if row else None)
            )
        rank = first["rank"]
        named = f"{method} {RISING}" if method in rising else method
        rows.append([named, NOTHING if rank is None or math.isnan(rank) else f"{rank:.1f}", *cells])
    return header, rows


def checked_columns(comparison: Comparison, columns: Sequence[str]) -> list[str]:
    """Return the names of measures without repetition; refuse one that the comparison does not have."""
    for name in columns:
        if name not in comparison.measures:
            raise nearest("column", name, list(comparison.measures))
    return list(dict.fromkeys(columns))


def explanation(comparison: Comparison) -> list[str]:
    """What a reader has to know to read the table."""
    count, metric = len(comparison.seeds), comparison.metric
    lines = [f"{metric.title} on test data, {'lower' if metric.lower_is_better else 'higher'} is better; change: against training alone, in "
             f"{'points' if metric.unit == '%' else 'the same unit'}; rank: by {comparison.measures[comparison.measure].title}; "
             "CF: collaborative fairness in [-100, 100]; seconds: without measuring"]  # fmt: skip
    if len(comparison.metrics) > 1:
        lines.append(
            f"also measured, in table.csv and comparison.json: {', '.join(comparison.metrics[1:])}"
        )
    if comparison.entries and comparison.entries[0].run.data.startswith("synthetic"):
        lines.append(f"the data, {comparison.entries[0].run.data}, are synthetic")
    if count == 1:
        lines.append("one seed: no interval")
    else:
        lines.append(f"mean ± half of the {comparison.level:.0%} interval over {count} seeds")
    if comparison.entries and comparison.baseline not in comparison.methods:
        lines.append(f"no p-values: no run of the baseline {comparison.baseline} finished")
    elif count < FEWEST_SEEDS:
        lines.append(
            f"no p-values against {comparison.baseline}: {TOO_FEW} ({count}; {FEWEST_SEEDS} are needed)"
        )
    else:
        lines.append(
            f"†: differs from {comparison.baseline}, p < {SIGNIFICANT} (paired t test over seeds, Holm's correction)"
        )
    if "majority" in comparison.columns:
        lines.append(
            "majority class: the accuracy of always naming the most frequent class of a client's test data"
        )
    for partition in comparison.partitions:
        for method, rise in comparison.rising(partition).items():
            rounds = next(
                entry.run.curves[metric.name].rounds
                for entry in comparison.entries
                if entry.label == method
            )
            lines.append(f"{RISING} {method} on {partition}: {in_words(rise, rounds[-1], metric)}")
    lines += _about_metrics(comparison)
    for (method, partition), setting in comparison.settings().items():
        chosen = ", ".join(
            f"{key.removeprefix('method.')}={value}" for key, value in setting.items()
        )
        lines.append(f"{method} on {partition}: {chosen}, chosen on validation data")
    reasons = {
        row["note"]: row["method"]
        for row in comparison.own_rows
        if row["note"] and row["measure"] in comparison.columns and math.isnan(row["value"])
    }
    lines += [f"{method}: {reason}" for reason, method in reasons.items()]
    lines += [
        f"failed: {failure.method}, partition {failure.partition}, seed {failure.seed}: {failure.reason}"
        for failure in comparison.failures
    ]
    return lines


def _coarse_runs(comparison: Comparison) -> list[str]:
    """Return a sentence if runs of older versions are among these: their clinical measures are not exact."""
    runs = {
        run.folder: run.counted
        for entry in comparison.entries
        for run in (entry.run, entry.alone)
        if run is not None and any(run.counted.values())
    }
    if not runs:
        return []
    furthest = {
        name: max(counted.get(name, 0.0) for counted in runs.values())
        for name in next(iter(runs.values()))
    }
    off = ", ".join(f"{name} ± {100 * by:.1f}" for name, by in furthest.items() if by)
    which = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    return [f"not exact: an older version counted scores of {which} in whole per cent; {off}"]


def _about_metrics(comparison: Comparison) -> list[str]:
    """Why the table is about this metric, and which clients have no value of one of them."""
    if not comparison.entries:
        return []
    first = comparison.entries[0].run
    asked = first.config.get("evaluation", {})
    lines = [
        why_main(
            measured(first.task, asked.get("metrics", ()), asked.get("main")), asked.get("main")
        )
    ]
    if first.counted:
        lines.append(
            f"measured at the end, at clients with at least 30 test samples: {', '.join(first.counted)}"
        )
    lines += _coarse_runs(comparison)
    for metric in comparison.metrics:
        by_condition = {
            entry.run.condition: (
                entry.run.undefined.get(metric, []),
                len(entry.run.by_metric[metric]),
            )
            for entry in comparison.entries
        }
        for (partition, seed), (missing, others) in by_condition.items():
            if missing:
                lines.append(f"{partition}, seed {seed}: {one_class(metric, missing, others)}")
        if find(metric).needs == "two classes" and first.task.outputs > 2:
            lines.append(
                f"{metric}: the plain mean over the classes that occur in a client's test data, each against the rest"
            )
    return [line for line in lines if line]


def markdown(comparison: Comparison, columns: Sequence[str] = ()) -> str:
    """Return tables for a README or an issue; `columns` as in `latex`."""

    def mark(text: str, position: int | None) -> str:
        return f"**{text}**" if position == 1 else f"<u>{text}</u>" if position == 2 else text

    parts = []
    for partition in comparison.partitions:
        header, rows = grid_of(comparison, partition, mark, columns=columns)
        lines = [
            header,
            ["---", *["---:"] * (len(header) - 1)],
            *([words.markdown(row[0]), *row[1:]] for row in rows),
        ]
        parts.append(
            f"### {words.markdown(partition)}\n\n"
            + "\n".join("| " + " | ".join(line) + " |" for line in lines)
        )
    notes = "\n".join(
        f"- {line}"
        for line in ["**best**, <u>second best</u>", *map(words.markdown, explanation(comparison))]
    )
    return "\n\n".join([*parts, notes]) + "\n"


def latex(comparison: Comparison, columns: Sequence[str] = ()) -> str:
    """Return tables for a paper; they need the LaTeX packages amsmath and booktabs.

    Args:
        comparison: What to show.
        columns: Names of measures such as "average" and "worst", in the order of the columns;
            without any, those that the terminal shows.

    Raises:
        ValueError: A column is no measure of the comparison.
    """

    def mark(text: str, position: int | None) -> str:
        number = (
            words.latex(text)
            .replace("±", r"\pm")
            .replace("†", r"^{\dagger}")
            .replace("–", r"\text{--}")
        )
        bare = f"${number}$"
        return (
            rf"\textbf{{\boldmath {bare}}}"
            if position == 1
            else rf"\underline{{{bare}}}"
            if position == 2
            else bare
        )

    parts = [r"% \usepackage{amsmath,booktabs}; bold: best, underlined: second best"]
    for partition in comparison.partitions:
        header, rows = grid_of(comparison, partition, mark, columns=columns)
        body = [" & ".join(map(words.latex, header)) + r" \\", r"\midrule"]
        body += [" & ".join([words.latex(row[0]), *row[1:]]) + r" \\" for row in rows]
        parts += [
            rf"% partition {words.shown(partition)}",
            rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            r"\toprule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    parts += [f"% {words.shown(line)}" for line in explanation(comparison)]
    return "\n".join(parts) + "\n"


def csv_text(comparison: Comparison) -> str:
    """The long table, numbers in full precision; a number that does not exist is empty."""
    if not comparison.rows:
        return ""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(comparison.rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in comparison.rows:
        writer.writerow(
            {
                key: "" if isinstance(value, float) and math.isnan(value) else value
                for key, value in row.items()
            }
        )
    return out.getvalue()


def json_text(comparison: Comparison) -> str:
    return json.dumps(comparison.as_plain(), indent=1, allow_nan=False) + "\n"


def save(comparison: Comparison) -> None:
    """Write the result into the comparison's folder: JSON, Markdown, LaTeX and CSV."""
    assert comparison.folder is not None
    written = {
        RESULT: json_text(comparison),
        "table.md": markdown(comparison),
        "table.tex": latex(comparison),
        "table.csv": csv_text(comparison),
    }
    for name, text in written.items():
        save_output(comparison.folder / name, text)


def clients_grid(
    comparison: Comparison, partition: str, seed: int
) -> tuple[list[str], list[list[str]]]:
    """Who gained and who lost: per client what it reaches alone and the change with every method, most harmed first; the last row counts losers."""
    found = {method: comparison.entry(method, partition, seed) for method in comparison.methods}
    entries = {
        method: entry for method, entry in found.items() if entry is not None and entry.reference
    }
    if not entries:
        return [], []
    measure = comparison.measures["average"]
    gains = {method: entry.gains() for method, entry in entries.items()}
    # With a tuned learning rate every method may have a reference of its own; then no single column can show it.
    references = [entry.reference or {} for entry in entries.values()]
    alone = references[0] if all(reference == references[0] for reference in references) else {}
    clients = sorted(
        references[0], key=lambda client: sorted(gain.get(client, 0.0) for gain in gains.values())
    )
    tested = {method: entry.tested_gains() for method, entry in entries.items()}
    rows = []
    for client in clients:
        changes = [
            _change(gain.get(client), tested[method].get(client), measure)
            for method, gain in gains.items()
        ]
        rows.append([client, figure(alone.get(client), measure), *changes])
    losers = [_losers(gain, tested[method]) for method, gain in gains.items()]
    return ["client", "alone", *entries], [*rows, ["clients that lose", "", *losers]]


def _change(gain: float | None, test: Gain | None, measure: Measure) -> str:
    """A client's change, marked where it is beyond the luck of a finite test set."""
    return figure(gain, measure, signed=True) + (CLEAR if test and test.clear else "")


def _losers(gains: Mapping[str, float], tested: Mapping[str, Gain]) -> str:
    """How many lose, and of how many of them that is beyond luck."""
    text = f"{sum(value < 0 for value in gains.values())} of {len(gains)}"
    if not tested:
        return text
    return f"{text} ({sum(one.clear and one.value < 0 for one in tested.values())}{CLEAR})"


def about_changes(comparison: Comparison) -> str:
    """Say what the mark behind a client's change means, or that the metric has no test."""
    if any(entry.tested_gains() for entry in comparison.entries):
        return f"{CLEAR}: beyond the luck of a finite test set, p < {SIGNIFICANT} (exact McNemar test for each client, for the least favourable pairs)"
    return no_test(comparison.metric.name)

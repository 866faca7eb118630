"""A comparison as text: Markdown, LaTeX, CSV, JSON and the cells of a terminal table.

The best value is bold, the second best underlined.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence

from equipoise.comparison.entries import RESULT, Entry
from equipoise.comparison.measures import COST, Measure
from equipoise.comparison.table import Comparison
from equipoise.metrics.comparison import FEWEST_SEEDS, TOO_FEW
from equipoise.metrics.gains import SIGNIFICANT, Gain
from equipoise.metrics.registry import find, measured, why_main
from equipoise.runs import RunResult
from equipoise.runs.notes import no_test, one_class, unevaluated, without_samples
from equipoise.storage.files import save_output
from equipoise.validation import text as words
from equipoise.validation.names import nearest

NOTHING = "–"
RISING = "‡"
CLEAR = "*"
DIFFERENT = "†"
OWN_SETTINGS = "§"
REFUSED = "refused"
MOST_TITLES = 3  # measures that a line names
Mark = Callable[[str, int | None], str]
Grid = tuple[list[str], list[list[str]]]  # header and rows


def figure(value: float | None, measure: Measure, signed: bool = False) -> str:
    """Return a number as it is printed.

    >>> figure(0.8534, Measure("average", scale=100.0))
    '85.3'
    >>> figure(0.8534, Measure("average", digits=4))
    '0.8534'
    >>> figure(float("nan"), Measure("CF"))
    '–'
    """
    if value is None or math.isnan(value):
        return NOTHING
    sign = "+" if signed and value else ""
    return f"{measure.scale * value:{sign}.{measure.digits}f}"


def cell(comparison: Comparison, partition: str, method: str, name: str) -> str:
    """Return a cell of the table: the mean ± half of the interval over seeds.

    A † marks a difference from the baseline that is significant after Holm's correction. If some
    seeds have no value, the number of those that have one is added.
    """
    row = comparison.row(partition, method, name)
    measure = comparison.measures[name]
    if row is None:
        return NOTHING
    text = figure(row["value"], measure, measure.signed)
    if row["low"] is not None and text != NOTHING:
        text += f" ± {figure((row['high'] - row['low']) / 2, measure)}"
    if text != NOTHING and row["seeds"] < len(comparison.seeds):
        text += f" ({row['seeds']}/{len(comparison.seeds)})"
    if row["p"] is not None and row["p"] < SIGNIFICANT:
        text += DIFFERENT
    return text


def grid_of(
    comparison: Comparison,
    partition: str,
    mark: Mark,
    with_cost: bool = True,
    columns: Sequence[str] = (),
    only_significant: bool = False,
) -> Grid:
    """Return header and rows of the table of one partition.

    Args:
        comparison: The comparison.
        partition: The partition.
        mark: Marks a cell by its position, 1 for the best and 2 for the second best.
        with_cost: Show training steps, megabytes and seconds.
        columns: The measures to show, in this order; by default those of the table.
        only_significant: Mark the best only where it differs significantly from all others.

    Raises:
        ValueError: A column is no measure of the comparison.
    """
    shown = {}
    for name, measure in comparison.columns.items():
        if with_cost or name not in COST:
            shown[name] = measure
    if columns:
        shown = {name: comparison.measures[name] for name in checked_columns(comparison, columns)}
    header = ["method", "rank", *(measure.title for measure in shown.values())]
    rising = comparison.not_converged(partition)
    overrides = comparison.overrides()
    rows = []
    for method in comparison.methods:
        ranked = comparison.row(partition, method, comparison.measure)
        if ranked is None:
            continue
        rank = ranked["rank"]
        cells = [
            _marked(method, method in rising, method in overrides),
            NOTHING if rank is None or math.isnan(rank) else f"{rank:.1f}",
        ]
        for name in shown:
            position = position_of(comparison, partition, method, name, only_significant)
            cells.append(mark(cell(comparison, partition, method, name), position))
        rows.append(cells)
    for refusal in comparison.refusals:
        rows.append([refusal.method, REFUSED, *[mark(NOTHING, None)] * len(shown)])
    return header, rows


def position_of(
    comparison: Comparison, partition: str, method: str, name: str, only_significant: bool
) -> int | None:
    """Return 1 for the best method of a measure and 2 for the second best.

    Args:
        comparison: The comparison.
        partition: The partition.
        method: The method.
        name: The measure.
        only_significant: Return 1 only for a method that differs significantly from all others,
            and never 2.
    """
    if only_significant:
        return 1 if comparison.clearly_best(partition, name) == method else None
    row = comparison.row(partition, method, name)
    return row["position"] if row else None


def _marked(method: str, rising: bool, own_settings: bool) -> str:
    """Return the name of a method with the signs that notes below the table explain."""
    signs = [method]
    if own_settings:
        signs.append(OWN_SETTINGS)
    if rising:
        signs.append(RISING)
    return " ".join(signs)


def checked_columns(comparison: Comparison, columns: Sequence[str]) -> list[str]:
    """Return the names of measures without repetition.

    Raises:
        ValueError: A name is no measure of the comparison.
    """
    for name in columns:
        if name not in comparison.measures:
            raise nearest("column", name, list(comparison.measures))
    return list(dict.fromkeys(columns))


def explanation(comparison: Comparison) -> list[str]:
    """Return the lines below a table: units, tests, and runs that need a remark."""
    lines = [_units(comparison)]
    if len(comparison.metrics) > 1:
        others = ", ".join(comparison.metrics[1:])
        lines.append(f"also measured, in table.csv and comparison.json: {others}")
    if comparison.entries and comparison.entries[0].run.data.startswith("synthetic"):
        lines.append(f"the data, {comparison.entries[0].run.data}, are synthetic")
    lines += _about_seeds(comparison)
    if "majority" in comparison.columns:
        lines.append(
            "majority class: the accuracy of always predicting the most frequent class of a "
            "client's test data"
        )
    if "worst_group" in comparison.columns:
        lines.append(
            "worst group: the lowest accuracy of a group at a site; gaps: the largest difference "
            "between two groups of all sites together, in selection rate (parity), sensitivity "
            "(opportunity), sensitivity or false positive rate (odds) and accuracy"
        )
    for partition in comparison.partitions:
        for method, sentence in comparison.not_converged(partition).items():
            lines.append(f"{RISING} {method} on {partition}: {sentence}")
    lines += _about_after_local(comparison)
    lines += _about_metrics(comparison)
    lines += _about_settings(comparison)
    lines += _about_overrides(comparison)
    lines += _about_selections(comparison)
    lines += _about_gaps(comparison)
    lines += _about_missing_seeds(comparison)
    for refusal in comparison.refusals:
        lines.append(f"{REFUSED}: {refusal.method}: {refusal.reason}")
    for failure in comparison.failures:
        lines.append(
            f"failed: {failure.method}, partition {failure.partition}, seed {failure.seed}: "
            f"{failure.reason}"
        )
    return lines


def _units(comparison: Comparison) -> str:
    metric = comparison.metric
    direction = "lower" if metric.lower_is_better else "higher"
    unit = "points" if metric.unit == "%" else "the same unit"
    ranked_by = comparison.measures[comparison.measure].title
    return (
        f"{metric.title} on test data, {direction} is better; change: improvement over training "
        f"alone, in {unit}; rank: by {ranked_by}; CF: collaborative fairness in [-100, 100]; "
        "seconds: training time (evaluation excluded)"
    )


def _about_seeds(comparison: Comparison) -> list[str]:
    count = len(comparison.seeds)
    lines = ["one seed: no interval"]
    if count != 1:
        lines = [f"mean ± half of the {100 * comparison.level:g}% interval over {count} seeds"]
    if comparison.entries and comparison.baseline not in comparison.methods:
        lines.append(f"no p-values: no run of the baseline {comparison.baseline} finished")
    elif count < FEWEST_SEEDS:
        lines.append(
            f"no p-values against {comparison.baseline}: {TOO_FEW} ({count}; {FEWEST_SEEDS} are "
            "needed)"
        )
    else:
        lines.append(
            f"{DIFFERENT}: differs from {comparison.baseline}, p < {SIGNIFICANT} (paired t test "
            "over seeds, Holm's correction)"
        )
    return lines


def _about_settings(comparison: Comparison) -> list[str]:
    lines = []
    for (method, partition), setting in comparison.settings().items():
        chosen = ", ".join(
            f"{key.removeprefix('method.')}={value}" for key, value in setting.items()
        )
        lines.append(f"{method} on {partition}: {chosen}, chosen on validation data")
    return lines


def _about_overrides(comparison: Comparison) -> list[str]:
    lines = []
    for method, settings in comparison.overrides().items():
        listed = ", ".join(f"{key}={value}" for key, value in settings.items())
        lines.append(
            f"{OWN_SETTINGS} {method} has settings of its own: {listed}; its change counts against "
            "training alone with the shared ones"
        )
    return lines


def _about_after_local(comparison: Comparison) -> list[str]:
    """Return a sentence about methods whose fairness is that of models after local training."""
    methods = {entry.label: None for entry in comparison.entries if entry.run.main.after_local}
    if not methods:
        return []
    return [
        f"CF of {', '.join(methods)}: from each client's model right after local training, since "
        "all clients share one model and one test set"
    ]


def _about_selections(comparison: Comparison) -> list[str]:
    lines = []
    for (method, partition), models in comparison.selections().items():
        listed = ", ".join(f"{model} (seed {seed})" for seed, model in models.items())
        lines.append(f"{method} on {partition}: {listed}, chosen on validation data")
    return lines


def _about_gaps(comparison: Comparison) -> list[str]:
    """Return why numbers of the table do not exist, each reason once."""
    methods: dict[str, dict[str, None]] = {}
    for row in comparison.own_rows:
        missing = row["measure"] in comparison.columns and math.isnan(row["value"])
        if missing and row["note"]:
            methods.setdefault(row["note"], {})[row["method"]] = None
    return [f"{', '.join(names)}: {reason}" for reason, names in methods.items()]


def _about_missing_seeds(comparison: Comparison) -> list[str]:
    """Return which means are over some of the seeds only."""
    count = len(comparison.seeds)
    measures: dict[tuple[str, str, int], list[str]] = {}
    for row in comparison.own_rows:
        if row["measure"] in comparison.columns and 0 < row["seeds"] < count:
            key = (row["method"], row["partition"], row["seeds"])
            measures.setdefault(key, []).append(comparison.measures[row["measure"]].title)
    lines = []
    for (method, partition, seeds), titles in measures.items():
        shown = ", ".join(titles[:MOST_TITLES])
        if len(titles) > MOST_TITLES:
            shown += f" and {len(titles) - MOST_TITLES} more"
        lines.append(
            f"{method} on {partition}: {shown} over {seeds} of {count} seeds; the others failed, "
            "diverged or have no such number"
        )
    if lines:
        lines.append("(4/5): over 4 of 5 seeds; a mean over fewer seeds than others has no rank")
    return lines


def _about_metrics(comparison: Comparison) -> list[str]:
    """Return why the table is about this metric, and which clients have no value of some metric."""
    if not comparison.entries:
        return []
    first = comparison.entries[0].run
    evaluation = first.config.get("evaluation", {})
    main = evaluation.get("main")
    lines = [why_main(measured(first.task, evaluation.get("metrics", ()), main), main)]
    once = [name for name, scores in first.metrics.items() if scores.once]
    if once:
        lines.append(
            f"measured at the end, at clients with at least 30 test samples: {', '.join(once)}"
        )
    lines.append(_about_old_histograms(comparison))
    by_condition: dict[tuple[str, int], RunResult] = {}
    for run in _runs_and_baselines(comparison.entries):
        by_condition.setdefault(run.condition, run)
        lines += [unevaluated(run), *run.facts.get("notes", [])]
    # All runs of one partition and seed have the same clients.
    lines += [without_samples(run) for run in by_condition.values()]
    for name in comparison.metrics:
        lines += _undefined_clients(comparison, name)
        if find(name).needs == "two classes" and first.task.outputs > 2:
            lines.append(
                f"{name}: the plain mean over the classes that occur in a client's test data, each "
                "against the rest"
            )
    return [line for line in dict.fromkeys(lines) if line]


def _undefined_clients(comparison: Comparison, metric: str) -> list[str]:
    # All runs of one partition and seed have the same clients.
    by_condition = {entry.run.condition: entry.run for entry in comparison.entries}
    lines = []
    for (partition, seed), run in by_condition.items():
        sentence = one_class(run.metrics[metric])
        if sentence:
            lines.append(f"{partition}, seed {seed}: {sentence}")
    return lines


def _about_old_histograms(comparison: Comparison) -> str:
    """Return a sentence if clinical measures of some runs are not exact."""
    coarse: set[str] = set()  # folders of runs
    furthest: dict[str, float] = {}
    for run in _runs_and_baselines(comparison.entries):
        for name, scores in run.metrics.items():
            if scores.resolution:
                coarse.add(str(run.folder))
                furthest[name] = max(furthest.get(name, 0.0), scores.resolution)
    if not coarse:
        return ""
    off = ", ".join(f"{name} ± {100 * by:.1f}" for name, by in furthest.items())
    runs = "1 run" if len(coarse) == 1 else f"{len(coarse)} runs"
    return f"not exact: an older version counted scores of {runs} in whole per cent; {off}"


def _runs_and_baselines(entries: Sequence[Entry]) -> list[RunResult]:
    runs = []
    for entry in entries:
        runs.append(entry.run)
        if entry.run.baseline is not None:
            runs.append(entry.run.baseline)
    return runs


def markdown(comparison: Comparison, columns: Sequence[str] = ()) -> str:
    """Return tables for a README or an issue; `columns` as in `latex`."""
    parts = []
    for partition in comparison.partitions:
        header, rows = grid_of(comparison, partition, _mark_markdown, columns=columns)
        lines = [header, ["---", *["---:"] * (len(header) - 1)]]
        lines += [[words.markdown(row[0]), *row[1:]] for row in rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        parts.append(f"### {words.markdown(partition)}\n\n{table}")
    notes = ["**best**, <u>second best</u>", *map(words.markdown, explanation(comparison))]
    parts.append("\n".join(f"- {line}" for line in notes))
    return "\n\n".join(parts) + "\n"


def _mark_markdown(text: str, position: int | None) -> str:
    if position == 1:
        return f"**{text}**"
    if position == 2:
        return f"<u>{text}</u>"
    return text


def latex(comparison: Comparison, columns: Sequence[str] = ()) -> str:
    """Return tables for a paper; they need the LaTeX packages amsmath and booktabs.

    Args:
        comparison: The comparison.
        columns: Names of measures such as "average" and "worst", in the order of the columns;
            without any, those that the terminal shows.

    Raises:
        ValueError: A column is no measure of the comparison.
    """
    parts = [r"% \usepackage{amsmath,booktabs}; bold: best, underlined: second best"]
    for partition in comparison.partitions:
        header, rows = grid_of(comparison, partition, _mark_latex, columns=columns)
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


def _mark_latex(text: str, position: int | None) -> str:
    number = words.latex(text)
    for sign, command in (("±", r"\pm"), (DIFFERENT, r"^{\dagger}"), (NOTHING, r"\text{--}")):
        number = number.replace(sign, command)
    if position == 1:
        return rf"\textbf{{\boldmath ${number}$}}"
    if position == 2:
        return rf"\underline{{${number}$}}"
    return f"${number}$"


def csv_text(comparison: Comparison) -> str:
    """Return the long table in full precision; a number that does not exist is empty."""
    if not comparison.rows:
        return ""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(comparison.rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in comparison.rows:
        written = {}
        for key, value in row.items():
            missing = isinstance(value, float) and math.isnan(value)
            written[key] = "" if missing else value
        writer.writerow(written)
    return out.getvalue()


def json_text(comparison: Comparison) -> str:
    """Return all of a comparison as JSON."""
    return json.dumps(comparison.as_plain(), indent=1, allow_nan=False) + "\n"


def save(comparison: Comparison) -> None:
    """Write a comparison into its folder as JSON, Markdown, LaTeX and CSV."""
    assert comparison.folder is not None
    texts = {
        RESULT: json_text(comparison),
        "table.md": markdown(comparison),
        "table.tex": latex(comparison),
        "table.csv": csv_text(comparison),
    }
    for name, text in texts.items():
        save_output(comparison.folder / name, text)


def clients_grid(comparison: Comparison, partition: str, seed: int) -> Grid:
    """Return header and rows of the table of gains by client.

    A row has the value of training alone and the change with every method; the client that is
    harmed most comes first. The last row counts the clients that lose. Without a baseline there is
    no table.
    """
    entries = {}
    for method in comparison.methods:
        entry = comparison.entry(method, partition, seed)
        if entry is not None and entry.reference:
            entries[method] = entry
    if not entries:
        return [], []
    measure = comparison.measures["average"]
    references = [entry.reference or {} for entry in entries.values()]
    # With a tuned learning rate methods may have different baselines; then no column can show them.
    same = all(reference == references[0] for reference in references)
    alone: Mapping[str, float] = references[0] if same else {}

    def changes_of(client: str) -> list[float]:
        gains = [entry.gains().get(client, 0.0) for entry in entries.values()]
        # Nothing harms a client more than a model that diverged.
        return sorted(-math.inf if math.isnan(gain) else gain for gain in gains)

    rows = []
    for client in sorted(references[0], key=changes_of):
        row = [client, figure(alone.get(client), measure)]
        for entry in entries.values():
            test = entry.run.main.gain_tests.get(client)
            row.append(_change(entry.gains().get(client), test, measure))
        rows.append(row)
    losers = [_losers(entry) for entry in entries.values()]
    rows.append(["clients that lose", "", *losers])
    return ["client", "alone", *entries], rows


def _change(gain: float | None, test: Gain | None, measure: Measure) -> str:
    """Return the change of a client, marked if it is significant."""
    text = figure(gain, measure, signed=True)
    return text + CLEAR if test is not None and test.clear else text


def _losers(entry: Entry) -> str:
    """Return how many clients lose, and how many of them significantly."""
    gains = [gain for gain in entry.gains().values() if not math.isnan(gain)]
    tests = entry.run.main.gain_tests
    text = f"{sum(gain < 0 for gain in gains)} of {len(gains)}"
    diverged = len(entry.gains()) - len(gains)
    if diverged:
        text += f", {diverged} diverged"
    if not tests:
        return text
    clear = sum(test.clear and test.value < 0 for test in tests.values())
    return f"{text} ({clear}{CLEAR})"


def about_changes(comparison: Comparison) -> str:
    """Return what the mark behind the change of a client means, or that the metric has no test."""
    if any(entry.run.main.gain_tests for entry in comparison.entries):
        return (
            f"{CLEAR}: significant, p < {SIGNIFICANT} (exact McNemar test for each client, for the "
            "least favourable pairs)"
        )
    return no_test(comparison.metric.name)

"""The page of a run or of several: one file that opens offline and can be sent by mail."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from equipoise.comparison import formats
from equipoise.comparison.entries import Entry
from equipoise.comparison.measures import Measure
from equipoise.comparison.table import Comparison, opened
from equipoise.metrics import SIGNIFICANT, Metric
from equipoise.metrics.comparison import FEWEST_SEEDS
from equipoise.report import clinical, drawing, groups, pictures
from equipoise.report.cards import (
    Card,
    cards,
    extremes,
    headline,
    points,
    quantile_sentence,
    significance_sentence,
    written,
)
from equipoise.report.parts import (
    environment,
    marked,
    metadata_of_one,
    metadata_of_several,
    metrics_of_one,
    metrics_of_several,
    partition_name,
)
from equipoise.report.pictures import Picture, figures_in_page
from equipoise.report.render import Live, render
from equipoise.report.tracks import scale_of
from equipoise.report.verdict import best_methods
from equipoise.report.wording import name_of, title_of, unit_of_changes
from equipoise.runs import RunResult
from equipoise.runs.baseline import ALONE
from equipoise.runs.convergence import fall_after_peak
from equipoise.runs.notes import notes
from equipoise.storage.files import save_output
from equipoise.storage.store import RunError
from equipoise.validation.names import nearest

Tile = tuple[str, str, str]  # name, value, remark


def report(
    runs: Sequence[str | Path],
    out: str | Path,
    against: str | Path | None = None,
    kinds: Sequence[str] = (),
    names: Sequence[str] = (),
    more: Mapping[str, Picture] | None = None,
) -> list[Path]:
    """Write the report of a run, of several, or of a comparison.

    Args:
        runs: Folders of runs, or the folder of one comparison.
        out: The HTML file.
        against: The run of training alone that gains are counted against.
        kinds: Formats ("png", "pdf") in which figures are also written next to the page.
        names: The figures to write; by default all.
        more: Further figures, shown behind those of a run.

    Returns:
        The files written, the page first.

    Raises:
        RunError: A run cannot be read, or a file cannot be written.
        ValueError: A figure is unknown.
    """
    comparison = opened(runs, against, details=True)
    with _without_warnings():
        content = _content(comparison, more or {})
        for name in names:
            if name not in content.drawn:
                raise nearest("figure", name, list(content.drawn))
        page = _rendered(content)
        try:
            return _write(page, content.drawn, Path(out), kinds, names)
        except OSError as error:
            raise RunError(
                f"cannot write the report to {out}: {error.strerror or error}; choose a file that "
                "can be written with --out"
            ) from error


def page_of(comparison: Comparison, live: Live | None = None) -> str:
    """Return the page of a run or of several.

    Args:
        comparison: Entries that were read with their details.
        live: The progress, if the page is watched while the run is in progress.
    """
    with _without_warnings():
        return _rendered(_content(comparison), live)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress numpy's warnings of means over no value; the page has a sentence about that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@dataclass(frozen=True)
class _Content:
    """The runs of a page, the figures by name, and the cards of a single run."""

    comparison: Comparison
    drawn: Mapping[str, Picture]
    cards: Sequence[Card] = field(default_factory=list)


def _content(comparison: Comparison, more: Mapping[str, Picture] | None = None) -> _Content:
    further = dict(more or {})
    comparison = _single_run(comparison)
    if len(comparison.entries) > 1:
        return _Content(comparison, _figures_of_several(comparison) | further)
    entry = comparison.entries[0]
    client_cards = cards(entry.run)
    return _Content(
        comparison, pictures.of_run(entry.label, entry.run, client_cards) | further, client_cards
    )


def _single_run(comparison: Comparison) -> Comparison:
    """Return the only federated run of a comparison, with training alone as its baseline.

    The page of that run answers more: who gains, by how much, with which thresholds. A comparison
    of several runs is returned as it is.
    """
    federated = [entry for entry in comparison.entries if not entry.run.is_standalone]
    complete = not comparison.failures and not comparison.refusals
    if len(federated) != 1 or federated[0].run.baseline is None or not complete:
        return comparison
    return replace(comparison, entries=federated)


def _rendered(content: _Content, live: Live | None = None) -> str:
    if len(content.comparison.entries) > 1:
        return render("page.html", live=live, **_page_of_several(content))
    return render("page.html", live=live, **_page_of_one(content))


def _write(
    page: str,
    drawn: Mapping[str, Picture],
    path: Path,
    kinds: Sequence[str],
    names: Sequence[str],
) -> list[Path]:
    files = [path]
    path.parent.mkdir(parents=True, exist_ok=True)
    save_output(path, page)
    for kind in kinds:
        for name in names or drawn:
            file = path.with_name(f"{path.stem}-{name}.{kind}")
            save_output(file, drawing.encoded(drawn[name].draw, kind))
            files.append(file)
    return files


def _figures_of_several(comparison: Comparison) -> dict[str, Picture]:
    drawn: dict[str, Picture] = pictures.of_sweep(comparison)
    for number, partition in enumerate(comparison.partitions, start=1):
        several = len(comparison.partitions) > 1
        suffix = f"-{number}" if several else ""
        for name, picture in pictures.of_comparison(comparison, partition).items():
            title = picture.title
            if several:
                title += f": {partition_name(partition)}"
            drawn[f"{name}{suffix}"] = replace(picture, title=title)
        for method in comparison.methods:
            for entry in comparison.of_method(method, partition)[:1]:
                for name, picture in pictures.of_method(entry.run).items():
                    drawn[f"{name}-{_file_part(method)}{suffix}"] = picture
    return drawn


def _page_of_one(content: _Content) -> dict[str, Any]:
    """Return the variables of the template for a single run."""
    entry = content.comparison.entries[0]
    result = entry.run
    metric = result.main.metric
    listed = extremes(content.cards)
    tables = [*clinical.tables_of(result), *groups.tables_of(result)]
    if len(result.metrics) > 1:
        tables.insert(0, metrics_of_one(result, [card.client for card in listed]))
    return {
        "title": f"{entry.label} on {result.data}",
        "headline": headline(content.cards, metric),
        "remarks": [
            quantile_sentence(content.cards, metric),
            significance_sentence(content.cards, metric),
            groups.finding(result),
            *(f"{note[0].upper()}{note[1:]}." for note in notes(result)),
            _outdated(result),
            _best_round(result),
            _advice(result),
            _unfinished(result),
            _no_baseline(result),
            _failed(content.comparison),
        ],
        "tiles": _tiles(result),
        "cards": listed,
        "scale": scale_of(content.cards, metric),
        "weighted": any(card.weight is not None for card in listed),
        "total_rounds": result.last_round,
        "tables": [],
        "metrics": tables,
        "pictures": figures_in_page(content.drawn),
        "more": [],
        "notes": [],
        "unit": title_of(metric),
        "metric": metric,
        "metadata": metadata_of_one(result),
        "configuration": [(str(result.folder), _yaml(result))],
        "environment": environment(result),
    }


def _outdated(result: RunResult) -> str:
    """Return a sentence if a run is of a version that computed other numbers; else empty."""
    if not result.outdated:
        return ""
    return f"This run is outdated: {result.outdated}; run it again for numbers of this version."


def _tiles(result: RunResult) -> list[Tile]:
    scores = result.main
    metric = scores.metric
    numbers = scores.aggregates
    worst = "highest" if metric.lower_is_better else "lowest"
    tiles = [
        (
            f"average {name_of(metric)}",
            written(numbers["average"], metric),
            _alone(result, "average"),
        ),
        (f"{worst} of all clients", written(numbers["worst"], metric), _alone(result, "worst")),
        (
            "standard deviation over clients",
            points(numbers["std"], metric),
            _alone(result, "std", points),
        ),
    ]
    if metric.name == "accuracy" and scores.majority:
        share = written(numbers["majority"], metric)
        tiles.insert(1, ("majority class", share, "accuracy of always predicting it"))
    if scores.baseline:
        change = numbers["change"]
        sign = "+" if change > 0 else ""
        harmed = ""
        if not math.isnan(numbers["harmed"]):
            harmed = f"{100 * numbers['harmed']:.0f} % of the clients lose"
        fairness = formats.figure(numbers["cf"], Measure("CF"))
        tiles.append(("average gain", f"{sign}{points(change, metric)}", harmed))
        tiles.append(("collaborative fairness", fairness, "CF, from -100 to 100"))
    return tiles


def _alone(result: RunResult, measure: str, write: Callable[[float, Metric], str] = written) -> str:
    """Return what the baseline has of a measure; empty if there is no baseline."""
    if result.baseline is None:
        return ""
    scores = result.baseline.main
    return f"alone: {write(scores.aggregates[measure], scores.metric)}"


def _page_of_several(content: _Content) -> dict[str, Any]:
    """Return the variables of the template for several runs."""
    comparison = content.comparison
    metric = comparison.metric
    first = comparison.entries[0].run
    metrics = []
    if len(comparison.metrics) > 1:
        metrics = [metrics_of_several(comparison, partition) for partition in comparison.partitions]
    more = []
    for method in comparison.methods:
        names = [name for name in content.drawn if _belongs_to(name, method, comparison.methods)]
        more.append({"title": method, "pictures": figures_in_page(content.drawn, names)})
    shared = [name for name in content.drawn if not _is_of_one_method(name)]
    return {
        "title": _title_of_several(comparison),
        "headline": best_methods(comparison),
        "remarks": [_failed(comparison)],
        "tiles": [],
        "cards": [],
        "scale": None,
        "weighted": False,
        "total_rounds": 0,
        "tables": [_table(comparison, partition) for partition in comparison.partitions],
        "metrics": metrics,
        "pictures": figures_in_page(content.drawn, shared),
        "more": more,
        "notes": _notes(comparison),
        "unit": title_of(metric),
        "metric": metric,
        "metadata": metadata_of_several(comparison),
        "configuration": [
            (_run_name(entry), _yaml(entry.run)) for entry in _one_of_each(comparison)
        ],
        "environment": environment(first),
    }


def _title_of_several(comparison: Comparison) -> str:
    names = list(dict.fromkeys(entry.label for entry in comparison.entries))
    alone = {entry.label for entry in comparison.entries if entry.run.is_standalone}
    federated = [name for name in names if name not in alone]
    methods = "1 method" if len(federated) == 1 else f"{len(federated)} methods"
    if alone:
        methods += " and training alone"
    return f"{methods} on {comparison.entries[0].run.data}"


def _notes(comparison: Comparison) -> list[str]:
    """Return the notes on all tables and figures, each once."""
    notes = formats.explanation(comparison)
    if len(comparison.seeds) >= FEWEST_SEEDS:
        notes.insert(
            0,
            f"bold: the best method, if it differs from every other one, p < {SIGNIFICANT} (paired "
            "t test over seeds, Holm's correction)",
        )
    if any(entry.reference for entry in comparison.entries):
        notes.append(formats.about_changes(comparison))
    return list(dict.fromkeys(notes))


def _table(comparison: Comparison, partition: str) -> dict[str, Any]:
    seed = comparison.seeds[0]
    header, rows = formats.grid_of(comparison, partition, marked, only_significant=True)
    clients_header, clients = formats.clients_grid(comparison, partition, seed)
    caption = (
        f"Change against training alone by client ({unit_of_changes(comparison.metric)}; seed "
        f"{seed}), most harmed first"
    )
    several = len(comparison.partitions) > 1
    suffix = f" on {partition_name(partition)}" if several else ""
    return {
        "title": f"Methods{suffix}",
        "clients_title": f"Clients{suffix}",
        "header": header,
        "rows": rows,
        "clients_header": clients_header,
        "clients": clients[:-1],
        "losers": clients[-1] if clients else [],
        "caption": caption,
    }


def _yaml(result: RunResult) -> str:
    return yaml.safe_dump(result.config, sort_keys=False)


def _run_name(entry: Entry) -> str:
    partition, seed = entry.run.condition
    return f"{entry.label}, {partition_name(partition)}, seed {seed}: {entry.run.folder}"


def _best_round(result: RunResult) -> str:
    """Return a sentence about a round that was better than the end; empty if none was."""
    scores = result.main
    best = scores.curve.best(scores.metric)
    if best is None or best[0] == scores.curve.rounds[-1]:
        return ""
    return (
        f"The best average, {written(best[1], scores.metric)}, was that of round {best[0]}; it is "
        "known only by looking at test data."
    )


def _advice(result: RunResult) -> str:
    """Return advice if the metric got worse on validation data after a peak; empty if not.

    Validation data that clients train on advise nothing.
    """
    assert result.details is not None
    if result.held_out_rounds is not None:
        return ""
    metric = result.main.metric
    peak = fall_after_peak(result.details.validation, metric.lower_is_better)
    if peak is None:
        return ""
    best_round, best, end = peak
    return (
        f"Fewer rounds may be better: on validation data the mean {name_of(metric)} was best "
        f"around round {best_round} ({written(best, metric)}) and ended at {written(end, metric)}. "
        f"Set rounds={best_round}, or stop early with equipoise.EarlyStopping."
    )


def _unfinished(result: RunResult) -> str:
    if result.status == "finished":
        return ""
    progress = f"round {result.last_round} of {result.config['rounds']}"
    if result.status == "running":
        return f"These numbers are not final: the run is in progress ({progress})."
    return (
        "These numbers are not final: the run was stopped; "
        f"{result.resume_command} completes it ({progress})."
    )


def _no_baseline(result: RunResult) -> str:
    if result.main.baseline or result.is_standalone:
        return ""
    return (
        f"To learn who gains, run the method {ALONE} with the same settings into a folder next to "
        "this one, and make the report again."
    )


def _failed(comparison: Comparison) -> str:
    count = len(comparison.failures)
    if not count:
        return ""
    first = comparison.failures[0]
    partition = partition_name(first.partition)
    reason = f"{first.method}, partition {partition}, seed {first.seed}: {first.reason}"
    order = "" if count == 1 else ", the first"
    return f"{count:,} of {count + len(comparison.entries):,} runs failed{order}: {reason}"


def _one_of_each(comparison: Comparison) -> list[Entry]:
    """Return one run of every partition and method."""
    entries = []
    for partition in comparison.partitions:
        for method in comparison.methods:
            entries += comparison.of_method(method, partition)[:1]
    return entries


def _file_part(label: str) -> str:
    signs = [sign if sign.isalnum() or sign in "._=" else "-" for sign in label]
    return "".join(signs).strip("-")


def _is_of_one_method(name: str) -> bool:
    return name.startswith(
        ("heatmap-", "weights-", "contributions_", "roc", "calibration", "groups", "survival")
    )


def _belongs_to(name: str, method: str, methods: Sequence[str]) -> bool:
    """Return True if a figure is about a method; the names of several may begin alike."""
    if not _is_of_one_method(name):
        return False
    rest = name.split("-", 1)[1]
    matches = [other for other in methods if rest.startswith(_file_part(other))]
    return max(matches, key=len) == method

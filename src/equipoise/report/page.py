"""The page: everything in one file, so that it opens offline and can be sent by mail."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import yaml

from equipoise.comparison import formats
from equipoise.comparison.entries import Entry
from equipoise.comparison.measures import Measure
from equipoise.comparison.table import Comparison, opened
from equipoise.metrics import Metric
from equipoise.report import clinical, drawing, pictures
from equipoise.report.cards import (
    Card,
    cards,
    extremes,
    headline,
    in_quantiles,
    points,
    significance_sentence,
    written,
)
from equipoise.report.parts import environment, marked, metadata, metrics_of_one, metrics_of_several
from equipoise.report.pictures import Picture
from equipoise.report.render import Live, render
from equipoise.report.tracks import scale_of
from equipoise.report.verdict import best_in_words
from equipoise.runs import Run
from equipoise.runs.reference import ALONE
from equipoise.runs.summary import best_round, notes
from equipoise.storage.files import save_output
from equipoise.storage.store import RunError
from equipoise.validation.names import nearest


def report(
    runs: Sequence[str | Path],
    out: str | Path,
    against: str | Path | None = None,
    kinds: Sequence[str] = (),
    names: Sequence[str] = (),
    more: Mapping[str, Picture] | None = None,
) -> list[Path]:
    """Write the report of a run, of several, or of a comparison; returns the files written, the page first.

    `kinds` ("png", "pdf") also writes the figures as files beside the page, or those in `names` only. `more`: further figures, shown behind a run's own.
    """
    comparison = opened(runs, against)
    with _without_warnings(), _opened(comparison) as run:
        return _written(comparison, run, Path(out), kinds, names, more or {})


def page_of(comparison: Comparison, live: Live | None = None) -> str:
    """The page of a run or of several; `live` where it is watched while the run goes on."""
    with _without_warnings(), _opened(comparison) as run:
        return _rendered(comparison, run, *_drawn(comparison, run), live)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """numpy warns of means over clients of which none has a value; the page says so in words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@contextmanager
def _opened(comparison: Comparison) -> Iterator[Run]:
    """The run that a page is about, or the first of several: opened once, since of very many clients that takes a while."""
    run = Run(comparison.entries[0].run.folder)
    with closing(run.store):
        run.store.db.execute("begin")  # one moment of a run that goes on: no two rounds in one text
        yield run


def _written(
    comparison: Comparison,
    run: Run,
    path: Path,
    kinds: Sequence[str],
    names: Sequence[str],
    more: Mapping[str, Picture],
) -> list[Path]:
    found, drawn = _drawn(comparison, run)
    drawn |= more
    for name in names:
        if name not in drawn:
            raise nearest("figure", name, list(drawn))
    page = _rendered(comparison, run, found, drawn)
    written_files = [path]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_output(path, page)
        for kind in kinds:
            for name in names or drawn:
                file = path.with_name(f"{path.stem}-{name}.{kind}")
                save_output(file, drawing.encoded(drawn[name].draw, kind))
                written_files.append(file)
    except OSError as error:
        raise RunError(
            f"cannot write the report to {path}: {error.strerror or error}; choose a file that can be written with --out"
        ) from error
    return written_files


def _drawn(comparison: Comparison, run: Run) -> tuple[list[Card], dict[str, Picture]]:
    """The cards of a single run, and the figures."""
    if len(comparison.entries) > 1:
        return [], _figures_of_several(comparison)
    entry = comparison.entries[0]
    found = cards(entry, run)
    return found, pictures.of_run(entry, run, found)


def _rendered(
    comparison: Comparison,
    run: Run,
    found: list[Card],
    drawn: dict[str, Picture],
    live: Live | None = None,
) -> str:
    if len(comparison.entries) > 1:
        return _page_of_several(comparison, run, drawn, live)
    return _page_of_one(comparison, run, found, drawn, live)


def _figures_of_several(comparison: Comparison) -> dict[str, Picture]:
    drawn: dict[str, Picture] = {}
    for place, partition in enumerate(comparison.partitions):
        suffix = f"-{place + 1}" if len(comparison.partitions) > 1 else ""
        drawn |= {
            f"{name}{suffix}": picture
            for name, picture in pictures.of_comparison(comparison, partition).items()
        }
        for method in comparison.methods:
            entry = _first(comparison, method, partition)
            if entry is not None:
                drawn |= {
                    f"{name}-{_file_part(method)}{suffix}": picture
                    for name, picture in pictures.of_method(entry).items()
                }
    return drawn


def _page_of_one(
    comparison: Comparison,
    run: Run,
    found: list[Card],
    drawn: dict[str, Picture],
    live: Live | None,
) -> str:
    entry = comparison.entries[0]
    metric, measured = entry.metric, entry.measured[0]
    worst = "highest" if entry.lower else "lowest"
    tiles = [(f"average {metric.name}", written(measured["average"], metric), _was(entry, "average")),
             (f"{worst} client", written(measured["worst"], metric), _was(entry, "worst")),
             ("standard deviation over clients", points(measured["std"], metric), _was(entry, "std", points))]  # fmt: skip
    if entry.run.majority and metric.name == "accuracy":
        tiles.insert(
            1,
            (
                "majority class",
                written(measured["majority"], metric),
                "what always naming it would reach",
            ),
        )
    if entry.reference:
        average = measured["change"] * (-1 if entry.lower else 1)
        tiles += [("average gain", f"{'+' if average > 0 else ''}{points(average, metric)}", f"{100 * measured['harmed']:.0f} % of the clients lose"),
                  ("collaborative fairness", formats.figure(measured["cf"], Measure("CF")), "CF, from -100 to 100")]  # fmt: skip
    return render(
        "page.html",
        live=live,
        title=f"{entry.label} on {entry.run.data}",
        headline=headline(found, metric),
        remarks=[
            in_quantiles(found, metric),
            significance_sentence(found, metric),
            *_remarks(entry, run),
            _unfinished(run),
            _no_reference(entry),
            _failed(comparison),
        ],
        tiles=tiles,
        cards=extremes(found),
        scale=scale_of(found, metric),
        total_rounds=run.last_round,
        tables=[],
        metrics=[
            *(
                [metrics_of_one(entry, [card.client for card in extremes(found)])]
                if len(entry.run.by_metric) > 1
                else []
            ),
            *clinical.tables_of(run),
        ],
        pictures=_group(drawn, list(drawn)),
        more=[],
        notes=[],
        unit=metric.title,
        metric=metric,
        metadata=metadata(run),
        configuration=[(str(entry.run.folder), yaml.safe_dump(run.config, sort_keys=False))],
        environment=environment(run),
    )


def _page_of_several(
    comparison: Comparison, run: Run, drawn: dict[str, Picture], live: Live | None
) -> str:
    entries, metric = comparison.entries, comparison.metric
    tables, more = [], []
    for partition in comparison.partitions:
        header, rows = formats.grid_of(comparison, partition, marked)
        clients_header, clients = formats.clients_grid(comparison, partition, comparison.seeds[0])
        caption = f"Change against training alone by client ({metric.of_changes}; seed {comparison.seeds[0]}), most harmed first; {formats.about_changes(comparison)}"
        tables.append({"partition": partition, "header": header, "rows": rows, "clients_header": clients_header, "clients": clients[:-1],
                       "losers": clients[-1] if clients else [], "caption": caption})  # fmt: skip
    for method in comparison.methods:
        own = [
            name for name in drawn if _of_one(name) and _owner(name, comparison.methods) == method
        ]
        more.append({"title": method, "pictures": _group(drawn, own)})
    shared = [name for name in drawn if not _of_one(name)]
    return render(
        "page.html",
        live=live,
        title=f"{len(comparison.methods)} methods on {entries[0].run.data}",
        headline=best_in_words(comparison),
        remarks=[_failed(comparison)],
        tiles=[],
        cards=[],
        scale=None,
        total_rounds=0,
        tables=tables,
        metrics=[
            metrics_of_several(comparison, partition)
            for partition in comparison.partitions
            if len(comparison.metrics) > 1
        ],
        pictures=_group(drawn, shared),
        more=more,
        notes=formats.explanation(comparison),
        unit=metric.title,
        metric=metric,
        metadata=metadata(run, comparison),
        configuration=[
            (
                f"{e.label}, {e.run.condition[0]}, seed {e.run.condition[1]}: {e.run.folder}",
                yaml.safe_dump(e.run.config, sort_keys=False),
            )
            for e in _one_each(comparison)
        ],
        environment=environment(run),
    )


def _group(drawn: dict[str, Picture], names: Sequence[str]) -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "title": drawn[name].title,
            "text": drawn[name].text,
            "uri": drawing.data_uri(drawn[name].draw),
        }
        for name in names
    ]


def _was(entry: Entry, measure: str, write: Callable[[float, Metric], str] = written) -> str:
    if not entry.reference or entry.alone is None:
        return ""
    return f"alone: {write(Entry('', entry.alone, None).measured[0][measure], entry.metric)}"


def _unfinished(run: Run) -> str:
    if run.status == "finished":
        return ""
    doing = (
        "is still going"
        if run.status == "running"
        else f"was stopped; `equipoise resume {run.folder}` completes it"
    )
    return f"These numbers are not final: the run {doing} (round {run.last_round} of {run.config['rounds']})."


def _no_reference(entry: Entry) -> str:
    if entry.reference or entry.run.is_alone:
        return ""
    return f"To learn who gains, run the method {ALONE} with the same settings into a folder beside this one, and make the report again."


def _remarks(entry: Entry, run: Run) -> list[str]:
    """Why this metric, for which clients it has no value, and its best round."""
    found = [
        f"{note[0].upper()}{note[1:]}." for note in notes(run, entry.run.metric, run.main_model)
    ]
    best = best_round(run, entry.run.metric, run.main_model)
    if best and best["best round"] != run.last_round:
        then = written(best["average then"], entry.metric)
        found.append(
            f"The best average, {then}, was that of round {best['best round']:.0f}; it is known only by looking at test data."
        )
    return found


def _failed(comparison: Comparison) -> str:
    count, whole = len(comparison.failures), len(comparison.failures) + len(comparison.entries)
    if not count:
        return ""
    first = comparison.failures[0]
    reason = f"{first.method}, partition {first.partition}, seed {first.seed}: {first.reason}"
    return f"{count:,} of {whole:,} runs failed{f': {reason}' if count == 1 else f', the first: {reason}'}"


def _first(comparison: Comparison, method: str, partition: str) -> Entry | None:
    return next(
        (
            entry
            for seed in comparison.seeds
            if (entry := comparison.entry(method, partition, seed))
        ),
        None,
    )


def _one_each(comparison: Comparison) -> list[Entry]:
    found = (
        _first(comparison, method, partition)
        for partition in comparison.partitions
        for method in comparison.methods
    )
    return [entry for entry in found if entry is not None]


def _file_part(label: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "._=" else "-" for sign in label).strip("-")


def _of_one(name: str) -> bool:
    """Whether a figure is about one method of several."""
    return name.startswith(("heatmap-", "weights-", "roc", "calibration"))


def _owner(name: str, methods: Sequence[str]) -> str:
    """Of several methods whose names begin alike, the one that a figure belongs to."""
    fitting = [method for method in methods if name.split("-", 1)[1].startswith(_file_part(method))]
    return max(fitting, key=len)

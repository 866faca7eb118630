"""The page: everything in one file, so that it opens offline and can be sent by mail."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from equipoise import methods
from equipoise.checked.names import nearest
from equipoise.comparison import formats
from equipoise.comparison.entries import Entry
from equipoise.comparison.measures import Measure, in_unit_of, measures
from equipoise.comparison.table import Comparison, opened
from equipoise.metrics import Metric
from equipoise.report import figures, pictures
from equipoise.report.cards import cards, doubt, headline, points, written
from equipoise.report.pictures import Picture
from equipoise.report.verdict import best_in_words
from equipoise.runs import Run
from equipoise.runs.reference import ALONE
from equipoise.runs.summary import best_round, notes
from equipoise.storage.files import save_output
from equipoise.storage.store import RunError

SHOWN_CLIENTS = 50  # rows of the client table that are shown at first; a button shows the rest


def report(
    runs: Sequence[str | Path],
    out: str | Path,
    against: str | Path | None = None,
    kinds: Sequence[str] = (),
    names: Sequence[str] = (),
) -> list[Path]:
    """Write the report of a run, of several, or of a comparison; returns the files written, the page first.

    `kinds` ("png", "pdf") also writes the figures as files beside the page, or those in `names` only.
    """
    comparison = opened(runs, against)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means over clients of which none has a value; the page says so in words
        return _written(comparison, Path(out), kinds, names)


def _written(comparison: Comparison, path: Path, kinds: Sequence[str], names: Sequence[str]) -> list[Path]:
    several = len(comparison.entries) > 1
    drawn = _figures_of_several(comparison) if several else pictures.of_run(comparison.entries[0])
    for name in names:
        if name not in drawn:
            raise nearest("figure", name, list(drawn))
    page = _page_of_several(comparison, drawn) if several else _page_of_one(comparison, drawn)
    written_files = [path]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_output(path, page)
        for kind in kinds:
            for name in names or drawn:
                file = path.with_name(f"{path.stem}-{name}.{kind}")
                save_output(file, figures.encoded(drawn[name].draw, kind))
                written_files.append(file)
    except OSError as error:
        raise RunError(
            f"cannot write the report to {path}: {error.strerror or error}; choose a file that can be written with --out"
        ) from error
    return written_files


def _figures_of_several(comparison: Comparison) -> dict[str, Picture]:
    drawn: dict[str, Picture] = {}
    for place, partition in enumerate(comparison.partitions):
        suffix = f"-{place + 1}" if len(comparison.partitions) > 1 else ""
        drawn |= {f"{name}{suffix}": picture for name, picture in pictures.of_comparison(comparison, partition).items()}
        for method in comparison.methods:
            entry = _first(comparison, method, partition)
            if entry is not None:
                drawn |= {f"{name}-{_file_part(method)}{suffix}": picture for name, picture in pictures.of_method(entry).items()}
    return drawn


def _page_of_one(comparison: Comparison, drawn: dict[str, Picture]) -> str:
    entry = comparison.entries[0]
    run, metric = Run(entry.run.folder), entry.metric
    found = cards(entry, run)
    measured = entry.measured[0]
    worst = "highest" if entry.lower else "lowest"
    tiles = [(f"average {metric.name}", written(measured["average"], metric), _was(entry, "average")),
             (f"{worst} client", written(measured["worst"], metric), _was(entry, "worst")),
             ("standard deviation over clients", points(measured["std"], metric), _was(entry, "std", points))]  # fmt: skip
    if entry.reference:
        average = measured["change"] * (-1 if entry.lower else 1)
        tiles += [("average gain", f"{'+' if average > 0 else ''}{points(average, metric)}", f"{100 * measured['harmed']:.0f} % of the clients lose"),
                  ("collaborative fairness", formats.figure(measured["cf"], Measure("CF")), "CF, from -100 to 100")]  # fmt: skip
    return _render(
        title=f"{entry.label} on {entry.run.data}",
        headline=headline(found, metric),
        remarks=[doubt(found), *_remarks(entry, run), _unfinished(run), _no_reference(entry), _failed(comparison)],
        tiles=tiles,
        cards=found,
        largest=max((abs(card.gain) for card in found if card.gain is not None), default=0.0),
        total_rounds=run.last_round,
        tables=[],
        metrics=[_metrics_of_one(entry)] if len(entry.run.by_metric) > 1 else [],
        pictures=_group(drawn, list(drawn)),
        more=[],
        unit=metric.title,
        metric=metric,
        facts=_facts(run),
        configuration=[(str(entry.run.folder), yaml.safe_dump(run.config, sort_keys=False))],
        environment=_environment(run),
    )


def _page_of_several(comparison: Comparison, drawn: dict[str, Picture]) -> str:
    entries = comparison.entries
    run, metric = Run(entries[0].run.folder), comparison.metric
    tables, more = [], []
    for partition in comparison.partitions:
        header, rows = formats.grid_of(comparison, partition, _mark)
        clients_header, clients = formats.clients_grid(comparison, partition, comparison.seeds[0])
        caption = f"Change against training alone by client ({metric.of_changes}; seed {comparison.seeds[0]}), most harmed first"
        tables.append({"partition": partition, "header": header, "rows": rows, "clients_header": clients_header, "clients": clients[:-1],
                       "losers": clients[-1] if clients else [], "caption": caption})  # fmt: skip
    for method in comparison.methods:
        wanted = [name for name in drawn if name.startswith((f"heatmap-{_file_part(method)}", f"weights-{_file_part(method)}"))]
        own = [name for name in wanted if _owner(name, comparison.methods) == method]
        more.append({"title": method, "pictures": _group(drawn, own)})
    shared = [name for name in drawn if not name.startswith(("heatmap-", "weights-"))]
    return _render(
        title=f"{len(comparison.methods)} methods on {entries[0].run.data}",
        headline=best_in_words(comparison),
        remarks=[_failed(comparison)],
        tiles=[],
        cards=[],
        largest=0.0,
        total_rounds=0,
        tables=tables,
        metrics=[_metrics_of_several(comparison, partition) for partition in comparison.partitions if len(comparison.metrics) > 1],
        pictures=_group(drawn, shared),
        more=more,
        notes=formats.explanation(comparison),
        unit=metric.title,
        metric=metric,
        facts=_facts(run, comparison),
        configuration=[
            (f"{e.label}, {e.run.condition[0]}, seed {e.run.condition[1]}: {e.run.folder}", yaml.safe_dump(e.run.config, sort_keys=False))
            for e in _one_each(comparison)
        ],
        environment=_environment(run),
    )


def _render(**content: Any) -> str:
    environment = Environment(
        loader=PackageLoader("equipoise.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "written": lambda value: formats.figure(value, in_unit_of(content["metric"])),
        "change": lambda value: formats.figure(value, in_unit_of(content["metric"]), signed=True),
        "exact": lambda value: "" if value is None or (isinstance(value, float) and math.isnan(value)) else repr(value),
    }
    folder = Path(__file__).parent / "template"
    inlined = {name: Markup((folder / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js")}
    content.setdefault("notes", [])
    return environment.get_template("page.html").render(
        style=inlined["page.css"], script=inlined["page.js"], shown=SHOWN_CLIENTS, **content
    )


def _group(drawn: dict[str, Picture], names: Sequence[str]) -> list[dict[str, str]]:
    return [
        {"name": name, "title": drawn[name].title, "text": drawn[name].text, "uri": figures.data_uri(drawn[name].draw)} for name in names
    ]


def _mark(text: str, position: int | None) -> str:
    escaped = Markup.escape(text)
    return Markup(f"<strong>{escaped}</strong>") if position == 1 else Markup(f"<u>{escaped}</u>") if position == 2 else escaped


def _was(entry: Entry, measure: str, write: Callable[[float, Metric], str] = written) -> str:
    if not entry.reference or entry.alone is None:
        return ""
    return f"alone: {write(Entry('', entry.alone, None).measured[0][measure], entry.metric)}"


def _unfinished(run: Run) -> str:
    if run.status == "finished":
        return ""
    doing = "is still going" if run.status == "running" else f"was stopped; `equipoise resume {run.folder}` completes it"
    return f"These numbers are not final: the run {doing} (round {run.last_round} of {run.config['rounds']})."


def _no_reference(entry: Entry) -> str:
    if entry.reference or entry.run.is_alone:
        return ""
    return f"To learn who gains, run the method {ALONE} with the same settings into a folder beside this one, and make the report again."


def _remarks(entry: Entry, run: Run) -> list[str]:
    """Why this metric, for which clients it has no value, and its best round."""
    found = [f"{note[0].upper()}{note[1:]}." for note in notes(run, entry.run.metric, run.main_model)]
    best = best_round(run, entry.run.metric, run.main_model)
    if best and best["best round"] != run.last_round:
        then = written(best["average then"], entry.metric)
        found.append(f"The best average, {then}, was that of round {best['best round']:.0f}; it is known only by looking at test data.")
    return found


def _failed(comparison: Comparison) -> str:
    count, whole = len(comparison.failures), len(comparison.failures) + len(comparison.entries)
    if not count:
        return ""
    first = comparison.failures[0]
    reason = f"{first.method}, partition {first.partition}, seed {first.seed}: {first.reason}"
    return f"{count:,} of {whole:,} runs failed{f': {reason}' if count == 1 else f', the first: {reason}'}"


def _metrics_of_one(entry: Entry) -> dict[str, Any]:
    """All metrics side by side: over clients, and client by client."""
    seen = {name: entry.seen_by(name) for name in entry.run.by_metric}
    shown = ["average", "worst", "std", *(["change", "worst_change", "harmed", "cf"] if entry.reference else [])]
    header = ["metric", *(measures(entry.metric)[name].title for name in shown)]
    rows = []
    for one in seen.values():
        columns = measures(one.metric)
        cells = [formats.figure(one.measured[0][name], columns[name], columns[name].signed) for name in shown]
        rows.append([one.metric.title, *cells])
    clients = list(dict.fromkeys(client for one in seen.values() for client in one.run.values))
    each = [[c, *(formats.figure(one.run.values.get(c), in_unit_of(one.metric)) for one in seen.values())] for c in clients]
    return {"title": "All metrics", "header": header, "rows": rows, "clients_header": ["client", *(o.metric.title for o in seen.values())], "clients": each}  # fmt: skip


def _metrics_of_several(comparison: Comparison, partition: str) -> dict[str, Any]:
    """All metrics side by side: average, worst client and harm of every method."""
    shown = ("average", "worst", "harmed")
    seen = [comparison.seen_by(name) for name in comparison.metrics]
    header = ["method", *(f"{one.metric.title}: {one.measures[name].title}" for one in seen for name in shown)]
    rows = []
    for method in comparison.methods:
        if comparison.row(partition, method, "average") is None:
            continue
        cells: list[str] = []
        for one in seen:
            for name in shown:
                row = one.row(partition, method, name)
                cells.append(_mark(formats.cell(one, partition, method, name), row["position"] if row else None))
        rows.append([method, *cells])
    return {"title": f"All metrics on {partition}", "header": header, "rows": rows, "clients_header": [], "clients": []}


def _facts(run: Run, comparison: Comparison | None = None) -> list[tuple[str, str]]:
    sizes = run.store.meta("sizes")["train"]
    method = {key: value for key, value in run.config["method"].items() if key != "name"}
    same = [("method", methods.shown(run.config["method"]["name"]) + (f" ({', '.join(f'{k}={v}' for k, v in method.items())})" if method else "")),
            ("partition", run.config["data"]["partition"]), ("seed", str(run.config["seed"]))]  # fmt: skip
    if comparison is not None:
        same = [
            ("methods", ", ".join(comparison.methods)),
            ("partitions", ", ".join(comparison.partitions)),
            ("seeds", ", ".join(map(str, comparison.seeds))),
            ("baseline of the tests", comparison.baseline),
            ("ranked by", f"{comparison.measures[comparison.measure].title} of {comparison.metric.name}"),
        ]
    return [*same, ("clients", f"{len(run.clients):,}, with {min(sizes):,} to {max(sizes):,} training samples"),
            ("rounds", f"{run.last_round} of {run.config['rounds']}"), ("test data", "one set for all" if run.main_split == "shared" else "each client's own part")]  # fmt: skip


def _environment(run: Run) -> list[tuple[str, str]]:
    known = run.store.meta("environment")
    return [("equipoise", run.store.meta("version")), *((key, str(value)) for key, value in known.items()),
            ("created", run.store.meta("created")), ("fingerprint of data and partition", run.store.meta("fingerprint"))]  # fmt: skip


def _first(comparison: Comparison, method: str, partition: str) -> Entry | None:
    return next((entry for seed in comparison.seeds if (entry := comparison.entry(method, partition, seed))), None)


def _one_each(comparison: Comparison) -> list[Entry]:
    found = (_first(comparison, method, partition) for partition in comparison.partitions for method in comparison.methods)
    return [entry for entry in found if entry is not None]


def _file_part(label: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "._=" else "-" for sign in label).strip("-")


def _owner(name: str, methods: Sequence[str]) -> str:
    """Of several methods whose names begin alike, the one that a figure belongs to."""
    fitting = [method for method in methods if name.split("-", 1)[1].startswith(_file_part(method))]
    return max(fitting, key=len)

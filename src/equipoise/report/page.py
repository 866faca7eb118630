"""The page: everything in one file, so that it opens offline and can be sent by mail."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from equipoise import methods
from equipoise.comparison import formats
from equipoise.comparison.entries import Entry, is_going, open_runs
from equipoise.comparison.measures import Measure
from equipoise.comparison.plan import ALONE
from equipoise.comparison.table import Comparison
from equipoise.names import nearest
from equipoise.report import figures, pictures
from equipoise.report.cards import cards, doubt, headline, points, written
from equipoise.report.pictures import Picture
from equipoise.runs import Run
from equipoise.runs.store import RunError

SHOWN_CLIENTS = 50  # rows of the client table that are shown at first; a button shows the rest
_CHANGE = Measure("change", against_alone=True)


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
    entries = open_runs(runs, against)
    several = len(entries) > 1
    drawn = _figures_of_several(entries) if several else pictures.of_run(entries[0])
    for name in names:
        if name not in drawn:
            raise nearest("figure", name, list(drawn))
    page = _page_of_several(entries, drawn) if several else _page_of_one(entries[0], drawn)
    path = Path(out)
    written_files = [path]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
        for kind in kinds:
            for name in names or drawn:
                file = path.with_name(f"{path.stem}-{name}.{kind}")
                file.write_bytes(figures.encoded(drawn[name].draw, kind))
                written_files.append(file)
    except OSError as error:
        raise RunError(
            f"cannot write the report to {path}: {error.strerror or error}; choose a file that can be written with --out"
        ) from error
    return written_files


def _baseline(entries: Sequence[Entry]) -> str:
    labels = [entry.label for entry in entries]
    return next((label for label in ("fedavg", ALONE) if label in labels), labels[0])


def _figures_of_several(entries: Sequence[Entry]) -> dict[str, Picture]:
    comparison = Comparison(entries, _baseline(entries))
    drawn: dict[str, Picture] = {}
    for place, partition in enumerate(comparison.partitions):
        suffix = f"-{place + 1}" if len(comparison.partitions) > 1 else ""
        drawn |= {f"{name}{suffix}": picture for name, picture in pictures.of_comparison(comparison, partition).items()}
        for method in comparison.methods:
            entry = _first(comparison, method, partition)
            if entry is not None:
                drawn |= {f"{name}-{_file_part(method)}{suffix}": picture for name, picture in pictures.of_method(entry).items()}
    return drawn


def _page_of_one(entry: Entry, drawn: dict[str, Picture]) -> str:
    run, metric = Run(entry.run.folder), entry.run.metric
    found = cards(entry, run)
    measured = entry.measured[0]
    worst = "highest" if entry.lower else "lowest"
    tiles = [(f"average {metric}", written(measured["average"], metric), _was(entry, "average")),
             (f"{worst} client", written(measured["worst"], metric), _was(entry, "worst")),
             ("standard deviation over clients", points(measured["std"], metric), _was(entry, "std", points))]  # fmt: skip
    if entry.reference:
        average = measured["change"] * (-1 if entry.lower else 1)
        tiles += [("average gain", f"{'+' if average > 0 else ''}{points(average, metric)}", f"{100 * measured['harmed']:.0f} % of the clients lose"),
                  ("collaborative fairness", formats.figure(measured["cf"], Measure("CF", "plain"), metric), "CF, from -100 to 100")]  # fmt: skip
    return _render(
        title=f"{entry.label} on {entry.run.data}",
        headline=headline(found, metric),
        remarks=[doubt(found), _unfinished(run), _no_reference(entry)],
        tiles=tiles,
        cards=found,
        largest=max((abs(card.gain) for card in found if card.gain is not None), default=0.0),
        total_rounds=run.last_round,
        tables=[],
        pictures=_group(drawn, list(drawn)),
        more=[],
        unit=figures.unit(metric),
        metric=metric,
        facts=_facts(run),
        configuration=[(str(entry.run.folder), yaml.safe_dump(run.config, sort_keys=False))],
        environment=_environment(run),
    )


def _page_of_several(entries: Sequence[Entry], drawn: dict[str, Picture]) -> str:
    comparison = Comparison(entries, _baseline(entries))
    run, metric = Run(entries[0].run.folder), comparison.metric
    tables, more = [], []
    for partition in comparison.partitions:
        header, rows = formats.grid_of(comparison, partition, _mark)
        clients_header, clients = formats.clients_grid(comparison, partition, comparison.seeds[0])
        caption = f"Change against training alone by client ({'points' if metric != 'rmse' else metric}; seed {comparison.seeds[0]}), most harmed first"
        tables.append({"partition": partition, "header": header, "rows": rows, "clients_header": clients_header, "clients": clients[:-1],
                       "losers": clients[-1] if clients else [], "caption": caption})  # fmt: skip
    for method in comparison.methods:
        wanted = [name for name in drawn if name.startswith((f"heatmap-{_file_part(method)}", f"weights-{_file_part(method)}"))]
        own = [name for name in wanted if _owner(name, comparison.methods) == method]
        more.append({"title": method, "pictures": _group(drawn, own)})
    shared = [name for name in drawn if not name.startswith(("heatmap-", "weights-"))]
    return _render(
        title=f"{len(comparison.methods)} methods on {entries[0].run.data}",
        headline=_best_in_words(comparison),
        remarks=[],
        tiles=[],
        cards=[],
        largest=0.0,
        total_rounds=0,
        tables=tables,
        pictures=_group(drawn, shared),
        more=more,
        notes=formats.explanation(comparison),
        unit=figures.unit(metric),
        metric=metric,
        facts=_facts(run, comparison),
        configuration=[
            (f"{e.label}, {e.run.place[0]}, seed {e.run.place[1]}: {e.run.folder}", yaml.safe_dump(e.run.config, sort_keys=False))
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
        "written": lambda value: formats.figure(value, Measure("value"), content["metric"]),
        "change": lambda value: formats.figure(value, _CHANGE, content["metric"], signed=True),
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


def _mark(text: str, place: int | None) -> str:
    escaped = Markup.escape(text)
    return Markup(f"<strong>{escaped}</strong>") if place == 1 else Markup(f"<u>{escaped}</u>") if place == 2 else escaped


def _was(entry: Entry, measure: str, write: Callable[[float, str], str] = written) -> str:
    if not entry.reference or entry.alone is None:
        return ""
    return f"alone: {write(Entry('', entry.alone, None).measured[0][measure], entry.run.metric)}"


def _unfinished(run: Run) -> str:
    if run.status == "finished":
        return ""
    doing = "is still going" if is_going(run) else f"was stopped; `equipoise resume {run.folder}` completes it"
    return f"These numbers are not final: the run {doing} (round {run.last_round} of {run.config['rounds']})."


def _no_reference(entry: Entry) -> str:
    if entry.reference or entry.run.is_alone:
        return ""
    return f"To learn who gains, run the method {ALONE} with the same settings into a folder beside this one, and make the report again."


def _best_in_words(comparison: Comparison) -> str:
    """What a comparison found, in a sentence per partition."""
    sentences = []
    for partition in comparison.partitions:
        rows = [row for row in comparison.rows if row["partition"] == partition]
        best = next((row for row in rows if row["measure"] == "average" and row["place"] == 1), None)
        kindest = [row for row in rows if row["measure"] == "harmed" and not math.isnan(row["value"])]
        if best is None:
            continue
        text = f"{best['method']} has the best average ({written(best['value'], comparison.metric)})"
        if kindest:
            least = min(row["value"] for row in kindest)
            names = [row["method"] for row in kindest if row["value"] == least]
            who = "" if names == [best["method"]] else f"{' and '.join(names[:3])} "
            whom = f"the fewest clients ({100 * least:.0f} %)" if least else "nobody"
            text += f"{'; ' if who else ' and '}{who}{'harms' if len(names) == 1 else 'harm'} {whom}"
        sentences.append((f"On {partition}, " if len(comparison.partitions) > 1 else "") + text + ".")
    return " ".join(sentences)


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

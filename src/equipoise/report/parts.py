"""Tables and metadata of a page: all metrics side by side, what was run, and where."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from equipoise import methods
from equipoise.comparison import formats
from equipoise.comparison.entries import Entry
from equipoise.comparison.measures import in_unit_of, measures
from equipoise.comparison.table import Comparison
from equipoise.report.cards import MOST_LISTED
from equipoise.runs import Run


def marked(text: str, position: int | None) -> str:
    escaped = Markup.escape(text)
    return (
        Markup(f"<strong>{escaped}</strong>")
        if position == 1
        else Markup(f"<u>{escaped}</u>")
        if position == 2
        else escaped
    )


def metrics_of_one(entry: Entry, listed: list[str]) -> dict[str, Any]:
    """All metrics side by side: over clients, and client by client; of very many only those that are listed anyhow."""
    seen = {name: entry.seen_by(name) for name in entry.run.by_metric}
    shown = [
        "average",
        "worst",
        "std",
        *(["change", "worst_change", "harmed", "cf"] if entry.reference else []),
    ]
    header = ["metric", *(measures(entry.metric)[name].title for name in shown)]
    rows = []
    for one in seen.values():
        columns = measures(one.metric)
        cells = [
            formats.figure(one.measured[0][name], columns[name], columns[name].signed)
            for name in shown
        ]
        rows.append([one.metric.title, *cells])
    clients = list(dict.fromkeys(client for one in seen.values() for client in one.run.values))
    clients = clients if len(clients) <= MOST_LISTED else listed
    each = [
        [
            c,
            *(
                formats.figure(one.run.values.get(c), in_unit_of(one.metric))
                for one in seen.values()
            ),
        ]
        for c in clients
    ]
    return {"title": "All metrics", "header": header, "rows": rows, "clients_header": ["client", *(o.metric.title for o in seen.values())], "clients": each}  # fmt: skip


def metrics_of_several(comparison: Comparison, partition: str) -> dict[str, Any]:
    """All metrics side by side: average, worst client and harm of every method."""
    shown = ("average", "worst", "harmed")
    seen = [comparison.seen_by(name) for name in comparison.metrics]
    header = [
        "method",
        *(f"{one.metric.title}: {one.measures[name].title}" for one in seen for name in shown),
    ]
    rows = []
    for method in comparison.methods:
        if comparison.row(partition, method, "average") is None:
            continue
        cells: list[str] = []
        for one in seen:
            for name in shown:
                row = one.row(partition, method, name)
                cells.append(
                    marked(
                        formats.cell(one, partition, method, name), row["position"] if row else None
                    )
                )
        rows.append([method, *cells])
    return {
        "title": f"All metrics on {partition}",
        "header": header,
        "rows": rows,
        "clients_header": [],
        "clients": [],
    }


def metadata(run: Run, comparison: Comparison | None = None) -> list[tuple[str, str]]:
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
            (
                "ranked by",
                f"{comparison.measures[comparison.measure].title} of {comparison.metric.name}",
            ),
        ]
    samples = f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,}"
    return [*same, ("clients", f"{len(run.clients):,}, with {samples} training samples"),
            ("rounds", f"{run.last_round} of {run.config['rounds']}"), ("test data", "one set for all" if run.main_split == "shared" else "each client's own part")]  # fmt: skip


def environment(run: Run) -> list[tuple[str, str]]:
    known = run.store.meta("environment")
    return [("equipoise", run.store.meta("version")), *((key, str(value)) for key, value in known.items()),
            ("created", run.store.meta("created")), ("fingerprint of data and partition", run.store.meta("fingerprint"))]  # fmt: skip

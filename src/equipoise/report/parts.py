"""Tables and metadata of a page: all metrics together, the settings and the environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from equipoise import methods
from equipoise.comparison import formats
from equipoise.comparison.measures import in_unit_of, measures
from equipoise.comparison.table import Comparison
from equipoise.report.cards import MOST_LISTED
from equipoise.report.wording import name_of, title_of
from equipoise.runs import MetricResult, RunResult

Pairs = list[tuple[str, str]]  # name and value


def partition_name(partition: str) -> str:
    """Return a partition as a reader knows it.

    >>> partition_name("natural"), partition_name("dirichlet:0.3")
    ('one client per site', 'dirichlet:0.3')
    """
    name, comma, sweep = partition.partition(",")
    return f"one client per site{comma}{sweep}" if name == "natural" else partition


def marked(text: str, position: int | None) -> str:
    """Return a cell as HTML: the best in bold."""
    escaped = Markup.escape(text)
    return Markup(f"<strong>{escaped}</strong>") if position == 1 else escaped


def metrics_of_one(result: RunResult, listed: Sequence[str]) -> dict[str, Any]:
    """Return the table of all metrics of a run.

    Args:
        result: The result of the run.
        listed: The clients to list if there are very many.
    """
    shown = ["average", "worst", "std"]
    if result.main.baseline:
        shown += ["change", "worst_change", "harmed", "cf"]
    titles = measures(result.main.metric)
    rows = [_metric_row(scores, shown, len(result.clients)) for scores in result.metrics.values()]
    clients = list(
        dict.fromkeys(client for scores in result.metrics.values() for client in scores.values)
    )
    if len(clients) > MOST_LISTED:
        clients = list(listed)
    by_client = []
    for client in clients:
        row = [client]
        for scores in result.metrics.values():
            row.append(formats.figure(scores.values.get(client), in_unit_of(scores.metric)))
        by_client.append(row)
    return {
        "title": "All metrics",
        "text": "",
        "header": ["metric", *(titles[name].title for name in shown)],
        "rows": rows,
        "clients_header": [
            "client",
            *(title_of(scores.metric) for scores in result.metrics.values()),
        ],
        "clients": by_client,
    }


def _metric_row(scores: MetricResult, shown: Sequence[str], clients: int) -> list[str]:
    columns = measures(scores.metric)
    title = title_of(scores.metric)
    if len(scores.values) < clients:
        title += f" ({len(scores.values)} of {clients} clients)"
    row = [title]
    for name in shown:
        value = scores.aggregates[name]
        row.append(formats.figure(value, columns[name], columns[name].signed))
    return row


def metrics_of_several(comparison: Comparison, partition: str) -> dict[str, Any]:
    """Return the table of all metrics: average, worst client and harm of every method."""
    shown = ("average", "worst", "harmed")
    views = [comparison.with_metric(name) for name in comparison.metrics]
    header = ["method"]
    for view in views:
        header += [f"{title_of(view.metric)}: {view.measures[name].title}" for name in shown]
    rows = []
    for method in comparison.methods:
        if comparison.row(partition, method, "average") is None:
            continue
        cells = [method]
        for view in views:
            cells += [_marked_cell(view, partition, method, name) for name in shown]
        rows.append(cells)
    several = len(comparison.partitions) > 1
    return {
        "title": f"All metrics on {partition_name(partition)}" if several else "All metrics",
        "text": "",
        "header": header,
        "rows": rows,
        "clients_header": [],
        "clients": [],
    }


def _marked_cell(comparison: Comparison, partition: str, method: str, name: str) -> str:
    position = formats.position_of(comparison, partition, method, name, only_significant=True)
    return marked(formats.cell(comparison, partition, method, name), position)


def metadata_of_one(result: RunResult) -> Pairs:
    """Return the settings of a run that the head of a page names."""
    config = result.config
    parameters = [f"{key}={value}" for key, value in config["method"].items() if key != "name"]
    method = methods.shown(config["method"]["name"])
    if parameters:
        method += f" ({', '.join(parameters)})"
    return [
        ("method", method),
        ("partition", partition_name(result.partition)),
        ("seed", str(config["seed"])),
        *_size(result),
        *_validation_data(result),
    ]


def _validation_data(result: RunResult) -> Pairs:
    """Return when clients began to train on their validation data, if they did."""
    held_out = result.held_out_rounds
    if held_out is None:
        return []
    return [("validation data", f"trained on after round {held_out}")]


def metadata_of_several(comparison: Comparison) -> Pairs:
    """Return the settings of a comparison that the head of a page names."""
    ranked_by = comparison.measures[comparison.measure].title
    return [
        ("methods", ", ".join(comparison.methods)),
        ("partitions", ", ".join(map(partition_name, comparison.partitions))),
        ("seeds", ", ".join(map(str, comparison.seeds))),
        ("baseline of the tests", comparison.baseline),
        ("ranked by", f"{ranked_by} {name_of(comparison.metric)}"),
        *_size(comparison.entries[0].run),
    ]


def _size(result: RunResult) -> Pairs:
    sizes = result.sizes["train"]
    samples = f"{min(sizes):,}"
    if min(sizes) != max(sizes):
        samples += f" to {max(sizes):,}"
    tests = "one set for all" if result.main_split == "shared" else "each client's own part"
    return [
        ("clients", f"{len(result.clients):,}, with {samples} training samples"),
        ("rounds", f"{result.last_round} of {result.config['rounds']}"),
        ("test data", tests),
    ]


def environment(result: RunResult) -> Pairs:
    """Return the versions that a run was made with, and the fingerprint of its data."""
    return [
        ("equipoise", result.version),
        *((key, str(value)) for key, value in result.environment.items()),
        ("created", result.created),
        ("fingerprint of data and partition", result.fingerprint),
    ]

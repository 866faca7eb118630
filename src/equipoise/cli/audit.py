"""Implement `equipoise audit`: differences between clients, from summaries only."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.network_run import NetworkOptions, audit_on_network
from equipoise.cli.options import DataOptions, ImportOptions, PartitionOption, option_groups
from equipoise.transports.workers import processes

if TYPE_CHECKING:
    from equipoise.auditing import ClientRow, Findings, PredictionFindings
    from equipoise.validation.imports import FromFile

MOST = 60  # clients in a table
MOST_LABELS = 12  # columns of counts in a table
USED_KEYS = ("data", "seed", "workers", "participation")  # of an experiment


@option_groups
def audit(
    data_options: DataOptions,
    partition_option: PartitionOption,
    network_options: NetworkOptions,
    import_options: ImportOptions,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="an experiment as a YAML file, or the folder of a run; options override it",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="random seed; the same seed gives the same clients; default: 0"),
    ] = None,
    dimensions: Annotated[
        int,
        typer.Option(
            min=1, max=64, help="number of principal components of the features that are compared"
        ),
    ] = 10,
    workers: Annotated[
        int | None,
        typer.Option(help="worker processes; default: one per core; 0: in this process"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="any other setting, e.g. --set data.samples=5000; repeat for several",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="with the folder of a run: the served model whose features are compared; "
            "default: the main one"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="write audit.json and the figures (PNG and SVG) to this folder"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Compare clients in size, labels and features; no sample leaves a client.

    Nothing is trained: clients send summaries only. For a run, features of correctly and wrongly
    classified test samples are compared, too.

    Examples:
      equipoise audit --data digits --partition dirichlet:0.3 --clients 10
      equipoise audit --data hospitals/ --label disease --out audit
      equipoise audit runs/demo        (data and models; the report then shows the figures)
    """
    processes.allow_fork()
    import json

    from equipoise.auditing import audit as run_audit
    from equipoise.cli import output
    from equipoise.cli.progress import announced_interrupts
    from equipoise.experiment import experiment, with_settings
    from equipoise.storage.store import DATABASE
    from equipoise.validation.imports import permitted

    options = {
        **data_options.settings(),
        "data.partition": partition_option.partition,
        "seed": seed,
        "workers": workers,
    }
    chosen = {key: value for key, value in options.items() if value is not None}
    run = file if file is not None and (file / DATABASE).exists() else None
    config = with_settings(_configuration(file, run is not None), chosen)
    config = with_settings(config, output.parse_settings(settings or []))
    config = config.changed({key: config[key] for key in USED_KEYS if key in config})
    predictions = None
    if network_options.network is not None:
        audited = audit_on_network(config, network_options, dimensions)
        if audited is None:
            return
        findings = audited
    else:
        with announced_interrupts():
            findings = run_audit(
                experiment(config, permitted(config, import_options.packages)),
                dimensions=dimensions,
            )
    is_own_data = not chosen and not settings and network_options.network is None
    if run is not None and is_own_data:
        findings.save(run / "audit.json")
        predictions = _predictions(run, model, import_options.packages)
    if out is not None:
        save(findings, out, predictions)
    if as_json:
        content = findings.plain()
        if predictions is not None:
            content["predictions"] = predictions.plain()
        print(json.dumps(output.plain(content), indent=2, allow_nan=False))
        return
    show(findings)
    if predictions is not None:
        show_predictions(predictions)
    if out is not None:
        output.say(f"audit and pictures: {out}")


def _configuration(file: Path | None, is_run: bool) -> FromFile:
    """Return the configuration of a YAML file or of a run; an empty one without either."""
    from equipoise.experiment import load
    from equipoise.storage.form import read_configuration
    from equipoise.validation.imports import FromFile

    if file is None:
        return FromFile()
    if is_run:
        return FromFile(read_configuration(file))
    return load(file)


def _predictions(
    folder: Path, model: str | None, packages: Sequence[str]
) -> PredictionFindings | None:
    """Compare correct and wrong samples of a run; None, with a sentence, if that is impossible."""
    from equipoise.auditing import audit_predictions
    from equipoise.auditing.predictions import FILE
    from equipoise.runs import Run
    from equipoise.storage.store import RunError

    opened = Run(folder)
    try:
        found = audit_predictions(opened, model, packages)
    except RunError as error:
        if model is not None:
            raise
        typer.echo(f"correct and wrong samples are not compared: {error}", err=True)
        return None
    finally:
        opened.store.close()
    found.save(folder / FILE)
    return found


def save(findings: Findings, folder: Path, predictions: PredictionFindings | None = None) -> None:
    """Write the findings and their pictures as files.

    Args:
        findings: The findings.
        folder: The folder, which is made if needed.
        predictions: Findings about correct and wrong samples.
    """
    from equipoise.auditing.pictures import pictures
    from equipoise.auditing.predictions import FILE, draw
    from equipoise.report.drawing import encoded
    from equipoise.storage.files import save_output

    folder.mkdir(parents=True, exist_ok=True)
    findings.save(folder / "audit.json")
    for name, (_, _, draw_one) in pictures(findings).items():
        for kind in ("png", "svg"):
            save_output(folder / f"{name}.{kind}", encoded(draw_one, kind))
    if predictions is None:
        return
    predictions.save(folder / FILE)
    for kind in ("png", "svg"):
        picture = encoded(partial(draw, predictions), kind)
        save_output(folder / f"predictions.{kind}", picture)


def show(findings: Findings) -> None:
    """Print the findings as tables and sentences."""
    from equipoise.cli import output

    clients = len(findings.clients)
    output.say(
        f"{findings.data}: {clients:,} {'client' if clients == 1 else 'clients'}, "
        f"{int(findings.counts.sum()):,} training samples; "
        f"features compared in {findings.dimensions} of {findings.features} directions, "
        f"which hold {100 * findings.variance:.0f} % of their variance"
    )
    _show_clients(findings)
    if clients <= MOST:
        _show_labels(findings)
    for warning in findings.warnings:
        output.say(f"warning: {warning}")
    output.say(output.styled("verdict", "bold"), f": {findings.text}")


def show_predictions(predictions: PredictionFindings) -> None:
    """Print how far clients differ in correct and in wrong samples."""
    from equipoise.cli import output

    rows: list[list[Any]] = []
    for row in predictions.clients[:MOST]:
        rows.append(
            [row.client, row.right, row.wrong, _number(row.kl_right), _number(row.kl_wrong)]
        )
    title = f"test samples of model {predictions.model}"
    output.table(["client", "correct", "wrong", "KL correct", "KL wrong"], rows, title=title)
    output.say(
        "KL: divergence of the client's samples from those of all clients along the first "
        "principal component of the model's features, in nats (kernel densities)"
    )
    output.say(output.styled("correct and wrong samples", "bold"), f": {predictions.text}")


def _show_clients(findings: Findings) -> None:
    """Print a row per client; of many clients those that differ most."""
    from equipoise.cli import output

    rows = list(findings.clients)
    if len(rows) > MOST:
        rows.sort(key=lambda row: -1.0 if row.kl is None else row.kl, reverse=True)
    shown = rows[:MOST]
    output.table(
        ["client", "samples", "labels", "chance", "KL", "chance", "beyond", "Thm 2.2", "printed"],
        [[row.client, row.samples, *_numbers_of(row)] for row in shown],
    )
    output.say(
        "labels: total variation of label shares from those of all data; "
        "KL: exact Gaussian divergence of features from all data, in nats; "
        "beyond: the part of it that labels do not explain; "
        "chance: the value of a client of that size if nothing differs; "
        "Thm 2.2: FedAKD's approximation, corrected and as printed"
    )
    for row in shown:
        if row.note:
            output.say(f"{row.client}: {row.note}")
    if len(rows) > MOST:
        output.say(f"... and {len(rows) - MOST} more clients, which differ less; --json has all")


def _numbers_of(row: ClientRow) -> list[str]:
    values = (
        row.label_distance,
        row.label_chance,
        row.kl,
        row.kl_chance,
        row.kl_beyond_labels,
        row.corrected,
        row.printed,
    )
    return [_number(value) for value in values]


def _show_labels(findings: Findings) -> None:
    """Print the samples per client and label; of many labels the first ones."""
    from equipoise.cli import output

    header = ["client", *findings.classes[:MOST_LABELS]]
    rows: list[list[Any]] = []
    for row, counts in zip(findings.clients, findings.counts, strict=True):
        rows.append([row.client, *map(int, counts[:MOST_LABELS])])
    if len(findings.classes) > MOST_LABELS:
        header.append("...")
        for cells in rows:
            cells.append("")
    output.table(header, rows, title="samples by label")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"

"""equipoise audit"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.options import DataOptions, ImportOptions, PartitionOption, option_groups
from equipoise.transports.workers import processes

if TYPE_CHECKING:
    from equipoise.auditing import Findings

MOST = 60


@option_groups
def audit(
    data_options: DataOptions,
    partition_option: PartitionOption,
    import_options: ImportOptions,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="an experiment as a YAML file, or the folder of a run; options override it",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="random seed; the same seed gives the same clients")
    ] = None,
    dimensions: Annotated[
        int,
        typer.Option(
            min=1, max=64, help="leading directions of the features in which clients are compared"
        ),
    ] = 10,
    workers: Annotated[
        int | None,
        typer.Option(help="worker processes; default: one per core; 0: in this process"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="any other setting, e.g. --set data.samples=5000"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="write audit.json and the figures (PNG and SVG) to this folder"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """How different are the clients, in size, labels and features? From summaries only: no sample leaves a client, nothing is trained.

    Examples:

      equipoise audit --data digits --partition dirichlet:0.3 --clients 10

      equipoise audit runs/x        (the data of a run; its report then shows the pictures)
    """
    processes.allow_fork()
    import json

    from equipoise.auditing import audit as look
    from equipoise.cli import output
    from equipoise.cli.progress import announced_interrupts
    from equipoise.experiment import experiment, load, with_settings
    from equipoise.storage.form import read_configuration
    from equipoise.storage.store import DATABASE
    from equipoise.validation.imports import FromFile, permitted

    flags = {
        **data_options.settings(),
        "data.partition": partition_option.partition,
        "seed": seed,
        "workers": workers,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    run = file if file is not None and (file / DATABASE).exists() else None
    base = (
        FromFile()
        if file is None
        else load(file)
        if run is None
        else FromFile(read_configuration(file))
    )
    config = with_settings(with_settings(base, given), output.parse_settings(settings or []))
    config = config.changed(
        {
            key: value
            for key, value in config.items()
            if key in ("data", "seed", "workers", "participation")
        }
    )
    with announced_interrupts():
        found = look(
            experiment(config, permitted(config, import_options.packages)),
            dimensions=dimensions,
        )
    if run is not None and not given and not settings:
        found.save(run / "audit.json")
    if out is not None:
        save(found, out)
    if as_json:
        print(json.dumps(output.plain(found.plain()), indent=2, allow_nan=False))
        return
    show(found)
    if out is not None:
        output.say(f"audit and pictures: {out}")


def save(found: Findings, folder: Path) -> None:
    """The findings and their pictures as files."""
    from equipoise.auditing.pictures import pictures
    from equipoise.report.drawing import encoded
    from equipoise.storage.files import save_output

    folder.mkdir(parents=True, exist_ok=True)
    found.save(folder / "audit.json")
    for name, (_, _, draw) in pictures(found).items():
        for kind in ("png", "svg"):
            save_output(folder / f"{name}.{kind}", encoded(draw, kind))


def show(found: Findings) -> None:
    """The findings as tables and sentences."""
    from equipoise.cli import output

    rows = (
        sorted(found.clients, key=lambda row: -(row.kl if row.kl is not None else -1.0))
        if len(found.clients) > MOST
        else found.clients
    )
    output.say(
        f"{found.data}: {len(found.clients):,} {'client' if len(found.clients) == 1 else 'clients'}, {int(found.counts.sum()):,} training samples; features compared in {found.dimensions} of "
        f"{found.features} directions, which hold {100 * found.variance:.0f} % of their variance"
    )
    output.table(
        ["client", "samples", "labels", "chance", "KL", "chance", "beyond", "Thm 2.2", "printed"],
        [
            [
                row.client,
                row.samples,
                *map(
                    _number,
                    (
                        row.label_distance,
                        row.label_chance,
                        row.kl,
                        row.kl_chance,
                        row.kl_beyond_labels,
                        row.corrected,
                        row.printed,
                    ),
                ),
            ]
            for row in rows[:MOST]
        ],
    )
    output.say(
        "labels: total variation of label shares from the whole's; KL: exact Gaussian divergence of features from the whole's, in nats; beyond: the part of it that "
        "labels do not explain; chance: what a client of that size shows where nothing differs; Thm 2.2: FedAKD's approximation, corrected and as printed"
    )
    for row in rows[:MOST]:
        if row.note:
            output.say(f"{row.client}: {row.note}")
    if len(rows) > MOST:
        output.say(f"... and {len(rows) - MOST} more clients, nearer to the whole; --json has all")
    few = list(range(min(12, len(found.classes))))
    if len(found.clients) <= MOST:
        output.table(
            [
                "client",
                *(found.classes[c] for c in few),
                *(["..."] if len(few) < len(found.classes) else []),
            ],
            [
                [
                    row.client,
                    *map(int, found.counts[k][few]),
                    *([""] if len(few) < len(found.classes) else []),
                ]
                for k, row in enumerate(found.clients)
            ],
            title="samples by label",
        )
    for warning in found.warnings:
        output.say(f"warning: {warning}")
    output.say(output.styled("verdict", "bold"), f": {found.text}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"

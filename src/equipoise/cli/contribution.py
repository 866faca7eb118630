"""The command equipoise contribution."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.options import (
    DataOptions,
    ImportOptions,
    MethodOptions,
    PartitionOption,
    TrainingOptions,
    configured,
    option_groups,
)

if TYPE_CHECKING:
    from equipoise.comparison.contribution import Contributions


@option_groups
def contribution(
    data_options: DataOptions,
    partition_option: PartitionOption,
    method_options: MethodOptions,
    training_options: TrainingOptions,
    import_options: ImportOptions,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="an experiment as a YAML file; options and --set override it", show_default=False
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="random seed; default: 0")] = None,
    out: Annotated[
        Path,
        typer.Option(help="folder of the results; a second call continues there"),
    ] = Path("contribution"),
    recorded: Annotated[
        str,
        typer.Option(
            help="methods whose own estimates of contributions are compared, separated by commas; "
            "or none"
        ),
    ] = "cffl,cgsv,fedave,fedsac",
    force: Annotated[
        bool, typer.Option("--force", help="allow more than 8 clients (256 runs and more)")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """Compute how much each client contributes: exact Shapley values, and cheap estimates of them.

    Every coalition of clients is trained: 63 runs for 6 clients. Ctrl-C stops; the same command
    continues.

    Example:
      equipoise contribution hospitals.yaml --out contribution
    """
    from equipoise.comparison.contribution import RESULT, contribution
    from equipoise.experiment import experiment as experiment_from
    from equipoise.validation.imports import permitted

    settings = {
        **data_options.settings(),
        "data.partition": partition_option.partition,
        **method_options.settings(),
        **training_options.settings(),
        "seed": seed,
    }
    if method_options.method is not None and file is not None:
        settings["method"] = settings.pop("method.name")
    config = configured(file, settings, training_options.set_)
    experiment = experiment_from(config, permitted(config, import_options.packages))
    methods = () if recorded == "none" else tuple(recorded.split(","))
    contributions = contribution(experiment, out, methods, force, None if quiet else _progress)
    if as_json:
        print((out / RESULT).read_text(encoding="utf-8"), end="")
        return
    _show(contributions, out)


def _progress(known: int, total: int) -> None:
    import sys

    print(f"\r{known} of {total} coalitions", end="\n" if known == total else "", file=sys.stderr)


def _two_digits(value: float) -> str:
    import math

    return "–" if math.isnan(value) else f"{value:.2f}"


def _show(contributions: Contributions, out: Path) -> None:
    from equipoise.cli import output
    from equipoise.cli.output import say
    from equipoise.comparison.contribution import EXACT, RESULT

    rules = list(contributions.values)
    rows = []
    for client in contributions.clients:
        row = [client]
        for rule in rules:
            value = contributions.values[rule].get(client)
            row.append("–" if value is None else f"{value:.4f}")
        rows.append(row)
    correlations = ["rank correlation"]
    for rule in rules:
        correlations.append("" if rule == EXACT else _two_digits(contributions.correlations[rule]))
    title = f"contributions to {contributions.metric} on the test data of all clients"
    output.table(["client", *rules], [*rows, correlations], title)
    say(
        f"value of the initial model: {contributions.nobody:.4f}, "
        f"of all clients: {contributions.everyone:.4f}; "
        "exact Shapley values sum to the difference"
    )
    if len(contributions.clients) < 5:
        say(f"with {len(contributions.clients)} clients, a rank correlation is mostly chance")
    for note in contributions.notes:
        say(note)
    say(f"saved in {out / RESULT}", wrap=False)

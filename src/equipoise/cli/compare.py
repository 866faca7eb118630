"""equipoise compare"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from equipoise.comparison import Comparison
    from equipoise.validation.imports import FromFile

SHOWN_CLIENTS = 20


def compare(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="a YAML file: an experiment, and lists `methods`, `seeds`, `partitions`, a mapping `grid`",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="a data set (equipoise data list), or a folder with one CSV or NPZ file per site"
        ),
    ] = None,
    partition: Annotated[
        list[str] | None, typer.Option(help="how data are dealt; repeat the option for several")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="how many clients")] = None,
    label: Annotated[str | None, typer.Option(help="the label column of a table")] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            help="what the columns are: a YAML file that `equipoise data check --save` wrote"
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="a model's name, or package.module:name for one of yours")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="methods separated by commas, default fedavg; training alone is always added"
        ),
    ] = None,
    finish: Annotated[
        str | None,
        typer.Option(
            help="run every method a second time with this one at its end, which makes each client's own model: poise"
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="seeds separated by commas, or a range such as 1-5")
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="tune on validation data, e.g. --grid method.mu=0.01,0.1; concerns methods that have it",
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="the method that others are tested against; default fedavg")
    ] = None,
    level: Annotated[
        float | None, typer.Option(help="level of the intervals over seeds; default 0.95")
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(
            help="what methods are ranked by: average, worst, std, change, worst_change, harmed or cf; default average"
        ),
    ] = None,
    measures: Annotated[
        str | None,
        typer.Option(
            help="further columns: best, p10_change, p90_change, best_round, rounds_to_target, d_cos, d_man; files hold all that were measured"
        ),
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="of the mean over clients, for rounds_to_target: 0.8, say")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="federated rounds")] = None,
    fraction: Annotated[
        float | None, typer.Option(help="share of the clients asked in each round")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="any other setting, e.g. --set training.lr=0.01"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="the comparison's folder; default: one under comparisons/, named by the settings"
        ),
    ] = None,
    allow_import: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE",
            help="import code of this package if the file names it; repeat the option for several",
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="runs at a time; default one per core")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="one run after another on a Ray cluster: HOST:PORT of its head, or auto for the one of this machine",
        ),
    ] = None,
    trust_network: Annotated[
        bool, typer.Option("--trust-network", help="take a cluster that asks for no token")
    ] = False,
    output_format: Annotated[
        Literal["terminal", "markdown", "latex", "csv", "json"],
        typer.Option("--format", help="what is printed; files of all kinds are saved"),
    ] = "terminal",
    columns: Annotated[
        str | None,
        typer.Option(
            help="measures that --format latex or markdown prints, in this order: average,worst,change, say; default: those of the terminal"
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything, list the runs, and stop")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
) -> None:
    """Compare methods over seeds and partitions on identical data, initial model and cohorts.

    Runs side by side, within the cores of the machine. What is finished is kept: the same command again completes only what is missing.

      equipoise compare --data digits --partition dirichlet:0.3 --methods fedavg,fedakd,fedprox --seeds 1-5 --grid method.mu=0.01,0.1
    """
    from equipoise.cli import comparison_output, output
    from equipoise.experiment import load, with_settings
    from equipoise.validation.imports import FromFile

    flags = {
        "data.name": data,
        "data.clients": clients,
        "data.label": label,
        "data.schema": schema,
        "model": model,
        "rounds": rounds,
        "participation.fraction": fraction,
    }
    given = load(file) if file is not None else FromFile()
    given = with_settings(given, {key: value for key, value in flags.items() if value is not None})
    given = with_settings(given, output.parse_settings(settings or []))
    if seeds is not None and not quiet:
        comparison_output.ask_about_seeds(seeds)
    if methods is None and not {"methods", "method"} & given.keys():
        methods = "fedavg"  # beside training alone, which is always added
    typed: dict[str, Any] = {
        "methods": comparison_output.words(methods),
        "seeds": comparison_output.parse_seeds(seeds) if seeds is not None else [],
        "partitions": partition or [],
        "grid": comparison_output.parse_grid(grid) if grid else {},
        "baseline": baseline,
        "level": level,
        "measure": measure,
        "measures": comparison_output.words(measures)
        + (
            ["rounds_to_target"]
            if target is not None and "rounds_to_target" not in (measures or "")
            else []
        ),
        "target": target,
    }
    if finish is not None:
        typed["methods"] = comparison_output.also_finished(
            typed["methods"] or given.get("methods") or [given["method"]], finish
        )
    where = {"cluster": cluster, "trust_network": trust_network}
    chosen = comparison_output.parse_columns(columns, output_format)
    compared(
        given, typed, out, jobs, allow_import or [], dry_run, quiet, output_format, where, chosen
    )


def compared(
    given: FromFile,
    typed: dict[str, Any],
    out: Path | None,
    jobs: int | None,
    allowed: list[str],
    dry_run: bool,
    quiet: bool,
    output_format: str,
    where: dict[str, Any],
    columns: Sequence[str] = (),
) -> None:
    """Carry out a comparison, or show its plan; `typed` stands in place of what the file says."""
    from equipoise.cli import comparison_output
    from equipoise.comparison import compare as start
    from equipoise.comparison import formats
    from equipoise.comparison.plan import from_file, plan
    from equipoise.validation.imports import permitted

    if dry_run:
        base, wanted = from_file(given, **typed)
        wanted = {
            key: value
            for key, value in wanted.items()
            if key not in ("baseline", "level", "measure", "measures", "target")
        }
        cells = plan(base, **wanted, imports=permitted(base, allowed))
        comparison_output.show_plan(cells)
        comparison_output.understood(cells)
        return
    try:
        with comparison_output.progress(quiet) as watching:
            result = start(
                given,
                **typed,
                out=out,
                jobs=jobs,
                progress=watching,
                allow_imports=allowed,
                **where,
            )
    except KeyboardInterrupt:
        print(
            "stopped; finished rounds are kept, and the same command goes on from there",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None
    if output_format == "terminal":
        comparison_output.show(result, SHOWN_CLIENTS)
    else:
        texts: dict[str, Callable[[Comparison], str]] = {
            "markdown": partial(formats.markdown, columns=columns),
            "latex": partial(formats.latex, columns=columns),
            "csv": formats.csv_text,
            "json": formats.json_text,
        }
        print(texts[output_format](result), end="")
    if result.failures:
        raise typer.Exit(1)

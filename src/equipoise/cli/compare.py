"""The command equipoise compare."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from equipoise.cli.options import (
    ClusterOptions,
    DataOptions,
    ImportOptions,
    TrainingOptions,
    configured,
    option_groups,
)
from equipoise.transports.workers import processes

if TYPE_CHECKING:
    from equipoise.comparison.table import Comparison
    from equipoise.validation.imports import FromFile


@dataclass(frozen=True)
class TableOptions:
    """The table of a comparison: what is tested, ranked and shown."""

    panel: ClassVar[str] = "Table"

    baseline: Annotated[
        str | None,
        typer.Option(
            help="method that the others are tested against; default: fedavg, else the first"
        ),
    ] = None
    level: Annotated[
        float | None,
        typer.Option(
            help="confidence level of the intervals over seeds, from 0 to 1; default: 0.95"
        ),
    ] = None
    measure: Annotated[
        str | None,
        typer.Option(
            help="rank methods by average, worst, std, change, worst_change, harmed or cf; "
            "default: average"
        ),
    ] = None
    measures: Annotated[
        str | None,
        typer.Option(
            help="further columns: best, p10_change, p90_change, best_round, best_average, "
            "rounds_to_target, speed_up, d_cos, d_man, embedding_angle, embedding_manhattan, "
            "seconds_per_client, seconds_per_client_std; the files always have all of them"
        ),
    ] = None
    target: Annotated[
        str | None,
        typer.Option(
            help="mean over clients to reach, for rounds_to_target and speed_up: 0.8, or "
            "fedavg.best for the best mean of a method"
        ),
    ] = None

    models: Annotated[
        str | None,
        typer.Option(
            help="served models with their own rows: all, or names such as global,teacher; "
            "default: the main model of each method"
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the options as arguments of `equipoise.compare`."""
        from equipoise.cli.comparison_output import words

        return {
            "baseline": self.baseline,
            "level": self.level,
            "measure": self.measure,
            "measures": words(self.measures),
            "target": self.target,
            "models": words(self.models),
        }


@option_groups
def compare(
    data_options: DataOptions,
    training_options: TrainingOptions,
    table_options: TableOptions,
    cluster_options: ClusterOptions,
    import_options: ImportOptions,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="a YAML file: an experiment with lists `methods`, `seeds`, `partitions` and a "
            "mapping `grid`",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            help="how the data are divided among clients, e.g. dirichlet:0.3; repeat for several"
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="methods separated by commas; default: fedavg. Training alone is always added"
        ),
    ] = None,
    finish: Annotated[
        str | None,
        typer.Option(
            help="run every method a second time, followed by this one, which makes a personal "
            "model for each client: poise, finetune, groupthresholds"
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="seeds separated by commas, or a range such as 1-5; default: 0"),
    ] = None,
    baselines: Annotated[
        str | None,
        typer.Option(help="none: do not add training alone; default: standalone"),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="one group of rows per value of a setting, e.g. --sweep data.clients=10,50,100",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="values among which the best is chosen on validation data, e.g. "
            "--grid method.mu=0.01,0.1; applies to methods that have this parameter",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="folder of the comparison; default: one under comparisons/, named by the settings"
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="runs at a time; default: one per core")] = None,
    output_format: Annotated[
        Literal["terminal", "markdown", "latex", "csv", "json"],
        typer.Option("--format", help="format to print; files of all formats are saved"),
    ] = "terminal",
    columns: Annotated[
        str | None,
        typer.Option(
            help="measures that --format latex or markdown prints, in this order, for example "
            "average,worst,change; default: those of the terminal"
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything, list the runs, and stop")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """Compare methods over seeds and partitions on identical data, initial model and cohorts.

    Runs execute in parallel, within the cores of the machine. Finished runs are kept: the same
    command again completes only what is missing.

    Examples:
      equipoise compare --data digits --partition dirichlet:0.3 --methods fedavg,fedakd --seeds 1-5
      equipoise compare --data digits --methods fedprox --grid method.mu=0.01,0.1 --seeds 1-3
    """
    processes.allow_fork()
    from equipoise.cli import comparison_output

    settings = {**data_options.settings(), **training_options.settings()}
    config = configured(file, settings, training_options.set_)
    if seeds is not None and not quiet:
        comparison_output.ask_about_seeds(seeds)
    if methods is None and not {"methods", "method"} & config.keys():
        methods = "fedavg"
    typed: dict[str, Any] = {
        "methods": comparison_output.words(methods),
        "seeds": comparison_output.parse_seeds(seeds) if seeds is not None else [],
        "partitions": partition or [],
        "grid": _parsed_grid(grid or []),
        "baselines": baselines,
        "sweep": comparison_output.parse_grid([sweep], "--sweep") if sweep else {},
        **table_options.arguments(),
    }
    if finish is not None:
        base = typed["methods"] or config.get("methods") or [config["method"]]
        typed["methods"] = comparison_output.also_finished(base, finish)
    chosen = comparison_output.parse_columns(columns, output_format)
    if dry_run:
        show_plan(config, typed, import_options.packages)
        return
    execution = {
        "out": out,
        "jobs": jobs,
        "allow_imports": import_options.packages,
        **cluster_options.arguments(),
    }
    run_and_print(config, typed, execution, quiet, output_format, chosen)


def _parsed_grid(options: Sequence[str]) -> dict[str, list[Any]]:
    """Return the options `--grid` as a mapping; a key that is given twice is refused."""
    from equipoise.cli import comparison_output
    from equipoise.experiment import ConfigurationError

    keys = [option.partition("=")[0].strip() for option in options]
    repeated = [key for key in keys if keys.count(key) > 1]
    if repeated:
        raise ConfigurationError(
            f"--grid: {repeated[0]} is given twice; give all its values at once, such as "
            f"--grid {repeated[0]}=VALUE,VALUE"
        )
    return comparison_output.parse_grid(options)


def run_and_print(
    config: FromFile,
    typed: dict[str, Any],
    execution: dict[str, Any],
    quiet: bool,
    output_format: str = "terminal",
    columns: Sequence[str] = (),
) -> None:
    """Run a comparison and print its table.

    Args:
        config: The settings of a file.
        typed: Lists and settings of the table that replace those of the file.
        execution: Further arguments of `equipoise.compare`.
        quiet: Show no progress.
        output_format: The format to print.
        columns: Measures that LaTeX and Markdown show.

    Raises:
        typer.Exit: A run failed or a method refused its settings (1), or the comparison was
            interrupted (130).
    """
    comparison = _compare(config, typed, execution, quiet)
    _print(comparison, output_format, columns)
    if comparison.failures or comparison.refusals:
        raise typer.Exit(1)


def show_plan(config: FromFile, typed: dict[str, Any], allowed: list[str]) -> None:
    """Print the runs that a comparison would make; `typed` replaces settings of the file."""
    from equipoise.cli import comparison_output
    from equipoise.comparison.run import prepared

    planned = prepared(config, typed, allowed).plan
    comparison_output.show_plan(planned.cells, planned.refusals)
    comparison_output.show_data_report(planned.cells)


def _compare(
    config: FromFile, typed: dict[str, Any], execution: dict[str, Any], quiet: bool
) -> Comparison:
    """Run a comparison with a display of its progress."""
    from equipoise.cli import comparison_output
    from equipoise.comparison import compare as run_comparison

    try:
        with comparison_output.progress(quiet) as progress:
            return run_comparison(config, **typed, **execution, progress=progress)
    except KeyboardInterrupt:
        print(
            "stopped; finished rounds are saved, and the same command continues from there",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None


def _print(comparison: Comparison, output_format: str, columns: Sequence[str]) -> None:
    from equipoise.cli import comparison_output
    from equipoise.comparison import formats

    if output_format == "terminal":
        comparison_output.show(comparison)
        return
    texts: dict[str, Callable[[Comparison], str]] = {
        "markdown": partial(formats.markdown, columns=columns),
        "latex": partial(formats.latex, columns=columns),
        "csv": formats.csv_text,
        "json": formats.json_text,
    }
    print(texts[output_format](comparison), end="")

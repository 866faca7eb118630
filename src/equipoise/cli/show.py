"""The command equipoise show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def show(
    run: Annotated[Path, typer.Argument(help="folder of a run, or of a comparison")],
    against: Annotated[
        Path | None,
        typer.Option(
            help="folder of the run that gains are measured against; default: a Standalone run "
            "of the same data next to it"
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="a served model: global, personal, ...; default: the one that clients use"
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="a measured metric; default: the main one (evaluation.main)"),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="print the seconds of each phase of a round")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Show the result of a run: average, worst and best client, gains against training alone.

    Examples:
      equipoise show runs/demo
      equipoise show runs/demo --against runs/standalone --metric auroc
    """
    from equipoise.cli import run_output
    from equipoise.comparison.entries import RESULT
    from equipoise.runs import Run

    if (run / RESULT).exists():
        _show_comparison(run, against, metric, as_json)
        return
    opened = Run(run)
    baseline = None if against is None else Run(against)
    result = run_output.read_with_baseline(opened, baseline)
    if as_json:
        run_output.show_json(result, model, metric)
        return
    run_output.show(result, model, metric)
    if profile:
        run_output.profile(opened)


def _show_comparison(folder: Path, against: Path | None, metric: str | None, as_json: bool) -> None:
    from equipoise.cli import comparison_output
    from equipoise.comparison import formats, opened
    from equipoise.validation.names import nearest

    comparison = opened([folder], against)
    if metric is not None:
        if metric not in comparison.metrics:
            raise nearest("metric of this comparison", metric, comparison.metrics)
        comparison = comparison.with_metric(metric)
    if as_json:
        print(formats.json_text(comparison), end="")
    else:
        comparison_output.show(comparison)

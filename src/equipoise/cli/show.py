"""equipoise show"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def show(
    run: Annotated[Path, typer.Argument(help="the folder of a run, or of a comparison")],
    against: Annotated[
        Path | None,
        typer.Option(
            help="a run to compare each client with; default: a Standalone run of the same data beside it"
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="which of the served models; default: what clients end up using"),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="which of the metrics measured; default: the main one (evaluation.main)"),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="print where the time of a round went")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
) -> None:
    """What a run is and how it ended: average, worst and best client, and who gained against training alone."""
    import json

    from equipoise.cli import output
    from equipoise.comparison.entries import RESULT
    from equipoise.runs import Run
    from equipoise.runs.reference import reference_of
    from equipoise.runs.summary import summarise

    if (run / RESULT).exists():
        _show_comparison(run, against, metric, as_json)
        return
    opened = Run(run)
    alone = Run(against) if against is not None else reference_of(opened)
    found = summarise(opened, alone, model, metric)
    if as_json:
        print(json.dumps(output.plain(found), indent=2, allow_nan=False))
        return
    output.show(found)
    if profile:
        output.profile(opened)


def _show_comparison(folder: Path, against: Path | None, metric: str | None, as_json: bool) -> None:
    from equipoise.cli import comparison_output
    from equipoise.cli.compare import SHOWN_CLIENTS
    from equipoise.comparison import formats, opened
    from equipoise.validation.names import nearest

    found = opened([folder], against)
    if metric is not None and metric not in found.metrics:
        raise nearest("metric of this comparison", metric, found.metrics)
    found = found.seen_by(metric or found.metric.name)
    if as_json:
        print(formats.json_text(found), end="")
    else:
        comparison_output.show(found, SHOWN_CLIENTS)

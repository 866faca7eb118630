"""The command `equipoise resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.transports.workers import processes


def resume(
    run: Annotated[Path, typer.Argument(help="the folder of a run that was stopped or killed")],
    from_round: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="go back to the checkpoint of this round, for example if the newest one is "
            "damaged; later rounds are computed again",
        ),
    ] = None,
    allow_import: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE",
            help="import code of this package if the run names it; repeat the option for several",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="continue on a Ray cluster: HOST:PORT of its head, or auto for this machine",
        ),
    ] = None,
    trust_network: Annotated[
        bool, typer.Option("--trust-network", help="accept a cluster that asks for no token")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """Continue a run that was stopped or killed; the result is bit-for-bit the same."""
    processes.allow_fork()
    from equipoise.cli import run_output
    from equipoise.cli.progress import announced_interrupts, progress
    from equipoise.runs import Run
    from equipoise.simulate import resume as continue_run

    with announced_interrupts():
        finished = continue_run(
            run,
            progress(quiet, Run(run).main_metric),
            from_round=from_round,
            allow_imports=allow_import or [],
            cluster=cluster,
            trust_network=trust_network,
        )
    run_output.summary(finished)

"""The command `equipoise resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.network_run import NetworkOptions, refuse_with_network, resume_on_network
from equipoise.cli.options import ClusterOptions, ImportOptions, option_groups
from equipoise.runtime.environment import keep_heap
from equipoise.transports.workers import processes


@option_groups
def resume(
    run: Annotated[Path, typer.Argument(help="folder of a run that was interrupted or killed")],
    cluster_options: ClusterOptions,
    network_options: NetworkOptions,
    import_options: ImportOptions,
    from_round: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="go back to the checkpoint of this round, for example if the newest one is "
            "damaged; later rounds are computed again",
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE",
            help="with --from-round 0: train again without a site, as if it had never joined, "
            "into a new folder next to the run; repeat for several",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """Continue a run that was interrupted or killed; the result is bit-for-bit the same.

    A run that a callback or a budget stopped is finished and cannot be resumed.

    Examples:
      equipoise resume runs/demo
      equipoise resume runs/demo --from-round 16        (if the newest checkpoint is damaged)
      equipoise resume runs/demo --without west --from-round 0        (a site leaves)
    """
    processes.allow_fork()
    keep_heap()
    from equipoise.cli import run_output
    from equipoise.cli.progress import announced_interrupts, progress
    from equipoise.runs import Run
    from equipoise.simulate import resume as continue_run

    if without:
        _train_without(run, without, from_round, network_options, import_options, quiet)
        return
    if network_options.network is not None:
        refuse_with_network(
            {
                "--cluster": cluster_options.cluster is not None,
                "--allow-import": bool(import_options.packages),
                "--sites": network_options.sites is not None,
            }
        )
        delivered = resume_on_network(run, network_options, from_round, quiet)
        if delivered is not None:
            run_output.summary(delivered)
        return
    with announced_interrupts():
        finished = continue_run(
            run,
            progress(quiet, Run(run).main_metric),
            from_round=from_round,
            allow_imports=import_options.packages,
            **cluster_options.arguments(),
        )
    run_output.summary(finished)


def _train_without(
    run: Path,
    without: list[str],
    from_round: int | None,
    network_options: NetworkOptions,
    import_options: ImportOptions,
    quiet: bool,
) -> None:
    """Train a run again without some sites, and print its result with its digest."""
    from equipoise.cli import run_output
    from equipoise.cli.progress import announced_interrupts, progress
    from equipoise.runs import Run
    from equipoise.simulate import retrain_without

    if network_options.network is not None:
        refuse_with_network({"--without": True})
    old = Run(run)
    with announced_interrupts():
        finished = retrain_without(
            old,
            without,
            from_round,
            progress(quiet, old.main_metric),
            allow_imports=import_options.packages,
        )
    run_output.summary(finished)

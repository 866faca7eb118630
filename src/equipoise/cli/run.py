"""equipoise run"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.options import (
    ClusterOptions,
    DataOptions,
    ImportOptions,
    MethodOptions,
    PartitionOption,
    TrainingOptions,
    configured,
    option_groups,
)
from equipoise.transports.workers import processes

if TYPE_CHECKING:
    from equipoise.callbacks import Callback
    from equipoise.validation.imports import FromFile


@option_groups
def run(
    data_options: DataOptions,
    partition_option: PartitionOption,
    method_options: MethodOptions,
    training_options: TrainingOptions,
    cluster_options: ClusterOptions,
    import_options: ImportOptions,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="an experiment as a YAML file; options and --set override it", show_default=False
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="random seed; the same seed gives the same results")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="worker processes; default: one per core; 0: in this process"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda")] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder of the run; default: a new one under runs/")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="remove the run that --out holds already")
    ] = False,
    against_alone: Annotated[
        bool,
        typer.Option(
            "--against-alone",
            help="also train each client alone, and show which clients gain and which lose",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything, print the plan, and stop")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="print the time of each phase of a round")
    ] = False,
    track: Annotated[
        str | None, typer.Option(help="also log every number to mlflow or tensorboard")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """Run an experiment: from a YAML file, from options, or both.

    Examples:

      equipoise run --data digits --partition dirichlet:0.3 --clients 10 --method fedakd --rounds 20

      equipoise run experiment.yaml --set training.lr=0.01 --dry-run
    """
    processes.allow_fork()
    from equipoise.cli import output, run_output
    from equipoise.cli.data import ShowData, before_training, method_advice
    from equipoise.cli.progress import announced_interrupts, progress
    from equipoise.experiment import ConfigurationError, experiment
    from equipoise.simulate import run as start
    from equipoise.validation.imports import permitted

    if cluster_options.cluster is not None and workers is not None:
        raise ConfigurationError(
            f"--cluster: expected no --workers beside it, got {workers}; "
            "the nodes of a cluster offer their cores themselves"
        )
    settings = {
        **data_options.settings(),
        "data.partition": partition_option.partition,
        **method_options.settings(),
        **training_options.settings(),
        "seed": seed,
        "workers": workers,
        "device": device,
    }
    if method_options.method is not None and file is not None:
        # Another method: the hyper-parameters in the file belong to the old one.
        settings["method"] = settings.pop("method.name")
    config = configured(file, settings, training_options.set_)
    if against_alone:
        single = {"--overwrite": overwrite, "--profile": profile, "--track": track is not None}
        unfit = [name for name, given in single.items() if given]
        where = cluster_options.arguments()
        _against_alone(config, out, import_options.packages, dry_run, quiet, where, unfit)
        return
    wanted = experiment(config, permitted(config, import_options.packages))
    if dry_run:
        output.plan(wanted)
        before_training(wanted)
        method_advice([wanted])
        return
    if overwrite and out is not None:
        output.remove_run(out)
    callbacks: list[Callback] = []
    if not quiet:
        callbacks.append(ShowData(wanted))
    callbacks += progress(quiet, wanted.evaluation.main)
    if track is not None:
        from equipoise.runs.track import tracker

        callbacks.append(tracker(track, wanted))
    with announced_interrupts():
        finished = start(wanted, out, callbacks, quiet=True, **cluster_options.arguments())
    run_output.summary(finished)
    if profile:
        run_output.profile(finished)


def _against_alone(
    config: FromFile,
    out: Path | None,
    allowed: list[str],
    dry_run: bool,
    quiet: bool,
    where: dict[str, Any],
    unfit: list[str],
) -> None:
    """`equipoise compare` with one method and one seed: its folder, its table, its page."""
    from equipoise.cli.compare import run_and_print, show_plan
    from equipoise.experiment import ConfigurationError

    if unfit:
        raise ConfigurationError(
            f"{unfit[0]} is for one run, and --against-alone makes two; leave out one of them"
        )
    method, seed = config.get("method", "fedavg"), config.get("seed", 0)
    # As lists of the file, not as typed: what of it came from a file may be imported only if that was allowed.
    lists = {"methods": [method], "seeds": [seed]}
    rest = config.changed(
        {key: value for key, value in config.items() if key not in ("method", "seed")} | lists
    )
    typed: dict[str, Any] = {key: [] for key in lists}
    if dry_run:
        show_plan(rest, typed, allowed)
        return
    run_and_print(rest, typed, {"out": out, "allow_imports": allowed, **where}, quiet)

"""The command `equipoise run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.network_run import NetworkOptions, refuse_with_network, run_on_network
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
from equipoise.runtime.environment import keep_heap
from equipoise.transports.workers import processes

if TYPE_CHECKING:
    from equipoise.validation.imports import FromFile


@option_groups
def run(
    data_options: DataOptions,
    partition_option: PartitionOption,
    method_options: MethodOptions,
    training_options: TrainingOptions,
    cluster_options: ClusterOptions,
    network_options: NetworkOptions,
    import_options: ImportOptions,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="an experiment as a YAML file; options and --set override it", show_default=False
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="random seed; the same seed gives the same results; default: 0"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="worker processes; default: one per core; 0: in this process"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: cpu")] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder of the run; default: a new one under runs/")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace an existing run in --out")
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE", help="leave a site out, as if it had never joined; repeat for several"
        ),
    ] = None,
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
        bool, typer.Option("--profile", help="print the seconds of each phase of a round")
    ] = False,
    track: Annotated[
        str | None, typer.Option(help="also send every number to mlflow, tensorboard or wandb")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """Run an experiment: from a YAML file, from options, or both.

    Examples:
      equipoise run --data digits --partition dirichlet:0.3 --clients 10 --method fedakd --rounds 20
      equipoise run --data hospitals/ --label disease --method fedavg --against-alone
      equipoise run experiment.yaml --set training.lr=0.01 --dry-run
    """
    processes.allow_fork()
    keep_heap()
    from equipoise.cli import output, run_output
    from equipoise.cli.data import describe_data, method_advice
    from equipoise.cli.progress import announced_interrupts, progress
    from equipoise.experiment import ConfigurationError
    from equipoise.experiment import experiment as experiment_from
    from equipoise.simulate import load_data, on_cluster, start
    from equipoise.validation.imports import permitted

    if cluster_options.cluster is not None and workers is not None:
        raise ConfigurationError(
            f"--cluster: expected no --workers together with it, got {workers}; "
            "each node of a cluster uses its own cores"
        )
    settings = {
        **data_options.settings(),
        "data.partition": partition_option.partition,
        **method_options.settings(),
        **training_options.settings(),
        "seed": seed,
        "workers": workers,
        "device": device,
        "data.without": without or None,
    }
    if method_options.method is not None and file is not None:
        # Another method: the hyper-parameters in the file belong to the old one.
        settings["method"] = settings.pop("method.name")
    config = configured(file, settings, training_options.set_)
    if network_options.network is not None:
        refuse_with_network(
            {
                "--cluster": cluster_options.cluster is not None,
                "--workers": workers is not None,
                "--device": device is not None,
                "--without": bool(without),
                "--against-alone": against_alone,
                "--dry-run": dry_run,
                "--profile": profile,
                "--track": track is not None,
                "--allow-import": bool(import_options.packages),
            }
        )
        _on_network(config, network_options, out, overwrite, quiet)
        return
    if against_alone:
        for_one_run = {"--overwrite": overwrite, "--profile": profile, "--track": track is not None}
        _refuse_with_against_alone(for_one_run)
        _against_alone(config, out, import_options, cluster_options, dry_run, quiet)
        return
    experiment = experiment_from(config, permitted(config, import_options.packages))
    if dry_run:
        federation, report = load_data(experiment, report=True)
        output.plan(experiment, federation)
        describe_data(experiment, report, federation.task.shape)
        method_advice([experiment])
        return
    if overwrite and out is not None:
        output.remove_run(out)
    callbacks = progress(quiet, experiment.evaluation.main)
    if track is not None:
        from equipoise.runs.track import tracker

        callbacks.append(tracker(track, experiment))
    connect = on_cluster(cluster_options.cluster, cluster_options.trust_network)
    describe = None if quiet else describe_data
    with announced_interrupts():
        finished = start(experiment, out, callbacks, connect, describe)
    run_output.summary(finished)
    if profile:
        run_output.profile(finished)


def _on_network(
    config: FromFile, options: NetworkOptions, out: Path | None, overwrite: bool, quiet: bool
) -> None:
    """Run an experiment at the sites of a network and print its result."""
    from equipoise.cli import output, run_output

    if overwrite and out is not None:
        output.remove_run(out)
    finished = run_on_network(config, options, out, quiet)
    if finished is not None:
        run_output.summary(finished)


def _refuse_with_against_alone(options: dict[str, bool]) -> None:
    """Refuse options that are for one run, since --against-alone makes two."""
    from equipoise.experiment import ConfigurationError

    for name, is_set in options.items():
        if is_set:
            raise ConfigurationError(
                f"{name} is for one run, and --against-alone makes two; leave out one of them"
            )


def _against_alone(
    config: FromFile,
    out: Path | None,
    import_options: ImportOptions,
    cluster_options: ClusterOptions,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Compare one method and one seed with training alone, as `equipoise compare` does."""
    from equipoise.cli.compare import run_and_print, show_plan

    # The lists belong to the file, not to the command line: code that they name may be imported
    # only if that was allowed.
    lists = {
        "methods": [config.get("method", "fedavg")],
        "seeds": [config.get("seed", 0)],
    }
    shared = {key: value for key, value in config.items() if key not in ("method", "seed")}
    changed = config.changed(shared | lists)
    typed: dict[str, Any] = {key: [] for key in lists}
    if dry_run:
        show_plan(changed, typed, import_options.packages)
        return
    execution = {
        "out": out,
        "allow_imports": import_options.packages,
        **cluster_options.arguments(),
    }
    run_and_print(changed, typed, execution, quiet)

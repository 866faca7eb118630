"""equipoise run"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.transports.workers import processes

if TYPE_CHECKING:
    from equipoise.callbacks import Callback
    from equipoise.validation.imports import FromFile


def run(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="an experiment as a YAML file; flags and --set override it", show_default=False
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="a data set (equipoise data list), or a folder with one CSV or NPZ file per site"
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="how data are dealt: iid, dirichlet:0.3, dirichlet_balanced:0.3, natural, ..."
        ),
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
    method: Annotated[
        str | None,
        typer.Option(
            help="a method's name (equipoise methods), or package.module:Class for one of yours"
        ),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="take the weight rule of this method instead")
    ] = None,
    inputs: Annotated[
        str | None, typer.Option(help="take the input transform of this method")
    ] = None,
    companion: Annotated[
        str | None,
        typer.Option(
            "--companion",
            "--beside",
            help="run this method alongside; it keeps its own state and adds its model",
        ),
    ] = None,
    finish: Annotated[
        str | None,
        typer.Option(
            help="let this method make each client's own model at the end: poise, finetune"
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="federated rounds")] = None,
    seed: Annotated[int | None, typer.Option(help="the same seed gives the same bits")] = None,
    fraction: Annotated[
        float | None, typer.Option(help="share of the clients asked in each round")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="worker processes; default one per core; 0: in this process")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="do the clients' work on a Ray cluster: HOST:PORT of its head, or auto for the one of this machine",
        ),
    ] = None,
    trust_network: Annotated[
        bool, typer.Option("--trust-network", help="take a cluster that asks for no token")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="any other setting, e.g. --set method.mu=0.1 --set training.lr=0.01",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="the run's folder; default: a new one under runs/")
    ] = None,
    allow_import: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE",
            help="import code of this package if the file names it; repeat the option for several",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="remove a run that --out holds already")
    ] = False,
    against_alone: Annotated[
        bool,
        typer.Option(
            "--against-alone",
            help="train alone, too, and say who gains: as `equipoise compare` with this one method",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything, print the plan, and stop")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="print where the time of a round went")
    ] = False,
    track: Annotated[
        str | None, typer.Option(help="also send every number to mlflow or tensorboard")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
) -> None:
    """Run an experiment: from a YAML file, from flags, or both.

    Examples:

      equipoise run --data digits --partition dirichlet:0.3 --clients 10 --method fedprox --set method.mu=0.1 --rounds 20 --seed 1 --out runs/x

      equipoise run experiment.yaml --set training.lr=0.01 --dry-run
    """
    processes.allow_fork()
    from equipoise.cli import output
    from equipoise.cli.data import ShowData, before_training
    from equipoise.cli.progress import announced_interrupts, progress
    from equipoise.experiment import ConfigurationError, experiment, load, with_settings
    from equipoise.simulate import run as start
    from equipoise.validation.imports import FromFile, permitted

    flags: dict[str, Any] = {
        "data.name": data, "data.partition": partition, "data.clients": clients, "data.label": label, "data.schema": schema, "model": model, "method.name": method,
        "method.weights": weights, "method.inputs": inputs, "method.companion": companion, "method.finish": finish, "rounds": rounds, "seed": seed,
        "participation.fraction": fraction, "workers": workers, "device": device,
    }  # fmt: skip
    if cluster is not None and workers is not None:
        raise ConfigurationError(
            f"--cluster: expected no --workers beside it, got {workers}; the nodes of a cluster offer their cores themselves"
        )
    if method is not None and file is not None:
        # another method: the file's hyper-parameters belong to the old one
        flags["method"] = flags.pop("method.name")
    given = {key: value for key, value in flags.items() if value is not None}
    config = with_settings(load(file) if file is not None else FromFile(), given)
    config = with_settings(config, output.parse_settings(settings or []))
    if against_alone:
        asked = {"--overwrite": overwrite, "--profile": profile, "--track": track is not None}
        where = {"cluster": cluster, "trust_network": trust_network}
        _against_alone(
            config,
            out,
            allow_import or [],
            dry_run,
            quiet,
            where,
            [name for name, given in asked.items() if given],
        )
        return
    wanted = experiment(config, permitted(config, allow_import or []))
    if dry_run:
        output.plan(wanted)
        before_training(wanted)
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
        finished = start(
            wanted, out, callbacks, cluster=cluster, trust_network=trust_network, quiet=True
        )
    output.summary(finished)
    if profile:
        output.profile(finished)


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
    from equipoise.cli.compare import compared
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
    compared(
        rest, {key: [] for key in lists}, out, None, allowed, dry_run, quiet, "terminal", where
    )

"""The commands `equipoise cluster start`, `status` and `stop`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    no_args_is_help=True,
    help="Start, show and stop the nodes of a Ray cluster, which executes `run --cluster`.",
)


@app.command()
def start(
    head: Annotated[
        bool, typer.Option("--head", help="the first machine of a new cluster")
    ] = False,
    join: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="the head of the cluster that this machine joins"),
    ] = None,
    token: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="file of the cluster's token, copied from the head"),
    ] = None,
    bind: Annotated[
        str | None,
        typer.Option(
            metavar="IP",
            help="IP address of this machine for the other nodes; default: 127.0.0.1",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1024, max=65535, help="TCP port of the head")] = 6379,
    cores: Annotated[
        int | None,
        typer.Option(min=0, help="number of cores of this machine that are used; default: all"),
    ] = None,
    store: Annotated[
        int | None,
        typer.Option(
            min=100,
            metavar="MB",
            help="memory for data and states, in MB; default: 30 % of the machine",
        ),
    ] = None,
) -> None:
    """Make this machine a node of a new cluster (--head) or of an existing one (--join).

    Examples:
      equipoise cluster start --head --bind 10.0.0.5
      equipoise cluster start --join 10.0.0.5:6379 --token FILE
    """
    from equipoise.cli import output
    from equipoise.experiment import ConfigurationError
    from equipoise.transports.ray import nodes
    from equipoise.transports.ray.probe import is_loopback

    if head == (join is not None):
        raise ConfigurationError(
            "cluster start: expected either --head or --join HOST:PORT; "
            "the first machine is the head, the others join it"
        )
    node = nodes.start(join, bind, port, token, cores, store)
    output.say(
        f"this machine is {'the head' if node.head else 'a node'} of the cluster at {node.cluster}",
        wrap=False,
    )
    if node.head:
        if is_loopback(node.cluster):
            output.say("only this machine reaches it; with --bind IP others can join", wrap=False)
        output.say(
            "on every other machine, with a copy of the token's file that only its owner may read:",
            wrap=False,
        )
        output.say(
            f"  equipoise cluster start --join {node.cluster} --token {node.token}", wrap=False
        )
    output.say("then on any of them:", wrap=False)
    output.say("  equipoise run EXPERIMENT.yaml --cluster auto", wrap=False)


@app.command()
def status(
    address: Annotated[
        str, typer.Argument(help="HOST:PORT of the head, or auto for the cluster of this machine")
    ] = "auto",
    trust_network: Annotated[
        bool, typer.Option("--trust-network", help="accept a cluster that requires no token")
    ] = False,
) -> None:
    """Show the nodes of a cluster: cores, memory, versions."""
    from equipoise.cli import output
    from equipoise.transports.ray.connecting import address_of, token_for
    from equipoise.transports.ray.probe import check_installed, look

    check_installed()
    cluster = address_of(address)
    facts = look(cluster, token_for(cluster), trust_network)
    output.table(
        ["node", "cores", "memory", "object store", "equipoise", "torch"],
        [_row(node) for node in facts["nodes"]],
        f"cluster at {cluster}, Ray {facts['ray']}, Python {facts['python']}",
    )


@app.command()
def stop() -> None:
    """Stop the nodes that were started on this machine. A cluster ends with its head.

    Runs are kept and can be resumed.
    """
    from equipoise.cli import output
    from equipoise.transports.ray import nodes

    count = nodes.stop()
    if count == 0:
        output.say("no node was started here")
    else:
        output.say("1 node stopped" if count == 1 else f"{count} nodes stopped")


def _row(node: dict[str, Any]) -> list[Any]:
    """Return the row of a node in the table of `status`."""
    resources = node["resources"]
    labels = node["labels"]
    return [
        f"{node['address']} (head)" if node["head"] else node["address"],
        int(resources.get("CPU", 0)),
        f"{resources.get('memory', 0) / 2**20:.0f} MB",
        f"{resources.get('object_store_memory', 0) / 2**20:.0f} MB",
        # Labels cannot hold a plus sign, as in torch 2.6.0+cpu.
        labels.get("equipoise", "unknown").replace("_", "+"),
        labels.get("torch", "unknown").replace("_", "+"),
    ]

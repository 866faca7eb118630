"""The commands `equipoise server request`, `install`, `start`, `stop` and `exclude`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli import party
from equipoise.cli.party import Fingerprint, KitFolder, NetworkName, Organisation, Signed

app = typer.Typer(no_args_is_help=True, help="Enrol and run the server of a network.")


@app.command()
def request(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="where all parties reach the server")
    ],
    network: NetworkName,
    organisation: Organisation,
    folder: Annotated[Path, typer.Option(help="a new folder for the server")] = Path("server"),
) -> None:
    """Make the server's private key and a request for its certificate.

    equipoise server request fl.example.org:8002 --network hearts --organisation uni
    """
    from equipoise.transports.nvflare.parties import address_of

    host, port = address_of(address, "HOST:PORT")
    party.request(folder, "server", host, organisation, network, port)


@app.command()
def install(
    signed: Signed,
    fingerprint: Fingerprint,
    folder: Annotated[Path, typer.Option(help="the folder of the server")] = Path("server"),
) -> None:
    """Install the signed certificate and lock the kit.

    equipoise server install fl.example.org.signed.zip --fingerprint SHA256:...
    """
    kit = party.install(folder, signed, fingerprint, ("server",))
    party.next_step("next, on a machine with this name:", f"equipoise server start {folder}")
    party.next_step(f"sites connect to TCP port {kit.server[1]}; open it in the firewall")


@app.command()
def start(kit: KitFolder) -> None:
    """Run the server in the foreground until Ctrl-C, or `equipoise server stop`.

    equipoise server start server
    """
    from equipoise.cli import output
    from equipoise.transports.nvflare.kits import open_kit, point_stores

    opened = open_kit(kit, "server")
    point_stores(opened)
    host, port = opened.server

    def ready() -> None:
        output.say(f"the server of {opened.network} listens on {host}:{port}", wrap=False)
        party.next_step("next, at every site:", "equipoise site start KIT --data DATA")
        output.say("Ctrl-C ends it")

    party.start(opened, ready, {})


@app.command()
def stop(kit: KitFolder) -> None:
    """Stop the server; runs in progress are kept and can be resumed."""
    party.stop(kit, "server")


@app.command()
def exclude(
    kit: KitFolder,
    name: Annotated[str, typer.Argument(help="the name of a site")],
    readmit: Annotated[
        bool, typer.Option("--readmit", help="let the site in again, instead")
    ] = False,
) -> None:
    """Keep a site out that has left, or whose kit was copied, until its certificate ends.

    equipoise server exclude server va
    """
    from equipoise.cli import output
    from equipoise.transports.nvflare import parties, processes
    from equipoise.transports.nvflare.kits import open_kit

    opened = open_kit(kit, "server")
    excluded = parties.exclude(opened, name, readmit)
    output.say(f"excluded sites: {', '.join(excluded) or 'none'}", wrap=False)
    if processes.running(opened) is not None:
        party.next_step(
            "this holds when the server starts next:",
            f"equipoise server stop {kit}",
            f"equipoise server start {kit}",
        )

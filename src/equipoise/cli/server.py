"""The commands `equipoise server request`, `install`, `start`, `stop` and `exclude`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli import party
from equipoise.cli.party import Fingerprint, KitFolder, NetworkName, Organisation, Unit

app = typer.Typer(no_args_is_help=True, help="Enrol and run the server of a network.")


@app.command()
def request(
    address: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT", help="address under which all parties reach the server"
        ),
    ],
    network: NetworkName,
    organisation: Organisation,
    folder: Annotated[Path, typer.Option(help="a new folder for the server")] = Path("server"),
) -> None:
    """Make private keys and requests for the certificates of the server and its supervisor.

    The supervisor continues runs after a crash. It runs with the server and has few rights.

    Example:
      equipoise server request fl.example.org:8002 --network hearts --organisation uni
    """
    from equipoise.transports.nvflare.parties import address_of, request_server

    host, port = address_of(address, "HOST:PORT")
    requests = request_server(folder, host, port, organisation, network)
    party.show_requests("server", *requests)


@app.command()
def install(
    signed: Annotated[
        list[Path],
        typer.Argument(help="files NAME.signed.zip from the consortium: of server and supervisor"),
    ],
    fingerprint: Fingerprint,
    folder: Annotated[Path, typer.Option(help="the folder of the server")] = Path("server"),
) -> None:
    """Install the signed certificates and lock the kits.

    Example:
      equipoise server install fl.example.org.signed.zip supervisor@hearts.internal.signed.zip
      --fingerprint SHA256:...
    """
    from equipoise.transports.nvflare.parties import install_server

    for kit in install_server(folder, signed, fingerprint):
        party.show_installed(kit)
    party.next_step("next, on a machine with this name:", f"equipoise server start {folder}")
    party.next_step(f"sites connect to TCP port {kit.server[1]}; open it in the firewall")


@app.command()
def start(kit: KitFolder, unit: Unit = False) -> None:
    """Run the server in the foreground until Ctrl-C, or `equipoise server stop`.

    Example:
      equipoise server start server
    """
    from equipoise.cli import output
    from equipoise.transports.nvflare.kits import open_kit, point_stores

    opened = open_kit(kit, "server")
    if unit:
        party.show_unit(opened)
        return
    point_stores(opened)
    host, port = opened.server

    def ready() -> None:
        output.say(f"the server of {opened.network} listens on {host}:{port}", wrap=False)
        party.next_step("next, at every site:", "equipoise site start KIT --data DATA")
        output.say("Ctrl-C stops it")

    party.start(opened, ready, {})


@app.command()
def stop(kit: KitFolder) -> None:
    """Stop the server; runs in progress are kept and can be resumed."""
    party.stop(kit, "server")


@app.command()
def health(kit: KitFolder) -> None:
    """Show whether the server runs and what needs attention, for monitoring.

    The exit code is 0 if everything works, 1 if something needs attention, and 2 if the server
    does not run.

    Example:
      equipoise server health server
    """
    party.show_health(kit, "server")


@app.command()
def exclude(
    kit: KitFolder,
    name: Annotated[str, typer.Argument(help="the name of a site")],
    readmit: Annotated[
        bool, typer.Option("--readmit", help="accept the site again, instead")
    ] = False,
) -> None:
    """Refuse a site that has left, or whose kit was copied, until its certificate ends.

    Example:
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
            "restart the server to apply this:",
            f"equipoise server stop {kit}",
            f"equipoise server start {kit}",
        )

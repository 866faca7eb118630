"""Parts that the commands of the server, of sites and of members share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from equipoise.transports.nvflare.kits import Kind, Kit
    from equipoise.transports.nvflare.parties import Requested

NetworkName = Annotated[
    str, typer.Option("--network", help="name of the network; ask the consortium")
]
Organisation = Annotated[
    str, typer.Option("--organisation", "--org", help="your organisation: letters, digits and _")
]
Signed = Annotated[Path, typer.Argument(help="file NAME.signed.zip from the consortium")]
Fingerprint = Annotated[
    str,
    typer.Option(
        help="fingerprint of the network's root certificate; ask the consortium by telephone"
    ),
]
Unit = Annotated[
    bool,
    typer.Option("--unit", help="print a systemd unit that runs this command, and start nothing"),
]
KitFolder = Annotated[
    Path, typer.Argument(metavar="KIT", help="folder of the party, made by its `request` command")
]


def request(
    folder: Path, kind: Kind, name: str, organisation: str, network: str, port: int = 0
) -> None:
    """Make a request for a certificate and print what to do with it."""
    from equipoise.transports.nvflare import parties
    from equipoise.transports.nvflare.kits import command_of

    requested = parties.request(folder, kind, name, organisation, network, port)
    show_requests(command_of(kind), requested)


def show_requests(command: str, *requests: Requested) -> None:
    """Print what to do with requests for certificates.

    Args:
        command: The command of the party.
        *requests: The requests of the party.
    """
    from equipoise.cli import output

    for requested in requests:
        name = requested.certificate.name
        output.say(
            f"the private key of {name} is in {requested.folder} and never leaves it", wrap=False
        )
    output.say(f"send {'this file' if len(requests) == 1 else 'these files'} to the consortium:")
    for requested in requests:
        output.say(f"  {requested.archive}", wrap=False)
    output.say("read this fingerprint to it by telephone, and note the fingerprint of the network:")
    for requested in requests:
        output.say(f"  {requested.certificate.fingerprint}", wrap=False)
    output.say("when you have its answer, run:")
    signed = " ".join(f"{requested.certificate.name}.signed.zip" for requested in requests)
    output.say(f"  equipoise {command} install {signed} --fingerprint FINGERPRINT", wrap=False)


def install(folder: Path | None, signed: Path, fingerprint: str, kinds: tuple[str, ...]) -> Kit:
    """Install a signed certificate and print name, server and lifetime.

    Args:
        folder: The folder of the party; None for the one that `request` makes.
        signed: The signed certificate.
        fingerprint: The fingerprint of the root certificate.
        kinds: The kinds of party that the command is for.
    """
    from equipoise.transports.nvflare import parties

    kit = parties.install(folder, signed, fingerprint, kinds)
    show_installed(kit)
    return kit


def show_installed(kit: Kit) -> None:
    """Print what an installed certificate allows."""
    from equipoise.cli import output
    from equipoise.transports.nvflare.certificates import read_certificate

    ends = read_certificate(kit.certificate).ends
    host, port = kit.server
    output.say(f"{kit.name} is a {kit.kind} of the network {kit.network}", wrap=False)
    output.say(f"  server       {host}:{port}", wrap=False)
    output.say(f"  certificate  until {ends:%Y-%m-%d}")
    output.say(f"  kit          {shown_folder(kit)}, locked", wrap=False)


def shown_folder(kit: Kit) -> Path:
    """Return the folder of a kit as one would type it."""
    here = Path.cwd()
    return kit.folder.relative_to(here) if kit.folder.is_relative_to(here) else kit.folder


def next_step(text: str, *commands: str) -> None:
    """Print the next step and the commands to copy."""
    from equipoise.cli import output

    output.say(text)
    for command in commands:
        output.say(f"  {command}", wrap=False)


def warn(kit: Kit) -> None:
    """Print warnings about a kit: a certificate that ends soon, and locks that were loosened."""
    from equipoise.cli import output
    from equipoise.transports.nvflare.kits import kit_warnings, loosened

    for line in [*kit_warnings(kit), *(f"loosened: {line}" for line in loosened(kit))]:
        output.say(output.styled("warning: ", "yellow"), line, wrap=False)


def start(kit: Kit, on_ready: Callable[[], None], variables: Mapping[str, str]) -> None:
    """Run a party in the foreground until it is stopped."""
    from equipoise.cli import output
    from equipoise.transports.nvflare import parties

    warn(kit)
    parties.run_party(kit, on_ready, variables)
    output.say(f"the {kit.kind} {kit.name} has stopped", wrap=False)


def stop(folder: Path, kind: Kind) -> None:
    """End a party that runs on this machine."""
    from equipoise.cli import output
    from equipoise.transports.nvflare import processes
    from equipoise.transports.nvflare.kits import open_kit

    kit = open_kit(folder, kind)
    stopped = processes.stop(kit)
    output.say(
        f"the {kind} {kit.name} {'has stopped' if stopped else 'was not running'}", wrap=False
    )


def show_unit(kit: Kit, options: Sequence[str] = ()) -> None:
    """Print the unit of systemd that runs a party.

    Args:
        kit: The kit of the party.
        options: Options of the command that starts it.
    """
    from equipoise.transports.nvflare.units import unit

    typer.echo(unit(kit, options), nl=False)


def show_health(folder: Path, kind: Kind) -> None:
    """Print the health of a party on this machine, and exit with its code."""
    from equipoise.cli import output
    from equipoise.transports.nvflare.health import health
    from equipoise.transports.nvflare.kits import open_kit

    state = health(open_kit(folder, kind))
    for line in state.facts:
        output.say(line, wrap=False)
    for line in state.problems:
        output.say(output.styled("problem: ", "yellow"), line, wrap=False)
    if not state.problems:
        output.say("nothing needs attention")
    raise typer.Exit(state.code)

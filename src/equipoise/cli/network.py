"""The commands `equipoise network init`, `approve` and `status`, for the consortium."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from equipoise.transports.nvflare.certificates import Request
    from equipoise.transports.nvflare.parties import Network

app = typer.Typer(
    no_args_is_help=True,
    help="Create a network of hospitals on NVIDIA FLARE, and approve its parties.",
)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="a new folder for the consortium")],
    name: Annotated[str, typer.Option(help="the name of the network, such as hearts")],
    server: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="address under which all parties reach the server"),
    ],
) -> None:
    """Create a network: make its root certificate, with which the consortium approves parties.

    Whoever has the folder decides which parties belong to the network. Keep it on a separate
    machine, with a backup.

    Example:
      equipoise network init consortium --name hearts --server fl.example.org:8002
    """
    from equipoise.cli import output
    from equipoise.transports.nvflare import parties

    network = parties.init_network(folder, name, server)
    host, port = network.server
    output.say(
        f"created the network {network.name}; its root certificate is in {folder}", wrap=False
    )
    output.say(f"  fingerprint {network.root}", wrap=False)
    output.say("read this fingerprint to every party by telephone, and send these commands:")
    words = f"--network {network.name} --organisation ORGANISATION"
    output.say(f"  equipoise server request {host}:{port} {words}", wrap=False)
    output.say(f"  equipoise site request NAME {words}", wrap=False)
    output.say(f"  equipoise member request E-MAIL {words}", wrap=False)
    output.say("each command writes a request, which you approve:")
    output.say(f"  equipoise network approve REQUEST.zip --folder {folder}", wrap=False)


@app.command()
def approve(
    request: Annotated[list[Path], typer.Argument(help="files NAME.request.zip of the parties")],
    folder: Annotated[Path, typer.Option(help="the folder of the consortium")] = Path("."),
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="lifetime of the certificate in days")
    ] = 400,
    replace: Annotated[
        bool, typer.Option("--replace", help="accept a new key of a party that lost its old one")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="approve without a question")] = False,
) -> None:
    """Approve requests of parties, after comparing their fingerprints.

    Approving the same request again renews the certificate; the key stays the same.

    Example:
      equipoise network approve va.request.zip --folder consortium
    """
    from equipoise.transports.nvflare import parties

    network = parties.open_network(folder)
    for archive in request:
        _approve(network, archive, days, replace, yes)


def _approve(network: Network, archive: Path, days: int, replace: bool, yes: bool) -> None:
    """Show a request, ask, and sign it."""
    from equipoise.cli import output
    from equipoise.transports.nvflare import parties
    from equipoise.transports.nvflare.certificates import read_request, read_signed

    received = read_request(archive)
    parties.check_request(network, received, replace)
    _show(network, received)
    output.say(f"  certificate  for {days} days, until {_in_days(days)}")
    output.say("compare the fingerprint with the one that the party reads to you by telephone")
    if not yes and not typer.confirm(f"approve this {received.certificate.kind}?"):
        output.say("nothing was signed")
        raise typer.Exit(1)
    signed = parties.approve(network, archive, days, replace)
    ends = read_signed(signed).certificate.ends
    output.say(f"signed until {ends:%Y-%m-%d}; send {signed} back, and the party runs:", wrap=False)
    command = _install_command(received.certificate.kind)
    output.say(f"  {command} {signed.name} --fingerprint {network.root}", wrap=False)


def _show(network: Network, received: Request) -> None:
    """Print who asks for a certificate."""
    from equipoise.cli import output

    certificate = received.certificate
    renewed = any(party.key == certificate.fingerprint for party in network.parties)
    title = "renewal for" if renewed else "request of"
    output.say(f"{title} the {certificate.kind} {certificate.name} in {network.name}", wrap=False)
    output.say(f"  organisation {certificate.organisation}", wrap=False)
    output.say(f"  fingerprint  {certificate.fingerprint}", wrap=False)


def _in_days(days: int) -> str:
    from datetime import UTC, datetime, timedelta

    return f"{datetime.now(UTC) + timedelta(days=days):%Y-%m-%d}"


def _install_command(kind: str) -> str:
    from equipoise.transports.nvflare.kits import command_of

    return f"equipoise {command_of(kind)} install"


@app.command()
def status(
    folder: Annotated[
        Path,
        typer.Argument(help="the folder of the consortium, or the kit of a lead or a member"),
    ] = Path("."),
) -> None:
    """Show the parties of a network and their certificates, or the sites that are connected now.

    Examples:
      equipoise network status consortium        (parties and certificates)
      equipoise network status ann@example.org        (connected sites and runs)
    """
    from equipoise.transports.nvflare import parties

    if (folder / parties.PROFILE).exists():
        _show_parties(parties.open_network(folder))
    else:
        _show_connected(folder)


def _show_parties(network: Network) -> None:
    from equipoise.cli import output

    host, port = network.server
    rows = []
    for party in network.parties:
        days = party.days_left()
        remark = "ended" if days < 0 else f"{int(days)} days left"
        rows.append([party.kind, party.name, party.organisation, party.ends[:10], remark])
    output.say(f"network {network.name}, server {host}:{port}", wrap=False)
    output.say(f"fingerprint {network.root}", wrap=False)
    if rows:
        output.table(["kind", "name", "organisation", "valid until", ""], rows)
    else:
        output.say("no party has been approved yet")


def _show_connected(folder: Path) -> None:
    from equipoise.cli import output
    from equipoise.cli.network_run import progress_text
    from equipoise.transports.nvflare.kits import open_kit
    from equipoise.transports.nvflare.status import network_status

    kit = open_kit(folder, ("lead", "member"))
    status = network_status(kit)
    host, port = kit.server
    output.say(f"network {kit.network}, server {host}:{port} answers", wrap=False)
    rows = [[site.name, f"{site.seconds:.0f} s ago"] for site in status.sites]
    if rows:
        output.table(["site", "last heard"], rows)
    else:
        output.say("no site is connected")
    for job, progress in status.runs.items():
        text = f", {progress_text(progress)}" if progress else ""
        output.say(f"in progress: {job}{text}", wrap=False)


@app.command(name="restart-client")
def restart_client(
    run: Annotated[Path, typer.Argument(help="folder of the run on this machine")],
    name: Annotated[str, typer.Argument(help="name of the site that has lost its state")],
    network: Annotated[
        Path, typer.Option(metavar="KIT", help="the folder of your kit, as for `equipoise run`")
    ],
) -> None:
    """Reset the state of a site that has lost it (its answer is `no-state`), so that it continues.

    The run records the reset: `equipoise show` mentions it, and a replay repeats it.

    Example:
      equipoise network restart-client runs/hearts va --network ann@example.org
    """
    from equipoise.cli import output
    from equipoise.transports.nvflare.jobs import open_desk
    from equipoise.transports.nvflare.kits import open_kit
    from equipoise.transports.nvflare.scientist import restart_client as restart

    with open_desk(open_kit(network, "lead")) as desk:
        submitted = restart(desk, run, name)
    output.say(
        f"the state of {name} is reset with the next round, in job {submitted.job}", wrap=False
    )
    output.say("follow the run:")
    output.say(f"  equipoise resume {run} --network {network}", wrap=False)


@app.command()
def backup(
    run: Annotated[Path, typer.Argument(help="the folder of a run, at the server KIT/runs/RUN")],
    out: Annotated[
        Path | None, typer.Option(help="new folder of the copy; default: named by run and time")
    ] = None,
) -> None:
    """Copy a run at the server, also while it is in progress.

    To restore it, move the copy back while no job of the run is in progress, and resume the run.

    Example:
      equipoise network backup server/runs/0123456789abcdef0123456789abcdef
    """
    from datetime import UTC, datetime

    from equipoise.cli import output
    from equipoise.storage.backup import back_up

    now = datetime.now(UTC)
    target = out or run.absolute().with_name(f"{run.name}.{now:%Y%m%dT%H%M%S}.backup")
    number = back_up(run, target)
    output.say(f"round {number} of the run is in {target}", wrap=False)

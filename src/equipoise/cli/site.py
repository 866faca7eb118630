"""The commands `equipoise site request`, `install`, `check`, `start`, `stop`, `explain`, `log`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli import party
from equipoise.cli.party import Fingerprint, KitFolder, NetworkName, Organisation, Signed, Unit

if TYPE_CHECKING:
    from equipoise.transports.nvflare.kits import Kit

app = typer.Typer(
    no_args_is_help=True, help="Enrol a hospital in a network, check its kit and take part."
)
Data = Annotated[
    str | None,
    typer.Option(help="file or folder of the site's data; default: that of local/equipoise.yaml"),
]
SchemaFile = Annotated[
    Path | None,
    typer.Option(help="file of the agreed schema; default: that of local/equipoise.yaml"),
]


@app.command()
def request(
    name: Annotated[
        str, typer.Argument(help="name of the site in results: letters, digits, - and _")
    ],
    network: NetworkName,
    organisation: Organisation,
    folder: Annotated[
        Path | None, typer.Option(help="new folder for the site; default: its name")
    ] = None,
) -> None:
    """Make the site's private key and a request for its certificate.

    Example:
      equipoise site request va --network hearts --organisation va
    """
    party.request(folder or Path(name), "site", name, organisation, network)


@app.command()
def install(
    signed: Signed,
    fingerprint: Fingerprint,
    folder: Annotated[
        Path | None, typer.Option(help="folder of the site; default: its name")
    ] = None,
) -> None:
    """Install the signed certificate and lock the kit.

    Example:
      equipoise site install va.signed.zip --fingerprint SHA256:...
    """
    kit = party.install(folder, signed, fingerprint, ("site",))
    shown = party.shown_folder(kit)
    party.next_step(
        f"the settings of this site are in {shown / 'local' / 'equipoise.yaml'}; then:",
        f"equipoise site check {shown} --data DATA --schema SCHEMA.yaml",
        f"equipoise site start {shown} --data DATA --schema SCHEMA.yaml",
    )


@app.command()
def check(kit: KitFolder, data: Data = None, schema: SchemaFile = None) -> None:
    """Check certificate, locks, settings, data and connection of a site. No data are sent.

    Example:
      equipoise site check va --data va.csv --schema schema.yaml
    """
    from equipoise.cli import output
    from equipoise.transports.nvflare.connection import check_server
    from equipoise.transports.nvflare.kits import kit_warnings, loosened, open_kit

    opened = open_kit(kit, "site")
    _show_certificate(opened)
    warnings = kit_warnings(opened)
    differences = loosened(opened)
    for line in differences:
        output.say(output.styled("loosened: ", "red"), line, wrap=False)
    if not differences:
        output.say("kit          locked: two classes, no shipped code, no shell, no log streaming")
    warnings += _check_data(opened, data, schema)
    for line in warnings:
        output.say(output.styled("warning: ", "yellow"), line, wrap=False)
    check_server(opened)
    host, port = opened.server
    output.say(f"server       {host}:{port} answers, with mutual TLS", wrap=False)
    if differences:
        raise typer.Exit(2)
    party.next_step("next:", _start_command(kit, data, schema))


def _start_command(kit: Path, data: str | None, schema: Path | None) -> str:
    words = ["equipoise site start", str(kit)]
    if data is not None:
        words += ["--data", data]
    if schema is not None:
        words += ["--schema", str(schema)]
    return " ".join(words)


def _start_options(data: str | None, schema: Path | None) -> list[str]:
    """Return the options of `site start`, with whole paths."""
    options = []
    if data is not None:
        options += ["--data", str(Path(data).absolute()) if Path(data).exists() else data]
    if schema is not None:
        options += ["--schema", str(schema.absolute())]
    return options


def _show_certificate(kit: Kit) -> None:
    from equipoise.cli import output
    from equipoise.transports.nvflare.certificates import read_certificate

    certificate = read_certificate(kit.certificate)
    ends = f"{certificate.ends:%Y-%m-%d}"
    output.say(f"site         {kit.name} of {kit.organisation} in {kit.network}", wrap=False)
    output.say(f"certificate  until {ends}, signed by {certificate.issuer}", wrap=False)


def _check_data(kit: Kit, data: str | None, schema: Path | None) -> list[str]:
    """Check the settings and the data of a site; return warnings."""
    from equipoise.cli import output
    from equipoise.transports.nvflare import parties

    report = parties.check_data(kit, data, schema)
    output.say(f"data         {report.samples:,} samples in {report.data}", wrap=False)
    if report.schema is None:
        output.say("schema       none: the server chooses inputs and label", wrap=False)
    else:
        output.say(f"schema       {report.schema} fits the data", wrap=False)
    return report.warnings


@app.command()
def start(kit: KitFolder, data: Data = None, schema: SchemaFile = None, unit: Unit = False) -> None:
    """Run the site in the foreground until Ctrl-C, or `equipoise site stop`.

    Runs that a lead starts are executed here, on the site's own data.

    Example:
      equipoise site start va --data va.csv --schema schema.yaml
    """
    from equipoise.cli import output
    from equipoise.transports.nvflare import parties
    from equipoise.transports.nvflare.kits import open_kit

    opened = open_kit(kit, "site")
    parties.check_data(opened, data, schema)
    if unit:
        party.show_unit(opened, _start_options(data, schema))
        return

    def ready() -> None:
        host, port = opened.server
        output.say(f"{opened.name} is registered with the server {host}:{port}", wrap=False)
        output.say("runs that a lead starts are executed here; Ctrl-C stops the site")
        party.next_step("messages that were refused, with reasons:", f"equipoise site log {kit}")

    party.start(opened, ready, parties.start_variables(data, schema))


@app.command()
def stop(kit: KitFolder) -> None:
    """Stop the site; states and models of runs stay in its folder.

    Example:
      equipoise site stop va
    """
    party.stop(kit, "site")


@app.command()
def explain(
    method: Annotated[str, typer.Argument(help="a method, such as fedavg")],
    experiment: Annotated[
        Path | None, typer.Option(help="experiment file, for its model, schema and settings")
    ] = None,
) -> None:
    """Show what leaves the site when a method runs, with sizes and descriptions.

    The method runs on random numbers in this process; nothing is sent.

    Examples:
      equipoise site explain scaffold
      equipoise site explain scaffold --experiment hearts.yaml
    """
    from equipoise.cli import explanation

    explanation.show(method, experiment)


@app.command()
def log(
    kit: KitFolder,
    lines: Annotated[int, typer.Option(min=1, help="number of entries")] = 20,
) -> None:
    """Show the last messages that the site refused or that failed, and the paths of all logs.

    Example:
      equipoise site log va
    """
    from equipoise.cli import output
    from equipoise.transports.nvflare import parties
    from equipoise.transports.nvflare.kits import open_kit

    opened = open_kit(kit, "site")
    entries = parties.log_entries(opened, lines)
    for entry in entries:
        output.say(entry, wrap=False)
    if not entries:
        output.say("no message was refused, and none failed")
    output.say("all logs of the site:")
    for path in parties.log_files(opened):
        output.say(f"  {path}", wrap=False)


@app.command()
def health(kit: KitFolder) -> None:
    """Show whether the site runs and what needs attention, for monitoring.

    The exit code is 0 if everything works, 1 if something needs attention, and 2 if the site
    does not run.

    Example:
      equipoise site health va
    """
    party.show_health(kit, "site")

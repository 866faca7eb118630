"""The commands `equipoise member request` and `install`, for scientists and viewers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli import party
from equipoise.cli.party import Fingerprint, NetworkName, Organisation, Signed

app = typer.Typer(no_args_is_help=True, help="Enrol a person in a network: a lead or a member.")


class Role(StrEnum):
    """Roles of persons in a network."""

    LEAD = "lead"
    MEMBER = "member"


@app.command()
def request(
    name: Annotated[str, typer.Argument(metavar="E-MAIL", help="your e-mail address")],
    network: NetworkName,
    organisation: Organisation,
    role: Annotated[
        Role,
        typer.Option(
            help="a lead starts runs and downloads results; a member only sees the status"
        ),
    ] = Role.LEAD,
    folder: Annotated[
        Path | None, typer.Option(help="new folder for your kit; default: your e-mail address")
    ] = None,
) -> None:
    """Make your private key and a request for a certificate.

    Example:
      equipoise member request ann@example.org --network hearts --organisation uni
    """
    party.request(folder or Path(name), role.value, name, organisation, network)


@app.command()
def install(
    signed: Signed,
    fingerprint: Fingerprint,
    folder: Annotated[
        Path | None, typer.Option(help="folder of your kit; default: your e-mail address")
    ] = None,
) -> None:
    """Install the signed certificate.

    Example:
      equipoise member install ann@example.org.signed.zip --fingerprint SHA256:...
    """
    kit = party.install(folder, signed, fingerprint, ("lead", "member"))
    shown = party.shown_folder(kit)
    party.next_step("next, to see which sites are connected:", f"equipoise network status {shown}")
    if kit.kind == "lead":
        party.next_step("and to start a run:", f"equipoise run EXPERIMENT.yaml --network {shown}")

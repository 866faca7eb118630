"""The command line: one file per command.

Heavy modules are imported when a command runs, so that help is quick.
"""

from __future__ import annotations

import sqlite3
import sys
from typing import Annotated

import typer

from equipoise.cli import (
    audit,
    cluster,
    compare,
    contribution,
    data,
    doctor,
    export,
    listing,
    member,
    methods,
    models,
    network,
    predict,
    report,
    resume,
    run,
    server,
    show,
    site,
    study,
    table,
    watch,
)
from equipoise.cli.plugins import Commands
from equipoise.validation.names import UnknownName, is_unicode, quoted
from equipoise.validation.text import shown
from equipoise.version import __version__

_HELP = (
    "Federated learning on heterogeneous clients: which clients gain and which lose by joining.\n\n"
    "Try it on real images with nothing to download:\n\n"
    "    equipoise run --data digits --partition dirichlet:0.3 --clients 10 --method fedavg "
    "--rounds 20 --seed 1\n\n"
    "then [bold]equipoise show[/] the folder that it names. [bold]equipoise methods[/] lists the "
    "methods, [bold]equipoise data list[/] the data sets."
)

app = typer.Typer(
    name="equipoise",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=_HELP,
)


def _version(requested: bool) -> None:
    if requested:
        print(f"equipoise {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


app.command("run")(run.run)
app.command("resume")(resume.resume)
app.command("compare")(compare.compare)
app.command("contribution")(contribution.contribution)
app.command("study")(study.study)
app.command("report")(report.report)
app.command("watch")(watch.watch)
app.command("show")(show.show)
app.command("table")(table.table)
app.command("export")(export.export)
app.command("predict")(predict.predict)
app.command("audit")(audit.audit)
app.command("methods")(methods.methods)
app.command("models")(models.models)
app.command("metrics")(listing.metrics)
app.command("losses")(listing.losses)
app.command("doctor")(doctor.doctor)
app.add_typer(data.app, name="data")
app.add_typer(cluster.app, name="cluster")
app.add_typer(network.app, name="network")
app.add_typer(server.app, name="server")
app.add_typer(site.app, name="site")
app.add_typer(member.app, name="member")


def main() -> None:
    """Run the command line; errors that a user can fix are printed without a traceback."""
    try:
        for word in sys.argv[1:]:
            if not is_unicode(word):
                raise UnknownName(
                    f"{quoted(word)}: expected words and names of files in UTF-8; rename the file"
                )
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        sys.exit(2)


def _sentence(error: Exception) -> str | None:
    """Return the message for the user, or None for a bug, which shows its traceback."""
    if isinstance(error, MemoryError):
        details = f" ({shown(error)})" if str(error) else ""
        return f"not enough memory{details}; use less data, a smaller model or fewer --workers"
    if isinstance(error, OSError) and error.strerror:
        if error.filename is None:
            return shown(error.strerror)
        return shown(f"{error.filename}: {error.strerror}")
    if isinstance(error, sqlite3.Error) or type(error).__name__ == "SafetensorError":
        return (
            f"the folder of a run is damaged ({shown(error)}); restore it from a copy, or run the "
            "experiment again"
        )
    if not _is_ours(error):
        return None
    if type(error).__name__ in ("ConfigurationError", "DataErrors"):
        # A configuration or data with several mistakes have a line for each.
        return "\n".join(map(shown, str(error).split("\n")))
    # Any other line break comes from a name that a user chose.
    return shown(" ".join(str(error).split()))


def _is_ours(error: Exception) -> bool:
    # ValueErrors and the like that our own checks raise are meant for the user; anything else is a
    # bug.
    module = type(error).__module__
    if module.startswith("equipoise."):
        return type(error).__name__ != "ClientError"
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    where = frames.tb_frame.f_globals.get("__name__", "") if frames is not None else ""
    return isinstance(error, (ValueError, OSError)) and where.startswith("equipoise.")

"""`equipoise data`: which data sets there are, where they are, and how they get there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from equipoise.data.sets.download import Progress

app = typer.Typer(help="Data sets: list, show, fetch, import; and the partitions.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Name = Annotated[str, typer.Argument(help="The name of a data set, see `equipoise data list`.")]


@app.command("list")
def list_sets(as_json: Json = False) -> None:
    """List the data sets and which of them are at hand."""
    from equipoise.data import sets

    rows = [_facts(name) for name in sets.names()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    _print_table(
        ["name", "what", "samples", "licence", "here"], [[r["name"], r["title"], r["counts"], r["licence"], r["status"]] for r in rows]
    )
    typer.echo(f"Data folder: {sets.data_folder()} (set EQUIPOISE_DATA to change it)")


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show what is known of a data set."""
    facts = _facts(name)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    for key, value in facts.items():
        typer.echo(f"{key + ':':<14}{', '.join(map(str, value)) if isinstance(value, list) else value}")


@app.command()
def fetch(names: Annotated[list[str], typer.Argument(help="The names of data sets.")]) -> None:
    """Download data sets from their official sources, check them and keep a prepared copy."""
    from equipoise.data import sets

    for name in names:
        with _progress() as progress:
            typer.echo(f"{name}: {sets.fetch(sets.entry(name), progress)}")


@app.command("import")
def import_set(name: Name, files: Annotated[list[Path], typer.Argument(help="Official files, or one prepared NPZ file.")]) -> None:
    """Take files that were fetched by hand, check them and keep a prepared copy."""
    from equipoise.data import sets

    typer.echo(f"{name}: {sets.import_files(sets.entry(name), files)}")


@app.command()
def partitions(as_json: Json = False) -> None:
    """List the partitions and their parameters."""
    from equipoise.data.partitions import PARTITIONS, parameters

    rows: list[dict[str, Any]] = []
    for name, function in PARTITIONS.items():
        taken = [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters(name).values()]
        rows.append({"name": name, "parameters": taken, "what": (function.__doc__ or "").partition("\n")[0]})
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    _print_table(["name", "parameters", "what"], [[r["name"], ", ".join(r["parameters"]), r["what"]] for r in rows])


def _facts(name: str) -> dict[str, Any]:
    from equipoise.data import sets

    if name == "digits":
        return {
            "name": name,
            "title": "scikit-learn's digits, 8x8",
            "counts": "1,797",
            "licence": "CC BY 4.0",
            "status": "built in",
            "shape": [1, 8, 8],
        }
    if name in sets.JOINED:
        members = sets.JOINED[name].split("+")
        here = all(sets.prepared_copy(sets.entry(member)) for member in members)
        title = f"{' + '.join(members)} as domains, 32x32 colour"
        return {
            "name": name,
            "title": title,
            "counts": "see its members",
            "licence": "see its members",
            "status": _status(here, True),
            "members": members,
        }
    entry = sets.entry(name)
    copy = sets.prepared_copy(entry)
    return {
        "name": name,
        "title": entry.title,
        "counts": entry.counts,
        "licence": entry.licence,
        "status": _status(copy is not None, bool(entry.remotes)),
        "shape": list(entry.shape),
        "classes": list(entry.class_names),
        "source": entry.cited,
        "addresses": [remote.urls[0] for remote in entry.remotes],
        "note": entry.note,
        "file": str(copy) if copy else None,
    }


def _status(here: bool, fetchable: bool) -> str:
    return "yes" if here else "to fetch" if fetchable else "import-only"


def _print_table(header: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, box=None)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar per file on the terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()) as bars:
        tasks: dict[str, Any] = {}

        def report(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=done, total=total)

        yield report

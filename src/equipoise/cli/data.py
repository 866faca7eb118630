"""`equipoise data`: which data sets there are, where they are, how they get there; and how your own are understood."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

if TYPE_CHECKING:
    from equipoise.data.check import DataReport
    from equipoise.data.config import DataConfig
    from equipoise.data.sets.download import Progress
    from equipoise.experiment import Experiment

app = typer.Typer(
    help="Data sets: list, show, fetch, import; check your own; and the partitions.",
    no_args_is_help=True,
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Name = Annotated[str, typer.Argument(help="The name of a data set, see `equipoise data list`.")]
MOST_CLASSES = 12  # columns of counts on a screen


@app.command("list")
def list_sets(as_json: Json = False) -> None:
    """List the data sets and which of them are at hand."""
    from equipoise.cli.listing import tell_broken
    from equipoise.data import sets

    broken = sets.REGISTRY.listed()[1]
    rows = [_metadata(name) for name in sets.names() if name not in broken]
    tell_broken(broken)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    _print_table(
        ["name", "what", "samples", "licence", "here"],
        [[r["name"], r["title"], r["counts"], r["licence"], r["status"]] for r in rows],
    )
    typer.echo(f"Data folder: {sets.data_folder()} (set EQUIPOISE_DATA to change it)")


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show what is known of a data set."""
    metadata = _metadata(name)
    if as_json:
        typer.echo(json.dumps(metadata, indent=2))
        return
    for key, value in metadata.items():
        typer.echo(
            f"{key + ':':<14}{', '.join(map(str, value)) if isinstance(value, list) else value}"
        )


@app.command()
def fetch(names: Annotated[list[str], typer.Argument(help="The names of data sets.")]) -> None:
    """Download data sets from their official sources, check them and keep a prepared copy."""
    from equipoise.data import sets

    for name in names:
        with _progress() as progress:
            typer.echo(f"{name}: {sets.fetch(sets.entry(name), progress)}")


@app.command("import")
def import_set(
    name: Name,
    files: Annotated[list[Path], typer.Argument(help="Official files, or one prepared NPZ file.")],
) -> None:
    """Take files that were fetched by hand, check them and keep a prepared copy."""
    from equipoise.data import sets

    typer.echo(f"{name}: {sets.import_files(sets.entry(name), files)}")


@app.command()
def check(
    path: Annotated[
        str,
        typer.Argument(
            help="a folder with one file per site, a folder of images, one file, or the name of a data set"
        ),
    ],
    label: Annotated[str | None, typer.Option(help="the label column of a table")] = None,
    site: Annotated[
        str | None,
        typer.Option(help="the column that names the site, when all sites share one file"),
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="read the data by this schema, a YAML file")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="write the schema to this YAML file: edit it, and give it back with --schema"
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="any other data setting, e.g. --set data.task=regression",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how data are understood: sites, classes, columns, how the files were written; and what deserves a look before training."""
    from dataclasses import asdict

    from equipoise.cli import output
    from equipoise.data.check import understood
    from equipoise.data.tables.sites import DataErrors
    from equipoise.experiment import ConfigurationError, experiment, with_settings

    flags = {"data.name": path, "data.label": label, "data.site": site, "data.schema": schema}
    given = {
        key: value for key, value in flags.items() if value is not None
    } | output.parse_settings(settings or [])
    wrong = [key for key in given if not key.startswith("data.")]
    if wrong:
        raise ConfigurationError(
            f"--set: expected settings of data such as data.task=regression, got {wrong[0]}"
        )
    config = experiment(with_settings({}, given)).data
    if save is not None and save.exists():
        raise ConfigurationError(
            f"--save: {save} is there already; choose another file or remove it"
        )
    found = understood(config, every_pixel=True)
    if as_json:
        typer.echo(json.dumps({**asdict(found), "schema": found.schema.plain()}, indent=2))
    else:
        show_understood(found, sys.stdout)
    if save is not None:
        _save_schema(save, config, found)
    if found.problems:
        raise DataErrors(found.problems)


def _save_schema(file: Path, config: DataConfig, found: DataReport) -> None:
    """Write the schema with the repairs that are certain, and those that are not as comments."""
    from equipoise.data.check import repaired_by_findings

    after = repaired_by_findings(config, found)
    after.schema.save(file, after.findings)
    guesses = sum(1 for finding in after.findings if finding.repair and not finding.certain)
    proposed = f" ({guesses} proposed {_plural('repair', guesses)} in it as comments)" * bool(
        guesses
    )
    mended = "; with it these data can be read" * bool(found.problems and not after.problems)
    print(
        f"schema: {file}{proposed}{mended}; edit it and give it back with --schema {file}",
        file=sys.stderr,
    )


@app.command()
def synthesise(
    folder: Annotated[Path, typer.Argument(help="a new folder for patients.csv and events.csv")],
    share: Annotated[
        float, typer.Option(min=1e-6, max=1.0, help="of the 238,576 patients of FedAKD's Table 7")
    ] = 0.01,
    seed: Annotated[int, typer.Option(help="the same seed gives the same patients")] = 2025,
    per_site: Annotated[bool, typer.Option("--per-site", help="one folder per state")] = False,
) -> None:
    """Write synthetic patients as files: nobody's records, to try what patients' records need."""
    from equipoise.data.patients.synthetic import NOTE, write_patients

    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is there already and not empty; choose another folder")
    typer.echo(f"{write_patients(folder, seed, share, per_site)}: {NOTE}")


@app.command()
def partitions(as_json: Json = False) -> None:
    """List the partitions and their parameters."""
    from equipoise.cli.listing import tell_broken
    from equipoise.data.partitions import REGISTRY, parameters

    entries, broken = REGISTRY.listed()
    tell_broken(broken)
    rows: list[dict[str, Any]] = []
    for name, function in entries.items():
        taken = [
            p.name if p.default is p.empty else f"{p.name}={p.default}"
            for p in parameters(name).values()
        ]
        rows.append(
            {
                "name": name,
                "parameters": taken,
                "what": (function.__doc__ or "").partition("\n")[0],
                "source": REGISTRY.source(name),
            }
        )
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    _print_table(
        ["name", "parameters", "what"],
        [[r["name"], ", ".join(r["parameters"]), r["what"]] for r in rows],
    )


def show_understood(found: DataReport, stream: TextIO, most: int = 60) -> None:
    """How data were understood, as tables and sentences."""
    from rich.console import Console
    from rich.table import Table

    from equipoise.cli.output import as_text
    from equipoise.data.summary_text import remarks

    console = Console(file=stream, width=None if stream.isatty() else 160, highlight=False)

    def grid(header: list[str], rows: list[list[Any]]) -> None:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in header:
            table.add_column(as_text(name), overflow="fold")
        for row in rows[:most]:
            table.add_row(*map(as_text, row))
        console.print(table)
        if len(rows) > most:
            console.print(f"... and {len(rows) - most} more")

    rows = sum(site.rows for site in found.sites)
    label = (
        f", label {found.label}{' (guessed from its name; --label chooses another)' if found.guessed else ''}"
        if found.label
        else ""
    )
    shape = f", images of {'x'.join(map(str, found.schema.shape))}" if found.schema.shape else ""
    console.print(
        as_text(
            f"{found.name}: {len(found.sites)} {_plural('site', len(found.sites))}, {rows} rows, {found.task}{label}{shape}"
        )
    )
    every = list(found.schema.classes) or sorted(
        {name for site in found.sites for name in site.classes}
    )
    classes = every[:MOST_CLASSES]
    target = ["mean", "lowest", "highest"] if found.task == "regression" else []
    grid(
        ["site", "rows", "test rows", *classes, *target],
        [
            [
                site.name,
                site.rows,
                "" if site.test is None else site.test,
                *(site.classes.get(name, 0) for name in classes),
            ]
            + [f"{site.target[name]:.4g}" if name in site.target else "" for name in target]
            for site in found.sites
        ],
    )
    if len(every) > MOST_CLASSES:
        console.print(f"... and {len(every) - MOST_CLASSES} more classes")
    if found.columns:
        grid(
            ["column", "kind", "gaps", "becomes"],
            [[one.name, one.kind, one.gaps, one.becomes] for one in found.columns],
        )
    if found.task == "regression":
        console.print("the target is standardised in training; errors are in its own unit")
    for how in dict.fromkeys(found.files.values()):
        console.print(
            as_text(
                f"read as {how}: {', '.join(file for file, one in found.files.items() if one == how)}"
            )
        )
    for line in remarks(found):
        console.print(as_text(line))
    if any(finding.repair for finding in found.findings):
        console.print("equipoise data check --save schema.yaml writes the proposed repairs")


def describe_data(
    experiment: Experiment, report: DataReport | None, shape: tuple[int, ...] | None
) -> None:
    """Print on standard error what a run learns from, and a model that was chosen for images.

    Args:
        experiment: The experiment as it was given.
        report: How the user's own data are read; None for registered data sets.
        shape: The shape of one input, if it is known.

    Raises:
        DataErrors: If the data have problems that a run would refuse.
    """
    from equipoise.data.summary_text import model_in_words
    from equipoise.data.tables.sites import DataErrors
    from equipoise.models.registry import AUTO, chosen

    if report is not None:
        show_understood(report, sys.stderr, most=30)
        if report.problems:
            raise DataErrors(report.problems)
    is_automatic = experiment.model == AUTO and not experiment.models
    if is_automatic and shape is not None and chosen(shape) == "cnn":
        print(model_in_words("cnn", shape), file=sys.stderr)


def before_training(experiment: Experiment) -> None:
    """Read the user's own data and print what a run would learn from; see `describe_data`."""
    from equipoise.data import sets
    from equipoise.data.check import understood
    from equipoise.data.pipeline import is_own

    data = experiment.data
    report = None
    shape: tuple[int, ...] | None = None
    if is_own(data):
        report = understood(data)
        shape = report.schema.shape
    elif data.name in sets.JOINED or "+" in data.name:
        shape = (3, 32, 32)  # what domains are brought to
    elif data.name in sets.names():
        entry = sets.find(data.name)
        shape = entry.shape if isinstance(entry, sets.RegisteredSet) else None
    if shape is not None and len(shape) == 3:
        shape = (shape[0], *(data.image_size or side for side in shape[1:]))
    describe_data(experiment, report, shape)


def method_advice(experiments: Iterable[Experiment]) -> None:
    """Print on standard error what methods say before training, each sentence once."""
    advice = (wanted.build_method().advice(wanted.rounds) for wanted in experiments)
    for text in dict.fromkeys(advice):
        if text:
            print(text, file=sys.stderr)


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _metadata(name: str) -> dict[str, Any]:
    from equipoise.data import sets
    from equipoise.data.patients import synthetic as synthetic_patients

    if name == "digits":
        return {
            "name": name,
            "title": "scikit-learn's digits, 8x8",
            "counts": "1,797",
            "licence": "CC BY 4.0",
            "status": "built in",
            "shape": [1, 8, 8],
        }
    if name in (synthetic_patients.NAME, synthetic_patients.SMALL):
        return {
            "name": name, "title": "synthetic patients in 50 states, drawn at random: nobody's records", "counts": "238,576" if name == synthetic_patients.NAME else "14,313", "licence": "free of rights",
            "status": "built in", "shape": [51, 4], "classes": ["no", "yes"], "source": "equipoise.data.patients.synthetic", "note": synthetic_patients.NOTE,
        }  # fmt: skip
    if name == sets.synthetic.NAME:
        return {
            "name": name,
            "title": "synthetic: normal clouds, no real data",
            "counts": "any, data.synthetic.samples",
            "licence": "none needed",
            "status": "made on the spot",
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
    entry = sets.find(name)
    if not isinstance(entry, sets.RegisteredSet):
        return {
            "name": name,
            "title": (entry.__doc__ or "").strip().partition("\n")[0],
            "counts": "",
            "licence": "",
            "status": f"made by {sets.REGISTRY.source(name)}",
        }
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

    with Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    ) as bars:
        tasks: dict[str, Any] = {}

        def report(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=done, total=total)

        yield report

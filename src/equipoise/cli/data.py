"""Implement `equipoise data`: list, fetch and import data sets, check your own data."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from equipoise.data.check import DataReport
    from equipoise.data.config import DataConfig
    from equipoise.data.sets.download import Progress
    from equipoise.experiment import Experiment
    from equipoise.method import Method

app = typer.Typer(
    help="List, fetch and import data sets, check your own data, and list partitions.",
    no_args_is_help=True,
)
schemas = typer.Typer(help="Join the schemas of several sites.", no_args_is_help=True)
app.add_typer(schemas, name="schema")
Json = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
Name = Annotated[str, typer.Argument(help="a data set (`equipoise data list`)")]
DOMAIN_SHAPE = (3, 32, 32)  # of images of several data sets that are joined as domains
MOST_ROWS_BEFORE_TRAINING = 30


@app.command("list")
def list_sets(as_json: Json = False) -> None:
    """List the data sets and which of them are available locally."""
    from equipoise.cli.listing import tell_broken
    from equipoise.data import sets

    broken = sets.REGISTRY.listed()[1]
    rows = [_metadata(name) for name in sets.names() if name not in broken]
    tell_broken(broken)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    keys = ["name", "title", "counts", "licence", "status"]
    _print_table(
        ["name", "what", "samples", "licence", "here"], [[row[key] for key in keys] for row in rows]
    )
    typer.echo(f"Data folder: {sets.data_folder()} (set EQUIPOISE_DATA to change it)")


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show the licence, source, size and shape of a data set.

    Example:
      equipoise data show fashion_mnist
    """
    metadata = _metadata(name)
    if as_json:
        typer.echo(json.dumps(metadata, indent=2))
        return
    for key, value in metadata.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        typer.echo(f"{key + ':':<14}{text}")


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="data sets (`equipoise data list`)")],
) -> None:
    """Download data sets from their official sources, verify them and store a prepared copy.

    The copy is in the data folder, which `equipoise doctor` names.

    Example:
      equipoise data fetch fashion_mnist cifar10
    """
    from equipoise.data import sets

    for name in names:
        with _progress() as progress:
            typer.echo(f"{name}: {sets.fetch(sets.entry(name), progress)}")


@app.command("import")
def import_set(
    name: Name,
    files: Annotated[
        list[Path], typer.Argument(help="the official files, or one prepared NPZ file")
    ],
) -> None:
    """Import files that were downloaded by hand, verify them and store a prepared copy.

    `equipoise data show NAME` lists the files and their source.

    Example:
      equipoise data import fashion_mnist downloads/*.gz
    """
    from equipoise.data import sets

    typer.echo(f"{name}: {sets.import_files(sets.entry(name), files)}")


@app.command()
def check(
    path: Annotated[
        str,
        typer.Argument(
            help="a folder with one file per site, a folder of images, one file, "
            "or the name of a data set"
        ),
    ],
    label: Annotated[str | None, typer.Option(help="column of a table that is predicted")] = None,
    site: Annotated[
        str | None,
        typer.Option(help="column that names the site, if all sites share one file"),
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="YAML file with the schema by which the data are read")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="write the schema to this YAML file: edit it, then pass it as --schema"),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(help="name of the site whose own file or folder the path is"),
    ] = None,
    statistics: Annotated[
        bool,
        typer.Option(
            "--statistics",
            help="with --save: add count, mean and variance of numbers, dates, patients' codes and "
            "a target, from which `data schema join` computes centres and scales; "
            "they leave the site with the file",
        ),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="any other data setting, e.g. --set data.task=regression; repeat for several",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how data are read: sites, classes, columns and files, with warnings before training.

    The saved schema of one site has no row, but names of columns, classes and categories.

    Examples:
      equipoise data check hospitals --label disease --save schema.yaml
      equipoise data check va.csv --client va --label disease --save va.yaml        (at one site)
      equipoise data check va.csv --client va --schema all.yaml --set data.apart=true
    """
    from dataclasses import asdict

    from equipoise.cli.data_output import show_report
    from equipoise.data.check import check_data
    from equipoise.data.findings import DataErrors
    from equipoise.experiment import ConfigurationError

    options = {"data.name": path, "data.label": label, "data.site": site, "data.schema": schema}
    config = _data_config(options, settings or [])
    if statistics and save is None:
        raise ConfigurationError("--statistics: expected --save FILE with it; add it")
    _refuse_existing(save)
    if client is not None:
        config = _of_one_site(config, client)
    report = check_data(config, every_pixel=True, own_site=client)
    if as_json:
        typer.echo(json.dumps({**asdict(report), "schema": report.schema.plain()}, indent=2))
    else:
        show_report(report, sys.stdout)
    if save is not None:
        _save_schema(save, config, report, client, statistics)
    if report.problems:
        raise DataErrors(report.problems)


def _refuse_existing(save: Path | None) -> None:
    from equipoise.experiment import ConfigurationError

    if save is not None and save.exists():
        raise ConfigurationError(f"--save: {save} exists; choose another file or remove it")


def _of_one_site(config: DataConfig, client: str) -> DataConfig:
    """Return the data section with the file or folder of one site as its name."""
    from equipoise.data.own_files import own_path
    from equipoise.data.pipeline import is_user_path
    from equipoise.validation.names import checked_name

    checked_name(client, "--client:")
    if not is_user_path(config):
        return config
    return config.model_copy(update={"name": str(own_path(Path(config.name), client))})


def _data_config(options: dict[str, str | None], settings: list[str]) -> DataConfig:
    """Return the data section of options and of `--set` settings."""
    from equipoise.cli import output
    from equipoise.experiment import ConfigurationError, experiment, with_settings

    values: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    values |= output.parse_settings(settings)
    for key in values:
        if not key.startswith("data."):
            raise ConfigurationError(
                f"--set: expected settings of data such as data.task=regression, got {key}"
            )
    return experiment(with_settings({}, values)).data


def _save_schema(
    file: Path, config: DataConfig, report: DataReport, client: str | None, statistics: bool
) -> None:
    """Write the schema with the repairs that are certain, and the others as comments.

    The file of one site holds no reasons of proposals, since these quote its cells.
    """
    from equipoise.data.check import check_with_repairs
    from equipoise.data.check.disclosure import disclosure_lines
    from equipoise.data.message_text import plural
    from equipoise.data.pipeline import load_with_tables
    from equipoise.data.schema_statistics import with_statistics, without_statistics

    repaired = check_with_repairs(config, report, client)
    schema = without_statistics(repaired.schema)
    one_site = client is not None or len(report.sites) == 1
    lines = []
    if not repaired.problems and (one_site or statistics):
        config = config.model_copy(update={"schema": schema})
        dataset = load_with_tables(config, own_site=client).dataset
        if statistics:
            schema = with_statistics(schema, dataset)
        lines = disclosure_lines(schema, dataset)
    schema.save(file, repaired.findings, reasons=not one_site)
    proposals = [finding for finding in repaired.findings if finding.repair and not finding.certain]
    message = f"schema: {file}"
    if proposals:
        count = len(proposals)
        message += f" ({count} proposed {plural('repair', count)} in it as comments)"
    if report.problems and not repaired.problems:
        message += "; with it these data can be read"
    print(f"{message}; edit it and pass it as --schema {file}", file=sys.stderr)
    for line in lines:
        print(line, file=sys.stderr)


@schemas.command()
def join(
    files: Annotated[
        list[str],
        typer.Argument(help="schema file of each site, as `data check --save` writes it"),
    ],
    save: Annotated[Path, typer.Option(help="write the schema of all sites to this YAML file")],
) -> None:
    """Join the schemas of several sites, so that each site can prepare its data alone.

    Classes, categories, formats of dates, codes and marks of gaps are merged. Centres and scales
    are computed from the statistics of the sites, if the files have them. Different labels, tasks,
    shapes or kinds of a column are refused, with the names of the files.

    Example:
      equipoise data schema join va.yaml zurich.yaml --save all.yaml
    """
    from equipoise.data.agreement import check_complete
    from equipoise.data.schema import schema_from
    from equipoise.data.schema_join import join_schemas

    _refuse_existing(save)
    by_file = {}
    _refuse_repeated(files)
    for file in files:
        schema = schema_from(file)
        assert schema is not None
        by_file[file] = schema
    joined = join_schemas(by_file)
    joined.schema.save(save)
    for warning in joined.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    try:
        check_complete(joined.schema)
    except ValueError as error:
        print(f"warning: not complete yet: {error}", file=sys.stderr)
    print(
        f"schema: {save}; give it to every site as data.schema, with data.apart: true",
        file=sys.stderr,
    )


def _refuse_repeated(files: list[str]) -> None:
    """Refuse a file that is listed twice: its site would count twice, and another is missing."""
    known: dict[Path, str] = {}
    for file in files:
        path = Path(file).resolve()
        if path in known:
            raise ValueError(
                f"expected one schema per site, got {file} and {known[path]}, which are the same "
                "file; name each file once"
            )
        known[path] = file


@app.command()
def synthesise(
    folder: Annotated[Path, typer.Argument(help="a new folder for patients.csv and events.csv")],
    share: Annotated[
        float,
        typer.Option(
            min=1e-6,
            max=1.0,
            help="number of patients, as a share of the 238,576 of FedAKD's Table 7",
        ),
    ] = 0.01,
    seed: Annotated[
        int, typer.Option(help="random seed; the same seed gives the same patients")
    ] = 2025,
    per_site: Annotated[
        bool, typer.Option("--per-site", help="write one folder per state")
    ] = False,
) -> None:
    """Write synthetic patients' records as files, for trying formats and commands.

    Example:
      equipoise data synthesise patients --share 0.01
    """
    from equipoise.data.patients.synthetic import NOTE, write_patients

    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} exists and is not empty; choose another folder")
    typer.echo(f"{write_patients(folder, seed, share, per_site)}: {NOTE}")


@app.command()
def partitions(as_json: Json = False) -> None:
    """List the partitions and their parameters."""
    from equipoise.cli.listing import tell_broken
    from equipoise.data.partitions import REGISTRY

    entries, broken = REGISTRY.listed()
    tell_broken(broken)
    rows: list[dict[str, Any]] = []
    for name, function in entries.items():
        rows.append(
            {
                "name": name,
                "parameters": _partition_parameters(name),
                "what": (function.__doc__ or "").partition("\n")[0],
                "source": REGISTRY.source(name),
            }
        )
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    _print_table(
        ["name", "parameters", "what"],
        [[row["name"], ", ".join(row["parameters"]), row["what"]] for row in rows],
    )


def _partition_parameters(name: str) -> list[str]:
    """Return the parameters of a partition, with their defaults."""
    from equipoise.data.partitions import parameters

    texts = []
    for parameter in parameters(name).values():
        has_default = parameter.default is not parameter.empty
        texts.append(f"{parameter.name}={parameter.default}" if has_default else parameter.name)
    return texts


def describe_data(
    experiment: Experiment, report: DataReport | None, shape: tuple[int, ...] | None
) -> None:
    """Print the report on a user's data and the default model for images, on standard error.

    Args:
        experiment: The experiment of the user.
        report: The report on the user's data; None for registered data sets.
        shape: The shape of one input, if it is known.

    Raises:
        DataErrors: If the data have problems that a run would refuse.
    """
    from equipoise.cli.data_output import show_report
    from equipoise.data.findings import DataErrors
    from equipoise.data.summary_text import default_model_text
    from equipoise.models.registry import AUTO, chosen

    if report is not None:
        show_report(report, sys.stderr, most=MOST_ROWS_BEFORE_TRAINING)
        if report.problems:
            raise DataErrors(report.problems)
    uses_default_model = experiment.model == AUTO and not experiment.models
    if uses_default_model and shape is not None and chosen(shape) == "cnn":
        print(default_model_text("cnn", shape), file=sys.stderr)


def before_training(experiment: Experiment) -> None:
    """Read the user's data and print the report on them; see `describe_data`."""
    from equipoise.data.check import check_data
    from equipoise.data.pipeline import is_user_path

    if is_user_path(experiment.data):
        report = check_data(experiment.data)
        shape = report.schema.shape
    else:
        report = None
        shape = _registered_shape(experiment.data)
    if shape is not None and len(shape) == 3:
        channels, height, width = shape
        size = experiment.data.image_size
        shape = (channels, size or height, size or width)
    describe_data(experiment, report, shape)


def _registered_shape(config: DataConfig) -> tuple[int, ...] | None:
    """Return the shape of the inputs of a registered data set, where it is known."""
    from equipoise.data import sets

    if config.name in sets.JOINED or "+" in config.name:
        return DOMAIN_SHAPE
    if config.name in sets.names():
        entry = sets.find(config.name)
        return entry.shape if isinstance(entry, sets.RegisteredSet) else None
    return None


def method_advice(experiments: Iterable[Experiment]) -> None:
    """Print the advice of methods before training on standard error, each sentence once."""
    advice = []
    for experiment in experiments:
        method = experiment.build_method()
        advice += [method.advice(experiment.rounds), _group_advice(method, experiment)]
    for text in dict.fromkeys(advice):
        if text:
            print(text, file=sys.stderr)


def _group_advice(method: Method, experiment: Experiment) -> str:
    """Return a sentence about a method by group that has no groups; empty if all is well."""
    from equipoise.composition import parts

    base, guests = parts(method)
    for part in (base, *guests.values()):
        if part.compares_groups and not experiment.data.groups:
            return (
                f"{part.title} compares groups of samples, but data.groups is not set, so it has "
                "no effect; name columns, such as --set data.groups=[sex]"
            )
    return ""


def _metadata(name: str) -> dict[str, Any]:
    """Return the metadata of a data set: title, counts, licence, status and more."""
    from equipoise.data import sets

    built_in = _built_in_metadata(name)
    if built_in is not None:
        return {"name": name, **built_in}
    if name in sets.JOINED:
        return {"name": name, **_joined_metadata(name)}
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


def _built_in_metadata(name: str) -> dict[str, Any] | None:
    """Return the metadata of a data set that needs no file; None for others."""
    from equipoise.data import sets
    from equipoise.data.patients import synthetic as synthetic_patients

    if name == "digits":
        return {
            "title": "scikit-learn's digits, 8x8",
            "counts": "1,797",
            "licence": "CC BY 4.0",
            "status": "built in",
            "shape": [1, 8, 8],
        }
    if name in (synthetic_patients.NAME, synthetic_patients.SMALL):
        return {
            "title": "synthetic patients in 50 states, drawn at random: nobody's records",
            "counts": "238,576" if name == synthetic_patients.NAME else "14,313",
            "licence": "free of rights",
            "status": "built in",
            "shape": [51, 4],
            "classes": ["no", "yes"],
            "source": "equipoise.data.patients.synthetic",
            "note": synthetic_patients.NOTE,
        }
    if name == sets.synthetic.NAME:
        return {
            "title": "synthetic: normal clouds, no real data",
            "counts": "any, data.synthetic.samples",
            "licence": "none needed",
            "status": "generated",
        }
    return None


def _joined_metadata(name: str) -> dict[str, Any]:
    """Return the metadata of several data sets that are joined as domains."""
    from equipoise.data import sets

    members = sets.JOINED[name].split("+")
    available = all(sets.prepared_copy(sets.entry(member)) for member in members)
    return {
        "title": f"{' + '.join(members)} as domains, 32x32 colour",
        "counts": "see its members",
        "licence": "see its members",
        "status": _status(available, True),
        "members": members,
    }


def _status(available: bool, fetchable: bool) -> str:
    if available:
        return "yes"
    return "to fetch" if fetchable else "import-only"


def _print_table(header: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from equipoise.cli.data_output import PLAIN_WIDTH

    table = Table(*header, box=None)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Yield a function that shows a progress bar per file on the terminal."""
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

"""Groups of options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_type_hints

import typer

if TYPE_CHECKING:
    from equipoise.validation.imports import FromFile


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take dataclasses of options; typer sees their fields as options.

    Args:
        command: A function. Each parameter whose type is a dataclass becomes one option for
            every field of it, shown under the heading that its class attribute `panel` names.

    Returns:
        The function that typer registers.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    seen_by_typer: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind: Any = hints[parameter.name]
        if not is_dataclass(kind):
            seen_by_typer.append(parameter.replace(annotation=kind))
            continue
        groups[parameter.name] = kind
        panel: str = kind.panel  # type: ignore[union-attr]
        field_hints = get_type_hints(kind, include_extras=True)
        seen_by_typer += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=field.default,
                annotation=_in_panel(field_hints[field.name], panel),
            )
            for field in fields(kind)
        ]

    @wraps(command)
    def grouped(**values: Any) -> None:
        filled = {}
        for name, kind in groups.items():
            own = {field.name: values.pop(field.name) for field in fields(kind)}
            filled[name] = kind(**own)
        command(**values, **filled)

    grouped.__signature__ = inspect.Signature(seen_by_typer)  # type: ignore[attr-defined]
    grouped.__annotations__ = {parameter.name: parameter.annotation for parameter in seen_by_typer}
    return grouped


def _in_panel(hint: Any, panel: str) -> Any:
    """Return an annotated type whose option is shown under a heading of the help page."""
    kind, option = get_args(hint)
    option = copy(option)
    option.rich_help_panel = panel
    return Annotated[kind, option]


@dataclass(frozen=True)
class DataOptions:
    """The data of an experiment."""

    panel: ClassVar[str] = "Data"

    data: Annotated[
        str | None,
        typer.Option(help="a data set (`equipoise data list`), or a folder with one file per site"),
    ] = None
    clients: Annotated[
        int | None,
        typer.Option(help="number of clients; default: one per site, or 10 for data without sites"),
    ] = None
    label: Annotated[str | None, typer.Option(help="column of a table that is predicted")] = None
    schema: Annotated[
        str | None,
        typer.Option(
            help="YAML file with the kinds of columns, as `equipoise data check --save` writes it"
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return the options as keys of an experiment; None where an option was not given."""
        return {
            "data.name": self.data,
            "data.clients": self.clients,
            "data.label": self.label,
            "data.schema": self.schema,
        }


@dataclass(frozen=True)
class PartitionOption:
    """The partition of a single run."""

    panel: ClassVar[str] = "Data"

    partition: Annotated[
        str | None,
        typer.Option(
            help="how the data are divided among clients: iid, dirichlet:0.3, natural, ... "
            "(`equipoise data partitions`); default: natural if the data have sites, else iid"
        ),
    ] = None


@dataclass(frozen=True)
class MethodOptions:
    """The method of a single run and what is composed with it."""

    panel: ClassVar[str] = "Method"

    method: Annotated[
        str | None,
        typer.Option(
            help="a method (`equipoise methods`), or package.module:Class for your own; "
            "default: fedavg"
        ),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(help="use the aggregation weights of this other method, e.g. feddisco"),
    ] = None
    inputs: Annotated[
        str | None, typer.Option(help="use the input transform of this other method, e.g. fedrdn")
    ] = None
    companion: Annotated[
        str | None,
        typer.Option(
            "--companion",
            "--beside",
            help="run this method alongside; it keeps its own state and adds its model, e.g. kdia",
        ),
    ] = None
    finish: Annotated[
        str | None,
        typer.Option(
            help="make a personal model for each client by this method after the last round: "
            "poise, finetune, groupthresholds"
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return the options as keys of an experiment; None where an option was not given."""
        return {
            "method.name": self.method,
            "method.weights": self.weights,
            "method.inputs": self.inputs,
            "method.companion": self.companion,
            "method.finish": self.finish,
        }


@dataclass(frozen=True)
class TrainingOptions:
    """The schedule of training, and any other setting."""

    panel: ClassVar[str] = "Training"

    model: Annotated[
        str | None,
        typer.Option(
            help="a model (`equipoise models`), or package.module:name for your own; "
            "default: cnn for images of at least 16x16 pixels, else mlp"
        ),
    ] = None
    rounds: Annotated[int | None, typer.Option(help="number of federated rounds; default: 50")] = (
        None
    )
    fraction: Annotated[
        float | None,
        typer.Option(
            help="fraction of the clients that take part in each round, from 0 to 1; default: 1"
        ),
    ] = None
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="any other setting of an experiment, e.g. --set method.mu=0.1; repeat for several",
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return the options as keys of an experiment; None where an option was not given."""
        return {
            "model": self.model,
            "rounds": self.rounds,
            "participation.fraction": self.fraction,
        }


@dataclass(frozen=True)
class ClusterOptions:
    """A Ray cluster that executes the clients."""

    panel: ClassVar[str] = "Execution"

    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="execute clients on a Ray cluster: HOST:PORT of its head, "
            "or auto for this machine",
        ),
    ] = None
    trust_network: Annotated[
        bool, typer.Option("--trust-network", help="accept a cluster that requires no token")
    ] = False

    def arguments(self) -> dict[str, Any]:
        """Return the options as arguments of `equipoise.run`, `resume` and `compare`."""
        return {"cluster": self.cluster, "trust_network": self.trust_network}


@dataclass(frozen=True)
class ImportOptions:
    """Permissions for code that a file names."""

    panel: ClassVar[str] = "Execution"

    allow_import: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE",
            help="allow code of this package, which the file or the run names, to be imported; "
            "repeat for several",
        ),
    ] = None

    @property
    def packages(self) -> list[str]:
        """The packages that were allowed."""
        return self.allow_import or []


def configured(
    file: Path | None, settings: dict[str, Any], set_: list[str] | None = None
) -> FromFile:
    """Return the configuration of a file, changed by options and by ``--set``.

    Args:
        file: A YAML file, or None for an empty configuration.
        settings: Dotted keys and values; None leaves what the file says.
        set_: Words of the form KEY=VALUE, which win over both.
    """
    from equipoise.cli import output
    from equipoise.experiment import load, with_settings
    from equipoise.validation.imports import FromFile

    config = load(file) if file is not None else FromFile()
    config = with_settings(config, {key: v for key, v in settings.items() if v is not None})
    return with_settings(config, output.parse_settings(set_ or []))

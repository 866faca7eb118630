"""Reference pages that are made from the code: commands, configuration and registries."""

from __future__ import annotations

import json
import textwrap
import types
from collections.abc import Callable, Iterable
from typing import Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.experiment import Experiment
from equipoise.methods import describe

BOUNDS = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}"}


def pages() -> dict[str, str]:
    """Return every generated page by its path in the site."""
    makers: dict[str, Callable[[], str]] = {
        "reference/cli.md": commands,
        "reference/configuration.md": configuration,
        "reference/method-parameters.md": method_parameters,
        "reference/metrics.md": metrics,
        "reference/losses.md": losses,
        "reference/models.md": models,
        "reference/data-sets.md": data_sets,
        "reference/partitions.md": partitions,
    }
    return {uri: make() for uri, make in makers.items()}


# Commands


def commands() -> str:
    """Return the page of all commands, from their own help."""
    root = typer.main.get_command(app)
    lines = [
        "# Commands",
        "",
        "Every command, argument and option, made from the program itself. "
        "`equipoise COMMAND --help` prints the same.",
        "",
    ]
    for name, command in _leaves(root, "equipoise"):
        lines += _command_lines(name, command)
    return "\n".join(lines)


def _leaves(group: Any, name: str) -> Iterable[tuple[str, Any]]:
    """Yield each command that can be called, with all its words."""
    for word, command in group.commands.items():
        words = f"{name} {word}"
        if hasattr(command, "commands"):
            yield from _leaves(command, words)
        elif not command.hidden:
            yield words, command


def _command_lines(name: str, command: Any) -> list[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    words = [name, *(_argument_name(one) for one in arguments)]
    lines = [f"## {name}", "", f"```text\n{' '.join(words)} [OPTIONS]\n```", ""]
    lines += _help_lines(command.help or "")
    if arguments:
        rows = [[f"`{_argument_name(one)}`", _escape(one.help or "")] for one in arguments]
        lines += [*_table(["argument", "meaning"], rows), ""]
    if options:
        rows = [_option_row(one) for one in options if one.name != "help"]
        lines += [*_table(["option", "value", "default", "meaning"], rows), ""]
    return lines


def _argument_name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _help_lines(text: str) -> list[str]:
    """Return the help of a command; its indented examples become code."""
    lines: list[str] = []
    for block in text.replace("\b", "").strip().split("\n\n"):
        first, _, rest = block.partition("\n")
        if first.strip() in ("Example:", "Examples:"):
            lines += [f"```text\n{textwrap.dedent(rest)}\n```", ""]
        else:
            lines += [_escape(" ".join(block.split())), ""]
    return lines


def _option_row(option: Any) -> list[str]:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f"`{option.metavar or option.name.upper()}`"
    default = option.default
    hidden = default is None or default is False or callable(default) or default == ()
    shown = "" if hidden or "Sentinel" in type(default).__name__ else f"`{default}`"
    return [names, value, shown, _escape(option.help or "")]


# Configuration


def configuration() -> str:
    """Return the page of every key of an experiment."""
    lines = [
        "# Configuration",
        "",
        "Every key of an experiment with its default and its meaning, made from the classes that "
        "check it. Write them in a YAML file, as `--set KEY=VALUE`, or as arguments of "
        "`equipoise.Experiment`. An unknown key is an error that names the nearest known key.",
        "",
        "```yaml",
        "data: {name: digits, partition: dirichlet:0.3, clients: 10}",
        "method: {name: fedprox, mu: 0.1}",
        "training: {lr: 0.1, epochs: 2}",
        "rounds: 20",
        "seed: 1",
        "```",
        "",
        "## Top level",
        "",
    ]
    sections = _sections(Experiment)
    plain = [key for key in Experiment.model_fields if key not in sections]
    lines += [*_key_table(Experiment, plain), ""]
    for key, section in sections.items():
        lines += _section_lines(key, section)
    return "\n".join(lines)


def _section_lines(key: str, section: type[BaseModel]) -> list[str]:
    """Return the keys of a section, then those of the sections in it."""
    lines = [f"## {key}", "", f"{_first_line(section)}", ""]
    lines += [*_key_table(section, list(section.model_fields)), ""]
    for name, inner in _sections(section).items():
        lines += _section_lines(f"{key}.{name}", inner)
    return lines


def _sections(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the keys of a section whose values are sections."""
    sections = {}
    for key, field in model.model_fields.items():
        section = _section_in(field.annotation)
        if section is not None:
            sections[key] = section
    return sections


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in get_args(annotation):
        section = _section_in(part)
        if section is not None:
            return section
    return None


def _key_table(model: type[BaseModel], keys: list[str]) -> list[str]:
    rows = []
    for key in keys:
        field = model.model_fields[key]
        meaning = field.description or ""
        if _section_in(field.annotation) is not None and not meaning:
            meaning = "a section, see below"
        rows.append([f"`{key}`", _type_text(field), _default_text(field), _escape(meaning)])
    return _table(["key", "value", "default", "meaning"], rows)


def _type_text(field: FieldInfo) -> str:
    text = _annotation_text(field.annotation)
    bounds = []
    for rule in field.metadata:
        for name, sentence in BOUNDS.items():
            value = getattr(rule, name, None)
            if value is not None:
                bounds.append(sentence.format(f"{value:,}" if isinstance(value, int) else value))
    return _escape(", ".join([text, *bounds]))


def _annotation_text(annotation: Any) -> str:
    names = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    if annotation in names:
        return names[annotation]
    if annotation is Any:
        return "text or mapping"
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in parts)
    if origin in (Union, types.UnionType):
        return " or ".join(_annotation_text(part) for part in parts if part is not type(None))
    if origin is tuple:
        members = [_annotation_text(part) for part in parts if part is not Ellipsis]
        if Ellipsis in parts:
            return f"list of {members[0]}"
        return f"list: {', '.join(members)}"
    if origin is dict:
        return f"mapping from {_annotation_text(parts[0])} to {_annotation_text(parts[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    return getattr(annotation, "__name__", str(annotation))


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is None or default is PydanticUndefined:
        return "none"
    if isinstance(default, BaseModel):
        return ""
    return f"`{json.dumps(default, default=str)}`"


# Registries


def method_parameters() -> str:
    """Return the page of the parameters of every method."""
    lines = [
        "# Parameters of methods",
        "",
        "`method: {name: NAME, PARAMETER: VALUE}` in a file, `--set method.PARAMETER=VALUE` on the "
        "command line, and arguments of the class in Python. [All methods](../methods/README.md) "
        "lists what each does, needs and costs.",
        "",
    ]
    for entry in _listed("methods"):
        entry = describe(entry["name"])
        lines += [f"## {entry['name']}", "", _escape(entry["doc"].partition("\n")[0]), ""]
        if entry["paper"]:
            lines += [f"Paper: {_escape(entry['paper'])}", ""]
        rows = [
            [
                f"`{one['name']}`",
                f"`{one['default']!r}`",
                _escape(one["range"]),
                _escape(one["help"]),
            ]
            for one in entry["parameters"]
        ]
        lines += (
            _table(["parameter", "default", "range", "meaning"], rows)
            if rows
            else ["No parameters."]
        )
        lines.append("")
    return "\n".join(lines)


def metrics() -> str:
    """Return the page of all metrics."""
    rows = [
        [f"`{one['name']}`", one["better"], one["unit"], one["needs"], one["merges"]]
        for one in _listed("metrics")
    ]
    return _page(
        "Metrics",
        "`evaluation.metrics` names what is measured, `evaluation.main` what results are about. "
        "`merges` says whether values of parts merge into that of all; with `exact`, clients "
        "evaluate batch by batch. [Fairness](../fairness.md) explains measures over clients, and "
        "[extending](../extending.md#a-metric) how to add a metric.",
        _table(["metric", "better", "unit", "needs", "merges"], rows),
    )


def losses() -> str:
    """Return the page of all losses."""
    rows = [
        [f"`{one['name']}`", one["needs"] or "", _escape(one["options"]), _escape(one["what"])]
        for one in _listed("losses")
    ]
    return _page(
        "Losses",
        "`training.loss` names the loss that local training minimises; options go into a mapping, "
        "such as `{name: focal, gamma: 1}`. [Extending](../extending.md#a-loss) shows how to add one.",
        _table(["loss", "needs", "options", "meaning"], rows),
    )


def models() -> str:
    """Return the page of all models."""
    rows = []
    for one in _listed("models"):
        options = ", ".join(f"{name}={value}" for name, value in one["options"].items())
        rows.append([f"`{one['name']}`", one["inputs"], _escape(options), _escape(one["summary"])])
    return _page(
        "Models",
        "`model` names a network, or a mapping has its name and options, such as "
        "`{name: mlp, hidden: [32]}`. By default images of at least 16x16 pixels take `cnn`, all "
        "else `mlp`. [Extending](../extending.md#a-model) shows how to add a model.",
        _table(["model", "inputs", "options", "meaning"], rows),
    )


def data_sets() -> str:
    """Return the page of all data sets."""
    rows = [
        [f"`{one['name']}`", _escape(one["title"]), one["counts"], _escape(one["licence"])]
        for one in _listed("data", "list")
    ]
    return _page(
        "Data sets",
        "`data.name` names a data set or your own files. `equipoise data show NAME` prints source, "
        "shape and note; `equipoise data fetch NAME` downloads and checks it. "
        "[Data](../data.md) explains preparation, splits and your own files.",
        _table(["data set", "content", "samples", "licence"], rows),
    )


def partitions() -> str:
    """Return the page of all partitions."""
    rows = [
        [f"`{one['name']}`", _escape(", ".join(one["parameters"])), _escape(one["what"])]
        for one in _listed("data", "partitions")
    ]
    return _page(
        "Partitions",
        "`data.partition` divides a data set among clients: `NAME[:VALUE,...][,KEY=VALUE,...]`, such "
        "as `dirichlet:0.3`. [Heterogeneity](../heterogeneity.md) says which one simulates what.",
        _table(["partition", "parameters", "meaning"], rows),
    )


def _listed(*words: str) -> list[dict[str, Any]]:
    """Return what a command lists as JSON."""
    answer = CliRunner().invoke(app, [*words, "--json"])
    if answer.exit_code != 0:
        raise RuntimeError(f"equipoise {' '.join(words)} --json failed: {answer.output}")
    entries: list[dict[str, Any]] = json.loads(answer.stdout)
    return entries


# Markdown


def _page(title: str, introduction: str, table: list[str]) -> str:
    return "\n".join([f"# {title}", "", introduction, "", *table, ""])


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def _first_line(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().partition("\n")[0]


def _escape(text: str) -> str:
    """Return text for a cell: no line breaks, no column marks, no HTML."""
    plain = " ".join(str(text).split())
    return plain.replace("|", "\\|").replace("<", "&lt;").replace("[bold]", "").replace("[/]", "")

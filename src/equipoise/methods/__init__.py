"""Federated methods, one file each.

The name of a file is the name of its method. It is imported on first use.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from equipoise.method import FAMILIES, NEEDS, Method
from equipoise.validation.imports import OWN, Imports
from equipoise.validation.names import UnknownName as UnknownName
from equipoise.validation.names import nearest, quoted
from equipoise.validation.registry import Registry
from equipoise.validation.settings import check_numbers, plain_reason


class _Files(Mapping[str, type[Method]]):
    """The methods of this package by name; each is imported on first use."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(module.name for module in pkgutil.iter_modules(__path__)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> type[Method]:
        if name not in list(self):
            raise KeyError(name)
        module = importlib.import_module(f"{__name__}.{name}")
        for value in vars(module).values():
            is_method = isinstance(value, type) and issubclass(value, Method)
            if is_method and value.__name__.lower() == name:
                return cast(type[Method], value)
        raise LookupError(
            f"{module.__file__}: expected a Method whose name in lower case is {name}"
        )

    def __contains__(self, name: object) -> bool:
        return name in list(self)  # Without importing it.


def _load(name: str, path: str, imports: Imports) -> type[Method]:
    method: type[Method] = imports.load(path, "method", Method)
    return method


REGISTRY: Registry[type[Method]] = Registry("method", "equipoise.methods", _Files(), _load)


def names() -> list[str]:
    """Return the names of all registered methods."""
    return sorted(REGISTRY.names())


def register(method: type[Method]) -> type[Method]:
    """Register a method by its class name in lower case; a class decorator."""
    REGISTRY.add(method.__name__.lower(), method)
    return method


def find(name: str, imports: Imports = OWN) -> type[Method]:
    """Return the class of a method.

    Args:
        name: A registered name or "package.module:Class".
        imports: The packages that may be imported for such a class.

    Raises:
        UnknownName: If there is no such method.
    """
    return REGISTRY.find(name, imports)


def make(name: str, parameters: Mapping[str, Any] | None = None, imports: Imports = OWN) -> Method:
    """Return a method with its hyper-parameters checked.

    Args:
        name: The name of the method, as for `find`.
        parameters: Hyper-parameters that differ from the defaults.
        imports: The packages that may be imported.

    Raises:
        UnknownName: If there is no such method or parameter.
        ValueError: If a value has the wrong type or is out of range.

    >>> make("fedprox", {"mu": 0.1}).mu
    0.1
    """
    kind = find(name, imports)
    parameters = dict(parameters or {})
    fields = [field.name for field in dataclasses.fields(kind)]
    for parameter in parameters:
        if parameter not in fields:
            raise nearest(f"parameter of {name}", parameter, fields)
    hints = get_type_hints(kind, include_extras=True)
    for parameter, value in parameters.items():
        parameters[parameter] = _checked(name, parameter, value, hints[parameter])
    return kind(**parameters)


def _checked(name: str, parameter: str, value: Any, hint: Any) -> Any:
    """Return the value of a parameter, converted to its type."""
    try:
        check_numbers(value, hint)
    except ValueError as error:
        raise ValueError(f"method.{parameter}: {error}") from None
    adapter = TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False))
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        reason = plain_reason(error.errors()[0]["msg"])
        raise ValueError(
            f"method.{parameter}: {reason}, got {quoted(value)}; "
            f"{name}.{parameter} is {describe_type(hint)}"
        ) from None


def name_of(method: Method) -> str:
    """Return the name by which other processes find the class of a method."""
    kind = type(method)
    if kind.__module__.startswith(f"{__name__}."):
        return kind.__name__.lower()
    return f"{kind.__module__}:{kind.__qualname__}"


def shown(name: str) -> str:
    """Return the name of a method for tables, which marks reconstructions."""
    # A method of an installed package is not imported only to show its name.
    known = name in REGISTRY.built_in or name in REGISTRY.registered
    if known and find(name).reconstruction:
        return f"{name} (reconstruction)"
    return name


def parameters_of(method: Method) -> dict[str, Any]:
    """Return the hyper-parameters of a method by name."""
    return {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}


def describe_type(hint: Any) -> str:
    """Return the type and range of a parameter as text.

    >>> describe_type(int | None)
    'int or none'
    """
    if hint is NoneType:
        return "none"
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(describe_type(option) for option in get_args(hint))
    base = getattr(hint, "__origin__", hint)
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    name = getattr(base, "__name__", str(base))
    bounds = _bounds(hint)
    return f"{name} {' and '.join(bounds)}" if bounds else name


def _bounds(hint: Any) -> list[str]:
    """Return the limits of an annotated type, such as ">= 0"."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = []
    for mark in getattr(hint, "__metadata__", ()):
        for attribute, sign in signs.items():
            limit = getattr(mark, attribute, None)
            if limit is not None:
                bounds.append(f"{sign} {limit}")
    return bounds


def needs_of(kind: type[Method]) -> list[str]:
    """Return the requirements of a method with its default parameters."""
    required = [field for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    needs = set(() if required else kind().needs)
    if not kind.trains:
        needs.add("no-batch-norm")
    return sorted(needs)


def listed(family: str | None = None, needs: str | None = None) -> list[dict[str, Any]]:
    """Return descriptions of all methods, sorted by family, year and name.

    Args:
        family: List this family only.
        needs: List only methods with this requirement; "none" lists those without any.

    Raises:
        UnknownName: If there is no such family or requirement.
    """
    entries = [describe(name) for name in sorted(REGISTRY.listed()[0])]
    # Methods of users may add families and requirements of their own.
    families = list(dict.fromkeys([*FAMILIES, *(entry["family"] for entry in entries)]))
    known_needs = dict.fromkeys([*NEEDS, "none"])
    for entry in entries:
        known_needs |= dict.fromkeys(entry["needs"])
    if family is not None and family not in families:
        raise nearest("family", family, families)
    if needs is not None and needs not in known_needs:
        raise nearest("need", needs, list(known_needs))
    if family is not None:
        entries = [entry for entry in entries if entry["family"] == family]
    if needs is not None:
        entries = [entry for entry in entries if needs in (entry["needs"] or ["none"])]

    def position(entry: dict[str, Any]) -> tuple[int, int, str]:
        return families.index(entry["family"]), entry["year"] or 0, entry["name"]

    return sorted(entries, key=position)


def split_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    r"""Return the description in a class docstring, and the entries of its `Attributes`.

    >>> split_docstring("A method.\n\nAttributes:\n    mu: Weight of\n        the pull.\n")
    ('A method.', {'mu': 'Weight of the pull.'})
    """
    description, _, attributes = inspect.cleandoc(docstring).partition("Attributes:\n")
    entries: dict[str, str] = {}
    name = ""
    for line in attributes.splitlines():
        if match := re.match(r"    (\w+): (.*)$", line):
            name = match[1]
            entries[name] = match[2]
        elif name and line.startswith("        "):
            entries[name] += " " + line.strip()
        else:
            name = ""
    return description.strip(), entries


def field_comments(source: str) -> dict[str, str]:
    r"""Return the comment of each annotated field in the source of a class.

    A comment stands behind its field or in the lines directly above it. Methods that document no
    `Attributes` may explain their parameters this way.

    >>> field_comments("class A:\n    # step size\n    lr: float = 1.0\n    q: int = 2  # power\n")
    {'lr': 'step size', 'q': 'power'}
    """
    comments: dict[str, str] = {}
    above: list[str] = []
    for line in source.splitlines():
        if match := re.match(r"    # ?(.*)$", line):
            above.append(match[1])
            continue
        if match := re.match(r"    (\w+): [^#]*(?:#\s*(.+))?$", line):
            text = match[2] or " ".join(above)
            if text:
                comments[match[1]] = text
        above = []
    return comments


def describe(name: str) -> dict[str, Any]:
    """Return the description of a method: summary, needs, cost, paper and parameters.

    Each parameter has a name, a default, a range and a help text: its entry in the `Attributes` of
    the class docstring, or else the comment at the field.
    """
    kind = find(name)
    description, _ = split_docstring(kind.__doc__ or "")
    own = vars(kind)  # Cost and aim are not inherited: a subclass changes them.
    return {
        "name": name,
        "summary": description.split("\n\n")[0].replace("\n", " "),
        "family": own.get("family", Method.family),
        "year": own.get("year"),
        "needs": needs_of(kind),
        "exchanges": own.get("exchanges") or _default_exchanges(kind),
        "fairness": own.get("fairness") or "not stated",
        "passes": own.get("passes") or "not stated",
        "paper": kind.paper,
        "doc": description,
        "parameters": _described_parameters(kind),
    }


def _default_exchanges(kind: type[Method]) -> str:
    exchanges_once = kind.round is Method.round and kind.setup is Method.setup
    return "1" if exchanges_once else "not stated"


def _described_parameters(kind: type[Method]) -> list[dict[str, Any]]:
    """Return name, default, range and help text of each parameter."""
    hints = get_type_hints(kind, include_extras=True)
    help_texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, Method) and base is not Method:
            help_texts |= field_comments(inspect.getsource(base))
            help_texts |= split_docstring(vars(base).get("__doc__") or "")[1]
    return [
        {
            "name": field.name,
            "default": field.default,
            "range": describe_type(hints[field.name]),
            "help": help_texts.get(field.name, ""),
        }
        for field in dataclasses.fields(kind)
    ]

"""The methods, one file each. A file's name is the method's name; it is imported when first asked for."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from equipoise.method import FAMILIES, NEEDS, Method
from equipoise.validation.imports import OWN, Imports
from equipoise.validation.names import UnknownName as UnknownName
from equipoise.validation.names import nearest, quoted
from equipoise.validation.registry import Registry
from equipoise.validation.settings import check_numbers


class _Files(Mapping[str, type[Method]]):
    """The methods of this package: one file each, imported when first asked for."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(module.name for module in pkgutil.iter_modules(__path__)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> type[Method]:
        if name not in list(self):
            raise KeyError(name)
        module = importlib.import_module(f"{__name__}.{name}")
        return next(
            one
            for one in vars(module).values()
            if isinstance(one, type) and issubclass(one, Method) and one.__name__.lower() == name
        )

    def __contains__(self, name: object) -> bool:
        return name in list(self)  # without importing it


def _load(name: str, path: str, imports: Imports) -> type[Method]:
    found: type[Method] = imports.load(path, "method", Method)
    return found


REGISTRY: Registry[type[Method]] = Registry("method", "equipoise.methods", _Files(), _load)


def names() -> list[str]:
    """All registered methods."""
    return sorted(REGISTRY.names())


def register(method: type[Method]) -> type[Method]:
    """A class decorator: makes a method of yours known by its class name in lower case."""
    REGISTRY.add(method.__name__.lower(), method)
    return method


def find(name: str, imports: Imports = OWN) -> type[Method]:
    """The class of a method, by its name here or as "package.module:Class"."""
    return REGISTRY.find(name, imports)


def make(name: str, parameters: Mapping[str, Any] | None = None, imports: Imports = OWN) -> Method:
    """A method with its hyper-parameters checked."""
    kind, parameters = find(name, imports), dict(parameters or {})
    fields = [field.name for field in dataclasses.fields(kind)]
    for given in parameters:
        if given not in fields:
            raise nearest(f"parameter of {name}", given, fields)
    hints = get_type_hints(kind, include_extras=True)
    for given, value in parameters.items():
        try:
            check_numbers(value, hints[given])
        except ValueError as error:
            raise ValueError(f"method.{given}: {error}") from None
        try:
            parameters[given] = TypeAdapter(
                hints[given], config=ConfigDict(allow_inf_nan=False)
            ).validate_python(value)
        except ValidationError as error:
            raise ValueError(
                f"method.{given}: {error.errors()[0]['msg']}, got {quoted(value)}; {name}.{given} is {describe_type(hints[given])}"
            ) from None
    return kind(**parameters)


def name_of(method: Method) -> str:
    """The name under which a method travels to other processes."""
    kind = type(method)
    short = kind.__name__.lower()
    if kind.__module__.startswith(f"{__name__}."):
        return short
    return f"{kind.__module__}:{kind.__qualname__}"


def shown(name: str) -> str:
    """A method's name in tables; one that is not what its paper computed, since that was not to be had, says so."""
    # One that an installed package announces is not imported to be shown.
    known = name in REGISTRY.built_in or name in REGISTRY.registered
    return f"{name} (reconstruction)" if known and find(name).reconstruction else name


def parameters_of(method: Method) -> dict[str, Any]:
    return {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}


def describe_type(hint: Any) -> str:
    """A parameter's type and range in words.

    >>> describe_type(int | None)
    'int or none'
    """
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(
            "none" if one is NoneType else describe_type(one) for one in get_args(hint)
        )
    base = getattr(hint, "__origin__", hint)
    options = getattr(hint, "__args__", ()) if "Literal" in str(base) else ()
    if options:
        return "one of " + ", ".join(map(repr, options))
    name = getattr(base, "__name__", str(base))
    bounds = [
        f"{sign} {getattr(mark, attribute)}"
        for mark in getattr(hint, "__metadata__", ())
        for attribute, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
        if getattr(mark, attribute, None) is not None
    ]
    return " ".join([name, *([" and ".join(bounds)] if bounds else [])])


def needs_of(kind: type[Method]) -> list[str]:
    """Return what a method requires with its default parameters."""
    required = [field for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    needs = set(() if required else kind().needs)
    if not kind.trains:
        needs.add("no-batch-norm")
    return sorted(needs)


def listed(family: str | None = None, needs: str | None = None) -> list[dict[str, Any]]:
    """All methods in the order of families, then of years; of one family, or with one need ("none": without any), if told so."""
    found = [describe(name) for name in sorted(REGISTRY.listed()[0])]
    # users may have one of their own
    families = list(dict.fromkeys([*FAMILIES, *(entry["family"] for entry in found)]))
    wants = list(
        dict.fromkeys([*NEEDS, "none", *(need for entry in found for need in entry["needs"])])
    )
    if family is not None and family not in families:
        raise nearest("family", family, families)
    if needs is not None and needs not in wants:
        raise nearest("need", needs, wants)
    found = [
        entry
        for entry in found
        if family in (None, entry["family"])
        and (needs is None or needs in (entry["needs"] or ["none"]))
    ]
    return sorted(
        found,
        key=lambda entry: (families.index(entry["family"]), entry["year"] or 0, entry["name"]),
    )


def field_comments(source: str) -> dict[str, str]:
    """Return the comment of each annotated field in the source of a class.

    A comment stands behind its field or in the lines directly above it.

    >>> field_comments("class A:\\n    # step size\\n    # of the server\\n    lr: float = 1.0\\n    mu: int = 2  # weight\\n")
    {'lr': 'step size of the server', 'mu': 'weight'}
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
    """Return what is known of a method and its parameters, with ranges and help texts."""
    kind = find(name)
    own = vars(kind)  # what a class says of its cost and aim is not true of classes that change it
    hints = get_type_hints(kind, include_extras=True)
    help_texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, Method) and base is not Method:
            help_texts |= field_comments(inspect.getsource(base))
    return {
        "name": name,
        "summary": inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("\n", " "),
        "family": own.get("family", Method.family),
        "year": own.get("year"),
        "needs": needs_of(kind),
        "exchanges": own.get("exchanges")
        or ("1" if kind.round is Method.round and kind.setup is Method.setup else "not stated"),
        "fairness": own.get("fairness") or "not stated",
        "passes": own.get("passes") or "not stated",
        "paper": kind.paper,
        "doc": inspect.cleandoc(kind.__doc__ or ""),
        "parameters": [
            {
                "name": field.name,
                "default": field.default,
                "range": describe_type(hints[field.name]),
                "help": help_texts.get(field.name, ""),
            }
            for field in dataclasses.fields(kind)
        ],
    }

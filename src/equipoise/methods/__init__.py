"""The methods, one file each. A file's name is the method's name; it is imported when first asked for."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from equipoise.method import Method
from equipoise.names import UnknownName, nearest

_own: dict[str, type[Method]] = {}


def names() -> list[str]:
    """All registered methods."""
    return sorted({module.name for module in pkgutil.iter_modules(__path__)} | _own.keys())


def register(method: type[Method]) -> type[Method]:
    """A class decorator: makes a method of yours known by its class name in lower case."""
    _own[method.__name__.lower()] = method
    return method


def find(name: str) -> type[Method]:
    """The class of a method, by its name here or as "package.module:Class"."""
    if name in _own:
        return _own[name]
    if ":" in name:
        return _imported(name)
    if name not in names():
        raise nearest("method", name, names())
    module = importlib.import_module(f"{__name__}.{name}")
    return next(c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Method) and c.__name__.lower() == name)


def _imported(name: str) -> type[Method]:
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise UnknownName(
            f"unknown method {name!r}: cannot import {module_name!r} ({error}); is it installed, or on the Python path?"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise nearest(f"name in {module_name}", attribute, [key for key, one in vars(found).items() if _is_method(one)])
        found = getattr(found, part)
    if not _is_method(found):
        raise UnknownName(f"method {name!r} is {found!r}; expected a subclass of equipoise.Method")
    method: type[Method] = found
    return method


def _is_method(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, Method)


def make(name: str, parameters: Mapping[str, Any] | None = None) -> Method:
    """A method with its hyper-parameters checked."""
    kind, parameters = find(name), dict(parameters or {})
    fields = [field.name for field in dataclasses.fields(kind)]
    for given in parameters:
        if given not in fields:
            raise nearest(f"parameter of {name}", given, fields)
    hints = get_type_hints(kind, include_extras=True)
    for given, value in parameters.items():
        try:
            parameters[given] = TypeAdapter(hints[given]).validate_python(value)
        except ValidationError as error:
            raise ValueError(
                f"method.{given}: {error.errors()[0]['msg']}, got {value!r}; {name}.{given} is {describe_type(hints[given])}"
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
    return f"{name} (reconstruction)" if name in names() and find(name).reconstruction else name


def parameters_of(method: Method) -> dict[str, Any]:
    return {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}


def describe_type(hint: Any) -> str:
    """A parameter's type and range in words."""
    base = getattr(hint, "__origin__", hint)
    options = getattr(hint, "__args__", ()) if "Literal" in str(base) else ()
    if options:
        return "one of " + ", ".join(map(repr, options))
    name = getattr(base, "__name__", str(base)) if "|" not in str(hint) else str(hint)
    bounds = [
        f"{sign} {getattr(mark, attribute)}"
        for mark in getattr(hint, "__metadata__", ())
        for attribute, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
        if getattr(mark, attribute, None) is not None
    ]
    return " ".join([name, *([" and ".join(bounds)] if bounds else [])])


def describe(name: str) -> dict[str, Any]:
    """A method's summary, paper and parameters with their ranges; the comment behind a field is its help."""
    kind = find(name)
    hints = get_type_hints(kind, include_extras=True)
    help_texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, Method) and base is not Method:
            help_texts |= dict(re.findall(r"^    (\w+): [^#\n]*#\s*(.+)$", inspect.getsource(base), re.MULTILINE))
    return {
        "name": name,
        "summary": inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("\n", " "),
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

"""Partitions: how a data set is dealt to clients, by one syntax NAME[:VALUE[,VALUE...][,KEY=VALUE...]].

A partition is a pure function (pool, clients, seed, *, its parameters) -> Partition. A built-in one lies in a file of its family and is
named in PARTITIONS; docs/extending.md shows how a package outside adds one. The syntax, the command line and the documentation follow from its signature.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from equipoise.data.partitions import covariate, dirichlet, labels, sites, sizes
from equipoise.data.partitions.pool import Partition, Pool
from equipoise.validation.imports import OWN, Imports
from equipoise.validation.names import UnknownName, did_you_mean, quoted
from equipoise.validation.registry import Registry, import_name

PARTITIONS: dict[str, Callable[..., Partition]] = {
    function.__name__: function
    for function in (
        sizes.iid,
        sizes.pow,
        sizes.pow_cffl,
        sizes.quantity,
        dirichlet.dirichlet,
        dirichlet.dirichlet_balanced,
        dirichlet.dirichlet_bins,
        labels.cla,
        labels.shards,
        labels.pathological,
        covariate.ics,
        covariate.bcs,
        covariate.ics_literal,
        covariate.bcs_literal,
        covariate.pc1_sorted,
        sites.natural,
        sites.domains,
    )
}
__all__ = [
    "PARTITIONS",
    "REGISTRY",
    "Partition",
    "Pool",
    "check_function",
    "deal",
    "is_local",
    "names",
    "parameters",
    "parse",
    "portable",
]
_READERS: dict[str, Callable[[str], Any]] = {"float": float, "int": int, "str": str}


def check_function(name: str, function: Callable[..., Any]) -> Callable[..., Partition]:
    """Return a function that can be a partition; refuse one with other parameters.

    Raises:
        ValueError: it cannot be called with a pool, a number of clients and a seed, or a parameter of its own has no type that can be typed.
    """
    try:
        signature = inspect.signature(function)
        needed = {
            one.name: None
            for one in signature.parameters.values()
            if one.kind is one.KEYWORD_ONLY and one.default is one.empty
        }
        signature.bind("pool", 1, 0, **needed)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"partition {name}: expected a function (pool, clients, seed, *, parameters), got one with a {error}"
        ) from None
    for parameter in _own_parameters(function).values():
        if _type_of(parameter) not in _READERS:
            raise ValueError(
                f"partition {name}: expected its parameter {parameter.name} to be annotated as float, int or str, got {_type_of(parameter)!r}"
            )
    return function


def _load(name: str, path: str, imports: Imports) -> Callable[..., Partition]:
    found = imports.load(path, "partition", Partition, makes="Partition")
    if not inspect.isroutine(found):
        raise UnknownName(f"partition {path!r} is {quoted(found)}; expected a function")
    return check_function(path, found)


REGISTRY: Registry[Callable[..., Partition]] = Registry(
    "partition", "equipoise.partitions", PARTITIONS, _load
)


def names() -> list[str]:
    """Return the name of every partition."""
    return REGISTRY.names()


def parameters(name: str, imports: Imports = OWN) -> dict[str, inspect.Parameter]:
    """The parameters of a partition, in the order in which values are taken.

    >>> list(parameters("dirichlet"))
    ['alpha', 'min_size', 'leftovers']
    """
    return _own_parameters(REGISTRY.find(name, imports))


def _own_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {
        p.name: p
        for p in inspect.signature(function).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }


def _type_of(parameter: inspect.Parameter) -> str:
    # Annotations are text in a module that postpones them, and types in one that does not.
    return str(getattr(parameter.annotation, "__name__", parameter.annotation))


def parse(text: str, imports: Imports = OWN) -> tuple[str, dict[str, Any]]:
    """A partition's name and parameters; "auto" is left to the data.

    >>> parse("dirichlet:0.3,min_size=5")
    ('dirichlet', {'alpha': 0.3, 'min_size': 5})
    """
    if text == "auto":
        return "auto", {}
    name, rest = _parted(text)
    known = parameters(name, imports)
    given: dict[str, Any] = {}
    for place, item in enumerate(rest.split(",") if rest else []):
        key, equals, value = item.rpartition("=")
        if not equals:
            if place >= len(known):
                raise ValueError(
                    f"partition {quoted(text)} has more values than {name} has parameters ({', '.join(known) or 'none'})"
                )
            key = list(known)[place]
        if key not in known:
            raise ValueError(
                f"partition {name} has no parameter {key!r}{did_you_mean(key, known)}; it has {', '.join(known) or 'none'}"
            )
        if key in given:
            raise ValueError(f"partition {quoted(text)} gives {key} twice")
        given[key] = _value(text, known[key], value)
    missing = [key for key, p in known.items() if p.default is p.empty and key not in given]
    if missing:
        raise ValueError(
            f"partition {name} needs a value for {', '.join(missing)}, for example {name}:0.5"
        )
    return name, given


def _parted(text: str) -> tuple[str, str]:
    """The name and what is behind it: "dirichlet:0.3", or "package.module:function:0.3" for one that is not known by a short name.

    >>> _parted("dirichlet:0.3"), _parted("my_addons.partitions:alternate:2")
    (('dirichlet', '0.3'), ('my_addons.partitions:alternate', '2'))
    """
    name, _, rest = text.partition(":")
    attribute, _, values = rest.partition(":")
    if name not in names() and attribute.isidentifier():
        return f"{name}:{attribute}", values
    return name, rest


def portable(text: str) -> str:
    """Return a partition's text with the name that other processes know."""
    if text == "auto":
        return text
    name, rest = _parted(text)
    return ":".join([REGISTRY.portable(name), *([rest] if rest else [])])


def is_local(given: Any) -> bool:
    """Return whether only this process knows a partition."""
    if isinstance(given, str):
        return REGISTRY.is_local(_parted(given)[0])
    return import_name(given) is None


def deal(given: str | Callable[..., Partition], pool: Pool, clients: int, seed: int) -> Partition:
    """Partition a pool.

    Args:
        given: a partition as text, or a function (pool, clients, seed).
        pool: the samples.
        clients: how many clients there are.
        seed: of the experiment.

    Raises:
        ValueError: there is no such partition, or it returned something else than one.
    """
    if isinstance(given, str):
        name, options = parse(given)
        function = REGISTRY.find(name)
    else:
        name, function, options = getattr(given, "__name__", "given in Python"), given, {}
    partition = function(pool, clients, seed, **options)
    if name not in PARTITIONS:
        _check_result(name, partition, len(pool))
    return partition


def _check_result(name: str, partition: Any, samples: int) -> None:
    """Refuse what somebody's function returned if it is no partition of the pool."""
    if not isinstance(partition, Partition):
        raise ValueError(
            f"partition {name}: expected it to return a Partition, got {quoted(partition)}"
        )
    index = partition.parts.index
    if len(index) and not (index.min() >= 0 and index.max() < samples):
        raise ValueError(
            f"partition {name}: expected positions from 0 to {samples - 1}, got {index.min()} to {index.max()}"
        )
    if partition.ids and len(partition.ids) != len(partition.parts):
        raise ValueError(
            f"partition {name}: expected one id per client, got {len(partition.ids)} for {len(partition.parts)}"
        )


def _value(text: str, parameter: inspect.Parameter, value: str) -> Any:
    try:
        found = _READERS[_type_of(parameter)](value.strip())
    except ValueError:
        found = math.nan
    if isinstance(found, (int, float)) and not abs(found) < 2**53:
        raise ValueError(
            f"partition {quoted(text)}: {parameter.name} must be of type {_type_of(parameter)} and finite, got {quoted(value)}"
        )
    return found

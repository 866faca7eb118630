"""Partitions of a data set into clients, written as NAME[:VALUE[,VALUE...][,KEY=VALUE...]].

A partition is a pure function (pool, clients, seed, *, parameters) -> Partition. The built-in ones
are listed in PARTITIONS; docs/extending.md shows how another package adds one. The syntax, the
command line and the documentation follow from the signature of the function.
"""

from __future__ import annotations

import inspect
import math
import warnings
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
    "is_local",
    "names",
    "parameters",
    "parse",
    "partition_pool",
    "portable",
]
_READERS: dict[str, Callable[[str], Any]] = {"float": float, "int": int, "str": str}
_LARGEST = 2**53  # of a number that a parameter may be


def check_function(name: str, function: Callable[..., Any]) -> Callable[..., Partition]:
    """Return a function if it can be used as a partition.

    Args:
        name: The name of the partition, for errors.
        function: The function.

    Raises:
        ValueError: If it cannot be called with a pool, a number of clients and a seed, or if one
            of its parameters is not annotated as float, int or str.
    """
    try:
        signature = inspect.signature(function)
        required: dict[str, None] = {}
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
                required[parameter.name] = None
        signature.bind("pool", 1, 0, **required)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"partition {name}: expected a function (pool, clients, seed, *, parameters), "
            f"got one with a {error}"
        ) from None
    for parameter in _keyword_parameters(function).values():
        if _type_of(parameter) not in _READERS:
            raise ValueError(
                f"partition {name}: expected its parameter {parameter.name} to be annotated "
                f"as float, int or str, got {_type_of(parameter)!r}"
            )
    return function


def _load(name: str, path: str, imports: Imports) -> Callable[..., Partition]:
    function = imports.load(path, "partition", Partition, makes="Partition")
    if not inspect.isroutine(function):
        raise UnknownName(f"partition {path!r} is {quoted(function)}; expected a function")
    return check_function(path, function)


REGISTRY: Registry[Callable[..., Partition]] = Registry(
    "partition", "equipoise.partitions", PARTITIONS, _load
)


def names() -> list[str]:
    """Return the name of every partition."""
    return REGISTRY.names()


def parameters(name: str, imports: Imports = OWN) -> dict[str, inspect.Parameter]:
    """Return the parameters of a partition, in the order of positional values.

    >>> list(parameters("dirichlet"))
    ['alpha', 'min_size', 'leftovers']
    """
    return _keyword_parameters(REGISTRY.find(name, imports))


def _keyword_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {
        parameter.name: parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def _type_of(parameter: inspect.Parameter) -> str:
    # Annotations are text in a module that postpones them, and types in one that does not.
    return str(getattr(parameter.annotation, "__name__", parameter.annotation))


def parse(text: str, imports: Imports = OWN) -> tuple[str, dict[str, Any]]:
    """Return a partition's name and parameters; "auto" has none.

    Args:
        text: A partition, such as `dirichlet:0.3`.
        imports: The packages from which a partition may be imported.

    Raises:
        ValueError: If the partition or a parameter is not known, or a value does not fit.

    >>> parse("dirichlet:0.3,min_size=5")
    ('dirichlet', {'alpha': 0.3, 'min_size': 5})
    """
    if text == "auto":
        return "auto", {}
    name, rest = _split_name(text)
    known = parameters(name, imports)
    options: dict[str, Any] = {}
    items = rest.split(",") if rest else []
    for position, item in enumerate(items):
        key, value = _key_and_value(text, name, item, position, list(known))
        if key in options:
            raise ValueError(f"partition {quoted(text)} gives {key} twice; leave one out")
        options[key] = _parse_value(text, known[key], value)
    missing = [
        key
        for key, parameter in known.items()
        if parameter.default is parameter.empty and key not in options
    ]
    if missing:
        raise ValueError(
            f"partition {name} needs a value for {', '.join(missing)}, for example {name}:0.5"
        )
    return name, options


def _key_and_value(
    text: str, name: str, item: str, position: int, known: list[str]
) -> tuple[str, str]:
    """Return the parameter and the text of its value of one item, such as `0.3` or `alpha=0.3`."""
    key, equals, value = item.rpartition("=")
    if not equals:
        if position >= len(known):
            raise ValueError(
                f"partition {quoted(text)} has more values than {name} has parameters "
                f"({', '.join(known) or 'none'})"
            )
        return known[position], value
    if key not in known:
        raise ValueError(
            f"partition {name} has no parameter {key!r}{did_you_mean(key, known)}; "
            f"it has {', '.join(known) or 'none'}"
        )
    return key, value


def _split_name(text: str) -> tuple[str, str]:
    """Return the name of a partition and the text of its values.

    The name is a short one, or package.module:function.

    >>> _split_name("dirichlet:0.3"), _split_name("my_addons.partitions:alternate:2")
    (('dirichlet', '0.3'), ('my_addons.partitions:alternate', '2'))
    """
    name, _, rest = text.partition(":")
    attribute, _, values = rest.partition(":")
    if name not in names() and attribute.isidentifier():
        return f"{name}:{attribute}", values
    return name, rest


def _parse_value(text: str, parameter: inspect.Parameter, value: str) -> Any:
    try:
        parsed = _READERS[_type_of(parameter)](value.strip())
    except ValueError:
        parsed = math.nan
    is_number = isinstance(parsed, (int, float))
    if is_number and not abs(parsed) < _LARGEST:
        raise ValueError(
            f"partition {quoted(text)}: {parameter.name} must be of type {_type_of(parameter)} "
            f"and finite, got {quoted(value)}"
        )
    return parsed


def portable(text: str) -> str:
    """Return a partition's text with the name that other processes know."""
    if text == "auto":
        return text
    name, rest = _split_name(text)
    name = REGISTRY.portable(name)
    return f"{name}:{rest}" if rest else name


def is_local(partition: Any) -> bool:
    """Return True if a partition is known to this process only."""
    if isinstance(partition, str):
        return REGISTRY.is_local(_split_name(partition)[0])
    return import_name(partition) is None


def partition_pool(
    rule: str | Callable[..., Partition], pool: Pool, clients: int, seed: int
) -> Partition:
    """Partition a pool of samples into clients.

    Args:
        rule: A partition as text, or a function (pool, clients, seed).
        pool: The samples.
        clients: The number of clients.
        seed: The seed of the experiment.

    Raises:
        ValueError: If there is no such partition, or it does not return a partition of the pool.
    """
    options: dict[str, Any] = {}
    if isinstance(rule, str):
        name, options = parse(rule)
        function = REGISTRY.find(name)
    else:
        name = getattr(rule, "__name__", "given in Python")
        function = rule
    partition = function(pool, clients, seed, **options)
    if name not in PARTITIONS:
        _check_result(name, partition, len(pool))
    return partition


def _check_result(name: str, partition: Any, samples: int) -> None:
    """Refuse the result of a user's function if it is no partition of the pool."""
    if not isinstance(partition, Partition):
        raise ValueError(
            f"partition {name}: expected it to return a Partition, got {quoted(partition)}"
        )
    index = partition.parts.index
    if len(index) and not (index.min() >= 0 and index.max() < samples):
        raise ValueError(
            f"partition {name}: expected positions from 0 to {samples - 1}, "
            f"got {index.min()} to {index.max()}"
        )
    if partition.ids and len(partition.ids) != len(partition.parts):
        raise ValueError(
            f"partition {name}: expected one id per client, "
            f"got {len(partition.ids)} for {len(partition.parts)}"
        )


def __getattr__(name: str) -> Any:
    if name == "deal":
        warnings.warn(
            "equipoise.data.partitions.deal is now partition_pool", DeprecationWarning, stacklevel=2
        )
        return partition_pool
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

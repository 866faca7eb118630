"""Partitions: how a data set is dealt to clients, by one syntax NAME[:VALUE[,VALUE...][,KEY=VALUE...]].

A partition is a pure function (pool, clients, seed, *, its parameters) -> Partition. To add one, write the function in a file
of its family and name it in PARTITIONS; the syntax, the command line and the documentation follow from its signature.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from equipoise.data.partitions import covariate, dirichlet, labels, sites, sizes
from equipoise.data.partitions.pool import Partition, Pool
from equipoise.validation.names import did_you_mean, quoted

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
__all__ = ["PARTITIONS", "Partition", "Pool", "deal", "parameters", "parse"]
_READERS: dict[str, Callable[[str], Any]] = {"float": float, "int": int, "str": str}


def parameters(name: str) -> dict[str, inspect.Parameter]:
    """The parameters of a partition, in the order in which values are taken.

    >>> list(parameters("dirichlet"))
    ['alpha', 'min_size', 'leftovers']
    """
    return {
        p.name: p
        for p in inspect.signature(PARTITIONS[name]).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """A partition's name and parameters; "auto" is left to the data.

    >>> parse("dirichlet:0.3,min_size=5")
    ('dirichlet', {'alpha': 0.3, 'min_size': 5})
    """
    name, _, rest = text.partition(":")
    if text == "auto":
        return "auto", {}
    if name not in PARTITIONS:
        raise ValueError(
            f"unknown partition {quoted(name)}{did_you_mean(name, PARTITIONS)}; known: {', '.join(PARTITIONS)}"
        )
    known = parameters(name)
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


def deal(text: str, pool: Pool, clients: int, seed: int) -> Partition:
    """Partition a pool by the partition that `text` names."""
    name, given = parse(text)
    return PARTITIONS[name](pool, clients, seed, **given)


def _value(text: str, parameter: inspect.Parameter, value: str) -> Any:
    try:
        found = _READERS[parameter.annotation](value.strip())
    except ValueError:
        found = math.nan
    if isinstance(found, (int, float)) and not abs(found) < 2**53:
        raise ValueError(
            f"partition {quoted(text)}: {parameter.name} must be of type {parameter.annotation} and finite, got {quoted(value)}"
        )
    return found

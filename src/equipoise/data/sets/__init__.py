"""Registered data sets; docs/extending.md shows how another package adds one."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

from equipoise.data.dataset import Dataset
from equipoise.data.patients import synthetic as synthetic_patients
from equipoise.data.sets import (
    acs_income,
    common,
    digits,
    domains,
    flamby,
    hospitals,
    medical,
    synthetic,
)
from equipoise.data.sets.registered import RegisteredSet
from equipoise.data.sets.store import arrays_of, data_folder, fetch, import_files, prepared_copy
from equipoise.validation.imports import OWN, Imports
from equipoise.validation.names import UnknownName, nearest
from equipoise.validation.registry import Registry

JOINED = domains.JOINED
BUILT_IN: dict[str, Callable[[], Dataset]] = {
    "digits": digits.load,
    synthetic.NAME: lambda: synthetic.load(synthetic.Synthetic()),
    synthetic_patients.NAME: synthetic_patients.synthetic_patients,
    synthetic_patients.SMALL: partial(
        synthetic_patients.synthetic_patients, share=synthetic_patients.SMALL_SHARE
    ),
}
ENTRIES = {
    entry.name: entry
    for module in (common, medical, domains, hospitals, flamby, acs_income)
    for entry in module.ENTRIES
}
Maker = Callable[[], Dataset]


def _load(name: str, path: str, imports: Imports) -> RegisteredSet | Maker:
    loaded: RegisteredSet | Maker = imports.load(
        path, "data set", RegisteredSet, makes="Dataset", instance=True
    )
    if isinstance(loaded, RegisteredSet) and ":" not in name and loaded.name != name:
        raise UnknownName(f"data set {path!r} calls itself {loaded.name!r}; announce it as that")
    return loaded


# JOINED last: of a joined set the registry knows the name only.
REGISTRY: Registry[Any] = Registry(
    "data set",
    "equipoise.datasets",
    ChainMap(BUILT_IN, ENTRIES, JOINED),
    _load,
)


def names() -> list[str]:
    """Return every name that `load` accepts."""
    return [*BUILT_IN, *ENTRIES, *JOINED, *REGISTRY.outside()]


def entry(name: str) -> RegisteredSet:
    """Return the entry of a data set that can be fetched or imported.

    Raises:
        ValueError: If there is no such data set, or it needs no files.
    """
    if name in BUILT_IN:
        raise ValueError(f"data set {name} is built in: there is nothing to fetch or to import")
    if name in JOINED:
        raise ValueError(
            f"data set {name} consists of others, which are fetched or imported one by one: "
            f"{JOINED[name].replace('+', ', ')}"
        )
    entry_or_maker = find(name)
    if not isinstance(entry_or_maker, RegisteredSet):
        raise ValueError(
            f"data set {name} is made by a function: there is nothing to fetch or to import"
        )
    return entry_or_maker


def find(name: str, imports: Imports = OWN) -> RegisteredSet | Maker:
    """Return the entry of a data set, or the function that makes it.

    Raises:
        ValueError: If there is no such data set.
    """
    if ":" not in name and name not in names():
        raise ValueError(
            f"{nearest('data set', name, names())}; or give the path of your own files"
        )
    entry_or_maker: RegisteredSet | Maker = REGISTRY.find(name, imports)
    return entry_or_maker


def load(name: str, imports: Imports = OWN) -> Dataset:
    """Return a data set by its name.

    Args:
        name: A registered name, several joined as domains ("mnist+usps"), or
            "package.module:function".
        imports: The packages from which a function may be imported.

    Raises:
        ValueError: If there is no such data set, or its copy is damaged.
        FileNotFoundError: If it has to be fetched or imported first.
    """
    joined = JOINED.get(name, name)
    if "+" in joined:
        return domains.join(name, [load(single) for single in joined.split("+")])
    entry_or_maker = find(name, imports)
    if not isinstance(entry_or_maker, RegisteredSet):
        return entry_or_maker() if name in BUILT_IN else _made(name, entry_or_maker)
    arrays = arrays_of(entry_or_maker)
    try:
        return entry_or_maker.read(entry_or_maker, arrays)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(
            f"{prepared_copy(entry_or_maker)} cannot be taken as data set {name}: {error}"
        ) from error


def _made(name: str, function: Maker) -> Dataset:
    """Return the data set that a user's function makes."""
    try:
        signature(function).bind()
    except TypeError as error:
        raise ValueError(
            f"data set {name!r}: expected a function that is called without arguments, "
            f"got one with a {error}"
        ) from None
    made = function()
    if not isinstance(made, Dataset):
        raise ValueError(
            f"data set {name!r}: expected it to return a Dataset (from_arrays, from_sites, ...), "
            f"got {type(made).__name__}"
        )
    return made


__all__ = [
    "BUILT_IN",
    "ENTRIES",
    "JOINED",
    "REGISTRY",
    "RegisteredSet",
    "data_folder",
    "entry",
    "fetch",
    "find",
    "import_files",
    "load",
    "names",
    "prepared_copy",
    "synthetic",
]

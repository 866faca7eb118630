"""The registered data sets. To add one, write a RegisteredSet in a file of its family."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from equipoise.data.dataset import Dataset
from equipoise.data.patients import synthetic as synthetic_patients
from equipoise.data.sets import common, digits, domains, hospitals, medical, synthetic
from equipoise.data.sets.registered import RegisteredSet
from equipoise.data.sets.store import arrays_of, data_folder, fetch, import_files, prepared_copy
from equipoise.validation.names import did_you_mean

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
    e.name: e for e in (*common.ENTRIES, *medical.ENTRIES, *domains.ENTRIES, *hospitals.ENTRIES)
}


def names() -> list[str]:
    """Every name that `load` takes."""
    return [*BUILT_IN, *ENTRIES, *JOINED]


def entry(name: str) -> RegisteredSet:
    """What is known of a set that can be fetched or imported."""
    if name in BUILT_IN:
        raise ValueError(f"data set {name} is built in: there is nothing to fetch or to import")
    if name in JOINED:
        raise ValueError(
            f"data set {name} is made of others, which are fetched or imported one by one: {JOINED[name].replace('+', ', ')}"
        )
    if name not in ENTRIES:
        raise ValueError(
            f"unknown data set {name!r}{did_you_mean(name, names())}; known: {', '.join(names())}; or give the path of your own files"
        )
    return ENTRIES[name]


def load(name: str) -> Dataset:
    """A registered set, or several joined as domains: "mnist+usps"."""
    if name in BUILT_IN:
        return BUILT_IN[name]()
    joined = JOINED.get(name, name)
    if "+" in joined:
        return domains.join(name, [load(single) for single in joined.split("+")])
    found = entry(name)
    arrays = arrays_of(found)
    try:
        return found.read(found, arrays)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(
            f"{prepared_copy(found)} cannot be taken as data set {name}: {error}"
        ) from error


__all__ = [
    "BUILT_IN",
    "ENTRIES",
    "JOINED",
    "RegisteredSet",
    "data_folder",
    "entry",
    "fetch",
    "import_files",
    "load",
    "names",
    "prepared_copy",
    "synthetic",
]

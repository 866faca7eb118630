"""A method as plain data and back: the one rule for experiments, comparisons, jobs and files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise import methods
from equipoise.composition import SLOTS, compose, parts
from equipoise.method import Method
from equipoise.validation.imports import OWN, Imports
from equipoise.validation.names import quoted


def method_spec(value: Any, imports: Imports = OWN) -> dict[str, Any]:
    """A method as given (a name or a mapping) as a checked mapping; guests are nested mappings under their slots."""
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping) or "name" not in value:
        raise ValueError(
            f"method: expected a name or a mapping with `name`, got {quoted(value)}; `equipoise methods` lists the names"
        )
    spec = dict(value)
    if "beside" in spec:  # its name in version 0.2, which stored runs have
        spec["companion"] = spec.pop("beside")
    for slot in SLOTS:
        if spec.get(slot) is not None:
            spec[slot] = method_spec(spec[slot], imports)
        elif slot in spec:
            del spec[slot]
    made = method_from(spec, imports)
    # A name that `register` gave is known in this process only; the file of a run says where the class is.
    return spec if name_is_local(made) else {**spec, "name": methods.name_of(parts(made)[0])}


def method_from(spec: Mapping[str, Any], imports: Imports = OWN) -> Method:
    """Return the method that a checked mapping describes."""
    guests = {slot: method_from(spec[slot], imports) for slot in SLOTS if slot in spec}
    own = {key: value for key, value in spec.items() if key not in ("name", *SLOTS)}
    return compose(methods.make(spec["name"], own, imports), **guests)


def spec_of(method: Method) -> dict[str, Any]:
    """The mapping from which `method_from` makes an equal method, here or in another process."""
    base, guests = parts(method)
    return {
        "name": methods.name_of(base),
        **methods.parameters_of(base),
        **{slot: spec_of(guest) for slot, guest in guests.items()},
    }


def name_is_local(method: Method) -> bool:
    """Whether another process could not import a part of this method."""
    base, guests = parts(method)
    return any(
        type(part).__module__ == "__main__" or "<locals>" in type(part).__qualname__
        for part in (base, *guests.values())
    )

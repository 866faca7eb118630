"""Methods as plain data: the mapping in experiments, comparisons, jobs and files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise import methods
from equipoise.composition import SLOTS, compose, parts
from equipoise.method import Method
from equipoise.validation.imports import OWN, Imports
from equipoise.validation.names import quoted


class MethodSpec(dict[str, Any]):
    """A checked mapping that describes a method, with the method itself.

    Attributes:
        method: The method, built once when the mapping was checked.
    """

    def __init__(self, spec: Mapping[str, Any], method: Method) -> None:
        super().__init__(spec)
        self.method = method


def method_spec(value: Any, imports: Imports = OWN) -> MethodSpec:
    """Check a method that is given by name or as a mapping.

    Args:
        value: A name, or a mapping with `name` and hyper-parameters. The methods that are
            composed with it are given in the same way under their slots.
        imports: The packages from which the class may be imported.

    Returns:
        The mapping; composed methods are nested mappings.

    Raises:
        ValueError: If there is no such method, or a hyper-parameter is wrong.
    """
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping) or "name" not in value:
        raise ValueError(
            f"method: expected a name or a mapping with `name`, got {quoted(value)}; "
            "`equipoise methods` lists the names"
        )
    spec = dict(value)
    if "beside" in spec:  # its name in version 0.2, which stored runs have
        spec["companion"] = spec.pop("beside")
    for slot in SLOTS:
        if spec.get(slot) is not None:
            spec[slot] = method_spec(spec[slot], imports)
        elif slot in spec:
            del spec[slot]
    method = method_from(spec, imports)
    if not name_is_local(method):
        # A name that `register` gave is known in this process only; the file of a run says
        # where the class is.
        spec["name"] = methods.name_of(parts(method)[0])
    return MethodSpec(spec, method)


def method_from(spec: Mapping[str, Any], imports: Imports = OWN) -> Method:
    """Return the method that a checked mapping describes."""
    if isinstance(spec, MethodSpec):
        return spec.method
    guests = {slot: method_from(spec[slot], imports) for slot in SLOTS if slot in spec}
    parameters = {key: value for key, value in spec.items() if key not in ("name", *SLOTS)}
    return compose(methods.make(spec["name"], parameters, imports), **guests)


def spec_of(method: Method) -> dict[str, Any]:
    """Return the mapping from which `method_from` makes an equal method in any process."""
    base, guests = parts(method)
    spec = {"name": methods.name_of(base), **methods.parameters_of(base)}
    for slot, guest in guests.items():
        spec[slot] = spec_of(guest)
    return spec


def name_is_local(method: Method) -> bool:
    """Return True if another process could not import a part of this method."""
    base, guests = parts(method)
    for part in (base, *guests.values()):
        kind = type(part)
        if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
            return True
    return False

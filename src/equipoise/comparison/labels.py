"""Short names for runs: the method, and the settings in which runs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise import methods
from equipoise.composition import SLOTS
from equipoise.experiment import flat

# settings that never appear in a name
NOT_A_NAME = ("seed", "data.partition", "workers", "keep", "memory", "method.name")


def labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one label per configuration.

    It is the name of the method and, in brackets, the settings that differ from the others.
    Parameters of a method are compared with runs of the same method only.

    >>> labels([
    ...     {"method": {"name": "fedavg"}},
    ...     {"method": {"name": "fedprox", "mu": 0.1}},
    ...     {"method": {"name": "fedprox", "mu": 1}},
    ... ])
    ['fedavg', 'fedprox (mu=0.1)', 'fedprox (mu=1)']
    """
    rows = [flat(config) for config in configs]
    names = [_method_name(row) for row in rows]
    result = []
    for name, row in zip(names, rows, strict=True):
        same_method = [other for other, label in zip(rows, names, strict=True) if label == name]
        details = []
        for key, value in row.items():
            others = same_method if key.startswith("method.") else rows
            differs = any(other.get(key) != value for other in others)
            if differs and key not in NOT_A_NAME:
                details.append(f"{key.removeprefix('method.')}={value}")
        result.append(f"{name} ({', '.join(details)})" if details else name)
    return result


def _method_name(row: Mapping[str, Any]) -> str:
    parts = [_short(row["method.name"])]
    # Runs of version 0.2 call the companion `beside`.
    for slot in (*SLOTS, "beside"):
        guest = row.get(f"method.{slot}.name")
        if guest is not None:
            title = "companion" if slot == "beside" else slot
            parts.append(f"{title}={_short(guest)}")
    return " + ".join(parts)


def _short(name: str) -> str:
    if ":" not in name:
        return methods.shown(name)
    # A class inside a function is named by its own name.
    return name.rpartition(":")[2].rpartition(".")[2].lower()

"""Short names for runs that differ in something: the method, and whatever else is not the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise import methods
from equipoise.composition import SLOTS
from equipoise.experiment import flat

NOT_A_NAME = ("seed", "data.partition", "workers", "keep", "memory", "method.name")


def labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """One label per configuration: its method's name, and in brackets the settings that tell it from the others.

    >>> labels([{"method": {"name": "fedavg"}}, {"method": {"name": "fedprox", "mu": 0.1}}, {"method": {"name": "fedprox", "mu": 1}}])
    ['fedavg', 'fedprox (mu=0.1)', 'fedprox (mu=1)']
    """
    rows = [flat(config) for config in configs]
    names = [_method_name(row) for row in rows]
    found = []
    for name, row in zip(names, rows, strict=True):
        kin = [other for other, its in zip(rows, names, strict=True) if its == name]
        differing = [
            key
            for key in row
            if key not in NOT_A_NAME
            and any(
                other.get(key) != row[key] for other in (kin if key.startswith("method.") else rows)
            )
        ]
        details = ", ".join(f"{key.removeprefix('method.')}={row[key]}" for key in differing)
        found.append(f"{name} ({details})" if details else name)
    return found


def _method_name(row: Mapping[str, Any]) -> str:
    # Runs of version 0.2 call the companion `beside`.
    names = {slot: row.get(f"method.{slot}.name") for slot in (*SLOTS, "beside")}
    guests = [
        f"{'companion' if slot == 'beside' else slot}={_short(name)}"
        for slot, name in names.items()
        if name is not None
    ]
    return " + ".join([_short(row["method.name"]), *guests])


def _short(name: str) -> str:
    # Of a class inside a function, its own name.
    return (
        name.rpartition(":")[2].rpartition(".")[2].lower() if ":" in name else methods.shown(name)
    )

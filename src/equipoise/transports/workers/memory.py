"""Arrays of a federation in memory that processes share."""

from __future__ import annotations

import mmap
import os
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from equipoise.data import Federation, Parts
from equipoise.data.groups import Groups
from equipoise.data.roster import PARTS
from equipoise.task import Task

_ALIGNMENT = 4096


def to_arrays(federation: Federation) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a federation as plain data and arrays, for another process."""
    arrays: dict[str, np.ndarray] = {
        "x": federation.x.numpy(),
        "y": federation.y.numpy(),
        "shared test": federation.shared_test,
    }
    for part in PARTS:
        arrays |= {
            f"{part} index": getattr(federation, part).index,
            f"{part} offsets": getattr(federation, part).offsets,
        }
    task = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(federation.task).items()
    }
    facts: dict[str, Any] = {"name": federation.name, "ids": list(federation.ids), "task": task}
    if federation.groups is not None:
        arrays["groups"] = federation.groups.codes
        facts["group columns"] = list(federation.groups.columns)
        facts["group names"] = [list(names) for names in federation.groups.names]
    return facts, arrays


def from_arrays(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Federation:
    """Return the federation that `to_arrays` described; arrays are not copied.

    Args:
        facts: The plain data.
        arrays: The arrays by name.
    """
    parts = {part: Parts(arrays[f"{part} index"], arrays[f"{part} offsets"]) for part in PARTS}
    groups = None
    if "groups" in arrays:
        names = tuple(tuple(own) for own in facts["group names"])
        groups = Groups(tuple(facts["group columns"]), names, arrays["groups"])
    return Federation(
        name=facts["name"],
        task=Task.of(facts["task"]),
        x=torch.from_numpy(arrays["x"]),
        y=torch.from_numpy(arrays["y"]),
        ids=tuple(facts["ids"]),
        train=parts["train"],
        validation=parts["validation"],
        test=parts["test"],
        shared_test=arrays["shared test"],
        groups=groups,
    )


def share(federation: Federation, descriptor: int) -> dict[str, Any]:
    """Write the arrays of a federation into shared memory.

    Args:
        federation: The federation.
        descriptor: The descriptor of the memory.

    Returns:
        The plain data with which `attach` finds the arrays.
    """
    facts, arrays = to_arrays(federation)
    layout: dict[str, Any] = {}
    offset = 0
    for name, array in arrays.items():
        layout[name] = {"offset": offset, "dtype": str(array.dtype), "shape": list(array.shape)}
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    total = max(offset, _ALIGNMENT)
    os.ftruncate(descriptor, 0)  # memory of an earlier run is not kept
    os.ftruncate(descriptor, total)
    for name, array in arrays.items():
        # Written, not copied into a mapping, since the system fills whole pages at once. One call
        # writes at most 2 GiB.
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        written = 0
        while written < len(content):
            position = layout[name]["offset"] + written
            written += os.pwrite(descriptor, content[written:], position)
    return {**facts, "arrays": layout, "bytes": total}


def attach(facts: dict[str, Any], descriptor: int) -> Federation:
    """Return the federation in shared memory, copied on write so that a stray write stays here.

    Args:
        facts: The plain data that `share` returned.
        descriptor: The descriptor of the memory.
    """
    memory = mmap.mmap(descriptor, facts["bytes"], access=mmap.ACCESS_COPY)
    arrays = {}
    for name, layout in facts["arrays"].items():
        count = int(np.prod(layout["shape"], dtype=np.int64))
        flat = np.frombuffer(memory, layout["dtype"], count, layout["offset"])
        arrays[name] = flat.reshape(layout["shape"])
    return from_arrays(facts, arrays)

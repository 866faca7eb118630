"""The federation's arrays in memory that all processes share."""

from __future__ import annotations

import mmap
import os
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from equipoise.data import Federation, Parts
from equipoise.data.roster import PARTS
from equipoise.task import Task

_ALIGNMENT = 4096


def to_arrays(federation: Federation) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What another process must be told of a federation, and its arrays."""
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
    return {"name": federation.name, "ids": list(federation.ids), "task": task}, arrays


def from_arrays(told: dict[str, Any], arrays: dict[str, np.ndarray]) -> Federation:
    """The federation over those arrays, which are not copied."""
    train, validation, test = (
        Parts(arrays[f"{part} index"], arrays[f"{part} offsets"]) for part in PARTS
    )
    return Federation(
        name=told["name"], task=Task.of(told["task"]),
        x=torch.from_numpy(arrays["x"]), y=torch.from_numpy(arrays["y"]), ids=tuple(told["ids"]), shared_test=arrays["shared test"],
        train=train, validation=validation, test=test,
    )  # fmt: skip


def share(federation: Federation, descriptor: int) -> dict[str, Any]:
    """Put the federation's arrays into the memory; what another process must be told to find them there."""
    told, arrays = to_arrays(federation)
    layout: dict[str, Any] = {}
    offset = 0
    for name, array in arrays.items():
        layout[name] = {"offset": offset, "dtype": str(array.dtype), "shape": list(array.shape)}
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    total = max(offset, _ALIGNMENT)
    os.ftruncate(descriptor, 0)  # memory of an earlier run is not kept
    os.ftruncate(descriptor, total)
    for name, array in arrays.items():
        # Written, not copied into a mapping: the system fills whole pages at once. It takes at most 2 GiB at a time.
        content, done = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, 0
        while done < len(content):
            done += os.pwrite(descriptor, content[done:], layout[name]["offset"] + done)
    return {**told, "arrays": layout, "bytes": total}


def attach(told: dict[str, Any], descriptor: int) -> Federation:
    """The federation over that memory. Copy on write: a stray write stays in this process."""
    memory = mmap.mmap(descriptor, told["bytes"], access=mmap.ACCESS_COPY)
    arrays = {
        name: np.frombuffer(
            memory, where["dtype"], int(np.prod(where["shape"], dtype=np.int64)), where["offset"]
        ).reshape(where["shape"])
        for name, where in told["arrays"].items()
    }
    return from_arrays(told, arrays)

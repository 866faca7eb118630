"""The list of models: inputs, sizes and options."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from equipoise.models.registry import REGISTRY, build, describe
from equipoise.task import Task

# By how a sample is called: rows of a table, images, and a patient's history of 20 events.
SHAPES = {"row of 30": (30,), "1x28x28": (1, 28, 28), "3x32x32": (3, 32, 32), "history": (21, 4)}
_CALLED = {
    "row of 30": "rows",
    "1x28x28": "images",
    "3x32x32": "colour images",
    "history": "histories",
}


def listed(names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Return a description of every model, or of those named.

    Each has its inputs, the number of parameters for some of them with 10 outputs, its options and
    a summary.
    """
    entries = []
    for name in REGISTRY.listed()[0] if names is None else names:
        sizes = {
            shown: size
            for shown, shape in SHAPES.items()
            if (size := _size(name, shape)) is not None
        }
        about = describe(name)
        entries.append(
            {
                "name": name,
                "inputs": _inputs(list(sizes)),
                "parameters": sizes,
                "options": about["options"],
                "summary": (about["summary"] or "").partition("\n")[0],
                "source": REGISTRY.source(name),
            }
        )
    return entries


def _inputs(shapes: list[str]) -> str:
    """Return the samples that a model takes as text.

    >>> _inputs(["1x28x28", "3x32x32"]), _inputs(["history"]), _inputs(list(SHAPES))
    ('images', 'histories', 'anything')
    """
    if len(shapes) == len(SHAPES):
        return "anything"
    return (
        "images"
        if set(shapes) == {"1x28x28", "3x32x32"}
        else ", ".join(_CALLED[shape] for shape in shapes)
    )


def _size(name: str, shape: tuple[int, ...]) -> int | None:
    """Return the number of parameters, or None if the model does not take such samples."""
    try:
        with torch.random.fork_rng(devices=[]):
            return sum(
                parameter.numel()
                for parameter in build(name, Task("classification", shape, 10)).parameters()
            )
    except ValueError:
        return None
    except (
        Exception
    ):  # somebody's function may fail in any way for samples that it was not made for
        if REGISTRY.source(name) == "built in":
            raise
        return None

"""Replies are checked before they count: a wrong or non-finite one never reaches the model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipoise.records import Up, tensors_of
from equipoise.tree import Tree
from equipoise.workbench import mismatch

if TYPE_CHECKING:
    from equipoise.rounds import Loop


def refusal(up: Up | None, majority: frozenset[str], loop: Loop, step: str) -> str | None:
    """Why a reply does not count; None if it does."""
    if up is None:
        return "no reply"
    if frozenset(up) != majority:
        return f"expected the entries {sorted(majority)}, got {sorted(up)}"
    if step == "client" and loop.method.uploads_model and not isinstance(up.get("model"), Tree):
        return f"expected an uploaded `model`, got {sorted(up)}"
    for name, value in tensors_of(up):
        if isinstance(value, Tree):
            try:
                template = loop.bench.initial(value.model)
            except KeyError:
                return f"{name}: a tree of an unknown model {value.model!r}"
            wrong = mismatch(value, template)
            if wrong:
                return f"{name}: {wrong}"
            for entry, tensor in value.items():
                if not _finite(tensor):
                    return f"{name}: {entry} holds values that are not finite"
        elif isinstance(value, Tensor):
            if not _finite(value):
                return f"{name} holds values that are not finite"
        elif value != value or value in (float("inf"), float("-inf")):
            return f"{name} is {value}: not finite"
    return None


def _finite(tensor: Tensor) -> bool:
    if not tensor.is_floating_point():
        return True
    # One value that is not finite makes the sum so. A sum that overflows says nothing: then each value is looked at.
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())

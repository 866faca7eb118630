"""Replies are checked before they count: a wrong or non-finite one never reaches the model."""

from __future__ import annotations

from torch import Tensor

from equipoise.method import Method
from equipoise.records import State, Up, finite, tensors_of
from equipoise.server import Server
from equipoise.tree import Tree
from equipoise.workbench import mismatch


def refusal(up: Up | None, majority: frozenset[str], server: Server, method: Method, step: str) -> str | None:
    """Why a reply does not count; None if it does."""
    if up is None:
        return "no reply"
    if frozenset(up) != majority:
        return f"expected the entries {sorted(majority)}, got {sorted(up)}"
    if step == "client" and method.uploads_model and not isinstance(up.get("model"), Tree):
        return f"expected an uploaded `model`, got {sorted(up)}"
    for name, value in tensors_of(up):
        if isinstance(value, Tree):
            try:
                template = server.initial(value.model)
            except KeyError:
                return f"{name}: a tree of an unknown model {value.model!r}"
            wrong = mismatch(value, template)
            if wrong:
                return f"{name}: {wrong}"
            for entry, tensor in value.items():
                if not finite(tensor):
                    return f"{name}: {entry} holds values that are not finite"
        elif not finite(value):
            return f"{name} holds values that are not finite" if isinstance(value, Tensor) else f"{name} is {value}: not finite"
    return None


def not_finite(state: State) -> str | None:
    """The first entry of the server's state that holds values that are not finite."""
    return next((name for name, value in tensors_of(state) if not finite(value)), None)

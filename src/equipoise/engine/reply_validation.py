"""Replies are checked before they count: a wrong or non-finite one never reaches the model."""

from __future__ import annotations

import math
import re
from typing import Any

from torch import Tensor

from equipoise.method import Method
from equipoise.models.model import mismatch
from equipoise.records import State, Up, finite, tensors_of
from equipoise.runtime.messages import Reply, Request, state_name
from equipoise.server import Server
from equipoise.tree import Tree


def validate_upload(
    up: Up | None, majority: frozenset[str], server: Server, method: Method, step: str
) -> str | None:
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
            return (
                f"{name} holds values that are not finite"
                if isinstance(value, Tensor)
                else f"{name} is {value}: not finite"
            )
    return None


def validate_envelope(request: Request, reply: Reply) -> str | None:
    """What in a reply, its upload apart, no client runtime of ours would say; None if all is in order. It may come from a stranger."""
    if reply.client != request.client:
        return f"the reply to {request.client!r} came from {reply.client!r}"
    counts = {"steps": reply.steps, "skipped": reply.skipped, "bytes": reply.bytes}
    wrong = next((name for name, count in counts.items() if not _counts(count)), None)
    if wrong is None and not (isinstance(reply.seconds, float) and 0 <= reply.seconds < math.inf):
        wrong = "seconds"
    if wrong is not None:
        return f"its {wrong} are {vars(reply)[wrong]!r:.40}; expected a number that is not negative"
    if not all(
        isinstance(row.get(name), kind) for row in reply.measured for name, kind in _ROW.items()
    ):
        return "its measurements are not rows of model, split, metric and value"
    if reply.state is not None:
        name = state_name(request.client, request.round, request.attempt, request.exchange)
        if not request.exchange or reply.state.name != name:
            return f"its state is named {reply.state.name!r:.80}; expected {name if request.exchange else 'none'}"
        if not _counts(reply.state.bytes) or not re.fullmatch(
            "[0-9a-f]{64}", str(reply.state.digest)
        ):
            return "its state has no size and digest"
    return None


_ROW = {
    "model": str,
    "split": str,
    "metric": str,
    "value": float,
}  # of a measurement; more may stand beside them


def _counts(value: Any) -> bool:
    return type(value) is int and value >= 0


def not_finite(state: State) -> str | None:
    """The first entry of the server's state that holds values that are not finite."""
    return next((name for name, value in tensors_of(state) if not finite(value)), None)

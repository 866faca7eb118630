"""Validation of replies: a wrong or non-finite one never reaches the model."""

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

_ROW_TYPES = {"model": str, "split": str, "metric": str, "value": float}  # of a measurement
_MOST = 2**53  # beyond any count; sums of such numbers fit the integers of the database


def validate_upload(
    up: Up | None, majority: frozenset[str], server: Server, method: Method, step: str
) -> str | None:
    """Return the reason why an upload does not count; None if it does.

    Args:
        up: The upload; None if there was no reply.
        majority: The names of the entries that most clients sent.
        server: The server, for the shapes of models.
        method: The method of the run.
        step: The step that the client performed.
    """
    if up is None:
        return "no reply"
    if frozenset(up) != majority:
        return f"expected the entries {sorted(majority)}, got {sorted(up)}"
    if step == "client" and method.uploads_model and not isinstance(up.get("model"), Tree):
        return f"expected an uploaded `model`, got {sorted(up)}"
    for name, value in tensors_of(up):
        problem = _problem_of_tree(value, server) if isinstance(value, Tree) else None
        if problem is not None:
            return f"{name}: {problem}"
        if not isinstance(value, Tree) and not finite(value):
            if isinstance(value, Tensor):
                return f"{name} holds values that are not finite"
            return f"{name} is {value}: not finite"
    return None


def validate_model(up: Up | None, server: Server) -> str | None:
    """Return the reason why an upload holds no model that the server can load; None if it does.

    Args:
        up: The upload.
        server: The server, for the shapes of models.
    """
    tree = None if up is None else up.get("model")
    if not isinstance(tree, Tree):
        return "expected an uploaded `model`"
    return _problem_of_tree(tree, server)


def _problem_of_tree(tree: Tree, server: Server) -> str | None:
    """Return the difference of a tree from its model, or an entry that is not finite."""
    try:
        template = server.initial(tree.model)
    except KeyError:
        return f"a tree of an unknown model {tree.model!r}"
    difference = mismatch(tree, template)
    if difference:
        return difference
    for entry, tensor in tree.items():
        if not finite(tensor):
            return f"{entry} holds values that are not finite"
    return None


def validate_envelope(request: Request, reply: Reply) -> str | None:
    """Return what is wrong with a reply apart from its upload; None if all is in order.

    Replies may come from a stranger, so everything in them is checked.

    Args:
        request: The request.
        reply: The reply to it.
    """
    if reply.client != request.client:
        return f"the reply to {request.client!r} came from {reply.client!r}"
    return (
        _problem_of_numbers(reply)
        or _problem_of_measurements(request, reply)
        or _problem_of_state(request, reply)
    )


def _problem_of_numbers(reply: Reply) -> str | None:
    valid = {
        "steps": _is_count(reply.steps),
        "skipped": _is_count(reply.skipped),
        "bytes": _is_count(reply.bytes),
        "seconds": isinstance(reply.seconds, float) and 0 <= reply.seconds < math.inf,
    }
    for name, is_valid in valid.items():
        if not is_valid:
            value = vars(reply)[name]
            return f"its {name} are {value!r:.40}; expected a number that is not negative"
    return None


def _problem_of_measurements(request: Request, reply: Reply) -> str | None:
    """Return what is wrong with values; those of evaluations are compared with their request."""
    after = request.after or {"splits": (), "metrics": ()}
    for row in reply.measured:
        for name, kind in _ROW_TYPES.items():
            if not isinstance(row.get(name), kind):
                return "its measurements are not rows of model, split, metric and value"
        is_requested = row["split"] in after["splits"] and row["metric"] in after["metrics"]
        if request.exchange and not is_requested:
            return "its measurements were not requested"
    return None


def _problem_of_state(request: Request, reply: Reply) -> str | None:
    state = reply.state
    if state is None:
        return None
    if not request.exchange:
        return f"its state is named {state.name!r:.80}; expected none"
    expected = state_name(request.client, request.round, request.attempt, request.exchange)
    if state.name != expected:
        return f"its state is named {state.name!r:.80}; expected {expected}"
    has_digest = re.fullmatch("[0-9a-f]{64}", str(state.digest))
    if not _is_count(state.bytes) or not has_digest:
        return "its state has no size and digest"
    return None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def not_finite(state: State) -> str | None:
    """Return the first entry of the server's state that is not finite; None if all are."""
    for name, value in tensors_of(state):
        if not finite(value):
            return name
    return None

"""Requests and replies as records, with trees that many requests share sent once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from equipoise.records import Record
from equipoise.runtime.messages import Reply, Request, StateRef
from equipoise.tree import Tree

# in place of a model's name, where no method can put it: this tree was sent before
_REFERENCE = "$shared "


def trees_in(value: Any) -> list[Tree]:
    """Every tree inside a value."""
    if isinstance(value, Tree):
        return [value]
    if isinstance(value, Mapping):
        return [tree for item in value.values() for tree in trees_in(item)]
    return [tree for item in value for tree in trees_in(item)] if isinstance(value, list) else []


def mapped(value: Any, function: Callable[[Tree], Tree]) -> Any:
    """The value with `function` applied to trees."""
    if isinstance(value, Tree):
        return function(value)
    if isinstance(value, Record):
        return type(value)._trusted({name: mapped(item, function) for name, item in value.items()})
    if isinstance(value, Mapping):
        return {name: mapped(item, function) for name, item in value.items()}
    return [mapped(item, function) for item in value] if isinstance(value, list) else value


def reference(key: str) -> Tree:
    """Stands for a tree that the receiver has."""
    return Tree({}, _REFERENCE + key)


def resolved(value: Any, trees: Mapping[str, Tree]) -> Any:
    """The value with references replaced by the trees they name."""
    return mapped(
        value,
        lambda tree: (
            trees[tree.model.removeprefix(_REFERENCE)]
            if tree.model.startswith(_REFERENCE)
            else tree
        ),
    )


def shared_trees(requests: Sequence[Request]) -> tuple[dict[int, str], dict[str, Tree]]:
    """The trees that more than one request holds: the key of each by its identity, and the trees by key."""
    found: dict[int, Tree] = {}
    counts: Counter[int] = Counter()
    for request in requests:
        for tree in trees_in(request.down):
            found[id(tree)] = tree
            counts[id(tree)] += 1
    shared = {
        position: str(number)
        for number, position in enumerate(
            position for position, count in counts.items() if count > 1
        )
    }
    return shared, {key: found[position] for position, key in shared.items()}


def referring(down: Record, shared: Mapping[int, str]) -> Any:
    """What a client is sent, with references in place of the trees that the receiver has."""
    return mapped(down, lambda tree: reference(shared[id(tree)]) if id(tree) in shared else tree)


def to_wire(value: Request | Reply) -> dict[str, Any]:
    """What has to be said of a request or reply: the fields that differ from their defaults; records travel apart."""
    defaults = _DEFAULTS[type(value)]
    return {
        name: list(own) if isinstance(own, tuple) else own
        for name, own in vars(value).items()
        if name not in ("down", "up") and (name not in defaults or own != defaults[name])
    }


def request_of(told: Mapping[str, Any], down: Record) -> Request:
    request = Request(**told, down=down)
    request.state = None if request.state is None else (request.state[0], request.state[1])
    return request


def reply_of(told: Mapping[str, Any], up: Any) -> Reply:
    reply = Reply(**told, up=up)
    reply.state = None if reply.state is None else StateRef(*reply.state)
    return reply


_DEFAULTS: dict[type, dict[str, Any]] = {
    kind: {field.name: field.default for field in fields(kind) if field.default is not MISSING}
    | ({"measured": []} if kind is Reply else {})
    for kind in (Request, Reply)
}

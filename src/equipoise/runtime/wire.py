"""Requests and replies as records, with trees that many requests share sent once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from equipoise.records import Record
from equipoise.runtime.messages import Reply, Request, StateRef
from equipoise.tree import Tree

# Stands in place of a model's name, which cannot begin with $: this tree was sent before.
_REFERENCE = "$shared "


def trees_in(value: Any) -> list[Tree]:
    """Return every tree inside a value."""
    if isinstance(value, Tree):
        return [value]
    items: Iterable[Any] = ()
    if isinstance(value, Mapping):
        items = value.values()
    elif isinstance(value, list):
        items = value
    return [tree for item in items for tree in trees_in(item)]


def mapped(value: Any, function: Callable[[Tree], Tree]) -> Any:
    """Return a value with a function applied to its trees."""
    if isinstance(value, Tree):
        return function(value)
    if isinstance(value, Record):
        return type(value)._trusted({name: mapped(item, function) for name, item in value.items()})
    if isinstance(value, Mapping):
        return {name: mapped(item, function) for name, item in value.items()}
    if isinstance(value, list):
        return [mapped(item, function) for item in value]
    return value


def reference(key: str) -> Tree:
    """Return an empty tree that stands for one that the receiver has."""
    return Tree({}, _REFERENCE + key)


def resolved(value: Any, trees: Mapping[str, Tree]) -> Any:
    """Return a value with references replaced by the trees that they name."""

    def resolve(tree: Tree) -> Tree:
        if tree.model.startswith(_REFERENCE):
            return trees[tree.model.removeprefix(_REFERENCE)]
        return tree

    return mapped(value, resolve)


def shared_trees(requests: Sequence[Request]) -> tuple[dict[int, str], dict[str, Tree]]:
    """Return the trees that more than one request holds.

    Args:
        requests: The requests of an exchange.

    Returns:
        The key of each shared tree by its identity, and the trees by key.
    """
    by_identity: dict[int, Tree] = {}
    counts: Counter[int] = Counter()
    for request in requests:
        for tree in trees_in(request.down):
            by_identity[id(tree)] = tree
            counts[id(tree)] += 1
    keys: dict[int, str] = {}
    for identity, count in counts.items():
        if count > 1:
            keys[identity] = str(len(keys))
    return keys, {key: by_identity[identity] for identity, key in keys.items()}


def referring(down: Record, shared: Mapping[int, str]) -> Any:
    """Return a message with references in place of the trees that the receiver has."""

    def refer(tree: Tree) -> Tree:
        key = shared.get(id(tree))
        return tree if key is None else reference(key)

    return mapped(down, refer)


def to_wire(value: Request | Reply) -> dict[str, Any]:
    """Return the fields of a request or reply that differ from their defaults.

    The records `down` and `up` are left out; they travel separately.
    """
    defaults = _DEFAULTS[type(value)]
    message = {}
    for name, field_value in vars(value).items():
        if name in ("down", "up") or (name in defaults and field_value == defaults[name]):
            continue
        message[name] = list(field_value) if isinstance(field_value, tuple) else field_value
    return message


def request_of(message: Mapping[str, Any], down: Record) -> Request:
    """Return the request that `to_wire` wrote."""
    request = Request(**message, down=down)
    if request.state is not None:
        name, digest = request.state
        request.state = (name, digest)
    return request


def reply_of(message: Mapping[str, Any], up: Any) -> Reply:
    """Return the reply that `to_wire` wrote."""
    reply = Reply(**message, up=up)
    if reply.state is not None:
        reply.state = StateRef(*reply.state)
    return reply


def _defaults_of(kind: type[Request] | type[Reply]) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    for field in fields(kind):
        if field.default is not MISSING:
            defaults[field.name] = field.default
        elif field.default_factory is not MISSING:
            defaults[field.name] = field.default_factory()
    return defaults


_DEFAULTS: dict[type, dict[str, Any]] = {kind: _defaults_of(kind) for kind in (Request, Reply)}

"""Messages between our own processes: records in frames, with trees that many requests share sent once."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from equipoise.records import Record, pack, unpack
from equipoise.transports.exchange import Reply, Request
from equipoise.tree import Tree

_REFERENCE = "@tree"


def send(connection: socket.socket, message: Record) -> int:
    """Send one record; returns the bytes sent."""
    parts = pack(message)
    total = sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)
    connection.sendall(struct.pack("<Q", total))
    for part in parts:
        connection.sendall(part)
    return total


def receive(connection: socket.socket) -> Any:
    """The next record; EOFError when the other side has gone."""
    (total,) = struct.unpack("<Q", _exactly(connection, 8))
    return unpack(_exactly(connection, total))


def _exactly(connection: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        got = connection.recv_into(view[done:])
        if not got:
            raise EOFError("the other side closed the connection")
        done += got
    return data


def trees_in(value: Any) -> list[Tree]:
    """Every tree inside a value."""
    if isinstance(value, Tree):
        return [value]
    if isinstance(value, Mapping):
        return [tree for item in value.values() for tree in trees_in(item)]
    return [tree for item in value for tree in trees_in(item)] if isinstance(value, list) else []


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """The value with `function` applied to trees and to references to trees."""
    if isinstance(value, Tree) or (type(value) is dict and _REFERENCE in value):
        return function(value)
    if isinstance(value, Record):
        return type(value)._trusted({name: mapped(item, function) for name, item in value.items()})
    if isinstance(value, Mapping):
        return {name: mapped(item, function) for name, item in value.items()}
    return [mapped(item, function) for item in value] if isinstance(value, list) else value


def reference(key: str) -> dict[str, str]:
    return {_REFERENCE: key}


def resolved(value: Any, trees: Mapping[str, Tree]) -> Any:
    """The value with references replaced by the trees they name."""
    return mapped(value, lambda item: trees[item[_REFERENCE]] if type(item) is dict else item)


def task(number: int, request: Request, down: Record) -> Record:
    values = {field.name: getattr(request, field.name) for field in fields(Request) if field.name != "down"}
    return Record(kind="task", number=number, request=values, down=down)


def request_of(message: Record, down: Record) -> Request:
    return Request(**message["request"], down=down)


def answer(number: int, reply: Reply) -> Record:
    values = {field.name: getattr(reply, field.name) for field in fields(Reply) if field.name != "up"}
    return Record(kind="reply", number=number, reply=values, up=reply.up)


def reply_of(message: Record) -> Reply:
    return Reply(**message["reply"], up=message["up"])

"""Messages between a server and a site, as bytes.

A server describes a run, opens it, has steps performed and closes it. A site answers with the
result or with a code. A text of the site is never part of an answer. A description has a ticket,
with which the run is opened once; all further messages of this opening carry it. So a message that
arrives again later belongs to no opening, and changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from equipoise.records import Record, pack, unpack
from equipoise.runtime import wire
from equipoise.runtime.messages import PROTOCOL, Job, Request
from equipoise.version import __version__

Kind = Literal["describe", "open", "perform", "close"]
# Codes of a step that has no result.
RAISED = "raised"
LATE = "late"
NO_STATE = "no-state"
DISK_FULL = "disk-full"
REFUSED = "refused:"  # followed by one of the words below
# What is wrong with a message that a site refuses.
WORDS = {
    "size": "it is larger than the site accepts; raise the limit of the site",
    "message": "it is not a message of Equipoise; install the same version on both sides",
    "protocol": "it has another protocol; install the same version on both sides",
    "version": "it has another version; install the same version on both sides",
    "name": "it is for another site; check the names of the sites",
    "run": "it belongs to another run than the one that is open",
    "closed": "no run is open there; open it first",
    "opening": "it belongs to an opening of the run that is over; open the run again",
    "ended": "the run was closed, or opened again, before the site had the result",
    "busy": "the site is busy with another message; send it again later",
    "experiment": "its experiment differs from the one that the run began with, or is not valid "
    "at this site; the log of the site says more",
    "schema": "its schema is not the one on which the site agreed; give both the same file",
    "round": "its round, attempt or exchange is earlier than one that the site has already seen",
    "method": "the site does not allow the method; ask it to add the method to its settings",
    "step": "the method has no such step",
    "metrics": "it names metrics that the experiment does not have",
    "splits": "it names parts of the data that the experiment does not have",
    "model": "it requests a model that is not the same for all clients; those stay at the site",
    "rows": "the site has fewer samples than its own settings require (minimum_rows)",
    "data": "the site cannot prepare its data for this experiment; the log of the site says why",
}
CODES = frozenset(["", RAISED, LATE, NO_STATE, DISK_FULL, *(f"{REFUSED}{word}" for word in WORDS)])
# Bytes of the part of a message that is no tensor. As objects of Python it needs many times more
# memory, so the limit of a whole message is no limit for it.
_LONGEST_HEADER = 2**26
# Settings of an experiment that hold at the server only.
_OF_SERVER = ("workers", "device", "memory", "keep", "budget", "faults")


def experiment_digest(experiment: Mapping[str, Any]) -> str:
    """Return a digest of what an experiment asks of a site.

    Args:
        experiment: The experiment as plain data.
    """
    content = {key: value for key, value in experiment.items() if key not in _OF_SERVER}
    data = content.get("data")
    if isinstance(data, Mapping):
        content["data"] = {key: value for key, value in data.items() if key != "name"}
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Message(NamedTuple):
    """A message to a site in two pieces, of which sites with the same tensors share the second.

    Attributes:
        head: The entries, with the forms of the tensors.
        body: The tensors.
    """

    head: bytes
    body: bytes

    def joined(self) -> bytes:
        """Return the message in one piece, as `Site.answer` takes it."""
        return self.head + self.body


class Bodies:
    """Joins the tensors of messages, once for all messages with the same tensors.

    It keeps the tensors alive, so that an address never stands for two of them.
    """

    def __init__(self) -> None:
        self._bodies: dict[tuple[tuple[int, int], ...], bytes] = {}
        self._buffers: list[list[bytes | memoryview]] = []
        self._lock = threading.Lock()  # sites may be sent messages by several threads

    def message(self, entries: Mapping[str, Any]) -> Message:
        """Return entries, which are plain already, as a message."""
        head, *buffers = pack(Record._trusted(dict(entries)))
        key = tuple(_address(buffer) for buffer in buffers if isinstance(buffer, memoryview))
        with self._lock:
            if key not in self._bodies:
                self._buffers.append(buffers)
                self._bodies[key] = b"".join(buffers)
            return Message(bytes(head), self._bodies[key])


def _address(buffer: memoryview) -> tuple[int, int]:
    return np.frombuffer(buffer, np.uint8).ctypes.data, buffer.nbytes


def message(kind: Kind, site: str, job: Job, **more: Any) -> Message:
    """Return a message to a site.

    Args:
        kind: What the site shall do.
        site: The name of the site.
        job: The run and its experiment.
        **more: Further entries of the message.
    """
    return Bodies().message(_entries(kind, site, job, **more))


def _entries(kind: Kind, site: str, job: Job, **more: Any) -> dict[str, Any]:
    entries = {
        "kind": kind,
        "protocol": PROTOCOL,
        "version": __version__,
        "site": site,
        "run": job.run,
        "experiment": experiment_digest(job.experiment),
        **more,
    }
    if kind in ("describe", "open"):
        entries["job"] = job.text()
    return entries


def perform_message(
    job: Job,
    request: Request,
    deadline: float | None,
    bodies: Bodies | None = None,
    ticket: str = "",
) -> Message:
    """Return the message that has a site perform a step.

    Args:
        job: The run and its experiment.
        request: The step.
        deadline: The seconds that it may take.
        bodies: The tensors of the other messages of an exchange.
        ticket: The ticket with which the run was opened.
    """
    entries = _entries(
        "perform",
        request.client,
        job,
        request=wire.to_wire(request),
        down=request.down,
        deadline=deadline,
        ticket=ticket,
    )
    return (bodies or Bodies()).message(entries)


def mark_of(request: Request) -> list[Any]:
    """Return by what an answer shows which request it answers; an old one does not count."""
    return [request.round, request.attempt, request.exchange, request.step]


def packed(entries: Mapping[str, Any]) -> bytes:
    """Return entries, which are plain already, as the bytes of a record."""
    return b"".join(pack(Record._trusted(dict(entries))))


def unpacked(data: bytes | bytearray | memoryview) -> Record:
    """Return the record in some bytes, which may come from a stranger.

    Args:
        data: The bytes. Memory that can be written is not copied: tensors are views of it.

    Raises:
        ValueError: If they hold no whole record, or one with a header of impossible length.
    """
    header = int.from_bytes(data[:8], "little")
    if header > _LONGEST_HEADER:
        raise ValueError(f"a header of {header} bytes")
    view = memoryview(data)
    record: Record = unpack(bytearray(data) if view.readonly else view)
    return record


def explained(code: str) -> str:
    """Return a code, one of `CODES`, with its meaning, for messages at the server."""
    if not code.startswith(REFUSED):
        return code
    return f"{code}: {WORDS[code.removeprefix(REFUSED)]}"

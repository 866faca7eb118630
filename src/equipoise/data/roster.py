"""The server's view of its clients: names, sizes and fingerprints, and no sample or statistic."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.data.federation import Federation, Parts
from equipoise.data.message_text import some
from equipoise.task import Task
from equipoise.validation.names import FOLDERS, checked_name

PARTS = ("train", "validation", "test")
SHARED = "all"  # the name under which results on a shared test set are recorded
MOST_SAMPLES = 2**40  # of a part of a client's data; the store counts no more
LONGEST_DIGEST = 64  # characters of a fingerprint, which may come from a stranger
AT_ONCE = 1 << 15  # samples that are gathered for digests at a time


@dataclass(frozen=True)
class Roster:
    """The clients of a run, in the order of the federation, which is fixed for the run.

    Attributes:
        task: The task.
        name: The data set.
        ids: The names of the clients.
        sizes: Part (train, validation, test) -> client -> number of samples.
        fingerprints: A digest of each client's prepared data.
        shared: The number of samples of a test set that every client runtime holds.
        shared_fingerprint: A digest of that test set.
        classes: Part -> client -> number of classes that occur in it; empty for regression.
        shared_classes: The number of classes that occur in the shared test set.
    """

    task: Task
    name: str
    ids: tuple[str, ...]
    sizes: Mapping[str, Mapping[str, int]]
    fingerprints: Mapping[str, str]
    shared: int = 0
    shared_fingerprint: str = ""
    classes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    shared_classes: int = 0

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all clients' data; two runs are comparable if it is equal."""
        digest = hashlib.sha256()
        for client in self.ids:
            digest.update(f"{client}\x1f{self.fingerprints[client]}\x1e".encode())
        digest.update(self.shared_fingerprint.encode())
        return digest.hexdigest()[:32]

    def record(self) -> dict[str, Any]:
        """Return the roster as plain data, for the wire and for the store."""
        return asdict(self)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Roster:
        """Return the roster of plain data that `record` returned."""
        return cls(**{**record, "ids": tuple(record["ids"]), "task": Task.of(record["task"])})

    @classmethod
    def joined(cls, rosters: Sequence[Roster]) -> Roster:
        """Return one roster of several parties, each of which holds some of the clients.

        Raises:
            ValueError: If they differ in task or shared test set, or two clients have one id.
        """
        first = rosters[0]
        for other in rosters:
            first._check_compatible(other)
        ids: list[str] = []
        fingerprints: dict[str, str] = {}
        sizes: dict[str, dict[str, int]] = {part: {} for part in PARTS}
        classes: dict[str, dict[str, int]] = {part: {} for part in first.classes}
        for roster in rosters:
            ids += roster.ids
            fingerprints.update(roster.fingerprints)
            for part in PARTS:
                sizes[part].update(roster.sizes[part])
            for part in classes:
                classes[part].update(roster.classes.get(part, {}))
        joined = replace(
            first, ids=tuple(ids), sizes=sizes, fingerprints=fingerprints, classes=classes
        )
        return joined.checked()

    def only(self, client: str) -> Roster:
        """Return the roster of one client."""
        return replace(
            self,
            ids=(client,),
            sizes={part: {client: sizes[client]} for part, sizes in self.sizes.items()},
            fingerprints={client: self.fingerprints[client]},
            classes={part: {client: count[client]} for part, count in self.classes.items()},
        )

    def _check_compatible(self, other: Roster) -> None:
        """Refuse another roster with a different task or shared test set."""
        task = (self.task, self.task.centre, self.task.scale)
        if (other.task, other.task.centre, other.task.scale) != task:
            raise ValueError(
                f"the clients {_some(self.ids)} and {_some(other.ids)} have different tasks: "
                f"{self.task} and {other.task}; give all of them the same schema: label, classes, "
                "input shape, centre and scale"
            )
        shared = (self.shared, self.shared_fingerprint)
        if (other.shared, other.shared_fingerprint) != shared:
            raise ValueError(
                f"the clients {_some(self.ids)} and {_some(other.ids)} hold different shared test "
                "sets; give all the same"
            )

    def checked(self) -> Roster:
        """Return the roster if a run can begin with it.

        Raises:
            ValueError: If ids are not valid or not unique, or sizes are missing.
        """
        for client in self.ids:
            checked_name(client, "client id")
            if client in FOLDERS:
                raise ValueError(
                    f"client id {client!r}: expected no name of a folder; rename the client"
                )
        if SHARED in self.ids:
            raise ValueError(
                f"client id {SHARED!r}: measurements on a shared test set are stored under this "
                "name; rename the client"
            )
        repeated = sorted(client for client, count in Counter(self.ids).items() if count > 1)
        if repeated:
            raise ValueError(
                f"the client ids {_some(repeated)} were given more than once; "
                "every client needs an id of its own"
            )
        for client in self.ids:
            if not self._has_sizes(client) or not self._has_fingerprint(client):
                raise ValueError(
                    f"client {client!r} sent no sizes or no fingerprint of its data; "
                    "install the same version on both sides"
                )
            if not self._has_classes(client):
                raise ValueError(
                    f"client {client!r} sent numbers of classes that cannot be; "
                    "install the same version on both sides"
                )
        if not any(self.sizes["train"].values()):
            raise ValueError(
                f"none of the clients {_some(self.ids)} has a training sample; "
                "check data.split and the files"
            )
        return self

    def _has_sizes(self, client: str) -> bool:
        counts = [self.sizes[part].get(client) for part in PARTS]
        return all(type(count) is int and 0 <= count < MOST_SAMPLES for count in counts)

    def _has_fingerprint(self, client: str) -> bool:
        digest = self.fingerprints.get(client)
        return isinstance(digest, str) and len(digest) <= LONGEST_DIGEST

    def _has_classes(self, client: str) -> bool:
        for part, counts in self.classes.items():
            most = min(self.sizes[part][client], self.task.outputs) if part in PARTS else -1
            count = counts.get(client)
            if type(count) is not int or not 0 <= count <= most:
                return False
        return True


def _some(names: Sequence[str]) -> str:
    return some(map(repr, names))


def roster_of(federation: Federation) -> Roster:
    """Return the roster of a federation that this process holds."""
    parts = {part: getattr(federation, part) for part in PARTS}
    sizes = {}
    for name, part in parts.items():
        sizes[name] = dict(zip(federation.ids, map(int, part.sizes), strict=True))
    digests = _fingerprints(federation, list(parts.values()))
    shared = federation.shared_test
    classes = {}
    shared_classes = 0
    if federation.task.classifies:
        for name, part in parts.items():
            counts = _class_counts(federation, part)
            classes[name] = dict(zip(federation.ids, counts, strict=True))
        shared_classes = len(np.unique(federation.y.numpy()[shared]))
    roster = Roster(
        task=federation.task,
        name=federation.name,
        ids=tuple(federation.ids),
        sizes=sizes,
        fingerprints=dict(zip(federation.ids, digests, strict=True)),
        shared=len(shared),
        shared_fingerprint=fingerprint(federation, shared) if len(shared) else "",
        classes=classes,
        shared_classes=shared_classes,
    )
    return roster.checked()


def _class_counts(federation: Federation, part: Parts) -> list[int]:
    """Return how many classes occur in a part of each client's data, for all clients at once."""
    outputs = federation.task.outputs
    labels = federation.y.numpy()[part.index]
    pairs = np.unique(part.owners * outputs + labels)  # one number for each client and class
    counts: list[int] = np.bincount(pairs // outputs, minlength=len(part)).tolist()
    return counts


def fingerprint(federation: Federation, *parts: np.ndarray) -> str:
    """Return a digest of some prepared samples; it is equal for equal samples on any machine.

    Args:
        federation: The federation.
        *parts: Positions of the samples, part by part.
    """
    digest = hashlib.sha256()
    for index in parts:
        positions = torch.from_numpy(np.array(index, dtype=np.int64))
        digest.update(f"{len(index)}:".encode())
        for tensor in (federation.x, federation.y):
            digest.update(_bytes_of(tensor, positions))
        digest.update("".join(_groups_of_rows(federation, positions.numpy())).encode())
    return digest.hexdigest()[:32]


def _bytes_of(tensor: Tensor, positions: Tensor) -> memoryview:
    """Return some rows of a tensor as bytes."""
    rows = tensor.index_select(0, positions).contiguous()
    return rows.reshape(-1).view(torch.uint8).numpy().data


def _groups_of_rows(federation: Federation, positions: np.ndarray) -> list[str]:
    """Return the groups of some samples as text; nothing without `data.groups`.

    Names and not codes: the number of a group differs between a site and all sites together.
    """
    if federation.groups is None:
        return []
    rows = federation.groups.rows(positions)
    columns = [rows.names_of(column) for column in rows.columns]
    return ["\x1f".join(names) + "\x1e" for names in zip(*columns, strict=True)]


def _fingerprints(federation: Federation, parts: Sequence[Parts]) -> Iterator[str]:
    """Yield the fingerprint of every client.

    Samples are gathered for many clients at once, since 100,000 single calls would take half a
    minute.
    """
    ends = np.sum([part.offsets for part in parts], axis=0)
    clients = len(parts[0])
    first = 0
    while first < clients:
        # As many whole clients as have AT_ONCE samples together, but at least one.
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + AT_ONCE, side="right")) - 1)
        digests = [hashlib.sha256() for _ in range(first, last)]
        for part in parts:
            offsets = part.offsets[first : last + 1]
            positions = torch.from_numpy(part.index[offsets[0] : offsets[-1]].astype(np.int64))
            blocks = []
            for tensor in (federation.x, federation.y):
                width = tensor.element_size() * tensor[:1].numel()
                blocks.append((_bytes_of(tensor, positions), width))
            groups = _groups_of_rows(federation, positions.numpy())
            bounds = (offsets - offsets[0]).tolist()
            for digest, begin, end in zip(digests, bounds[:-1], bounds[1:], strict=True):
                digest.update(f"{end - begin}:".encode())
                for rows, width in blocks:
                    digest.update(rows[begin * width : end * width])
                digest.update("".join(groups[begin:end]).encode())
        for digest in digests:
            yield digest.hexdigest()[:32]
        first = last


def old_fingerprint(federation: Federation) -> str:
    """Return the fingerprint of store formats 1 and 2, over shared tensors and all positions."""
    digest = hashlib.sha256()
    for tensor in (federation.x, federation.y):
        digest.update(tensor.contiguous().numpy().data)
    for parts in (federation.train, federation.validation, federation.test):
        digest.update(parts.index.tobytes() + parts.offsets.tobytes())
    digest.update(federation.shared_test.tobytes() + repr(federation.ids).encode())
    return digest.hexdigest()[:32]

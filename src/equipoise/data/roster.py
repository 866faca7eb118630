"""What a server knows of its clients: who they are and how many samples they hold; no sample, no index, no statistic of values."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from equipoise.data.federation import Federation, Parts
from equipoise.task import Task
from equipoise.validation.names import checked_name

PARTS = ("train", "validation", "test")
SHARED = "all"  # whose measurements those of a model for all on a test set for all are
AT_ONCE = 1 << 15  # samples that are gathered to be digested


@dataclass(frozen=True)
class Roster:
    """The clients of a run, in the order of the federation, which is fixed for the run and kept in its store."""

    task: Task
    name: str  # of the data
    ids: tuple[str, ...]
    sizes: Mapping[str, Mapping[str, int]]  # part -> client -> samples
    fingerprints: Mapping[str, str]  # of each client's prepared data
    shared: int = 0  # samples of a test set that every client runtime holds
    shared_fingerprint: str = ""

    @cached_property
    def fingerprint(self) -> str:
        """A short digest of all clients' data: two runs are comparable when it is equal, wherever they ran."""
        whole = hashlib.sha256()
        for client in self.ids:
            whole.update(f"{client}\x1f{self.fingerprints[client]}\x1e".encode())
        whole.update(self.shared_fingerprint.encode())
        return whole.hexdigest()[:32]

    def record(self) -> dict[str, Any]:
        """As plain data, for the wire and for the store."""
        return asdict(self)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Roster:
        return cls(**{**record, "ids": tuple(record["ids"]), "task": Task.of(record["task"])})

    @classmethod
    def joined(cls, rosters: Sequence[Roster]) -> Roster:
        """One roster of several sides, each of which holds some of the clients."""
        first = rosters[0]
        for other in rosters:
            if (other.task, other.task.centre, other.task.scale) != (
                first.task,
                first.task.centre,
                first.task.scale,
            ):
                raise ValueError(
                    f"the clients {_some(first.ids)} and {_some(other.ids)} have different tasks: {first.task} and {other.task}; "
                    "give all of them the same schema: label, classes, input shape, centre and scale"
                )
            if (other.shared, other.shared_fingerprint) != (first.shared, first.shared_fingerprint):
                raise ValueError(
                    f"the clients {_some(first.ids)} and {_some(other.ids)} hold different shared test sets; give all the same"
                )
        sizes = {
            part: {client: n for roster in rosters for client, n in roster.sizes[part].items()}
            for part in PARTS
        }
        ids = tuple(client for roster in rosters for client in roster.ids)
        prints = {
            client: mark for roster in rosters for client, mark in roster.fingerprints.items()
        }
        return cls(
            first.task, first.name, ids, sizes, prints, first.shared, first.shared_fingerprint
        ).checked()

    def checked(self) -> Roster:
        """The same roster, or a sentence about what no run can begin with."""
        for client in self.ids:
            checked_name(client, "client id")
        if SHARED in self.ids:
            raise ValueError(
                f"client id {SHARED!r}: measurements on a shared test set are kept under this name; rename the client"
            )
        twice = sorted(client for client, count in Counter(self.ids).items() if count > 1)
        if twice:
            raise ValueError(
                f"the client ids {_some(twice)} were given more than once; every client needs an id of its own"
            )
        for client in self.ids:
            counts = [self.sizes[part].get(client) for part in PARTS]
            if not all(type(count) is int and count >= 0 for count in counts) or not isinstance(
                self.fingerprints.get(client), str
            ):
                raise ValueError(
                    f"client {client!r} told no sizes or no fingerprint of its data; install the same version on both sides"
                )
        if not any(self.sizes["train"].values()):
            raise ValueError(
                f"none of the clients {_some(self.ids)} has a training sample; look at data.split and at the files"
            )
        return self


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (
        f" and {len(names) - 5} more" if len(names) > 5 else ""
    )


def roster_of(federation: Federation) -> Roster:
    """What a server is told of a federation that this process holds."""
    parts = {part: getattr(federation, part) for part in PARTS}
    sizes = {
        part: dict(zip(federation.ids, map(int, where.sizes), strict=True))
        for part, where in parts.items()
    }
    fingerprints = dict(
        zip(federation.ids, _fingerprints(federation, list(parts.values())), strict=True)
    )
    shared = federation.shared_test
    return Roster(
        federation.task, federation.name, tuple(federation.ids), sizes, fingerprints, len(shared), fingerprint(federation, shared) if len(shared) else ""
    ).checked()  # fmt: skip


def fingerprint(federation: Federation, *parts: np.ndarray) -> str:
    """A digest of some samples as they are prepared, part by part: equal wherever the same samples are."""
    digest = hashlib.sha256()  # processors have instructions for it
    for index in parts:
        places = torch.from_numpy(np.array(index, dtype=np.int64))
        digest.update(f"{len(index)}:".encode())
        for tensor in (federation.x, federation.y):
            digest.update(
                tensor.index_select(0, places)
                .contiguous()
                .reshape(-1)
                .view(torch.uint8)
                .numpy()
                .data
            )
    return digest.hexdigest()[:32]


def _fingerprints(federation: Federation, parts: Sequence[Parts]) -> Iterator[str]:
    """As `fingerprint`, of every client: samples are gathered for many clients at once, since a call for each of 100,000 would take half a minute."""
    ends, first, clients = np.sum([part.offsets for part in parts], axis=0), 0, len(parts[0])
    while first < clients:
        # whole clients only
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + AT_ONCE, side="right")) - 1)
        digests = [hashlib.sha256() for _ in range(first, last)]
        for part in parts:
            offsets = part.offsets[first : last + 1]
            places = torch.from_numpy(part.index[offsets[0] : offsets[-1]].astype(np.int64))
            held = []
            for tensor in (federation.x, federation.y):
                width = tensor.element_size() * tensor[:1].numel()
                held.append(
                    (
                        tensor.index_select(0, places)
                        .contiguous()
                        .reshape(-1)
                        .view(torch.uint8)
                        .numpy()
                        .data,
                        width,
                    )
                )
            for digest, begin, end in zip(
                digests,
                (offsets[:-1] - offsets[0]).tolist(),
                (offsets[1:] - offsets[0]).tolist(),
                strict=True,
            ):
                digest.update(f"{end - begin}:".encode())
                for rows, width in held:
                    digest.update(rows[begin * width : end * width])
        yield from (digest.hexdigest()[:32] for digest in digests)
        first = last


def old_fingerprint(federation: Federation) -> str:
    """As store formats 1 and 2 had it: over the tensors that all clients share and the index of every client."""
    digest = hashlib.sha256()
    for tensor in (federation.x, federation.y):
        digest.update(tensor.contiguous().numpy().data)
    for parts in (federation.train, federation.validation, federation.test):
        digest.update(parts.index.tobytes() + parts.offsets.tobytes())
    digest.update(federation.shared_test.tobytes() + repr(federation.ids).encode())
    return digest.hexdigest()[:32]

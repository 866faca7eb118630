"""Where clients' states lie on a performing side: by name, whole or not at all, in one format."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from equipoise.records import CannotSave, Record, dump, parse
from equipoise.storage.files import digest_of, sync
from equipoise.transports.base import Kept, state_file, state_name


class StateMissing(LookupError):
    """A state that was asked for is not here, or is not the one that was written."""


class States(Protocol):
    """The states of the clients of one run."""

    def read(self, name: str, digest: str) -> Record: ...

    def write(self, name: str, record: Record) -> Kept: ...

    def keep(self, client: str, names: Collection[str]) -> None:
        """Its other states of this run go."""
        ...


class FileStates:
    """Files in a folder: a site's own disk, on which they are before the server hears of them."""

    synced = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str, digest: str) -> Record:
        try:
            data = (self.folder / state_file(name)).read_bytes()
        except FileNotFoundError:
            raise StateMissing(f"state {name} is not here") from None
        return _parsed(data, name, digest)

    def write(self, name: str, record: Record) -> Kept:
        return self.put(name, dump(record))

    def put(self, name: str, data: bytes | memoryview) -> Kept:
        """Write a state that is in its form already."""
        path = self.folder / state_file(name)
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(data)
            if self.synced:
                sync([partial])
            partial.replace(path)
            if self.synced:
                sync([self.folder])
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise CannotSave(
                f"cannot write {path}: {error}; make room or permit writing there, then go on with `equipoise resume`"
            ) from error
        return Kept(name, len(data), digest_of(data))

    def keep(self, client: str, names: Collection[str]) -> None:
        own = state_name(client, 0, 0, 0).partition("-")[0]
        wanted = {state_file(name) for name in names}
        for path in self.folder.glob(f"client-{own}-r*"):
            if path.name not in wanted:
                path.unlink(missing_ok=True)


class ServerStates(FileStates):
    """The files of the run itself, where performing sides share the server's disk: its store syncs them and decides what goes."""

    synced = False

    def keep(self, client: str, names: Collection[str]) -> None:
        pass


class CarriedStates:
    """States that come with the request and go back with the reply: the transport brings them and takes them away."""

    def __init__(self) -> None:
        self.carried: dict[str, bytes] = {}

    def read(self, name: str, digest: str) -> Record:
        if name not in self.carried:
            raise StateMissing(f"state {name} is not here")
        return _parsed(self.carried[name], name, digest)

    def write(self, name: str, record: Record) -> Kept:
        data = dump(record)
        self.carried[name] = data
        return Kept(name, len(data), digest_of(data))

    def keep(self, client: str, names: Collection[str]) -> None:
        pass


def _parsed(data: bytes, name: str, digest: str) -> Record:
    if digest and digest_of(data) != digest:
        raise StateMissing(f"state {name} is damaged: it is not what was written")
    record: Record = parse(data)
    return record

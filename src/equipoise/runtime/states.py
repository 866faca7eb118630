"""Where clients' states lie on a client runtime: by name, whole or not at all, in one format."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Protocol

from equipoise.records import CannotSave, Record, dump, parse
from equipoise.runtime.messages import StateRef, owner, state_file
from equipoise.storage.files import digest_of, names_in, sync
from equipoise.validation.regular_files import check_regular


class StateMissing(LookupError):
    """A state that was asked for is not here, or is not the one that was written."""


class States(Protocol):
    """The states of the clients of one run."""

    def read(self, name: str, digest: str) -> Record: ...

    def write(self, name: str, record: Record) -> StateRef: ...

    def keep(self, client: str, names: Collection[str]) -> None:
        """Its other states of this run go."""
        ...


class FileStates:
    """Files in a folder: a site's own disk, on which they are before the server hears of them."""

    synced = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sure: set[Path] = set()  # sub-folders whose own names are on the disk

    @cached_property
    def here(self) -> defaultdict[str, list[str]]:
        """Whose files lie here: looked up once, since every request asks for one client's, and there may be very many."""
        found = defaultdict(list)
        for name in names_in(self.folder) if self.folder.is_dir() else ():
            kind, _, rest = name.rpartition("/")[2].partition("-")
            if kind == "client":
                found[rest.partition("-")[0]].append(name)
        return found

    def read(self, name: str, digest: str) -> Record:
        try:
            path = state_path(self.folder, name)
            check_regular(path)
            data = path.read_bytes()
        except FileNotFoundError:
            raise StateMissing(f"state {name} is not here") from None
        return _parsed(data, name, digest)

    def write(self, name: str, record: Record) -> StateRef:
        return self.put(name, dump(record))

    def put(self, name: str, data: bytes | memoryview) -> StateRef:
        """Write a state that is in its form already."""
        path = self.folder / state_file(name)
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(data)
            if self.synced:
                sync([partial])
            partial.replace(path)
            if self.synced:
                sync([path.parent, *([] if path.parent in self.sure else [self.folder])])
                self.sure.add(path.parent)
                self.here[name.partition("-")[0]].append(state_file(name))
        except OSError as error:
            # why it cannot be written may be why there is nothing to remove
            with suppress(OSError):
                partial.unlink()
            raise CannotSave(
                f"cannot write {path}: {error}; make room or permit writing there, then go on with `equipoise resume`"
            ) from error
        return StateRef(name, len(data), digest_of(data))

    def keep(self, client: str, names: Collection[str]) -> None:
        own = owner(client)
        wanted = {state_file(name).rpartition("/")[2] for name in names}
        for name in [
            name for name in self.here.get(own, ()) if name.rpartition("/")[2] not in wanted
        ]:
            (self.folder / name).unlink(missing_ok=True)
            self.here[own].remove(name)


class ServerStates(FileStates):
    """The files of the run itself, where client runtimes share the server's disk: its store syncs them and decides what goes."""

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

    def write(self, name: str, record: Record) -> StateRef:
        data = dump(record)
        self.carried[name] = data
        return StateRef(name, len(data), digest_of(data))

    def keep(self, client: str, names: Collection[str]) -> None:
        pass


def state_path(folder: Path, name: str) -> Path:
    """Where a state lies: in its sub-folder, or beside these if it was written before there were any."""
    path = folder / state_file(name)
    return path if path.exists() else folder / path.name


def _parsed(data: bytes, name: str, digest: str) -> Record:
    if digest and digest_of(data) != digest:
        raise StateMissing(f"state {name} is damaged: it is not what was written")
    record: Record = parse(data)
    return record

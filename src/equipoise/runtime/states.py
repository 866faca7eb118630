"""Stores of client states on a client runtime: each state has a name and is whole or absent."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Protocol

from equipoise.records import CannotSave, Record, dump, parse
from equipoise.runtime.messages import StateRef, owner, round_of, state_file, state_of
from equipoise.storage.files import digest_of, names_in, sync
from equipoise.validation.regular_files import check_regular


class StateMissing(LookupError):
    """A state that is absent or damaged."""


NOT_HERE = "is not here"


class States(Protocol):
    """The states of the clients of one run."""

    def read(self, name: str, digest: str) -> Record:
        """Return a state.

        Args:
            name: Its name.
            digest: Its digest, which is verified; empty for states of old versions.

        Raises:
            StateMissing: If it is absent, or not the one that was written.
        """
        ...

    def write(self, name: str, record: Record) -> StateRef:
        """Write a state under a new name.

        Raises:
            CannotSave: If the disk is full or not writable.
        """
        ...

    def keep(self, client: str, names: Collection[str]) -> None:
        """Delete all states of a client but those that are named."""
        ...


class FileStates:
    """States as files on the site's own disk, synced before the server hears of them.

    Args:
        folder: The folder of the files.
    """

    synced = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._synced_folders: set[Path] = set()  # sub-folders whose own names are on the disk

    @cached_property
    def _files_by_owner(self) -> defaultdict[str, list[str]]:
        """The files by client, listed once: there may be very many, and each request needs few."""
        files: defaultdict[str, list[str]] = defaultdict(list)
        if not self.folder.is_dir():
            return files
        for name in names_in(self.folder):
            kind, _, rest = name.rpartition("/")[2].partition("-")
            if kind == "client":
                files[rest.partition("-")[0]].append(name)
        return files

    def read(self, name: str, digest: str) -> Record:
        """Return a state; see `States.read`."""
        try:
            path = state_path(self.folder, name)
            check_regular(path)
            data = path.read_bytes()
        except FileNotFoundError:
            raise StateMissing(f"state {name} {NOT_HERE}") from None
        return _parsed(data, name, digest)

    def write(self, name: str, record: Record) -> StateRef:
        """Write a state; see `States.write`."""
        return self.put(name, dump(record))

    def put(self, name: str, data: bytes | memoryview) -> StateRef:
        """Write the bytes of a state; see `States.write`."""
        path = self.folder / state_file(name)
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(data)
            if self.synced:
                sync([partial])
            partial.replace(path)
            if self.synced:
                self._sync_names(path.parent)
                self._files_by_owner[name.partition("-")[0]].append(state_file(name))
        except OSError as error:
            # The reason of the error may be a reason why there is nothing to remove.
            with suppress(OSError):
                partial.unlink()
            raise CannotSave(
                f"cannot write {path}: {error}; make room or permit writing there, "
                "then resume the run"
            ) from error
        return StateRef(name, len(data), digest_of(data))

    def _sync_names(self, folder: Path) -> None:
        """Make sure that the names of new files in a sub-folder are on the disk."""
        folders = [folder]
        if folder not in self._synced_folders:
            folders.append(self.folder)
        sync(folders)
        self._synced_folders.add(folder)

    def newest_round(self, client: str) -> int:
        """Return the round of the newest state of a client; -1 if there is none."""
        rounds = [-1]
        for file in self._files_by_owner.get(owner(client), []):
            if file.endswith(".safetensors"):  # and no file that was being written
                rounds.append(round_of(state_of(file.rpartition("/")[2])))
        return max(rounds)

    def keep(self, client: str, names: Collection[str]) -> None:
        """Delete all states of a client but those that are named."""
        files = self._files_by_owner.get(owner(client), [])
        needed = {state_file(name).rpartition("/")[2] for name in names}
        for file in list(files):
            if file.rpartition("/")[2] not in needed:
                (self.folder / file).unlink(missing_ok=True)
                files.remove(file)


class ServerStates(FileStates):
    """States among the files of the run, for client runtimes that share the server's disk.

    The store of the run syncs these files and deletes them.
    """

    synced = False

    def keep(self, client: str, names: Collection[str]) -> None:
        """Delete nothing: the store of the run does."""


class CarriedStates:
    """States in memory, which the transport sends with requests and replies."""

    def __init__(self) -> None:
        self.carried: dict[str, bytes] = {}

    def read(self, name: str, digest: str) -> Record:
        """Return a state; see `States.read`."""
        if name not in self.carried:
            raise StateMissing(f"state {name} {NOT_HERE}")
        return _parsed(self.carried[name], name, digest)

    def write(self, name: str, record: Record) -> StateRef:
        """Hold a state until the transport takes it away."""
        data = dump(record)
        self.carried[name] = data
        return StateRef(name, len(data), digest_of(data))

    def keep(self, client: str, names: Collection[str]) -> None:
        """Delete nothing: the transport does."""


def state_path(folder: Path, name: str) -> Path:
    """Return the path of a state; versions without sub-folders wrote it into the folder itself."""
    path = folder / state_file(name)
    return path if path.exists() else folder / path.name


def _parsed(data: bytes, name: str, digest: str) -> Record:
    if digest and digest_of(data) != digest:
        raise StateMissing(f"state {name} is damaged: it is not what was written")
    record: Record = parse(data)
    return record

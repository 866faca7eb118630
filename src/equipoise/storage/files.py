"""Files of a run: their names, links that lead elsewhere, syncing to disk, and damage."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path

from equipoise.validation.regular_files import special_kind

DATABASE = "run.db"
CONFIGURATION = "experiment.yaml"
FILES = "files"
LOCK = "run.lock"
AT_A_TIME = 8  # files that are synced or removed together
# Bytes of a file that is read in one piece. hashlib clears a buffer for each file, which for the
# states of very many clients takes longer than reading.
READ_WHOLE = 2**20

# Every name that Equipoise gives to a file under files/: the owner (a client by number or digest),
# then round, attempt and exchange. Files of clients lie in sub-folders, since a run may have very
# many; until format 4 they lay next to the server's.
_NAME = re.compile(
    r"(?:server-r[0-9]+a[0-9]+"
    r"|(?:[0-9a-f]{2}/)?"
    r"(?:perclient-[0-9a-f]+-[0-9a-f]+-r[0-9]+a[0-9]+"
    r"|(?:client|reply)-[0-9a-f]+-r[0-9]+a[0-9]+x[0-9]+))"
    r"\.safetensors"
)
_READING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_READING |= getattr(os, "O_NONBLOCK", 0)  # a pipe is not waited for
_SUBFOLDER = re.compile(r"[0-9a-f]{2}")
MOST_LISTED = 512  # entries of a folder of files that are listed
# Names under which files are written first: safetensors' own, and ours.
_HALF_WRITTEN = re.compile(
    r"\.tmp[0-9A-Za-z]{6}|client-[0-9a-f]+-r[0-9]+a[0-9]+x[0-9]+\.safetensors\.[0-9]+\.part"
)
# Names that a run writes into its folder; SQLite adds -wal, -shm and -journal to its own.
_WRITTEN = re.compile(
    rf"{re.escape(DATABASE)}.*|{re.escape(LOCK)}|{re.escape(CONFIGURATION)}|{FILES}"
    r"|tensorboard|wandb"
)


class RunError(RuntimeError):
    """A run on disk that cannot be used; the message says why and what to do."""


class RunStopped(RunError):
    """A run that stopped at its last committed round; resuming it tries again."""


def resume_command(folder: Path, data_at_sites: bool, options: str = "") -> str:
    """Return the command that resumes a run, for messages.

    Args:
        folder: The folder of the run.
        data_at_sites: True if its data are at sites, which are reached over a network.
        options: Further options of the command, each after a space.

    Example:
        >>> resume_command(Path("run"), data_at_sites=False)
        '`equipoise resume run`'
        >>> resume_command(Path("run"), data_at_sites=True)
        '`equipoise resume run --network KIT` (in Python, `equipoise.session.resume_session`)'
    """
    if not data_at_sites:
        return f"`equipoise resume {folder}{options}`"
    python = "(in Python, `equipoise.session.resume_session`)"
    return f"`equipoise resume {folder} --network KIT{options}` {python}"


def is_ours(name: object) -> bool:
    """Return True for the name, inside of files/, of a file that a run keeps.

    Example:
        >>> is_ours("server-r2a0.safetensors"), is_ours("../../.profile")
        (True, False)
        >>> is_ours("7c/client-7c01-r1a0x1.safetensors")
        True
    """
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def is_left_over(name: str) -> bool:
    """Return True for the name of a file that a killed process of ours may have left."""
    return is_ours(name) or _HALF_WRITTEN.fullmatch(name.rpartition("/")[2]) is not None


def in_subfolder(owner: str, name: str) -> str:
    """Return the name, inside of files/, of a client's file, in one of 256 sub-folders."""
    return f"{owner[:2]}/{name}"


def writable_path(files: Path, name: str) -> Path:
    """Return the path at which a file is written, after creating its sub-folder."""
    path = files / name
    if path.parent != files:
        with suppress(OSError):  # writing the file raises an error with the reason
            path.parent.mkdir(exist_ok=True)
    return path


def names_in(files: Path) -> Iterator[str]:
    """Yield the names of everything in a folder of files and in its sub-folders."""
    for path in files.iterdir():
        if _SUBFOLDER.fullmatch(path.name) and path.is_dir():
            for name in os.listdir(path):
                yield f"{path.name}/{name}"
        else:
            yield path.name


def check_entries(folder: Path, writing: bool = False) -> None:
    """Refuse a run's folder in which the name of a file leads elsewhere.

    Args:
        folder: The folder of a run, which may come from anyone.
        writing: Whether the run is going to be written. Then no file may have a second name (a hard
            link) elsewhere, since what is written here would change the file there, too.

    Raises:
        RunError: If an entry is a symbolic link, a pipe, a socket, a device, a hard link that would
            be written through, or a rollback journal.
    """
    if not folder.is_dir():
        return
    written = [path for path in sorted(folder.iterdir()) if _WRITTEN.fullmatch(path.name)]
    for path in written + _subfolders(folder / FILES):
        # Readers write to the shared memory of a database, too: SQLite empties it on opening.
        _check_entry(path, writing or path.name in (f"{DATABASE}-wal", f"{DATABASE}-shm"))
    journal = folder / f"{DATABASE}-journal"
    if os.path.lexists(journal):
        # SQLite would follow it, and delete any file that it names as the journal of several
        # databases.
        raise RunError(
            f"{journal} is a rollback journal, which no run of Equipoise leaves behind; "
            "it can make SQLite delete files elsewhere, so the run is not opened: remove it"
        )


def _subfolders(files: Path) -> list[Path]:
    """Return the entries of a folder of files that have the name of a sub-folder.

    A folder with very many files is not listed: its sub-folders are looked up by name. That is the
    slower way for the hundreds of small runs of a gallery.
    """
    try:
        with os.scandir(files) as entries:
            names = [entry.name for entry in islice(entries, MOST_LISTED + 1)]
    except OSError:
        return []
    if len(names) <= MOST_LISTED:
        return sorted(files / name for name in names if _SUBFOLDER.fullmatch(name))
    paths = [os.path.join(files, f"{number:02x}") for number in range(256)]
    return [Path(path) for path in paths if os.path.lexists(path)]


def _check_entry(path: Path, single: bool) -> None:
    """Refuse a link or a special file; if `single`, also a file that has another name elsewhere."""
    try:
        status = path.lstat()
    except OSError:  # of another process, and gone by now
        return
    if stat.S_ISLNK(status.st_mode):
        raise RunError(
            f"{path} is a symbolic link, which Equipoise does not follow inside a run; "
            "put the file or folder itself there"
        )
    kind = special_kind(status)
    if kind is not None:
        raise RunError(f"{path} is {kind}, which no run has; expected a regular file: remove it")
    if single and stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        raise RunError(
            f"{path} is a hard link: it has {status.st_nlink} names, and writing here would change "
            "the file under the others, too; copy the folder (`cp -r`) and use the copy"
        )


def save_output(path: Path, content: str | bytes) -> None:
    """Write a report, a model or a table, but into a file of its own only.

    A run's folder may come from anyone, so whatever leads elsewhere is refused.

    Raises:
        RunError: If the path is a symbolic link, a hard link, a pipe, a socket or a device.
        OSError: If it cannot be written.
    """
    check_output(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    flags |= getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def check_output(path: Path) -> None:
    """Refuse to write to a path that leads elsewhere, or to what is no regular file.

    Raises:
        RunError: If the path is a symbolic link, a hard link, a pipe, a socket or a device.
    """
    try:
        status = path.lstat()
    except OSError:  # nothing is there yet, or whoever opens it says why it cannot be opened
        return
    kind = special_kind(status)
    if stat.S_ISLNK(status.st_mode):
        kind = "a symbolic link"
    elif stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        kind = "a hard link (a file that has another name, too)"
    if kind is not None:
        raise RunError(
            f"{path} is {kind}, which Equipoise does not write through; "
            "remove it, or choose another file with --out"
        )


def digest_of(data: bytes | memoryview) -> str:
    """Return the SHA-256 of bytes; processors have instructions for it."""
    return hashlib.sha256(data).hexdigest()


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, which may not fit into memory."""
    if os.lstat(path).st_size <= READ_WHOLE:
        return digest_of(_whole(path))
    with os.fdopen(os.open(path, _READING), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _whole(path: Path) -> bytes:
    with os.fdopen(os.open(path, _READING), "rb", buffering=0) as file:
        return file.read()


def file_flaw(path: Path, size: int, known: str) -> str | None:
    """Return the damage to a file; None if it is intact.

    Args:
        path: The file.
        size: Its number of bytes.
        known: Its digest; empty if it is unknown.
    """
    # Imports torch, which most readers of runs do not need.
    from equipoise.records import check_form, read

    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            return "is not a file"
        if status.st_size != size:
            return "is cut off" if status.st_size < size else "is longer than it was written"
        # Small files are read once, since there may be very many.
        data = _whole(path) if size <= READ_WHOLE else None
        if known and (digest(path) if data is None else digest_of(data)) != known:
            return "was changed after it was written"
        # Bytes that are as they were written can still have a wrong form.
        if data is None or not known:
            read(path, lazy=bool(known))
        else:
            check_form(data)
    except FileNotFoundError:
        return "is missing"
    except Exception as error:  # a stranger's bytes may lead to any error
        lines = str(error).splitlines()
        reason = lines[0][:200] if lines else type(error).__name__
        return f"cannot be read ({reason})"
    return None


def sync(paths: Iterable[Path]) -> None:
    """Make sure that the contents of files, and the names in folders, are on the disk."""
    if os.name != "posix":  # where a folder cannot be opened
        paths = [path for path in paths if not path.is_dir()]
    _at_once(_sync, list(paths))


def unlink(paths: Iterable[Path]) -> None:
    """Remove files; those that cannot be removed stay."""
    _at_once(_unlink, list(paths))


def _at_once(function: Callable[[Path], None], paths: Sequence[Path]) -> None:
    """Call a function for several paths at a time, since a disk handles many as fast as one."""
    if paths:
        with ThreadPoolExecutor(min(AT_A_TIME, len(paths))) as threads:
            list(threads.map(function, paths))


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

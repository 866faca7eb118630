"""Regular files only: pipes, sockets and devices are refused before they are opened.

Opening a pipe waits until somebody opens its other end, and a device may never end. A folder that
comes from somebody else may hold either under the name of a file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegularFile(ValueError):
    """A path that leads to a pipe, a socket or a device."""


def special_kind(status: os.stat_result) -> str | None:
    """Return "a pipe", "a socket" or "a device"; None for files, folders and links."""
    return next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), None)


def check_regular(path: Path | str) -> None:
    """Refuse a path that leads to a pipe, a socket or a device, without opening it.

    A path that leads nowhere, or to a folder, is left to whoever opens it: that fails at once.

    Args:
        path: The path of a file to be read or written; symbolic links are followed.

    Raises:
        NotRegularFile: If opening the path could wait, or read without end.

    >>> try:
    ...     check_regular("/dev/zero")
    ... except NotRegularFile as error:
    ...     print(error)
    /dev/zero is a device; expected a regular file
    """
    try:
        kind = special_kind(os.stat(path))
    except (OSError, ValueError):  # nothing there, or a name that no file can have
        return
    if kind is not None:
        raise NotRegularFile(f"{path} is {kind}; expected a regular file")

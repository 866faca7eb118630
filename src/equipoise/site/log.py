"""Logs of a site, which no message of a server and no step can make grow without bounds."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import IO

SIZE = 2**24  # bytes after which a new log begins; one old log is kept
_CHUNK = 2**16  # bytes that are read from a child at a time


class Log:
    """A file to which entries are added.

    When it is full it becomes `NAME.old`, and a new one begins.
    A log that cannot be written does not keep the site from answering.

    Args:
        path: The file.
        size: The number of bytes at which it is full.
    """

    def __init__(self, path: Path, size: int = SIZE) -> None:
        self.path = path
        self.size = size

    def append(self, data: bytes) -> None:
        """Add bytes to the log.

        Args:
            data: The bytes.
        """
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and self.path.stat().st_size + len(data) > self.size:
                self.path.replace(self.path.with_name(f"{self.path.name}.old"))
            with self.path.open("ab") as file:
                file.write(data)

    def copy_from(self, stream: IO[bytes]) -> None:
        """Add all that a stream yields, until its other end is closed.

        Args:
            stream: The stream, such as the output of a process.
        """
        with stream:
            while data := os.read(stream.fileno(), _CHUNK):
                self.append(data)

"""Downloads that are verified and resumed, and have their final name only when complete."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all if known

ATTEMPTS = 3
TIMEOUT = 30.0
CHUNK = 1 << 18


def download(urls: Sequence[str], target: Path, md5: str, progress: Progress | None = None) -> Path:
    """Download a file from the first address that works.

    Args:
        urls: The addresses, in the order in which they are tried.
        target: The file to write.
        md5: The expected checksum; a file with another one is removed.
        progress: A function that is called with file name, bytes so far and bytes in all.

    Raises:
        OSError: If no address delivers the file.
    """
    if target.is_file() and md5_of(target) == md5:
        return target
    part = target.with_name(target.name + ".part")
    errors = []
    for url in urls:
        for _ in range(ATTEMPTS):
            try:
                _append(url, part, progress)
            except (OSError, HTTPException) as error:
                errors.append(f"{url}: {error}")
                if isinstance(error, HTTPError) and error.code < 500:
                    break
                continue
            checksum = md5_of(part)
            if checksum == md5:
                os.replace(part, target)
                return target
            part.unlink()
            errors.append(f"{url}: checksum {checksum} instead of {md5}")
            break
    partial = ""
    if part.exists():
        partial = f"; {part.stat().st_size:,} bytes are kept to continue from"
    raise OSError(
        f"could not download {target.name}{partial}. Tried: {'; '.join(errors)}. "
        "Offline: use equipoise data import with a file that you downloaded by hand"
    )


def _append(url: str, part: Path, progress: Progress | None) -> None:
    """Continue where the partial file ends, or start again if the server cannot."""
    received = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "equipoise"}
    if received:
        headers["Range"] = f"bytes={received}-"
    try:
        response = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        # Nothing is left to send: the file is complete or too long, as its checksum will show.
        if error.code == 416:
            return
        raise
    with response:
        is_resumed = response.status == 206
        if not is_resumed:
            received = 0
        length = response.headers.get("Content-Length")
        total = received + int(length) if length else None
        with part.open("ab" if is_resumed else "wb") as opened:
            while chunk := response.read(CHUNK):
                opened.write(chunk)
                received += len(chunk)
                if progress:
                    progress(part.stem, received, total)
        if total is not None and received < total:
            raise OSError(f"the connection broke after {received:,} of {total:,} bytes")


def md5_of(file: Path) -> str:
    """Return the MD5 checksum of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()

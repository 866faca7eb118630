"""Downloads that are checked, resumed after a break, and never left half done under their final name."""

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
    """Fetch a file from the first address that delivers; its checksum must fit, otherwise nothing is kept."""
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
            found = md5_of(part)
            if found == md5:
                os.replace(part, target)
                return target
            part.unlink()
            errors.append(f"{url}: checksum {found} instead of {md5}")
            break
    kept = f"; {part.stat().st_size:,} bytes are kept to go on from" if part.exists() else ""
    raise OSError(
        f"could not download {target.name}{kept}. Tried: {'; '.join(errors)}. Offline: use equipoise data import with a file got by hand"
    )


def _append(url: str, part: Path, progress: Progress | None) -> None:
    """Go on where the partial file ends, or start over where the server cannot."""
    have = part.stat().st_size if part.exists() else 0
    request = Request(
        url, headers={"User-Agent": "equipoise", **({"Range": f"bytes={have}-"} if have else {})}
    )
    try:
        answer = urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        # nothing left to send: complete, or larger than the real file, which the checksum tells
        if error.code == 416:
            return
        raise
    with answer:
        resumed = answer.status == 206
        have = have if resumed else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if resumed else "wb") as opened:
            while chunk := answer.read(CHUNK):
                opened.write(chunk)
                have += len(chunk)
                if progress:
                    progress(part.stem, have, total)
        if total is not None and have < total:
            raise OSError(f"the connection broke after {have:,} of {total:,} bytes")


def md5_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()

"""A virtual environment of its own for every peer, made once, outside the project."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

PEERS = Path(__file__).parent / "peers"
INSTALL_SECONDS = 1800


class Unavailable(Exception):
    """A contender cannot run here; the message says why."""


def folder() -> Path:
    """Return the folder of the environments: EQUIPOISE_BENCH_ENVS, or one in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("EQUIPOISE_BENCH_ENVS") or cache / "equipoise" / "benchmarks")


def python_of(peer: str) -> str:
    """The interpreter of a peer's environment, which is made first if its requirements are new."""
    files = sorted(PEERS.glob("constraints.txt")) + sorted((PEERS / peer).glob("*.txt"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    home = folder() / peer
    python, mark = home / "bin" / "python", home / "made-from"
    if mark.is_file() and mark.read_text() == digest:
        return str(python)
    _call([sys.executable, "-m", "venv", "--clear", str(home)])
    install = [str(python), "-m", "pip", "install", "--quiet", "-c", str(PEERS / "constraints.txt")]
    _call([*install, "-r", str(PEERS / peer / "requirements.txt")])
    if (alone := PEERS / peer / "no-deps.txt").is_file():
        _call([*install, "--no-deps", "-r", str(alone)])
    mark.write_text(digest)
    return str(python)


def _call(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"installation took more than {INSTALL_SECONDS} s") from error
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"does not install: {last_line(error.stderr)}") from error


def last_line(text: str) -> str:
    r"""Return the last line that is not empty.

    >>> last_line("Traceback\n  somewhere\nValueError: no\n\n")
    'ValueError: no'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"

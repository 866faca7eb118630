"""Processes of a party: FLARE's server or client, started from a kit and ended as a whole."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from equipoise.experiment import ConfigurationError
from equipoise.transports.nvflare.kits import HOME, Kit

RUNNING = "running.json"  # the process that runs the party, in the party's folder
LOGS = "logs"
SCRATCH = "tmp"  # temporary files of all processes of the party
READY_DEADLINE = 120.0  # seconds for FLARE to start, on a busy machine
STOP_DEADLINE = 15.0
MARK = "EQUIPOISE_PARTY"  # environment variable that all processes of a party have
_READY = {"server": "Server started", "site": "Successfully registered client"}
_MODULES = {
    "server": "nvflare.private.fed.app.server.server_train",
    "site": "nvflare.private.fed.app.client.client_train",
}


@dataclass(frozen=True)
class Running:
    """The process that runs a party.

    Attributes:
        pid: Its identifier.
        began: The time at which it began, since another process may have its number later.
        mark: The value of `MARK` in the environment of everything that it started.
    """

    pid: int
    began: str
    mark: str

    @property
    def alive(self) -> bool:
        """True if the process is still the one that was started."""
        return bool(self.began) and began(self.pid) == self.began


def running(kit: Kit) -> Running | None:
    """Return the process that runs a party; None if there is none."""
    with suppress(OSError, ValueError, TypeError):
        process = Running(**json.loads((kit.folder / RUNNING).read_text()))
        if process.alive:
            return process
    return None


class PartyProcess:
    """FLARE's process of a server or a site, and everything that it starts.

    Args:
        kit: The kit of the party.
        variables: Further environment variables of its processes.

    Raises:
        ConfigurationError: If the party runs already.
    """

    def __init__(self, kit: Kit, variables: Mapping[str, str] | None = None) -> None:
        self.kit = kit
        self._variables = dict(variables or {})
        other = running(kit)
        if other is not None:
            raise ConfigurationError(
                f"{kit.folder}: the {kit.kind} runs already (process {other.pid}); "
                f"`equipoise {kit.kind} stop {kit.folder}` ends it"
            )
        end_marked(_left_mark(kit))
        self._log = kit.startup / "log.txt"
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        self.mark = secrets.token_hex(16)
        # Before anything is started, so that `stop` finds it whatever happens to this process.
        owner = Running(os.getpid(), began(os.getpid()), self.mark)
        _write_private(kit.folder / RUNNING, json.dumps(vars(owner)))
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        kit = self.kit
        folder = kit.folder / LOGS
        folder.mkdir(mode=0o700, exist_ok=True)
        log = folder / f"{kit.kind}.out"
        _write_private(log, "")
        # A session of its own: Ctrl-C reaches the process that started it, which ends it in order.
        with log.open("wb") as output:
            return subprocess.Popen(
                _command(kit),
                env=_environment(kit, self.mark) | self._variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=kit.startup,
                umask=0o077,
            )

    def wait_until_ready(
        self, stopped: threading.Event | None = None, seconds: float = READY_DEADLINE
    ) -> None:
        """Wait until a server listens, or a site is registered.

        Args:
            stopped: Ends the wait if it is set.
            seconds: The longest wait.

        Raises:
            ConfigurationError: If FLARE ended, or took too long.
        """
        stopped = stopped or threading.Event()
        due = time.monotonic() + seconds
        while not self.ready and not stopped.wait(0.1):
            self.check_alive()
            if time.monotonic() > due:
                raise self._failure(f"was not ready within {seconds:.0f} s")

    def check_alive(self) -> None:
        """Check that FLARE's process has not ended.

        Raises:
            ConfigurationError: If it has.
        """
        code = self.process.poll()
        if code is not None:
            raise self._failure(f"ended with code {code}")

    @property
    def ready(self) -> bool:
        """True if a server listens, or a site is registered."""
        return _READY[self.kit.kind] in self._log_text()

    def _log_text(self) -> str:
        if not self._log.exists():
            return ""
        with self._log.open("rb") as log:
            if self._log.stat().st_size >= self._log_start:
                log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _failure(self, event: str) -> ConfigurationError:
        lines = [line.strip() for line in self._log_text().splitlines() if " ERROR " in line]
        reason = f": {lines[-1]:.300}" if lines else ""
        return ConfigurationError(
            f"FLARE's process of the {self.kit.kind} {self.kit.name} {event}{reason}; "
            f"see {self._log} and {self.kit.folder / LOGS}"
        )

    def end(self) -> None:
        """End FLARE's process and all that it started."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=STOP_DEADLINE / 3)
        end_marked(self.mark)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=STOP_DEADLINE)
        (self.kit.folder / RUNNING).unlink(missing_ok=True)


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read."""
    path.touch(0o600)
    path.chmod(0o600)
    path.write_text(text)


def stop(kit: Kit) -> bool:
    """End the process that runs a party and leftovers of an earlier one.

    Returns:
        True if there was one of them.
    """
    process = running(kit)
    mark = _left_mark(kit)
    if process is not None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        due = time.monotonic() + STOP_DEADLINE
        while process.alive and time.monotonic() < due:
            time.sleep(0.05)
        if process.alive:
            os.kill(process.pid, signal.SIGKILL)
    left = end_marked(mark)
    (kit.folder / RUNNING).unlink(missing_ok=True)
    return process is not None or left > 0


def _left_mark(kit: Kit) -> str:
    """Return the mark of the processes that were started last; empty if there is none."""
    try:
        return str(json.loads((kit.folder / RUNNING).read_text())["mark"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def end_marked(mark: str) -> int:
    """Kill all processes of this user that carry a mark; return their number.

    FLARE's job processes have sessions of their own, so the group of their parent misses them.
    """
    if not mark:
        return 0
    count = 0
    due = time.monotonic() + STOP_DEADLINE
    while time.monotonic() < due:
        pids = marked_processes(mark)
        if not pids:
            break
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                count += 1
        time.sleep(0.05)
    return count


def marked_processes(mark: str) -> list[int]:
    """Return the running processes that carry a mark."""
    entry = f"{MARK}={mark}".encode()
    pids = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):  # processes of others, and those that have just ended
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
    return [pid for pid in pids if began(pid)]


def began(pid: int) -> str:
    """Return the time at which a process began, in clock ticks; empty if it has ended."""
    with suppress(OSError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return rest[18] if state != "Z" else ""
    return ""


def _command(kit: Kit) -> list[str]:
    """Return the command that FLARE's own start script runs."""
    file = "fed_server.json" if kit.kind == "server" else "fed_client.json"
    words = ["-m", _MODULES[kit.kind], "-m", str(kit.startup), "-s", file, "--set"]
    words += ["secure_train=true", f"org={kit.organisation}", "config_folder="]
    if kit.kind == "site":
        words.append(f"uid={kit.name}")
    return [sys.executable, "-u", *words]


# Variables that the processes of a party have from the shell, by name or by its beginning. All
# others stay out: a job may name variables, and FLARE reads settings from some.
_PASSED = ("PATH", "TZ", "USER", "LOGNAME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "no_proxy")
_PASSED_PREFIXES = ("LANG", "LC_", "OMP_", "MKL_", "OPENBLAS_", "CUDA_", "NVIDIA_", "EQUIPOISE_")
_PASSED_SUFFIXES = ("_proxy", "_PROXY")


def _environment(kit: Kit, mark: str) -> dict[str, str]:
    """Return the environment of all processes of a party."""
    environment = {name: value for name, value in os.environ.items() if _is_passed(name)}
    scratch = kit.folder / SCRATCH
    scratch.mkdir(mode=0o700, exist_ok=True)
    return environment | {
        MARK: mark,
        "HOME": str(kit.folder / HOME),
        "TMPDIR": str(scratch),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        # Files in the current folder must not be imported in place of a library.
        "PYTHONSAFEPATH": "1",
        "MALLOC_ARENA_MAX": "4",
        # A job that has ended at the server is over, although a site that is away cannot say how it
        # ended there. By default FLARE waits 15 minutes for that.
        "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "5",
    }


def _is_passed(name: str) -> bool:
    return name in _PASSED or name.startswith(_PASSED_PREFIXES) or name.endswith(_PASSED_SUFFIXES)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])

"""The nodes of a cluster on this machine: started with a token, looked at from outside, ended by their own process ids."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from equipoise.experiment import ConfigurationError
from equipoise.transports.ray.probe import check_installed, is_loopback, look
from equipoise.transports.workers.processes import HEAP, SINGLE
from equipoise.version import __version__

PORT = 6379
WORKER_PORTS = range(10002, 20000)
PRIVATE = "equipoise-ray-"  # how the names of nodes' own folders begin
START_DEADLINE = 120.0
STOP_DEADLINE = 15.0
# What is smaller travels with a call or its answer; what is larger goes by the object stores, which costs a few milliseconds more.
INLINE = 2 * 2**20
TRAVEL = {"RAY_max_direct_call_object_size": str(INLINE)}  # of the run's process, too
# Of every process of a node: no reports to Ray's makers, training not below other work, a dead node known within 2 s, and no state of a
# client on a node's disk.
_SETTINGS = TRAVEL | {
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_automatic_object_spilling_enabled": "0",
    "RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "1000", "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "1000", "RAY_AUTH_MODE": "token",
}  # fmt: skip
# `ray start` replaces loopback by the machine's own address, and the setting against that keeps it from joining: so the first is undone here,
# and the second is for its children only. It does not open the port of Ray's remote client, which nobody here uses. And a head whose service
# has died does not end at once: runs would end with it, before they can say why.
_START = """
import os, sys
from ray._private import services
from ray._private.node import Node
from ray.scripts import scripts
if sys.argv[1] == "loopback":
    services.get_node_ip_address = lambda *arguments, **more: "127.0.0.1"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
scripts.get_ray_client_dependency_error = lambda: "not used"
dead = Node.dead_processes
Node.dead_processes = lambda self: [one for one in dead(self) if one[0] != "gcs_server"]
sys.argv[:2] = ["ray"]
scripts.main()
"""


@dataclass(frozen=True)
class Node:
    """A node that was started here, as its file says."""

    pid: int
    began: str  # when its process began: another one may have its number later
    cluster: str  # HOST:PORT of the head
    token: str  # the file that holds it
    head: bool
    private: str = ""  # the folder of this node alone that holds what Ray writes

    @property
    def file(self) -> Path:
        """The file that describes this node."""
        return folder() / f"node-{self.pid}.json"

    @property
    def alive(self) -> bool:
        """True if its process is still the one that was started."""
        return bool(self.began) and _began(self.pid) == self.began


def folder() -> Path:
    """Where tokens and the files of nodes lie: the user's own, never shared."""
    return (
        Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        / "equipoise"
        / "cluster"
    )


def here() -> list[Node]:
    """The nodes of this machine that we started and that run, the head first."""
    found = []
    for file in sorted(folder().glob("node-*.json")):
        with suppress(ValueError, TypeError, OSError):
            node = Node(**json.loads(file.read_text()))
            if node.alive:
                found.append(node)
            else:
                _forget(node)
    return sorted(found, key=lambda node: not node.head)


def start(
    join: str | None = None, bind: str | None = None, port: int = PORT, token: Path | None = None, cores: int | None = None,
    store: int | None = None, environment: Mapping[str, str] | None = None,
) -> Node:  # fmt: skip
    """Start a head, or a node that joins one; returns when it is part of the cluster. `store`: megabytes of its object store."""
    check_installed()
    if join is None and port in WORKER_PORTS:
        raise ConfigurationError(
            f"--port: expected one outside {WORKER_PORTS[0]}-{WORKER_PORTS[-1]}, which Ray gives to its workers, got {port}; use {PORT}, say"
        )
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    if join is None:
        bind = bind or "127.0.0.1"
        cluster, token = f"{bind}:{port}", token or _new_token(port)
        words = [
            "--head",
            "--port",
            str(port),
            "--include-dashboard=false",
            "--disable-usage-stats",
            "--no-monitor",
        ]
    else:
        cluster, words = join, ["--address", join]
        if token is None:
            raise ConfigurationError(
                "--join: expected the head's token too; copy its file to this machine and add --token FILE"
            )
        check_token(token)
        found = look(join, token)
        if found["ray"] != version("ray"):
            raise ConfigurationError(
                f"--join: expected a head with Ray {version('ray')} as here, got Ray {found['ray']} at {join}; install the same version on both"
            )
        bind = bind or ("127.0.0.1" if is_loopback(join) else None)
    check_token(token)
    labels = {"equipoise": __version__, "torch": _version("torch")}
    words += [
        "--include-log-monitor=false",
        "--labels",
        ",".join(f"{name}={_plain(value)}" for name, value in labels.items()),
    ]
    words += ["--node-ip-address", bind] if bind else []
    words += ["--num-cpus", str(cores)] if cores is not None else []
    words += ["--object-store-memory", str(store * 2**20)] if store is not None else []
    heap = {name: str(value) for name, value in HEAP.items()}
    settings = (
        heap | os.environ | SINGLE | _SETTINGS | {"RAY_AUTH_TOKEN_PATH": str(token.absolute())}
    )
    settings |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | dict(
        environment or {}
    )
    settings.pop("RAY_AUTH_TOKEN", None)
    # Ray makes its folder writable for everybody, so it lies inside one that only its owner enters. The
    # path is short: those of sockets may have about 100 characters. Ray's file with the address of the
    # cluster lies there, too, so one that is left behind sends no other program to a dead cluster.
    private = tempfile.mkdtemp(prefix=PRIVATE)
    words += ["--temp-dir", f"{private}/r"]
    command = [
        sys.executable,
        "-P",
        "-c",
        _START,
        "loopback" if bind and is_loopback(bind) else "network",
        "start",
        "--block",
        *words,
    ]
    log = folder() / f"start-{time.time_ns()}.log"
    with log.open("w") as output:
        # A session of its own: Ctrl-C and the end of this terminal do not reach it.
        process = subprocess.Popen(
            command,
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=folder(),
        )
    node = Node(
        process.pid, _began(process.pid), cluster, str(token.absolute()), join is None, private
    )
    node.file.write_text(json.dumps(asdict(node)))
    try:
        _until_started(process, log, cluster)
    except BaseException:
        end(node)
        raise
    log.unlink()
    return node


def _until_started(process: subprocess.Popen[bytes], log: Path, cluster: str) -> None:
    due = time.monotonic() + START_DEADLINE
    while "Ray runtime started" not in log.read_text(errors="replace"):
        code = process.poll()
        if code is not None or time.monotonic() > due:
            said = [
                line.strip()
                for line in log.read_text(errors="replace").splitlines()
                if line.strip()
            ]
            cause = (
                f"it was not ready within {START_DEADLINE:.0f} s"
                if code is None
                else f"it ended with code {code}"
            )
            raise ConfigurationError(
                f"no node of {cluster} could be started: {cause}; it said: {said[-1] if said else 'nothing'} (all of it in {log})"
            )
        time.sleep(0.1)


def stop() -> int:
    """End every node that was started here, the head last; how many there were."""
    found = here()
    for node in reversed(found):
        end(node)
    return len(found)


def end(node: Node) -> None:
    """Ask a node to end; what is left of its processes after a while is killed."""
    due = time.monotonic() + STOP_DEADLINE
    if node.alive:
        with suppress(ProcessLookupError):
            os.kill(node.pid, signal.SIGTERM)
            while node.alive and time.monotonic() < due:
                time.sleep(0.05)
            os.killpg(node.pid, signal.SIGKILL)  # a session of its own, see above
    with suppress(ChildProcessError):  # if this very process started it
        os.waitpid(node.pid, 0)
    _forget(node)


def _forget(node: Node) -> None:
    """Remove the files of a node that has ended."""
    if Path(node.private).name.startswith(PRIVATE):
        shutil.rmtree(node.private, ignore_errors=True)
    node.file.unlink(missing_ok=True)


def _new_token(port: int) -> Path:
    """The token of a head, in a file that only its owner reads; made once for a port."""
    file = folder() / f"token-{port}"
    if not file.exists():
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as output:
            output.write(secrets.token_hex(32))
    return file


def check_token(file: Path) -> None:
    """Refuse a file that holds no token, or that is not its owner's alone."""
    if not file.is_file() or not file.read_text().strip():
        raise ConfigurationError(
            f"expected a file with the token of the cluster, got {file}; copy it from the head"
        )
    if file.stat().st_mode & 0o077:
        raise ConfigurationError(f"the token in {file} can be read by others; `chmod 600 {file}`")


def _began(pid: int) -> str:
    """When a process began, by the system's clock ticks; empty if there is none (or it has ended and nobody asked how)."""
    with suppress(OSError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return rest[18] if state != "Z" else ""
    return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _plain(value: str) -> str:
    """As the label of a node may be.

    >>> _plain("2.13.0+cpu")
    '2.13.0_cpu'
    """
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in value)

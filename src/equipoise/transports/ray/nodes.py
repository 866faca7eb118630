"""Nodes of a Ray cluster on this machine: started with a token, ended by their process ids."""

from __future__ import annotations

import json
import os
import re
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
from equipoise.runtime.environment import HEAP, SINGLE_THREAD
from equipoise.transports.ray.probe import check_installed, is_loopback, look
from equipoise.version import __version__

PORT = 6379
WORKER_PORTS = range(10002, 20000)
PRIVATE = "equipoise-ray-"  # prefix of the folders of single nodes
START_DEADLINE = 120.0
STOP_DEADLINE = 15.0
# Smaller values travel with a call or its answer. Larger ones go through the object stores, which
# takes a few milliseconds more.
INLINE = 2 * 2**20
TRAVEL = {"RAY_max_direct_call_object_size": str(INLINE)}  # of the run's process, too
# Settings of every process of a node: no reports to Ray's makers, training not at lower priority
# than other work, a dead node known within 2 s, and no client state on a node's disk.
_SETTINGS = TRAVEL | {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_automatic_object_spilling_enabled": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_AUTH_MODE": "token",
}
# `ray start` replaces loopback by the machine's own address, and the setting against that keeps it
# from joining. So the first is undone here, and the second is for its children only. The port of
# Ray's remote client is not opened, since it is not used. A head whose service has died does not
# end at once, since runs would end with it before they can say why.
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
    """A node that was started on this machine, as its file describes it.

    Attributes:
        pid: The number of its process.
        began: The time at which the process began, since another may have its number later.
        cluster: HOST:PORT of the head.
        token: The file with the token.
        head: True for the head of the cluster.
        private: The folder of this node for Ray's files.
    """

    pid: int
    began: str
    cluster: str
    token: str
    head: bool
    private: str = ""

    @property
    def file(self) -> Path:
        """The file that describes this node."""
        return folder() / f"node-{self.pid}.json"

    @property
    def alive(self) -> bool:
        """True if its process is still the one that was started."""
        return bool(self.began) and _began(self.pid) == self.began


def folder() -> Path:
    """Return the user's folder for tokens and the files of nodes."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "equipoise" / "cluster"


def here() -> list[Node]:
    """Return the nodes that were started on this machine and run, the head first."""
    nodes = []
    for file in sorted(folder().glob("node-*.json")):
        with suppress(ValueError, TypeError, OSError):
            node = Node(**json.loads(file.read_text()))
            if node.alive:
                nodes.append(node)
            else:
                _forget(node)
    return sorted(nodes, key=lambda node: not node.head)


def start(
    join: str | None = None,
    bind: str | None = None,
    port: int = PORT,
    token: Path | None = None,
    cores: int | None = None,
    store: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Node:
    """Start a head, or a node that joins one; return when it is part of the cluster.

    Args:
        join: HOST:PORT of the head to join; None to start a head.
        bind: The address of this machine that other machines reach.
        port: The port of a head.
        token: The file with the cluster's token; a new head can make one.
        cores: The cores that this machine offers; all by default.
        store: Megabytes of the object store.
        environment: Further variables for the processes of the node.

    Returns:
        The node.

    Raises:
        ConfigurationError: If the node cannot be started with these settings.
    """
    check_installed()
    if join is None and port in WORKER_PORTS:
        raise ConfigurationError(
            f"--port: expected one outside {WORKER_PORTS[0]}-{WORKER_PORTS[-1]}, "
            f"which Ray gives to its workers, got {port}; use {PORT}, say"
        )
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    if join is None:
        bind = bind or "127.0.0.1"
        cluster = f"{bind}:{port}"
        token = token or _new_token(port)
    else:
        cluster = join
        token = _check_join(join, token)
        if bind is None and is_loopback(join):
            bind = "127.0.0.1"
    check_token(token)
    # Ray makes its folder writable for everybody, so it lies inside one that only its owner enters.
    # The path is short, since those of sockets may have about 100 characters. Ray's file with the
    # address of the cluster lies there, too, so one that is left behind sends no other program to
    # a dead cluster.
    private = tempfile.mkdtemp(prefix=PRIVATE)
    words = _head_options(port) if join is None else ["--address", join]
    words += _node_options(bind, cores, store, private)
    network = "loopback" if bind and is_loopback(bind) else "network"
    command = [sys.executable, "-P", "-c", _START, network, "start", "--block", *words]
    log = folder() / f"start-{time.time_ns()}.log"
    with log.open("w") as output:
        # A session of its own: Ctrl-C and the end of this terminal do not reach it.
        process = subprocess.Popen(
            command,
            env=_environment(token, environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=folder(),
        )
    began = _began(process.pid)
    node = Node(process.pid, began, cluster, str(token.absolute()), join is None, private)
    node.file.write_text(json.dumps(asdict(node)))
    try:
        _until_started(process, log, cluster)
    except BaseException:
        end(node)
        raise
    log.unlink()
    return node


def _check_join(join: str, token: Path | None) -> Path:
    """Check that a head can be joined; return the file with its token."""
    if token is None:
        raise ConfigurationError(
            "--join: expected the head's token too; "
            "copy its file to this machine and add --token FILE"
        )
    check_token(token)
    facts = look(join, token)
    if facts["ray"] != version("ray"):
        raise ConfigurationError(
            f"--join: expected a head with Ray {version('ray')} as here, got Ray {facts['ray']} "
            f"at {join}; install the same version on both"
        )
    return token


def _head_options(port: int) -> list[str]:
    return [
        "--head",
        "--port",
        str(port),
        "--include-dashboard=false",
        "--disable-usage-stats",
        "--no-monitor",
    ]


def _node_options(
    bind: str | None, cores: int | None, store: int | None, private: str
) -> list[str]:
    """Return the options of `ray start` that heads and other nodes share."""
    labels = f"equipoise={_plain(__version__)},torch={_plain(_version('torch'))}"
    options = ["--include-log-monitor=false", "--labels", labels]
    if bind:
        options += ["--node-ip-address", bind]
    if cores is not None:
        options += ["--num-cpus", str(cores)]
    if store is not None:
        options += ["--object-store-memory", str(store * 2**20)]
    return [*options, "--temp-dir", f"{private}/r"]


def _environment(token: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a node's processes."""
    environment = HEAP | os.environ | SINGLE_THREAD | _SETTINGS
    environment["RAY_AUTH_TOKEN_PATH"] = str(token.absolute())
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environment |= more
    environment.pop("RAY_AUTH_TOKEN", None)
    return environment


def _until_started(process: subprocess.Popen[bytes], log: Path, cluster: str) -> None:
    """Wait until a node is part of its cluster."""
    due = time.monotonic() + START_DEADLINE
    while "Ray runtime started" not in log.read_text(errors="replace"):
        code = process.poll()
        if code is not None:
            raise _not_started(cluster, f"it ended with code {code}", log)
        if time.monotonic() > due:
            raise _not_started(cluster, f"it was not ready within {START_DEADLINE:.0f} s", log)
        time.sleep(0.1)


def _not_started(cluster: str, cause: str, log: Path) -> ConfigurationError:
    lines = log.read_text(errors="replace").splitlines()
    output = [line.strip() for line in lines if line.strip()]
    last = output[-1] if output else "nothing"
    return ConfigurationError(
        f"no node of {cluster} could be started: {cause}; it said: {last} (all of it in {log})"
    )


def stop() -> int:
    """End all nodes that were started on this machine, the head last; return their number."""
    nodes = here()
    for node in reversed(nodes):
        end(node)
    return len(nodes)


def end(node: Node) -> None:
    """Ask a node to end, and kill the processes that are left after a while."""
    due = time.monotonic() + STOP_DEADLINE
    if node.alive:
        with suppress(ProcessLookupError):
            os.kill(node.pid, signal.SIGTERM)
            while node.alive and time.monotonic() < due:
                time.sleep(0.05)
            os.killpg(node.pid, signal.SIGKILL)  # it has a session of its own
    with suppress(ChildProcessError):  # if this very process started it
        os.waitpid(node.pid, 0)
    _forget(node)


def _forget(node: Node) -> None:
    """Remove the files of a node that has ended."""
    if Path(node.private).name.startswith(PRIVATE):
        shutil.rmtree(node.private, ignore_errors=True)
    node.file.unlink(missing_ok=True)


def _new_token(port: int) -> Path:
    """Return the file with the token of a head, which only its owner can read.

    It is made once for a port.
    """
    file = folder() / f"token-{port}"
    if not file.exists():
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as output:
            output.write(secrets.token_hex(32))
    return file


def check_token(file: Path) -> None:
    """Check that a file holds a token and that only its owner can read it.

    Raises:
        ConfigurationError: If it does not, or others can read it.
    """
    if not file.is_file() or not file.read_text().strip():
        raise ConfigurationError(
            f"expected a file with the token of the cluster, got {file}; copy it from the head"
        )
    if file.stat().st_mode & 0o077:
        raise ConfigurationError(f"the token in {file} can be read by others; `chmod 600 {file}`")


def _began(pid: int) -> str:
    """Return the time at which a process began, in clock ticks; empty if it has ended."""
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
    """Return a text with characters that a label of a node may have.

    Example:
        >>> _plain("2.13.0+cpu")
        '2.13.0_cpu'
    """
    return re.sub(r"[^\w.-]", "_", value)

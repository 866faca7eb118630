"""The nodes of a cluster on this machine: started with a token, looked at from outside, ended by their own process ids."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import equipoise
from equipoise.data.sets.store import data_folder
from equipoise.experiment import ConfigurationError
from equipoise.transports.workers.processes import HEAP, SINGLE

PORT = 6379
ANSWER_DEADLINE = 15.0  # seconds for a cluster to answer
START_DEADLINE = 120.0
STOP_DEADLINE = 15.0
# Of every process of a node: no reports to Ray's makers, training not below other work, a dead node known within 2 s, and no state of a
# client on a node's disk.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_automatic_object_spilling_enabled": "0",
    "RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "1000", "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "1000", "RAY_AUTH_MODE": "token",
}  # fmt: skip
# `ray start` replaces loopback by the machine's own address, and the setting against that keeps it from joining: so the first is undone here,
# and the second is for its children only. Nor does it open the port of Ray's remote client, which nobody here uses.
_START = """
import os, sys
from ray._private import services
from ray.scripts import scripts
if sys.argv[1] == "loopback":
    services.get_node_ip_address = lambda *arguments, **more: "127.0.0.1"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
scripts.get_ray_client_dependency_error = lambda: "not used"
sys.argv[:2] = ["ray"]
scripts.main()
"""
# In a process of its own: Ray ends a process whose cluster does not answer.
_LOOK = """
import json, sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    client = GcsClient(address=sys.argv[1])
    facts = json.loads(client.internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=10) or b"{}")
    nodes = [
        {"address": f"{node.node_manager_address}:{node.node_manager_port}", "resources": dict(node.resources_total),
         "labels": dict(node.labels), "head": node.is_head_node}
        for node in client.get_all_node_info(timeout=10).values() if not node.state
    ]
    print(json.dumps({"ray": facts.get("ray_version"), "python": facts.get("python_version"), "nodes": nodes}))
except AuthenticationError:
    print(json.dumps({"refused": True}))
"""


@dataclass(frozen=True)
class Node:
    """A node that was started here, as its file says."""

    pid: int
    began: str  # when its process began: another one may have its number later
    cluster: str  # HOST:PORT of the head
    token: str  # the file that holds it
    head: bool

    @property
    def file(self) -> Path:
        return folder() / f"node-{self.pid}.json"

    @property
    def alive(self) -> bool:
        return bool(self.began) and _began(self.pid) == self.began


def folder() -> Path:
    """Where tokens and the files of nodes lie."""
    return data_folder() / "cluster"


def check_installed() -> None:
    if find_spec("ray") is None:
        raise ConfigurationError("a cluster needs Ray, which is not installed; `pip install equipoise[cluster]`")


def here() -> list[Node]:
    """The nodes of this machine that we started and that run, the head first."""
    found = []
    for file in sorted(folder().glob("node-*.json")):
        with suppress(ValueError, TypeError, OSError):
            node = Node(**json.loads(file.read_text()))
            if node.alive:
                found.append(node)
            else:
                file.unlink(missing_ok=True)
    return sorted(found, key=lambda node: not node.head)


def is_loopback(address: str) -> bool:
    return address.startswith(("127.", "localhost"))


def start(
    join: str | None = None, bind: str | None = None, port: int = PORT, token: Path | None = None, cores: int | None = None,
    store: int | None = None, environment: Mapping[str, str] | None = None,
) -> Node:  # fmt: skip
    """Start a head, or a node that joins one; returns when it is part of the cluster. `store`: megabytes of its object store."""
    check_installed()
    folder().mkdir(parents=True, exist_ok=True)
    folder().chmod(0o700)
    if join is None:
        bind = bind or "127.0.0.1"
        cluster, token = f"{bind}:{port}", token or _new_token(port)
        words = ["--head", "--port", str(port), "--include-dashboard=false", "--disable-usage-stats", "--no-monitor"]
    else:
        cluster, words = join, ["--address", join]
        if token is None:
            raise ConfigurationError("--join: expected the head's token too; copy its file to this machine and add --token FILE")
        found = look(join, token)
        if found["ray"] != version("ray"):
            raise ConfigurationError(
                f"--join: expected a head with Ray {version('ray')} as here, got Ray {found['ray']} at {join}; install the same version on both"
            )
        bind = bind or ("127.0.0.1" if is_loopback(join) else None)
    _check_token(token)
    labels = {"equipoise": equipoise.__version__, "torch": _version("torch")}
    words += ["--include-log-monitor=false", "--labels", ",".join(f"{name}={_plain(value)}" for name, value in labels.items())]
    words += ["--node-ip-address", bind] if bind else []
    words += ["--num-cpus", str(cores)] if cores is not None else []
    words += ["--object-store-memory", str(store * 2**20)] if store is not None else []
    heap = {name: str(value) for name, value in HEAP.items()}
    settings = heap | os.environ | SINGLE | _SETTINGS | {"RAY_AUTH_TOKEN_PATH": str(token.absolute())}
    settings |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | dict(environment or {})
    settings.pop("RAY_AUTH_TOKEN", None)
    command = [sys.executable, "-P", "-c", _START, "loopback" if bind and is_loopback(bind) else "network", "start", "--block", *words]
    log = folder() / "start.log"
    with log.open("w") as output:
        # A session of its own: Ctrl-C and the end of this terminal do not reach it.
        process = subprocess.Popen(
            command, env=settings, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd=folder()
        )
    node = Node(process.pid, _began(process.pid), cluster, str(token.absolute()), join is None)
    node.file.write_text(json.dumps(asdict(node)))
    try:
        _until_started(process, log, cluster)
    except BaseException:
        end(node)
        raise
    return node


def _until_started(process: subprocess.Popen[bytes], log: Path, cluster: str) -> None:
    due = time.monotonic() + START_DEADLINE
    while "Ray runtime started" not in log.read_text(errors="replace"):
        code = process.poll()
        if code is not None or time.monotonic() > due:
            said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
            cause = "it was not ready within {START_DEADLINE:.0f} s" if code is None else f"it ended with code {code}"
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
        with suppress(ChildProcessError):  # ours, in a test: its end is to be fetched
            os.waitpid(node.pid, os.WNOHANG)
        time.sleep(0.05)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(node.pid, signal.SIGKILL)
    node.file.unlink(missing_ok=True)


def address_of(given: str) -> str:
    """HOST:PORT of a cluster; `auto` is the one of this machine."""
    if given != "auto":
        host, _, port = given.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigurationError(f"--cluster: expected HOST:PORT of a head such as 10.0.0.5:{PORT}, or auto, got {given!r}")
        return given
    known = [node.cluster for node in here()]
    with suppress(OSError):
        known += [os.environ.get("RAY_ADDRESS", "")] + [Path("/tmp/ray/ray_current_cluster").read_text().strip()]
    found = next((address for address in known if ":" in address), None)
    if found is None:
        raise ConfigurationError("--cluster auto: no cluster runs on this machine; start one with `equipoise cluster start --head`")
    return found


def token_for(cluster: str) -> Path | None:
    """The file of the token for a cluster: the one that the environment names, of a node here, or Ray's own."""
    if os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    own = next((Path(node.token) for node in here() if node.cluster == cluster), None)
    usual = Path.home() / ".ray" / "auth_token"
    return own or (usual if usual.exists() else None)


def look(cluster: str, token: Path | None, trust: bool = False) -> dict[str, Any]:
    """What a cluster says of itself. One that does not answer, that refuses the token, or that asks for none, is refused here."""
    without = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")} | {"RAY_AUTH_MODE": "disabled"}
    tokens = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)} if token is not None else {}
    if "RAY_AUTH_TOKEN" in os.environ:
        tokens = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.environ["RAY_AUTH_TOKEN"]}
    command = [sys.executable, "-P", "-c", _LOOK, cluster]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    asking = [
        subprocess.Popen(command, env={**without, **more, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}, **pipes)  # type: ignore[call-overload]
        for more in [{}, tokens][: 2 if tokens else 1]
    ]
    due = time.monotonic() + ANSWER_DEADLINE
    try:
        answers = [json.loads(process.communicate(timeout=max(0.1, due - time.monotonic()))[0] or b"{}") for process in asking]
    except subprocess.TimeoutExpired:
        answers = [{}]
    finally:
        for process in asking:
            process.kill()
            process.communicate()
    if not all(answers):
        raise ConfigurationError(
            f"the cluster at {cluster} did not answer within {ANSWER_DEADLINE:.0f} s; see that its head runs and that its ports can be reached"
        )
    if "refused" not in answers[0]:
        if not trust:
            raise ConfigurationError(
                f"the cluster at {cluster} asks for no token, so whoever reaches its ports runs code there; start it with `equipoise cluster start`, "
                "or add --trust-network if only people you trust reach them"
            )
        return {**answers[0], "token": False}
    if not tokens:
        raise ConfigurationError(
            f"the cluster at {cluster} asks for a token and there is none here; let RAY_AUTH_TOKEN_PATH name the file with it"
        )
    if "refused" in answers[1]:
        raise ConfigurationError(f"the cluster at {cluster} refused the token; copy the file with its token from its head")
    return {**answers[1], "token": True}


def _new_token(port: int) -> Path:
    """The token of a head, in a file that only its owner reads; made once for a port."""
    file = folder() / f"token-{port}"
    if not file.exists():
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as output:
            output.write(secrets.token_hex(32))
    return file


def _check_token(file: Path) -> None:
    if not file.is_file() or not file.read_text().strip():
        raise ConfigurationError(f"--token: expected a file with the token of the head, got {file}; copy it from there")
    if file.stat().st_mode & 0o077:
        raise ConfigurationError(f"--token: {file} can be read by others; `chmod 600 {file}`")


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

"""Clusters of this machine alone, on 127.0.0.1, with small object stores; ended by their own
process ids, whatever happens.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from equipoise.transports.ray import nodes

STORE = 100  # MB


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass
class Local:
    """A head without cores, and nodes around it."""

    head: nodes.Node
    store: int = STORE
    nodes: list[nodes.Node] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.head.cluster

    def join(self, cores: int = 1, environment: Mapping[str, str] | None = None) -> nodes.Node:
        self.nodes.append(
            nodes.start(
                self.address,
                token=Path(self.head.token),
                cores=cores,
                store=self.store,
                environment=environment,
            )
        )
        return self.nodes[-1]

    def kill(self, node: nodes.Node) -> None:
        """A machine that dies: all its processes at once."""
        for pid in processes([node]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        nodes.end(node)

    def end(self) -> None:
        for node in [*self.nodes, self.head]:
            nodes.end(node)


@contextmanager
def local(folder: Path, *cores: int, store: int = STORE) -> Iterator[Local]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_ADDRESS"):
            patch.delenv(name, raising=False)
        found = Local(nodes.start(port=free_port(), cores=0, store=store), store)
        try:
            # one after another: nodes of one machine that start at once take the same sockets
            for count in cores:
                found.join(count)
            yield found
        finally:
            found.end()


def processes(of: list[nodes.Node]) -> list[int]:
    """Everything that runs in the sessions of these nodes."""
    sessions = {node.pid for node in of}
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) in sessions and state != "Z":
                    found.append(int(entry.name))
    return found


def gone(of: list[nodes.Node], seconds: float = 10.0) -> bool:
    """Return True if the actors there end within this time, after a signal to end."""
    due = time.monotonic() + seconds
    while actors(of) and time.monotonic() < due:
        time.sleep(0.1)
    return not actors(of)


def actors(of: list[nodes.Node]) -> list[int]:
    """The actors of ours among them."""
    return [pid for pid in processes(of) if "ray::Actor" in command(pid)]


def command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def sockets(pids: list[int]) -> list[tuple[str, str, str]]:
    """Of every internet socket of these processes: here, there, and its state, as the kernel writes
    them.
    """
    inodes = set()
    for pid in pids:
        with suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(entry)))
    lines = [
        line.split()
        for kind in ("tcp", "tcp6", "udp", "udp6")
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    return [(words[1], words[2], words[3]) for words in lines if words[9] in inodes]


def abroad(pids: list[int]) -> list[tuple[str, str, str]]:
    """Those that listen or connect elsewhere than on this machine's loopback."""
    return [
        one
        for one in sockets(pids)
        if not (_is_loopback(one[0]) and (_is_loopback(one[1]) or not one[1].strip("0:")))
    ]


def listens(node: nodes.Node, port: int) -> bool:
    return any(
        state == "0A" and int(here.partition(":")[2], 16) == port
        for here, _, state in sockets(processes([node]))
    )


def _is_loopback(address: str) -> bool:
    host = address.partition(":")[0]
    return (
        host.endswith("7F")
        if len(host) == 8
        else host in ("00000000000000000000000001000000",)
        or (host[16:24] == "FFFF0000" and host.endswith("7F"))
    )


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}

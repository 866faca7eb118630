"""Probe of a Ray cluster from outside: whether it answers, asks for a token, and its nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from equipoise.experiment import ConfigurationError

ANSWER_DEADLINE = 15.0  # seconds for a cluster to answer
# Runs in a process of its own, since Ray ends a process whose cluster does not answer.
_LOOK = """
import json, os, socket, sys
host, _, port = sys.argv[1].rpartition(":")
try:
    socket.create_connection((host.strip("[]"), int(port)), 5).close()
except (OSError, ValueError, OverflowError) as error:
    print(json.dumps({"unreachable": str(error)}))
    sys.exit()
from ray._raylet import AuthenticationTokenLoader, Config, GcsClient
from ray.exceptions import AuthenticationError

def facts_with(mode):
    os.environ["RAY_AUTH_MODE"] = mode
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    try:
        client = GcsClient(address=sys.argv[1])
        metadata = client.internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=10)
        versions = json.loads(metadata or b"{}")
        nodes = []
        for node in client.get_all_node_info(timeout=10).values():
            if not node.state:
                nodes.append({
                    "address": f"{node.node_manager_address}:{node.node_manager_port}",
                    "resources": dict(node.resources_total),
                    "labels": dict(node.labels),
                    "head": node.is_head_node,
                })
        return {
            "ray": versions.get("ray_version"),
            "python": versions.get("python_version"),
            "nodes": nodes,
            "token": mode == "token",
        }
    except AuthenticationError:
        return None

facts = facts_with("disabled")
if facts is None and sys.argv[2:]:
    facts = facts_with("token")
print(json.dumps({"found": facts}))
"""


def check_installed() -> None:
    """Check that Ray is installed.

    Raises:
        ConfigurationError: If it is not.
    """
    if find_spec("ray") is None:
        raise ConfigurationError(
            "a cluster needs Ray, which is not installed; `pip install equipoise[cluster]`"
        )


def is_loopback(address: str) -> bool:
    """Return True if only this machine reaches an address."""
    return address.startswith(("127.", "localhost"))


def look(cluster: str, token: Path | None, trust: bool = False) -> dict[str, Any]:
    """Return the facts about a cluster: its versions and nodes.

    Args:
        cluster: HOST:PORT of its head.
        token: The file with its token.
        trust: Accept a cluster that asks for no token.

    Raises:
        ConfigurationError: If it does not answer, refuses the token, or asks for none.
    """
    has_token = "RAY_AUTH_TOKEN" in os.environ or token is not None
    answer = _answer(cluster, token, has_token)
    if "unreachable" in answer:
        raise ConfigurationError(
            f"no cluster answers at {cluster} ({answer['unreachable']}); check that its head runs "
            "and that its port can be reached, or start one with `equipoise cluster start --head`"
        )
    facts = answer["found"]
    if facts is None and has_token:
        raise ConfigurationError(
            f"the cluster at {cluster} refused the token; "
            "copy the file with its token from its head"
        )
    if facts is None:
        raise ConfigurationError(
            f"the cluster at {cluster} asks for a token and there is none here; "
            "let RAY_AUTH_TOKEN_PATH name the file with it"
        )
    if not facts["token"] and not trust:
        raise ConfigurationError(
            f"the cluster at {cluster} asks for no token, so whoever reaches its ports runs code "
            "there; start it with `equipoise cluster start`, or add --trust-network if only "
            "people you trust reach them"
        )
    assert isinstance(facts, dict)
    return facts


def _answer(cluster: str, token: Path | None, has_token: bool) -> dict[str, Any]:
    environment = os.environ | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    if token is not None:
        environment |= {"RAY_AUTH_TOKEN_PATH": str(token)}
    command = [sys.executable, "-P", "-c", _LOOK, cluster]
    if has_token:
        command.append("token")
    try:
        probe = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_DEADLINE,
        )
        answer: dict[str, Any] = json.loads(probe.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise ConfigurationError(
            f"the cluster at {cluster} did not answer within {ANSWER_DEADLINE:.0f} s; "
            "check that its head runs and that its ports can be reached"
        ) from None
    return answer

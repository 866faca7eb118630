"""What a cluster says of itself, asked from outside: whether it answers, whether it asks for a token, its versions and nodes."""

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
# In a process of its own: Ray ends a process whose cluster does not answer.
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

def told(mode):
    os.environ["RAY_AUTH_MODE"] = mode
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    try:
        client = GcsClient(address=sys.argv[1])
        facts = json.loads(client.internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=10) or b"{}")
        nodes = [
            {"address": f"{node.node_manager_address}:{node.node_manager_port}", "resources": dict(node.resources_total),
             "labels": dict(node.labels), "head": node.is_head_node}
            for node in client.get_all_node_info(timeout=10).values() if not node.state
        ]
        return {"ray": facts.get("ray_version"), "python": facts.get("python_version"), "nodes": nodes, "token": mode == "token"}
    except AuthenticationError:
        return None

print(json.dumps({"found": told("disabled") or (told("token") if sys.argv[2:] else None)}))
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
    """What a cluster says of itself. One that does not answer, that refuses the token, or that asks for none, is refused here."""
    given = "RAY_AUTH_TOKEN" in os.environ or token is not None
    settings = (
        os.environ
        | ({"RAY_AUTH_TOKEN_PATH": str(token)} if token is not None else {})
        | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    )
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-c", _LOOK, cluster, *(["token"] if given else [])],
            env=settings, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_DEADLINE,
        )  # fmt: skip
        answer = json.loads(asked.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise ConfigurationError(
            f"the cluster at {cluster} did not answer within {ANSWER_DEADLINE:.0f} s; see that its head runs and that its ports can be reached"
        ) from None
    if "unreachable" in answer:
        raise ConfigurationError(
            f"no cluster answers at {cluster} ({answer['unreachable']}); "
            "see that its head runs and that its port can be reached, or start one with `equipoise cluster start --head`"
        )
    found = answer["found"]
    if found is None:
        raise ConfigurationError(
            f"the cluster at {cluster} refused the token; copy the file with its token from its head" if given else
            f"the cluster at {cluster} asks for a token and there is none here; let RAY_AUTH_TOKEN_PATH name the file with it"
        )  # fmt: skip
    if not found["token"] and not trust:
        raise ConfigurationError(
            f"the cluster at {cluster} asks for no token, so whoever reaches its ports runs code there; start it with `equipoise cluster start`, "
            "or add --trust-network if only people you trust reach them"
        )
    assert isinstance(found, dict)
    return found

"""What a cluster says of itself, asked from outside: whether it answers, whether it asks for a token, its versions and nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from equipoise.experiment import ConfigurationError

ANSWER_DEADLINE = 15.0  # seconds for a cluster to answer
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


def check_installed() -> None:
    if find_spec("ray") is None:
        raise ConfigurationError("a cluster needs Ray, which is not installed; `pip install equipoise[cluster]`")


def is_loopback(address: str) -> bool:
    return address.startswith(("127.", "localhost"))


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

"""Connecting to a cluster: which one, and with which token."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from equipoise.experiment import ConfigurationError
from equipoise.transports.ray.nodes import PORT, TRAVEL, check_token, folder, here
from equipoise.transports.ray.probe import check_installed, is_loopback, look


def address_of(given: str) -> str:
    """HOST:PORT of a cluster; `auto` is the one of this machine."""
    if given != "auto":
        host, _, port = given.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigurationError(
                f"--cluster: expected HOST:PORT of a head such as 10.0.0.5:{PORT}, or auto, got {given!r}"
            )
        return given
    known = [node.cluster for node in here()]
    with suppress(OSError):
        known += [os.environ.get("RAY_ADDRESS", ""), _address_of_ray()]
    found = next((address for address in known if ":" in address), None)
    if found is None:
        raise ConfigurationError(
            "--cluster auto: no cluster runs on this machine; start one with `equipoise cluster start --head`"
        )
    return found


def _address_of_ray() -> str:
    """Return the cluster that Ray itself started last; empty if anybody else may have written that."""
    file = Path("/tmp/ray/ray_current_cluster")
    found = file.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.getuid()):
        return ""
    return file.read_text().strip()


def token_for(cluster: str) -> Path | None:
    """The file of the token for a cluster: the one that the environment names, of a node here, or Ray's own."""
    if os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    own = next((Path(node.token) for node in here() if node.cluster == cluster), None)
    usual = Path.home() / ".ray" / "auth_token"
    return own or (usual if usual.exists() else None)


@contextmanager
def _dumps_to(log: Path) -> Iterator[None]:
    """Send what Ray's own libraries write to standard error to a file: they write pages of addresses."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("w") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def connected(given: str, trust_network: bool) -> tuple[Any, str, bool]:
    """Ray, connected to a cluster; the cluster's address; and whether the connection is ours to end."""
    check_installed()
    ray: Any = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():  # by the user, before
        address = ray.get_runtime_context().gcs_address
        if given not in ("auto", address):
            raise ConfigurationError(
                f"--cluster: this process is connected to the cluster at {address} already, got {given!r}; use auto"
            )
        return ray, address, False
    address = address_of(given)
    token = token_for(address)
    if token is not None:
        check_token(token)
    found = look(address, token, trust_network)
    before = dict(os.environ)
    os.environ |= TRAVEL | {
        "RAY_AUTH_MODE": "token" if found["token"] else "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    os.environ |= {"RAY_AUTH_TOKEN_PATH": str(token)} if token is not None else {}
    ray = import_module("ray")
    import_module("ray.util.scheduling_strategies")
    raylet: Any = import_module("ray._raylet")
    constants: Any = import_module("ray._private.ray_constants")
    # Ray replaces loopback by the machine's own address, unless it believes that there are no other machines.
    constants.ENABLE_RAY_CLUSTER = not is_loopback(address)
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    try:
        with _dumps_to(folder() / "connecting.log"):
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level="error",
                _node_ip_address="127.0.0.1" if is_loopback(address) else None,
            )
    except Exception as error:
        raise ConfigurationError(
            f"this machine cannot work with the cluster at {address} ({' '.join(str(error).split())[:200]}); it has to be one of its nodes: "
            f"`equipoise cluster start --join {address} --token FILE`"
        ) from error
    finally:  # the next cluster may have another token
        os.environ.clear()
        os.environ |= before
    return ray, address, True

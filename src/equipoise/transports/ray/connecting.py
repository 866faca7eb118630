"""Connection to a Ray cluster: its address and its token."""

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


def address_of(name: str) -> str:
    """Return HOST:PORT of a cluster.

    Args:
        name: HOST:PORT, or ``auto`` for the cluster of this machine.

    Raises:
        ConfigurationError: If it is neither, or no cluster runs on this machine.
    """
    if name != "auto":
        host, _, port = name.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigurationError(
                f"--cluster: expected HOST:PORT of a head such as 10.0.0.5:{PORT}, or auto, "
                f"got {name!r}"
            )
        return name
    known = [node.cluster for node in here()]
    with suppress(OSError):
        known += [os.environ.get("RAY_ADDRESS", ""), _address_of_ray()]
    for address in known:
        if ":" in address:
            return address
    raise ConfigurationError(
        "--cluster auto: no cluster runs on this machine; "
        "start one with `equipoise cluster start --head`"
    )


def _address_of_ray() -> str:
    """Return the cluster that Ray started last; empty if another user may have written that."""
    file = Path("/tmp/ray/ray_current_cluster")
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.getuid()):
        return ""
    return file.read_text().strip()


def token_for(cluster: str) -> Path | None:
    """Return the file with the token of a cluster; None if there is none.

    It is the one that the environment names, that of a node on this machine, or Ray's own.
    """
    if os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    for node in here():
        if node.cluster == cluster:
            return Path(node.token)
    default = Path.home() / ".ray" / "auth_token"
    return default if default.exists() else None


@contextmanager
def _dumps_to(log: Path) -> Iterator[None]:
    """Redirect standard error to a file, since Ray's libraries write pages of addresses to it."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    sys.stderr.flush()
    original = os.dup(2)
    try:
        with log.open("w") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)


def connected(name: str, trust_network: bool) -> tuple[Any, str, bool]:
    """Connect to a cluster.

    Args:
        name: HOST:PORT of its head, or ``auto``.
        trust_network: Accept a cluster that asks for no token.

    Returns:
        The module `ray`, the cluster's address, and True if the connection was made here.

    Raises:
        ConfigurationError: If the cluster cannot be used.
    """
    check_installed()
    ray: Any = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():  # by the user, before
        address = ray.get_runtime_context().gcs_address
        if name not in ("auto", address):
            raise ConfigurationError(
                f"--cluster: this process is connected to the cluster at {address} already, "
                f"got {name!r}; use auto"
            )
        return ray, address, False
    address = address_of(name)
    token = token_for(address)
    if token is not None:
        check_token(token)
    facts = look(address, token, trust_network)
    before = dict(os.environ)
    os.environ |= TRAVEL | {
        "RAY_AUTH_MODE": "token" if facts["token"] else "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    if token is not None:
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
    ray = import_module("ray")
    import_module("ray.util.scheduling_strategies")
    raylet: Any = import_module("ray._raylet")
    constants: Any = import_module("ray._private.ray_constants")
    # Ray replaces loopback by the machine's own address, unless it believes that there are no
    # other machines.
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
            f"this machine cannot work with the cluster at {address} "
            f"({' '.join(str(error).split())[:200]}); it has to be one of its nodes: "
            f"`equipoise cluster start --join {address} --token FILE`"
        ) from error
    finally:  # the next cluster may have another token
        os.environ.clear()
        os.environ |= before
    return ray, address, True

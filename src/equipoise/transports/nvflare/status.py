"""Live status of a network, from the server, for a lead or a member."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from equipoise.experiment import ConfigurationError
from equipoise.transports.nvflare.connection import ANSWER_DEADLINE, check_server
from equipoise.transports.nvflare.kits import Kit
from equipoise.transports.nvflare.silence import flare_is_silent


@dataclass(frozen=True)
class ConnectedSite:
    """A site that is connected to the server.

    Attributes:
        name: The site.
        seconds: The time since it was last heard.
    """

    name: str
    seconds: float


@dataclass(frozen=True)
class NetworkStatus:
    """The status of a network.

    Attributes:
        sites: The sites that are connected.
        runs: The progress of the jobs in progress, by their identifiers; see `NetworkProgress`.
    """

    sites: list[ConnectedSite]
    runs: dict[str, dict[str, Any]]


def network_status(kit: Kit) -> NetworkStatus:
    """Ask the server who is connected.

    Args:
        kit: The kit of a lead or a member.

    Raises:
        ConfigurationError: If the server does not answer, or refuses.
    """
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    from equipoise.transports.nvflare.jobs import Desk

    check_server(kit)
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    with flare_is_silent():
        try:
            session = new_secure_session(kit.name, str(kit.startup), timeout=ANSWER_DEADLINE)
        except Exception as error:  # FLARE raises several kinds
            raise ConfigurationError(
                f"the server of {kit.network} did not admit {kit.name}: {error}; "
                "is this kit still valid?"
            ) from None
        try:
            facts = session.get_system_info()
            desk = Desk(kit, session)
            runs = {job.job_id: desk.progress(job.job_id) or {} for job in facts.job_info}
        finally:
            session.close()
    now = time.time()
    sites = [
        ConnectedSite(client.name, max(0.0, now - (client.last_connect_time or now)))
        for client in facts.client_info
    ]
    sites.sort(key=lambda site: site.name)
    return NetworkStatus(sites, runs)
